"""How long silence may last is learnt from the job's own rhythm."""

from datetime import timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from relight.domain.progress import (
    MIN_GAPS,
    HangPolicy,
    Phase,
    Rhythm,
    Sign,
    again,
    silence_limit,
    standstill_limit,
    with_arrival,
    with_signs,
)
from relight.domain.rhythm import BLOCK, BLOCKS, WARM_UP, PhaseGaps, p99

POLICY = HangPolicy()
SECONDS = st.floats(0, 1e5)


def s(seconds):
    return timedelta(seconds=seconds)


def steps(rhythm, numbers, gap, seconds=None):
    """One line for each step number, each `gap` seconds after the last."""
    for number in numbers:
        rhythm = with_signs(rhythm, gap, [Sign(step=number, seconds=seconds)])
    return rhythm


def ordinary(gap=1.0, step=None, until=237, seconds=None):
    """A job whose lines came every `gap` seconds from step 1 on."""
    return steps(Rhythm(), range(1, until + 1), gap, seconds or step)


def limit(rhythm, policy=POLICY):
    return silence_limit(rhythm, policy, stepped=True)


def if_still(rhythm, policy=POLICY):
    return standstill_limit(rhythm, policy, stepped=True)


def test_before_the_first_step_the_start_up_limit_holds():
    """Loading and compiling take long and print no steps; what a buffer is known to hold back comes on top."""
    assert silence_limit(Rhythm(), POLICY, stepped=False) == POLICY.startup
    assert silence_limit(again(ordinary(gap=100.0)), POLICY, stepped=False) == POLICY.startup + s(300)


def test_too_few_gaps_teach_nothing():
    """Until the rhythm is known a fixed limit holds."""
    known = ordinary(until=1 + WARM_UP + MIN_GAPS)
    assert limit(ordinary(until=WARM_UP + MIN_GAPS - 1)) == POLICY.unlearned
    assert limit(known) == POLICY.floor


@pytest.mark.parametrize(
    ("gap", "step", "expected"),
    [(0.1, 0.1, 29), (20.0, 20.0, 100), (60.0, 1.0, 180)],
    ids=["floor", "steps", "gaps of buffered output"],
)
def test_the_limit_is_the_largest_of_three(gap, step, expected):
    """The floor, five step times, three times the 99th percentile of the file's own gaps."""
    assert limit(ordinary(gap, step)) == s(expected)


@given(st.lists(st.tuples(SECONDS, st.integers(-50, 50), st.none() | SECONDS), max_size=40))
def test_the_limit_is_never_below_the_floor(arrivals):
    """Whatever was learnt, no job counts as hanging within the floor."""
    rhythm, step = Rhythm(), 1000
    for gap, more, seconds in arrivals:
        step += more
        rhythm = with_signs(rhythm, gap, [Sign(step=step, seconds=seconds)])
        assert limit(rhythm) >= POLICY.floor


@given(st.lists(st.tuples(SECONDS, st.integers(0, 500), st.sampled_from([None, *Phase])), max_size=300))
def test_memory_is_bounded(arrivals):
    """However long a job runs and whatever comes, what is kept stays about a kilobyte."""
    rhythm, step = Rhythm(), 0
    for gap, more, phase in arrivals:
        step += more
        rhythm = with_signs(rhythm, gap, [Sign(phase=phase), Sign(step=step)])
    assert len(rhythm.model_dump_json()) < 8000
    assert len(rhythm.peaks) <= BLOCKS


def test_a_rhythm_survives_being_written_down():
    """A follower of tomorrow goes on where today's stood."""
    rhythm = with_signs(ordinary(), 50.0, [Sign(phase=Phase.CHECKPOINT), Sign(step=400, total=1000)])
    assert Rhythm.model_validate_json(rhythm.model_dump_json()) == rhythm


