"""A detection is believed only after a fresh look, and only once."""

from datetime import timedelta

import pytest

from relight.domain.attempts import Progress
from relight.domain.confirmation import judge, moved_since
from relight.domain.endings import HUNG_UNTIL_LIMIT
from relight.domain.evidence import Evidence, Interruption, Source
from relight.domain.incidents import Outcome
from relight.domain.slurm import JobFlag, JobState


@pytest.fixture
def judged(attempt, detection, record):
    """Judges a detection about job 7; what is not said is ordinary."""

    def call(
        kind=Interruption.CRASH,
        *,
        look=None,
        gone=False,
        progress=None,
        lost=False,
        earlier=(),
        now=None,
        ends_programs=False,
        heard_again=False,
        **fields,
    ):
        return judge(
            attempt(),
            detection(kind=kind, **fields),
            None if gone else (look or record(state=JobState.FAILED)),
            progress=progress or Progress(),
            node_still_lost=lost,
            earlier=earlier,
            now=now,
            ends_programs=ends_programs,
            heard_again=heard_again,
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


def test_a_silent_node_waits_for_slurm(judged, record, now):
    """Whatever Slurm thinks of the node: the attempt's end confirms, a sign of life ends the suspicion."""
    silent = Evidence(source=Source.AGENT, text="n2 is silent: ...", signature="NODE_SILENT", node="n2")
    given = {"kind": Interruption.NODE_LOST, "evidence": (silent,)}
    assert judged(**given, look=record()) is None
    assert judged(**given, look=record(), lost=True) is None
    assert judged(**given, look=record(), heard_again=True).outcome is Outcome.NOT_CONFIRMED
    moved = Progress(last_step=6, last_step_at=now + timedelta(seconds=6))
    assert judged(**given, look=record(), progress=moved).outcome is Outcome.NOT_CONFIRMED
    assert judged(**given, look=record(state=JobState.NODE_FAIL)).outcome is None


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


@pytest.mark.parametrize("state", [JobState.TIMEOUT, JobState.PENDING])
def test_a_hang_until_the_time_limit_is_confirmed_by_it(judged, record, state):
    """It was told from the attempt's end, so that the attempt has ended is no objection."""
    silence = Evidence(source=Source.PROGRESS, text="no step for 900 s", signature=HUNG_UNTIL_LIMIT)
    assert judged(Interruption.HANG, look=record(state=state), evidence=(silence,)).outcome is None
    assert judged(Interruption.HANG, gone=True, evidence=(silence,)).outcome is None
    assert judged(Interruption.HANG, look=record(state=JobState.UNKNOWN), evidence=(silence,)) is None


SECOND = timedelta(seconds=1)


@pytest.fixture
def fault(judged, record, now):
    """Judges a GPU fault so many seconds after it, under a job whose last step came so many seconds after it."""

    def call(after, *, step=None, look=None, seconds=1.0, **fields):
        seen = (
            Progress(last_step=7, last_step_at=now + step * SECOND, step_seconds=seconds) if step is not None else None
        )
        at = None if after is None else now + after * SECOND
        return judged(Interruption.GPU_FAULT, look=look or record(), progress=seen, now=at, **fields)

    return call


def test_a_fault_does_not_end_training_that_goes_on(fault):
    """A newer step: not confirmed, however grave the fault."""
    judgement = fault(10, step=9, ends_programs=True)
    assert judgement.outcome is Outcome.NOT_CONFIRMED
    assert judgement.reason == "training goes on: step 7"


@pytest.mark.parametrize(("step", "seconds"), [(-5, 1.0), (0, 1.0), (4, 1.0), (19, 10.0), (None, 1.0)])
def test_a_step_in_flight_is_no_newer_step(fault, step, seconds):
    """A line that comes with the fault may be of a step done before it: look again."""
    assert fault(20, step=step, seconds=seconds) is None


def test_silence_confirms_a_fault_that_ends_programs(fault):
    """After a minute, counted from the last sign of life; not a fault that programs survive."""
    assert fault(59, step=-5, ends_programs=True) is None
    assert fault(60, step=-5, ends_programs=True).outcome is None
    assert fault(60, step=3, ends_programs=True) is None
    assert fault(63, step=3, ends_programs=True).outcome is None
    assert fault(63, step=3) is None


def test_slow_steps_are_not_silence(fault):
    """Two steps of 40 s must be overdue."""
    assert fault(70, step=-5, seconds=40.0, ends_programs=True) is None
    assert fault(80, step=-5, seconds=40.0, ends_programs=True).outcome is None


def test_without_steps_silence_says_nothing(fault):
    """The output shows none: only the end confirms, and after two minutes it is given up."""
    assert fault(119, ends_programs=True) is None
    assert fault(120, ends_programs=True).outcome is Outcome.NOT_CONFIRMED


def test_a_suspended_job_is_not_silent(fault, record):
    """Its silence means nothing."""
    assert fault(100, step=-5, ends_programs=True, look=record(state=JobState.SUSPENDED)) is None


def test_without_a_clock_only_steps_and_ends_are_told(fault):
    """Silence needs the time."""
    assert fault(None, step=-5, ends_programs=True) is None
    assert fault(None, step=9).outcome is Outcome.NOT_CONFIRMED


@pytest.mark.parametrize("state", [JobState.FAILED, JobState.NODE_FAIL])
def test_a_bad_end_confirms_a_fault(judged, record, state):
    """So does a record that is gone, or queued again."""
    assert judged(Interruption.GPU_FAULT, look=record(state=state)).outcome is None
    assert judged(Interruption.GPU_FAULT, look=record(state=JobState.PENDING, restarts=1)).outcome is None
    assert judged(Interruption.GPU_FAULT, gone=True).outcome is None


@pytest.mark.parametrize("state", [JobState.COMPLETED, JobState.CANCELLED, JobState.TIMEOUT, JobState.PREEMPTED])
def test_another_end_does_not(judged, record, state):
    """The job went on in spite of the fault until it was done, or its user stopped it."""
    judgement = judged(Interruption.GPU_FAULT, look=record(state=state))
    assert judgement.outcome is Outcome.NOT_CONFIRMED
    assert str(state) in judgement.reason


def test_the_end_after_a_fault_that_was_left_alone_is_another_interruption(judged, incident, now):
    """When the incident closed while the attempt still ran, and only then."""
    closed = incident(kind=Interruption.GPU_FAULT, outcome=Outcome.EXPIRED, closed_at=now)
    assert judged(detected_at=now + SECOND, earlier=(closed,)).outcome is None
    assert judged(detected_at=now - SECOND, earlier=(closed,)).outcome is Outcome.NOT_CONFIRMED
    restarted = incident(kind=Interruption.GPU_FAULT, outcome=Outcome.RECOVERED, closed_at=now)
    assert judged(detected_at=now + SECOND, earlier=(restarted,)).outcome is Outcome.NOT_CONFIRMED


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


@pytest.mark.parametrize("kind", [Interruption.CRASH, Interruption.HANG])
def test_a_superseded_incident_of_an_attempt_that_ran_answers_nothing(judged, record, incident, now, kind):
    """Neither the newer finding that it gave way to, nor, where that is not confirmed, its own."""
    closed = incident(kind=Interruption.HANG, outcome=Outcome.SUPERSEDED, closed_at=now + SECOND)
    look = record() if kind is Interruption.HANG else record(state=JobState.FAILED)
    assert judged(kind, look=look, earlier=(closed,)).outcome is None
    ended = incident(kind=Interruption.CRASH, outcome=Outcome.SUPERSEDED, closed_at=now + SECOND)
    assert judged(earlier=(ended,)).outcome is Outcome.NOT_CONFIRMED


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
