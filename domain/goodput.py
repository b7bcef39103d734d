"""Where a job's time went: training that counts, and what was lost, by the names that Google publishes for it. Pure.

The names are those of `BadputType` in Google's ml-goodput-measurement library, so that numbers can be laid side by
side. Seen from outside the program, some of its kinds cannot be told apart: all between an attempt's start and its
first step is `PROGRAM_STARTUP` here (device initialisation, preparation, restoring a checkpoint, compiling), and how
long data was waited for stays within the steps. A stall, of which Google has no name, is a custom event as there.

*Goodput* is productive time over the time from a job's first start to its last end, queueing between attempts
included; Meta calls the same ratio ETTR (effective training time ratio; arXiv 2410.21680). The wait before the first
start is told beside it and is no part of it. What an attempt did whose output was not read is *unknown*: neither
productive nor lost, so goodput is a range then.
"""

from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime, timedelta
from enum import StrEnum
from itertools import pairwise
from math import sqrt

from relight.domain.attempts import AttemptKey
from relight.domain.base import Value

ZERO = timedelta(0)


class Badput(StrEnum):
    """What time is lost to."""

    STARTUP = "PROGRAM_STARTUP"
    """From an attempt's start to its first step."""
    SAVE = "UNPRODUCTIVE_CHECKPOINT_SAVE_TIME"
    """While it wrote checkpoints, as far as its lines announce them or their gaps come back."""
    WASTED = "WASTED_PROGRESS_FROM_DISRUPTION"
    """Steps that the next attempt did again."""
    RECOVERY = "INFRASTRUCTURE_RECOVERY_FROM_DISRUPTION"
    """From an attempt's end to the next one's start: detection, decision, approval, Slurm, queue."""
    STALL = "CUSTOM_BADPUT_EVENTS.STALL"
    """From an attempt's last step to its end: a hang until somebody ended it."""
    UNKNOWN = "OTHER"
    """What was not seen. It may have been productive."""


class Run(Value):
    """One attempt, as far as its time is known."""

    attempt: AttemptKey
    gpus: int = 0
    started_at: datetime
    ended_at: datetime
    """Now, while it runs."""
    running: bool = False
    ended_badly: bool = False
    first_step: int | None = None
    first_step_at: datetime | None = None
    last_step: int | None = None
    last_step_at: datetime | None = None
    stride: int = 1
    """Steps from one step line to the next."""
    saving: timedelta = ZERO
    """Time in which it wrote checkpoints instead of training."""
    saves: int = 0
    saved_step: int | None = None
    read: bool = True
    """Whether its output was read: without it nothing is known of what it did."""

    @property
    def stepped(self) -> bool:
        """Whether any step of it was seen."""
        return self.first_step_at is not None and self.last_step_at is not None and self.last_step is not None


class Account(Value):
    """Where time went: of an attempt, a job, or many."""

    elapsed: timedelta = ZERO
    productive: timedelta = ZERO
    lost: Mapping[Badput, timedelta] = {}
    gpu_hours: float = 0.0
    """GPUs times elapsed hours; between attempts those that the next one got, as they are kept for it or queued for."""
    gpu_hours_lost: float = 0.0
    """The same without productive and unknown time."""
    interruptions: int = 0
    """Attempts that ended badly."""
    steps_redone: int = 0
    saves: int = 0
    saving: timedelta = ZERO
    training: timedelta = ZERO
    """Between first and last steps."""

    @property
    def goodput(self) -> tuple[float, float] | None:
        """At least, at most; None for no time at all."""
        if self.elapsed <= ZERO:
            return None
        unknown = self.lost.get(Badput.UNKNOWN, ZERO)
        return self.productive / self.elapsed, (self.productive + unknown) / self.elapsed

    def plus(self, other: "Account") -> "Account":
        """Both together."""
        kinds = [kind for kind in Badput if kind in self.lost or kind in other.lost]
        summed = {kind: self.lost.get(kind, ZERO) + other.lost.get(kind, ZERO) for kind in kinds}
        names = set(type(self).model_fields) - {"lost"}
        return Account(lost=summed, **{name: getattr(self, name) + getattr(other, name) for name in names})


def total(accounts: Iterable[Account]) -> Account:
    """All together."""
    summed = Account()
    for account in accounts:
        summed = summed.plus(account)
    return summed


def of_job(runs: Sequence[Run]) -> tuple[Account, ...]:
    """The account of each attempt of one job, oldest first; each but the first with the time since the one before."""
    runs = sorted(runs, key=lambda run: run.started_at)
    around = [None, *runs, None]
    return tuple(_of_run(run, around[index], around[index + 2]) for index, run in enumerate(runs))


def _of_run(run: Run, earlier: Run | None, later: Run | None) -> Account:
    ran = max(run.ended_at - run.started_at, ZERO)
    gap = max(run.started_at - earlier.ended_at, ZERO) if earlier else ZERO
    redone = steps_redone(run, later)
    spent = _spent(run, ran, redone)
    productive = ran - sum(spent.values(), ZERO)
    lost = {kind: time for kind, time in {Badput.RECOVERY: gap, **spent}.items() if time > ZERO}
    wasted = sum((time for kind, time in lost.items() if kind is not Badput.UNKNOWN), ZERO)
    hours = run.gpus / 3600
    return Account(
        elapsed=gap + ran,
        productive=productive,
        lost=lost,
        gpu_hours=(gap + ran).total_seconds() * hours,
        gpu_hours_lost=wasted.total_seconds() * hours,
        interruptions=int(run.ended_badly),
        steps_redone=redone or 0,
        saves=run.saves,
        saving=run.saving,
        training=_trained(run),
    )


