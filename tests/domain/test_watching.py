"""What two reads of Slurm mean: which attempts started, which ended, and which ends are interruptions."""

from datetime import timedelta

import pytest

from relight.domain.evidence import Interruption, Source, Trust
from relight.domain.policy import Hand
from relight.domain.slurm import AccountingRow, JobFlag, JobState, NodeFlag, NodeState
from relight.domain.watching import Ended, alive, compare, ending, lost_nodes, node_down, purged

BAD = [JobState.FAILED, JobState.NODE_FAIL, JobState.BOOT_FAIL, JobState.OUT_OF_MEMORY]
NOBODYS_FAULT = [
    JobState.COMPLETED,
    JobState.CANCELLED,
    JobState.PREEMPTED,
    JobState.TIMEOUT,
    JobState.DEADLINE,
    JobState.PENDING,
    JobState.UNKNOWN,
]


def test_a_running_job_not_yet_known_has_started(record):
    """A RUNNING record without an attempt is a start; pending, set up, completing and ended ones are none."""
    found = compare({}, [record(job_id=1), record(job_id=2, state=JobState.PENDING)], "main")
    assert [job.job_id for job in found.started] == [1]
    for flag in (JobFlag.CONFIGURING, JobFlag.COMPLETING):
        assert not compare({}, [record(flags={flag})], "main").started
    assert not compare({}, [record(state=JobState.FAILED)], "main").started


def test_nothing_changes_while_it_runs(attempt, record):
    """A known attempt whose record still runs has neither started nor ended."""
    old = attempt()
    assert compare({old.key: old}, [record()], "main") == ((), ())


def test_the_same_job_id_on_another_cluster_is_another(attempt, record):
    """Attempts are told apart by cluster."""
    old = attempt()
    assert [job.job_id for job in compare({old.key: old}, [record()], "east").started] == [7]


def test_a_requeue_seen_running_is_an_end_and_a_start(attempt, record, now):
    """A requeue that was over between two reads ends the one attempt and starts the next."""
    old, again = attempt(), record(submit_time=now + timedelta(minutes=1), restarts=1)
    found = compare({old.key: old}, [again], "main")
    assert found.ended == (Ended(old, again),)
    assert found.started == (again,)


def test_an_attempt_without_a_record_has_ended(attempt):
    """slurmctld no longer has it: ended, and the record is None."""
    old = attempt()
    assert compare({old.key: old}, [], "main").ended == (Ended(old, None),)


@pytest.mark.parametrize("state", list(JobState))
def test_alive_by_state(attempt, record, state):
    """Running and suspended attempts hold their nodes; a state that could not be read is no end."""
    expected = state in {JobState.RUNNING, JobState.SUSPENDED, JobState.UNKNOWN}
    assert alive(attempt().key, record(state=state)) is expected


@pytest.mark.parametrize("state", list(JobState))
def test_completing_is_not_alive(attempt, record, state):
    """An attempt that completes has ended, whatever base state shows or is hidden."""
    assert not alive(attempt().key, record(state=state, flags={JobFlag.COMPLETING}))


def test_another_submission_is_not_this_attempt(attempt, record, now):
    """The next attempt of the same job does not keep the last one alive."""
    assert not alive(attempt().key, record(submit_time=now + timedelta(seconds=1)))


@pytest.mark.parametrize("state", BAD)
def test_bad_ends_are_interruptions(attempt, record, now, state):
    """Failures are; a lost node is told from a crash."""
    old = attempt()
    found = ending(Ended(old, record(state=state, exit_code=9, end_time=now)), Hand.NOBODY, (), now)
    assert found is not None
    assert found.kind is (Interruption.NODE_LOST if state is JobState.NODE_FAIL else Interruption.CRASH)
    assert (found.id, found.attempt, found.occurred_at) == (f"{old.key}/ended", old.key, now)
    assert str(state) in found.evidence[0].text
    assert found.evidence[0].source is Source.SLURMCTLD


@pytest.mark.parametrize("state", NOBODYS_FAULT)
def test_other_ends_are_none(attempt, record, now, state):
    """Success, cancelling, preemption, a time limit, and what could not be read are no interruptions."""
    assert ending(Ended(attempt(), record(state=state)), Hand.NOBODY, (), now) is None


@pytest.mark.parametrize("hand", [Hand.RELIGHT, Hand.UNKNOWN])
@pytest.mark.parametrize("state", list(JobState))
def test_a_requeue_by_relight_or_somebody_else_is_none(attempt, record, now, hand, state):
    """Whoever queued it again deals with it."""
    assert ending(Ended(attempt(), record(state=state, restarts=1)), hand, (), now) is None


def test_slurms_own_requeue_is_a_lost_node(attempt, record, node, now):
    """Slurm queues again after a lost node: NODE_FAIL shows nowhere, so the hand and the node tell."""
    lost = node("n2", NodeState.DOWN, flags={NodeFlag.NOT_RESPONDING}, reason="Not responding")
    found = ending(Ended(attempt(), record(state=JobState.PENDING, restarts=1)), Hand.SLURM, (lost,), now)
    assert found is not None
    assert found.kind is Interruption.NODE_LOST
    assert [e.node for e in found.evidence] == [None, "n2"]
    assert all(e.trust is Trust.PLATFORM for e in found.evidence)


def test_a_mass_loss_fits_into_one_detection(attempt, record, node, now):
    """However many nodes are lost at once, the detection stays within what a signal may carry."""
    lost = [node(f"n{i}", NodeState.DOWN, reason="x" * 900) for i in range(500)]
    found = ending(Ended(attempt(), record(state=JobState.NODE_FAIL)), Hand.NOBODY, lost, now)
    assert found is not None
    assert len(found.evidence) == 9


def test_an_end_without_a_record_is_not_judged_here(attempt, now):
    """Without a record nothing is known: accounting is asked instead."""
    assert ending(Ended(attempt(), None), Hand.NOBODY, (), now) is None


@pytest.mark.parametrize("state", list(JobState))
def test_accounting_is_judged_alike(attempt, now, state):
    """For a purged job, accounting's bad ends are interruptions and no others."""
    row = AccountingRow(job_id=7, state=state, submit_time=now, end_time=now)
    found = purged(attempt(), row, now)
    assert (found is not None) is (state in BAD)
    if found is not None:
        assert found.kind is (Interruption.NODE_LOST if state is JobState.NODE_FAIL else Interruption.CRASH)


def test_only_the_attempts_own_lost_nodes_count(attempt, node):
    """Another job's lost node, and a healthy node of this one, are not among them."""
    nodes = [node("n1"), node("n2", NodeState.DOWN), node("n3", NodeState.DOWN)]
    assert [n.name for n in lost_nodes(attempt(), nodes)] == ["n2"]


def test_a_down_node_has_one_detection(attempt, node, now):
    """The same node found down again makes the same id, dated by Slurm's own note."""
    old = attempt()
    down = node("n2", NodeState.DOWN, reason="Not responding", reason_time=now - timedelta(seconds=9))
    first, second = node_down(old, down, now), node_down(old, down, now + timedelta(seconds=2))
    assert first.id == second.id == f"{old.key}/node_lost/n2"
    assert first.occurred_at == now - timedelta(seconds=9)
    assert first.evidence[0].node == "n2"
