"""What a line of a training job's output can tell about its progress."""

from datetime import datetime
from enum import StrEnum

from relight.domain.base import Value
from relight.domain.rhythm import Phase

__all__ = ["Edge", "Mark", "Measured", "Origin", "Phase", "PhaseMark", "Scope", "StepMark"]


class Scope(StrEnum):
    """What a step was counted from."""

    RUN = "run"
    """From the beginning of training."""
    EPOCH = "epoch"
    """Anew in each epoch, and the line does not say how long an epoch is."""
    BAR = "bar"
    """A progress bar without a name: it may be the run's, an epoch's, or an evaluation's."""
    EPOCHS = "epochs"
    """Epochs themselves: progress only for a job that prints nothing finer."""


class Edge(StrEnum):
    """Which end of a phase a line stands at."""

    BEGINS = "begins"
    """The phase is on from this line; said again while it lasts by what is printed all along (bars)."""
    ENDS = "ends"


class Origin(Value):
    """Who printed a line, as far as its prefix says."""

    rank: int | None = None
    """Global rank: `[rank3]:`, `3: ` (srun --label), `[Rank 3]`."""
    local_rank: int | None = None
    """Rank on its node: torchrun's `[default3]:`."""
    node: str | None = None
    at: datetime | None = None
    """When, by the job's own clock. Known from the progress file only."""


class Measured(Origin):
    """Numbers of training that are no step count: a line of their own with some trainers.

    Throughput is as printed: of one device where the trainer prints it so. It is good for comparing a job with itself.
    """

    loss: float | None = None
    """May be nan or infinite, as printed."""
    seconds: float | None = None
    """Seconds a step, finite. Bars print a smoothed one."""
    compute_seconds: float | None = None
    """Seconds of the step without its collectives: what one rank does without the others. From the progress file."""
    samples_per_second: float | None = None
    tokens_per_second: float | None = None
    tflops: float | None = None
    grad_norm: float | None = None
    """May be nan or infinite, as printed."""
    epoch: float | None = None
    """As printed; trainers begin with 0 or with 1."""


class StepMark(Measured):
    """One finished training step, as printed."""

    step: int
    """Monotonic within `scope`. Of batch B in epoch E of M batches each it is `(E - first epoch) x M + B`."""
    total: int | None = None
    """How many steps the scope shall have; None where an epoch's length is all that was printed."""
    scope: Scope = Scope.RUN


class PhaseMark(Origin):
    """A line that says that the job begins or ends something other than training."""

    phase: Phase
    edge: Edge
    saved: bool = False
    """Whether the line says that a checkpoint has been written, all of it."""


Mark = StepMark | Measured | PhaseMark
