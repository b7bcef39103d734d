"""Evidence: one observed fact each, and how far it may be trusted."""

from datetime import datetime, timedelta
from enum import StrEnum

from pydantic import Field

from relight.domain.attempts import AttemptKey
from relight.domain.base import Value


class Answer(StrEnum):
    """What a look at the outside can say. Unknown is never read as yes or as no."""

    YES = "yes"
    NO = "no"
    UNKNOWN = "unknown"


class Trust(StrEnum):
    """Who could have written the evidence."""

    PLATFORM = "platform"
    JOB = "job"
    """Anything that a user's program can write. It never drains a node."""


class Source(StrEnum):
    """Where evidence comes from."""

    JOB_LOG = "job_log"
    PROGRESS = "progress"
    COMMENT = "comment"
    KERNEL_LOG = "kernel_log"
    SLURMCTLD = "slurmctld"
    ACCOUNTING = "accounting"
    NVML = "nvml"
    DCGM = "dcgm"
    """DCGM's exporter, read from a monitoring store, where the site says that no program can pass for it."""
    EXPORTER = "exporter"
    """The same where it does not: a user's program may listen on the port of an exporter that has died."""
    AGENT = "agent"
    """What a node's agent sees on the host, or that nothing is heard of it."""
    SLURMD = "slurmd"
    """Whether a node's slurmd takes a connection."""
    ACTIVITY = "activity"
    """What a job's processes and its GPUs do, as a node's agent sees it: stacks, idle GPUs, clocks."""
    HISTORY = "history"


TRUST = {
    Source.JOB_LOG: Trust.JOB,
    Source.PROGRESS: Trust.JOB,
    Source.COMMENT: Trust.JOB,
    Source.KERNEL_LOG: Trust.PLATFORM,
    Source.SLURMCTLD: Trust.PLATFORM,
    Source.ACCOUNTING: Trust.PLATFORM,
    Source.NVML: Trust.PLATFORM,
    Source.DCGM: Trust.PLATFORM,
    Source.EXPORTER: Trust.JOB,
    Source.AGENT: Trust.PLATFORM,
    Source.SLURMD: Trust.PLATFORM,
    Source.ACTIVITY: Trust.JOB,
    Source.HISTORY: Trust.JOB,
}
"""History is made of earlier diagnoses, which may rest on job evidence: it gets the lower trust.

So does activity: a program can call its functions anything, and let a GPU idle.
"""


class Evidence(Value):
    """One observed fact."""

    source: Source
    text: str = Field(max_length=600)
    """A short excerpt, as printed."""
    signature: str | None = None
    """Id of the catalogue entry that recognised it."""
    node: str | None = None
    rank: int | None = None
    gpu: str | None = None
    """PCI address as printed, or the local index."""
    at: datetime | None = None
    """When it happened by the source's own clock, or when it was read where the source has none."""
    file: str | None = None
    line: int | None = None
    """Line number in `file`, from 1."""

    @property
    def trust(self) -> Trust:
        """Who could have written it."""
        return TRUST[self.source]


class Interruption(StrEnum):
    """The ways in which an attempt stops making progress."""

    CRASH = "crash"
    HANG = "hang"
    STRAGGLER = "straggler"
    NODE_LOST = "node_lost"
    GPU_FAULT = "gpu_fault"
    NUMERICS = "numerics"
    """Its loss or gradients are not finite, or the loss has exploded: it goes on, but learns nothing any more."""


GOES_ON = frozenset({Interruption.HANG, Interruption.STRAGGLER, Interruption.GPU_FAULT, Interruption.NUMERICS})
"""The kinds that leave the attempt running: its end is an interruption of its own."""


MAX_EVIDENCE_PER_SIGNAL = 12


class Detection(Value):
    """A watcher's finding that an attempt was interrupted; delivered at least once."""

    id: str
    """Deterministic: the same finding made twice has the same id."""
    attempt: AttemptKey
    kind: Interruption
    detected_at: datetime
    occurred_at: datetime | None = None
    """When the interruption happened, as far as the source says."""
    evidence: tuple[Evidence, ...] = Field(default=(), max_length=MAX_EVIDENCE_PER_SIGNAL)
    folded: int = 0
    """Earlier findings of its kind that it stands for as well (`domain.folding`): each is a row of the ledger."""
    slurm_decides_within: timedelta | None = None
    """Of a node that Slurm itself has not given up yet: how long that may take. Nothing is done before."""


PLATFORM_WINDOW = timedelta(seconds=60)
"""How far before the interruption a platform witness on a node still counts against that node.

A GPU that fails takes its process along within seconds; older lines are another job's, or were lived with.
"""