def test_arrivals_are_counted_as_steps():
    """Ten steps that arrive together after 5 s took half a second each; what is printed wins; then it is smoothed."""
    first = with_arrival(Rhythm(arrivals=WARM_UP), 5.0, 10, None)
    assert first.step_seconds == 0.5
    assert with_arrival(Rhythm(), 5.0, 10, 0.4).step_seconds == 0.4
    assert with_arrival(first, 6.0, 10, None).step_seconds == pytest.approx(0.52)


def test_one_slow_step_is_not_the_step_time():
    """An evaluation within it moves the step time by no more than a tenth."""
    rhythm = ordinary(2.0, 2.0)
    assert with_arrival(rhythm, 2.0, 1, 300.0).step_seconds == pytest.approx(2.2)


def test_the_first_gaps_are_compilation():
    """They do not become the rhythm: the limit of a fast job is the floor as soon as it is known."""
    rhythm = steps(with_signs(Rhythm(), 300.0, [Sign(step=1)]), [2], 120.0)
    rhythm = steps(rhythm, range(3, 38), 1.0)
    assert limit(rhythm) == POLICY.floor


def test_a_step_back_says_nothing_of_the_step_time():
    """After a roll-back to a checkpoint the step number falls: the step time stays, and a start-up begins."""
    old = ordinary(0.5, 0.5)
    back = with_signs(old, 100.0, [Sign(step=107)])
    assert back.step_seconds == old.step_seconds
    assert (back.since, p99(back)) == (107, p99(old))
    assert limit(back) == POLICY.unlearned


def test_the_percentile_follows_a_changed_file():
    """A buffer that appears or goes is learnt within some blocks; one outlier is not."""
    rhythm = ordinary(1.0, until=4 * BLOCK + 4)
    assert p99(steps(rhythm, range(500, 501), 10.0)) == 1.0
    assert p99(steps(rhythm, range(500, 500 + 8 * BLOCK), 12.0)) == 12.0


def test_a_slow_buffer_is_waited_for():
    """A file that shows 51 steps of 30 s at once every 25 minutes is no hang, from its first lines on."""
    rhythm, last = Rhythm(), 0
    for _ in range(12):
        assert not last or limit(rhythm) > s(1530)
        rhythm = with_signs(rhythm, 1530.0, [Sign(step=last + n) for n in range(1, 52)])
        last += 51


# --- phases ---


def test_an_announced_phase_is_waited_for():
    """One never seen is given ten minutes; one known three times its usual length, and two minutes at least."""
    rhythm = with_signs(ordinary(), 1.0, [Sign(phase=Phase.CHECKPOINT)])
    assert limit(rhythm) == POLICY.unlearned
    for longest, expected in ((200.0, 600), (5.0, 120)):
        known = rhythm.model_copy(update={"phases": {Phase.CHECKPOINT: PhaseGaps(3, longest)}})
        assert limit(known) == s(expected)


@pytest.mark.parametrize("phase", [Phase.COMPILE, Phase.STARTUP])
def test_compilation_is_given_the_start_up_limit(phase):
    """It may come in the middle of a run, when a shape changes."""
    assert limit(with_signs(ordinary(), 1.0, [Sign(phase=phase)])) == POLICY.startup


def test_a_long_phase_does_not_stretch_ordinary_training():
    """A checkpoint that always takes 200 s leaves the limit of the steps between at the floor."""
    rhythm = ordinary(until=500)
    for start in range(500, 1500, 250):
        rhythm = with_signs(rhythm, 0.0, [Sign(phase=Phase.CHECKPOINT)])
        rhythm = with_signs(rhythm, 200.0, [Sign(phase=Phase.CHECKPOINT, begins=False)])
        rhythm = steps(rhythm, range(start + 1, start + 251), 1.0)
    rhythm = steps(rhythm, range(1501, 1738), 1.0)
    assert limit(rhythm) == POLICY.floor
    assert limit(with_signs(rhythm, 0.0, [Sign(phase=Phase.CHECKPOINT)])) == s(600)


