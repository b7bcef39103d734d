"""Checks the life cycles that the audit trail tells, row after row: what was done was planned, approved, meant. Pure.

What people approved is judged again by the very code that judged it then (`approvals`), from the request and the
signature that stand in the row.

Memory grows with the number of incidents, by less than a kilobyte each, and not with the rows.
"""

import json
from collections.abc import Iterator
from datetime import datetime, timedelta
from typing import Any, NamedTuple

from relight.domain.approvals import Approval, DecisionProof, hear, hear_signed, plural, request_for
from relight.domain.audit import Finding, Rule
from relight.domain.care import care_mark
from relight.domain.care_digest import care_digest
from relight.domain.ledger import RowKind
from relight.domain.plan import Decision, Mode
from relight.domain.policy import Verdict
from relight.domain.rights import Right, rights_of

LOOKED_AT = frozenset({RowKind.PLANNED, RowKind.DECISION, RowKind.INTENT, RowKind.EFFECT, RowKind.CLOSED, RowKind.CARE})
"""Rows of other kinds say nothing of a life cycle."""
SLACK = timedelta(minutes=1)
"""Between the last look at an approval and the intent's row, and between two workers' clocks."""
RESTARTS = frozenset({"requeue", "submit"})
"""Intents of which an attempt gets one that takes effect."""
BEGINS = RESTARTS | {"cancel", "drain", "fall back"}
"""Intents that must be written while the approval holds; others belong to a restart that has begun."""
ON_NODES = {"undrain": Right.RETURN, "down": Right.DOWN, "reboot": Right.REBOOT, "replace": Right.REPLACE}
"""Intents of a node's care, each with what people approve."""
NEVER_UNASKED = frozenset({"reboot", "replace"})
_parse = json.JSONDecoder().raw_decode
"""`json.loads` looks for spaces around, which canonical JSON has not: of a million rows a tenth of the time."""
_ALWAYS_MEANT = ("requeue", "drain-", "undrain-", "down-", "action-")
"""Steps that have an effect without an outcome only after an intent; for rows of version 0.1, which do not say."""


class Written(NamedTuple):
    """A row, as far as it is looked at here."""

    seq: int
    id: str
    kind: str
    at: str
    cluster: str
    incident: str
    attempt: str
    node: str
    body: str


class _Consent(NamedTuple):
    """Where the approval of one plan stands."""

    votes: int = 0
    needed: int = 1
    rejected: bool = False
    until: datetime | None = None
    """By when what it allows must begin; None: it does not count yet."""
    names: tuple[str, ...] = ()

    @property
    def told(self) -> str:
        if self.rejected:
            return "a rejection"
        names = f" ({', '.join(self.names)})" if self.names else ""
        return f"{self.votes} of {plural(self.needed)}{names}"


class _Life:
    """What is known of one incident, or of one node's care."""

    __slots__ = ("closed", "consents", "digest", "mark", "meant", "mode", "verdict")

    def __init__(self) -> None:
        self.mode = ""
        self.digest = ""
        self.mark = ""
        """Of a node in care."""
        self.verdict: dict[str, Any] | None = None
        """The plan's row, while people may still decide on it."""
        self.consents: dict[str, _Consent] = {}
        """By digest."""
        self.meant: dict[str, str] = {}
        """Intents by step."""
        self.closed = 0


