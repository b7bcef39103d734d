"""Decisions are judged by what happened afterwards; what nothing tells of is neither right nor wrong."""

from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from relight.domain.attempts import AttemptKey
from relight.domain.endings import End
from relight.domain.evidence import Interruption
from relight.domain.incidents import Outcome
from relight.domain.permits import Permit, Policy
from relight.domain.plan import Mode
from relight.domain.scorecard import (
    WAIT,
    Action,
    Decided,
    Judged,
    NodeSign,
    Sign,
    Try,
    Verdict,
    Work,
    carried_well,
    for_maintenance,
    judge,
)
from relight.domain.scorecard_card import LEAST, Missed, card, wilson

T0 = datetime(2026, 12, 1, tzinfo=UTC)
NOW = T0 + timedelta(days=30)
DRAIN = ((Action.RESTART, ()), (Action.EXCLUDE, ("n3",)), (Action.DRAIN, ("n3",)))


def at(hours):
    return T0 + timedelta(hours=hours)


def key(hours=0.0, job=7):
    return AttemptKey(cluster="main", job_id=job, submit_time=at(hours))


def decided(acts=((Action.RESTART, ()),), **fields):
    told = {
        "incident": "i1",
        "kind": Interruption.CRASH,
        "cause": "CUDA_ECC",
        "at": T0,
        "attempt": key(-1),
        "outcome": Outcome.OBSERVED,
        "acted": False,
        "failed_step": 100,
    }
    return Decided(**{**told, **fields}, acts=acts)


def again(moved, *, failed=False, cause="", nodes=("n1", "n2"), hours=1.0):
    return Try(key(hours), at(hours), frozenset(nodes), moved, failed, cause)


def verdicts(case, tries=(), signs=(), work=(), now=NOW):
    return [each.verdict for each in judge(case, tries, signs, work, now)]


HANG = {"kind": Interruption.HANG, "cause": "HANG"}
STOP = ((Action.STOP, ()),)
LEAVE = ((Action.LEAVE, ()),)


@pytest.mark.parametrize(
    ("case", "tries", "verdict"),
    [
        (decided(), (again(True),), Verdict.RIGHT),
        (decided(), (again(False, failed=True, cause="CUDA_ECC"),), Verdict.WRONG),
        (decided(), (again(False, failed=True, cause="OOM"),), Verdict.UNKNOWN),
        (decided(cause="UNKNOWN"), (again(False, failed=True, cause="UNKNOWN"),), Verdict.UNKNOWN),
        (decided(), (again(None),), Verdict.UNKNOWN),
        (decided(), (), Verdict.UNKNOWN),
        (decided(), (again(True, hours=24 * 8),), Verdict.UNKNOWN),
        (decided(outcome=Outcome.REJECTED), (), Verdict.WRONG),
        (decided(outcome=Outcome.REJECTED), (again(True),), Verdict.RIGHT),
        (decided(**HANG, last_step=140), (), Verdict.WRONG),
        (decided(**HANG, last_step=101), (), Verdict.UNKNOWN),
        (decided(**HANG, end=End.COMPLETED), (), Verdict.WRONG),
        (decided(**HANG, last_step=140, acted=True, outcome=Outcome.RECOVERED), (again(True),), Verdict.RIGHT),
        (decided(kind=Interruption.STRAGGLER, last_step=140), (), Verdict.UNKNOWN),
        (decided(STOP, **HANG, end=End.CANCELLED_BY_OWNER, last_step=100), (), Verdict.RIGHT),
        (decided(STOP, **HANG, end=End.TIME_LIMIT, last_step=100), (), Verdict.RIGHT),
        (decided(STOP, **HANG, last_step=150), (), Verdict.WRONG),
        (decided(STOP, **HANG, end=End.COMPLETED), (), Verdict.WRONG),
        (decided(STOP, **HANG, acted=True, end=End.CANCELLED_BY_OTHER), (), Verdict.UNKNOWN),
        (decided(LEAVE), (again(False, failed=True, cause="CUDA_ECC"),), Verdict.RIGHT),
        (decided(LEAVE), (again(True),), Verdict.WRONG),
        (decided(LEAVE), (), Verdict.UNKNOWN),
    ],
    ids=[
        "passed",
        "failed again the same way",
        "failed of another cause",
        "both not recognised",
        "steps not known",
        "nobody ran it again",
        "ran again much later",
        "a person said no",
        "a person said no, and it would have worked",
        "a hang that went on",
        "a last line that came late",
        "a hang that completed",
        "a hang ended by us",
        "a straggler goes on anyway",
        "its owner cancelled it",
        "the time limit ended it",
        "it went on",
        "it completed",
        "we cancelled it ourselves",
        "left, and failed again",
        "left, and would have gone on",
        "left, and nobody tried",
    ],
)
def test_a_restart_a_stop_and_leaving_it(case, tries, verdict):
    """By the next attempt, and by the attempt itself."""
    assert verdicts(case, tries) == [verdict]


