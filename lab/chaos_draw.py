"""What befalls one trial of the chaos harness, drawn from its seed: a fault, and what breaks while it is mended."""

from enum import StrEnum
from random import Random
from typing import NamedTuple, TypeVar

from relight.domain.ledger import RowKind

T = TypeVar("T")


class Fault(StrEnum):
    """What interrupts the training job (`lab.faults`)."""

    CRASH = "crash"
    GPU = "gpu"
    NODE = "node"
    HANG = "hang"


class Part(StrEnum):
    """What is broken while the job is recovered."""

    WORKER = "worker"
    TEMPORAL = "temporal"
    SLURMCTLD = "slurmctld"
    SLURMDBD = "slurmdbd"
    DATABASE = "database"
    """The ledger's."""
    NODE = "node"
    """One of the job's."""
    AGENT = "agent"
    """Of the job's nodes."""
    COMMAND = "command"
    """One of Slurm's commands, as the worker or the node wrapper calls it."""


class How(StrEnum):
    """In which way."""

    KILL = "kill"
    """SIGKILL, and started again."""
    STOP = "stop"
    """SIGSTOP, and SIGCONT."""
    SLOW = "slow"
    """A command that takes some seconds, and then works."""
    HANG = "hang"
    """A command that does nothing and does not come back."""
    LATE = "late"
    """A command that does its work and then does not come back: the time-out happens after the effect."""
    LIE = "lie"
    """A command that does its work and then says that it timed out."""
    GARBLE = "garble"
    """A command of which only the beginning of the answer arrives."""


class Moment(NamedTuple):
    """When it breaks."""

    after: str
    """A row of the job's in the ledger, as `mark` names it; `fault`: the fault itself."""
    delay_s: float


class Script(NamedTuple):
    """One trial."""

    seed: int
    fault: Fault
    part: Part
    how: How
    moment: Moment
    for_s: float
    """How long it stays broken."""
    command: str = ""
    """Which of Slurm's commands, as `COMMANDS` names it."""
    times: int = 1
    """So many calls of it."""

    def __str__(self) -> str:
        """Return it in one line."""
        what = f"{self.how} {self.part}"
        if self.part is Part.COMMAND:
            return f"{self.fault}; {self.how} `{self.command}` x{self.times} for {self.for_s:.1f} s"
        return f"{self.fault}; {what} {self.moment.delay_s:.1f} s after {self.moment.after} for {self.for_s:.1f} s"


FAULT = "fault"
MOMENTS = (
    FAULT,
    RowKind.DETECTED,
    RowKind.OPENED,
    RowKind.CONFIRMED,
    RowKind.DIAGNOSED,
    RowKind.PLANNED,
    RowKind.OUTPUTS_KEPT,
    "intent/requeue",
    "effect/requeue",
    "verified/ended",
    "intent/start",
    "effect/start",
    "verified/running",
    "verified/progress",
)
OF_A_DRAIN = (RowKind.LEAVE, "intent/drain", "effect/drain", "intent/exclude", "effect/exclude")

WRITES = ("requeue", "exclude", "start", "drain")
READS = ("squeue", "sinfo", "sacct")
COMMANDS = (*WRITES, *READS)

_FAULTS = {Fault.CRASH: 10, Fault.GPU: 6, Fault.NODE: 3, Fault.HANG: 1}
"""A hang takes half a minute to be seen, and a dead node as long: both are drawn less often."""
_PARTS = {
    Part.WORKER: 5,
    Part.COMMAND: 5,
    Part.SLURMCTLD: 3,
    Part.TEMPORAL: 3,
    Part.DATABASE: 3,
    Part.NODE: 2,
    Part.SLURMDBD: 1,
    Part.AGENT: 1,
}
_AT_ONCE, _SPREAD_S = 0.5, 3.0
"""Half of the strikes come right after the row, when the next step has just begun."""
_DOWN_S = (0.0, 8.0)
_STOPPED_S = (2.0, 12.0)
_ZOMBIE, _ZOMBIE_S = 0.2, (62.0, 75.0)
"""A share of the stopped workers comes back when Temporal has given its activities up: then two tries of one run."""
_SLOW_S = (2.0, 9.0)
_WRITES = 0.7
"""Share of the troubled commands that change something."""
_GONE_S = 25.0
"""Longer than any time-out of a command."""


def draw(seed: int) -> Script:
    """Return the trial of that seed; the same each time."""
    rng = Random(seed)
    fault = _one_of(rng, _FAULTS)
    part = _one_of(rng, _PARTS)
    moments = (*MOMENTS, *OF_A_DRAIN) if fault is Fault.GPU else MOMENTS
    delay = rng.uniform(0, 0.15 if rng.random() < _AT_ONCE else _SPREAD_S)
    moment = Moment(str(rng.choice(moments)), delay)
    if part is Part.COMMAND:
        return _command(rng, Script(seed, fault, part, How.SLOW, Moment(FAULT, 0.0), 0.0))
    how = rng.choice((How.KILL, How.STOP))
    length = rng.uniform(*(_DOWN_S if how is How.KILL else _STOPPED_S))
    if part is Part.WORKER and how is How.STOP and rng.random() < _ZOMBIE:
        length = rng.uniform(*_ZOMBIE_S)
    return Script(seed, fault, part, how, moment, length)


def _command(rng: Random, script: Script) -> Script:
    """Trouble with a command is there from the fault on, and meets the next call of it."""
    writes = WRITES if script.fault is Fault.GPU else ("requeue", "start")
    command = rng.choice(writes if rng.random() < _WRITES else READS)
    how = rng.choice((How.SLOW, How.HANG, How.LATE, How.LIE) if command in WRITES else (How.SLOW, How.HANG, How.GARBLE))
    length = rng.uniform(*_SLOW_S) if how is How.SLOW else _GONE_S
    return script._replace(how=how, for_s=length, command=command, times=rng.choice((1, 1, 2, 3)))


def _one_of(rng: Random, weights: dict[T, int]) -> T:
    return rng.choices(tuple(weights), tuple(weights.values()))[0]
