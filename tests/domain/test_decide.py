"""What to do about one interruption: a rule each, and the first that fits decides."""

import json
from datetime import timedelta

import pytest

from relight.domain.detectors import Blind
from relight.domain.diagnosis import Action, Category
from relight.domain.evidence import Answer, Interruption
from relight.domain.hands import Hand
from relight.domain.incidents import Outcome
from relight.domain.permits import Act
from relight.domain.plan import Mode, Restart
from relight.domain.policy import EXIT_DO_NOT_REQUEUE, Policy, actions, decide
from relight.domain.slurm import JobFlag, JobState, NodeFlag, NodeState, SlurmFacts

AUTO = Policy(mode=Mode.AUTO)


def test_a_crash_is_requeued(situation, diagnosis):
    """The ordinary case: a requeue, nothing excluded or drained, in the site's mode."""
    verdict = decide(situation(), diagnosis(), AUTO)
    assert verdict.outcome is None
    assert verdict.plan.restart is Restart.REQUEUE
    assert (verdict.plan.cancel, verdict.plan.exclude, verdict.plan.drain) == (False, (), ())
    assert verdict.plan.reason == diagnosis().verdict.summary
    assert (verdict.mode, verdict.policy) == (Mode.AUTO, AUTO)


def test_the_default_mode_only_watches(situation, diagnosis):
    """Without a word from the operator the mode is monitor."""
    assert decide(situation(), diagnosis(), Policy()).mode is Mode.MONITOR


def test_slurms_own_requeue_is_adopted(situation, diagnosis, record):
    """After a lost node Slurm has queued the job itself: no second requeue, and no deadline."""
    again = record(state=JobState.PENDING, restarts=1)
    ended = situation().now - timedelta(days=1)
    plan = decide(situation(record=again, hand=Hand.SLURM, ended_at=ended), diagnosis(), AUTO).plan
    assert (plan.restart, plan.requeue_until) == (Restart.ADOPT, None)


LAUNCH_FAILED = {"reason": "JobHeldUser", "reason_text": "launch failed requeued held"}


@pytest.fixture(scope="session")
def held(record, node, situation):
    """Makes the situation of a job that Slurm holds after a failed prolog on so many nodes, so long ago."""

    def make(nodes=1, ago=timedelta(minutes=1), **fields):
        now = situation().now
        broken = {"flags": {NodeFlag.DRAIN}, "reason": "Prolog error", "reason_time": now - ago}
        names = [node(f"n{i}", **(broken if i <= nodes else {})) for i in range(1, 8)]
        again = record(state=JobState.PENDING, restarts=1, **{**LAUNCH_FAILED, **fields.pop("shown", {})})
        return situation(record=again, hand=Hand.SLURM, nodes=tuple(names), **fields)

    return make


def test_slurms_hold_after_a_failed_launch_is_released(held, diagnosis):
    """Adopted, kept off the node that could not start it, and released."""
    cause = diagnosis(action=Action.RESTART_EXCLUDING_NODE, nodes=("n1",))
    plan = decide(held(), cause, AUTO).plan
    assert (plan.restart, plan.release, plan.exclude) == (Restart.ADOPT, True, ("n1",))


def test_a_job_that_slurm_does_not_hold_is_not_released(held, diagnosis):
    """`nohold_on_prolog_fail`: it starts by itself."""
    plan = decide(held(shown={"reason": "BeginTime", "reason_text": ""}), diagnosis(), AUTO).plan
    assert (plan.restart, plan.release) == (Restart.ADOPT, False)


def test_a_hold_by_another_wins(held, diagnosis):
    """Also over a requeue of Slurm's own."""
    verdict = decide(held(shown={"reason_text": ""}), diagnosis(), AUTO)
    assert (verdict.outcome, verdict.plan.acts) == (Outcome.OVERRIDDEN, False)
    assert "JobHeldUser" in verdict.plan.reason


@pytest.mark.parametrize(
    ("nodes", "ago", "drains", "released"),
    [(1, 1, 0, True), (2, 1, 1, False), (2, 61, 1, True), (3, 1, 3, True), (4, 1, 3, False)],
)
def test_a_broken_prolog_does_not_cost_one_node_after_the_other(held, diagnosis, *, nodes, ago, drains, released):
    """Slurm drains a node for each try: no more of them in an hour than Relight itself may drain, or one."""
    policy = Policy(mode=Mode.AUTO, drains_per_hour=drains)
    verdict = decide(held(nodes, timedelta(minutes=ago)), diagnosis(), policy)
    assert verdict.plan.release is released
    assert verdict.outcome is (None if released else Outcome.STOPPED)


