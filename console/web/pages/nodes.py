"""Nodes: those in Relight's care and those that speak for a repair; one node's story."""

from collections.abc import Mapping
from datetime import datetime

from relight.console.nodes import STYLES
from relight.console.text import count
from relight.console.web.look import Html, join, link, path, tag
from relight.console.web.look_parts import (
    ago,
    card,
    cell,
    choice,
    clock,
    counted,
    empty,
    facts,
    head,
    lasting,
    notice,
    pager,
    pill,
    search,
    sub,
    table,
    tone,
)
from relight.console.web.pages.asked import Asked, View
from relight.console.web.read_values import Ask, NodeFilter, NodeLine, NodePage, Page
from relight.domain.care import CarePhase

PER_PAGE = 100
_HEADINGS = (("Node", ""), ("State", ""), ("Cause", ""), ("Now", ""), ("Lemon score", "r"))
_STATES = [("", "In care"), ("all", "Also those that left care")]


async def view(asked: Asked) -> View:
    """The list."""
    found = await asked.desk.reading.nodes(asked.who, *wanted(asked.query))
    return View("Nodes", (show(found, asked.query),))


async def view_one(asked: Asked) -> View:
    """One node."""
    page = await asked.desk.reading.node(asked.who, asked.name)
    return View(f"Node {page.line.node}", (show_one(page, asked.now),))


def wanted(query: Mapping[str, str]) -> tuple[NodeFilter, Ask]:
    """What the address asks for."""
    word = query.get("q", "").strip()[:200]
    fits = NodeFilter(text=word, state="" if query.get("state") == "all" or word else "in_care")
    return fits, Ask(limit=PER_PAGE, cursor=query.get("after", "")[:500])


def show(found: Page[NodeLine], query: Mapping[str, str]) -> Html:
    """The list."""
    line = search(
        "/nodes", query.get("q", ""), "Part of a node's name", choice("state", "Which", _STATES, query.get("state", ""))
    )
    kept = {key: query[key] for key in ("q", "state") if query.get(key)}
    if not found.items:
        none = (
            empty("No node is in Relight's care", link(path("nodes", state="all"), "Show those that left care"))
            if not kept
            else empty("No node fits", link("/nodes", "Show those in care"), fine=False)
        )
        return join(head("Nodes"), line, none)
    listed = table(_HEADINGS, (_row(each) for each in found.items), "Nodes")
    return join(
        head("Nodes", counted(found.total)),
        line,
        listed,
        pager("nodes", kept, query.get("after", ""), found.next),
    )


def _state(line: NodeLine) -> Html:
    word = line.outcome or line.phase or "not in care"
    return pill(word.replace("_", " "), tone(STYLES.get(word, "blue" if line.in_care else "dim")))


def _row(line: NodeLine) -> list[Html]:
    since = sub("for ", lasting(line.since)) if line.in_care and line.since else sub(ago(line.at)) if line.at else None
    lemon = tag("span", f"{line.lemon:.1f}", class_="bad strong" if line.is_lemon else "soft")
    opened = sub(link(path("incidents", line.incident), line.incident)) if line.incident else None
    return [
        cell(link(path("nodes", line.node), line.node, class_="go mono", id=f"row-{line.node}")),
        cell(_state(line), since),
        cell(line.cause or "-", opened),
        cell(line.text or "-"),
        cell(lemon, sub(", ".join(line.lemon_why[:2])) if line.lemon_why else None, kind="r num", label="Lemon score:"),
    ]


def show_one(page: NodePage, now: datetime) -> Html:
    """One node's story."""
    line = page.line
    pairs = [("State", _state(line))]
    if line.cause:
        pairs.append(("Cause", tag("span", line.cause, class_="strong")))
    if line.incident:
        pairs.append(("Incident", link(path("incidents", line.incident), line.incident, class_="mono")))
    if line.since:
        pairs.append(("Since", join(clock(line.since, now), ", ", ago(line.since))))
    if line.text:
        pairs.append(("Now", join(line.text)))
    why = f": {', '.join(line.lemon_why)}" if line.lemon_why else ""
    pairs.append(("Lemon score", tag("span", f"{line.lemon:.1f}{why}", class_="bad strong" if line.is_lemon else None)))
    if page.next:
        pairs.append(("Verdict", join(page.next, f"; asked for: {line.remedy}" if line.remedy else "")))
    if page.kept_in:
        pairs.append(("Kept in", tag("code", page.kept_in, class_="wrap")))
    if page.faults:
        pairs.append(("Faults", join(f"{count(page.faults, 'fault')} told by its agent")))
    steps = [
        tag(
            "li",
            tag("span", clock(row.at, now), class_="off"),
            tag(
                "span",
                tag("strong", row.name.replace("_", " ")),
                f" {row.text}",
                _of(row.incident),
                class_="what",
            ),
        )
        for row in reversed(page.story)
    ]
    ticket = (
        card("Ticket", tag("pre", [tag("div", text or " ") for text in page.ticket.splitlines()]))
        if page.ticket
        else None
    )
    waits = None
    if line.in_care and line.phase == CarePhase.WAITING:
        waits = notice("warn", tag("strong", "Waits for people: "), tag("code", f"relight approve node/{line.node}"))
    listed = tag("ol", steps, class_="line") if steps else tag("p", "Nothing is told of it.", class_="soft")
    left = tag("div", card("What happened", listed, beside="the newest first"), ticket, class_="stack")
    right = tag("div", card("Standing", facts(pairs)), _commands(line), class_="stack")
    return join(head(f"Node {line.node}"), waits, tag("div", left, right, class_="columns"))


def _of(incident: str) -> Html | None:
    """The incident that a row belongs to; rows of the node's own care have its id there."""
    if not incident.startswith("i"):
        return None
    return join(" ", link(path("incidents", incident), incident, class_="mono"))


def _commands(line: NodeLine) -> Html | None:
    if not line.in_care:
        return None
    lines = [
        f"relight nodes {line.node}",
        f'relight release {line.node} --reason "..."',
        f'relight keep {line.node} --reason "..."',
    ]
    return card("By command", tag("div", [tag("div", tag("code", each)) for each in lines], class_="tight wrap"))
