"""One monotonic count from the steps of one output, where a line alone does not tell.

A bar without a name may be the run's, an epoch's, or an evaluation's that is drawn between two training steps (the
Hugging Face Trainer's). Batches of epochs whose length is not printed begin anew. The lines before tell which it is.
"""

from relight.attribution.progress_marks import Edge, Phase, PhaseMark, Scope, StepMark
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
    if mark.scope is Scope.RUN:
        return state.model_copy(update={"certain": min(CERTAIN, state.certain + 1)}), mark
    if mark.scope is Scope.EPOCHS:
        finer = state.certain or state.total is not None or state.epoch is not None
        return state, None if finer else mark
    if state.certain >= CERTAIN:
        return state, None
    return _of_epoch(state, mark) if mark.scope is Scope.EPOCH else _of_bar(state, mark)


def _of_epoch(state: Counted, mark: StepMark) -> tuple[Counted, StepMark]:
    """Batches of epochs of unknown length: an epoch was as long as its last count when the next begins."""
    epoch = mark.epoch or 0.0
    first = epoch if state.first is None else min(state.first, epoch)
    length = state.length
    if state.epoch is not None and epoch == state.epoch + 1:
        length = max(length, state.last)
    before = round(epoch - first) * length
    update = {"epoch": epoch, "first": first, "length": length, "last": mark.step, "before": before}
    return state.model_copy(update=update), _moved(mark, before)


def _of_bar(state: Counted, mark: StepMark) -> tuple[Counted, StepMark | PhaseMark]:
    """A bar is training when it is the first, a longer one than before, or follows one that is complete.

    Evaluations are shorter than the training in whose midst they are drawn. A shorter bar after a complete one is
    taken from its beginning only: else it is an outer bar (of epochs) that is drawn again. Wrongly taken for training
    after all, it is put right by the next line of the longer bar.
    """
    done = state.total is not None and state.last >= state.total
    if mark.total == state.total:
        # From its beginning once more after its end: the next epoch. Another rank's bar is a few steps behind only.
        again = done and mark.step <= state.last // 2
        before = state.before + (state.total or 0) if again else state.before
    elif (
        state.total is None
        or mark.loss is not None
        or (mark.total or 0) > state.total
        or (done and mark.step == 1)
        or state.others >= PATIENCE
    ):
        before = 0
    else:
        edge = Edge.ENDS if mark.step == mark.total else Edge.BEGINS
        who = {"rank": mark.rank, "local_rank": mark.local_rank, "node": mark.node, "at": mark.at}
        state = state.model_copy(update={"others": state.others + 1})
        return state, PhaseMark(phase=Phase.EVALUATION, edge=edge, **who)
    update = {"total": mark.total, "last": mark.step, "before": before, "others": 0}
    return state.model_copy(update=update), _moved(mark, before)


def _moved(mark: StepMark, before: int) -> StepMark:
    if not before:
        return mark.model_copy(update={"scope": Scope.RUN})
    return mark.model_copy(update={"step": before + mark.step, "total": None, "scope": Scope.RUN})
