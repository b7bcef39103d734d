"""Approval of one plan: whose word counts, how many are needed, until when, and that it is used once. Pure.

The rules, and where they come from: docs/approvals.md.
"""

from datetime import datetime, timedelta
from typing import NamedTuple

from relight.domain.base import Value, clip
from relight.domain.plan import Decision, digest_fits
from relight.domain.policy import Verdict
from relight.domain.rights import (
    OF_NODES,
    SITE_KEY,
    Approver,
    Right,
    Weight,
    able,
    fingerprint,
    rights_of,
    vouched,
    weight_of,
)
from relight.domain.signatures import SignedDecision, genuine

SIGNATURE_LASTS = timedelta(minutes=10)
"""How far the time of a signed decision may be from now, either way."""
LEAST_TO_DECIDE = timedelta(seconds=60)
"""Where Slurm leaves a person less than this, nobody is asked."""
MAX_REASON = 2000
MAX_BY = 100
MAX_NONCE = 64
UNVERIFIED = "an unverified sender"


class Request(Value):
    """What people are asked to approve, and by which rules their words are judged. It never changes."""

    subject: str
    """What decisions name: an incident's id, or `node/<name>`."""
    run_id: str
    """The run of the workflow that asks: an approval is never carried over to another."""
    digest: str
    """Of the plan. Another plan is another request."""
    what: str
    """The plan in words."""
    why: str = ""
    rights: tuple[Right, ...]
    needed: int = 1
    """How many different people must approve."""
    approvers: tuple[Approver, ...] = ()
    requested_by: str = ""
    """Who asked for the plan and so may not approve it; empty: Relight proposes it by itself."""
    owner: str = ""
    """The user whose job it is."""
    trust_bare: bool = False
    """Whether a bare signal may approve what is light and needs one approval."""
    asked_at: datetime
    until: datetime
    """When it expires: policy, or the end of what Slurm remembers."""
    deadline: datetime | None = None
    """Until when Slurm can still requeue the ended attempt."""
    execution_expires: timedelta
    """How long after the approval the first action may begin."""

    @property
    def weight(self) -> Weight:
        """Of its heaviest action."""
        return weight_of(self.rights)

    @property
    def takes_bare(self) -> bool:
        """True where a bare signal can be the one approval that is needed."""
        return self.trust_bare and self.weight is Weight.LIGHT and self.needed == 1

    @property
    def able(self) -> tuple[str, ...]:
        """The different people who could approve it; the site's key is one, whoever uses it."""
        names = able(self.approvers, self.rights, self.owner)
        return tuple(name for name in names if name != self.requested_by)


def request_for(verdict: Verdict, subject: str, run_id: str, *, owner: str, now: datetime) -> Request:
    """What people are asked about a verdict of the policy."""
    plan, policy = verdict.plan, verdict.policy
    until = now + policy.approval_expires
    rights = rights_of(plan)
    return Request(
        subject=subject,
        run_id=run_id,
        digest=plan.digest,
        what=plan.describe(),
        why=plan.reason,
        rights=rights,
        needed=policy.approvers_needed(rights),
        approvers=verdict.approvers,
        requested_by=plan.requested_by,
        owner=owner,
        trust_bare=policy.trust_temporal_ui,
        asked_at=now,
        until=min(until, plan.requeue_until) if plan.requeue_until else until,
        deadline=plan.requeue_until,
        execution_expires=policy.execution_expires,
    )


def unanswerable(request: Request) -> str:
    """Why it is no use to ask; empty where it is."""
    left = request.deadline - request.asked_at if request.deadline else LEAST_TO_DECIDE
    if left < LEAST_TO_DECIDE:
        seconds = max(0, int(left.total_seconds()))
        return f"Slurm can requeue the job for {seconds} s only, too little for a person to decide"
    if request.takes_bare or len(request.able) >= request.needed:
        return ""
    who = f"only {', '.join(request.able)} may" if request.able else "nobody may"
    needs = f"{request.needed} people must approve" if request.needed > 1 else "one person must approve"
    return f"{needs} ({', '.join(request.rights)}), and {who}: list approvers in the settings (approvals.approvers)"


class Vote(Value):
    """One person's word that counts."""

    by: str
    """For people: `ada`, or `ada (by the site key)`; empty for a bare signal."""
    person: str
    """Tells people apart: a listed name, the site's key, or that nothing was proven."""
    at: datetime
    reason: str = ""