def test_a_held_job_is_released_as_often_as_it_may_be_restarted(held, diagnosis, incident):
    """The job's own budget counts: what Slurm holds does not start by itself."""
    spent = tuple(incident(outcome=Outcome.RESTARTED_NO_PROGRESS) for _ in range(3))
    assert decide(held(earlier=spent[:2]), diagnosis(), AUTO).plan.release
    assert decide(held(earlier=spent), diagnosis(), AUTO).outcome is Outcome.STOPPED


@pytest.mark.parametrize("age", [timedelta(0), timedelta(seconds=240)])
def test_a_requeue_has_a_deadline(situation, diagnosis, age):
    """Slurm forgets an ended job after MinJobAge (300 s); up to a minute before that a requeue is planned."""
    now = situation().now
    plan = decide(situation(ended_at=now - age), diagnosis(), AUTO).plan
    assert plan.restart is Restart.REQUEUE
    assert plan.requeue_until == now - age + timedelta(seconds=240)


def test_after_the_deadline_nothing_is_requeued(situation, diagnosis):
    """Slurm might forget the job between look and write: expired."""
    verdict = decide(situation(ended_at=situation().now - timedelta(seconds=241)), diagnosis(), AUTO)
    assert (verdict.outcome, verdict.plan.restart) == (Outcome.EXPIRED, Restart.NONE)
    assert "MinJobAge" in verdict.plan.reason


def test_a_forgotten_job_has_expired(situation, diagnosis):
    """slurmctld no longer knows the job."""
    verdict = decide(situation(record=None), diagnosis(), AUTO)
    assert (verdict.outcome, verdict.plan.restart) == (Outcome.EXPIRED, Restart.NONE)


@pytest.mark.parametrize("state", [JobState.CANCELLED, JobState.COMPLETED, JobState.PREEMPTED])
def test_what_slurm_or_the_user_ended_is_left_alone(situation, diagnosis, record, state):
    """Slurm would happily resurrect a job that its user cancelled."""
    verdict = decide(situation(record=record(state=state)), diagnosis(), AUTO)
    assert (verdict.outcome, verdict.plan.acts) == (Outcome.OVERRIDDEN, False)


@pytest.mark.parametrize(
    ("kind", "restart"), [(Interruption.HANG, Restart.REQUEUE), (Interruption.CRASH, Restart.NONE)]
)
def test_a_time_limit_is_the_users_unless_the_job_hung_until_it(situation, diagnosis, record, kind, restart):
    """Silent long before its end: a hang, which no more than a living one is restarted without a second witness."""
    verdict = decide(situation(record=record(state=JobState.TIMEOUT), kind=kind), diagnosis(), AUTO)
    assert verdict.plan.restart is restart
    assert verdict.mode is (Mode.APPROVE if kind is Interruption.HANG else Mode.AUTO)


def test_an_unreadable_state_is_not_acted_on(situation, diagnosis, record):
    """Unknown is neither yes nor no."""
    verdict = decide(situation(record=record(state=JobState.UNKNOWN)), diagnosis(), AUTO)
    assert (verdict.outcome, verdict.plan.acts) == (Outcome.FAILED, False)


def test_an_unknown_hand_wins(situation, diagnosis, record):
    """The user or another tool queued it again: watched, not touched."""
    again = record(state=JobState.PENDING, restarts=1)
    verdict = decide(situation(record=again, hand=Hand.UNKNOWN), diagnosis(), AUTO)
    assert (verdict.outcome, verdict.plan.acts) == (Outcome.OVERRIDDEN, False)


def test_a_successor_goes_on(situation, diagnosis):
    """Two jobs would write one checkpoint directory; the reason names the other."""
    verdict = decide(situation(successors=("8", "9_1")), diagnosis(), AUTO)
    assert (verdict.outcome, verdict.plan.acts) == (Outcome.SUCCEEDED_BY, False)
    assert "8, 9_1" in verdict.plan.reason


def test_no_requeue_is_respected(situation, diagnosis, record):
    """`--no-requeue` is the user's word."""
    verdict = decide(situation(record=record(state=JobState.FAILED, requeue=False)), diagnosis(), AUTO)
    assert (verdict.outcome, verdict.plan.acts) == (Outcome.STOPPED, False)
    assert "--no-requeue" in verdict.plan.reason


