"""A job that has become slower than itself (ranks that are slower than their peers: `laggards`).

The test is Page's cumulative sum (E. S. Page, "Continuous inspection schemes", Biometrika 41, 1954) of the logarithm
of the step time over its own robust baseline: optimal for a lasting shift of known least size, and O(1) for a step.
With noise of standard deviation s, a least shift d and a reference of k = d/2, Siegmund's approximation (D. Siegmund,
"Sequential Analysis", 1985) gives the threshold at which a healthy job is called slow once in `RUN_LENGTH` steps.

What can be told, and what cannot. A single slow step counts little (residuals are clipped), periodic ones are part of
the baseline or sink again, and a drift over thousands of steps becomes the baseline. A change of sequence length or
batch size makes steps longer with nothing slow: where the work of a step (tokens, samples) is known, such a change is
not told, and the baseline is learnt anew; where it is not, the finding says so (`by_work`), and must not count as
certain. Steps counted from arrivals of lines tell nothing here: a buffer makes them up.
"""

import math
from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache
from statistics import fmean, median

from relight.domain.base import Value
from relight.domain.baseline import BLOCK, Baseline, with_block

SHIFT = math.log(1.10)
"""The least loss that counts: a tenth more time."""
TOLD = 0.75 * SHIFT
"""Below this the slow steps' median is not called a loss: half the losses of exactly `SHIFT` would look smaller."""
CLIP = 1.5 * SHIFT
"""One step counts for no more than this, however slow it was."""
LEAST_SPREAD = 0.01
"""Printed times are rounded: a spread of nothing is not believed."""
WANDERS = 4.0
"""A loss must be this many times what the job's own level does anyway."""
RUN_LENGTH = 1e10
"""Steps in which a healthy job is called slow once: 2,000 jobs do so many, a second each, in two months."""
SUSTAINED_STEPS = 10
"""A loss that lasts for fewer steps is none."""
SUSTAINED_LINES = 3
"""Nor one in fewer lines, where each is an average over many steps."""
BY_CHANCE = 1e-8
"""So many lines must be slow that isolated slow ones (data stalls, checkpoints) fall together less often than this."""
CONSISTENT = 0.75
"""Share of the lines since the change began that must be slow: it is one change, not some outliers."""
RECENT = 32
"""Residuals kept since the change began."""
WARM_UP = 10
"""Lines after a start that are not the job's pace."""
SAME_WORK = 0.05
"""Work of a step is the same within this (in logarithms)."""
BACK = 10
"""A step number this many lines back is a restart; less is another rank's line, or a repeated one."""


class Slowdown(Value):
    """A lasting loss of throughput against the job's own baseline."""

    since_step: int
    """The first step of the slow stretch."""
    ratio: float
    """Recent over baseline: 1.25 is a quarter more time a step."""
    baseline_seconds: float
    """Seconds a step before."""
    recent_seconds: float
    """Seconds a step since."""
    steps: int
    """Steps from the first slow one to the one at which it was told."""
    by_work: bool
    """Whether the steps' work is known to be what it was. If not, a longer sequence or a larger batch looks alike."""


class Pace(Value):
    """What is known of a job's step times; two kilobytes at most."""

    base: Baseline = Baseline()
    """Of ln(seconds), or of ln(seconds / work) where the work is known."""
    block: tuple[float, ...] = ()
    skip: int = WARM_UP
    """Lines still to be left out."""
    last: int | None = None
    stride: int = 1
    """Steps from one line to the next."""
    has_work: bool = False
    work: float | None = None
    """ln(work of a step) that the baseline is of."""
    uneven: float = 0.0
    """Mean distance from `work`: sequences that are not packed make every step another."""
    odd: float = 0.02
    """Share of slow lines while nothing is wrong, smoothed."""
    excess: float = 0.0
    """The cumulative sum; while a slow-down stands, that of its end."""
    since: int | None = None
    """Where the sum began to rise."""
    recent: tuple[tuple[float, float], ...] = ()
    """Residual and ln(work), for each line since then."""
    slowdown: Slowdown | None = None
    """The loss that stands now; None also while nothing can be told (`known`)."""

    @property
    def known(self) -> bool:
        """Whether there is a baseline to compare with. If not, no slow-down means *unknown*."""
        return self.base.level is not None


def with_steps(pace: Pace, steps: Iterable[tuple[int, float | None, float | None]]) -> Pace:
    """The pace after step lines of (step, printed seconds, work), in their order.

    Work is what a step did in any unit, such as tokens; None when unknown. Lines without printed seconds tell nothing.
    """
    walk = _Walk(**{**vars(pace), "block": [*pace.block], "recent": [*pace.recent]})
    for step, seconds, work in steps:
        if seconds is not None and 0 < seconds < math.inf:
            walk.take(step, math.log(seconds), math.log(work) if work is not None and 0 < work < math.inf else None)
    return Pace(**{**vars(walk), "block": tuple(walk.block), "recent": tuple(walk.recent)})


def restarted(pace: Pace) -> Pace:
    """What an attempt's pace teaches about the next attempt on as many nodes."""
    return pace.model_copy(
        update={"skip": WARM_UP, "last": None, "excess": 0.0, "since": None, "recent": (), "slowdown": None}
    )


