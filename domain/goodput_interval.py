"""How often to save a checkpoint, by what was measured: Young 1974, Daly 2006. Pure.

The time between interruptions is known only as well as they are many: of n of them, taken as a Poisson process, the
95 % interval of their number is Byar's approximation of the exact one (Breslow and Day, Statistical Methods in Cancer
Research II, 1987, p. 69). With fewer than `LEAST` nothing is said.
"""

from datetime import timedelta
from math import sqrt

from relight.domain.base import Value
from relight.domain.goodput import Account
from relight.domain.goodput_parts import ZERO

LEAST = 5
"""Fewer interruptions, or timed saves, say too little: of four, the rate is known to a factor of nine."""
_Z = 1.96


class Interval(Value):
    """What another checkpoint interval would save."""

    interruptions: int
    save_cost: timedelta
    """Time that one save takes from training."""
    mean_time_between: timedelta
    """Training time per interruption."""
    between: tuple[timedelta, timedelta]
    """Its 95 % interval."""
    now: timedelta
    """Time from one save to the next, as it is."""
    best: timedelta
    best_range: tuple[timedelta, timedelta]
    """The best interval at either end of `between`."""
    saved_share: float
    """Share of the training time that the best interval would save, 0 where it is as good now."""
    saved_range: tuple[float, float]
    """What taking `best` would save at either end of `between`, lowest first; negative: it would lose."""


def interval(account: Account) -> Interval | None:
    """What another interval would save one job; None where too few saves or interruptions were measured.

    Daly's higher-order optimum; the share lost at interval t is `cost / t + t / (2 M)`: saving, and on the average
    half an interval done again for each interruption.
    """
    enough = min(account.timed_saves, account.interruptions) >= LEAST
    if not enough or account.saving <= ZERO or account.training <= account.saving:
        return None
    trained = account.training.total_seconds()
    cost = account.saving.total_seconds() / account.timed_saves
    now = trained / max(account.saves, account.timed_saves)
    between = trained / account.interruptions
    fewest, most = poisson(account.interruptions)
    shortest, longest = trained / most, trained / fewest
    best = daly(cost, between)
    gains = sorted(_share_lost(now, cost, each) - _share_lost(best, cost, each) for each in (shortest, longest))
    return Interval(
        interruptions=account.interruptions,
        save_cost=timedelta(seconds=cost),
        mean_time_between=timedelta(seconds=between),
        between=(timedelta(seconds=shortest), timedelta(seconds=longest)),
        now=timedelta(seconds=now),
        best=timedelta(seconds=best),
        best_range=(timedelta(seconds=daly(cost, shortest)), timedelta(seconds=daly(cost, longest))),
        saved_share=max(0.0, _share_lost(now, cost, between) - _share_lost(best, cost, between)),
        saved_range=(gains[0], gains[1]),
    )


def poisson(count: int) -> tuple[float, float]:
    """The 95 % interval of what a count of a Poisson process stands for; the count at least 1."""
    low = count * (1 - 1 / (9 * count) - _Z / (3 * sqrt(count))) ** 3
    high = (count + 1) * (1 - 1 / (9 * (count + 1)) + _Z / (3 * sqrt(count + 1))) ** 3
    return low, high


def daly(cost: float, between: float) -> float:
    """Daly's optimum time between saves, seconds: J. T. Daly, Future Generation Computer Systems 22 (2006), eq. 37."""
    if cost >= 2 * between:
        return between
    ratio = cost / (2 * between)
    return sqrt(2 * cost * between) * (1 + sqrt(ratio) / 3 + ratio / 9) - cost


def _share_lost(every: float, cost: float, between: float) -> float:
    return cost / every + every / (2 * between)
