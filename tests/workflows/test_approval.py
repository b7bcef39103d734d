"""RecoverJob in mode `approve`: whose word counts, for which plan, and until when."""

import asyncio
from datetime import UTC, datetime, timedelta

import pytest
from temporalio.client import WorkflowUpdateFailedError

from relight.activities import contracts as c
from relight.domain.approvals import Approval, Request
from relight.domain.evidence import GOES_ON, Interruption
from relight.domain.incidents import Outcome, Phase
from relight.domain.plan import Mode
from relight.workflows.story import tell

from .conftest import signed_by

T0 = datetime(2026, 11, 30, 9, 27, 12, tzinfo=UTC)
HOUR = timedelta(hours=1)
TRUSTED = {"trust_temporal_ui": True}


async def asked(incident, script, **verdict):
    """Start an incident that waits for a person."""
    script.on(c.PLAN, script.verdict(Mode.APPROVE, **verdict))
    handle = await incident.start()
    return handle, await incident.waiting(handle)


def remarks(script):
    """Why decisions did not count, in order; empty for one that did."""
    return [arg.remark for arg in script.args(c.RECORD_DECISION)]


# --- by signal ------------------------------------------------------------------------------------------------------


async def test_a_bare_signal_approves_a_restart_where_the_site_trusts_it(incident, script):
    """The first eight digits of the digest and a reason, typed into the Temporal web UI."""
    handle, status = await asked(incident, script, policy=TRUSTED, exclude=("n2",))
    assert script.mutations == []
    await handle.signal("approve", {"digest": status.verdict.plan.digest[:8], "reason": "go on"})
    assert (await handle.result()).outcome is Outcome.RECOVERED
    (recorded,) = script.args(c.RECORD_DECISION)
    assert recorded.counts
    assert not recorded.decision.verified
    assert incident.steps()["approved"] == "by an unverified sender: go on"


@pytest.mark.parametrize(
    ("verdict", "digest", "problem"),
    [
        ({}, None, "this site does not take bare signals"),
        ({"policy": TRUSTED}, "0123456789ab", "is of another plan"),
        ({"policy": TRUSTED}, "0123", "is shorter than 8 digits"),
        ({"policy": TRUSTED}, "", "is shorter than 8 digits"),
        ({"policy": TRUSTED, "drain": ("n2",)}, None, "draining a node or cancelling a job needs a signed decision"),
        ({"policy": TRUSTED, "restart": "none", "cancel": True}, None, "or cancelling a job needs a signed decision"),
    ],
    ids=["not trusted", "another plan", "too short", "empty", "drain", "cancel"],
)
async def test_a_bare_signal_that_does_not_count_is_recorded_and_changes_nothing(
    incident, script, verdict, digest, problem
):
    """The refusal is in the ledger and in the steps, and the incident goes on waiting until it expires."""
    handle, status = await asked(incident, script, **verdict)
    digest = status.verdict.plan.digest if digest is None else digest
    await handle.signal("approve", {"digest": digest, "reason": "go on"})
    assert (await handle.result()).outcome is Outcome.EXPIRED
    assert script.mutations == []
    (remark,) = remarks(script)
    assert problem in remark
    assert problem in incident.steps()["decision not counted"]


async def test_a_refused_signal_does_not_use_up_the_decision(incident, script):
    """A mistyped digest can be corrected."""
    handle, status = await asked(incident, script, policy=TRUSTED)
    await handle.signal("approve", {"digest": "00000000"})
    await handle.signal("approve", {"digest": status.verdict.plan.digest})
    assert (await handle.result()).outcome is Outcome.RECOVERED
    assert [arg.counts for arg in script.args(c.RECORD_DECISION)] == [False, True]


async def test_anybody_may_say_no(incident, script):
    """A rejection proves nothing and needs no digest: it only keeps Relight from acting."""
    handle, _ = await asked(incident, script)
    await handle.signal("reject", {"reason": "the user is debugging"})
    result = await handle.result()
    assert (result.outcome, result.reason) == (Outcome.REJECTED, "the user is debugging")
    assert script.mutations == []
    assert remarks(script) == [""]


