"""A diagnosis: ranked causes with their evidence, and what they implicate."""

from enum import StrEnum

from pydantic import Field

from relight.domain.base import Value
from relight.domain.evidence import Evidence


class Category(StrEnum):
    """What kind of thing failed."""

    GPU = "GPU"
    NODE = "NODE"
    NETWORK = "NETWORK"
    STORAGE = "STORAGE"
    HOST_MEMORY = "HOST_MEMORY"
    SCHEDULER = "SCHEDULER"
    FRAMEWORK = "FRAMEWORK"
    USER_CODE = "USER_CODE"
    CONFIG = "CONFIG"
    DATA = "DATA"
    NUMERICS = "NUMERICS"
    STRAGGLER = "STRAGGLER"
    UNKNOWN = "UNKNOWN"
    CONTROL = "CONTROL"
    """Nothing failed."""


class Action(StrEnum):
    """The right first answer to a cause."""

    RESTART = "RESTART"
    RESTART_EXCLUDING_NODE = "RESTART_EXCLUDING_NODE"
    STOP = "STOP"
    NONE = "NONE"


class Implicated(Value):
    """Who is behind it, as far as the evidence names anyone."""

    ranks: tuple[int, ...] = ()
    nodes: tuple[str, ...] = ()
    gpus: tuple[str, ...] = ()

    def __bool__(self) -> bool:
        """True when anything is named."""
        return bool(self.ranks or self.nodes or self.gpus)


class Hypothesis(Value):
    """One possible cause."""

    signature: str
    """Catalogue id, for example `CUDA_ECC`; `UNKNOWN` where nothing was recognised."""
    category: Category
    action: Action
    action_if_it_repeats: Action
    confidence: float = Field(ge=0, le=1)
    implicated: Implicated = Implicated()
    summary: str = ""
    """One sentence for a person."""
    drain_nodes: tuple[str, ...] = ()
    """Nodes that a *platform* witness found broken: only these may be proposed for draining."""
    evidence: tuple[Evidence, ...] = Field(default=(), max_length=16)


class Diagnosis(Value):
    """Ranked hypotheses; the first is the verdict."""

    hypotheses: tuple[Hypothesis, ...] = Field(min_length=1, max_length=8)
    echoes: int = 0
    """Lines that are consequences of another and were folded."""
    unreadable: tuple[str, ...] = ()
    """Sources that could not be read, each with the reason: their silence proves nothing."""
    failed_step: int | None = None
    """Last training step seen before the interruption."""

    @property
    def verdict(self) -> Hypothesis:
        """The most likely cause."""
        return self.hypotheses[0]
