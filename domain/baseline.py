"""A robust baseline of a noisy series: median and median absolute deviation, taken in blocks.

Blocks make it cheap (one sort in `BLOCK` values), bounded in memory and slow to follow: what goes wrong within a few
steps does not become the baseline, and a drift over thousands of steps does.
"""

from collections.abc import Sequence
from itertools import pairwise
from statistics import median

from relight.domain.base import Value

BLOCK = 50
"""Values in a block: the median of so many is known to a fifth of their spread."""
BLOCKS = 20
"""Blocks that make the baseline: the last thousand values."""
NORMAL = 1.4826
"""Times the median absolute deviation is the standard deviation of normal noise (Rousseeuw and Croux 1993)."""


class Baseline(Value):
    """Level and spread of the last blocks."""

    levels: tuple[float, ...] = ()
    """Median of each of the last `BLOCKS` blocks."""
    spreads: tuple[float, ...] = ()
    """Standard deviation of each, as its median absolute deviation tells."""
    level: float | None = None
    """Median of `levels`; None until the first block is full."""
    spread: float = 0.0
    """Median of `spreads`: the noise from one value to the next."""
    wander: float = 0.0
    """Spread of `levels`: what the level itself does over the blocks; 0 until three are known."""
    rise: float = 0.0
    """The largest move of the level upwards, from one block to the next."""


def with_block(baseline: Baseline, values: Sequence[float]) -> Baseline:
    """The baseline after a further block of finite values."""
    middle, around = _robust(values)
    levels = (*baseline.levels, middle)[-BLOCKS:]
    spreads = (*baseline.spreads, around)[-BLOCKS:]
    level, wander = _robust(levels)
    if len(levels) < 3:  # noqa: PLR2004 - the spread of two says nothing
        wander = 0.0
    rise = max((b - a for a, b in pairwise(levels)), default=0.0)
    return Baseline(
        levels=levels, spreads=spreads, level=level, spread=median(spreads), wander=wander, rise=max(0.0, rise)
    )


def _robust(values: Sequence[float]) -> tuple[float, float]:
    middle = median(values)
    return middle, NORMAL * median(abs(value - middle) for value in values)
