"""Who queued a job again, who holds it, and which other job goes on with its work."""

from datetime import timedelta

import pytest

from relight.domain.hands import (
    Cause,
    Hand,
    held_by_another,
    held_by_slurm,
    not_launched_on,
    requeue_cause,
    requeued,
    whose_hand,
)
from relight.domain.policy import successors
from relight.domain.slurm import AccountingRow, JobFlag, JobState, NodeFlag, NodeState


def test_requeued_shows_in_submit_time_or_restarts(attempt, record, now):
    """SubmitTime moved, or, while still COMPLETING, the restart count grew."""
    old = attempt(restarts=1)
    assert not requeued(old, record(restarts=1))
    assert requeued(old, record(restarts=2))
    assert requeued(old, record(restarts=1, submit_time=now + timedelta(seconds=1)))


def test_nobody_has_queued_it(attempt, record, node):
    """Without a requeue it is nobody's hand, whatever Relight meant to do and whatever was lost."""
    assert whose_hand(attempt(), record(), [node("n1", NodeState.DOWN)], ours=True) is Hand.NOBODY


LAUNCH_FAILED = {"reason": "JobHeldUser", "reason_text": "launch failed requeued held"}
BY_A_PERSON = {"reason": "JobHeldUser", "reason_text": "job requeued in held state"}
DOWN = {"state": NodeState.DOWN}
DRAINED = {"flags": {NodeFlag.DRAIN}, "reason": "Prolog error"}


@pytest.fixture(scope="session")
def seen(attempt, record, node, now):
    """What is seen of job 7 waiting again: its record's fields, nodes by name, and its row of accounting."""

    def make(fields, nodes, sacct):
        again = record(state=JobState.PENDING, restarts=1, **fields)
        found = [node(name, **{"reason_time": now, **about}) for name, about in nodes.items()]
        row = AccountingRow(job_id=7, state=sacct, submit_time=now, end_time=now) if sacct else None
        return attempt(start_time=now, batch_host="n1"), again, found, row

    return make


@pytest.mark.parametrize(
    ("fields", "nodes", "sacct", "cause"),
    [
        ({}, {"n1": DOWN}, None, Cause.NODE_FAIL),
        ({}, {"n2": {"flags": {NodeFlag.NOT_RESPONDING}}}, None, Cause.NODE_FAIL),
        ({}, {"n1": {}}, JobState.NODE_FAIL, Cause.NODE_FAIL),  # back already: accounting remembers
        ({}, {}, JobState.NODE_FAIL, Cause.NODE_FAIL),
        (BY_A_PERSON, {}, JobState.NODE_FAIL, Cause.NODE_FAIL),  # held since
        ({}, {"n1": DOWN}, JobState.PREEMPTED, Cause.PREEMPTED),
        (LAUNCH_FAILED, {"n2": DRAINED}, JobState.PENDING, Cause.PROLOG_FAILED),
        ({"reason": "BeginTime"}, {"n2": DRAINED}, JobState.PENDING, Cause.PROLOG_FAILED),  # nohold_on_prolog_fail
        (LAUNCH_FAILED, {"n1": {}}, JobState.PENDING, Cause.LAUNCH_FAILED),
        ({"reason": "launch failed requeued held"}, {}, None, Cause.LAUNCH_FAILED),  # as pyslurm tells it
        ({"flags": {JobFlag.LAUNCH_FAILED}}, {}, None, Cause.LAUNCH_FAILED),
        ({}, {"n1": {}}, None, None),
        ({}, {"n3": DOWN}, None, None),
        ({}, {"n1": DOWN}, JobState.PENDING, None),  # a person's requeue, and a node was lost besides
        (BY_A_PERSON, {"n1": DOWN}, None, None),
        ({"flags": {JobFlag.REQUEUE_HOLD}}, {"n1": DOWN}, None, None),
        ({"flags": {JobFlag.SPECIAL_EXIT}}, {"n1": DOWN}, None, None),
        ({}, {"n1": {"flags": {NodeFlag.DRAIN}, "reason": "bad DIMM"}}, JobState.PENDING, None),
    ],
)
def test_for_what_slurm_itself_queues_a_job_again(seen, fields, nodes, sacct, cause):
    """Accounting, the node, or the words of the hold tell; otherwise it is not known to be Slurm's doing."""
    old, again, found, row = seen(fields, nodes, sacct)
    assert requeue_cause(old, again, found, row) is cause
    own = cause not in {None, Cause.PREEMPTED}
    assert whose_hand(old, again, found, ours=False, execution=row) is (Hand.SLURM if own else Hand.UNKNOWN)
    assert whose_hand(old, again, found, ours=True, execution=row) is Hand.RELIGHT


