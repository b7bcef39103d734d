"""Who queued a job again, and which other job goes on with its work."""

from datetime import timedelta

import pytest

from relight.domain.policy import Hand, requeued, successors, whose_hand
from relight.domain.slurm import JobFlag, JobState, NodeFlag, NodeState


def test_requeued_shows_in_submit_time_or_restarts(attempt, record, now):
    """SubmitTime moved, or, while still COMPLETING, the restart count grew."""
    old = attempt(restarts=1)
    assert not requeued(old, record(restarts=1))
    assert requeued(old, record(restarts=2))
    assert requeued(old, record(restarts=1, submit_time=now + timedelta(seconds=1)))


def test_nobody_has_queued_it(attempt, record, node):
    """Without a requeue it is nobody's hand, whatever Relight meant to do and whatever was lost."""
    assert whose_hand(attempt(), record(), [node("n1", NodeState.DOWN)], ours=True) is Hand.NOBODY


@pytest.mark.parametrize(
    ("nodes", "flags", "ours", "hand"),
    [
        ({"n1": NodeState.DOWN}, (), True, Hand.RELIGHT),
        ({}, (), True, Hand.RELIGHT),
        ({"n1": NodeState.DOWN}, (), False, Hand.SLURM),
        ({"n1": NodeState.IDLE}, (), False, Hand.UNKNOWN),
        ({"n3": NodeState.DOWN}, (), False, Hand.UNKNOWN),
        ({}, (), False, Hand.UNKNOWN),
        ({"n1": NodeState.DOWN}, (JobFlag.REQUEUE_HOLD,), False, Hand.UNKNOWN),
        ({"n1": NodeState.DOWN}, (JobFlag.SPECIAL_EXIT,), False, Hand.UNKNOWN),
    ],
)
def test_whose_hand(attempt, record, node, *, nodes, flags, ours, hand):
    """Ours by the ledger; Slurm's only after it lost a node of this attempt; held or otherwise: unknown."""
    again = record(state=JobState.PENDING, restarts=1, flags=frozenset(flags))
    found = [node(name, state) for name, state in nodes.items()]
    assert whose_hand(attempt(), again, found, ours=ours) is hand


def test_a_node_that_does_not_respond_is_lost(attempt, record, node):
    """IDLE* is lost too."""
    gone = node("n2", flags={NodeFlag.NOT_RESPONDING})
    assert whose_hand(attempt(), record(restarts=1), [gone], ours=False) is Hand.SLURM


def goes_on(attempt, record, old=None, **fields):
    """Whether job 8, pending and otherwise unlike job 7, goes on with the work of job 7."""
    other = {"job_id": 8, "name": "eval", "work_dir": "/elsewhere", "state": JobState.PENDING}
    return bool(successors(attempt(**(old or {})), [record(**{**other, **fields})]))


@pytest.mark.parametrize(
    ("dependency", "expected"),
    [
        ("after:7", True),
        ("afterany:7", True),
        ("afternotok:7", True),
        ("aftercorr:7", True),
        ("afterany:7(unfulfilled)", True),
        ("afterany:7+30(unfulfilled)", True),
        ("afterany:6:7:8", True),
        ("afterok:6,afterany:7", True),
        ("afterok:6?afternotok:7", True),
        ("afterok:7", False),
        ("afterok:7(unfulfilled)", False),
        ("afterburstbuffer:7", False),
        ("afterany:77", False),
        ("afterany:17", False),
        ("singleton", False),
        ("", False),
    ],
)
def test_dependencies(attempt, record, dependency, expected):
    """A dependency that a failure satisfies makes a successor; `afterok` needs the retry; other ids mean nothing."""
    assert goes_on(attempt, record, dependency=dependency) is expected


def test_a_singleton_of_the_same_name(attempt, record):
    """It starts as soon as this job is out of the way, wherever it works."""
    assert goes_on(attempt, record, name="train", dependency="singleton")
    assert goes_on(attempt, record, name="train", dependency="singleton(unfulfilled)")


@pytest.mark.parametrize("state", [JobState.PENDING, JobState.RUNNING])
def test_the_same_name_and_folder(attempt, record, state):
    """The same name in the same folder would write the same checkpoints; each alone does not say so."""
    assert goes_on(attempt, record, name="train", work_dir="/home/alice", state=state)
    assert not goes_on(attempt, record, name="train", state=state)
    assert not goes_on(attempt, record, work_dir="/home/alice", state=state)
    assert not goes_on(attempt, record, {"work_dir": ""}, name="train", work_dir="", state=state)


def test_one_that_waited_and_has_started(attempt, record):
    """Its dependency no longer shows: the job, or a task of the array, that is known to have waited."""
    running = {"name": "eval", "work_dir": "/elsewhere", "state": JobState.RUNNING}
    job, task = record(job_id=8, **running), record(job_id=9, array_job_id=8, array_task_id=1, **running)
    assert successors(attempt(), [job, task], [8]) == (job, task)
    assert not successors(attempt(), [job, task], [7])
    assert not successors(attempt(), [record(job_id=8, user="bob", **running)], [8])


@pytest.mark.parametrize("state", [JobState.COMPLETED, JobState.CANCELLED, JobState.FAILED])
def test_an_ended_job_goes_on_with_nothing(attempt, record, state):
    """Only jobs that wait or run."""
    assert not goes_on(attempt, record, dependency="afterany:7", state=state)


def test_another_users_job_is_none(attempt, record):
    """Whatever it depends on."""
    assert not goes_on(attempt, record, user="bob", dependency="afterany:7", name="train", work_dir="/home/alice")


def test_the_job_itself_is_none(attempt, record):
    """A job is not its own successor."""
    assert not successors(attempt(), [record(state=JobState.PENDING)])


def test_other_parts_of_the_same_job_are_none(attempt, record):
    """Tasks of one array and components of one heterogeneous job share everything and are not successors."""
    like = {"name": "train", "work_dir": "/home/alice"}
    array = {"array_job_id": 6, "array_task_id": 1}
    assert not goes_on(attempt, record, array, **like, array_job_id=6, array_task_id=2)
    assert not goes_on(attempt, record, {"het_job_id": 6, "het_offset": 0}, **like, het_job_id=6, het_offset=1)
    assert goes_on(attempt, record, array, **like, array_job_id=9, array_task_id=2)


@pytest.mark.parametrize("dependency", ["afterany:6_1", "afterany:6_*", "afterany:6", "afterany:7"])
def test_a_job_that_waits_for_an_array_goes_on(attempt, record, dependency):
    """The task by either id, all tasks, or the array."""
    assert goes_on(attempt, record, {"array_job_id": 6, "array_task_id": 1}, dependency=dependency)
    assert not goes_on(attempt, record, {"array_job_id": 6, "array_task_id": 1}, dependency="afterany:6_2")
