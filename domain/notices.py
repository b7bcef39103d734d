"""What people are told, and who: each row of the ledger makes one notice or none. Pure.

A job's user hears about the job, operators about nodes and about how Relight itself stands, approvers about what waits
for them. A notice says what, why, on which evidence, what happens next and when, and how to stop it. What users'
programs printed stands in it as text: each medium escapes it in its own way (`clients/notices_*.py`).
"""

from collections.abc import Callable, Mapping
from datetime import datetime
from enum import StrEnum
from typing import Any

from pydantic import ValidationError

from relight.domain.approvals import plural
from relight.domain.base import Value, clip
from relight.domain.incidents import Incident, Outcome
from relight.domain.ledger import Row, RowKind
from relight.domain.plan import Mode
from relight.domain.policy import Verdict
from relight.domain.rights import rights_of

MOST_TEXT = 600
"""Characters of one text of a notice."""
MOST_TITLE = 200


class Audience(StrEnum):
    """Whom a notice is for."""

    USERS = "users"
    """The user of the job."""
    OPERATORS = "operators"
    APPROVERS = "approvers"


class Severity(StrEnum):
    """How much it matters that somebody reads it soon; the words are PagerDuty's (Events API v2)."""

    INFO = "info"
    WARNING = "warning"
    CRITICAL = "critical"


_RANK = tuple(Severity)


def at_least(severity: Severity, least: Severity) -> bool:
    """True where it is as severe as that, or more."""
    return _RANK.index(severity) >= _RANK.index(least)


class Fact(Value):
    """One thing that a notice says."""

    name: str
    text: str


class Notice(Value):
    """One thing that somebody should know."""

    id: str
    """The same each time it is made from the same row: what receivers tell repeats by."""
    at: datetime
    topic: str
    """What it belongs to, and is threaded by: an incident's id, a quarantine's, `breaker`, `blind/...`."""
    about: tuple[Audience, ...]
    severity: Severity
    title: str
    facts: tuple[Fact, ...] = ()
    incident: str = ""
    """Whose page tells more; empty: there is none."""
    owner: str = ""
    """The user of the job that it is about."""
    node: str = ""
    digest: str = ""
    """Of the plan that waits for people; empty: nothing does."""
    waits: bool = False
    """People are asked for something."""
    until: datetime | None = None
    """By when they must have answered."""
    settles: bool = False
    """What the topic had asked of people is answered, or asked no more."""
    ends: bool = False
    """The topic is over."""
    calls: bool = False
    """A person must do something, also after the topic is over: no alert is resolved by us then."""
    if_told: bool = False
    """Of interest only to who has heard of the topic before."""
    seldom: str = ""
    """What it repeats: told at most once an hour. Empty: always told."""


def notice_of(row: Row, incident: Incident | None) -> Notice | None:
    """What the row tells people; None where it is only for the record.

    Args:
        row: of the ledger.
        incident: the row's, as far as known.
    """
    make = _RULES.get(row.kind)
    return make(row, incident) if make else None


def words(text: object, limit: int = MOST_TEXT) -> str:
    """Text from anywhere as one line that no terminal, mail header or page obeys: control characters are gone.

    Also those that turn the direction of writing, or are not seen.
    """
    return clip(" ".join("".join(c if c.isprintable() else " " for c in str(text)).split()), limit)


def _notice(row: Row, topic: str, title: str, **fields: Any) -> Notice:
    facts = tuple(Fact(name=name, text=words(text)) for name, text in fields.pop("facts", ()) if text)
    made = {"severity": Severity.INFO, "about": (Audience.OPERATORS,), "facts": facts, "node": row.node, **fields}
    return Notice(id=f"{row.cluster}/{row.seq}", at=row.at, topic=topic, title=words(title, MOST_TITLE), **made)


# --- incidents ------------------------------------------------------------------------------------------------------


def _of_incident(row: Row, incident: Incident | None, title: str, **fields: Any) -> Notice:
    """A notice in an incident's thread. Users are told of what is done, not of what would have been."""
    about: tuple[Audience, ...] = fields.pop("about", (Audience.OPERATORS, Audience.USERS))
    if incident is None or incident.mode is Mode.MONITOR:
        about = tuple(each for each in about if each is not Audience.USERS)
    known = {"incident": row.incident, "owner": incident.user if incident else ""}
    return _notice(row, row.incident, title, about=about, **{**known, **fields})


def _job(row: Row, incident: Incident | None) -> str:
    if incident is None:
        return f"incident {row.incident}"
    of = f" of {incident.user}" if incident.user else ""
    return f"job {incident.attempt.job_id} {incident.job_name}".strip() + of


