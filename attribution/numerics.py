"""A loss that jumps: read from the step lines themselves, where no line says that anything is wrong."""

import math
from collections.abc import Sequence
from itertools import pairwise

from relight.attribution.facts import Facts
from relight.domain.base import clip
from relight.domain.diagnosis import Action, Category, Hypothesis
from relight.domain.evidence import Evidence

JUMP = 1.4
"""A loss this many times the one before is a jump."""
RETURNED = 1.05
"""A loss below this many times the one before the jump has returned."""


def loss_jump(facts: Facts) -> Hypothesis | None:
    """NUM_SPIKE or NUM_NAN where the losses of the newest steps say so, else None."""
    for scan in facts.scans:
        losses = [line.mark.loss for line in scan.steps if line.mark.loss is not None]
        told = _told(losses)
        if told is None:
            continue
        signature, action, summary = told
        last = scan.steps[-1].mark
        text = clip(f"step {last.step}: loss {last.loss}; losses {losses[-6:]}", 600)
        return Hypothesis(
            signature=signature,
            category=Category.NUMERICS if action is not Action.NONE else Category.CONTROL,
            action=action,
            action_if_it_repeats=Action.STOP,
            confidence=0.5,
            summary=summary,
            evidence=(Evidence(source=scan.source.kind, text=text, signature=signature, file=scan.source.name),),
        )
    return None


def _told(losses: Sequence[float]) -> tuple[str, Action, str] | None:
    if any(not math.isfinite(loss) for loss in losses[-3:]):
        return "NUM_NAN", Action.RESTART, "The loss became NaN or infinite."
    for before, after in pairwise(losses):
        if 0 < before * JUMP < after:
            if losses[-1] <= before * RETURNED:
                return "NUM_SPIKE", Action.NONE, f"The loss jumped from {before:g} to {after:g} and came back."
            summary = f"The loss jumped from {before:g} to {after:g} and never came back."
            return "NUM_SPIKE", Action.STOP, summary
    return None
