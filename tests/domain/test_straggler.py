"""A job is slow when it lastingly takes longer than it did itself."""

import math
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from relight.domain.baseline import BLOCK
from relight.domain.straggler import CLIP, SHIFT, WARM_UP, Pace, restarted, threshold, with_steps

KNOWN = WARM_UP + BLOCK
NOISE = st.sampled_from([0.0, 0.02, 0.05])


def series(seed, count, *, seconds=2.0, noise=0.03):
    rng = Random(seed)  # noqa: S311
    return [seconds * math.exp(rng.gauss(0, noise)) for _ in range(count)]


def take(times, *, pace=None, first=1, stride=1, work=None):
    """The pace after steps that took these seconds."""
    works = work if isinstance(work, list) else [work] * len(times)
    steps = range(first, first + stride * len(times), stride)
    return with_steps(pace or Pace(), zip(steps, times, works, strict=True))


def told_after(times, *, pace=None, first=1, stride=1, work=None):
    """Lines until a slow-down is told; None when none ever is."""
    pace = pace or Pace()
    for n, seconds in enumerate(times):
        pace = with_steps(pace, [(first + n * stride, seconds, work)])
        if pace.slowdown:
            return n + 1
    return None


@pytest.mark.parametrize("noise", [0.02, 0.035, 0.05])
@pytest.mark.parametrize("ratio", [1.1, 1.2, 1.5, 10.0])
def test_a_tenth_more_time_is_told_within_thirty_steps(ratio, noise):
    """At the noise that training has, and not by a few slow steps."""
    for seed in range(20):
        pace = take(series(seed, 400, noise=noise))
        after = told_after(series(seed + 1000, 60, seconds=2 * ratio, noise=noise), pace=pace, first=401)
        assert after is not None
        assert 5 < after <= 30


@given(st.integers(0, 10**6), NOISE)
def test_a_steady_job_is_not_slow(seed, noise):
    """Whatever its noise."""
    assert told_after(series(seed, 600, noise=noise)) is None


def test_a_slowdown_says_what_it_is():
    """Since when, by how much, in seconds a step, and that the steps' work is not known."""
    slow = take([3.0] * 40, pace=take([2.0] * 200), first=201).slowdown
    assert (slow.since_step, slow.steps) == (201, 10)
    assert (slow.ratio, slow.baseline_seconds, slow.recent_seconds) == pytest.approx((1.5, 2.0, 3.0))
    assert not slow.by_work


def test_it_stands_until_the_job_has_recovered():
    """A few fast steps among the slow ones are none; ten at the old pace are."""
    slow = take([3.0] * 300, pace=take([2.0] * 200), first=201)
    assert take([2.0] * 5, pace=slow, first=501).slowdown == slow.slowdown
    over = take([2.0] * 30, pace=slow, first=501)
    assert over.slowdown is None
    assert take([3.0] * 30, pace=over, first=531).slowdown.since_step == 531


def test_nothing_is_told_before_there_is_a_baseline():
    """Unknown is not healthy: it says so."""
    assert not take([2.0] * (KNOWN - 1)).known
    assert take([2.0] * KNOWN).known
    assert told_after([2.0] * 30 + [4.0] * 20) is None


def test_steps_without_printed_seconds_tell_nothing():
    """Times counted from arrivals are the buffer's doing; times that are no times are none."""
    assert not take([None, math.nan, math.inf, 0.0, -1.0] * 100).known


def test_warm_up_is_not_the_baseline():
    """Compilation and first steps are many times slower."""
    pace = take([200.0, 50.0, 8.0, 5.0, 4.0, 3.0, 2.5, 2.2, 2.1, 2.1] + [2.0] * 100)
    assert pace.base.level == pytest.approx(math.log(2.0))


@pytest.mark.parametrize("every", [5, 10, 50])
def test_periodic_slow_steps_are_the_jobs_own(every):
    """A checkpoint or an evaluation that a step's time includes, or a garbage collection."""
    times = [60.0 if n % every == 0 else seconds for n, seconds in enumerate(series(1, 3000))]
    assert told_after(times) is None


@pytest.mark.parametrize("count", [1, 5])
def test_a_few_slow_steps_are_no_slowdown(count):
    """However slow they are."""
    assert told_after([200.0] * count + [2.0] * 30, pace=take(series(1, 300)), first=301) is None


def test_two_slow_lines_that_each_stand_for_ten_steps_are_no_slowdown():
    """There was a data stall in each."""
    pace = take(series(2, 300, noise=0.01), stride=10)
    assert told_after([3.0, 3.0, 2.0, 2.0, 3.0, 2.0], pace=pace, first=3001, stride=10) is None


