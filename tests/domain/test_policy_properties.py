"""What no input whatever may bring about: over the whole space of situations and diagnoses."""

import json
from datetime import timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from relight.domain.diagnosis import Action, Category, Diagnosis, Hypothesis, Implicated
from relight.domain.evidence import Answer, Interruption
from relight.domain.hands import Hand, held_by_another, held_by_slurm
from relight.domain.incidents import Outcome, Phase, may_close
from relight.domain.permits import WHAT, Permit
from relight.domain.plan import Mode, Plan, Restart
from relight.domain.policy import Policy, Verdict, actions, decide, exclusions
from relight.domain.slurm import JobFlag, JobState, NodeFlag, NodeRecord, NodeState, SlurmFacts
from relight.domain.wishes import wishes

POWER = [Mode.MONITOR, Mode.APPROVE, Mode.AUTO]
NAMES = [f"n{i}" for i in range(8)]
SOME_NODES = st.lists(st.sampled_from(NAMES), unique=True, max_size=8).map(tuple)
COMMENTS = (
    st.text(max_size=60)
    | st.sampled_from(["monitor", "approve", "auto", "AUTO", None, 3, [], {}]).map(
        lambda mode: json.dumps({"relight": {"mode": mode}})
    )
    | st.sampled_from(["requeue", "singleton_dependency", "auto", None, 3]).flatmap(
        lambda mode: st.sampled_from([0, 1, 2, -1, "1", None]).map(
            lambda times: json.dumps({"APS": {"auto_resume_mode": mode, "max_requeue_times": times}})
        )
    )
    | st.recursive(
        st.none() | st.booleans() | st.integers() | st.text(max_size=5) | st.sampled_from([*Mode]),
        lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(["relight", "mode"]), inner),
        max_leaves=6,
    ).map(json.dumps)
)
NODES = st.builds(
    lambda states: tuple(
        NodeRecord(name=name, state=state, flags=flags) for name, (state, flags) in zip(NAMES, states, strict=True)
    ),
    st.lists(
        st.tuples(
            st.sampled_from(list(NodeState)),
            st.frozensets(st.sampled_from(list(NodeFlag)), max_size=2),
        ),
        min_size=len(NAMES),
        max_size=len(NAMES),
    ),
)
HYPOTHESES = st.builds(
    Hypothesis,
    signature=st.sampled_from(["CUDA_ECC", "NCCL_TIMEOUT", "UNKNOWN"]),
    category=st.sampled_from(list(Category)),
    action=st.sampled_from(list(Action)),
    action_if_it_repeats=st.sampled_from(list(Action)),
    confidence=st.floats(0, 1),
    implicated=st.builds(Implicated, nodes=SOME_NODES),
    summary=st.text(max_size=20),
    drain_nodes=SOME_NODES,
)
DIAGNOSES = st.builds(Diagnosis, hypotheses=st.lists(HYPOTHESES, min_size=1, max_size=4).map(tuple))
POLICIES = st.builds(
    Policy,
    mode=st.sampled_from(list(Mode)),
    modes=st.dictionaries(st.sampled_from(WHAT), st.sampled_from(list(Permit)), max_size=6),
    attempts_without_progress=st.integers(1, 4),
)


@st.composite
def situations(draw, attempt, record, incident, situation):
    """Any situation: every record state and flag, hand, kind, age, node state, successor and history."""
    excluded, mine = draw(SOME_NODES), draw(SOME_NODES)
    comment = draw(COMMENTS)
    count = draw(st.integers(0, 8))
    own = attempt(nodes=mine, node_count=count, excluded_nodes=excluded, comment=comment)
    found = record(
        nodes=mine,
        state=draw(st.sampled_from(list(JobState))),
        flags=draw(st.frozensets(st.sampled_from(list(JobFlag)), max_size=2)),
        reason=draw(st.sampled_from(["", "BeginTime", "JobHeldUser", "JobHeldAdmin"])),
        reason_text=draw(st.sampled_from(["", "launch failed requeued held", "job requeued in held state"])),
        exit_code=draw(st.sampled_from([0, 1, 93])),
        requeue=draw(st.booleans()),
        restarts=draw(st.integers(0, 1)),
        submit_time=own.key.submit_time + timedelta(minutes=draw(st.integers(0, 1))),
        # Only the snapshot counts: what the comment says now must not matter.
        comment=draw(COMMENTS),
    )
    outcomes = draw(st.lists(st.sampled_from(list(Outcome)), max_size=5))
    ages = st.none() | st.integers(0, 900).map(lambda seconds: own.seen_at + timedelta(seconds=seconds))
    return situation(
        attempt=own,
        kind=draw(st.sampled_from(list(Interruption))),
        record=draw(st.none() | st.just(found)),
        hand=draw(st.sampled_from(list(Hand))),
        facts=SlurmFacts(version="24.11.5"),
        ended_at=draw(ages),
        nodes=draw(NODES),
        successors=draw(st.just(()) | st.just(("8",))),
        earlier=tuple(incident(outcome=outcome) for outcome in outcomes),
        requeues=draw(st.integers(0, 3)),
        witness=draw(st.sampled_from(list(Answer))),
    )