def sign(kind, hours, incident=""):
    return NodeSign("n3", at(hours), kind, "told", incident)


def worked(hours, *, begin=1.0, well=True, job=8):
    return Work("n3", key(begin, job), at(begin), at(begin + hours), well)


@pytest.mark.parametrize(
    ("tries", "signs", "work", "exclude", "drain"),
    [
        ((), (sign(Sign.SET_ASIDE, 3),), (), Verdict.RIGHT, Verdict.RIGHT),
        ((), (sign(Sign.FAULT, 3),), (), Verdict.RIGHT, Verdict.RIGHT),
        ((), (sign(Sign.FAULT, 0.1),), (), Verdict.UNKNOWN, Verdict.UNKNOWN),
        ((), (sign(Sign.IMPLICATED, 3, "i2"),), (worked(30),), Verdict.RIGHT, Verdict.RIGHT),
        ((), (sign(Sign.IMPLICATED, 3, "i1"),), (), Verdict.UNKNOWN, Verdict.UNKNOWN),
        ((), (sign(Sign.SET_ASIDE, 24 * 9),), (), Verdict.UNKNOWN, Verdict.UNKNOWN),
        ((), (sign(Sign.SET_ASIDE, -2),), (), Verdict.UNKNOWN, Verdict.UNKNOWN),
        ((), (), (worked(30),), Verdict.WRONG, Verdict.WRONG),
        ((), (), (worked(30, well=False),), Verdict.UNKNOWN, Verdict.UNKNOWN),
        ((), (), (worked(20), worked(20)), Verdict.UNKNOWN, Verdict.UNKNOWN),
        ((), (sign(Sign.REVERSED, 5, "i1"),), (), Verdict.WRONG, Verdict.WRONG),
        ((again(True, nodes=("n3",)),), (), (), Verdict.WRONG, Verdict.UNKNOWN),
        ((), (), (), Verdict.UNKNOWN, Verdict.UNKNOWN),
    ],
    ids=[
        "set aside by another",
        "a fault of its agent",
        "the same storm of faults",
        "implicated by another incident",
        "its own incident",
        "much later",
        "before",
        "carried a day of work",
        "what it carried failed",
        "overlapping work counts once",
        "put back by a person",
        "the next attempt ran on it",
        "nothing",
    ],
)
def test_a_nodes_fate(tries, signs, work, exclude, drain):
    """What speaks against the node comes before what speaks for it."""
    assert verdicts(decided(DRAIN), tries, signs, work)[1:] == [exclude, drain]


def test_a_node_that_was_drained_is_not_well_because_it_rested():
    """Work after its repair says nothing of the drain."""
    case = decided(DRAIN, acted=True, outcome=Outcome.RECOVERED)
    assert verdicts(case, (again(True),), (), (worked(100),)) == [Verdict.RIGHT, Verdict.WRONG, Verdict.UNKNOWN]


def test_a_retry_on_the_node_that_would_have_been_kept_out_judges_the_exclusion_alone():
    """Whether the restart without it would have worked, nobody knows."""
    failed = again(False, failed=True, cause="CUDA_ECC", nodes=("n3",))
    found = verdicts(decided(DRAIN), (failed,), (sign(Sign.IMPLICATED, 2, "i2"),))
    assert found == [Verdict.UNKNOWN, Verdict.RIGHT, Verdict.RIGHT]


def test_what_may_still_tell_is_not_yet_known():
    """For a week."""
    assert verdicts(decided(), now=T0 + WAIT / 2) == [Verdict.NOT_YET]
    assert verdicts(decided(), now=T0 + WAIT) == [Verdict.UNKNOWN]