@pytest.mark.parametrize(("code", "outcome"), [(142, Outcome.OVERRIDDEN), (141, None)])
def test_an_exit_code_for_which_slurm_itself_queues_it_again(situation, diagnosis, record, code, outcome):
    """It shows FAILED until its epilog has ended, and is queued again, or held, then: the site wants it so."""
    facts = SlurmFacts(version="22.05.8", requeue_exit=frozenset({142}))
    said = record(state=JobState.FAILED, exit_code=code)
    assert decide(situation(record=said, facts=facts), diagnosis(), AUTO).outcome is outcome


def test_exit_code_93_is_respected(situation, diagnosis, record):
    """The job's own word not to requeue it; its neighbours mean nothing."""
    said = record(state=JobState.FAILED, exit_code=EXIT_DO_NOT_REQUEUE)
    assert decide(situation(record=said), diagnosis(), AUTO).outcome is Outcome.STOPPED
    for code in (92, 94):
        other = record(state=JobState.FAILED, exit_code=code)
        assert decide(situation(record=other), diagnosis(), AUTO).plan.restart is Restart.REQUEUE


def test_a_useless_retry_is_stopped(situation, diagnosis):
    """A cause that would fail the same way again ends the incident, with the cause as its reason."""
    verdict = decide(situation(), diagnosis(action=Action.STOP, summary="A typo in train.py."), AUTO)
    assert (verdict.outcome, verdict.plan.reason) == (Outcome.STOPPED, "A typo in train.py.")


def test_when_nothing_failed_nothing_is_done(situation, diagnosis):
    """Neither a restart nor a drain, whatever else the evidence names."""
    nothing = diagnosis(action=Action.NONE, drain_nodes=("n1",), summary="")
    verdict = decide(situation(), nothing, AUTO)
    assert (verdict.outcome, verdict.plan.acts) == (Outcome.NOT_CONFIRMED, False)


def test_three_attempts_without_progress_stop(situation, diagnosis, incident):
    """The third fruitless restart in a row is the last; two leave one more."""
    fruitless = tuple(incident(outcome=Outcome.RESTARTED_NO_PROGRESS) for _ in range(3))
    assert decide(situation(earlier=fruitless[:2]), diagnosis(), AUTO).plan.restart is Restart.REQUEUE
    verdict = decide(situation(earlier=fruitless), diagnosis(), AUTO)
    assert (verdict.outcome, verdict.plan.acts) == (Outcome.STOPPED, False)
    assert verdict.plan.reason.startswith("3 restarts brought no progress")


@pytest.mark.parametrize("witness", [Answer.NO, Answer.UNKNOWN])
def test_a_hang_without_a_witness_asks_a_person(situation, diagnosis, record, witness):
    """A silent log alone never acts by itself; what is lower already stays lower."""
    hang = situation(kind=Interruption.HANG, record=record(), witness=witness)
    assert decide(hang, diagnosis(), AUTO).mode is Mode.APPROVE
    for mode in (Mode.MONITOR, Mode.APPROVE):
        assert decide(hang, diagnosis(), Policy(mode=mode)).mode is mode


def test_a_hang_with_a_witness_may_be_automatic(situation, diagnosis, record):
    """A second witness lets the site's mode stand."""
    hang = situation(kind=Interruption.HANG, record=record(), witness=Answer.YES)
    verdict = decide(hang, diagnosis(), AUTO)
    assert (verdict.mode, verdict.plan.restart) == (Mode.AUTO, Restart.REQUEUE)


def test_a_hang_that_a_retry_would_not_help_is_cancelled(situation, diagnosis, record):
    """An attempt that still holds its nodes is ended, so that it frees them."""
    hang = situation(kind=Interruption.HANG, record=record(), witness=Answer.YES)
    verdict = decide(hang, diagnosis(action=Action.STOP), AUTO)
    assert verdict.plan.cancel
    assert (verdict.plan.restart, verdict.outcome) == (Restart.NONE, Outcome.STOPPED)


def test_only_the_attempt_itself_is_cancelled(situation, diagnosis, record, now):
    """Slurm's own requeue runs already: that attempt is not the one that was diagnosed."""
    again = record(submit_time=now + timedelta(minutes=1), restarts=1)
    verdict = decide(situation(record=again, hand=Hand.SLURM), diagnosis(action=Action.STOP), AUTO)
    assert not verdict.plan.cancel


