"""Where time went: every second is accounted for once, and nothing that was not seen counts as training."""

from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from relight.domain.attempts import AttemptKey
from relight.domain.goodput import Badput, Run, cost_of, daly, interval, of_job, steps_redone, total

T0 = datetime(2026, 12, 1, tzinfo=UTC)


def at(minutes):
    return T0 + timedelta(minutes=minutes)


def minutes(account):
    return {kind: time / timedelta(minutes=1) for kind, time in account.lost.items()}


def run(start, end, first=None, last=None, **more):
    """An attempt that ran from minute to minute; `first` and `last` are (step, minute)."""
    steps = {}
    if first:
        steps = {
            "first_step": first[0],
            "first_step_at": at(first[1]),
            "last_step": last[0],
            "last_step_at": at(last[1]),
        }
    key = AttemptKey(cluster="main", job_id=7, submit_time=at(start))
    return Run(**{"attempt": key, "gpus": 8, "started_at": at(start), "ended_at": at(end), **steps, **more})


CRASHED = run(0, 100, (1, 10), (90, 99), ended_badly=True, saves=4, saving=timedelta(minutes=4), saved_step=80)


def test_a_job_that_crashed_once():
    """Start-up, saving, ten steps done again, the gap, and what is left is productive."""
    again = run(110, 200, (81, 120), (150, 200), running=True)
    first, second = of_job([again, CRASHED])
    assert minutes(first) == pytest.approx(
        {
            Badput.STARTUP: 10,
            Badput.SAVE: 4,
            Badput.WASTED: 89 * 10 / 89,
            Badput.STALL: 1,
        }
    )
    assert minutes(second) == {Badput.RECOVERY: 10, Badput.STARTUP: 10}
    both = total([first, second])
    assert both.elapsed == timedelta(minutes=200)
    assert both.productive / timedelta(minutes=1) == pytest.approx(75 + 80)
    assert both.goodput == pytest.approx((155 / 200, 155 / 200))
    assert (both.interruptions, both.steps_redone) == (1, 10)
    assert both.gpu_hours == pytest.approx(8 * 200 / 60)
    assert both.gpu_hours_lost == pytest.approx(8 * 45 / 60)


def test_what_was_not_read_is_neither_productive_nor_lost():
    """Goodput is a range then."""
    (account,) = of_job([run(0, 60, read=False)])
    assert minutes(account) == {Badput.UNKNOWN: 60}
    assert account.goodput == (0.0, 1.0)


def test_an_attempt_that_never_stepped_was_starting_up():
    """Its output was read, and shows none."""
    (account,) = of_job([run(0, 60, ended_badly=True)])
    assert minutes(account) == {Badput.STARTUP: 60}
    assert account.goodput == (0.0, 0.0)


def test_a_hang_is_a_stall():
    """From the last step until somebody ended it."""
    (account,) = of_job([run(0, 60, (1, 5), (20, 25), ended_badly=True, saved_step=20)])
    assert minutes(account) == {Badput.STARTUP: 5, Badput.STALL: 35}


@pytest.mark.parametrize(
    ("one", "later", "steps"),
    [
        (CRASHED, run(110, 120, (81, 115), (85, 119)), 10),
        (CRASHED, run(110, 120, (91, 115), (95, 119)), 0),
        (CRASHED, run(110, 120, (90, 115), (110, 119), stride=10), 10),
        (CRASHED, run(110, 120), 10),
        (CRASHED, None, 10),
        (CRASHED.model_copy(update={"saved_step": None}), None, None),
        (CRASHED.model_copy(update={"ended_badly": False}), None, 0),
        (run(0, 60), None, 0),
    ],
    ids=["again", "none", "printed each tenth", "not yet", "no retry", "no save known", "completed", "no step"],
)
def test_steps_done_again(one, later, steps):
    """The next attempt's first step tells; else the newest checkpoint; else nobody knows."""
    assert steps_redone(one, later) == steps


RUNS = st.builds(
    lambda start, ran, numbers, times, **more: run(
        start, start + ran, (numbers[0], start + times[0]), (numbers[1], start + times[1]), **more
    ),
    st.integers(0, 500),
    st.integers(-5, 300),
    st.tuples(st.integers(0, 100), st.integers(0, 200)),
    st.tuples(st.integers(-10, 300), st.integers(-10, 300)),
    running=st.booleans(),
    ended_badly=st.booleans(),
    read=st.booleans(),
    saving=st.integers(0, 400).map(lambda count: timedelta(minutes=count)),
    saves=st.integers(0, 9),
    saved_step=st.none() | st.integers(0, 300),
)


@given(st.lists(RUNS | st.builds(run, st.integers(0, 500), st.integers(500, 900), read=st.booleans()), max_size=5))
def test_every_second_is_accounted_for_once(runs):
    """Whatever the clocks say: nothing is negative, and productive and lost time together are all of it."""
    for account in of_job(runs):
        assert account.productive >= timedelta(0)
        assert all(time > timedelta(0) for time in account.lost.values())
        assert account.productive + sum(account.lost.values(), timedelta(0)) == account.elapsed
    summed = total(of_job(runs))
    assert summed.goodput is None or 0 <= summed.goodput[0] <= summed.goodput[1] <= 1


@given(st.floats(1, 3600), st.floats(600, 1e6))
def test_the_best_interval_is_the_best(cost, between):
    """No interval loses clearly less; Young's first-order formula is near it where saving is cheap."""

    def loss(every):
        return cost / every + every / (2 * between)

    best = daly(cost, between)
    assert all(loss(best) <= loss(best * factor) * 1.3 for factor in (0.1, 0.5, 2, 10) if cost < between / 10)
    if cost < between / 1000:
        assert best == pytest.approx((2 * cost * between) ** 0.5, rel=0.05)


def test_what_another_interval_would_save():
    """A save of a minute each twenty, an interruption each 90: Daly's 12.7 minutes would save a little."""
    (account,) = of_job([CRASHED])
    found = interval(account)
    assert found.save_cost == timedelta(minutes=1)
    assert found.now == timedelta(minutes=89 / 4)
    assert 10 < found.best / timedelta(minutes=1) < 14
    assert 0 < found.saved_share < 0.05
    assert interval(account.model_copy(update={"interruptions": 0})) is None


def test_an_incidents_parts_are_the_whole_time():
    """From the last step before it to the step that it had reached; what was not written down joins the next part."""
    moments = {
        "last step": at(0),
        "detected": at(1),
        "planned": at(2),
        "start set": at(3),
        "running": at(10),
        "first step": at(15),
        "progress": at(20),
    }
    cost = cost_of("i1", moments, gpus=16, cause="CUDA_ECC", category="gpu")
    told = {name: time / timedelta(minutes=1) for name, time in cost.parts.items()}
    assert told == {"detection": 1, "decision": 1, "ending": 1, "queue wait": 7, "start-up": 5, "done again": 5}
    assert cost.time == timedelta(minutes=20)
    assert cost.gpu_hours == pytest.approx(16 / 3)
    del moments["detected"], moments["running"]
    assert cost_of("i1", moments, gpus=16).time == timedelta(minutes=20)
    assert cost_of("i1", {}, gpus=16).parts == {}