@pytest.mark.parametrize(
    ("reason", "maintenance"),
    [("bad GPU", False), ("Kernel upgrade", True), ("", True), ("planned downtime", True), ("Not responding", False)],
)
def test_maintenance_says_nothing_of_a_node(reason, maintenance):
    """Neither does a drain that gives no reason."""
    assert for_maintenance(reason) is maintenance


@given(st.lists(st.tuples(st.floats(-50, 200), st.floats(0, 100)), max_size=8))
def test_work_is_counted_once(spans):
    """However attempts overlap, and never outside the time that is looked at."""
    work = [worked(length, begin=begin, job=8 + number) for number, (begin, length) in enumerate(spans)]
    carried = carried_well("n3", work, T0, at(100), besides=key(-1))
    assert timedelta(0) <= carried <= timedelta(hours=100)
    assert carried <= sum((each.end - each.begin for each in work), timedelta(0)) + timedelta(microseconds=len(work))


def judged(verdict, action=Action.RESTART, node=""):
    return Judged(
        incident="i1",
        kind=Interruption.CRASH,
        action=action,
        node=node,
        at=T0,
        acted=False,
        outcome=Outcome.OBSERVED,
        cause="X",
        verdict=verdict,
        why="",
    )


def the_row(right=0, wrong=0, unknown=0, *, action=Action.RESTART, missed=0, mode=Mode.MONITOR):
    all_ = [judged(Verdict.RIGHT, action, "n1")] * right + [judged(Verdict.WRONG, action, "n2")] * wrong
    all_ += [judged(Verdict.UNKNOWN, action)] * unknown
    lost = [Missed(kind=Interruption.CRASH, action=action, at=T0, attempt=key(), why="")] * missed
    found = card("main", all_, lost, Policy(mode=mode), since=T0, until=NOW)
    return found.rows[0], found.policy


@pytest.mark.parametrize(
    ("counts", "may", "why"),
    [
        ({"right": LEAST}, True, "yes"),
        ({"right": LEAST - 1}, False, "not yet: 19 of 20 decisions"),
        ({"right": LEAST - 1, "unknown": 50}, False, "not yet: 19 of 20 decisions"),
        ({"right": 19, "wrong": 1}, True, "yes"),
        ({"right": 18, "wrong": 2}, False, "no: precision 90% (18 of 20), 95% are needed"),
        ({"right": 200, "wrong": 1, "action": Action.DRAIN}, False, "no: n2 was well, and would have been drained"),
        ({"right": 200, "action": Action.DRAIN}, True, "yes"),
    ],
)
def test_the_gate(counts, may, why):
    """Twenty judged decisions, 95 % of them right, no well node drained. What is not known counts for nothing."""
    row, policy = the_row(**counts)
    assert (row.gate.may, row.gate.why) == (may, why)
    entry = f"    crash.{counts.get('action', 'restart')}: auto"
    assert policy == (("policy:", "  modes:", entry) if may else ())


def test_what_is_auto_and_may_not_be_goes_back():
    """And what is auto and may be stays; too few decisions take nothing back."""
    row, policy = the_row(right=10, wrong=10, mode=Mode.AUTO)
    assert (row.gate.now, policy[-1]) == (Permit.AUTO, "    crash.restart: approve")
    assert the_row(right=30, mode=Mode.AUTO)[1] == ()
    assert the_row(right=3, mode=Mode.AUTO)[1] == ()


def test_leaving_a_job_needs_no_permit():
    """It is judged, and nothing can be allowed or taken back."""
    row, policy = the_row(right=30, action=Action.LEAVE)
    assert (row.gate, row.recall, policy) == (None, None, ())


def test_recall_counts_what_was_missed():
    """Of what should have been decided."""
    row, _ = the_row(right=9, wrong=5, missed=3)
    assert (row.recall.hits, row.recall.of) == (9, 12)
    assert the_row(missed=2)[0].recall.value == 0


@given(st.integers(0, 300), st.integers(1, 300))
def test_wilsons_interval_holds_the_share(hits, more):
    """And lies within 0 to 1; of nothing there is none."""
    rate = wilson(hits, hits + more)
    assert 0 <= rate.low <= rate.value <= rate.high <= 1
    assert wilson(0, 0) is None
    assert wilson(19, 20).low == pytest.approx(0.764, abs=0.001), "worked by hand"