def test_an_ended_attempt_is_not_cancelled(situation, diagnosis, record):
    """There is nothing to cancel, also while it completes."""
    ending = record(state=JobState.FAILED, flags={JobFlag.COMPLETING})
    assert not decide(situation(record=ending), diagnosis(action=Action.STOP), AUTO).plan.cancel


def test_a_node_that_a_platform_witness_found_broken_is_drained(situation, diagnosis):
    """Also where the job itself is not restarted: the node is broken for everybody."""
    broken = {"category": Category.GPU, "drain_nodes": ("n2",), "nodes": ("n2",)}
    plan = decide(situation(), diagnosis(action=Action.RESTART_EXCLUDING_NODE, **broken), AUTO).plan
    assert (plan.exclude, plan.drain) == (("n2",), ("n2",))
    stopped = decide(situation(), diagnosis(action=Action.STOP, **broken), AUTO)
    assert (stopped.plan.drain, stopped.outcome) == (("n2",), Outcome.STOPPED)


def test_a_lost_node_that_is_back_is_excluded_not_drained(situation, diagnosis):
    """slurmctld keeps a lost node out by itself; having been away does not condemn one that has returned."""
    lost = diagnosis(
        action=Action.RESTART_EXCLUDING_NODE, signature="SLURM_NODE_FAIL", nodes=("n2",), drain_nodes=("n2",)
    )
    plan = decide(situation(kind=Interruption.NODE_LOST, hand=Hand.SLURM), lost, AUTO).plan
    assert (plan.exclude, plan.drain) == (("n2",), ())


def test_a_node_that_only_the_job_accuses_is_excluded_not_drained(situation, diagnosis):
    """The job's own word keeps a node out of its own retry, and no more."""
    plan = decide(situation(), diagnosis(action=Action.RESTART_EXCLUDING_NODE, nodes=("n2",)), AUTO).plan
    assert (plan.exclude, plan.drain) == (("n2",), ())


@pytest.mark.parametrize(
    ("state", "flags"),
    [(NodeState.IDLE, {NodeFlag.DRAIN}), (NodeState.DOWN, set()), (NodeState.IDLE, {NodeFlag.NOT_RESPONDING})],
)
def test_a_node_that_is_out_already_is_not_drained_again(situation, diagnosis, node, state, flags):
    """Drained by anybody, down, or not responding: nothing to do."""
    nodes = (node("n1"), node("n2", state, flags=flags), node("n3"))
    assert decide(situation(nodes=nodes), diagnosis(drain_nodes=("n2",)), AUTO).plan.drain == ()


def test_a_node_of_another_job_is_not_drained(situation, diagnosis):
    """Only the attempt's own nodes."""
    assert decide(situation(), diagnosis(drain_nodes=("n3",)), AUTO).plan.drain == ()


def test_a_plain_restart_excludes_nothing(situation, diagnosis):
    """Nodes are kept out only where the cause says so."""
    assert decide(situation(), diagnosis(action=Action.RESTART, nodes=("n2",)), AUTO).plan.exclude == ()


def test_exclusions_leave_enough_nodes(situation, diagnosis, node):
    """Of two suspects only the platform-proven one is kept out when three nodes are there, and this is said."""
    suspects = diagnosis(action=Action.RESTART_EXCLUDING_NODE, nodes=("n1", "n2"), drain_nodes=("n2",))
    plan = decide(situation(nodes=tuple(node(f"n{i}") for i in (1, 2, 3))), suspects, AUTO).plan
    assert plan.exclude == ("n2",)
    assert "n1 not excluded: too few nodes" in plan.reason


def test_what_the_user_excludes_does_not_count_as_free(situation, attempt, diagnosis):
    """With n3 and n4 excluded by the user, none of n1 and n2 can be spared."""
    own = attempt(excluded_nodes=("n3", "n4"))
    suspect = diagnosis(action=Action.RESTART_EXCLUDING_NODE, nodes=("n2",))
    assert decide(situation(attempt=own), suspect, AUTO).plan.exclude == ()


def test_drained_and_lost_nodes_do_not_count_as_free(situation, diagnosis, node):
    """Only nodes that Slurm could use replace an excluded one."""
    nodes = (node("n1"), node("n2"), node("n3", flags={NodeFlag.DRAIN}), node("n4", NodeState.DOWN))
    suspect = diagnosis(action=Action.RESTART_EXCLUDING_NODE, nodes=("n2",))
    assert decide(situation(nodes=nodes), suspect, AUTO).plan.exclude == ()


