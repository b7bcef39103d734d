"""Jobs and nodes as slurmctld tells them, in Slurm's own words.

One total table maps what any supported version prints (22.05 to 26.05) to these states; a word that
is not in the table becomes `UNKNOWN`, never a guess. Source: Slurm's `squeue` and `sinfo` manual pages,
sections "JOB STATE CODES" and "NODE STATE CODES".
"""

from collections.abc import Iterable
from datetime import datetime, timedelta
from enum import StrEnum
from typing import NamedTuple

from relight.domain.base import Value


class JobState(StrEnum):
    """The base state of a job."""

    PENDING = "PENDING"
    RUNNING = "RUNNING"
    SUSPENDED = "SUSPENDED"
    COMPLETED = "COMPLETED"
    CANCELLED = "CANCELLED"
    FAILED = "FAILED"
    TIMEOUT = "TIMEOUT"
    NODE_FAIL = "NODE_FAIL"
    PREEMPTED = "PREEMPTED"
    BOOT_FAIL = "BOOT_FAIL"
    DEADLINE = "DEADLINE"
    OUT_OF_MEMORY = "OUT_OF_MEMORY"
    UNKNOWN = "UNKNOWN"


class JobFlag(StrEnum):
    """What is added to a job's base state."""

    COMPLETING = "COMPLETING"
    CONFIGURING = "CONFIGURING"
    LAUNCH_FAILED = "LAUNCH_FAILED"
    POWER_UP_NODE = "POWER_UP_NODE"
    RECONFIG_FAIL = "RECONFIG_FAIL"
    REQUEUED = "REQUEUED"
    REQUEUE_FED = "REQUEUE_FED"
    REQUEUE_HOLD = "REQUEUE_HOLD"
    RESIZING = "RESIZING"
    RESV_DEL_HOLD = "RESV_DEL_HOLD"
    REVOKED = "REVOKED"
    SIGNALING = "SIGNALING"
    SPECIAL_EXIT = "SPECIAL_EXIT"
    STAGE_OUT = "STAGE_OUT"
    STOPPED = "STOPPED"
    UPDATE_DB = "UPDATE_DB"


ENDED_BADLY = frozenset(
    {JobState.FAILED, JobState.NODE_FAIL, JobState.BOOT_FAIL, JobState.OUT_OF_MEMORY},
)
"""Ends that are interruptions. A time limit is one only after a long silence (a hang)."""

ENDED = ENDED_BADLY | {
    JobState.COMPLETED,
    JobState.CANCELLED,
    JobState.TIMEOUT,
    JobState.PREEMPTED,
    JobState.DEADLINE,
}


class ParsedState(NamedTuple):
    """A base state and what was added to it."""

    state: JobState
    flags: frozenset[JobFlag]


_SHORT = {
    "CA": JobState.CANCELLED,
    "CD": JobState.COMPLETED,
    "F": JobState.FAILED,
    "NF": JobState.NODE_FAIL,
    "OOM": JobState.OUT_OF_MEMORY,
    "PD": JobState.PENDING,
    "PR": JobState.PREEMPTED,
    "R": JobState.RUNNING,
    "S": JobState.SUSPENDED,
    "TO": JobState.TIMEOUT,
    "BF": JobState.BOOT_FAIL,
    "DL": JobState.DEADLINE,
}

_SHORT_FLAGS = {
    "CF": JobFlag.CONFIGURING,
    "CG": JobFlag.COMPLETING,
    "LF": JobFlag.LAUNCH_FAILED,
    "PO": JobFlag.POWER_UP_NODE,
    "RC": JobFlag.RECONFIG_FAIL,
    "RD": JobFlag.RESV_DEL_HOLD,
    "RF": JobFlag.REQUEUE_FED,
    "RH": JobFlag.REQUEUE_HOLD,
    "RQ": JobFlag.REQUEUED,
    "RS": JobFlag.RESIZING,
    "RV": JobFlag.REVOKED,
    "SE": JobFlag.SPECIAL_EXIT,
    "SI": JobFlag.SIGNALING,
    "SO": JobFlag.STAGE_OUT,
    "ST": JobFlag.STOPPED,
}