def test_a_phase_that_goes_on_is_no_new_sign_of_life():
    """A line that repeats itself must not hide a hang: the silence goes on."""
    begun = with_signs(ordinary(), 1.0, [Sign(phase=Phase.EVALUATION)])
    assert with_signs(begun, 5.0, [Sign(phase=Phase.EVALUATION)]) is begun
    over = with_signs(begun, 5.0, [Sign(phase=Phase.EVALUATION, begins=False)])
    assert over is not begun
    assert with_signs(over, 5.0, [Sign(phase=Phase.EVALUATION, begins=False)]) is over
    assert with_signs(over, 5.0, [Sign(loss=1.0)]) is over


def test_a_step_ends_a_phase():
    """Whether or not a line says so: a checkpoint may be written beside the training."""
    rhythm = with_signs(ordinary(), 1.0, [Sign(phase=Phase.CHECKPOINT), Sign(step=238)])
    assert (rhythm.opened, limit(rhythm)) == (None, POLICY.floor)


def test_an_announced_phase_does_not_explain_what_comes_beside_it():
    """Short checkpoints are announced; each fortieth is followed by an evaluation that is not."""
    rhythm = Rhythm()
    for number in range(1, 8001):
        saved = number > 1 and number % 50 == 1
        if saved:
            rhythm = with_signs(rhythm, 1.0, [Sign(phase=Phase.CHECKPOINT)])
        gap = 1.0 + 4.0 * saved + 300.0 * (number > 1 and number % 2000 == 1)
        rhythm = with_signs(rhythm, gap, [Sign(step=number)])
    assert limit(with_signs(rhythm, 1.0, [Sign(phase=Phase.CHECKPOINT)])) >= s(900)
    assert limit(steps(rhythm, range(8001, 8031), 1.0)) == POLICY.floor


# --- long gaps that nothing announces ---


def paused(every, seconds, until, *, offset=0, rhythm=None, told=None):
    """A job of 1 s a step which pauses after each `every` steps; `told` is said only afterwards."""
    rhythm = rhythm or Rhythm()
    for number in range(1, until + 1):
        gap = seconds if number > 1 and (number - 1 - offset) % every == 0 else 1.0
        signs = [Sign(phase=told, begins=False)] if told and gap > 1 else []
        rhythm = with_signs(rhythm, gap, [*signs, Sign(step=number)])
    return rhythm


@pytest.mark.parametrize("told", [None, Phase.CHECKPOINT])
@pytest.mark.parametrize(("every", "offset"), [(500, 0), (137, 0), (200, 199)])
def test_the_period_of_long_gaps_is_learnt(every, offset, told):
    """Where the next is due three times their length is waited, elsewhere the limit stays."""
    rhythm = paused(every, 90.0, 7 * every + offset, offset=offset, told=told)
    assert limit(rhythm) == s(270)
    assert limit(steps(rhythm, range(7 * every + offset + 1, 7 * every + offset + 15), 1.0)) == POLICY.floor


def test_two_periods_are_learnt():
    """Evaluations every 200 steps and checkpoints every 500, of which no line tells."""
    rhythm = Rhythm()
    for number in range(1, 3001):
        gap = 1.0 + 20.0 * (number % 200 == 1) + 200.0 * (number % 500 == 1)
        rhythm = with_signs(rhythm, gap if number > 1 else 1.0, [Sign(step=number)])
    assert limit(rhythm) >= s(600)
    assert s(60) <= limit(steps(rhythm, range(3001, 3201), 1.0)) < s(120)
    assert limit(steps(rhythm, range(3001, 3235), 1.0)) == POLICY.floor


def test_a_stall_among_them_does_not_hide_the_period():
    """What does not fit is waited for at any step, but only as long as itself suggests."""
    rhythm = Rhythm()
    for number in range(1, 2802):
        gap = 1.0 + 90.0 * (number % 400 == 1) + 60.0 * (number == 937)
        rhythm = with_signs(rhythm, gap if number > 1 else 1.0, [Sign(step=number)])
    assert limit(rhythm) == s(122)
    assert limit(steps(rhythm, range(2802, 3202), 1.0)) == s(122)
    assert limit(steps(rhythm, range(2802, 3201), 1.0)) == s(273)


