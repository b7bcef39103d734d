"""Where a job's time went: training that counts, and what was lost, by the names that Google publishes for it. Pure.

The names are those of `BadputType` in Google's ml-goodput-measurement library, so that numbers can be laid side by
side. Seen from outside the program, some of its kinds cannot be told apart: all between an attempt's start and its
first step is `PROGRAM_STARTUP` here (device initialisation, preparation, restoring a checkpoint, compiling), and how
long data was waited for stays within the steps. A stall, of which Google has no name, is a custom event as there.

*Goodput* is productive time over the time from a job's first start to its last end, queueing between attempts
included. *ETTR* (effective training time ratio; the word is Meta's, arXiv 2410.21680) counts the wait before the first
start as well: productive time over all the time in which the job was wanted to run. What was not seen is *unknown*:
neither productive nor lost, so that both are a range then, and `explained` says how much of the time is known.
"""

from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime, timedelta
from enum import StrEnum

from relight.domain.attempts import AttemptKey
from relight.domain.base import Value
from relight.domain.goodput_parts import ZERO, Moments, Part, divided, joined, marks_of

LINES_LATE = 5
"""So many step lines overdue, a running attempt's silence is no longer taken for a step on its way (`HangPolicy`)."""


class Badput(StrEnum):
    """What time is lost to."""

    STARTUP = "PROGRAM_STARTUP"
    """From an attempt's start to its first step."""
    SAVE = "UNPRODUCTIVE_CHECKPOINT_SAVE_TIME"
    """How much later than usual steps came that waited for a save."""
    WASTED = "WASTED_PROGRESS_FROM_DISRUPTION"
    """Steps that a later attempt did again, or will have to do."""
    RECOVERY = "INFRASTRUCTURE_RECOVERY_FROM_DISRUPTION"
    """From an attempt's end to the next one's start: detection, decision, approval, Slurm, queue."""
    STALL = "CUSTOM_BADPUT_EVENTS.STALL"
    """From an attempt's last step to its end, and silences as long as a hang that ended by themselves."""
    UNKNOWN = "OTHER"
    """What was not seen. It may have been productive."""


class Run(Value):
    """One attempt, as far as its time is known."""

    attempt: AttemptKey
    gpus: int = 0
    """0: not known, or none."""
    nodes: int = 0
    queued_at: datetime | None = None
    """When it was queued (again): Slurm's SubmitTime, which moves at every requeue."""
    started_at: datetime
    ended_at: datetime
    """Now, while it runs."""
    running: bool = False
    ended_badly: bool = False
    completed: bool = False
    """Whether Slurm says COMPLETED: what it did after its last step line was then part of its work."""
    first_step: int | None = None
    first_step_at: datetime | None = None
    last_step: int | None = None
    last_step_at: datetime | None = None
    stride: int = 1
    """Steps from one step line to the next."""
    line_every: timedelta | None = None
    """Time from one step line to the next; None: not known."""
    saving: timedelta = ZERO
    """What its timed saves took from training."""
    saves: int = 0
    timed_saves: int = 0
    stalled: timedelta = ZERO
    """Silences as long as a hang, after which it went on by itself."""
    saved_step: int | None = None
    read: bool = True
    """Whether its output was read: without it nothing is known of what it did."""