def _planned(row: Row, incident: Incident | None) -> Notice | None:
    try:
        verdict = Verdict.model_validate(row.body)
    except ValidationError:
        return None
    cause = incident.diagnosis.verdict if incident and incident.diagnosis else None
    kind = incident.kind.replace("_", " ") if incident else "interruption"
    why = f"{cause.summary} ({cause.signature}, {cause.confidence:.0%})" if cause else ""
    seen = cause.evidence[0] if cause and cause.evidence else None
    where = f" ({seen.file}:{seen.line})" if seen and seen.file else ""
    waits = verdict.mode is Mode.APPROVE and verdict.outcome is None
    until = _until(row, verdict) if waits else None
    facts = [
        ("Why", why),
        ("Evidence", f"{seen.text}{where}" if seen else ""),
        ("Plan", f"{verdict.plan.describe()}: {verdict.plan.reason}"),
        ("Next", _next(verdict, until)),
        ("To stop it", _to_stop(row.incident, verdict, waits=waits)),
    ]
    if waits:
        facts.append(("To approve", f"relight approve {row.incident} --digest {verdict.plan.digest[:8]}"))
    about = (Audience.OPERATORS, Audience.USERS, *((Audience.APPROVERS,) if waits else ()))
    return _of_incident(
        row,
        incident,
        f"{kind} of {_job(row, incident)}" + (f": {cause.summary}" if cause else ""),
        facts=facts,
        about=about,
        severity=Severity.WARNING if waits else Severity.INFO,
        digest=verdict.plan.digest if waits else "",
        waits=waits,
        settles=not waits,
        until=until,
    )


def _until(row: Row, verdict: Verdict) -> datetime:
    until = row.at + verdict.policy.approval_expires
    return min(until, verdict.plan.requeue_until) if verdict.plan.requeue_until else until


def _next(verdict: Verdict, until: datetime | None) -> str:
    if verdict.outcome is not None:
        return f"nothing is done ({verdict.outcome})"
    if until is not None:
        needed = plural(verdict.policy.approvers_needed(rights_of(verdict.plan)))
        return f"waits for {needed} until {_clock(until)}; without an answer nothing is done"
    if verdict.mode is Mode.MONITOR:
        return "nothing is touched: this is what would have been done (mode monitor)"
    return "it is done now, unasked (mode auto)"


def _clock(at: datetime) -> str:
    return f"{at:%Y-%m-%d %H:%M} UTC"


def _to_stop(incident: str, verdict: Verdict, *, waits: bool) -> str:
    if waits:
        return f'relight reject {incident} --digest {verdict.plan.digest[:8]} --reason "..."'
    acts = verdict.mode is Mode.AUTO and verdict.outcome is None
    return "relight pause, and Relight only observes" if acts else ""


def _decided(row: Row, incident: Incident | None) -> Notice:
    said: Mapping[str, Any] = row.body.get("decision") or {}
    counts, approved = bool(row.body.get("counts")), bool(said.get("approved"))
    who = said.get("by") or "an unverified sender"
    what = f"{'approved' if approved else 'rejected'} by {who}" + ("" if counts else ", which does not count")
    about = f"node {row.node}" if row.node else _job(row, incident)
    facts = [("Reason", said.get("reason")), ("Remark", row.body.get("remark")), ("Approvals", row.body.get("score"))]
    named = {} if row.node else {"incident": row.incident}
    return _notice(
        row,
        row.incident,
        f"{about}: {what}",
        facts=facts,
        about=(Audience.OPERATORS, Audience.APPROVERS),
        settles=counts and not approved,
        **named,
    )


_TOLD_STEPS = {"requeue": "requeued", "submit": "submitted anew", "cancel": "cancelled"}


def _done(row: Row, incident: Incident | None) -> Notice | None:
    """What was done to the job; what is done to a node, its quarantine tells."""
    done: Mapping[str, Any] = row.body.get("done") or {}
    what = _TOLD_STEPS.get(str(row.body.get("step", "")).partition("~")[0])
    if what is None or done.get("outcome") or not row.body.get("meant", True):
        return None
    facts = [("Done", done.get("text"))]
    return _of_incident(row, incident, f"{_job(row, incident)}: {what}", facts=facts, settles=True)


def _leave(row: Row, incident: Incident | None) -> Notice | None:
    leave: Mapping[str, Any] = row.body.get("leave") or {}
    if leave.get("granted"):
        return None
    title = f"node {row.node} is not drained: the guard refuses"
    about = (Audience.OPERATORS,)
    return _of_incident(row, incident, title, facts=[("Why", leave.get("reason"))], about=about)


def _escalated(row: Row, incident: Incident | None) -> Notice:
    return _of_incident(
        row,
        incident,
        f"{_job(row, incident)} needs a person",
        facts=[("What to do", row.body.get("next")), ("Why", row.body.get("reason"))],
        severity=Severity.CRITICAL,
        settles=True,
        calls=True,
    )


_BAD_ENDS = frozenset({Outcome.FAILED, Outcome.EXPIRED, Outcome.RESTARTED_NO_PROGRESS, Outcome.RESTARTED_UNVERIFIED})
_QUIET_ENDS = frozenset({Outcome.NOT_CONFIRMED, Outcome.SUPERSEDED})


def _closed(row: Row, incident: Incident | None) -> Notice:
    outcome = str(row.body.get("outcome", ""))
    return _of_incident(
        row,
        incident,
        f"{_job(row, incident)}: {outcome.replace('_', ' ')}",
        facts=[("How it ended", row.body.get("reason"))],
        severity=Severity.WARNING if outcome in _BAD_ENDS else Severity.INFO,
        settles=True,
        ends=True,
        if_told=outcome in _QUIET_ENDS,
    )