@pytest.fixture(scope="module")
def any_situation(attempt, record, incident, situation):
    """The strategy of all situations."""
    return situations(attempt, record, incident, situation)


@given(st.data(), DIAGNOSES, POLICIES)
def test_decisions_are_safe_whatever_the_input(any_situation, data, diagnosis, policy):
    """A plan drains only nodes that the verdict's platform evidence names, of this attempt, and not out already.

    Every input yields a verdict; it has an outcome exactly where there is no restart; no mode exceeds the site's.
    """
    situation = data.draw(any_situation)
    verdict = decide(situation, diagnosis, policy)
    assert isinstance(verdict, Verdict)
    assert isinstance(verdict.plan, Plan)
    plan, cause = verdict.plan, diagnosis.verdict
    mine = set(situation.attempt.record.nodes)
    out = {n.name for n in situation.nodes if n.draining or n.lost}
    assert set(plan.drain) <= (set(cause.drain_nodes) & mine) - out
    assert set(plan.exclude) <= mine & {*cause.drain_nodes, *cause.implicated.nodes}
    assert plan.attempt == situation.attempt.key
    assert (verdict.outcome is None) is (plan.restart is not Restart.NONE)
    assert POWER.index(verdict.mode) <= POWER.index(policy.ceiling)
    if situation.kind is Interruption.HANG and situation.witness is not Answer.YES:
        assert verdict.mode is not Mode.AUTO


@given(st.data(), DIAGNOSES, POLICIES)
def test_no_action_goes_further_than_it_may(any_situation, data, diagnosis, policy):
    """What is off is not even proposed; the plan's mode is above that of none of its actions, nor of the comment.

    What may only be observed stands in a plan that is only observed; and how it ends is always said.
    """
    situation = data.draw(any_situation)
    verdict = decide(situation, diagnosis, policy)
    held = actions(verdict.plan)
    permits = {act: policy.permit(situation.kind, act) for act in held}
    assert Permit.OFF not in permits.values()
    assert all(list(Permit).index(Permit(verdict.mode)) <= list(Permit).index(each) for each in permits.values())
    asked = wishes(situation.attempt.record.comment)
    assert asked.mode is None or POWER.index(verdict.mode) <= POWER.index(asked.mode)
    if verdict.plan.restart is Restart.REQUEUE:
        assert not asked.chained
        assert asked.most_requeues is None or situation.requeues < asked.most_requeues
    assert verdict.plan.acts is bool(held)
    assert verdict.mode_reason
    assert all(remark in verdict.mode_reason for remark in asked.remarks)
    if verdict.outcome:
        assert may_close(Phase.ACTING if verdict.plan.acts else Phase.PLANNING, verdict.outcome)


@given(st.data(), DIAGNOSES, POLICIES)
def test_nothing_that_others_own_is_restarted_or_cancelled(any_situation, data, diagnosis, policy):
    """No restart of what its owner ended or goes on with; no cancel of anything but the attempt itself."""
    situation = data.draw(any_situation)
    plan = decide(situation, diagnosis, policy).plan
    record = situation.record
    if plan.cancel:
        assert record is not None
        assert record.running
        assert (record.submit_time, record.restarts) == (situation.attempt.key.submit_time, 0)
        assert plan.restart is Restart.NONE
    if plan.restart is Restart.NONE:
        assert not plan.release
        return
    assert record is not None
    assert not held_by_another(record)
    assert plan.release is (held_by_slurm(record) and situation.hand is Hand.SLURM)
    assert not situation.successors
    assert record.exit_code != 93
    assert situation.hand is not Hand.UNKNOWN
    assert (plan.restart is Restart.ADOPT) is (situation.hand is Hand.SLURM)
    if situation.hand is Hand.NOBODY:
        assert record.requeue
        untouched = record.submit_time == situation.attempt.key.submit_time and not record.restarts
        owners = {JobState.CANCELLED, JobState.COMPLETED, JobState.PREEMPTED, JobState.UNKNOWN}
        assert not (untouched and record.state in owners)


@given(st.data(), HYPOTHESES)
def test_exclusions_never_leave_too_few_nodes(any_situation, data, cause):
    """Eligible nodes, less the user's own exclusions and ours, are at least as many as the job needs.

    Where they are too few to begin with, nothing that could run the job is taken away.
    """
    situation = data.draw(any_situation)
    found = exclusions(situation, cause, Policy())
    kept, remark = [e.node for e in found.exclude], found.remark
    own = situation.attempt.record
    free = {n.name for n in situation.nodes if n.eligible} - set(own.excluded_nodes)
    left = free - set(kept)
    assert len(left) >= own.node_count or left == free
    proven = [n for n in cause.drain_nodes if n in own.nodes]
    others = [n for n in cause.implicated.nodes if n in own.nodes and n not in proven]
    if any(n in kept for n in others):
        assert set(proven) <= set(kept), "a node that only the job accuses was kept out before a proven one"
    assert bool(remark) is (cause.action is Action.RESTART_EXCLUDING_NODE and len(kept) < len(proven + others))