@pytest.mark.parametrize("stride", [1, 10])
@pytest.mark.parametrize("share", [0.02, 0.1])
def test_data_stalls_that_are_common_are_the_jobs_own(share, stride):
    """The more common they are, the more lines in a row must be slow."""
    for seed in range(5):
        rng = Random(seed)  # noqa: S311
        times = [each * (2 if rng.random() < share else 1) for each in series(seed, 5000, noise=0.01)]
        assert told_after(times, stride=stride) is None


def test_lines_of_ten_steps_are_told_in_thirty():
    """Where nothing else disturbs them."""
    pace = take(series(3, 400, noise=0.01), stride=10)
    assert told_after([2.2] * 10, pace=pace, first=4001, stride=10) == 3


def test_a_slow_drift_becomes_the_baseline():
    """Half as much again over ten thousand steps is a curriculum's doing, or nothing that can be told from it."""
    times = [seconds * (1 + n / 20000) for n, seconds in enumerate(series(4, 10000))]
    assert told_after(times) is None


def test_a_loss_of_a_twentieth_is_not_told():
    """However long it lasts: it becomes the baseline."""
    assert told_after(series(9, 3000, seconds=2.1), pace=take(series(10, 1000)), first=1001) is None


def test_a_change_of_work_is_not_slow():
    """Twice the tokens in twice the time; and in three times the time the baseline is learnt anew."""
    pace = take(series(5, 300), work=1000.0)
    assert told_after(series(6, 300, seconds=4.0), pace=pace, first=301, work=2000.0) is None
    anew = take(series(6, 40, seconds=6.0), pace=pace, first=301, work=2000.0)
    assert (anew.slowdown, anew.known) == (None, False)


def test_with_known_work_a_slowdown_is_certain():
    """The same tokens in more time; seconds are of a step, not of a token."""
    slow = take([3.0] * 30, pace=take([2.0] * 200, work=1000.0), first=201, work=1000.0).slowdown
    assert slow.by_work
    assert (slow.baseline_seconds, slow.recent_seconds) == pytest.approx((2.0, 3.0))


def test_steps_of_uneven_work_are_compared_by_their_work():
    """Unpacked sequences: the time of a step varies by half, the time of a token does not."""
    rng = Random(7)  # noqa: S311
    work = [rng.uniform(600, 1400) for _ in range(400)]
    pace = take([each / 500 for each in work], work=work)
    assert pace.slowdown is None
    more = [rng.uniform(600, 1400) for _ in range(60)]
    assert take([each / 450 for each in more], pace=pace, first=401, work=more).slowdown.ratio == pytest.approx(
        10 / 9, rel=0.02
    )


def test_lines_of_other_ranks_are_not_counted():
    """Each rank prints each step: the first line of a step counts."""
    once = take(series(8, 200))
    thrice = with_steps(Pace(), [(n + 1, seconds, None) for n, seconds in enumerate(series(8, 200)) for _ in range(3)])
    assert thrice == once


def test_a_restart_is_warm_up_again():
    """In the same file, or in the next attempt; its baseline stays, so a bad node of the new attempt shows."""
    pace = take([2.0] * 300)
    assert told_after([50.0] * WARM_UP + [2.0] * 50, pace=pace, first=100) is None
    assert take([50.0] * WARM_UP + [2.4] * 30, pace=restarted(pace), first=900).slowdown.ratio == pytest.approx(1.2)


@given(
    st.lists(
        st.tuples(st.integers(0, 300), st.none() | st.floats(), st.none() | st.floats(allow_nan=False)), max_size=200
    )
)
def test_memory_is_bounded_and_batches_do_not_matter(lines):
    """Lines one by one, or all at once: the same pace, in two kilobytes."""
    pace = Pace()
    for line in lines:
        pace = with_steps(pace, [line])
    assert pace == with_steps(Pace(), lines)
    assert Pace.model_validate_json(pace.model_dump_json()) == pace
    assert len(pace.model_dump_json()) < 6000


@given(st.floats(0, 0.2), st.floats(0, 0.1), st.integers(1, 1000))
def test_the_threshold_needs_more_than_one_line(spread, wander, stride):
    """And more, the noisier a job is."""
    k, h = threshold(spread, wander, stride)
    assert k >= SHIFT / 2
    assert h > CLIP - SHIFT / 2
    assert threshold(spread + 0.01, wander, stride)[1] >= h
