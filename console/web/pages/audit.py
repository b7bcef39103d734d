"""The audit trail: every row as it was written, searched and paged."""

import json
from collections.abc import Mapping
from datetime import datetime

from relight.console.web.look import Html, join, link, path, tag
from relight.console.web.look_parts import cell, choice, clock, empty, head, pager, search, sub, table
from relight.console.web.pages.asked import Asked, View
from relight.console.web.read_values import Ask, AuditFilter, AuditLine, Page
from relight.domain.ledger import RowKind

PER_PAGE = 50
_MOST_LINES = 400
_KINDS = [("", "Any kind"), *((str(kind), str(kind).replace("_", " ").capitalize()) for kind in RowKind)]
_HEADINGS = (("Row", "r"), ("When", ""), ("What", ""), ("Of", ""), ("Hash", ""))


async def view(asked: Asked) -> View:
    """The list."""
    found = await asked.desk.reading.audit(asked.who, *wanted(asked.query))
    return View("Audit", (show(found, asked.query, asked.now),))


def wanted(query: Mapping[str, str]) -> tuple[AuditFilter, Ask]:
    """What the address asks for; what is searched for is an incident, or else a node."""
    word = query.get("q", "").strip()[:255]
    incident = query.get("incident", "")[:64] or (word if word.startswith("i") and len(word) == 11 else "")  # noqa: PLR2004
    kind = query.get("kind", "")
    fits = AuditFilter(
        incident=incident,
        node=query.get("node", "")[:255] or ("" if incident else word),
        kind=kind if kind in set(RowKind) else "",
    )
    return fits, Ask(limit=PER_PAGE, cursor=query.get("after", "")[:500])


def show(found: Page[AuditLine], query: Mapping[str, str], now: datetime) -> Html:
    """The list."""
    word = query.get("q", "") or query.get("incident", "") or query.get("node", "")
    line = search("/audit", word, "Incident's id or node", choice("kind", "Kind of row", _KINDS, query.get("kind", "")))
    kept = {key: query[key] for key in ("q", "incident", "node", "kind") if query.get(key)}
    beside = ["Each row is chained to the one before. To prove it: ", tag("code", "relight audit verify")]
    if not found.items:
        none = empty("No row fits" if kept else "The ledger is empty", link("/audit", "Show all"), fine=False)
        return join(head("Audit", *beside), line, none)
    listed = table(_HEADINGS, (_row(each, now) for each in found.items), "Rows of the ledger, the newest first")
    return join(head("Audit", *beside), line, listed, pager("audit", kept, query.get("after", ""), found.next))


def _about(incident: str) -> Html:
    """An incident, or the care of a node, which has no page of its own."""
    if incident.startswith("i"):
        return link(path("incidents", incident), incident, class_="mono")
    return tag("span", incident, class_="mono soft")


def _row(row: AuditLine, now: datetime) -> list[Html]:
    body = json.dumps(row.body, indent=1, ensure_ascii=False, default=str).splitlines()
    whole = tag("pre", [tag("div", text) for text in body[:_MOST_LINES]], class_="small")
    more = tag("details", tag("summary", "The row itself"), whole, sub("id ", tag("code", row.id)), id=f"row-{row.seq}")
    of = [
        row.incident and tag("div", _about(row.incident)),
        row.node and tag("div", link(path("nodes", row.node), row.node, class_="mono")),
        row.attempt and sub(row.attempt),
    ]
    return [
        cell(row.seq, kind="r num"),
        cell(clock(row.at, now)),
        cell(
            tag("span", str(row.kind).replace("_", " "), class_="strong"),
            f" {row.summary}" if row.summary else "",
            more,
        ),
        cell(*of),
        cell(tag("span", row.hash[:10], class_="mono soft nowrap", title=row.hash)),
    ]