def test_a_row_that_still_shows_it_running_says_nothing(seen, record):
    """Accounting lags behind: the lost node counts meanwhile."""
    old, again, found, _ = seen({}, {"n1": DOWN}, None)
    row = AccountingRow(job_id=7, state=JobState.RUNNING, submit_time=old.key.submit_time)
    assert whose_hand(old, again, found, ours=False, execution=row) is Hand.SLURM


@pytest.mark.parametrize(
    ("fields", "slurms", "others"),
    [
        (LAUNCH_FAILED, True, False),
        ({"reason": "launch_failed_requeued_held"}, True, False),
        ({**LAUNCH_FAILED, "state": JobState.UNKNOWN, "flags": {JobFlag.COMPLETING}}, True, False),  # 22.05
        (BY_A_PERSON, False, True),
        ({"reason": "JobHeldAdmin"}, False, True),
        ({"reason": "JobHeldUser", "reason_text": "burst_buffer/lua: stage-in failed"}, False, True),
        ({"flags": {JobFlag.SPECIAL_EXIT}}, False, True),
        ({"flags": {JobFlag.RESV_DEL_HOLD}}, False, True),
        ({"reason": "BeginTime"}, False, False),
        ({"state": JobState.FAILED, "reason": "JobLaunchFailure"}, False, False),
        ({"state": JobState.RUNNING, "reason": "JobHeldAdmin"}, False, False),  # held once it waits again
    ],
)
def test_whose_hold_it_is(record, fields, slurms, others):
    """Slurm's own after a failed launch; every other is somebody's word."""
    shown = record(**{"state": JobState.PENDING, **fields})
    assert (held_by_slurm(shown), held_by_another(shown)) == (slurms, others)


@pytest.mark.parametrize(
    ("fields", "nodes", "names"),
    [
        (LAUNCH_FAILED, {"n2": DRAINED, "n3": DRAINED}, ("n2",)),
        (LAUNCH_FAILED, {}, ("n1",)),
        ({"reason": "BeginTime"}, {"n2": DRAINED}, ("n2",)),
        ({"reason": "BeginTime"}, {"n2": DOWN}, ()),
    ],
)
def test_where_it_could_not_be_launched(seen, record, fields, nodes, names):
    """On the attempt's nodes whose prolog failed, else on its batch host; nowhere without a requeue."""
    old, again, found, _ = seen(fields, nodes, None)
    assert not_launched_on(old, again, found) == names
    assert not_launched_on(old, record(**fields), found) == not_launched_on(old, None, found) == ()


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
        ("afterburstbuffer:7", True),
        ("afterany:7(unfulfilled)", True),
        ("afterany:7+30(unfulfilled)", True),
        ("afterany:6:7:8", True),
        ("afterok:6,afterany:7", True),
        ("afterok:6?afternotok:7", True),
        ("afterok:7", False),
        ("afterok:7(unfulfilled)", False),
        ("aftercorr:7", False),
        ("anything:7", False),
        ("afterany:x", False),
        ("afterany:77", False),
        ("afterany:17", False),
        ("singleton", False),
        ("", False),
    ],
)
def test_dependencies(attempt, record, dependency, expected):
    """What a failure satisfies makes a successor, what needs success needs the retry; other ids mean nothing."""
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


@pytest.mark.parametrize(
    ("dependencies", "expected"),
    [
        ({8: "afterok:7(failed)"}, set()),
        ({8: "afterok:7(unfulfilled),singleton(unfulfilled)"}, set()),
        ({8: "afterok:7(failed)", 9: "afterany:8(unfulfilled)", 10: "afterok:9"}, set()),
        ({9: "afterany:8(unfulfilled)", 8: "afterok:7"}, set()),
        ({8: "afterok:7?afterany:6"}, {8}),
        ({8: "afterok:7", 9: "afterany:6"}, {9}),
        ({8: "", 9: "afterok:8"}, {8, 9}),
    ],
)
def test_a_chain_of_the_same_script_that_waits_for_success(attempt, record, dependencies, expected):
    """Same name, same folder: what cannot start before this job has succeeded does not go on instead of it."""
    like = {"name": "train", "work_dir": "/home/alice", "state": JobState.PENDING}
    chain = [record(job_id=number, dependency=on, **like) for number, on in dependencies.items()]
    assert {job.job_id for job in successors(attempt(), chain)} == expected


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
