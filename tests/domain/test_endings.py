"""How executions end: each end told apart by what Slurm shows of it, and only true interruptions reported."""

from datetime import timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from relight.domain.endings import (
    HUNG_UNTIL_LIMIT,
    MEANING,
    End,
    Told,
    another_job,
    describe,
    detection,
    how_ended,
)
from relight.domain.evidence import MAX_EVIDENCE_PER_SIGNAL, Interruption, Source, Trust
from relight.domain.hands import Hand, launch_failed, whose_hand
from relight.domain.slurm import AccountingRow, JobFlag, JobState, NodeFlag, NodeState

MINUTE = timedelta(minutes=1)


@pytest.fixture(scope="session")
def told(attempt, record, now):
    """What is known of job 7's end: its record's fields, and what accounting says as `sacct`."""

    def make(state=JobState.FAILED, *, sacct=None, by="", gone=False, submitted_later=False, **fields):
        known = {name: fields.pop(name) for name in list(fields) if name in Told._fields}
        if submitted_later:
            fields = {"submit_time": now + MINUTE, "restarts": 1, "nodes": (), **fields}
        row = AccountingRow(job_id=7, state=sacct, cancelled_by=by, submit_time=now, end_time=now) if sacct else None
        shown = None if gone else record(state=state, **fields)
        return Told(attempt=attempt(start_time=now), record=shown, execution=row, **known)

    return make


@pytest.fixture(scope="session")
def drained(node, now):
    """A node of job 7's that slurmctld has drained."""

    def make(reason="Prolog error", after=timedelta(seconds=1), name="n2", flags=frozenset({NodeFlag.DRAIN})):
        return node(name, NodeState.IDLE, flags=flags, reason=reason, reason_time=now + after)

    return make


def test_the_table_is_whole():
    """Every end has a meaning, and says where it is from."""
    assert set(MEANING) == set(End)
    assert all(len(meaning.source) > 10 for meaning in MEANING.values())


@pytest.mark.parametrize(
    ("state", "end", "kind"),
    [
        (JobState.COMPLETED, End.COMPLETED, None),
        (JobState.FAILED, End.FAILED, Interruption.CRASH),
        (JobState.OUT_OF_MEMORY, End.OUT_OF_MEMORY, Interruption.CRASH),
        (JobState.NODE_FAIL, End.NODE_FAIL, Interruption.NODE_LOST),
        (JobState.BOOT_FAIL, End.BOOT_FAIL, Interruption.NODE_LOST),
        (JobState.TIMEOUT, End.TIME_LIMIT, None),
        (JobState.DEADLINE, End.DEADLINE, None),
        (JobState.PREEMPTED, End.PREEMPTED, None),
        (JobState.CANCELLED, End.CANCELLED, None),
        (JobState.SUSPENDED, End.UNKNOWN, None),
        (JobState.UNKNOWN, End.UNKNOWN, None),
    ],
)
@pytest.mark.parametrize("gone", [False, True])
def test_each_state(told, now, state, end, kind, *, gone):
    """The same whether slurmctld still has the record or accounting alone remembers."""
    each = told(state, gone=gone, sacct=state)
    found = detection(each, how_ended(each), now)
    assert how_ended(each) is end
    assert (found.kind if found else None) is kind


def test_a_hidden_state_is_accountings(told):
    """22.05 shows COMPLETING alone, and accounting knows it by then."""
    assert how_ended(told(JobState.UNKNOWN, flags={JobFlag.COMPLETING}, sacct=JobState.OUT_OF_MEMORY)) is (
        End.OUT_OF_MEMORY
    )


def test_a_row_that_lags_behind_is_no_end(told):
    """Accounting may still show an attempt running that has ended (seen): then it is not known how."""
    assert how_ended(told(gone=True, sacct=JobState.RUNNING)) is End.UNKNOWN
    assert how_ended(told(gone=True)) is End.UNKNOWN


