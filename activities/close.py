"""Activities that record what people decided and how an incident ended."""

import hashlib
import hmac
from datetime import timedelta

from temporalio import activity

from relight.activities import contracts as c
from relight.activities.records import row, save
from relight.activities.site import Site
from relight.domain.base import canonical_json
from relight.domain.incidents import Phase
from relight.domain.ledger import Change, RowKind
from relight.domain.plan import sign

SIGNATURE_LASTS = timedelta(minutes=10)


class Close:
    """Decisions and ends of incidents."""

    def __init__(self, site: Site) -> None:
        """Bind to a cluster."""
        self._site = site

    @activity.defn(name=c.RECORD_DECISION.name)
    async def record_decision(self, arg: c.DecisionInput) -> c.Nothing:
        """Write down a person's word, whether or not it counts."""
        digest = hashlib.sha256(canonical_json(arg.decision.model_dump(mode="json")).encode()).hexdigest()[:12]
        body = {
            "decision": arg.decision.model_dump(mode="json"),
            "counts": arg.counts,
            "remark": arg.remark,
            "plan": arg.plan.digest,
        }
        entry = row(self._site, arg.incident, f"decision-{digest}", RowKind.DECISION, body)
        await self._site.ledger.commit(Change(entries=(entry,)))
        return c.Nothing()

    @activity.defn(name=c.VERIFY_DECISION.name)
    async def verify_decision(self, arg: c.VerifyDecisionInput) -> c.SignatureCheck:
        """Check a decision's signature with the site's approval key."""
        path = self._site.approval_key
        if path is None or not path.exists():
            return c.SignatureCheck(genuine=False, problem="this site has no approval key")
        signed = arg.signed
        if signed.incident != arg.incident.id:
            return c.SignatureCheck(genuine=False, problem="signed for another incident")
        # Both come from outside: a time without a zone or a letter beyond ASCII would be tried again for ever.
        if signed.at.tzinfo is None or abs(self._site.clock() - signed.at) > SIGNATURE_LASTS:
            return c.SignatureCheck(genuine=False, problem="signed too long ago")
        expected = sign(path.read_bytes(), signed.incident, signed.decision, signed.at)
        if not hmac.compare_digest(expected.encode(), signed.signature.encode()):
            return c.SignatureCheck(genuine=False, problem="the signature is not of this site's approval key")
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
        await save(self._site, arg.incident, "close", RowKind.CLOSED, body, **update)
        return c.Nothing()
