"""Activities that record what people decided and how an incident ended."""

import hashlib

from temporalio import activity

from relight.activities import contracts as c
from relight.activities.records import row, save
from relight.activities.site import Site
from relight.domain.approvals import SIGNATURE_LASTS
from relight.domain.base import canonical_json
from relight.domain.incidents import Phase
from relight.domain.ledger import Change, RowKind
from relight.domain.signatures import genuine


class Close:
    """Decisions and ends of incidents."""

    def __init__(self, site: Site) -> None:
        """Bind to a cluster."""
        self._site = site

    @activity.defn(name=c.RECORD_DECISION.name)
    async def record_decision(self, arg: c.DecisionInput) -> c.Nothing:
        """Write down a person's word, whether or not it counts; the same word said twice is two rows."""
        said = arg.decision.model_dump(mode="json")
        which = str(arg.number) if arg.number else hashlib.sha256(canonical_json(said).encode()).hexdigest()[:12]
        body = {"decision": said, "counts": arg.counts, "remark": arg.remark, "plan": arg.plan.digest}
        if arg.score:
            body["score"] = arg.score
        if arg.proof:
            body["proof"] = arg.proof.model_dump(mode="json")
        entry = row(self._site, arg.incident, f"decision-{which}", RowKind.DECISION, body)
        await self._site.ledger.commit(Change(entries=(entry,)))
        return c.Nothing()

    @activity.defn(name=c.VERIFY_DECISION.name)
    async def verify_decision(self, arg: c.VerifyDecisionInput) -> c.SignatureCheck:
        """Check a decision's signature, for incidents begun when workflows did not do it themselves."""
        signed = arg.signed
        if signed.incident != arg.incident.id:
            return c.SignatureCheck(genuine=False, problem="signed for another incident")
        if signed.at.tzinfo is None or abs(self._site.clock() - signed.at) > SIGNATURE_LASTS:
            return c.SignatureCheck(genuine=False, problem="signed too long ago")
        if not any(each.key == signed.key and genuine(signed, each.key) for each in self._site.approvers):
            return c.SignatureCheck(genuine=False, problem="the signature is of nobody who may approve here")
        return c.SignatureCheck(genuine=True)

    @activity.defn(name=c.CLOSE.name)
    async def close(self, arg: c.CloseInput) -> c.Nothing:
        """Write down the outcome."""
        body = {
            "outcome": arg.outcome,
            "reason": arg.reason,
            "steps": [step.model_dump(mode="json") for step in arg.steps],
        }
        update = {
            "phase": Phase.CLOSED,
            "outcome": arg.outcome,
            "outcome_reason": arg.reason[:500],
            "closed_at": self._site.clock(),
            "steps": arg.steps,
        }
        if arg.escalate:
            told = {"outcome": arg.outcome, "reason": arg.reason, "next": arg.escalate}
            entry = row(self._site, arg.incident, "escalate", RowKind.ESCALATED, told)
            await self._site.ledger.commit(Change(entries=(entry,)))
        await save(self._site, arg.incident, "close", RowKind.CLOSED, body, **update)
        return c.Nothing()
