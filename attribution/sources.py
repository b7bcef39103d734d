"""What a diagnosis is made from: logs, and what else is known of the attempt."""

from collections.abc import Callable, Mapping
from datetime import datetime
from typing import BinaryIO, NamedTuple

from pydantic import AwareDatetime

from relight.domain.base import Value
from relight.domain.evidence import TRUST, Evidence, Interruption, Source, Trust
from relight.domain.slurm import JobState


class LogSource(NamedTuple):
    """A log to read."""

    name: str
    kind: Source
    """`Source.JOB_LOG`, or `Source.KERNEL_LOG` for what the platform itself collected on `node`."""
    node: str | None
    """The node that all of it is about; None for a job's log."""
    open: Callable[[], BinaryIO]
    """Opens it; an OSError becomes an entry of `Diagnosis.unreadable`."""
    rank: int | None = None
    """The rank that wrote all of it; None where several did, or its name tells (`whose.owners`)."""

    @property
    def platform(self) -> bool:
        """True for what users' programs cannot write."""
        return TRUST[self.kind] is Trust.PLATFORM


class Told(NamedTuple):
    """A fault that a node's agent has told, recognised already: it counts like a line of that node's kernel log.

    Told by an exporter it counts so too, but drains no node.
    """

    node: str
    kind: Source
    """Where the agent has it from, or `Source.EXPORTER`."""
    signature: str
    text: str
    at: datetime
    gpu: str = ""
    """PCI address, where it concerns a GPU."""


class Recorded(NamedTuple):
    """What flight-recorder dumps of a job's ranks say: they know more of a stall than its logs."""

    ranks: tuple[int, ...]
    """Those that did not do their part, in the group where it began; empty where it cannot be put down to ranks."""
    sentence: str
    mismatch: bool = False
    """True when ranks called different things: the program's fault."""


class Seat(Value):
    """Where a rank runs."""

    node: str
    gpu: str | None = None
    """Local index."""


class PriorFailure(Value):
    """An earlier failure of the same job."""

    signature: str
    failed_step: int | None = None
    nodes: tuple[str, ...] = ()
    """Nodes that it implicated."""
    outcome: str = ""


class NodeFailure(Value):
    """An earlier incident on one of the attempt's nodes, of any job."""

    node: str
    signature: str
    at: AwareDatetime
    own: bool = False
    """True when it was this very job's."""
    proven: bool = False
    """True when the platform itself found the node broken. Of another job nothing else counts: what a user can write
    does not reach another job."""


class Neighbour(Value):
    """Another job that was interrupted about when this one was."""

    lineage: str
    user: str = ""
    nodes: tuple[str, ...] = ()
    """Of its allocation. What its logs say is no matter here: it would reach another job."""


class Context(Value):
    """What is known besides the logs; everything may be missing."""

    nodes: tuple[str, ...] = ()
    """Nodes of the allocation."""
    rank_map: Mapping[int, Seat] = {}
    state: JobState | None = None
    """The job's end as slurmctld or accounting tells it."""
    reason: str = ""
    exit_code: int | None = None
    exit_signal: int | None = None
    lost_nodes: tuple[str, ...] = ()
    """Nodes that slurmctld calls down or not responding."""
    not_launched_on: tuple[str, ...] = ()
    """Nodes that could not start the job, where Slurm has queued it again for that."""
    interruption: Interruption | None = None
    interrupted_at: AwareDatetime | None = None
    """When progress stopped. Without it no kernel line can be placed in time, and none drains a node.

    Stamps without a zone (`dmesg -T`, syslog) are read in this time's zone, those without a year in its year.
    """
    history: tuple[PriorFailure, ...] = ()
    """Earlier failures of the same job, oldest first."""
    node_history: tuple[NodeFailure, ...] = ()
    """Earlier incidents on the attempt's nodes, of any job, within the last week."""
    spread: tuple[Neighbour, ...] = ()
    """Other jobs that were interrupted within minutes of this one."""
    last_step: int | None = None
    """The newest step that a watcher saw, in this attempt."""
    seen: tuple[Evidence, ...] = ()
    """What watchers saw beside the logs."""
