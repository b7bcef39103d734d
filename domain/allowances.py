"""How often, and how fast, a job may be restarted for what: the numbers of the retry budget as a policy says them."""

from datetime import timedelta
from itertools import pairwise
from typing import Annotated

from pydantic import AfterValidator, Field, WithJsonSchema

from relight.domain.diagnosis import Category
from relight.domain.human import Duration, between, spoken

PLATFORM = "platform"
"""What the platform itself did or witnessed: a broken node, a fault that the kernel saw, Slurm's own requeue.

It is nobody's fault who submits jobs, so it is no part of the user's budget; it has a limit of its own.
"""
DEFAULT_RETRIES: dict[str, int] = {
    "gpu": 5,
    "node": 5,
    "network": 5,
    "storage": 5,
    "host_memory": 2,
    "scheduler": 5,
    "framework": 3,
    "user_code": 1,
    "config": 1,
    "data": 1,
    "numerics": 1,
    "straggler": 3,
    "unknown": 3,
    PLATFORM: 20,
}
"""Restarts for each category of cause without a new durable checkpoint; those of machines are job evidence only."""
MOST_RETRIES = 50
MOST_WAITS = 10
LONGEST_WAIT = timedelta(days=7)


def name_of(category: Category) -> str:
    """What a category is called in a policy."""
    return category.lower()


NAMES = (*(name_of(category) for category in Category if category is not Category.CONTROL), PLATFORM)
"""All that `retries` can name; for CONTROL nothing failed and nothing is restarted."""


def _named(value: str) -> str:
    if value not in NAMES:
        raise ValueError(f"no such cause; accepted: {', '.join(NAMES)}")
    return value


def _grows(value: tuple[timedelta, ...]) -> tuple[timedelta, ...]:
    if not 1 <= len(value) <= MOST_WAITS:
        raise ValueError(f"must be a list of 1 to {MOST_WAITS} durations")
    for before, wait in pairwise(value):
        if wait < before:
            raise ValueError(f"must not shrink: {spoken(wait)} after {spoken(before)}")
    return value


Retries = dict[
    Annotated[str, AfterValidator(_named), WithJsonSchema({"type": "string", "enum": list(NAMES)})],
    Annotated[int, Field(ge=0, le=MOST_RETRIES)],
]
"""By cause: categories of a diagnosis in lower case, and `platform`."""
FullRetries = Annotated[Retries, AfterValidator(lambda value: DEFAULT_RETRIES | value)]
"""The same where a cause that is not named has its default."""
Backoff = Annotated[
    tuple[Annotated[Duration, AfterValidator(between(timedelta(0), LONGEST_WAIT))], ...],
    Field(json_schema_extra={"minItems": 1, "maxItems": MOST_WAITS}),
    AfterValidator(_grows),
]
"""How long a restart waits, by how many before it brought no progress; the last repeats."""
DEFAULT_BACKOFF = (timedelta(0), timedelta(minutes=1), timedelta(minutes=5), timedelta(minutes=15))