def test_gaps_of_one_kind_differ():
    """A shared file system is not always as fast; two in three are enough to see the period."""
    rhythm = Rhythm()
    for number in range(1, 3501):
        gap = 1.0 + (60.0 + 40.0 * (number % 1000 == 1)) * (number % 500 == 1)
        rhythm = with_signs(rhythm, gap if number > 1 else 1.0, [Sign(step=number)])
    assert len(rhythm.long) == 1
    assert limit(rhythm) == s(303)


def test_a_buffer_hides_the_step_of_a_pause():
    """It lies somewhere in what came next, and most likely at its roundest step."""
    rhythm, last = Rhythm(), 0
    for _ in range(60):
        pause = 200.0 if (last + 40) // 500 > last // 500 else 0.0
        rhythm = with_signs(rhythm, 40.0 + pause, [Sign(step=last + n) for n in range(1, 41)])
        last += 40
    (kind,) = rhythm.long
    assert (kind.every, kind.offset) == (500, 0)
    assert limit(rhythm) == s(120)
    for _ in range(2):
        rhythm = with_signs(rhythm, 40.0, [Sign(step=last + n) for n in range(1, 41)])
        last += 40
    assert limit(rhythm) == s(720)


def test_what_comes_at_no_known_period_is_waited_for_everywhere():
    """A stall of 40 s at odd steps may come again at any step, and be twice as long."""
    rhythm = ordinary(until=700)
    rhythm = steps(steps(rhythm, [701], 40.0), range(702, 760), 1.0)
    assert limit(rhythm) == s(80)


def test_a_single_long_gap_is_forgotten():
    """A file system that was away once does not make the model blind for ever, nor for more than ten minutes."""
    rhythm = steps(ordinary(until=733), [734], 3000.0)
    assert limit(steps(rhythm, range(735, 737), 1.0)) == POLICY.unlearned
    assert limit(steps(rhythm, range(735, 4800), 1.0)) == POLICY.floor


@pytest.mark.parametrize(
    ("step", "expected"),
    [(500, POLICY.unlearned + s(3)), (499, POLICY.unlearned + s(3)), (487, POLICY.floor), (450, POLICY.floor)],
)
def test_a_first_checkpoint_is_waited_for_at_round_steps(step, expected):
    """Its interval cannot be shorter than all that was followed; trainers count from 0 or from 1."""
    assert limit(ordinary(until=step)) == expected


def test_what_may_come_for_the_first_time_is_not_waited_for_where_nothing_is_done():
    """What is known to come at a step, was announced, or cannot be known yet has its time whatever is seen."""
    for step in (487, 499, 500):
        assert if_still(ordinary(until=step)) == POLICY.floor
    announced = with_signs(ordinary(until=500), 0.0, [Sign(phase=Phase.CHECKPOINT)])
    last = with_signs(ordinary(until=499), 1.0, [Sign(step=500, total=500)])
    for rhythm in (paused(100, 90.0, 700), announced, last, ordinary(until=4)):
        assert POLICY.floor < limit(rhythm) - s(3) <= if_still(rhythm) <= limit(rhythm)
    assert standstill_limit(Rhythm(), POLICY, stepped=False) == POLICY.startup


def test_after_the_last_step_nothing_more_is_due():
    """The final checkpoint of a run (or the evaluation of an epoch) may take as long as a start."""
    rhythm = steps(ordinary(until=736), [737], 1.0)
    assert limit(with_signs(rhythm, 1.0, [Sign(step=738, total=1000)])) == POLICY.floor
    assert limit(with_signs(rhythm, 1.0, [Sign(step=738, total=738)])) == POLICY.startup + s(3)


def test_the_next_attempt_knows_the_rhythm():
    """But its first steps are a start again."""
    next_one = again(ordinary(20.0, 20.0))
    first = with_signs(next_one, 600.0, [Sign(step=107)])
    assert limit(first) == POLICY.unlearned
    assert limit(steps(first, range(108, 117), 20.0)) == s(100)