@pytest.mark.parametrize("mode", Mode)
def test_what_is_not_seen_lowers_what_is_dared(situation, diagnosis, mode):
    """Auto becomes approve, and says why; the plan and the other modes stay."""
    blind = (Blind(detector="logs", text="watching logs is overdue since 12:03:00 UTC"),)
    found = decide(situation(blind=blind), diagnosis(), Policy(mode=mode))
    assert found.plan == decide(situation(), diagnosis(), Policy(mode=mode)).plan
    assert found.mode is (Mode.APPROVE if mode is Mode.AUTO else mode)
    assert (found.mode_reason == blind[0].text) is (mode is Mode.AUTO)


def test_no_node_is_drained_while_nodes_are_not_seen(situation, diagnosis):
    """Nobody would see that it is well, or somebody else's; out of the job's own retry it is kept all the same."""
    bad = {"action": Action.RESTART_EXCLUDING_NODE, "nodes": ("n2",), "drain_nodes": ("n2",)}
    assert decide(situation(), diagnosis(**bad), AUTO).plan.drain == ("n2",)
    for name, drained in (("nodes", ()), ("logs", ("n2",))):
        blind = (Blind(detector=name, text=f"watching {name} is blind"),)
        plan = decide(situation(blind=blind), diagnosis(**bad), AUTO).plan
        assert (plan.exclude, plan.drain) == (("n2",), drained)
        assert ("(nothing is drained: watching nodes is blind)" in plan.reason) is (name == "nodes")


BROKEN = {"action": Action.RESTART_EXCLUDING_NODE, "category": Category.GPU, "drain_nodes": ("n2",), "nodes": ("n2",)}


@pytest.mark.parametrize(
    ("modes", "held", "mode"),
    [
        ({}, (Act.RESTART, Act.EXCLUDE, Act.DRAIN), Mode.AUTO),
        ({"drain": "approve"}, (Act.RESTART, Act.EXCLUDE, Act.DRAIN), Mode.APPROVE),
        ({"drain": "monitor"}, (Act.RESTART, Act.EXCLUDE), Mode.AUTO),
        ({"drain": "off"}, (Act.RESTART, Act.EXCLUDE), Mode.AUTO),
        ({"crash.drain": "off", "exclude": "monitor"}, (Act.RESTART,), Mode.AUTO),
        ({"restart": "monitor"}, (Act.RESTART, Act.EXCLUDE, Act.DRAIN), Mode.MONITOR),
        ({"restart": "monitor", "drain": "off"}, (Act.RESTART, Act.EXCLUDE), Mode.MONITOR),
        ({"restart": "off"}, (Act.DRAIN,), Mode.AUTO),
        ({"crash": "off"}, (), Mode.MONITOR),
        ({"hang": "off"}, (Act.RESTART, Act.EXCLUDE, Act.DRAIN), Mode.AUTO),
    ],
)
def test_each_action_goes_as_far_as_it_may(situation, diagnosis, modes, held, mode):
    """What may not be done beside the restart is left out; what is left goes as far as its lowest action may."""
    verdict = decide(situation(), diagnosis(**BROKEN), Policy(mode=Mode.AUTO, modes=modes))
    assert (actions(verdict.plan), verdict.mode) == (held, mode)


def test_what_is_left_out_is_said(situation, diagnosis):
    """With the nodes, and whose word it is."""
    verdict = decide(situation(), diagnosis(**BROKEN), Policy(mode=Mode.AUTO, modes={"drain": "monitor"}))
    assert verdict.plan.reason.endswith("(n2 not drained: the policy says monitor for drain after crash)")


def test_the_mode_says_which_action_it_comes_from(situation, diagnosis):
    """Where that is not the mode of all others."""
    verdict = decide(situation(), diagnosis(**BROKEN), Policy(mode=Mode.AUTO, modes={"drain": "approve"}))
    assert verdict.mode_reason == "cluster policy says approve for drain after crash"
    assert decide(situation(), diagnosis(), AUTO).mode_reason == "cluster policy says auto"


@pytest.mark.parametrize(("running", "outcome"), [(False, Outcome.STOPPED), (True, Outcome.OBSERVED)])
def test_where_restarts_are_off_a_job_is_left_as_it_is(situation, diagnosis, record, running, outcome):
    """Ended, or running: a hung one is not cancelled either, as a retry would help it."""
    look = {"record": record()} if running else {}
    here = situation(kind=Interruption.HANG, witness=Answer.YES, **look)
    verdict = decide(here, diagnosis(), Policy(mode=Mode.AUTO, modes={"hang.restart": "off"}))
    assert (verdict.outcome, verdict.plan.acts) == (outcome, False)
    assert "not restarted: the policy says off for restart after hang" in verdict.plan.reason