class Approval(Value):
    """Where the approval of one plan stands."""

    request: Request
    votes: tuple[Vote, ...] = ()
    """Approvals that count, of different people, in the order heard."""
    rejection: Vote | None = None
    approved_at: datetime | None = None
    used_at: datetime | None = None
    nonces: tuple[str, ...] = ()
    """Of signed decisions heard and found genuine."""
    heard: int = 0
    """Words heard in all, whether or not they count."""

    @property
    def over(self) -> bool:
        """True once it is approved or rejected."""
        return self.approved_at is not None or self.rejection is not None

    @property
    def act_until(self) -> datetime | None:
        """When what is approved must have begun; None while it is not approved."""
        return self.approved_at + self.request.execution_expires if self.approved_at else None

    @property
    def score(self) -> str:
        """For example `1 of 2 approvals (ada)`."""
        names = ", ".join(vote.by or UNVERIFIED for vote in self.votes)
        return f"{len(self.votes)} of {plural(self.request.needed)}" + (f" ({names})" if names else "")

    def lapsed(self, now: datetime) -> str:
        """Why nothing may be begun by it now; empty while something may."""
        until = self.act_until
        if until is None or self.rejection:
            return "it is not approved"
        return f"the approval held until {until:%H:%M:%S} UTC, and nothing had begun by then" if now > until else ""


def plural(needed: int) -> str:
    """`1 approval`, `2 approvals`."""
    return f"{needed} approval{'' if needed == 1 else 's'}"


class DecisionProof(Value):
    """All that it takes to judge a counted word again, at any later time, by others: it stands in the ledger."""

    request: Request
    at: datetime
    """When it was heard, by the workflow's clock."""
    signed: SignedDecision | None = None
    """None: a bare signal."""


class Heard(NamedTuple):
    """What became of one word."""

    approval: Approval
    """Where the approval stands now."""
    decision: Decision
    """As it goes into the ledger: `by` is who it was proven to come from, where anything was proven."""
    counts: bool
    remark: str
    """Why it does not count; empty where it does."""
    proof: DecisionProof | None = None
    """Set where it counts."""

    @property
    def answer(self) -> str:
        """For who sent it."""
        if not self.counts:
            return f"not counted: {self.remark}"
        if not self.decision.approved:
            return "counted: rejected"
        return "counted: approved" if self.approval.over else f"counted: {self.approval.score}"


def hear(approval: Approval, said: Decision, now: datetime, *, late: str = "") -> Heard:
    """Judge the word of a bare signal, which proves nothing about its sender.

    Args:
        approval: where the approval stands.
        said: a rejection needs no digest.
        now: the time.
        late: why no word counts any more; empty while words do.
    """
    request = approval.request
    weak = None
    if said.approved:
        weak = digest_fits(said.digest, request.digest) or _too_weak(request)
    decision = _bounded(said.model_copy(update={"by": "", "verified": False}))
    heard = _judged(approval, decision, UNVERIFIED, now, late or _late(approval, now) or weak or "")
    return heard._replace(proof=DecisionProof(request=request, at=now) if heard.counts else None)


def hear_signed(approval: Approval, signed: SignedDecision, now: datetime, *, late: str = "") -> Heard:
    """Judge a signed decision; the arguments are as those of `hear`."""
    approver = next((each for each in approval.request.approvers if each.key == signed.key), None)
    wrong = _unproven(approval.request, signed, approver, now)
    if wrong or approver is None:
        return _judged(approval, _bounded(signed.decision.model_copy(update={"verified": False})), "", now, wrong)
    who = _who(signed, approver)
    decision = _bounded(signed.decision.model_copy(update={"by": who.told, "verified": True}))
    if signed.nonce in approval.nonces:
        return _judged(approval, decision, "", now, "replayed: this very decision was heard before")
    heard = approval.model_copy(update={"nonces": (*approval.nonces, signed.nonce)})
    person = SITE_KEY if approver.site else who.name
    weak = _no_right(approval, who.name, approver, person) if decision.approved else ""
    unfit = digest_fits(signed.decision.digest, approval.request.digest)
    wrong = _not_vouched(approval.request, approver, who.name) or late or _late(approval, now) or unfit or weak
    judged = _judged(heard, decision, person, now, wrong)
    return judged._replace(
        proof=DecisionProof(request=approval.request, at=now, signed=signed) if judged.counts else None
    )


def _judged(approval: Approval, decision: Decision, person: str, now: datetime, wrong: str) -> Heard:
    heard = approval.model_copy(update={"heard": approval.heard + 1})
    if wrong:
        return Heard(heard, decision, counts=False, remark=wrong)
    vote = Vote(by=decision.by, person=person, at=now, reason=decision.reason)
    if not decision.approved:
        return Heard(heard.model_copy(update={"rejection": vote}), decision, counts=True, remark="")
    votes = (*heard.votes, vote)
    enough = len(votes) >= heard.request.needed
    update = {"votes": votes, "approved_at": now if enough else None}
    return Heard(heard.model_copy(update=update), decision, counts=True, remark="")


