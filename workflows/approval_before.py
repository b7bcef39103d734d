"""Approvals as they were before quorums, for incidents that had begun by then (patch `safe-hands`); then it can go.

One person's word decides, a signature is checked by an activity, and the approval does not expire once given.
"""

from collections.abc import Awaitable, Callable
from datetime import datetime, timedelta

from temporalio import workflow

with workflow.unsafe.imports_passed_through():
    from relight.activities import contracts as c
    from relight.domain.incidents import Outcome
    from relight.domain.plan import Decision, decision_fits
    from relight.domain.policy import Verdict
    from relight.domain.signatures import SignedDecision
    from relight.workflows.approval import Answer, Say
    from relight.workflows.options import MAX_REFUSED, do


class AskingOne:
    """One plan, one decision."""

    approval = None

    def __init__(
        self,
        incident: c.IncidentRef,
        verdict: Verdict,
        until: datetime,
        *,
        waits: Callable[[], bool],
        late: Callable[[], str | None],
        record: Callable[[Decision, str], Awaitable[object]],
    ) -> None:
        """Make ready; `late` is None while a word counts, `record` writes one down with why it does not count."""
        self._waits = waits
        self._incident = incident
        self._verdict = verdict
        self._until = until
        self._late = late
        self._record = record
        self._decision: Decision | None = None
        self._refused = 0

    @property
    def settled(self) -> bool:
        """True once a decision counts."""
        return self._decision is not None

    async def answer(self, called_off: Callable[[], bool]) -> Answer:
        """Wait for a person; nobody answering means no."""
        try:
            await workflow.wait_condition(
                lambda: self._decision is not None or called_off(),
                timeout=max(self._until - workflow.now(), timedelta(0)),
                timeout_summary="approval expires",
            )
        except TimeoutError:
            return Answer(Outcome.EXPIRED, "nobody decided in time; nothing was done")
        decision = self._decision
        if decision is None or not decision.approved:
            return Answer(Outcome.REJECTED, (decision and decision.reason) or "rejected without a reason")
        return Answer(None, f"by {decision.by or 'an unverified sender'}: {decision.reason}")

    async def signed(self, said: SignedDecision) -> str:
        """Let an activity check the signature, then take the decision."""
        if self._decision or not self._waits():
            return f"not counted: {self._late() or 'too late'}"
        arg = c.VerifyDecisionInput(incident=self._incident, signed=said)
        check = await do(c.VERIFY_DECISION, arg, "check signature")
        return await self._take(said.decision.model_copy(update={"verified": check.genuine}), check.problem)

    async def bare(self, said: Say, *, approved: bool) -> None:
        """Take a bare signal."""
        if self._decision is None:
            digest = said.digest or ("" if approved else self._verdict.plan.digest)
            await self._take(Decision(approved=approved, digest=digest, reason=said.reason))

    async def _take(self, decision: Decision, forged: str = "") -> str:
        if self._refused >= MAX_REFUSED:
            return "not counted: too many decisions that do not count"
        late = "too late" if self._decision else self._late()
        weak = forged or decision_fits(decision, self._verdict.plan) or self._weak(decision)
        problem = weak if late is None else late
        if problem is None:
            self._decision = decision
        await self._record(decision, problem or "")
        if problem:
            self._refused += 1
            return f"not counted: {problem}"
        return "counted: " + ("approved" if decision.approved else "rejected")

    def _weak(self, decision: Decision) -> str | None:
        if decision.verified or not decision.approved:
            return None
        if not self._verdict.policy.trust_temporal_ui:
            return "this site does not take bare signals (trust_temporal_ui is false); use `relight approve`"
        if self._verdict.plan.drain or self._verdict.plan.cancel:
            return "draining a node or cancelling a job needs a signed decision; use `relight approve`"
        return None

    def begin(self) -> str:
        """Always: approvals did not expire once given."""
        return ""

    def lapsed(self) -> str:
        """Never."""
        return ""
