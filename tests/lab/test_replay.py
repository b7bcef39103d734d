"""Jobs that never ran are as lively as those that do; the models of hang, straggler and numerics tell them apart."""

from dataclasses import replace
from itertools import pairwise

import pytest

from relight.domain.progress import Phase
from relight.lab.replay import RESTARTS_AFTER_S, faulty, healthy, watch
from relight.lab.replay_jobs import POLL_S, Fault, FaultKind, Job, Lag, Pause, Told, follow, healthy_job, odd_job

HOUR = 3600


def lines(job, seconds=HOUR, fault=None):
    return [sign for seen in follow(job, seconds, fault) for sign in seen.signs]


def test_a_job_is_the_same_each_time():
    """From its seed; another seed is another job, and another attempt other noise."""
    assert list(follow(healthy_job(7), HOUR)) == list(follow(healthy_job(7), HOUR))
    assert healthy_job(7) != healthy_job(8)
    assert list(follow(healthy_job(7), HOUR)) != list(follow(healthy_job(7), HOUR, attempt=1))


@pytest.mark.parametrize("block", [0, 4096])
@pytest.mark.parametrize("lag", list(Lag))
def test_buffer_and_file_system_delay_lines_and_lose_none(block, lag):
    """All that becomes visible was printed, in its order, never before it was printed."""
    job = Job(seed=3, pauses=(Pause(Phase.CHECKPOINT, 200, 30.0, Told.BOTH),))
    late = list(follow(replace(job, block=block, lag=lag), HOUR))
    shown = [sign for seen in late for sign in seen.signs]
    assert shown == lines(job)[: len(shown)]
    printed = {sign.step: seen.at for seen in follow(job, HOUR) for sign in seen.signs}
    assert all(seen.at >= printed[sign.step] for seen in late for sign in seen.signs if sign.step)
    assert all(a.at < b.at for a, b in pairwise(late))
    assert all(seen.at % POLL_S == 0 for seen in late) or lag is not Lag.NONE


@pytest.mark.parametrize(
    ("told", "begins"), [(Told.BEFORE, [True]), (Told.BOTH, [True, False]), (Told.AFTER, [False]), (Told.NEVER, [])]
)
def test_pauses_are_announced_as_asked(told, begins):
    """At their step, and for as long as they last."""
    job = Job(seed=3, pauses=(Pause(Phase.EVALUATION, 200, 60.0, told),))
    seen = [(each.at, sign) for each in follow(job, HOUR) for sign in each.signs]
    assert [sign.begins for _, sign in seen if sign.phase][: len(begins)] == begins
    at = {sign.step: when for when, sign in seen}
    assert at[201] - at[200] > 40
    assert at[202] - at[201] < 2


def test_faults_come_at_their_step():
    """A hang prints no more, a slow job takes longer, a loss is not a number."""
    job = Job(seed=4, jitter=0.01)
    assert lines(job, fault=Fault(FaultKind.HANG, 500))[-1].step == 499
    slow = {sign.step: sign.seconds for sign in lines(job, fault=Fault(FaultKind.SLOW, 500, 1.5))}
    assert slow[499] < 1.1
    assert slow[500] > 1.3
    wrong = {sign.step: sign.loss for sign in lines(job, fault=Fault(FaultKind.NAN, 500))}
    assert wrong[499] == wrong[499]
    assert wrong[500] != wrong[500]


def test_healthy_jobs_raise_no_alarm():
    """The whole replay, of which this is a small part, is `replay()`."""
    hours = 1.5 * RESTARTS_AFTER_S / HOUR
    result = healthy((healthy_job(seed) for seed in range(12)), hours)
    assert result["false_alarms_of"] == []
    assert result["healthy_job_hours"] == 36
    assert result["lines"] > 10_000


def test_what_silence_cannot_tell_is_told_as_a_hang():
    """A first long pause at an odd step, which nothing announces: the replay counts such alarms."""
    assert healthy((odd_job(seed) for seed in range(5)), 2)["false_alarms"] > 0


@pytest.mark.parametrize(
    ("kind", "factor"),
    [(FaultKind.HANG, 1.0), (FaultKind.SLOW, 1.1), (FaultKind.NAN, 1.0), (FaultKind.EXPLODE, 3.0)],
)
def test_faults_are_found(kind, factor):
    """Of jobs that print each step at once, all, and nothing before the fault."""
    result = faulty(kind, 8, factor, plain=True)
    assert (result["n"], result["missed"], result["early"]) == (8, 0, 0)
    if kind is FaultKind.SLOW:
        assert result["steps"]["max"] <= 30


def test_a_hang_is_found_after_the_limit_of_silence():
    """29 s after the last line of a job of one step a second, so that it is told within 30."""
    alarms, following = watch(Job(seed=5), HOUR, Fault(FaultKind.HANG, 733))
    (alarm,) = alarms
    assert (alarm.kind, alarm.step) == ("hang", 732)
    assert alarm.at - following.arrival == 29
