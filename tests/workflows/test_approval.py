"""RecoverJob in mode `approve`: whose word counts, for which plan, and until when."""

import asyncio
from datetime import UTC, datetime, timedelta
from functools import partial

import pytest

from relight.activities import contracts as c
from relight.domain.evidence import GOES_ON, Interruption
from relight.domain.incidents import Outcome, Phase
from relight.domain.plan import Decision, Mode

T0 = datetime(2026, 11, 30, 9, 27, 12, tzinfo=UTC)
TRUSTED = {"trust_temporal_ui": True}


def signed(status, *, approved=True, digest=None, by="ada"):
    """A decision on the plan shown, as CLI and console send it."""
    decision = Decision(approved=approved, digest=digest or status.verdict.plan.digest, by=by, reason="looks right")
    return c.SignedDecision(incident=status.incident, decision=decision, at=T0, signature="ab" * 32)


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


async def test_a_signed_decision_approves_even_a_drain(incident, script):
    """The console's and the CLI's way: verified by an activity, answered with what became of it."""
    handle, status = await asked(incident, script, drain=("n2",))
    answer = await handle.execute_update("decide", signed(status), result_type=str)
    assert answer == "counted: approved"
    assert (await handle.result()).outcome is Outcome.RECOVERED
    (recorded,) = script.args(c.RECORD_DECISION)
    assert recorded.counts
    assert recorded.decision.verified
    assert incident.steps()["approved"] == "by ada: looks right"


async def test_a_forged_decision_does_not_count(incident, script):
    """The answer says why, and the incident goes on waiting."""
    script.on(c.VERIFY_DECISION, c.SignatureCheck(genuine=False, problem="signed for another incident"))
    handle, status = await asked(incident, script)
    answer = await handle.execute_update("decide", signed(status), result_type=str)
    assert answer == "not counted: signed for another incident"
    assert (await handle.result()).outcome is Outcome.EXPIRED
    assert script.mutations == []


async def test_a_sender_cannot_call_a_decision_verified(incident, script):
    """Only the check of the signature makes it so."""
    handle, status = await asked(incident, script, policy={})
    await handle.signal("approve", {"digest": status.verdict.plan.digest, "verified": True, "by": "root"})
    assert (await handle.result()).outcome is Outcome.EXPIRED
    assert not script.args(c.RECORD_DECISION)[0].decision.verified


async def test_a_signed_decision_on_another_plan_does_not_count(incident, script):
    """An approval is bound to the digest."""
    handle, status = await asked(incident, script)
    answer = await handle.execute_update("decide", signed(status, digest="f" * 64), result_type=str)
    assert answer.startswith("not counted: digest")
    assert (await handle.result()).outcome is Outcome.EXPIRED


async def test_a_signed_rejection_ends_it(incident, script):
    """The reason given is the outcome's."""
    handle, status = await asked(incident, script)
    answer = await handle.execute_update("decide", signed(status, approved=False), result_type=str)
    assert answer == "counted: rejected"
    result = await handle.result()
    assert (result.outcome, result.reason) == (Outcome.REJECTED, "looks right")


async def test_a_decision_where_none_is_awaited_is_answered(incident, script):
    """In another phase the update says so and checks nothing."""
    hold = script.hold(c.AWAIT_PROGRESS)
    handle = await incident.start()
    await hold.started.wait()
    status = await incident.status(handle)
    answer = await handle.execute_update("decide", signed(status), result_type=str)
    assert answer == "not counted: the incident is verifying, not waiting for approval"
    assert script.args(c.VERIFY_DECISION) == []
    hold.release.set()
    await handle.result()


async def test_of_two_decisions_at_once_one_counts(incident, script, until):
    """Both signatures are being checked when the first decides; the second is told that it is too late."""
    hold = script.hold(c.VERIFY_DECISION)
    handle, status = await asked(incident, script)
    yes = asyncio.create_task(handle.execute_update("decide", signed(status), result_type=str))
    no = asyncio.create_task(handle.execute_update("decide", signed(status, approved=False), result_type=str))
    await until(partial(asyncio.to_thread, script.args, c.VERIFY_DECISION), lambda asked: len(asked) == 2)
    hold.release.set()
    answers = {await yes, await no}
    assert len(answers & {"counted: approved", "counted: rejected"}) == 1
    assert "not counted: too late" in answers
    outcome = (await handle.result()).outcome
    assert outcome is (Outcome.RECOVERED if "counted: approved" in answers else Outcome.REJECTED)
    assert sorted(arg.counts for arg in script.args(c.RECORD_DECISION)) == [False, True]


async def test_a_signature_checked_after_the_end_is_too_late(incident, script):
    """The incident ends while the signature is still being checked: nothing is done, and the answer says so."""
    hold = script.hold(c.VERIFY_DECISION)
    handle, status = await asked(incident, script)
    update = asyncio.create_task(handle.execute_update("decide", signed(status), result_type=str))
    await hold.started.wait()
    await handle.signal("cancel", {"reason": "time is up"})
    assert await update == "not counted: too late"
    assert (await handle.result()).outcome is Outcome.OVERRIDDEN
    assert script.mutations == []


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
    """By bare signal it is in the ledger, by update it is the answer; neither acts."""
    handle, status, hold = await overtaken(incident, script, policy=TRUSTED)
    answer = await handle.execute_update("decide", signed(status), result_type=str)
    assert answer.startswith("not counted: too late, the attempt has crashed meanwhile")
    await handle.signal("approve", {"digest": status.verdict.plan.digest, "reason": "go on"})
    hold.release.set()
    assert (await handle.result()).outcome is Outcome.RECOVERED
    (recorded,) = script.args(c.RECORD_DECISION)
    assert not recorded.counts
    assert recorded.incident.id == status.incident
    assert recorded.remark.startswith("too late, the attempt has crashed meanwhile")
    assert script.args(c.VERIFY_DECISION) == []


async def test_a_signature_under_check_when_it_comes_is_too_late(incident, script):
    """The plan was moot before it was known whose word it is."""
    check = script.hold(c.VERIFY_DECISION)
    script.on(c.PLAN, script.verdict(Mode.APPROVE), script.verdict())
    handle = await incident.start(incident.detection("first", Interruption.HANG))
    status = await incident.waiting(handle)
    update = asyncio.create_task(handle.execute_update("decide", signed(status), result_type=str))
    await check.started.wait()
    await handle.signal("evidence", incident.detection("second"))
    assert (await update).startswith("not counted: too late, the attempt has crashed meanwhile")
    assert (await handle.result()).outcome is Outcome.RECOVERED
    assert [arg.counts for arg in script.args(c.RECORD_DECISION)] == [False]


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


async def test_a_plan_that_is_too_late_already_expires_at_once(incident, script):
    """A deadline that has passed waits for nobody."""
    script.on(c.PLAN, script.verdict(Mode.APPROVE, requeue_until=T0 - timedelta(days=3650)))
    assert (await incident.run()).outcome is Outcome.EXPIRED


async def test_what_a_person_waits_with_is_in_the_status(incident, script):
    """Phase, verdict and the time until which a decision counts."""
    handle, status = await asked(incident, script)
    assert (status.phase, status.verdict.mode) == (Phase.WAITING, Mode.APPROVE)
    assert status.decide_until is not None
    await handle.signal("reject", {})
    assert (await handle.result()).reason == "rejected without a reason"
