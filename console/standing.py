"""Where an incident stands, judged from its ledger rows alone: right also while Temporal is down. Pure."""

from collections.abc import Callable, Sequence
from datetime import datetime
from typing import NamedTuple

from pydantic import ValidationError

from relight.domain.approvals import plural
from relight.domain.incidents import Incident, Phase, StepTime
from relight.domain.ledger import Row, RowKind
from relight.domain.plan import Decision, Mode
from relight.domain.policy import Verdict
from relight.domain.rights import rights_of


class Standing(NamedTuple):
    """Where an incident stands."""

    phase: Phase
    until: datetime | None = None
    """While it waits: when it expires."""
    score: str = ""
    """While it waits: for example `1 of 2 approvals (ada)`."""

    @property
    def short_score(self) -> str:
        """Without the names."""
        return self.score.partition(" (")[0]


class Said(NamedTuple):
    """A person's word, and whether it counted."""

    at: datetime
    decision: Decision
    counts: bool
    remark: str


class Deed(NamedTuple):
    """One change to the outside: what was meant and what was read back."""

    name: str
    at: datetime
    node: str
    intent: str
    """Empty where the last look found that nothing needed to be (or must not be) written."""
    effect: str | None
    """None: nothing has been read back (yet)."""


def verdict_of(rows: Sequence[Row]) -> Verdict | None:
    """The newest verdict of the policy, None where there is none that can be read."""
    for row in reversed(rows):
        if row.kind is RowKind.PLANNED:
            try:
                return Verdict.model_validate(row.body)
            except ValidationError:
                return None
    return None


def decisions(rows: Sequence[Row]) -> tuple[Said, ...]:
    """What people decided, oldest first."""
    said = []
    for row in rows:
        if row.kind is RowKind.DECISION:
            decision = Decision.model_validate(row.body.get("decision", {"approved": False, "digest": ""}))
            said.append(Said(row.at, decision, bool(row.body.get("counts")), str(row.body.get("remark", ""))))
    return tuple(said)


def deeds(rows: Sequence[Row]) -> tuple[Deed, ...]:
    """Intents, each with its effect, in the order meant."""
    effects = {_step(row): row for row in rows if row.kind is RowKind.EFFECT}
    found = []
    meant = set()
    for row in rows:
        if row.kind is RowKind.INTENT:
            meant.add(_step(row))
            effect = effects.get(_step(row))
            found.append(Deed(_name(row), row.at, row.node, _intent(row), _effect(effect) if effect else None))
    for step, row in effects.items():
        if step not in meant:
            found.append(Deed(_name(row), row.at, row.node, "", _effect(row)))
    return tuple(sorted(found, key=lambda deed: deed.at))


def _step(row: Row) -> str:
    """A row's id is `<workflow>/<run>/<step>/<phase>`."""
    return row.id.rpartition("/")[0]


def _name(row: Row) -> str:
    return str(row.body.get("what") or row.body.get("step") or row.kind)


def _intent(row: Row) -> str:
    body = row.body
    target = row.node or (f"job {body['job']}" if "job" in body else "")
    listed = ",".join(str(node) for node in body.get("nodes", ()))
    return " ".join(part for part in (str(body.get("what", "act")), target, listed) if part)


def _effect(row: Row) -> str:
    done = row.body.get("done", {})
    return str(done.get("text", "")) + (f" [{done['outcome']}]" if done.get("outcome") else "")