class Lives:
    """Follows all incidents at once."""

    def __init__(self) -> None:
        self._lives: dict[str, _Life] = {}
        self._asking: dict[tuple[str, str], Approval] = {}
        """Approvals under way, by incident and digest."""
        self._restarted: dict[str, tuple[str, str]] = {}
        """By attempt: the incident and the deed that restarted it."""
        self.unproven = 0
        """Decisions that count and hold nothing to judge them by."""

    def see(self, row: Written) -> Iterator[Finding]:
        """What is wrong with the next row."""
        if not row.incident:
            return
        life = self._lives.get(row.incident)
        if life is None:
            life = self._lives[row.incident] = _Life()
        try:
            body, _ = _parse(row.body)
            yield from self._look(row, life, body)
        except (ValueError, LookupError, TypeError, AttributeError, RecursionError) as error:
            text = " ".join(str(error).split())[:200]
            yield _finding(row, Rule.READABLE, f"a row of kind {row.kind}", f"{type(error).__name__}: {text}")

    def _look(self, row: Written, life: _Life, body: dict[str, Any]) -> Iterator[Finding]:
        match row.kind:
            case RowKind.PLANNED:
                life.mode, life.digest = str(body["mode"]), str(body["digest"])
                if life.mode == Mode.APPROVE:
                    life.verdict = body
            case RowKind.CARE:
                life.mark = care_mark(str(body["incident"]))
            case RowKind.DECISION:
                yield from self._decided(row, life, body)
            case RowKind.INTENT:
                yield from _intended(row, life, body)
            case RowKind.EFFECT:
                yield from self._done(row, life, body)
            case RowKind.CLOSED:
                if life.closed:
                    first = f"one end (row {life.closed})"
                    yield _finding(row, Rule.END, first, f"a second end: {body.get('outcome')}")
                life.closed, life.verdict = life.closed or row.seq, None
                for digest in life.consents:
                    self._asking.pop((row.incident, digest), None)

    # --- what people said ---

    def _decided(self, row: Written, life: _Life, body: dict[str, Any]) -> Iterator[Finding]:
        if not body["counts"] or life.closed:  # called off while it was written down: nothing was done by it
            return
        digest, decision = str(body["plan"]), Decision.model_validate(body["decision"])
        if "proof" not in body:
            self.unproven += 1
            life.consents[digest] = _believed(life, digest, decision, _time(row.at))
            return
        proof = DecisionProof.model_validate(body["proof"])
        if wrong := _another_request(row, life, proof):
            yield _finding(row, Rule.APPROVAL, wrong, f"decision by {decision.by or 'an unverified sender'}")
            return
        known = self._asking.get((row.incident, digest))
        approval = known if known and known.request == proof.request else Approval(request=proof.request)
        signed, at = proof.signed, proof.at
        heard = hear_signed(approval, signed, at) if signed else hear(approval, decision, at)
        if not heard.counts or heard.decision != decision or at > _time(row.at) + SLACK:
            why = heard.remark or f"signed: {heard.decision.by}, {_word(heard.decision)}; heard {at.isoformat()}"
            written = f"{decision.by or 'an unverified sender'}, {_word(decision)}, of {row.at}"
            yield _finding(row, Rule.APPROVAL, f"a word that counts, as it is written ({written})", why)
            return
        if heard.approval.over:
            self._asking.pop((row.incident, digest), None)
        else:
            self._asking[row.incident, digest] = heard.approval
        life.consents[digest] = _Consent(
            votes=len(heard.approval.votes),
            needed=proof.request.needed,
            rejected=heard.approval.rejection is not None,
            until=heard.approval.act_until,
            names=tuple(vote.by for vote in heard.approval.votes),
        )

    # --- what was done ---

    def _done(self, row: Written, life: _Life, body: dict[str, Any]) -> Iterator[Finding]:
        step, outcome = _step(row), body["done"].get("outcome")
        meant = body.get("meant", outcome is None and step.startswith(_ALWAYS_MEANT))
        what = life.meant.get(step)
        if meant and what is None:
            yield _finding(row, Rule.INTENT, f"an intent for {step} before it", "an effect alone")
        if what in RESTARTS and outcome is None and row.attempt:
            earlier = self._restarted.setdefault(row.attempt, (row.incident, what))
            if earlier != (row.incident, what):
                first = f"{row.attempt} restarted once: {earlier[1]} for {earlier[0]}"
                yield _finding(row, Rule.DOUBLE, first, f"{what} for {row.incident}")


