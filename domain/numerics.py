"""Training whose numbers have gone wrong: a loss or gradient norm that is not finite, a loss that explodes.

Ordinary is: noise, a loss below zero, a spike that comes back (in pre-training they take up to a hundred steps:
A. Chowdhery et al., "PaLM", 2022, section 5.1), a step that mixed precision skips because its gradients overflowed
(at the start many in a row, until the loss scale is found), a new start at another loss.
"""

import math
from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum

from relight.domain.base import Value
from relight.domain.baseline import BLOCK, Baseline, with_block

NOT_FINITE_LINES = 3
"""So many lines in a row with a loss that is not finite: one may have been skipped by the trainer."""
GRADIENT_LINES = 5
"""The same for the gradient norm."""
GRADIENT_LINES_AT_START = 25
"""Dynamic loss scaling that begins at 2^32 overflows some twenty times before it fits."""
START = 50
"""Lines after a start that are not yet ordinary training."""
SPREADS = 10.0
"""A loss this many standard deviations above its baseline is out of the ordinary."""
RISES = 3.0
"""And this many times what its level rises within `BLOCK` lines: some losses wander, as those of policies do."""
RISE = 0.5
"""And by this share of the baseline: what is far only for a very quiet loss is no explosion."""
EXPLODED_LINES = 50
"""Out of the ordinary for so many lines, and not coming back."""
COMING_BACK = 0.8
"""A spike whose height has sunk below this share of its peak is on its way back..."""
NEVER_BACK_LINES = 500
"""...but not for ever."""
SMOOTH = 0.1
"""Of the height of a spike, line by line."""
BACK = 10
"""A step number this many lines back is a restart."""


class NumericsKind(StrEnum):
    """What is wrong with the numbers."""

    LOSS_NOT_FINITE = "loss_not_finite"
    GRADIENT_NOT_FINITE = "gradient_not_finite"
    LOSS_EXPLODED = "loss_exploded"


class NumericsFinding(Value):
    """Numbers that have been wrong for long enough."""

    kind: NumericsKind
    step: int
    """The first step at which they were wrong."""
    text: str


class Numbers(Value):
    """What is known of a job's losses; two kilobytes at most."""

    base: Baseline = Baseline()
    """Of the loss."""
    block: tuple[float, ...] = ()
    lines: int = 0
    """Lines since the start."""
    last: int | None = None
    stride: int = 1
    not_finite: int = 0
    """Lines in a row whose loss was not finite."""
    not_finite_since: int | None = None
    gradient: int = 0
    """The same of the gradient norm."""
    gradient_since: int | None = None
    out: int = 0
    """Lines in a row whose loss was out of the ordinary."""
    out_since: int | None = None
    height: float = 0.0
    """How far above the baseline, smoothed."""
    peak: float = 0.0
    """The largest `height` since `out_since`."""
    finding: NumericsFinding | None = None
    """What is wrong now; None also while there is no baseline yet, but then for what is not finite only."""


def with_losses(numbers: Numbers, lines: Iterable[tuple[int, float | None, float | None]]) -> Numbers:
    """What is known after step lines of (step, loss, gradient norm), in their order; None is not printed."""
    walk = _Walk(**{**vars(numbers), "block": [*numbers.block]})
    for step, loss, gradient in lines:
        walk.take(step, loss, gradient)
    return Numbers(**{**vars(walk), "block": tuple(walk.block)})


@dataclass
class _Walk:
    """The fields of `Numbers` while lines are taken one by one: a copy for each line would cost more."""

    base: Baseline
    block: list[float]
    lines: int
    last: int | None
    stride: int
    not_finite: int
    not_finite_since: int | None
    gradient: int
    gradient_since: int | None
    out: int
    out_since: int | None
    height: float
    peak: float
    finding: NumericsFinding | None

    def take(self, step: int, loss: float | None, gradient: float | None) -> None:
        if not self._moves(step):
            return
        self.lines += 1
        if loss is not None:
            if math.isfinite(loss):
                self.not_finite, self.not_finite_since = 0, None
                self._compare(step, loss)
            else:
                self.not_finite += 1
                self.not_finite_since = step if self.not_finite_since is None else self.not_finite_since
        if gradient is not None:
            if math.isfinite(gradient):
                self.gradient, self.gradient_since = 0, None
            else:
                self.gradient += 1
                self.gradient_since = step if self.gradient_since is None else self.gradient_since
        self.finding = self._found(loss, gradient)

    def _moves(self, step: int) -> bool:
        """Whether the line is of a new step; a step far back is a restart, whose losses are its own."""
        if self.last is not None:
            if self.last - BACK * self.stride < step <= self.last:
                return False
            if step < self.last:
                fresh = Numbers(stride=self.stride)
                vars(self).update({**vars(fresh), "block": []})
            else:
                self.stride = step - self.last
        self.last = step
        return True

    def _compare(self, step: int, loss: float) -> None:
        base = self.base
        if base.levels:
            # The newest level: a loss that falls for long leaves the median of all blocks behind.
            level = base.levels[-1]
            height = loss - level
            if height > max(SPREADS * base.spread, RISES * base.rise, RISE * abs(level)):
                self.out += 1
                self.out_since = step if self.out_since is None else self.out_since
                self.height = height if self.out == 1 else self.height + SMOOTH * (height - self.height)
                self.peak = max(self.peak, self.height)
                # Not ordinary: the baseline does not learn from it.
                return
            self.out, self.out_since, self.height, self.peak = 0, None, 0.0, 0.0
        if self.lines > START // 2:
            self.block.append(loss)
        if len(self.block) == BLOCK:
            self.base, self.block = with_block(base, self.block), []

    def _found(self, loss: float | None, gradient: float | None) -> NumericsFinding | None:
        if self.not_finite >= NOT_FINITE_LINES:
            text = f"loss {loss} in {self.not_finite} lines in a row"
            return self._finding(NumericsKind.LOSS_NOT_FINITE, self.not_finite_since, text)
        if self.gradient >= (GRADIENT_LINES_AT_START if self.lines < START else GRADIENT_LINES):
            text = f"gradient norm {gradient} in {self.gradient} lines in a row"
            return self._finding(NumericsKind.GRADIENT_NOT_FINITE, self.gradient_since, text)
        lasting = self.out >= EXPLODED_LINES and self.height >= COMING_BACK * self.peak
        if lasting or self.out >= NEVER_BACK_LINES:
            level = self.base.levels[-1] if self.base.levels else 0.0
            text = f"loss {level + self.height:.4g} instead of {level:.4g} in {self.out} lines, and not coming back"
            return self._finding(NumericsKind.LOSS_EXPLODED, self.out_since, text)
        return None

    def _finding(self, kind: NumericsKind, since: int | None, text: str) -> NumericsFinding:
        """The finding as it was first made, for as long as it stands."""
        step = since if since is not None else 0
        old = self.finding
        if old is not None and (old.kind, old.step) == (kind, step):
            return old
        return NumericsFinding(kind=kind, step=step, text=text)