@pytest.mark.parametrize(
    ("by", "owner", "end"),
    [
        ("999", {"alice", "999"}, End.CANCELLED_BY_OWNER),
        ("alice", (), End.CANCELLED_BY_OWNER),
        ("0", {"alice", "999"}, End.CANCELLED_BY_ROOT),
        ("root", (), End.CANCELLED_BY_ROOT),
        ("64030", {"alice", "999"}, End.CANCELLED_BY_ROOT),
        ("994", {"alice", "999"}, End.CANCELLED_BY_OTHER),
        ("operator", (), End.CANCELLED_BY_OTHER),
        ("994", (), End.CANCELLED),
        ("", {"alice", "999"}, End.CANCELLED),
    ],
)
def test_by_whom_a_job_was_cancelled(told, now, by, owner, end):
    """Owner, root or Slurm itself, another user; an id is nobody's where this machine does not know the owner's."""
    each = told(JobState.CANCELLED, sacct=JobState.CANCELLED, by=by, owner=owner, root={"0", "root", "64030"})
    assert how_ended(each) is end
    assert detection(each, end, now) is None


def test_a_root_who_owns_the_job_is_its_owner(told, attempt):
    """Their own scancel."""
    each = told(JobState.CANCELLED, sacct=JobState.CANCELLED, by="0", owner={"root", "0"})
    assert how_ended(each) is End.CANCELLED_BY_OWNER


@pytest.mark.parametrize(
    ("silent", "end"),
    [(None, End.TIME_LIMIT), (MINUTE, End.TIME_LIMIT), (10 * MINUTE, End.TIME_LIMIT), (11 * MINUTE, End.HUNG)],
)
def test_a_time_limit_after_a_long_silence_is_a_hang(told, silent, end):
    """Not without the silence, and not when it is not known."""
    assert how_ended(told(JobState.TIMEOUT, silent=silent, limit=10 * MINUTE)) is end


def test_a_hang_until_the_limit_says_so(told, now):
    """With the silence as evidence of the job's own, and Slurm's word for the end."""
    each = told(JobState.TIMEOUT, silent=11 * MINUTE, limit=10 * MINUTE, end_time=now)
    found = detection(each, how_ended(each), now)
    assert found.kind is Interruption.HANG
    assert [(e.source, e.signature) for e in found.evidence] == [
        (Source.SLURMCTLD, None),
        (Source.PROGRESS, HUNG_UNTIL_LIMIT),
    ]
    assert "no step for 660 s" in found.evidence[1].text


@given(st.timedeltas())
def test_silence_alone_makes_no_other_end_a_hang(told, silent):
    """Whatever the silence, a cancelled or completed job did not hang, nor did one that failed."""
    for state in set(JobState) - {JobState.TIMEOUT}:
        assert how_ended(told(state, silent=silent, limit=timedelta(0))) is not End.HUNG


@pytest.mark.parametrize(
    ("fields", "end", "kind"),
    [
        ({}, End.REQUEUED, None),
        ({"sacct": JobState.PENDING}, End.REQUEUED, None),  # `sacct` calls it REQUEUED
        ({"sacct": JobState.FAILED}, End.REQUEUED, None),
        ({"sacct": JobState.NODE_FAIL}, End.NODE_FAIL, Interruption.NODE_LOST),
        ({"hand": Hand.RELIGHT, "sacct": JobState.NODE_FAIL}, End.REQUEUED, None),
        ({"sacct": JobState.PREEMPTED}, End.PREEMPTED, None),
        ({"reason": "JobHeldUser"}, End.HELD, None),
        ({"flags": {JobFlag.REQUEUE_HOLD}}, End.HELD, None),
        ({"flags": {JobFlag.SPECIAL_EXIT}, "reason": "JobHeldUser"}, End.SPECIAL_EXIT, None),
        ({"reason": "JobHeldUser", "reason_text": "job requeued in held state"}, End.HELD, None),
        ({"reason_text": "launch failed requeued held"}, End.LAUNCH_FAILED, Interruption.CRASH),
        ({"reason": "launch failed requeued held"}, End.LAUNCH_FAILED, Interruption.CRASH),
        ({"flags": {JobFlag.LAUNCH_FAILED}, "reason": "JobHeldAdmin"}, End.LAUNCH_FAILED, Interruption.CRASH),
        ({"flags": {JobFlag.REVOKED}}, End.REVOKED, None),
    ],
)
def test_each_requeue(told, now, fields, end, kind):
    """By whom and why a job waits again: only a lost node and a failed launch are interruptions."""
    each = told(JobState.PENDING, submitted_later=True, **{"hand": Hand.UNKNOWN, **fields})
    found = detection(each, how_ended(each), now)
    assert how_ended(each) is end
    assert (found.kind if found else None) is kind