async def test_an_approval_before_the_plan_counts_for_nothing(incident, script):
    """What was sent before there was a plan cannot have been about it."""
    script.on(c.PLAN, script.verdict(Mode.APPROVE, policy=TRUSTED))
    hold = script.hold(c.PLAN)
    handle = await incident.start()
    await hold.started.wait()
    await handle.signal("approve", {"digest": script.plan().digest})
    hold.release.set()
    assert (await handle.result()).outcome is Outcome.EXPIRED
    assert script.args(c.RECORD_DECISION) == []


# --- by signed update -----------------------------------------------------------------------------------------------


async def said(handle, status, name="ada", **changes):
    """What the workflow answers to a person's signed decision."""
    decision = signed_by(name, status.approval.request, **changes)
    return await handle.execute_update("decide", decision, result_type=str)


async def test_a_signed_decision_approves_even_a_drain(incident, script):
    """The console's and the CLI's way: verified by the workflow itself, answered with what became of it."""
    handle, status = await asked(incident, script, drain=("n2",))
    assert await said(handle, status) == "counted: approved"
    assert (await handle.result()).outcome is Outcome.RECOVERED
    (recorded,) = script.args(c.RECORD_DECISION)
    assert (recorded.counts, recorded.number, recorded.score) == (True, 1, "1 of 1 approval (ada)")
    assert (recorded.decision.verified, recorded.decision.by) == (True, "ada")
    assert incident.steps()["approved"] == "by ada: looks right"
    assert script.args(c.VERIFY_DECISION) == []


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"name": "mallory"}, "signed with a key of nobody who may approve here"),
        ({"name": "mallory", "key": "ada"}, "the signature is not of the key SHA256:"),
        ({"incident": "i0000000000"}, "signed for another incident"),
        ({"run_id": "another"}, "signed for another incident"),
        ({"digest": "f" * 64}, "is of another plan"),
        ({"at": T0 - timedelta(days=400)}, "too long ago"),
        ({"nonce": ""}, "nonce, name or reason is missing or too long"),
        ({"reason": "x" * 2001}, "nonce, name or reason is missing or too long"),
    ],
    ids=["nobody's key", "forged", "another incident", "another run", "another plan", "stale", "no nonce", "long"],
)
async def test_a_decision_that_proves_nothing_is_recorded_and_changes_nothing(incident, script, changes, problem):
    """The answer says why, and the incident goes on waiting until it expires."""
    handle, status = await asked(incident, script)
    assert problem in (answer := await said(handle, status, **changes))
    assert answer.startswith("not counted: ")
    assert (await handle.result()).outcome is Outcome.EXPIRED
    assert script.mutations == []
    (recorded,) = script.args(c.RECORD_DECISION)
    assert not recorded.counts
    assert problem in recorded.remark
    assert len(recorded.decision.reason) <= 2000


async def test_a_decision_of_60_kb_never_reaches_the_history(incident, script):
    """Refused at the door: fifty of them would be megabytes."""
    handle, status = await asked(incident, script)
    with pytest.raises(WorkflowUpdateFailedError) as refused:
        await said(handle, status, reason="x" * 60_000)
    assert "accepted: at most 20000" in str(refused.value.cause)
    assert await said(handle, status) == "counted: approved"
    assert (await handle.result()).outcome is Outcome.RECOVERED


async def test_a_bare_signal_of_60_kb_is_recorded_in_short(incident, script):
    """A signal cannot be refused at the door."""
    handle, _ = await asked(incident, script)
    await handle.signal("approve", {"digest": "f" * 60_000, "reason": "x" * 60_000})
    assert (await handle.result()).outcome is Outcome.EXPIRED
    (recorded,) = script.args(c.RECORD_DECISION)
    assert len(recorded.model_dump_json()) < 6000


async def test_a_sender_cannot_call_a_decision_verified(incident, script):
    """Only the check of the signature makes it so."""
    handle, status = await asked(incident, script, policy={})
    await handle.signal("approve", {"digest": status.verdict.plan.digest, "verified": True, "by": "root"})
    assert (await handle.result()).outcome is Outcome.EXPIRED
    decision = script.args(c.RECORD_DECISION)[0].decision
    assert (decision.verified, decision.by) == (False, "")