def parse_job_state(words: str | Iterable[str]) -> ParsedState:
    """Read a job's state from what Slurm prints.

    Takes one word (`RUNNING`), words joined by `+` or `,`, a list as newer versions print in JSON
    (`["FAILED", "COMPLETING"]`), and accounting's `CANCELLED by 1000`.

    A lone COMPLETING (squeue's compact form) hides the base state: that is UNKNOWN, not a guess.
    """
    parts = words.replace("+", ",").split(",") if isinstance(words, str) else list(words)
    state: JobState | None = None
    flags: set[JobFlag] = set()
    for part in parts:
        word = part.strip().split(" ")[0].upper()
        if word in JobState.__members__:
            state = JobState(word)
        elif word in JobFlag.__members__:
            flags.add(JobFlag(word))
        elif word in _SHORT:
            state = _SHORT[word]
        elif word in _SHORT_FLAGS:
            flags.add(_SHORT_FLAGS[word])
    if state is None:
        pending = flags & {JobFlag.REQUEUED, JobFlag.REQUEUE_HOLD, JobFlag.RESV_DEL_HOLD, JobFlag.SPECIAL_EXIT}
        state = JobState.PENDING if pending else JobState.UNKNOWN
    return ParsedState(state, frozenset(flags))


def gpus_in(gres: str) -> int:
    """How many GPUs a Gres text names: `gpu:8`, `gpu:h100:8(S:0-1)`, `gpu` (one)."""
    count = 0
    for part in gres.split(","):
        name, _, rest = part.partition("(")[0].partition(":")
        if name.strip() == "gpu":
            last = rest.rpartition(":")[2]
            count += int(last) if last.isascii() and last.isdigit() else 1
    return count


class JobRecord(Value):
    """One job (an array task or a component of a heterogeneous job is a job) as slurmctld shows it."""

    job_id: int
    """The numeric id of this very record (`scontrol`'s JobId), also for array tasks."""
    array_job_id: int | None = None
    array_task_id: int | None = None
    het_job_id: int | None = None
    het_offset: int | None = None
    name: str = ""
    user: str = ""
    account: str = ""
    partition: str = ""
    state: JobState
    flags: frozenset[JobFlag] = frozenset()
    reason: str = ""
    """Slurm's code for it, such as `BeginTime`; by pyslurm the words of `reason_text`, where there are any."""
    reason_text: str = ""
    """What Slurm adds in words (JSON's `state_description`), such as `launch failed requeued held`."""
    exit_code: int = 0
    """The batch script's exit status."""
    exit_signal: int = 0
    """The signal that ended the batch script, 0 for none."""
    restarts: int = 0
    submit_time: datetime
    """Changes at every requeue (seen on 22.05, 24.11 and 26.05)."""
    eligible_time: datetime | None = None
    start_time: datetime | None = None
    end_time: datetime | None = None
    nodes: tuple[str, ...] = ()
    """Nodes of the allocation, expanded; empty when there is none."""
    batch_host: str = ""
    node_count: int = 0
    task_count: int = 0
    gres_per_node: str = ""
    requeue: bool = True
    """False for `--no-requeue` / `Requeue=0`."""
    excluded_nodes: tuple[str, ...] = ()
    required_nodes: tuple[str, ...] = ()
    dependency: str = ""
    comment: str = ""
    work_dir: str = ""
    stdout: str = ""
    """Path of the batch script's output, placeholders resolved."""
    stderr: str = ""
    command: str = ""
    time_limit: timedelta | None = None
    qos: str = ""
    features: str = ""
    """What it asks of nodes (`--constraint`)."""
    reservation: str = ""
    tres: str = ""
    """All that was asked for together, such as `cpu=4,mem=4G,node=2,billing=4,gres/gpu=4`; empty where that is not
    told (pyslurm, versions before 0.3)."""

    @property
    def completing(self) -> bool:
        """True while Slurm still ends the attempt (kill, epilog)."""
        return JobFlag.COMPLETING in self.flags

    @property
    def running(self) -> bool:
        """True while the attempt runs: RUNNING and neither completing nor still being set up."""
        hidden = {JobFlag.COMPLETING, JobFlag.CONFIGURING, JobFlag.REQUEUED, JobFlag.STAGE_OUT}
        return self.state is JobState.RUNNING and not (self.flags & hidden)

    @property
    def why(self) -> str:
        """The reason as `scontrol show job` tells it: the words where there are any, else the code."""
        return self.reason_text or self.reason

    @property
    def gpus(self) -> int:
        """GPUs of the allocation; 0 where it has none, or Slurm does not say how many."""
        for part in self.tres.split(","):
            name, _, number = part.partition("=")
            if name == "gres/gpu" and number.isascii() and number.isdecimal():
                return int(number)
        return gpus_in(self.gres_per_node) * (self.node_count or len(self.nodes))

    @property
    def display_id(self) -> str:
        """The id as Slurm's commands print it: `7`, `6_2` for an array task, `12+1` for a component."""
        if self.array_job_id and self.array_task_id is not None:
            return f"{self.array_job_id}_{self.array_task_id}"
        if self.het_job_id and self.het_offset is not None:
            return f"{self.het_job_id}+{self.het_offset}"
        return str(self.job_id)


