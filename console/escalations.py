"""What waits for a person after time ran out: incidents that Relight ended without doing anything about the job."""

from datetime import datetime, timedelta
from typing import Any, NamedTuple

from rich.text import Text

from relight.clients.ledger import Ledger
from relight.console.output import words
from relight.console.text import ago, count
from relight.domain.attempts import AttemptKey
from relight.domain.ledger import Row, RowKind

SHOWN_FOR = timedelta(days=1)
_MOST = 50
_SHOWN = 5


class Escalation(NamedTuple):
    """One of them."""

    incident: str
    job_id: int
    at: datetime
    todo: str


async def collect(ledger: Ledger, cluster: str, now: datetime) -> tuple[Escalation, ...]:
    """Those of the last day whose job has not run again since, newest first."""
    rows = await ledger.rows(kind=RowKind.ESCALATED, since=now - SHOWN_FOR, limit=_MOST)
    found = [await _open(ledger, row) for row in reversed(rows) if row.cluster == cluster]
    return tuple(each for each in found if each)


async def _open(ledger: Ledger, row: Row) -> Escalation | None:
    try:
        key = AttemptKey.parse(row.attempt)
    except ValueError:
        return None
    newest = await ledger.attempts_of_job(key.cluster, key.job_id, limit=1)
    if newest and newest[0].attempt.key.submit_time > key.submit_time:
        return None
    return Escalation(row.incident, key.job_id, row.at, str(row.body.get("next", "")))


def lines(found: tuple[Escalation, ...], now: datetime) -> tuple[Text, ...]:
    """For `relight status`; empty where there is none."""
    if not found:
        return ()
    told = [words(f"{count(len(found), 'incident')} ended with nothing done, and left to you:", "bold yellow")]
    told += [words(f"job {e.job_id}, {ago(e.at, now)}: relight show {e.incident}", "yellow") for e in found[:_SHOWN]]
    more = len(found) - _SHOWN
    return (*told, words(f"and {more} more", "yellow")) if more > 0 else tuple(told)


def as_json(found: tuple[Escalation, ...]) -> list[dict[str, Any]]:
    """For other programs; keys are only ever added."""
    return [
        {"incident": each.incident, "job_id": each.job_id, "at": each.at.isoformat(), "next": each.todo}
        for each in found
    ]