async def test_a_signed_rejection_ends_it(incident, script):
    """The reason given is the outcome's; it needs no quorum, and outweighs an approval."""
    handle, status = await asked(incident, script, policy={"approvers": {"restart": 2}})
    assert await said(handle, status) == "counted: 1 of 2 approvals (ada)"
    assert await said(handle, status, "bob", approved=False, reason="no") == "counted: rejected"
    result = await handle.result()
    assert (result.outcome, result.reason) == (Outcome.REJECTED, "no")


async def test_a_decision_where_none_is_awaited_is_answered(incident, script):
    """Before there is a plan the update says so: there is nothing it could be about."""
    hold = script.hold(c.CONFIRM)
    handle = await incident.start()
    await hold.started.wait()
    request = Request(
        subject="i1", run_id="r", digest="f" * 64, what="", rights=(), asked_at=T0, until=T0, execution_expires=HOUR
    )
    answer = await handle.execute_update("decide", signed_by("ada", request), result_type=str)
    assert answer == "not counted: the incident is confirming, not waiting for approval"
    hold.release.set()
    await handle.result()
    assert script.args(c.RECORD_DECISION) == []


async def test_a_decision_after_the_approval_is_late_and_recorded(incident, script):
    """Also the very decision that counted, sent again: it is known, and counts once."""
    hold = script.hold(c.AWAIT_PROGRESS)
    handle, status = await asked(incident, script)
    assert await said(handle, status) == "counted: approved"
    await hold.started.wait()
    assert await said(handle, status, "bob") == "not counted: too late: the incident is verifying"
    assert await said(handle, status) == "not counted: replayed: this very decision was heard before"
    await handle.signal("reject", {"reason": "stop"})
    hold.release.set()
    assert (await handle.result()).outcome is Outcome.RECOVERED
    recorded = script.args(c.RECORD_DECISION)
    assert [(arg.counts, arg.number) for arg in recorded] == [(True, 1), (False, 2), (False, 3), (False, 4)]


async def test_of_two_decisions_at_once_one_counts(incident, script):
    """The first that arrives; the second is told that it is too late."""
    handle, status = await asked(incident, script)
    answers = set(await asyncio.gather(said(handle, status), said(handle, status, "bob", approved=False)))
    outcome = (await handle.result()).outcome
    counted = {"counted: approved": Outcome.RECOVERED, "counted: rejected": Outcome.REJECTED}
    (first,) = answers & set(counted)
    assert outcome is counted[first]
    assert (answers - {first}).pop().startswith("not counted: too late")
    assert sorted(arg.counts for arg in script.args(c.RECORD_DECISION)) == [False, True]


async def test_nothing_is_done_before_the_decision_is_written_down(incident, script):
    """No ledger, no mutation: the approval counts at once, and is carried out once it stands in the ledger."""
    hold = script.hold(c.RECORD_DECISION)
    handle, status = await asked(incident, script)
    update = asyncio.create_task(said(handle, status))
    await hold.started.wait()
    assert (await incident.status(handle)).approval.over
    assert script.mutations == []
    hold.release.set()
    assert await update == "counted: approved"
    assert (await handle.result()).outcome is Outcome.RECOVERED


# --- several people -------------------------------------------------------------------------------------------------

TWO = {"policy": {"approvers": {"drain": 2}}, "drain": ("n2",)}


async def test_two_different_people_approve_what_needs_two(incident, script):
    """One person twice is one person; the page shows how far it is."""
    handle, status = await asked(incident, script, **TWO)
    assert await said(handle, status) == "counted: 1 of 2 approvals (ada)"
    again = await said(handle, status, nonce="ada-2")
    assert again == "not counted: ada has approved it already: 1 of 2 approvals (ada)"
    assert script.mutations == []
    assert "1 of 2 approvals (ada)" in tell(await incident.status(handle))
    approval = await handle.query("approval", result_type=Approval)
    assert [vote.person for vote in approval.votes] == ["ada"]
    assert await said(handle, status, "bob") == "counted: approved"
    assert (await handle.result()).outcome is Outcome.RECOVERED
    assert incident.steps()["approved"] == "by ada: looks right; by bob: looks right"