class StepRecord(Value):
    """One job step that runs."""

    step_id: str
    """As Slurm's commands print it: `7.0`, `7.batch`, `7.extern`, `6_2.0` for an array task."""
    nodes: tuple[str, ...] = ()
    task_count: int = 0
    start_time: datetime | None = None


class NodeState(StrEnum):
    """The base state of a node."""

    IDLE = "IDLE"
    ALLOCATED = "ALLOCATED"
    MIXED = "MIXED"
    DOWN = "DOWN"
    ERROR = "ERROR"
    FUTURE = "FUTURE"
    UNKNOWN = "UNKNOWN"


class NodeFlag(StrEnum):
    """What is added to a node's base state and matters to us."""

    BLOCKED = "BLOCKED"
    CLOUD = "CLOUD"
    COMPLETING = "COMPLETING"
    DRAIN = "DRAIN"
    FAIL = "FAIL"
    INVALID_REG = "INVALID_REG"
    MAINTENANCE = "MAINTENANCE"
    NOT_RESPONDING = "NOT_RESPONDING"
    PLANNED = "PLANNED"
    POWERED_DOWN = "POWERED_DOWN"
    POWERING_DOWN = "POWERING_DOWN"
    POWERING_UP = "POWERING_UP"
    POWER_DOWN = "POWER_DOWN"
    POWER_UP = "POWER_UP"
    REBOOT_ISSUED = "REBOOT_ISSUED"
    REBOOT_REQUESTED = "REBOOT_REQUESTED"
    RESERVED = "RESERVED"


_NODE_WORDS: dict[str, tuple[NodeState | None, NodeFlag | None]] = {
    "ALLOC": (NodeState.ALLOCATED, None),
    "COMP": (None, NodeFlag.COMPLETING),
    "DRAINED": (None, NodeFlag.DRAIN),
    "DRAINING": (None, NodeFlag.DRAIN),
    "DRNG": (None, NodeFlag.DRAIN),
    "FAILG": (None, NodeFlag.FAIL),
    "FAILING": (None, NodeFlag.FAIL),
    "FUTR": (NodeState.FUTURE, None),
    "MIX": (NodeState.MIXED, None),
    "MAINT": (None, NodeFlag.MAINTENANCE),
    "NO_RESPOND": (None, NodeFlag.NOT_RESPONDING),
    "NOT_RESP": (None, NodeFlag.NOT_RESPONDING),
    "INVAL": (None, NodeFlag.INVALID_REG),
    "PLND": (None, NodeFlag.PLANNED),
    "POW_DN": (None, NodeFlag.POWER_DOWN),
    "POW_UP": (None, NodeFlag.POWER_UP),
    "RES": (None, NodeFlag.RESERVED),
    "RESV": (None, NodeFlag.RESERVED),
}


class ParsedNodeState(NamedTuple):
    """A node's base state and what was added to it."""

    state: NodeState
    flags: frozenset[NodeFlag]