def _trained(run: Run) -> timedelta:
    if run.first_step_at is None or run.last_step_at is None:
        return ZERO
    return max(run.last_step_at - run.first_step_at, ZERO)


def _spent(run: Run, ran: timedelta, redone: int | None) -> dict[Badput, timedelta]:
    """What of the attempt's own time was not productive; together no more than it ran."""
    if not run.stepped or run.first_step_at is None or run.last_step_at is None:
        return {Badput.STARTUP if run.read else Badput.UNKNOWN: ran}
    startup = _within(run.first_step_at - run.started_at, ran)
    # A running attempt's next step is on its way; one that was ended has nothing to show for the time since its last.
    stall = ZERO if run.running else _within(run.ended_at - run.last_step_at, ran - startup)
    trained = ran - startup - stall
    done = (run.last_step or 0) - (run.first_step or 0)
    wasted = trained * min(1.0, redone / done) if redone and done > 0 else ZERO
    unknown = trained if redone is None else ZERO
    saving = _within(run.saving, trained - wasted - unknown)
    return {
        Badput.STARTUP: startup,
        Badput.SAVE: saving,
        Badput.WASTED: wasted,
        Badput.STALL: stall,
        Badput.UNKNOWN: unknown,
    }


def _within(time: timedelta, most: timedelta) -> timedelta:
    """Clocks differ: never less than nothing, nor more than there was."""
    return min(max(time, ZERO), max(most, ZERO))


def steps_redone(run: Run, later: Run | None) -> int | None:
    """Steps of the attempt that were done again, or will have to be; None where that cannot be known.

    The next attempt's first step tells from where it went on. Where there is none, or it has shown no step yet, what
    lies beyond the newest checkpoint is lost once the attempt has ended badly; without a known checkpoint nobody knows.
    """
    if run.last_step is None:
        return 0
    if later is not None and later.first_step is not None:
        return max(0, run.last_step - (later.first_step - later.stride))
    if run.running or not run.ended_badly:
        return 0
    return None if run.saved_step is None else max(0, run.last_step - run.saved_step)


class Interval(Value):
    """How often to save, by what was measured (Young 1974, Daly 2006)."""

    save_cost: timedelta
    """Time that one save takes from training."""
    mean_time_between: timedelta
    """Training time per interruption."""
    now: timedelta
    """Time from one save to the next, as it is."""
    best: timedelta
    saved_share: float
    """Share of the training time that the best interval would save, 0 where it is as good now."""


def interval(account: Account) -> Interval | None:
    """What another checkpoint interval would save; None where no save or no interruption was measured.

    Daly's higher-order optimum; the share lost at interval t is `cost / t + t / (2 M)`: saving, and on the average
    half an interval done again for each interruption.
    """
    if not account.saves or not account.interruptions or account.saving <= ZERO or account.training <= account.saving:
        return None
    cost = account.saving.total_seconds() / account.saves
    between = account.training.total_seconds() / account.interruptions
    now = account.training.total_seconds() / account.saves
    best = daly(cost, between)
    saved = _share_lost(now, cost, between) - _share_lost(best, cost, between)
    return Interval(
        save_cost=timedelta(seconds=cost),
        mean_time_between=timedelta(seconds=between),
        now=timedelta(seconds=now),
        best=timedelta(seconds=best),
        saved_share=max(0.0, saved),
    )


def daly(cost: float, between: float) -> float:
    """Daly's optimum time between saves, seconds: J. T. Daly, Future Generation Computer Systems 22 (2006), eq. 37."""
    if cost >= 2 * between:
        return between
    ratio = cost / (2 * between)
    return sqrt(2 * cost * between) * (1 + sqrt(ratio) / 3 + ratio / 9) - cost


def _share_lost(every: float, cost: float, between: float) -> float:
    return cost / every + every / (2 * between)


class Cost(Value):
    """What one incident cost, from the last step before it to the step that it had reached."""

    incident: str
    cause: str = ""
    """The catalogue's signature."""
    category: str = ""
    parts: Mapping[str, timedelta] = {}
    """In order: see `PARTS`; only what is known."""
    gpus: int = 0

    @property
    def time(self) -> timedelta:
        """All of it."""
        return sum(self.parts.values(), ZERO)

    @property
    def gpu_hours(self) -> float:
        """GPUs times hours."""
        return self.gpus * self.time.total_seconds() / 3600


PARTS: Mapping[str, tuple[str, str]] = {
    "detection": ("last step", "detected"),
    "decision": ("detected", "planned"),
    "approval wait": ("planned", "approved"),
    "ending": ("acting", "start set"),
    "queue wait": ("start set", "running"),
    "start-up": ("running", "first step"),
    "done again": ("first step", "progress"),
}
"""Each part of an incident, with the moments at which it begins and ends."""


def cost_of(incident: str, moments: Mapping[str, datetime], *, gpus: int, cause: str = "", category: str = "") -> Cost:
    """The parts of an incident whose moments are known.

    A moment that was not written down is passed over: its part belongs to the next one that is known, so that the
    parts together are the whole time.
    """
    ends = [(name, moments[end]) for name, (_, end) in PARTS.items() if end in moments]
    first = next((moments[begin] for begin, _ in PARTS.values() if begin in moments), None)
    parts: dict[str, timedelta] = {}
    if first is not None:
        marks = [("", first), *((name, at) for name, at in ends if at >= first)]
        for (_, begin), (name, end) in pairwise(sorted(marks, key=lambda mark: mark[1])):
            parts[name] = parts.get(name, ZERO) + (end - begin)
    return Cost(incident=incident, cause=cause, category=category, parts=parts, gpus=gpus)
