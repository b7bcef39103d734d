"""Where time went: every second is accounted for once, and nothing that was not seen counts as training."""

from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from relight.domain.attempts import AttemptKey
from relight.domain.goodput import Badput, Run, of_job, steps_redone, total
from relight.domain.goodput_parts import Moments, Part

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


CRASHED = run(
    0, 100, (1, 10), (90, 99), ended_badly=True, saves=4, timed_saves=4, saving=timedelta(minutes=4), saved_step=80
)


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
    """Its output was read, and another attempt shows that the job prints steps. Where none does, nobody knows."""
    never = run(0, 60, ended_badly=True)
    first, _ = of_job([never, run(60, 70, (1, 61), (9, 70), running=True)])
    assert minutes(first) == {Badput.STARTUP: 60}
    assert first.goodput == (0.0, 0.0)
    (alone,) = of_job([never])
    assert minutes(alone) == {Badput.UNKNOWN: 60}


def test_a_hang_is_a_stall():
    """From the last step until somebody ended it."""
    (account,) = of_job([run(0, 60, (1, 5), (20, 25), ended_badly=True, saved_step=20)])
    assert minutes(account) == {Badput.STARTUP: 5, Badput.STALL: 35}
    (account,) = of_job([run(0, 60, (1, 5), (20, 25), running=True, line_every=timedelta(minutes=1))])
    assert minutes(account) == {Badput.STARTUP: 5, Badput.UNKNOWN: 30}, "while it runs nobody knows yet"


def test_what_follows_the_last_printed_step():
    """Up to one step line it was at work, which is lost unless it completed; a completed job's end is no stall."""
    tail = {"line_every": timedelta(minutes=2), "saved_step": 20}
    (died,) = of_job([run(0, 30, (1, 5), (20, 25), ended_badly=True, **tail)])
    assert minutes(died) == {Badput.STARTUP: 5, Badput.WASTED: 2, Badput.STALL: 3}
    (done,) = of_job([run(0, 30, (1, 5), (20, 25), completed=True, **tail)])
    assert minutes(done) == {Badput.STARTUP: 5, Badput.UNKNOWN: 3}
    assert done.explained == pytest.approx(0.9)


def test_when_the_first_step_came_is_not_known():
    """The follower came late: start-up and training cannot be told apart, the stall at its end can."""
    late = run(0, 60, (1, 5), (20, 50), ended_badly=True, saved_step=20).model_copy(update={"first_step_at": None})
    (account,) = of_job([late])
    assert minutes(account) == {Badput.STALL: 10, Badput.UNKNOWN: 50}


def test_silences_that_ended_by_themselves_and_saves_are_no_training():
    """Together no more than there was."""
    (account,) = of_job(
        [run(0, 60, (1, 5), (20, 60), running=True, stalled=timedelta(minutes=9), saving=timedelta(hours=2))]
    )
    assert minutes(account) == {Badput.STARTUP: 5, Badput.SAVE: 46, Badput.STALL: 9}


def test_a_disruption_is_divided():
    """By the incident's moments and Slurm's SubmitTime; parts are the whole gap; the first wait stands apart."""
    again = run(110, 200, (81, 120), (150, 200), running=True, queued_at=at(104))
    first = CRASHED.model_copy(update={"queued_at": at(-30)})
    moments = Moments(detected=at(101), planned=at(102), approved=at(103.5), started=at(105))
    told = of_job([first, again], {first.attempt: moments})
    assert told[0].queued == timedelta(minutes=30)
    assert {part: time / timedelta(minutes=1) for part, time in told[1].gap_parts.items()} == {
        Part.DETECTION: 1,
        Part.DECISION: 1,
        Part.APPROVAL: 1.5,
        Part.ENDING: 1.5,
        Part.QUEUE: 5,
    }
    alone = of_job([first, again])[1]
    assert {part: time / timedelta(minutes=1) for part, time in alone.gap_parts.items()} == {
        Part.UNATTENDED: 4,
        Part.QUEUE: 6,
    }
    assert told[0].ettr < told[0].goodput


@pytest.mark.parametrize(
    ("one", "later", "steps"),
    [
        (CRASHED, (run(110, 120, (81, 115), (85, 119)),), 10),
        (CRASHED, (run(110, 120, (91, 115), (95, 119)),), 0),
        (CRASHED, (run(110, 120, (90, 115), (110, 119), stride=10),), 10),
        (CRASHED, (run(110, 120),), 10),
        (CRASHED, (), 10),
        (CRASHED, (run(110, 120), run(130, 140, (41, 135), (45, 139))), 50),
        (CRASHED.model_copy(update={"saved_step": None}), (), None),
        (CRASHED.model_copy(update={"ended_badly": False}), (), 0),
        (run(0, 60), (), 0),
    ],
    ids=[
        "again",
        "none",
        "printed each tenth",
        "not yet",
        "no retry",
        "from far earlier, later",
        "no save known",
        "completed",
        "no step",
    ],
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
    queued_at=st.none() | st.integers(-50, 500).map(at),
    completed=st.booleans(),
    stalled=st.integers(0, 400).map(lambda count: timedelta(minutes=count)),
    line_every=st.none() | st.integers(0, 60).map(lambda count: timedelta(minutes=count)),
)
MOMENTS = st.builds(
    lambda *ats: Moments(**dict(zip(("detected", "planned", "approved", "started"), ats, strict=True))),
    *[st.none() | st.integers(-50, 900).map(at)] * 4,
)


@given(
    st.lists(RUNS | st.builds(run, st.integers(0, 500), st.integers(500, 900), read=st.booleans()), max_size=5),
    st.lists(MOMENTS, min_size=5, max_size=5),
)
def test_every_second_is_accounted_for_once(runs, moments):
    """Whatever the clocks say: nothing is negative, productive and lost time are all of it, and so are the parts."""
    none = timedelta(0)
    accounts = of_job(runs, {each.attempt: told for each, told in zip(runs, moments, strict=False)})
    for account in accounts:
        assert account.productive >= none
        assert all(time > none for time in account.lost.values())
        assert account.productive + sum(account.lost.values(), none) == account.elapsed
        assert all(time > none for time in (*account.gap_parts.values(), *account.tail_parts.values()))
        assert sum(account.gap_parts.values(), none) == account.lost.get(Badput.RECOVERY, none)
        assert sum(account.tail_parts.values(), none) <= account.lost.get(Badput.STALL, none)
    summed = total(accounts)
    assert summed.elapsed == sum((account.elapsed for account in accounts), none)
    assert summed.productive + sum(summed.lost.values(), none) == summed.elapsed
    assert summed.goodput is None or 0 <= summed.goodput[0] <= summed.goodput[1] <= 1
    assert summed.explained is None or 0 <= summed.explained <= 1