def parse_node_state(words: str | Iterable[str]) -> ParsedNodeState:
    """Read a node's state: `IDLE`, `MIXED+DRAIN`, `DOWN*`, `["DOWN", "NOT_RESPONDING"]`, `down*`.

    The trailing `*` of the short form means not responding.
    """
    parts = words.replace("+", ",").split(",") if isinstance(words, str) else list(words)
    state = NodeState.UNKNOWN
    flags: set[NodeFlag] = set()
    for part in parts:
        word = part.strip().upper()
        if word.endswith("*"):
            flags.add(NodeFlag.NOT_RESPONDING)
        word = word.rstrip("*~#!%$@^-")
        if word in NodeState.__members__:
            state = NodeState(word)
        elif word in NodeFlag.__members__:
            flags.add(NodeFlag(word))
        elif word in _NODE_WORDS:
            base, flag = _NODE_WORDS[word]
            state = base or state
            if flag:
                flags.add(flag)
    return ParsedNodeState(state, frozenset(flags))


class NodeRecord(Value):
    """One node as slurmctld shows it."""

    name: str
    state: NodeState
    flags: frozenset[NodeFlag] = frozenset()
    reason: str = ""
    reason_user: str = ""
    reason_time: datetime | None = None
    partitions: tuple[str, ...] = ()
    features: tuple[str, ...] = ()
    gres: str = ""
    boot_time: datetime | None = None
    slurmd_start_time: datetime | None = None
    address: str = ""
    """Where slurmd is reached (`NodeAddr`): a number or a name. Empty where Slurm does not say."""
    port: int = 0
    """slurmd's port; 0 where Slurm does not say."""

    @property
    def lost(self) -> bool:
        """True when slurmctld itself calls the node down or not responding."""
        return self.state is NodeState.DOWN or NodeFlag.NOT_RESPONDING in self.flags

    @property
    def draining(self) -> bool:
        """True when the node has the drain flag, whether or not work still runs there."""
        return NodeFlag.DRAIN in self.flags

    @property
    def prolog_failed(self) -> bool:
        """True when slurmctld drained the node because a prolog failed on it."""
        return self.draining and self.reason.lower().startswith("prolog error")

    @property
    def eligible(self) -> bool:
        """True when Slurm could start a job there, now or once running work ends."""
        barred = {
            NodeFlag.DRAIN,
            NodeFlag.FAIL,
            NodeFlag.INVALID_REG,
            NodeFlag.MAINTENANCE,
            NodeFlag.NOT_RESPONDING,
            NodeFlag.POWERED_DOWN,
            NodeFlag.POWERING_DOWN,
        }
        up = {NodeState.IDLE, NodeState.ALLOCATED, NodeState.MIXED}
        return self.state in up and not (self.flags & barred)


class AccountingRow(Value):
    """One execution of a job as the accounting database keeps it (`sacct --duplicates`)."""

    job_id: int
    state: JobState
    cancelled_by: str = ""
    """User id or name behind `CANCELLED by ...`, where accounting says it."""
    exit_code: int = 0
    exit_signal: int = 0
    submit_time: datetime | None = None
    start_time: datetime | None = None
    end_time: datetime | None = None
    nodes: tuple[str, ...] = ()
    """Perhaps not all of them: those that completed first were missing once (seen on 22.05)."""


class SlurmFacts(Value):
    """What of slurm.conf decides how Relight acts (`scontrol show config`)."""

    version: str
    cluster: str = ""
    min_job_age: timedelta = timedelta(seconds=300)
    kill_wait: timedelta = timedelta(seconds=30)
    unkillable_step_timeout: timedelta = timedelta(seconds=60)
    slurmd_timeout: timedelta = timedelta(seconds=300)
    accounting_storage: str = ""
    accounting_store_flags: frozenset[str] = frozenset()
    job_requeue: bool = True
    requeue_exit: frozenset[int] = frozenset()
    """Exit codes for which Slurm itself queues a job again, held or not (`RequeueExit`, `RequeueExitHold`)."""
    slurm_user: str = ""
