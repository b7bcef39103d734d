"""One count from bars without names and from epochs of unknown length."""

from hypothesis import given
from hypothesis import strategies as st

from relight.attribution.progress_count import PATIENCE, Counted, counted
from relight.attribution.progress_marks import PhaseMark, Scope, StepMark


def bar(step, total):
    """A line of a bar without a name."""
    return StepMark(step=step, total=total, scope=Scope.BAR)


def batch(epoch, step):
    """A line of a batch in an epoch of unknown length."""
    return StepMark(step=step, epoch=epoch, scope=Scope.EPOCH)


def told(marks, state=None):
    """What becomes of the marks: steps, `other` phases, None."""
    state = state or Counted()
    result = []
    for mark in marks:
        state, out = counted(state, mark)
        result.append(f"{out.phase} {out.edge}" if isinstance(out, PhaseMark) else out and out.step)
    return result


def test_evaluation_between_training_steps():
    """The Hugging Face Trainer's evaluation bar has no name: it is shorter, and drawn in the midst of training."""
    marks = [bar(499, 1000), bar(500, 1000), bar(1, 63), bar(63, 63), bar(501, 1000)]
    assert told(marks) == [499, 500, "evaluation begins", "evaluation ends", 501]


def test_first_bar_was_not_training():
    """A preparing bar comes to its end, or is broken off: the longer one after it is training."""
    assert told([bar(5, 5), bar(1, 1000), bar(2, 1000)]) == [5, 1, 2]
    assert told([bar(2, 5), bar(1, 1000), bar(2, 1000)]) == [2, 1, 2]


def test_long_preparation_broken_off():
    """A bar longer than training that is never drawn again does not hide the training for ever."""
    marks = [bar(300, 5000), *(bar(step, 1000) for step in range(1, 1001))]
    assert told(marks)[-1] == 1000
    assert told(marks).count("evaluation begins") == PATIENCE
    assert told([*marks, bar(301, 5000)])[-1] == 301


def test_bar_with_a_loss():
    """A shorter bar that prints a loss is training."""
    assert told([bar(300, 5000), StepMark(step=7, total=1000, loss=0.5, scope=Scope.BAR)]) == [300, 7]


def test_short_training_after_a_complete_bar():
    """A shorter bar that begins after a complete one is training."""
    assert told([bar(500, 500), bar(1, 100), bar(2, 100)]) == [500, 1, 2]


def test_bar_of_each_epoch():
    """Bars that begin again after their end count on."""
    assert told([bar(50, 100), bar(100, 100), bar(1, 100), bar(100, 100), bar(1, 100)]) == [50, 100, 101, 200, 201]


def test_outer_bar_of_epochs():
    """The outer bar, drawn again after each inner one, does not count."""
    marks = [bar(1, 500), bar(500, 500), bar(2, 10), bar(1, 500), bar(500, 500), bar(3, 10), bar(1, 500)]
    steps = [step for step in told(marks) if isinstance(step, int)]
    assert steps == [1, 500, 501, 1000, 1001]


def test_ranks_with_a_bar_each():
    """Another rank's bar that is a step behind at the end is no new epoch."""
    assert told([bar(99, 100), bar(100, 100), bar(99, 100), bar(100, 100)]) == [99, 100, 99, 100]


def test_restart_from_a_checkpoint():
    """A count that falls before its end is told as it is: the job began again."""
    assert told([bar(70, 100), bar(51, 100), bar(52, 100)]) == [70, 51, 52]


def test_epochs_of_unknown_length():
    """An epoch was as long as its last count; then the count is monotonic, also after a restart."""
    marks = [batch(1, 10), batch(1, 40), batch(2, 10), batch(2, 40), batch(3, 10), batch(2, 20)]
    assert told(marks) == [10, 40, 50, 80, 90, 60]


def test_certain_lines_win():
    """Where lines count the run's own steps, bars and epochs are of no more use."""
    run = [StepMark(step=step) for step in (10, 20, 30)]
    assert told([*run, bar(31, 100), batch(1, 2), StepMark(step=40)]) == [10, 20, 30, None, None, 40]


def test_epochs_only():
    """Whole epochs count for a job that prints nothing finer."""
    epochs = [StepMark(step=n, scope=Scope.EPOCHS) for n in (1, 2)]
    assert told(epochs) == [1, 2]
    assert told([StepMark(step=500), *epochs]) == [500, None, None]
    assert told([bar(1, 500), *epochs]) == [1, None, None]


@given(st.lists(st.integers(2, 40), min_size=1, max_size=6), st.integers(1, 7))
def test_epochs_are_monotonic(lengths, every):
    """Whatever is printed of a healthy run, its count never falls."""
    marks = [batch(epoch, step) for epoch, length in enumerate(lengths) for step in range(1, length + 1, every)]
    steps = told(marks)
    assert steps == sorted(steps)


@given(st.lists(st.builds(bar, st.integers(0, 50), st.none() | st.integers(1, 50)), max_size=20))
def test_state_travels(marks):
    """The state can be written down between any two lines, and goes on the same."""
    whole = told(marks)
    state, pieces = Counted(), []
    for mark in marks:
        pieces += told([mark], state)
        state = Counted.model_validate_json(counted(state, mark)[0].model_dump_json())
    assert pieces == whole