def _unproven(request: Request, signed: SignedDecision, approver: Approver | None, now: datetime) -> str:
    """Why the decision is not proven to be this person's, about this request, just now."""
    said = signed.decision
    if (signed.incident, signed.run_id) != (request.subject, request.run_id):
        return "signed for another incident"
    if signed.at.tzinfo is None or abs(now - signed.at) > SIGNATURE_LASTS:
        return f"signed at {signed.at:%Y-%m-%d %H:%M:%S %Z}: too long ago, or by a clock that is wrong or has no zone"
    if not 0 < len(signed.nonce) <= MAX_NONCE or len(said.reason) > MAX_REASON or len(said.by) > MAX_BY:
        return f"nonce, name or reason is missing or too long (a reason: {MAX_REASON} characters)"
    if approver is None:
        return "signed with a key of nobody who may approve here"
    return "" if genuine(signed, approver.key) else f"the signature is not of the key {fingerprint(approver.key)}"


def _late(approval: Approval, now: datetime) -> str:
    if approval.rejection:
        return "too late: it was rejected"
    if approval.approved_at:
        return "too late: it was approved"
    return f"too late: it expired at {approval.request.until:%H:%M:%S} UTC" if now >= approval.request.until else ""


def _too_weak(request: Request) -> str:
    """Why a bare signal may not approve this."""
    if not request.trust_bare:
        return "this site does not take bare signals (trust_temporal_ui is false); use `relight approve`"
    if request.weight is not Weight.LIGHT:
        return "draining a node or cancelling a job needs a signed decision; use `relight approve`"
    if request.needed > 1:
        return f"{request.needed} people must approve, and a bare signal proves nobody; use `relight approve`"
    return ""


class _Who(NamedTuple):
    """Whose word a signature is."""

    name: str
    told: str
    """As the ledger has it."""


def _who(signed: SignedDecision, approver: Approver) -> _Who:
    claimed = signed.decision.by
    if approver.site:
        return _Who(_first_word(claimed), f"{clip(claimed, MAX_BY) or 'somebody'} (by {SITE_KEY})")
    if approver.vouches:
        return _Who(claimed, f"{clip(claimed, MAX_BY) or 'somebody'} (signed by {approver.name})")
    return _Who(approver.name, approver.name)


def _not_vouched(request: Request, approver: Approver, name: str) -> str:
    """Why a service's signature stands for nobody here; a no needs its word for the person as a yes does."""
    known = not approver.vouches or name in approver.vouches_for or (approver.owner_may and name == request.owner != "")
    return "" if known else f"the key of {approver.name} does not stand for {clip(name, MAX_NONCE) or 'nobody'}"


def _no_right(approval: Approval, name: str, approver: Approver, person: str) -> str:
    """Why a person's yes does not count, though it is the person's."""
    request = approval.request
    if request.requested_by and name == request.requested_by:
        return f"{name} asked for it, so somebody else must approve it"
    may = vouched(request.approvers, approver, name, request.owner) if approver.vouches else frozenset(approver.may)
    if missing := ", ".join(right for right in request.rights if right not in may):
        through = f" through {approver.name}" if approver.vouches else ""
        return f"{name} may not approve{through}: {missing}"
    if approver.site and name == request.owner and OF_NODES & set(request.rights):
        return f"the job is {name}'s own: nodes are not taken from others on its user's word"
    if any(vote.person == person for vote in approval.votes):
        return f"{person} has approved it already: {approval.score}"
    return ""


def _first_word(by: str) -> str:
    """The Unix user in `ada`, or in `ada (sudo as relight)`."""
    return by.split(" ", 1)[0]


def _bounded(decision: Decision) -> Decision:
    """Small enough for the ledger, whatever was sent."""
    update = {
        "digest": clip(decision.digest, MAX_NONCE),
        "by": clip(decision.by, MAX_BY + len(SITE_KEY) + 10),
        "reason": clip(decision.reason, MAX_REASON),
    }
    return decision.model_copy(update=update)


def begun(approval: Approval, now: datetime) -> tuple[Approval, str]:
    """The approval, used up by what begins now, and why that must not begin: it was used before, or is void."""
    if approval.used_at:
        return approval, "the approval was used already"
    wrong = approval.lapsed(now)
    return (approval, wrong) if wrong else (approval.model_copy(update={"used_at": now}), "")
