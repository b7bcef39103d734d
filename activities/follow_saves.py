"""How much later than usual an attempt's steps come, and what for: a save, or a silence that ended by itself."""

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, NamedTuple

from relight.attribution.progress_marks import Edge, Mark, PhaseMark, StepMark
from relight.domain.attempts import Progress
from relight.domain.rhythm import Phase


class Silent(NamedTuple):
    """For how long nothing was heard of an attempt, and how long would have been a hang."""

    lasted: timedelta
    limit: timedelta


class Told(NamedTuple):
    """What lines tell of saves."""

    saves: int
    waited_for: int
    """Saves that the newest of their steps has waited for."""


@dataclass
class Saves:
    """Counts the saves that an attempt's lines tell of."""

    pending: bool = False
    """Whether one has been told of since the newest step."""
    begun: bool = False
    """Whether one has begun whose end was not told yet."""

    def count(self, marks: Iterable[Mark]) -> Told:
        """Take further lines. However many tell of it, it is one save between two steps, and its end no further one."""
        saves = waited_for = 0
        for mark in marks:
            if isinstance(mark, StepMark):
                waited_for += self.pending
                self.pending = False
            elif isinstance(mark, PhaseMark) and mark.phase is Phase.CHECKPOINT:
                begins = mark.edge is Edge.BEGINS
                if not self.pending and (begins or not self.begun):
                    saves += 1
                    self.pending = True
                self.begun = begins
        return Told(saves, waited_for)


def lateness(
    known: Progress, step: int, usual: float | None, now: datetime, *, saves: int, silence: Silent
) -> dict[str, Any]:
    """How much later than usual new steps came that were seen coming, as an update of what is known.

    Args:
        known: how far the attempt was before them.
        step: the newest of them.
        usual: seconds a step.
        now: when they became visible.
        saves: how many saves they have waited for.
        silence: what came before them.
    """
    if usual is None or known.last_step is None or known.last_step_at is None:
        return {}
    expected = usual * max(1, step - known.last_step)
    if saves:
        late = max(0.0, (now - known.last_step_at).total_seconds() - expected)
        return {"saving_seconds": known.saving_seconds + late, "saves_timed": known.saves_timed + saves}
    late = max(0.0, silence.lasted.total_seconds() - expected)
    return {"stalled_seconds": known.stalled_seconds + late} if silence.lasted > silence.limit else {}