def test_slurms_own_requeue_is_left_alone_where_restarts_are_off(situation, diagnosis, record):
    """Neither hurried nor kept off nodes."""
    again = record(state=JobState.PENDING, restarts=1)
    here = situation(record=again, hand=Hand.SLURM, kind=Interruption.NODE_LOST)
    verdict = decide(here, diagnosis(), Policy(mode=Mode.AUTO, modes={"restart": "off"}))
    assert (verdict.outcome, verdict.plan.acts) == (Outcome.OBSERVED, False)


def test_where_stops_are_off_a_hopeless_job_is_left_running(situation, diagnosis, record):
    """And this is said."""
    hang = situation(kind=Interruption.HANG, record=record(), witness=Answer.YES)
    verdict = decide(hang, diagnosis(action=Action.STOP), Policy(mode=Mode.AUTO, modes={"stop": "off"}))
    assert (verdict.outcome, verdict.plan.acts) == (Outcome.OBSERVED, False)
    assert "not cancelled: the policy says off for stop after hang" in verdict.plan.reason


def test_wrong_numbers_drain_nothing(situation, diagnosis, record):
    """The attempt is left running, so are its nodes."""
    here = situation(kind=Interruption.NUMERICS, record=record())
    verdict = decide(here, diagnosis(**BROKEN), AUTO)
    assert (verdict.outcome, verdict.plan.acts) == (Outcome.OBSERVED, False)


def commented(attempt, record, section, **fields):
    """A failed attempt whose comment has Mission Control's section."""
    own = attempt(comment=json.dumps({"APS": section, "other": 1}))
    return {"attempt": own, "record": record(state=JobState.FAILED), **fields}


def test_a_comment_limits_the_requeues(situation, diagnosis, attempt, record):
    """Mission Control's `max_requeue_times`: so many, and no more; 0 is none."""
    one = commented(attempt, record, {"auto_resume_mode": "requeue", "max_requeue_times": 1})
    assert decide(situation(**one, requeues=0), diagnosis(), AUTO).plan.restart is Restart.REQUEUE
    verdict = decide(situation(**one, requeues=1), diagnosis(), AUTO)
    assert (verdict.outcome, verdict.plan.acts) == (Outcome.STOPPED, False)
    assert "max_requeue_times" in verdict.plan.reason
    none = commented(attempt, record, {"max_requeue_times": 0})
    assert decide(situation(**none), diagnosis(), AUTO).outcome is Outcome.STOPPED


def test_a_chain_goes_on_by_itself(situation, diagnosis, attempt, record):
    """Mission Control's `singleton_dependency`: no requeue of ours beside it; Slurm's own is adopted as ever."""
    chained = commented(attempt, record, {"auto_resume_mode": "singleton_dependency"})
    verdict = decide(situation(**chained), diagnosis(), AUTO)
    assert (verdict.outcome, verdict.plan.acts) == (Outcome.STOPPED, False)
    again = {**chained, "record": record(state=JobState.PENDING, restarts=1), "hand": Hand.SLURM}
    assert decide(situation(**again), diagnosis(), AUTO).plan.restart is Restart.ADOPT


def test_what_a_comment_says_wrongly_is_in_the_mode_s_reason(situation, diagnosis, attempt, record):
    """Ignored, and recorded."""
    odd = commented(attempt, record, {"auto_resume_mode": "resubmit"})
    verdict = decide(situation(**odd), diagnosis(), AUTO)
    assert verdict.mode is Mode.AUTO
    assert '"resubmit" is none of requeue, singleton_dependency: ignored' in verdict.mode_reason


def test_a_comment_lowers_every_action(situation, diagnosis, attempt, record):
    """And raises none."""
    own = attempt(comment='{"relight": {"mode": "approve"}}')
    here = {"attempt": own, "record": record(state=JobState.FAILED)}
    verdict = decide(situation(**here), diagnosis(**BROKEN), Policy(mode=Mode.AUTO, modes={"drain": "monitor"}))
    assert (actions(verdict.plan), verdict.mode) == ((Act.RESTART, Act.EXCLUDE), Mode.APPROVE)
    assert verdict.mode_reason == "cluster policy says auto, the job's comment approve"
    assert decide(situation(**here), diagnosis(), Policy()).mode is Mode.MONITOR
