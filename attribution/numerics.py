"""Losses that tell of a failure by themselves: read from the step lines, where no other line says that one is there."""

import math
from collections.abc import Sequence
from typing import NamedTuple

from relight.attribution.facts import Facts
from relight.attribution.progress import StepMark
from relight.attribution.verdicts import FEW_STEPS
from relight.domain.base import clip
from relight.domain.diagnosis import Action, Category, Hypothesis
from relight.domain.evidence import Evidence, Interruption

JUMP = 1.4
"""A loss this many times the highest of those before it is a jump: the loss of a small batch swings by less."""
LOOK_BACK = 20
"""So many losses before one tell how far it swings."""
RETURNED = 1.05
"""A loss up to this many times the highest before the jump has returned."""
NEWEST = 3
"""What is not a number among so many newest steps ended the training."""
_OTHERWISE = frozenset({Interruption.HANG, Interruption.STRAGGLER, Interruption.NODE_LOST, Interruption.GPU_FAULT})
"""Ends that no loss explains."""


class _Told(NamedTuple):
    signature: str
    category: Category
    action: Action
    summary: str


def loss_jump(facts: Facts) -> Hypothesis | None:
    """NUM_SPIKE or NUM_NAN where the newest steps say so, else None.

    A loss that came back is only an answer where nobody has seen the job end badly.
    """
    if facts.context.interruption in _OTHERWISE:
        return None
    for scan in facts.scans:
        marks = [line.mark for line in scan.steps if line.mark.loss is not None or line.mark.grad_norm is not None]
        told = _not_a_number(marks) or _jump([mark.loss for mark in marks if mark.loss is not None])
        if told is None or (told.action is Action.NONE and facts.ended_badly):
            continue
        last, losses = marks[-1], [mark.loss for mark in marks[-6:]]
        text = clip(f"step {last.step}: loss {last.loss}; losses {losses}", 600)
        return Hypothesis(
            signature=told.signature,
            category=told.category,
            action=told.action,
            action_if_it_repeats=Action.STOP,
            confidence=0.5,
            summary=told.summary,
            evidence=(Evidence(source=scan.source.kind, text=text, signature=told.signature, file=scan.source.name),),
        )
    return None


def _not_a_number(marks: Sequence[StepMark]) -> _Told | None:
    newest = marks[-NEWEST:]
    lost = any(mark.loss is not None and not math.isfinite(mark.loss) for mark in newest)
    if not lost and not _gradients_lost(marks):
        return None
    first = next((mark for mark in marks if not _finite(mark)), marks[-1])
    if first.step <= FEW_STEPS:
        return _Told("NUM_NAN", Category.CONFIG, Action.STOP, f"The loss is NaN or infinite since step {first.step}.")
    return _Told("NUM_NAN", Category.NUMERICS, Action.RESTART, "The loss became NaN or infinite.")


def _gradients_lost(marks: Sequence[StepMark]) -> bool:
    """True when gradients stay NaN, or one is and Megatron-LM no longer prints the loss.

    A gradient that overflows is skipped and scaled down as a matter of course.
    """
    newest = marks[-NEWEST:]
    lost = [mark.grad_norm is not None and math.isnan(mark.grad_norm) for mark in newest]
    had_loss = any(mark.loss is not None for mark in marks)
    return bool(lost) and (all(lost) or (lost[-1] and newest[-1].loss is None and had_loss))


def _finite(mark: StepMark) -> bool:
    return all(number is None or math.isfinite(number) for number in (mark.loss, mark.grad_norm))


def _jump(losses: Sequence[float]) -> _Told | None:
    for place, after in enumerate(losses[1:], 1):
        level = max(losses[max(0, place - LOOK_BACK) : place])
        if not 0 < level * JUMP < after:
            continue
        jumped = f"The loss jumped from {level:g} to {after:g}"
        back = next((at for at in range(place, len(losses)) if losses[at] <= level * RETURNED), None)
        if back is None:
            return _Told("NUM_SPIKE", Category.NUMERICS, Action.STOP, f"{jumped} and never came back.")
        if losses[-1] <= level * RETURNED and max(losses[back:]) <= level * JUMP:
            return _Told("NUM_SPIKE", Category.CONTROL, Action.NONE, f"{jumped} and came back.")
    return None
