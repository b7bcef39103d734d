"""Durations as people write them: `30m`, `1h30m`, `PT30M`."""

import re
from collections.abc import Callable
from datetime import timedelta
from typing import Annotated, Any

from pydantic import BeforeValidator, TypeAdapter, ValidationError, WithJsonSchema

_UNITS = {"w": "weeks", "d": "days", "h": "hours", "m": "minutes", "s": "seconds"}
_SHORT = re.compile("".join(rf"(?:(?P<{unit}>[0-9]{{1,9}}(?:\.[0-9]{{1,6}})?)\s*{unit})?\s*" for unit in _UNITS))
_ISO = re.compile(r"P[0-9YMWDTHS.]+|[0-9]{1,4}:[0-9]{2}:[0-9]{2}")
_TIMEDELTA = TypeAdapter(timedelta)

ACCEPTED_DURATIONS = "30s, 30m, 2h, 1h30m, 7d or PT30M"


def duration(value: Any) -> timedelta:
    """A length of time.

    Raises:
        ValueError: anything else, a bare number too: whether it means seconds or minutes would be a guess.
    """
    if isinstance(value, timedelta):
        return value
    text = value.strip() if isinstance(value, str) else ""
    found = _SHORT.fullmatch(text)
    try:
        if found and text:
            return timedelta(**{_UNITS[unit]: float(count) for unit, count in found.groupdict().items() if count})
        if _ISO.fullmatch(text):
            return _TIMEDELTA.validate_python(text)
    except (ValidationError, OverflowError):
        pass
    raise ValueError(f"must be a duration with its unit, like {ACCEPTED_DURATIONS}")


def _schema(pattern: str, *examples: str) -> WithJsonSchema:
    return WithJsonSchema({"type": "string", "pattern": pattern, "examples": list(examples)})


_DURATION_PATTERN = r"^([0-9]+(\.[0-9]+)?\s*[wdhms]\s*)+$|^P[0-9YMWDTHS.]+$|^[0-9]{1,4}:[0-9]{2}:[0-9]{2}$"

Duration = Annotated[timedelta, BeforeValidator(duration), _schema(_DURATION_PATTERN, "30m", "2h", "PT30M")]
"""A length of time; written as `ACCEPTED_DURATIONS` says."""


def between(least: timedelta, most: timedelta) -> Callable[[timedelta], timedelta]:
    """A check that a length of time lies within bounds, said in words that a person writes."""

    def check(value: timedelta) -> timedelta:
        if not least <= value <= most:
            raise ValueError(f"must be from {spoken(least)} to {spoken(most)}")
        return value

    return check


def spoken(value: timedelta) -> str:
    """The duration as one writes it, for example `1h30m`."""
    seconds = value.total_seconds()
    parts = []
    for unit, size in (("d", 86400), ("h", 3600), ("m", 60)):
        if seconds >= size:
            parts.append(f"{int(seconds // size)}{unit}")
            seconds %= size
    if seconds or not parts:
        parts.append(f"{seconds:g}s")
    return "".join(parts)
