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


class Suspect(Value):
    """How much speaks against one node."""

    node: str
    score: float = Field(ge=0)
    """Sum of the weights of what speaks against it (`attribution/weights.yaml`)."""
    why: tuple[str, ...] = Field(default=(), max_length=8)
    """The kinds of evidence, one short phrase each."""
    isolate: bool = False
    """True when it is enough to leave the node out of this job's own retry."""


class Echo(Value):
    """Lines of one kind that are consequences of the cause, folded."""

    signature: str
    lines: int
    ranks: int = 0
    """How many different ranks printed them, as far as they say."""
    example: str = Field(default="", max_length=200)


class Nearby(Value):
    """A line near the one that shows the cause."""

    line: int
    text: str = Field(max_length=300)


class RankRow(Value):
    """What is known of one rank."""

    rank: int
    node: str | None = None
    gpu: str | None = None
    last_step: int | None = None
    said: str = ""
    """Signature of the first failure line it printed; empty where it printed none."""


class Diagnosis(Value):
    """Ranked hypotheses; the first is the verdict."""

    hypotheses: tuple[Hypothesis, ...] = Field(min_length=1, max_length=8)
    suspects: tuple[Suspect, ...] = Field(default=(), max_length=16)
    """Nodes against which anything speaks, the most suspect first."""
    echoes: int = 0
    """Lines that are consequences of another and were folded."""
    folded: tuple[Echo, ...] = Field(default=(), max_length=12)
    """The same by kind, the most frequent first."""
    around: tuple[Nearby, ...] = Field(default=(), max_length=11)
    """The lines around the first line of the verdict's evidence, that line among them."""
    ranks: tuple[RankRow, ...] = Field(default=(), max_length=64)
    """The ranks worth a look: those implicated first, then those that stand out."""
    would_change: tuple[str, ...] = Field(default=(), max_length=6)
    """What, if it were known, would change the verdict: one sentence each."""
    unreadable: tuple[str, ...] = ()
    """Sources that could not be read, each with the reason: their silence proves nothing."""
    failed_step: int | None = None
    """Last training step seen before the interruption."""

    @property
    def verdict(self) -> Hypothesis:
        """The most likely cause."""
        return self.hypotheses[0]
