"""One monotonic count from the steps of one output, where a line alone does not tell.

A bar without a name may be the run's, an epoch's, or an evaluation's that is drawn between two training steps (the
Hugging Face Trainer's). Batches of epochs whose length is not printed begin anew. The lines before tell which it is.
"""

from collections.abc import Iterable
from dataclasses import dataclass

from relight.attribution.progress_marks import Edge, Mark, Phase, PhaseMark, Scope, StepMark
from relight.domain.base import Value

CERTAIN = 3
"""This many lines that count the run's own steps, and bars without a name count nothing any more."""

PATIENCE = 200
"""After this many lines of another bar without one of the bar that was training, the other is taken for training."""


class Counted(Value):
    """What is known of one output's count; small, and kept between reads (also over restarts of the job)."""

    certain: int = 0
    """Lines that counted the run's steps, up to `CERTAIN`."""
    total: int | None = None
    """Length of the bar that is training."""
    others: int = 0
    """Lines of other bars since its last one."""
    last: int = 0
    """Its, or the epoch's, newest count."""
    epoch: float | None = None
    first: float | None = None
    """The first epoch seen, and the newest."""
    length: int = 0
    """Steps of an epoch, as far as one has been seen to its end."""
    before: int = 0
    """Steps before the bar or the epoch that is counted now."""


def counted(state: Counted, mark: StepMark) -> tuple[Counted, StepMark | PhaseMark | None]:
    """The new state, and the mark with its step counted over the run.

    The mark becomes a `PhaseMark` when it is another bar than training's, and None when finer lines count already. A
    step that falls without an epoch's end is given as it is: the job has begun again at a checkpoint.
    """
    state, marks = counted_all(state, (mark,))
    new = marks[0] if marks else None
    if new is mark and mark.scope in {Scope.EPOCH, Scope.BAR}:
        new = mark.model_copy(update={"scope": Scope.RUN})
    return state, new if isinstance(new, StepMark | PhaseMark) else None


def counted_all(state: Counted, marks: Iterable[Mark]) -> tuple[Counted, list[Mark]]:
    """The same for all marks of an output, in their order: what is left of them, with their steps counted over the run.

    A mark whose step was that already is the very same object, whatever its scope.
    """
    count = _Count(**vars(state))
    kept: list[Mark] = []
    for mark in marks:
        new = count.take(mark) if isinstance(mark, StepMark) else mark
        if new is not None:
            kept.append(new)
    return Counted(**vars(count)), kept


@dataclass
class _Count:
    """The fields of `Counted` while marks are taken one by one: a copy of it for each would cost more."""

    certain: int
    total: int | None
    others: int
    last: int
    epoch: float | None
    first: float | None
    length: int
    before: int

    def take(self, mark: StepMark) -> StepMark | PhaseMark | None:
        if mark.scope is Scope.RUN:
            self.certain = min(CERTAIN, self.certain + 1)
            return mark
        if mark.scope is Scope.EPOCHS:
            finer = self.certain or self.total is not None or self.epoch is not None
            return None if finer else mark
        if self.certain >= CERTAIN:
            return None
        return self._of_epoch(mark) if mark.scope is Scope.EPOCH else self._of_bar(mark)

    def _of_epoch(self, mark: StepMark) -> StepMark:
        """Batches of epochs of unknown length: an epoch was as long as its last count when the next begins."""
        epoch = mark.epoch or 0.0
        self.first = epoch if self.first is None else min(self.first, epoch)
        if self.epoch is not None and epoch == self.epoch + 1:
            self.length = max(self.length, self.last)
        self.before = round(epoch - self.first) * self.length
        self.epoch, self.last = epoch, mark.step
        return _moved(mark, self.before)

    def _of_bar(self, mark: StepMark) -> StepMark | PhaseMark:
        """A bar is training when it is the first, a longer one than before, or follows one that is complete.

        Evaluations are shorter than the training in whose midst they are drawn. A shorter bar after a complete one is
        taken from its beginning only: else it is an outer bar (of epochs) that is drawn again. Wrongly taken for
        training after all, it is put right by the next line of the longer bar.
        """
        done = self.total is not None and self.last >= self.total
        if mark.total == self.total:
            # From its beginning once more after its end: the next epoch. Another rank's bar is a few steps behind only.
            if done and mark.step <= self.last // 2:
                self.before += self.total or 0
        elif (
            self.total is None
            or mark.loss is not None
            or (mark.total or 0) > self.total
            or (done and mark.step == 1)
            or self.others >= PATIENCE
        ):
            self.before = 0
        else:
            self.others += 1
            edge = Edge.ENDS if mark.step == mark.total else Edge.BEGINS
            who = {"rank": mark.rank, "local_rank": mark.local_rank, "node": mark.node, "at": mark.at}
            return PhaseMark(phase=Phase.EVALUATION, edge=edge, **who)
        self.total, self.last, self.others = mark.total, mark.step, 0
        return _moved(mark, self.before)


def _moved(mark: StepMark, before: int) -> StepMark:
    if not before:
        return mark
    return mark.model_copy(update={"step": before + mark.step, "total": None, "scope": Scope.RUN})