# --- nodes ----------------------------------------------------------------------------------------------------------


def _fault(row: Row, incident: Incident | None) -> Notice | None:
    del incident
    fault: Mapping[str, Any] = row.body.get("fault") or {}
    if fault.get("cleared"):
        return None
    kind = words(fault.get("kind", "fault"), 60)
    facts = [("Seen", fault.get("text")), ("GPU", fault.get("gpu"))]
    return _notice(row, f"fault/{row.node}", f"node {row.node}: {kind}", facts=facts, seldom=f"fault/{row.node}/{kind}")


_CARE = {
    "begun": ("in quarantine", Severity.INFO),
    "still-draining": ("still draining", Severity.WARNING),
    "would": ("would be acted on", Severity.INFO),
    "asked": ("waits for people", Severity.WARNING),
    "kept": ("stays out of service", Severity.WARNING),
    "not-returned": ("could not be returned", Severity.WARNING),
    "not-set-down": ("could not be set down", Severity.WARNING),
    "down": ("declared down", Severity.WARNING),
    "rejected": ("a person said no", Severity.INFO),
    "expired": ("nobody answered in time", Severity.WARNING),
}


def _care(row: Row, incident: Incident | None) -> Notice | None:
    """A step of a quarantine; its row's `incident` is the quarantine's own id."""
    del incident
    step = str(row.body.get("step", "")).partition("-")[2]
    if step == "closed":
        outcome = str(row.body.get("outcome", ""))
        title, severity = outcome.replace("_", " "), Severity.WARNING if outcome == "failed" else Severity.INFO
    elif step in _CARE:
        title, severity = _CARE[step]
    else:
        return None
    asks = step == "asked"
    facts = [("What", row.body.get("text")), ("Its story", f"relight nodes {row.node}")]
    if asks:
        facts.append(("To answer", f"relight approve node/{row.node}, or relight reject node/{row.node}"))
    return _notice(
        row,
        row.incident,
        f"node {row.node}: {title}",
        facts=facts,
        severity=severity,
        about=(Audience.OPERATORS, Audience.APPROVERS) if asks else (Audience.OPERATORS,),
        waits=asks,
        until=_time(row.body.get("until")) if asks else None,
        settles=not asks,
        ends=step == "closed",
        seldom="" if asks or step == "closed" else f"{row.incident}/{step}",
    )


def _time(text: object) -> datetime | None:
    try:
        at = datetime.fromisoformat(str(text))
    except ValueError:
        return None
    return at if at.tzinfo else None


# --- Relight itself -------------------------------------------------------------------------------------------------


def _guard(row: Row, incident: Incident | None) -> Notice | None:
    del incident
    what, text = str(row.body.get("what", "")), row.body.get("text")
    by = [("By", row.body.get("by"))]
    if what == "tripped":
        facts = [("Why", text), ("Next", "Relight only observes until a person resets it: relight breaker reset")]
        about = (Audience.OPERATORS, Audience.APPROVERS)
        title = "the breaker is open"
        return _notice(row, "breaker", title, facts=facts, severity=Severity.CRITICAL, about=about)
    if what == "reset":
        return _notice(row, "breaker", "the breaker is reset", facts=[("What", text), *by], ends=True)
    if what in {"paused", "resumed"}:
        return _notice(row, "pauses", f"Relight is {what}", facts=[("What", text), *by])
    return None


def _blind(row: Row, incident: Incident | None) -> Notice:
    del incident
    what = words(row.body.get("what", "a detector"), 80)
    if row.body.get("until"):
        return _notice(row, f"blind/{what}", f"{what} sees again", ends=True, if_told=True)
    # What one job's output or one node's agent hides is worth knowing; what hides all jobs calls for somebody.
    severity = Severity.INFO if row.attempt or row.node else Severity.WARNING
    facts = [("Why", row.body.get("why")), ("Where", row.attempt or row.node)]
    return _notice(row, f"blind/{what}", f"blind: {what}", facts=facts, severity=severity, seldom=f"blind/{what}")


_RULES: Mapping[RowKind, Callable[[Row, Incident | None], Notice | None]] = {
    RowKind.PLANNED: _planned,
    RowKind.DECISION: _decided,
    RowKind.EFFECT: _done,
    RowKind.LEAVE: _leave,
    RowKind.ESCALATED: _escalated,
    RowKind.CLOSED: _closed,
    RowKind.FAULT: _fault,
    RowKind.CARE: _care,
    RowKind.GUARD: _guard,
    RowKind.BLIND: _blind,
}
TELLING = frozenset(_RULES)
"""Kinds of rows that may make a notice."""
OF_INCIDENTS = frozenset(
    {RowKind.PLANNED, RowKind.DECISION, RowKind.EFFECT, RowKind.LEAVE, RowKind.ESCALATED, RowKind.CLOSED}
)
"""Those whose incident is looked up first."""
