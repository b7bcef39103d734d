"""Long gaps between step lines that come back: checkpoints and evaluations which no line announces.

They come at every so many steps, and people choose round intervals. Both are used: the steps at which long gaps were
seen give their period, and until one was seen the silence after a round step may be the first of its kind.
"""

from bisect import bisect_left
from collections.abc import Sequence
from itertools import combinations
from math import gcd
from statistics import median
from typing import NamedTuple

from relight.domain.base import Value

_SCALES = (10, 100, 1_000, 10_000, 100_000, 1_000_000)
INTERVALS = (50, *(digits * scale for scale in _SCALES for digits in (10, 15, 20, 25, 30, 40, 50)))
"""Intervals that people choose for checkpoints and evaluations, from 50 steps on, ascending."""
KINDS = 8
"""Kinds of long gaps that are remembered, those seen last."""
ALIKE = 2.0
"""Gaps of one kind differ by no more than this factor: a shared file system is not always as fast."""
REMEMBERED = 12
"""Gaps of one length whose steps are kept."""
PERIODIC_FROM = 3
"""So many at one period are no chance; two are enough when both stand at round steps."""
FIT = 0.75
"""Share of the gaps of one length that must fit a period: a data stall may be among them."""
RARE = 5
"""What is due more often than every so many times as many steps as are hidden is due all the time."""
FORGOTTEN_AFTER = 3
"""A kind of gap is forgotten when it stayed away for this many times as long as it took to appear."""
FORGOTTEN_STEPS = 1000
"""But not before this many steps."""


class LongGap(NamedTuple):
    """One long gap: the step it is put down to, None when that is unknown, and its seconds."""

    step: int | None
    seconds: float


class LongGaps(Value):
    """Long gaps of about one length."""

    gaps: tuple[LongGap, ...]
    """The newest last, at most `REMEMBERED`."""
    longest: float
    """Seconds."""
    every: int = 0
    """Their period in steps; 0 when none is known."""
    offset: int = 0
    """Their steps modulo `every`."""
    irregular: float = 0.0
    """Seconds of the longest that fits no period, so may come at any step; 0 when there is none."""


def with_long_gap(
    known: Sequence[LongGaps], seconds: float, step: int | None, *, since: int | None, reach: int
) -> tuple[LongGaps, ...]:
    """What is known after a further long gap, which lay within `reach` steps after `step`.

    Gaps are followed from step `since` on.
    """
    at = None if step is None else roundest(step, step + reach)
    old = min(known, key=lambda kind: _unlike(kind, seconds), default=None)
    if old is not None and _unlike(old, seconds) > ALIKE:
        old = None
    gaps = (*(old.gaps if old else ()), LongGap(at, seconds))[-REMEMBERED:]
    first = 0 if since is None or at is None or old else at - since
    others = [kind for kind in known if kind is not old]
    return (*others[-KINDS + 1 :], _summary(gaps, first, reach))


def _unlike(kind: LongGaps, seconds: float) -> float:
    """By what factor the seconds differ from this kind's."""
    typical = median(gap.seconds for gap in kind.gaps)
    return max(seconds / typical, typical / seconds)


def _summary(gaps: tuple[LongGap, ...], first: int, reach: int) -> LongGaps:
    """The kind of gap; of the very first one, `first` is how many steps it took to come."""
    longest = max(gap.seconds for gap in gaps)
    steps = [gap.step for gap in gaps if gap.step is not None]
    every, offset = (_first_period(steps[0], first, reach), 0) if first else _period(steps, reach)
    strays = [gap.seconds for gap in gaps if not every or gap.step is None or gap.step % every != offset]
    return LongGaps(gaps=gaps, longest=longest, every=every, offset=offset, irregular=max(strays, default=0.0))


def _first_period(step: int, first: int, reach: int) -> int:
    """What the usual intervals have in common that explain a first gap at `step`, after `first` steps; 0 for none."""
    every = gcd(*(interval for interval in INTERVALS if interval >= first and step % interval == 0))
    return every if every >= RARE * reach else 0


def _period(steps: Sequence[int], reach: int) -> tuple[int, int]:
    """The period of the steps, and its offset: a round one that all share, or the longest that most do, or (0, 0)."""
    if len(steps) < PERIODIC_FROM and not all(is_round(step) for step in steps):
        return 0, 0
    differences = sorted({abs(b - a) for a, b in combinations(steps, 2)} - {0}, reverse=True)
    common = gcd(*differences)
    if common >= RARE * reach and is_round(common):
        return common, steps[-1] % common
    for every in differences:
        for offset in {step % every for step in steps if every >= RARE * reach}:
            if sum(step % every == offset for step in steps) >= max(PERIODIC_FROM, FIT * len(steps)):
                return every, offset
    return 0, 0


def is_round(step: int) -> bool:
    """Whether the step is a multiple of the shortest such interval, as of most of the longer ones."""
    return step > 0 and step % INTERVALS[0] == 0


def roundest(first: int, last: int) -> int:
    """The step in [first, last] that is a multiple of the longest usual interval; `first` when none is."""
    for interval in reversed(INTERVALS):
        step = last // interval * interval
        if step >= first and step > 0:
            return step
    return first


def may_begin(since: int, step: int, reach: int) -> bool:
    """Whether something that was never seen may be due within `reach` steps after `step`.

    Its interval is one that people choose, and no shorter than all that was followed (from step `since` on):
    otherwise it had been seen.
    """
    for interval in INTERVALS[bisect_left(INTERVALS, step - since) :]:
        if interval > step + reach:
            return False
        if (step + reach) // interval * interval >= step:
            return True
    return False


def is_due(kind: LongGaps, step: int, reach: int) -> bool:
    """Whether the next gap of this kind is due within `reach` steps after `step`."""
    return kind.every > 0 and (kind.offset - step) % kind.every <= reach


def is_forgotten(kind: LongGaps, since: int, step: int, reach: int) -> bool:
    """Whether gaps of this kind have stayed away for so long that they count no more."""
    last = kind.gaps[-1].step
    return last is not None and step - last > FORGOTTEN_AFTER * max(last - since, FORGOTTEN_STEPS * reach)
