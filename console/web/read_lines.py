"""Incidents and jobs as lines of lists. Pure."""

import base64
import binascii
import json
from collections.abc import Sequence

from relight.clients.ledger_pages import Key
from relight.console.incidents import short_plan
from relight.console.standing import Standing, standing
from relight.console.web.errors import BadAsk
from relight.console.web.read_values import IncidentLine
from relight.domain.incidents import Incident, Phase
from relight.domain.ledger import Row, RowKind
from relight.domain.plan import Mode

STANDS_BY = (RowKind.CONFIRMED, RowKind.PLANNED, RowKind.DECISION)
"""The rows from which it is judged where an open incident stands."""


def line(incident: Incident, rows: Sequence[Row], display_id: str = "") -> IncidentLine:
    """An incident in a list.

    Args:
        incident: which.
        rows: of an open one, at least those of the kinds `STANDS_BY`.
        display_id: its job's id as Slurm's commands print it, where the attempt was seen.
    """
    stands: Standing = standing(incident, rows)
    verdict = incident.diagnosis.verdict if incident.diagnosis else None
    plan = incident.plan
    return IncidentLine(
        id=incident.id,
        job_id=incident.attempt.job_id,
        job=display_id or str(incident.attempt.job_id),
        job_name=incident.job_name,
        user=incident.user,
        kind=str(incident.kind),
        phase=str(stands.phase),
        mode=str(incident.mode),
        outcome=str(incident.outcome or ""),
        outcome_reason=incident.outcome_reason,
        cause=verdict.signature if verdict else "",
        category=str(verdict.category) if verdict else "",
        confidence=verdict.confidence if verdict else None,
        summary=verdict.summary if verdict else "",
        nodes=verdict.implicated.nodes if verdict else (),
        plan=short_plan(plan, monitor=incident.mode is Mode.MONITOR) if plan else "",
        digest=plan.digest if plan else "",
        occurred_at=incident.occurred_at,
        detected_at=incident.detected_at,
        opened_at=incident.opened_at,
        closed_at=incident.closed_at,
        open=incident.open,
        waiting=stands.phase is Phase.WAITING,
        decide_until=stands.until,
        approvals=stands.score,
    )


def cursor(key: Key | None) -> str:
    """What stands for the end of a page; empty where nothing follows."""
    return base64.urlsafe_b64encode(json.dumps(key).encode()).decode().rstrip("=") if key else ""


def key_of(text: str) -> Key | None:
    """The end of a page that a cursor stands for; None for the beginning.

    Raises:
        BadAsk: when it is none of ours.
    """
    if not text:
        return None
    try:
        at, name = json.loads(base64.b64decode(text + "=" * (-len(text) % 4), altchars=b"-_", validate=True))
    except (binascii.Error, ValueError, TypeError, RecursionError):
        raise BadAsk("cursor: not one that an earlier answer gave; leave it out to begin anew") from None
    if not (isinstance(at, str) and isinstance(name, str)):
        raise BadAsk("cursor: not one that an earlier answer gave; leave it out to begin anew")
    return Key(at, name)


def number_of(text: str) -> int | None:
    """The row number that a cursor of the audit trail is; None for the beginning.

    Raises:
        BadAsk: when it is none.
    """
    if not text:
        return None
    if not (text.isascii() and text.isdigit() and len(text) < 19):  # noqa: PLR2004 - what a 64-bit number can hold
        raise BadAsk("cursor: not one that an earlier answer gave; leave it out to begin anew")
    return int(text)
