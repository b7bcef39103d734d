"""What people decide and how incidents end is written down; a signed decision is checked for what it says."""

from datetime import datetime, timedelta

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from relight.activities import contracts as c
from relight.clients.ledger import LedgerUnavailableError
from relight.clients.signing_keys import public_half
from relight.domain.incidents import Outcome, Phase, StepTime
from relight.domain.ledger import Change, RowKind
from relight.domain.plan import Decision
from relight.domain.rights import Approver
from relight.domain.signatures import SignedDecision, signed

KEY = Ed25519PrivateKey.from_private_bytes(b"k" * 32)
OTHER = Ed25519PrivateKey.from_private_bytes(b"o" * 32)
YES = Decision(approved=True, digest="a" * 12, by="carol", reason="seen")


@pytest.fixture
async def verify(world, ref):
    """Signs what was said for an incident, at a time, with a key; changes that; checks it for incident i1."""
    object.__setattr__(world.site, "approvers", (Approver(name="carol", key=public_half(KEY)),))
    attempt = await world.failed()

    async def call(*, incident="i1", said=YES, key=KEY, public="", age=timedelta(0), **changed):
        public = public or public_half(key)
        at = world.clock.now - age
        word = signed(SignedDecision(incident=incident, decision=said, at=at, key=public, signature=""), key)
        arg = c.VerifyDecisionInput(incident=ref(attempt), signed=word.model_copy(update=changed))
        return await world.run(world.close.verify_decision, arg)

    return call


async def test_a_genuine_decision(verify):
    """Of somebody listed, for this incident, just now: for incidents begun when workflows did not check it."""
    assert await verify() == c.SignatureCheck(genuine=True)
    assert (await verify(age=timedelta(minutes=10))).genuine


@pytest.mark.parametrize(
    ("fields", "problem"),
    [
        ({"key": OTHER}, "of nobody who may approve here"),
        ({"key": OTHER, "public": public_half(KEY)}, "of nobody who may approve here"),
        ({"signature": ""}, "of nobody who may approve here"),
        ({"decision": YES.model_copy(update={"approved": False})}, "of nobody who may approve here"),
        ({"incident": "i2"}, "another incident"),
        ({"age": timedelta(minutes=10, seconds=1)}, "too long ago"),
        ({"age": timedelta(minutes=-10, seconds=-1)}, "too long ago"),
        ({"at": datetime(2026, 11, 30, 9, 0)}, "too long ago"),  # noqa: DTZ001 - that it has no zone is the point
    ],
    ids=["another key", "forged", "none", "changed", "another incident", "stale", "from the future", "no zone"],
)
async def test_forged_stale_and_foreign_decisions(verify, fields, problem):
    """Each is refused with its reason; none makes the activity fail, which would be tried again for ever."""
    check = await verify(**fields)
    assert not check.genuine
    assert problem in check.problem


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


async def test_a_word_that_is_said_again_is_another_row(world, ref, act):
    """A replay is refused, and that stands in the ledger beside the word that counted."""
    attempt = await world.failed()
    for number, counts in ((1, True), (2, False), (2, False)):
        arg = c.DecisionInput(
            incident=ref(attempt),
            plan=act(attempt).plan,
            decision=YES,
            counts=counts,
            remark="" if counts else "replayed",
            number=number,
            score="1 of 2 approvals (carol)",
        )
        await world.run(world.close.record_decision, arg)
    rows = await world.rows(RowKind.DECISION)
    assert [(row.body["counts"], row.body["score"]) for row in rows] == [
        (True, "1 of 2 approvals (carol)"),
        (False, "1 of 2 approvals (carol)"),
    ]


async def test_what_a_person_must_do_next_stands_in_the_ledger(world, ref):
    """Once, beside the end."""
    attempt = await world.failed()
    arg = c.CloseInput(incident=ref(attempt), outcome=Outcome.EXPIRED, reason="nobody", escalate="scontrol requeue 7")
    for _ in range(2):
        await world.run(world.close.close, arg)
    (row,) = await world.rows(RowKind.ESCALATED)
    assert row.body == {"outcome": "expired", "reason": "nobody", "next": "scontrol requeue 7"}
    assert len(await world.rows(RowKind.CLOSED)) == 1


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