def skipped(pace: Pace) -> Pace:
    """The pace when lines were left out: the next one is compared with the baseline, and with no line before it."""
    return pace.model_copy(update={"last": None, "excess": 0.0, "since": None, "recent": ()})


@lru_cache(maxsize=4096)
def threshold(spread: float, wander: float, stride: int) -> tuple[float, float]:
    """Reference k and threshold h of the cumulative sum, in logarithms of time.

    From the noise of single lines (standard deviation `spread`) and of the level (`wander`); see the module.
    """
    sigma = max(spread, LEAST_SPREAD)
    shift = max(SHIFT, WANDERS * wander)
    k = shift / 2
    by_noise = sigma**2 / (2 * k) * math.log(RUN_LENGTH * 2 * (k / sigma) ** 2 + 1) - 1.166 * sigma
    lines = max(SUSTAINED_LINES, math.ceil(SUSTAINED_STEPS / stride))
    # A little less than so many lines of exactly that shift would sum up to: these are counted besides.
    return k, max(by_noise, 0.8 * lines * (shift - k))


def _lines_needed(odd: float, stride: int) -> int:
    by_chance = math.ceil(math.log(BY_CHANCE) / math.log(min(0.5, max(1e-4, odd))))
    return max(SUSTAINED_LINES, math.ceil(SUSTAINED_STEPS / stride), by_chance)


@dataclass
class _Walk:
    """The fields of a `Pace` while lines are taken one by one: a copy of it for each line would cost more."""

    base: Baseline
    block: list[float]
    skip: int
    last: int | None
    stride: int
    has_work: bool
    work: float | None
    uneven: float
    odd: float
    excess: float
    since: int | None
    recent: list[tuple[float, float]]
    slowdown: Slowdown | None

    def take(self, step: int, seconds: float, work: float | None) -> None:
        if not self._moves(step):
            return
        if self.skip:
            self.skip -= 1
            return
        if (work is not None) is not self.has_work:
            self._learn_anew()
            self.has_work = work is not None
        cost = seconds - work if work is not None else seconds
        if self.base.level is not None:
            self._judge(step, cost - self.base.level, work)
        if self.slowdown is None:
            self._learn(cost, work)

    def _moves(self, step: int) -> bool:
        """Whether the line is of a new step; a step far back is a restart."""
        if self.last is not None:
            if self.last - BACK * self.stride < step <= self.last:
                return False
            if step < self.last:
                self.skip, self.excess, self.since, self.recent = WARM_UP, 0.0, None, []
            else:
                self.stride = step - self.last
        self.last = step
        return True

    def _learn(self, cost: float, work: float | None) -> None:
        if work is not None:
            usual = work if self.work is None else self.work
            self.work = usual + 0.02 * (work - usual)
            self.uneven += 0.02 * (abs(work - usual) - self.uneven)
        self.block.append(cost)
        if len(self.block) == BLOCK:
            self.base, self.block = with_block(self.base, self.block), []

    def _learn_anew(self) -> None:
        self.base, self.block, self.work, self.uneven = Baseline(), [], None, 0.0
        self.excess, self.since, self.recent, self.slowdown = 0.0, None, [], None

    def _judge(self, step: int, residual: float, work: float | None) -> None:
        k, h = threshold(self.base.spread, self.base.wander, self.stride)
        clipped = max(-CLIP, min(residual, max(CLIP, 3 * k)))
        rising = clipped - k if self.slowdown is None else k - clipped
        self.excess = min(max(0.0, self.excess + rising), 2 * h)
        if self.excess == 0.0:
            slow = sum(each > k for each, _ in self.recent) if self.recent and self.slowdown is None else 0
            self.odd += 0.01 * (slow - self.odd)
            self.since, self.recent = None, []
            return
        self.since = step if self.since is None else self.since
        self.recent.append((residual, work or 0.0))
        del self.recent[:-RECENT]
        if self.excess < h:
            return
        if self.slowdown is not None:
            self.slowdown, self.excess, self.since, self.recent = None, 0.0, None, []
        else:
            self._tell(step, work)

    def _tell(self, step: int, work: float | None) -> None:
        """Say that the job is slow, when the median of the slow stretch bears it out and its work is the same."""
        residuals = [residual for residual, _ in self.recent]
        loss = median(residuals)
        consistent = sum(residual > SHIFT / 4 for residual in residuals) >= CONSISTENT * len(residuals)
        if loss < TOLD or not consistent or len(residuals) < min(RECENT, _lines_needed(self.odd, self.stride)):
            return
        if work is not None and self.work is not None:
            moved = abs(fmean(each for _, each in self.recent) - self.work)
            if moved > SAME_WORK + 3 * self.uneven / math.sqrt(len(residuals)):
                self._learn_anew()
                return
        since = self.since if self.since is not None else step
        before = math.exp((self.base.level or 0.0) + (self.work or 0.0 if work is not None else 0.0))
        self.slowdown = Slowdown(
            since_step=since,
            ratio=math.exp(loss),
            baseline_seconds=before,
            recent_seconds=before * math.exp(loss),
            steps=step - since + self.stride,
            by_work=work is not None,
        )
        self.excess, self.since, self.recent = 0.0, None, []
