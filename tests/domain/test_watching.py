"""What two reads of Slurm mean: which attempts started, which ended, and which ran unseen."""

from datetime import timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from relight.domain.evidence import MAX_EVIDENCE_PER_SIGNAL
from relight.domain.slurm import AccountingRow, JobFlag, JobState, NodeState
from relight.domain.watching import (
    Again,
    Ended,
    alive,
    compare,
    flashes,
    lost_nodes,
    missed,
    newest,
    nodes_down,
    over,
)


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
    assert compare({old.key: old}, [record()], "main") == ((), (), ())


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


def test_a_start_that_slurmctld_has_forgotten_is_no_end(attempt, record, now):
    """PENDING again with its own SubmitTime and as many restarts: it is started again, and that is told."""
    old = attempt(start_time=now)
    pending = record(state=JobState.PENDING, nodes=(), start_time=None)
    assert compare({old.key: old}, [pending], "main") == ((), (), ())
    for change in ({"restarts": 1}, {"submit_time": now + timedelta(minutes=1)}):
        queued = pending.model_copy(update=change)
        assert compare({old.key: old}, [queued], "main").ended == (Ended(old, queued),)
    again = record(start_time=now + timedelta(seconds=9), nodes=("n8", "n9"))
    assert compare({old.key: old}, [again], "main") == ((), (), (Again(old, again),))


def test_outputs_that_slurm_tells_later_are_taken_up(attempt, record):
    """A snapshot without them would be blind for as long as the attempt lives."""
    old, told = attempt(stdout=""), record(stdout="/home/alice/7.out")
    assert compare({old.key: old}, [told], "main").again == (Again(old, told),)
    known = attempt(stdout="/home/alice/7.out")
    assert compare({known.key: known}, [record(stdout="")], "main") == ((), (), ())


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


SECOND = timedelta(seconds=1)


def test_a_flash_is_a_bad_end_that_the_last_look_did_not_show(record, now):
    """What was over before is old, other ends are none, and what still completes is looked at again."""
    failed = record(state=JobState.FAILED, end_time=now)
    assert flashes([failed], frozenset()) == (failed,)
    assert flashes([failed], over([failed])) == ()
    assert flashes([record(state=JobState.COMPLETED, end_time=now)], frozenset()) == ()
    assert flashes([record(state=JobState.FAILED, end_time=now, flags={JobFlag.COMPLETING})], frozenset()) == ()
    assert flashes([record(state=JobState.FAILED, end_time=now, nodes=())], frozenset()) == ()


def test_the_next_execution_of_a_job_that_was_over_is_another(record, now):
    """It ended before, was queued again, ran and failed between two looks."""
    first = record(state=JobState.FAILED, end_time=now)
    again = record(state=JobState.FAILED, submit_time=now + SECOND, end_time=now + 2 * SECOND, restarts=1)
    assert flashes([again], over([first])) == (again,)


@given(seconds=st.integers(-100_000_000, 100_000_000))
def test_between_two_looks_no_clock_decides(record, now, seconds):
    """Wherever Slurm's clock is set, forward or back, an end that the last look did not show is a flash."""
    at = now + timedelta(seconds=seconds)
    failed = record(state=JobState.FAILED, submit_time=at, end_time=at)
    old = record(job_id=8, state=JobState.FAILED, end_time=now)
    assert flashes([failed, old], over([record(submit_time=at), old])) == (failed,)


def test_after_a_restart_slurms_own_newest_time_is_the_limit(record, now):
    """In whole seconds, so that second itself still counts."""
    ended = [record(job_id=i, state=JobState.FAILED, end_time=now + i * SECOND) for i in (-1, 0, 1)]
    assert [job.job_id for job in flashes(ended, frozenset(), now)] == [0, 1]


def test_the_newest_time_is_no_forecast(record, now):
    """StartTime of a waiting job and EndTime of a running one lie in the future."""
    hour = timedelta(hours=1)
    waiting = record(state=JobState.PENDING, start_time=now + hour)
    running = record(end_time=now + hour)
    ended = record(state=JobState.FAILED, end_time=now + SECOND)
    assert newest([waiting, running]) == now
    assert newest([waiting, running, ended]) == now + SECOND
    assert newest([]) is None