class Account(Value):
    """Where time went: of an attempt, a job, or many."""

    runs: int = 0
    elapsed: timedelta = ZERO
    queued: timedelta = ZERO
    """Waited before the first start; no part of `elapsed`."""
    productive: timedelta = ZERO
    lost: Mapping[Badput, timedelta] = {}
    tail_parts: Mapping[Part, timedelta] = {}
    """The stall up to the attempt's end, divided."""
    gap_parts: Mapping[Part, timedelta] = {}
    """What was lost to `RECOVERY`, divided: the time since the attempt before."""
    gpu_hours: float = 0.0
    """GPUs times elapsed hours; between attempts those that the next one got, as they are kept for it or queued for."""
    gpu_hours_lost: float = 0.0
    """The same without productive and unknown time."""
    node_hours: float = 0.0
    node_hours_lost: float = 0.0
    interruptions: int = 0
    """Attempts that ended badly."""
    steps_redone: int = 0
    saves: int = 0
    timed_saves: int = 0
    saving: timedelta = ZERO
    training: timedelta = ZERO
    """Between first and last steps."""

    @property
    def parts(self) -> Mapping[Part, timedelta]:
        """What disruptions' time was spent on."""
        return joined(self.tail_parts, self.gap_parts)

    @property
    def goodput(self) -> tuple[float, float] | None:
        """At least, at most; None for no time at all."""
        return self._ratio(self.elapsed)

    @property
    def ettr(self) -> tuple[float, float] | None:
        """The same with the wait before the first start."""
        return self._ratio(self.elapsed + self.queued)

    @property
    def explained(self) -> float | None:
        """The share of the time of which is known what it was spent on; None for no time at all."""
        if self.elapsed <= ZERO:
            return None
        return 1 - self.lost.get(Badput.UNKNOWN, ZERO) / self.elapsed

    def _ratio(self, whole: timedelta) -> tuple[float, float] | None:
        if whole <= ZERO:
            return None
        unknown = self.lost.get(Badput.UNKNOWN, ZERO)
        return self.productive / whole, (self.productive + unknown) / whole


_DIVIDED: Mapping[str, tuple[StrEnum, ...]] = {
    "lost": tuple(Badput),
    "tail_parts": tuple(Part),
    "gap_parts": tuple(Part),
}
_SUMMED = tuple(name for name in Account.model_fields if name not in _DIVIDED)


def total(accounts: Iterable[Account]) -> Account:
    """All together."""
    sums: dict[str, float | timedelta] = {}
    divided: dict[str, dict[StrEnum, timedelta]] = {name: {} for name in _DIVIDED}
    for account in accounts:
        for name in _SUMMED:
            value = getattr(account, name)
            sums[name] = sums[name] + value if name in sums else value
        for name, into in divided.items():
            for key, time in getattr(account, name).items():
                into[key] = into.get(key, ZERO) + time
    ordered = {name: {key: into[key] for key in _DIVIDED[name] if key in into} for name, into in divided.items()}
    return Account.model_validate({**sums, **ordered})


def of_job(runs: Sequence[Run], told: Mapping[AttemptKey, Moments] | None = None) -> tuple[Account, ...]:
    """The account of each attempt of one job, oldest first; each but the first with the time since the one before.

    Args:
        runs: its attempts.
        told: of those that were interrupted, what was done about it.
    """
    told = told or {}
    runs = sorted(runs, key=lambda run: run.started_at)
    steps_shown = any(run.last_step is not None for run in runs)
    return tuple(
        _of_run(run, runs[:index], runs[index + 1 :], told, shown=steps_shown) for index, run in enumerate(runs)
    )


def _of_run(
    run: Run, earlier: Sequence[Run], later: Sequence[Run], told: Mapping[AttemptKey, Moments], *, shown: bool
) -> Account:
    before = max((each.ended_at for each in earlier), default=None)
    ran = max(run.ended_at - run.started_at, ZERO)
    gap = max(run.started_at - before, ZERO) if before else ZERO
    redone = steps_redone(run, later)
    spent, tail = _spent(run, ran, redone, shown=shown)
    tail_parts = divided(run.ended_at - tail, run.ended_at, marks_of(told.get(run.attempt), None), Part.STALL)
    gap_parts: dict[Part, timedelta] = {}
    if before and gap:
        marks = marks_of(told.get(earlier[-1].attempt), run.queued_at)
        gap_parts = divided(before, run.started_at, marks, Part.QUEUE)
    lost = {kind: time for kind, time in {Badput.RECOVERY: gap, **spent}.items() if time > ZERO}
    wasted = sum((time for kind, time in lost.items() if kind is not Badput.UNKNOWN), ZERO)
    hours, hours_lost = (gap + ran).total_seconds() / 3600, wasted.total_seconds() / 3600
    return Account(
        runs=1,
        elapsed=gap + ran,
        queued=_waited(run) if not earlier else ZERO,
        productive=ran - sum(spent.values(), ZERO),
        lost=lost,
        tail_parts=tail_parts,
        gap_parts=gap_parts,
        gpu_hours=hours * run.gpus,
        gpu_hours_lost=hours_lost * run.gpus,
        node_hours=hours * run.nodes,
        node_hours_lost=hours_lost * run.nodes,
        interruptions=int(run.ended_badly),
        steps_redone=redone or 0,
        saves=run.saves,
        timed_saves=run.timed_saves,
        saving=run.saving,
        training=_trained(run),
    )