def test_the_end_and_the_hand_agree(told, drained):
    """One rule for both: what ended for a cause of Slurm's was queued again by Slurm."""
    ends = {End.NODE_FAIL, End.PROLOG_FAILED, End.LAUNCH_FAILED}
    launch = {"reason": "JobHeldUser", "reason_text": "launch failed requeued held"}
    for sacct in (None, *JobState):
        for fields in ({}, {"nodes": (drained(),)}, launch, {"reason": "JobHeldUser"}):
            each = told(JobState.PENDING, submitted_later=True, hand=Hand.UNKNOWN, sacct=sacct, **fields)
            hand = whose_hand(each.attempt, each.record, each.nodes, ours=False, execution=each.execution)
            assert (hand is Hand.SLURM) is (how_ended(each) in ends), (sacct, fields)


def test_slurms_words_for_it_are_in_the_evidence(told, now):
    """What the code for the reason does not say: a signal by its name, or that the job is held."""
    each = told(exit_signal=53, reason="RaisedSignal", reason_text="RaisedSignal:53(Real-time signal 19)")
    (evidence,) = detection(each, End.FAILED, now).evidence
    assert evidence.text.endswith("restarts 0): RaisedSignal:53(Real-time signal 19)")


def test_a_failed_prolog_names_its_node(told, drained, now):
    """The node that slurmctld drained for it is a platform witness, and lost to this job."""
    each = told(JobState.PENDING, submitted_later=True, hand=Hand.UNKNOWN, nodes=(drained(),), reason="JobHeldUser")
    assert how_ended(each) is End.PROLOG_FAILED
    found = detection(each, End.PROLOG_FAILED, now)
    assert found.kind is Interruption.NODE_LOST
    assert [(e.node, e.trust) for e in found.evidence] == [(None, Trust.PLATFORM), ("n2", Trust.PLATFORM)]


@pytest.mark.parametrize(
    "other",
    [
        {"after": timedelta(seconds=-1)},
        {"name": "n9"},
        {"reason": "bad DIMM"},
        {"flags": frozenset()},
    ],
)
def test_other_drains_are_no_failed_prolog(told, drained, other):
    """From before the attempt, on another job's node, for another reason, or undone since."""
    each = told(JobState.PENDING, submitted_later=True, hand=Hand.UNKNOWN, nodes=(drained(**other),))
    assert how_ended(each) is End.REQUEUED


def test_a_cancelled_job_with_a_failed_prolog_is_cancelled(told, drained):
    """With --no-requeue Slurm cancels it: there is nothing to be undone."""
    each = told(JobState.CANCELLED, sacct=JobState.CANCELLED, by="0", nodes=(drained(),))
    assert how_ended(each) is End.CANCELLED_BY_ROOT


@pytest.mark.parametrize(
    ("reason", "flags", "failed"),
    [
        ("launch failed requeued held", (), True),
        ("launch_failed_requeued_held", (), True),
        ("JobLaunchFailure", (), False),  # of a FAILED job: killed by a signal, a folder that is not there
        ("JobHeldUser", (), False),
        ("", (JobFlag.LAUNCH_FAILED,), True),
    ],
)
def test_what_is_a_failed_launch(record, reason, flags, failed):
    """As commands and JSON of different versions write it."""
    assert launch_failed(record(reason=reason, flags=frozenset(flags))) is failed