def row(now, number, state=JobState.NODE_FAIL, **fields):
    """An execution that was submitted `number` minutes after the first, and ran for half a minute."""
    at = now + timedelta(minutes=number)
    given = {"submit_time": at, "start_time": at, "end_time": at + timedelta(seconds=30), "nodes": (f"n{number}",)}
    return AccountingRow(job_id=7, state=state, **{**given, **fields})


def test_missed_executions_are_told_apart_and_counted(record, now):
    """Those before the record's own, oldest first, with the restart count that each had."""
    here = record(state=JobState.PENDING, restarts=3, submit_time=now + timedelta(minutes=3), nodes=())
    rows = [row(now, 2, exit_code=1), row(now, 0), row(now, 1), row(now, 3, start_time=None, end_time=None)]
    found = missed(here, rows, after=None, before=here.submit_time)
    assert [(each.restarts, each.nodes, each.exit_code) for each in found] == [
        (0, ("n0",), 0),
        (1, ("n1",), 0),
        (2, ("n2",), 1),
    ]
    assert {each.user for each in found} == {"alice"}
    assert all(each.state is JobState.NODE_FAIL and each.end_time for each in found)


def test_executions_after_the_last_one_known_are_counted_from_it(record, now):
    """When slurmctld has forgotten the job: its last attempt that was seen had one restart."""
    rows = [row(now, number) for number in range(4)]
    found = missed(record(restarts=1), rows, after=now + timedelta(minutes=1), before=None)
    assert [each.restarts for each in found] == [2, 3]


def test_older_rows_than_restarts_are_another_jobs(record, now):
    """It had the same id before."""
    rows = [row(now, number) for number in range(4)]
    found = missed(record(restarts=2), rows, after=None, before=now + timedelta(minutes=9))
    assert [(each.restarts, each.nodes) for each in found] == [(0, ("n2",)), (1, ("n3",))]
    assert missed(record(), rows, after=None, before=now + timedelta(minutes=9)) == ()


def test_an_execution_that_never_ran_is_none(record, now):
    """Cancelled while it waited: without a start."""
    rows = [row(now, 0, JobState.CANCELLED, start_time=None)]
    assert missed(record(restarts=1), rows, after=None, before=now + timedelta(minutes=1)) == ()


def test_only_the_attempts_own_lost_nodes_count(attempt, node):
    """Another job's lost node, and a healthy node of this one, are not among them."""
    nodes = [node("n1"), node("n2", NodeState.DOWN), node("n3", NodeState.DOWN)]
    assert [n.name for n in lost_nodes(attempt(), nodes)] == ["n2"]


def test_a_down_node_has_one_detection(attempt, node, now):
    """The same node found down again makes the same id, dated by Slurm's own note."""
    old = attempt()
    down = node("n2", NodeState.DOWN, reason="Not responding", reason_time=now - timedelta(seconds=9))
    first, second = (nodes_down(old, [down], at) for at in (now, now + timedelta(seconds=2)))
    assert first.id == second.id == f"{old.key}/node_lost/n2"
    assert first.occurred_at == now - timedelta(seconds=9)
    assert first.evidence[0].node == "n2"


def test_nodes_lost_at_once_are_one_detection(attempt, node, now):
    """Named after the first, dated by the earliest, each node a witness; more of them than fit are told in one line."""
    names = tuple(f"n{i}" for i in range(500))
    old = attempt(nodes=names)
    dated = {"n1": timedelta(seconds=9), "n0": timedelta(seconds=3)}
    down = [node(n, NodeState.DOWN, reason_time=now - dated[n] if n in dated else None) for n in names]
    two, many = nodes_down(old, down[:2], now), nodes_down(old, down, now)
    assert two.id == many.id == f"{old.key}/node_lost/n0"
    assert two.occurred_at == now - timedelta(seconds=9)
    assert [e.node for e in two.evidence] == ["n0", "n1"]
    assert len(many.evidence) <= MAX_EVIDENCE_PER_SIGNAL
    assert many.evidence[-1].text.startswith("492 more nodes with them: n8, n9")