def standing(incident: Incident, rows: Sequence[Row]) -> Standing:
    """Where the incident stands. The read model is written when a phase is done, and not while it waits and acts."""
    if not incident.open:
        return Standing(Phase.CLOSED)
    if incident.phase is not Phase.PLANNING:
        return Standing(_next(incident, rows))
    planned = next((row for row in reversed(rows) if row.kind is RowKind.PLANNED), None)
    verdict = verdict_of(rows)
    if planned is None or verdict is None or verdict.outcome or verdict.mode is Mode.MONITOR:
        return Standing(Phase.PLANNING)
    counted = [said.decision for said in decisions(rows) if said.counts]
    names = [decision.by or "an unverified sender" for decision in counted if decision.approved]
    needed = verdict.policy.approvers_needed(rights_of(verdict.plan))
    if verdict.mode is Mode.AUTO or len(names) >= needed or len(names) < len(counted):
        return Standing(Phase.ACTING)
    until = planned.at + verdict.policy.approval_expires
    if verdict.plan.requeue_until:
        until = min(until, verdict.plan.requeue_until)
    score = f"{len(names)} of {plural(needed)}" + (f" ({', '.join(names)})" if names else "")
    return Standing(Phase.WAITING, until, score)


def timeline(incident: Incident, rows: Sequence[Row]) -> tuple[StepTime, ...]:
    """What happened when: as the workflow wrote it at the end, or, until then, as the rows show it."""
    if incident.steps:
        return incident.steps
    steps = [StepTime(name="detected", at=incident.detected_at, text=str(incident.kind))]
    told = ((row.at, step_of(row)) for row in rows)
    steps += [StepTime(name=step[0], at=at, text=step[1]) for at, step in told if step]
    return tuple(sorted(steps, key=lambda step: step.at))


def step_of(row: Row) -> tuple[str, str] | None:
    """An incident's row in a word and a line; None for rows of other kinds."""
    teller = _STEPS.get(row.kind)
    return teller(row) if teller else None


def _diagnosed(row: Row) -> tuple[str, str]:
    first = (row.body.get("hypotheses") or [{}])[0]
    return "diagnosed", first.get("summary") or first.get("signature") or ""


def _planned(row: Row) -> tuple[str, str]:
    verdict = verdict_of([row])
    return "planned", f"{verdict.plan.describe()} [{verdict.mode}]" if verdict else ""


def _decided(row: Row) -> tuple[str, str]:
    decision = row.body.get("decision", {})
    name = "approved" if decision.get("approved") else "rejected"
    counts = "" if row.body.get("counts") else " (not counted)"
    return name, f"by {decision.get('by') or 'an unverified sender'}{counts}"


def _left(row: Row) -> tuple[str, str]:
    leave = row.body.get("leave", {})
    return "leave", f"{row.node} {'granted' if leave.get('granted') else 'refused'}: {leave.get('reason', '')}"


def _proved(row: Row) -> tuple[str, str]:
    where = f"running on {','.join(map(str, row.body.get('nodes', ())))}"
    return "verified", str(row.body.get("text") or where)


def _next(incident: Incident, rows: Sequence[Row]) -> Phase:
    confirmed = any(row.kind is RowKind.CONFIRMED and not row.body.get("outcome") for row in rows)
    if incident.phase is Phase.CONFIRMING and confirmed:
        return Phase.DIAGNOSING
    return Phase.PLANNING if incident.phase is Phase.DIAGNOSING else incident.phase


_STEPS: dict[RowKind, Callable[[Row], tuple[str, str]]] = {
    RowKind.CONFIRMED: lambda row: ("confirmed", str(row.body.get("reason", ""))),
    RowKind.DIAGNOSED: _diagnosed,
    RowKind.PLANNED: _planned,
    RowKind.DECISION: _decided,
    RowKind.INTENT: lambda row: ("intent", _intent(row)),
    RowKind.EFFECT: lambda row: ("effect", f"{row.body.get('step')}: {_effect(row)}"),
    RowKind.LEAVE: _left,
    RowKind.OUTPUTS_KEPT: lambda row: ("outputs kept", f"{len(row.body.get('kept', ()))} files"),
    RowKind.VERIFIED: _proved,
    RowKind.ESCALATED: lambda row: ("escalated", str(row.body.get("next", ""))),
    RowKind.NOTE: lambda row: ("note", str(row.body.get("text", ""))),
    RowKind.CLOSED: lambda row: (str(row.body.get("outcome")), str(row.body.get("reason", ""))),
}
"""How each kind of row reads in a timeline; other kinds are not an incident's."""