def test_a_bad_end_says_what_slurm_says(told, attempt, now):
    """State, exit code and time; the same end found twice has the same id."""
    each = told(exit_code=9, end_time=now - MINUTE)
    first, second = (detection(each, End.FAILED, at) for at in (now, now + MINUTE))
    assert first.id == second.id == f"{attempt().key}/ended"
    assert first.occurred_at == now - MINUTE
    assert "FAILED (exit code 9:0" in first.evidence[0].text
    assert first.evidence[0].source is Source.SLURMCTLD


def test_what_accounting_alone_remembers_is_its_word(told, now):
    """Its time too."""
    found = detection(told(gone=True, sacct=JobState.FAILED), End.FAILED, now + MINUTE)
    assert (found.evidence[0].source, found.occurred_at) == (Source.ACCOUNTING, now)


def test_slurms_own_requeue_names_the_lost_node(told, node, now):
    """Its record shows no time of the end: accounting does."""
    lost = node("n2", NodeState.DOWN, flags={NodeFlag.NOT_RESPONDING}, reason="Not responding")
    each = told(
        JobState.PENDING, submitted_later=True, hand=Hand.SLURM, nodes=(lost, node("n9")), sacct=JobState.NODE_FAIL
    )
    found = detection(each, how_ended(each), now + MINUTE)
    assert [e.node for e in found.evidence] == [None, "n2"]
    assert found.occurred_at == now


def test_a_mass_loss_fits_into_one_detection(attempt, record, node, now):
    """However many nodes are lost at once, the detection stays within what a signal may carry."""
    names = tuple(f"n{i}" for i in range(500))
    lost = tuple(node(name, NodeState.DOWN, reason="x" * 900) for name in names)
    each = Told(attempt=attempt(nodes=names), record=record(state=JobState.NODE_FAIL), nodes=lost)
    found = detection(each, End.NODE_FAIL, now)
    assert len(found.evidence) <= MAX_EVIDENCE_PER_SIGNAL
    assert found.evidence[-1].text.startswith("492 more nodes")


@pytest.mark.parametrize(
    ("fields", "text"),
    [
        ({}, "FAILED, queued again by nobody"),
        ({"state": JobState.TIMEOUT}, "TIMEOUT, queued again by nobody"),
        (
            {"state": JobState.TIMEOUT, "silent": 2 * MINUTE, "limit": MINUTE},
            "TIMEOUT (time limit after a long silence), queued again by nobody",
        ),
        (
            {"state": JobState.CANCELLED, "sacct": JobState.CANCELLED, "by": "994", "owner": {"999"}},
            "CANCELLED (cancelled by another user: uid 994), queued again by nobody",
        ),
        (
            {"state": JobState.PENDING, "submitted_later": True, "hand": Hand.UNKNOWN, "sacct": JobState.PREEMPTED},
            "PENDING (preempted), queued again by unknown",
        ),
        ({"gone": True, "sacct": JobState.NODE_FAIL}, "NODE_FAIL (from accounting)"),
    ],
)
def test_the_end_in_words(told, fields, text):
    """Slurm's state comes first: the console takes it from there."""
    each = told(**fields)
    assert describe(each, how_ended(each)) == text


def test_a_reused_id_is_another_job(attempt, record, now):
    """Another user's, or one that was never restarted so often; a requeue of the same job is none."""
    old = attempt(restarts=1)
    later = now + MINUTE
    assert another_job(old, record(user="bob", submit_time=later, restarts=1))
    assert another_job(old, record(submit_time=later, restarts=0))
    assert another_job(old, record(submit_time=now - MINUTE, restarts=1))
    assert not another_job(old, record(submit_time=later, restarts=2))
    assert not another_job(old, record(restarts=2, flags={JobFlag.COMPLETING}))
