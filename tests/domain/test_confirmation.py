"""A detection is believed only after a fresh look, and only once."""

from datetime import timedelta

import pytest

from relight.domain.attempts import Progress
from relight.domain.confirmation import judge, moved_since
from relight.domain.evidence import Interruption
from relight.domain.incidents import Outcome
from relight.domain.slurm import JobFlag, JobState


@pytest.fixture
def judged(attempt, detection, record):
    """Judges a detection about job 7; what is not said is ordinary."""

    def call(kind=Interruption.CRASH, *, look=None, gone=False, progress=None, lost=False, earlier=(), **fields):
        return judge(
            attempt(),
            detection(kind=kind, **fields),
            None if gone else (look or record(state=JobState.FAILED)),
            progress=progress or Progress(),
            node_still_lost=lost,
            earlier=earlier,
        )

    return call


def test_an_attempt_that_ended_is_confirmed(judged):
    """A crash is confirmed when the record shows the attempt ended, or is gone."""
    assert judged().outcome is None
    assert "FAILED" in judged().reason
    assert judged(gone=True).outcome is None


def test_an_attempt_that_runs_is_not_confirmed(judged, record):
    """A crash of an attempt that is running was a false alarm."""
    assert judged(look=record()).outcome is Outcome.NOT_CONFIRMED


def test_completing_counts_as_ended(judged, record):
    """The end shows as COMPLETING first."""
    assert judged(look=record(state=JobState.FAILED, flags={JobFlag.COMPLETING})).outcome is None


def test_an_unreadable_state_is_looked_at_again(judged, record):
    """UNKNOWN is neither confirmed nor not."""
    assert judged(look=record(state=JobState.UNKNOWN)) is None
    assert judged(Interruption.HANG, look=record(state=JobState.UNKNOWN)) is None


def test_an_unreadable_state_of_a_requeued_job_is_an_end(judged, record, now):
    """Once the record shows a requeue the old attempt is over, whatever its state hides."""
    again = record(state=JobState.UNKNOWN, flags={JobFlag.COMPLETING}, restarts=1)
    assert judged(look=again).outcome is None
    assert judged(look=record(state=JobState.UNKNOWN, submit_time=now + timedelta(seconds=9))).outcome is None


def test_a_lost_node_waits_for_slurm(judged, record):
    """While Slurm shows the job running although its node is lost, it has not made up its mind."""
    assert judged(Interruption.NODE_LOST, look=record(), lost=True) is None
    assert judged(Interruption.NODE_LOST, look=record(), lost=False).outcome is Outcome.NOT_CONFIRMED
    assert judged(Interruption.NODE_LOST, look=record(state=JobState.NODE_FAIL), lost=True).outcome is None


def test_a_hang_is_confirmed_while_it_is_silent(judged, record, now):
    """Running and silent since: confirmed; the last step may be from before the detection."""
    old = Progress(last_step=5, last_step_at=now)
    assert judged(Interruption.HANG, look=record()).outcome is None
    assert judged(Interruption.HANG, look=record(), progress=old).outcome is None


def test_a_hang_that_moved_is_none(judged, record, now):
    """A step that became visible after the detection ends the suspicion."""
    moved = Progress(last_step=6, last_step_at=now + timedelta(seconds=1))
    judgement = judged(Interruption.HANG, look=record(), progress=moved)
    assert judgement.outcome is Outcome.NOT_CONFIRMED
    assert "step 6" in judgement.reason


def test_a_suspended_job_does_not_hang(judged, record):
    """Silence of a suspended job means nothing."""
    judgement = judged(Interruption.HANG, look=record(state=JobState.SUSPENDED))
    assert judgement.outcome is Outcome.NOT_CONFIRMED
    assert "suspended" in judgement.reason


@pytest.mark.parametrize("gone", [True, False])
def test_a_hang_of_an_ended_attempt_is_judged_as_its_end(judged, gone):
    """Once the attempt has ended, its end is the interruption."""
    assert judged(Interruption.HANG, gone=gone).outcome is Outcome.NOT_CONFIRMED


def test_a_late_echo_is_dropped(judged, record, incident, now):
    """What was detected before an earlier incident of this attempt closed belongs to that one."""
    closed = incident(outcome=Outcome.EXPIRED, closed_at=now)
    for look in (record(), record(state=JobState.FAILED)):
        judgement = judged(Interruption.HANG, look=look, earlier=(closed,))
        assert judgement.outcome is Outcome.NOT_CONFIRMED
        assert "iolder" in judgement.reason


def test_a_handled_attempt_that_no_longer_runs_is_dropped(judged, incident, now):
    """Also a later detection, when the attempt that was handled is over."""
    closed = incident(outcome=Outcome.RECOVERED, closed_at=now - timedelta(minutes=1))
    assert judged(earlier=(closed,)).outcome is Outcome.NOT_CONFIRMED


def test_a_second_hang_of_the_same_attempt_counts(judged, record, incident, now):
    """An attempt that still runs may hang again after an incident that did nothing."""
    closed = incident(outcome=Outcome.REJECTED, closed_at=now - timedelta(minutes=1))
    assert judged(Interruption.HANG, look=record(), earlier=(closed,)).outcome is None


def test_open_and_unconfirmed_incidents_handle_nothing(judged, incident, now):
    """An incident that is open, or was not confirmed, does not make another an echo."""
    unconfirmed = incident(outcome=Outcome.NOT_CONFIRMED, closed_at=now + timedelta(hours=1))
    assert judged(earlier=(incident(), unconfirmed)).outcome is None


def test_moved_since_is_strict(detection, now):
    """Only a step that became visible after the detection counts."""
    found = detection()
    assert not moved_since(found, Progress())
    assert not moved_since(found, Progress(last_step=1, last_step_at=now))
    assert moved_since(found, Progress(last_step=1, last_step_at=now + timedelta(milliseconds=1)))