async def test_one_of_two_is_not_enough_and_is_escalated(incident, script):
    """Nothing is done on time-out, and what a person must do next stands in the ledger."""
    handle, status = await asked(incident, script, **TWO)
    await said(handle, status)
    result = await handle.result()
    assert (result.outcome, result.reason) == (
        Outcome.EXPIRED,
        "1 of 2 approvals (ada) in time; nothing was done",
    )
    assert script.mutations == []
    (close,) = script.args(c.CLOSE)
    assert f"scontrol requeue {incident.attempt.job_id}" in close.escalate
    assert "Still in service: n2" in close.escalate


async def test_a_plan_that_nobody_can_approve_is_said_at_once(incident, script):
    """Waiting half an hour for people who do not exist helps nobody."""
    script.on(c.PLAN, script.verdict(Mode.APPROVE, drain=("n2",), policy={"approvers": {"drain": 4}}))
    result = await incident.run()
    assert result.outcome is Outcome.EXPIRED
    assert result.reason.startswith("4 people must approve (restart, drain), and only ada, bob, carol may")
    at = {step.name: step.at for step in script.args(c.CLOSE)[0].steps}
    assert at["expired"] - at["planned"] < timedelta(minutes=1)


async def test_who_asked_for_it_does_not_approve_it(incident, script):
    """Somebody else must; the requester may still take it back."""
    handle, status = await asked(incident, script, requested_by="ada")
    assert await said(handle, status) == "not counted: ada asked for it, so somebody else must approve it"
    assert await said(handle, status, approved=False, nonce="2") == "counted: rejected"
    assert (await handle.result()).outcome is Outcome.REJECTED


# --- the second clock -----------------------------------------------------------------------------------------------


async def test_an_approval_is_void_once_it_has_waited_too_long_to_be_carried_out(environment, incident, script, until):
    """It was approved, and then nobody worked: what was right then may not be now."""
    hold = script.hold(c.RECORD_DECISION)
    soon = {"execution_expires": timedelta(seconds=1)}
    handle, status = await asked(incident, script, drain=("n2",), policy=soon)
    update = asyncio.create_task(said(handle, status))
    await hold.started.wait()
    over = (await incident.status(handle)).approval.act_until
    await until(environment.get_current_time, lambda now: now > over)
    hold.release.set()
    await update
    result = await handle.result()
    assert result.outcome is Outcome.EXPIRED
    assert "and nothing had begun by then" in result.reason
    assert script.mutations == []
    assert "scontrol requeue" in script.args(c.CLOSE)[0].escalate


async def test_what_acts_is_told_until_when(incident, script):
    """The activity looks at its own clock: it may have waited for a worker."""
    handle, status = await asked(incident, script)
    await said(handle, status)
    await handle.result()
    (act,) = script.args(c.REQUEUE)
    assert timedelta(minutes=9) < act.approved_until - status.approval.request.asked_at < timedelta(minutes=12)


async def test_in_auto_nothing_expires(incident, script):
    """Nobody had to approve it."""
    await incident.run()
    assert script.args(c.REQUEUE)[0].approved_until is None


# --- a newer finding while the plan waits ---------------------------------------------------------------------------


async def overtaken(incident, script, first=Interruption.HANG, by=Interruption.CRASH, **verdict):
    """A plan for an attempt that still runs waits for a person when another finding comes; the next one is carried out.

    The close of the first incident is held.
    """
    script.on(c.PLAN, script.verdict(Mode.APPROVE, **verdict), script.verdict())
    hold = script.hold(c.CLOSE)
    script.on(c.CLOSE, hold, c.Nothing())
    handle = await incident.start(incident.detection("first", first))
    status = await incident.waiting(handle)
    await handle.signal("evidence", incident.detection("second", by))
    await hold.started.wait()
    return handle, status, hold


