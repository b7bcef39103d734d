"""What people decide and how incidents end is written down; a signed decision is checked for what it says."""

from datetime import timedelta

import pytest

from relight.activities import contracts as c
from relight.clients.ledger import LedgerUnavailableError
from relight.domain.incidents import Outcome, Phase, StepTime
from relight.domain.ledger import Change, RowKind
from relight.domain.plan import Decision, sign

KEY = b"the site's approval key"
YES = Decision(approved=True, digest="a" * 12, by="carol", reason="seen")


@pytest.fixture
async def verify(world, ref):
    """Signs what was said for an incident, at a time, with a key; changes that; checks it for incident i1."""
    (world.folder / "approval.key").write_bytes(KEY)
    attempt = await world.failed()

    async def call(*, incident="i1", said=YES, key=KEY, age=timedelta(0), **changed):
        at = world.clock.now - age
        signed = c.SignedDecision(incident=incident, decision=said, at=at, signature=sign(key, incident, said, at))
        arg = c.VerifyDecisionInput(incident=ref(attempt), signed=signed.model_copy(update=changed))
        return await world.run(world.close.verify_decision, arg)

    return call


async def test_a_genuine_decision(verify):
    """Signed with this site's key, for this incident, just now; also one that was sent over the wire as JSON."""
    assert await verify() == c.SignatureCheck(genuine=True)
    assert (await verify(said=Decision.model_validate_json(YES.model_dump_json()))).genuine


@pytest.mark.parametrize(
    ("fields", "problem"),
    [
        ({"key": b"another key"}, "not of this site's approval key"),
        ({"signature": ""}, "not of this site's approval key"),
        ({"signature": "ü" * 64}, "not of this site's approval key"),
        ({"signature": "0" * 64}, "not of this site's approval key"),
        ({"incident": "i2"}, "another incident"),
        ({"age": timedelta(minutes=10, seconds=1)}, "too long ago"),
        ({"age": timedelta(minutes=-10, seconds=-1)}, "too long ago"),
    ],
    ids=["another key", "none", "not ASCII", "guessed", "another incident", "stale", "from the future"],
)
async def test_forged_stale_and_foreign_decisions(verify, fields, problem):
    """Each is refused with its reason; none makes the activity fail, which would be tried again for ever."""
    check = await verify(**fields)
    assert not check.genuine
    assert problem in check.problem


@pytest.mark.parametrize("change", [{"approved": False}, {"digest": "b" * 12}, {"by": "mallory"}, {"reason": "x"}])
async def test_a_changed_word_is_not_what_was_signed(verify, change):
    """Nothing of the decision can be exchanged under its signature."""
    check = await verify(decision=YES.model_copy(update=change))
    assert "not of this site's approval key" in check.problem


async def test_an_old_decision_within_ten_minutes_is_taken(verify):
    """People take their time."""
    assert (await verify(age=timedelta(minutes=10))).genuine


async def test_a_time_without_a_zone_is_refused(verify, world):
    """It names no moment."""
    assert not (await verify(at=world.clock.now.replace(tzinfo=None))).genuine


async def test_a_time_that_was_not_signed_is_refused(verify, world):
    """A stale decision is not made fresh by writing another time on it."""
    check = await verify(age=timedelta(hours=1), at=world.clock.now)
    assert "not of this site's approval key" in check.problem


async def test_without_a_key_nothing_is_genuine(verify, world):
    """A site that has none cannot check."""
    (world.folder / "approval.key").unlink()
    assert (await verify()).problem == "this site has no approval key"


async def test_decisions_are_written_down_once_each(world, ref, act):
    """Also those that do not count, with why."""
    attempt = await world.failed()
    plan = act(attempt).plan
    no = YES.model_copy(update={"approved": False})
    for decision, counts in ((YES, True), (YES, True), (no, False)):
        arg = c.DecisionInput(
            incident=ref(attempt), plan=plan, decision=decision, counts=counts, remark="" if counts else "too late"
        )
        await world.run(world.close.record_decision, arg)
    rows = await world.rows(RowKind.DECISION)
    assert [(row.body["decision"]["approved"], row.body["counts"], row.body["remark"]) for row in rows] == [
        (True, True, ""),
        (False, False, "too late"),
    ]
    assert {row.body["plan"] for row in rows} == {plan.digest}


async def test_close(world, ref, incident):
    """The outcome stands in the audit trail and in the read model, once however often it is said."""
    attempt = await world.failed()
    await world.ledger.commit(Change(incidents=(incident(ref(attempt), attempt, world.clock.now),)))
    steps = (StepTime(name="detected", at=world.clock.now),)
    arg = c.CloseInput(incident=ref(attempt), outcome=Outcome.RECOVERED, reason="step 101, past 100", steps=steps)
    for _ in range(2):
        await world.run(world.close.close, arg)
    found = await world.ledger.incident("i1")
    assert (found.open, found.phase, found.outcome) == (False, Phase.CLOSED, Outcome.RECOVERED)
    assert (found.closed_at, found.steps, found.outcome_reason) == (world.clock.now, steps, "step 101, past 100")
    assert len(await world.rows(RowKind.CLOSED)) == 1


async def test_an_incident_that_was_never_opened_closes_too(world, ref):
    """Its outcome stands in the audit trail."""
    attempt = await world.failed()
    arg = c.CloseInput(incident=ref(attempt), outcome=Outcome.FAILED, reason="x" * 2000)
    await world.run(world.close.close, arg)
    (row,) = await world.rows(RowKind.CLOSED)
    assert row.body["outcome"] == "failed"


async def test_without_a_ledger_nothing_counts_as_written(world, ref):
    """The activity fails and is tried again."""
    attempt = await world.failed()
    world.ledger.down = True
    with pytest.raises(LedgerUnavailableError):
        await world.run(world.close.close, c.CloseInput(incident=ref(attempt), outcome=Outcome.FAILED, reason="x"))
