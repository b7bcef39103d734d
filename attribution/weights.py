"""The weights of evidence, as data: `weights.yaml`."""

from functools import cache
from importlib import resources

import yaml
from pydantic import Field

from relight.domain.base import Value


class AgainstANode(Value, extra="forbid"):
    """How much each kind of evidence speaks against a node."""

    self_proving: float = Field(ge=0)
    root_line: float = Field(ge=0)
    named_by_each: float = Field(ge=0)
    named_at_most: float = Field(ge=0)
    silent_or_behind: float = Field(ge=0)
    recorded: float = Field(ge=0)
    same_again: float = Field(ge=0)
    earlier_incident: float = Field(ge=0)


class Isolate(Value, extra="forbid"):
    """From where on a node is left out of the job's retry, when nothing about it is self-proving."""

    from_score: float = Field(gt=0)
    kinds: int = Field(ge=1)
    """Of evidence, different ones."""


class Spread(Value, extra="forbid"):
    """How many other jobs make it everybody's failure."""

    jobs: int = Field(ge=1)
    users: int = Field(ge=1)


class Weights(Value, extra="forbid"):
    """All of the file."""

    against_a_node: AgainstANode
    isolate: Isolate
    support: float = Field(ge=0, le=1)
    spread: Spread


@cache
def weights() -> Weights:
    """The shipped weights."""
    text = resources.files("relight.attribution").joinpath("weights.yaml").read_text("utf-8")
    return Weights.model_validate(yaml.safe_load(text))