@pytest.mark.parametrize("first", sorted(GOES_ON))
@pytest.mark.parametrize("by", [Interruption.CRASH, Interruption.NODE_LOST])
async def test_the_end_of_the_attempt_makes_the_plan_moot(incident, script, first, by):
    """At once, not when the approval expires: its own incident is confirmed, diagnosed and planned for."""
    handle, status, hold = await overtaken(incident, script, first, by)
    hold.release.set()
    assert (await handle.result()).outcome is Outcome.RECOVERED
    before, after = script.args(c.CLOSE)
    assert (before.outcome, after.outcome) == (Outcome.SUPERSEDED, Outcome.RECOVERED)
    assert before.incident.id == status.incident != after.incident.id
    assert before.reason.endswith("meanwhile; see the attempt's next incident")
    steps = {step.name: step for step in before.steps}
    assert steps["overtaken"].text.startswith(f"{by} of job")
    assert steps["superseded"].at - steps["planned"].at < timedelta(minutes=1)
    assert [arg.detection.id for arg in script.args(c.CONFIRM)] == ["first", "second"]


async def test_a_fault_that_explains_a_hang_is_looked_at_first_and_loses_nothing(incident, script):
    """Not confirmed, it leaves the hang as it was: that gets its incident again."""
    no = c.Confirmation(outcome=Outcome.NOT_CONFIRMED, reason="it cannot be told")
    script.on(c.CONFIRM, c.Confirmation(reason="silent"), no, c.Confirmation(reason="silent"))
    handle, _, hold = await overtaken(incident, script, by=Interruption.GPU_FAULT)
    hold.release.set()
    assert (await handle.result()).outcome is Outcome.RECOVERED
    closed = [arg.outcome for arg in script.args(c.CLOSE)]
    assert closed == [Outcome.SUPERSEDED, Outcome.NOT_CONFIRMED, Outcome.RECOVERED]
    assert [arg.detection.id for arg in script.args(c.CONFIRM)] == ["first", "second", "first"]


async def test_more_evidence_of_an_attempt_that_has_ended_changes_nothing(incident, script):
    """The plan for a crash goes on waiting, whatever else is found of it."""
    handle, status = await asked(incident, script, policy=TRUSTED)
    for kind in Interruption:
        await handle.signal("evidence", incident.detection(kind, kind))
    await handle.signal("approve", {"digest": status.verdict.plan.digest})
    assert (await handle.result()).outcome is Outcome.RECOVERED
    assert len(script.args(c.CLOSE)) == 1


async def test_a_crash_while_the_cause_of_a_hang_is_looked_for_is_looked_at_instead(incident, script):
    """Nothing is planned for what no longer is."""
    hold = script.hold(c.DIAGNOSE)
    handle = await incident.start(incident.detection("first", Interruption.HANG))
    await hold.started.wait()
    await handle.signal("evidence", incident.detection("second"))
    assert (await handle.result()).outcome is Outcome.RECOVERED
    assert [arg.outcome for arg in script.args(c.CLOSE)] == [Outcome.SUPERSEDED, Outcome.RECOVERED]
    assert [arg.detection.id for arg in script.args(c.PLAN)] == ["second"]


async def test_a_crash_that_came_while_a_hang_was_confirmed_goes_before_it(incident, script):
    """The look that confirmed the hang was too early to see it."""
    hold = script.hold(c.CONFIRM)
    handle = await incident.start(incident.detection("first", Interruption.HANG))
    await hold.started.wait()
    await handle.signal("evidence", incident.detection("second"))
    hold.release.set()
    assert (await handle.result()).outcome is Outcome.RECOVERED
    assert [arg.detection.id for arg in script.args(c.DIAGNOSE)] == ["second"]