def _intended(row: Written, life: _Life, body: dict[str, Any]) -> Iterator[Finding]:
    step, what = _step(row), str(body["what"])
    life.meant[step] = what
    if what in ON_NODES:
        if "approved_until" not in body and what not in NEVER_UNASKED:
            return
        digest = care_digest(row.cluster, row.node, life.mark, ON_NODES[what])
        yield from _allowed(row, life.consents.get(digest, _Consent()), what, digest, begins=True)
    elif not life.mode:
        yield _finding(row, Rule.PLAN, "a plan before anything is done", f"intent: {what}")
    elif life.mode == Mode.MONITOR:
        yield _finding(row, Rule.PLAN, "nothing done in mode monitor", f"intent: {what}")
    elif life.mode == Mode.APPROVE:
        consent = life.consents.get(life.digest) or _Consent(needed=_needed(life))
        # What is begun anew (`~1`) had begun in time.
        yield from _allowed(row, consent, what, life.digest, begins=what in BEGINS and "~" not in step)


def _allowed(row: Written, consent: _Consent, what: str, digest: str, *, begins: bool) -> Iterator[Finding]:
    asked = f"{plural(consent.needed)} of {digest[:12]} before {what}"
    if consent.rejected or consent.until is None:
        yield _finding(row, Rule.APPROVAL, asked, consent.told)
    elif begins and _time(row.at) > consent.until + SLACK:
        yield _finding(row, Rule.APPROVAL, f"{what} begun by {consent.until.isoformat()}", f"intent of {row.at}")


def _another_request(row: Written, life: _Life, proof: DecisionProof) -> str:
    """What the request should have been, where it is not what the plan asks for; empty where it is."""
    request = proof.request
    subject = row.incident if life.verdict is not None else f"node/{row.node}"
    if request.subject != subject:
        return f"a decision on {subject}, not on {request.subject}"
    if life.verdict is None:
        return ""
    verdict = Verdict.model_validate(life.verdict)
    if verdict.plan.digest != life.digest:
        return f"a plan with the digest {life.digest[:12]}, not {verdict.plan.digest[:12]}"
    asked = request_for(verdict, subject, request.run_id, owner=request.owner, now=request.asked_at)
    # Its words may be written otherwise by another version.
    differs = [name for name in type(asked).model_fields if getattr(asked, name) != getattr(request, name)]
    wrong = ", ".join(name for name in differs if name not in {"what", "why"})
    return f"the request that the plan makes; another is its {wrong}" if wrong else ""


def _believed(life: _Life, digest: str, decision: Decision, at: datetime) -> _Consent:
    """The consent after a decision that holds no proof."""
    before = life.consents.get(digest) or _Consent(needed=_needed(life))
    if not decision.approved:
        return before._replace(rejected=True)
    votes = before.votes + 1
    lasts = Verdict.model_validate(life.verdict).policy.execution_expires if life.verdict else timedelta(minutes=10)
    until = at + lasts if votes >= before.needed else None
    return before._replace(votes=votes, until=until, names=(*before.names, decision.by or "an unverified sender"))


def _needed(life: _Life) -> int:
    if life.verdict is None:
        return 1
    verdict = Verdict.model_validate(life.verdict)
    return verdict.policy.approvers_needed(rights_of(verdict.plan))


def _step(row: Written) -> str:
    """A row's id is `<workflow>/<run>/<step>/<phase>`; a step may have slashes of its own only in nodes' names."""
    return row.id.rsplit("/", 2)[-2]


def _time(at: str) -> datetime:
    return datetime.fromisoformat(at)


def _word(decision: Decision) -> str:
    return "approved" if decision.approved else "rejected"


def _finding(row: Written, rule: Rule, expected: str, found: str) -> Finding:
    return Finding(rule=rule, seq=row.seq, incident=row.incident, expected=expected, found=found)
