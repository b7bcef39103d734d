"""The list of incidents: searched, filtered and paged by the server, all of it in the address."""

from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta

from relight.console.text import nodes, span
from relight.console.web.look import Html, join, link, path, tag
from relight.console.web.look_parts import (
    ago,
    badge,
    cell,
    choice,
    counted,
    empty,
    head,
    lasting,
    pager,
    search,
    sub,
    table,
)
from relight.console.web.pages.asked import Asked, View
from relight.console.web.read_values import Ask, IncidentFilter, IncidentLine, Page
from relight.domain.diagnosis import Category
from relight.domain.evidence import Interruption
from relight.domain.incidents import Outcome

PER_PAGE = 50
_STATES = [
    ("", "Any state"),
    ("open", "Open"),
    ("closed", "Closed"),
    *((str(outcome), str(outcome).replace("_", " ").capitalize()) for outcome in Outcome),
]
_KINDS = [("", "Any kind"), *((str(kind), str(kind).replace("_", " ").capitalize()) for kind in Interruption)]
_CATEGORIES = [("", "Any cause"), *((str(each), str(each).replace("_", " ").capitalize()) for each in Category)]
_SPANS = {"1h": timedelta(hours=1), "1d": timedelta(days=1), "7d": timedelta(days=7), "30d": timedelta(days=30)}
_SINCE = [("", "Any time"), ("1h", "Last hour"), ("1d", "Last day"), ("7d", "Last week"), ("30d", "Last 30 days")]
_HEADINGS = (("Incident", ""), ("Job", ""), ("Cause", ""), ("Plan", ""), ("State", ""))


async def view(asked: Asked) -> View:
    """The list."""
    found = await asked.desk.reading.incidents(asked.who, *wanted(asked.query, asked.now))
    return View("Incidents", (show(found, asked.query),))


def wanted(query: Mapping[str, str], now: datetime) -> tuple[IncidentFilter, Ask]:
    """What the address asks for; what it says that makes no sense is left out."""
    state = query.get("state", "")
    since = _SPANS.get(query.get("since", ""))
    fits = IncidentFilter(
        text=query.get("q", "").strip()[:200],
        open=True if state == "open" else False if state == "closed" else None,
        outcome=state if state in set(Outcome) else "",
        kind=_known(query.get("kind", ""), Interruption),
        category=_known(query.get("category", ""), Category),
        user=query.get("user", "")[:64],
        node=query.get("node", "")[:255],
        since=now - since if since else None,
        everything=bool(query.get("all")) or state == Outcome.NOT_CONFIRMED,
    )
    return fits, Ask(limit=PER_PAGE, cursor=query.get("after", "")[:500])


def _known(word: str, words: type[Interruption] | type[Category]) -> str:
    return word if word in set(words) else ""


def show(found: Page[IncidentLine], query: Mapping[str, str]) -> Html:
    """The page."""
    filters = (
        choice("state", "State", _STATES, query.get("state", "")),
        choice("kind", "Kind of interruption", _KINDS, query.get("kind", "")),
        choice("category", "Category of the cause", _CATEGORIES, query.get("category", "")),
        choice("since", "Since when", _SINCE, query.get("since", "")),
    )
    line = search("/incidents", query.get("q", ""), "Id, job, user, node or cause", *filters)
    kept = {
        key: query[key] for key in ("q", "state", "kind", "category", "since", "user", "node", "all") if query.get(key)
    }
    if not found.items:
        return join(head("Incidents"), line, _none(kept))
    here = query.get("after", "")
    pages = pager("incidents", kept, here, found.next, "older ones" if here else "the newest")
    return join(head("Incidents", counted(found.total)), line, rows(found.items, "Incidents, newest first"), pages)


def _none(kept: Mapping[str, str]) -> Html:
    if kept:
        return empty("No incident fits", "Nothing is hidden by paging. ", link("/incidents", "Show all"), fine=False)
    return empty("No incident yet", "Relight has opened none in this ledger.")


def rows(listed: Sequence[IncidentLine], caption: str) -> Html:
    """Incidents one below the other."""
    return table(_HEADINGS, (_row(line) for line in listed), caption)


def _row(line: IncidentLine) -> list[Html]:
    where = f" on {nodes(line.nodes)}" if line.nodes else ""
    length = ["in ", span(line.closed_at - line.detected_at)] if line.closed_at else ["for ", lasting(line.detected_at)]
    state = line.outcome or ("waiting for approval" if line.waiting else line.phase)
    return [
        cell(
            link(path("incidents", line.id), line.id, class_="go mono", id=f"row-{line.id}"), sub(ago(line.opened_at))
        ),
        cell(tag("span", line.job, class_="strong"), f" {line.job_name}", sub(line.user)),
        cell(
            line.kind.replace("_", " "), " ", tag("span", line.cause, class_="strong"), sub(f"{line.category}{where}")
        ),
        cell(line.plan or "-", sub(str(line.mode)), label="Plan:"),
        cell(badge(state), line.approvals and sub(line.approvals), sub(length)),
    ]