async def test_a_decision_after_it_is_too_late_and_said_so(incident, script):
    """By bare signal or signed, it is in the ledger, and does not act."""
    handle, status, hold = await overtaken(incident, script, policy=TRUSTED)
    answer = await said(handle, status)
    assert answer.startswith("not counted: too late, the attempt has crashed meanwhile")
    await handle.signal("approve", {"digest": status.verdict.plan.digest, "reason": "go on"})
    hold.release.set()
    assert (await handle.result()).outcome is Outcome.RECOVERED
    recorded = script.args(c.RECORD_DECISION)
    assert [arg.counts for arg in recorded] == [False, False]
    assert {arg.incident.id for arg in recorded} == {status.incident}
    assert all(arg.remark.startswith("too late, the attempt has crashed meanwhile") for arg in recorded)


async def test_a_decision_that_counts_before_it_is_carried_out(incident, script):
    """It was about this attempt, and what it lets be done is looked at again right before it is done."""
    hold = script.hold(c.RECORD_DECISION)
    script.on(c.PLAN, script.verdict(Mode.APPROVE, policy=TRUSTED))
    script.on(c.CONFIRM, c.Confirmation(reason="silent"), c.Confirmation(outcome=Outcome.NOT_CONFIRMED, reason="old"))
    handle = await incident.start(incident.detection("first", Interruption.HANG))
    status = await incident.waiting(handle)
    await handle.signal("approve", {"digest": status.verdict.plan.digest})
    await hold.started.wait()
    await handle.signal("evidence", incident.detection("second"))
    hold.release.set()
    await handle.result()
    assert [arg.outcome for arg in script.args(c.CLOSE)] == [Outcome.RECOVERED, Outcome.NOT_CONFIRMED]
    assert [arg.counts for arg in script.args(c.RECORD_DECISION)] == [True]


# --- time -----------------------------------------------------------------------------------------------------------


async def test_nobody_answering_means_no(incident, script):
    """The plan expires after the policy's time, and nothing was done."""
    script.on(c.PLAN, script.verdict(Mode.APPROVE, policy={"approval_expires": timedelta(hours=8)}))
    handle = await incident.start()
    result = await handle.result()
    assert (result.outcome, result.reason) == (Outcome.EXPIRED, "nobody decided in time; nothing was done")
    assert script.mutations == []
    at = {step.name: step.at for step in script.args(c.CLOSE)[0].steps}
    assert timedelta(hours=8) <= at["expired"] - at["planned"] < timedelta(hours=8, minutes=1)


async def test_an_approval_is_bounded_by_what_slurm_remembers(environment, incident, script):
    """After MinJobAge a requeue is impossible: a later yes would be a yes to nothing."""
    deadline = await environment.get_current_time() + timedelta(minutes=4)
    script.on(c.PLAN, script.verdict(Mode.APPROVE, requeue_until=deadline, policy=TRUSTED))
    handle = await incident.start()
    assert (await incident.waiting(handle)).decide_until == deadline
    assert (await handle.result()).outcome is Outcome.EXPIRED
    ended = next(step.at for step in script.args(c.CLOSE)[0].steps if step.name == "expired")
    assert ended - deadline < timedelta(minutes=1)


@pytest.mark.parametrize("left", [timedelta(days=-3650), timedelta(seconds=45)])
async def test_where_slurm_leaves_no_time_to_decide_nobody_is_asked(environment, incident, script, left):
    """What remains is said at once: a person submits it anew."""
    deadline = await environment.get_current_time() + left
    fresh = "relight show i1 --script > job.sh && sbatch --chdir=/home/ada job.sh"
    script.on(c.PLAN, script.verdict(Mode.APPROVE, requeue_until=deadline, fresh=fresh))
    result = await incident.run()
    assert result.outcome is Outcome.EXPIRED
    assert result.reason.startswith("Slurm can requeue the job for ")
    (close,) = script.args(c.CLOSE)
    assert f"submit it anew, as ada: {fresh}" in close.escalate


async def test_what_a_person_waits_with_is_in_the_status(incident, script):
    """Phase, verdict and the time until which a decision counts."""
    handle, status = await asked(incident, script)
    assert (status.phase, status.verdict.mode) == (Phase.WAITING, Mode.APPROVE)
    assert status.decide_until is not None
    await handle.signal("reject", {})
    assert (await handle.result()).reason == "rejected without a reason"
