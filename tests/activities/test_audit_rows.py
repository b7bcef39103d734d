"""What the activities write into the audit trail is what its check judges by."""

from datetime import timedelta

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from relight.activities import contracts as c
from relight.clients.signing_keys import public_half
from relight.domain.approvals import Approval, DecisionProof, Request, hear_signed
from relight.domain.audit_lives import RESTARTS, Lives, Written
from relight.domain.ledger import RowKind
from relight.domain.plan import Decision
from relight.domain.rights import Approver
from relight.domain.signatures import SignedDecision, signed

KEY = Ed25519PrivateKey.from_private_bytes(b"k" * 32)


async def test_a_decision_that_counts_holds_all_to_judge_it_again(world, ref, act):
    """Request, signature and time come back from the ledger as they went in, and lead to the same word."""
    attempt = await world.failed()
    plan, now, incident = act(attempt).plan, world.clock.now, ref(attempt)
    request = Request(
        subject=incident.id,
        run_id=incident.run_id,
        digest=plan.digest,
        what=plan.describe(),
        rights=("restart",),
        approvers=(Approver(name="carol", key=public_half(KEY)),),
        asked_at=now,
        until=now + timedelta(minutes=30),
        execution_expires=timedelta(minutes=10),
    )
    said = Decision(approved=True, digest=plan.digest, by="carol", reason="seen")
    word = SignedDecision(
        incident=incident.id,
        run_id=incident.run_id,
        decision=said,
        at=now,
        nonce="1",
        key=public_half(KEY),
        signature="",
    )
    heard = hear_signed(Approval(request=request), signed(word, KEY), now)
    arg = c.DecisionInput(
        incident=incident, plan=plan, decision=heard.decision, counts=True, number=1, proof=heard.proof
    )
    await world.run(world.close.record_decision, arg)
    (row,) = await world.rows(RowKind.DECISION)
    proof = DecisionProof.model_validate(row.body["proof"])
    assert proof == heard.proof
    again = hear_signed(Approval(request=proof.request), proof.signed, proof.at)
    assert (again.counts, again.decision) == (True, heard.decision)


async def test_a_requeue_reads_as_a_restart_that_was_meant(world, act):
    """Its intent, and its effect, which says that something was meant."""
    attempt = await world.failed()
    await world.run(world.restart.requeue, act(attempt))
    (intent,), (effect,) = await world.rows(RowKind.INTENT), await world.rows(RowKind.EFFECT)
    assert intent.body["what"] in RESTARTS
    assert effect.body["meant"] is True
    lives, wrong = Lives(), []
    for row in (intent, effect):
        told = row.model_dump(mode="json") | {"body": row.model_dump_json(include={"body"})[8:-1]}
        wrong += lives.see(Written(**{name: told[name] for name in Written._fields}))
    assert [str(each.rule) for each in wrong] == ["plan"]  # of which there is none here


async def test_where_nothing_was_to_be_done_nothing_was_meant(world, act):
    """An effect alone, and no deed without an intent."""
    attempt = await world.failed()
    await world.run(world.restart.cancel, act(attempt))
    (effect,) = await world.rows(RowKind.EFFECT)
    assert effect.body["meant"] is False
    assert await world.rows(RowKind.INTENT) == ()