def _waited(run: Run) -> timedelta:
    return max(run.started_at - run.queued_at, ZERO) if run.queued_at else ZERO


def _trained(run: Run) -> timedelta:
    if run.first_step_at is None or run.last_step_at is None:
        return ZERO
    return max(run.last_step_at - run.first_step_at, ZERO)


def _spent(run: Run, ran: timedelta, redone: int | None, *, shown: bool) -> tuple[dict[Badput, timedelta], timedelta]:
    """What of the attempt's own time was not productive, together no more than it ran; and of it the stall at its end.

    `shown`: whether any attempt of the job printed a step. Where none did, its silence is not known to be a start-up.
    """
    if run.last_step is None or run.last_step_at is None:
        never = run.last_step is None and run.read and shown
        return {Badput.STARTUP if never else Badput.UNKNOWN: ran}, ZERO
    line = run.line_every or ZERO
    silent = _within(run.ended_at - run.last_step_at, ran)
    if run.first_step_at is None:
        # When its first step came is not known: start-up and training cannot be told apart.
        tail = ZERO if run.running or run.completed else max(silent - line, ZERO)
        return {Badput.STALL: tail, Badput.UNKNOWN: ran - tail}, tail
    startup = _within(run.first_step_at - run.started_at, ran)
    silent = min(silent, ran - startup)
    # The steps of the line that was never printed.
    unprinted = min(silent, line * (LINES_LATE if run.running else 1))
    rest = silent - unprinted
    unseen, tail = (rest, ZERO) if run.running or run.completed else (ZERO, rest)
    trained = ran - startup - silent
    done = run.last_step - (run.first_step if run.first_step is not None else run.last_step)
    wasted = trained * min(1.0, redone / done) if redone and done > 0 else ZERO
    lost = ZERO if run.running or run.completed else unprinted
    unknown = trained - wasted if redone is None else ZERO
    left = trained - wasted - unknown
    stalled = _within(run.stalled, left)
    return {
        Badput.STARTUP: startup,
        Badput.SAVE: _within(run.saving, left - stalled),
        Badput.WASTED: wasted + lost,
        Badput.STALL: stalled + tail,
        Badput.UNKNOWN: unknown + unseen,
    }, tail


def _within(time: timedelta, most: timedelta) -> timedelta:
    """Clocks differ: never less than nothing, nor more than there was."""
    return min(max(time, ZERO), max(most, ZERO))


def steps_redone(run: Run, later: Sequence[Run]) -> int | None:
    """Steps of the attempt that were done again, or will have to be; None where that cannot be known.

    A later attempt's first step tells from where it went on; what lies before the least of them counts. Where none has
    shown a step, what lies beyond the newest checkpoint is lost once the attempt has ended badly; without a known
    checkpoint nobody knows.
    """
    if run.last_step is None:
        return 0
    from_steps = [each.first_step - each.stride for each in later if each.first_step is not None]
    if from_steps:
        return max(0, run.last_step - min(from_steps))
    if run.running or not run.ended_badly:
        return 0
    return None if run.saved_step is None else max(0, run.last_step - run.saved_step)
