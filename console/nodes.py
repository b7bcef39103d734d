"""`relight nodes`: the nodes in Relight's care, and one node's story. Reads the ledger alone."""

from collections.abc import Sequence
from datetime import datetime
from pathlib import Path
from typing import Any, NamedTuple

from rich.console import Console
from rich.table import Table
from rich.text import Text

from relight.clients.ledger import Ledger
from relight.clients.node_history import MOST_ROWS, in_care, scores
from relight.config.settings import Settings
from relight.console.errors import NotFoundStop, Stop
from relight.console.output import Part, grid, joined, words
from relight.console.text import ago, count, local, nodes, span, zone
from relight.domain.care import CareOutcome, CarePhase
from relight.domain.care_history import Quarantine
from relight.domain.ledger import Row, RowKind
from relight.domain.lemons import LEMON, Score

STYLES: dict[str, str] = {
    CarePhase.WAITING: "bold yellow",
    CarePhase.KEPT: "yellow",
    CarePhase.COMPLETING: "bold yellow",
    CareOutcome.RETURNED: "green",
    CareOutcome.CLEARED: "green",
    CareOutcome.OVERRIDDEN: "dim",
    CareOutcome.GONE: "dim",
    CareOutcome.HANDED_OVER: "cyan",
    CareOutcome.FAILED: "bold red",
}
MOST_TOLD = 40
"""Rows of a node's story that are shown; JSON has all."""
MOST_NAMES = 10_000
_TICKET = 16_000


class Listed(NamedTuple):
    """One node of the list."""

    node: str
    quarantine: Quarantine | None
    score: Score


class Found(NamedTuple):
    """The list, and what it leaves out."""

    listed: tuple[Listed, ...]
    ended: int = 0
    """Nodes whose quarantine is over."""


class Story(NamedTuple):
    """All that is told of one node."""

    node: str
    quarantine: Quarantine | None
    score: Score
    rows: tuple[Row, ...]
    """The node's, in the order written, but for single faults."""
    faults: int
    ticket: str
    """Its text; empty where there is none."""


def expand(names: Sequence[str]) -> tuple[str, ...]:
    """Node names from hostlists such as `gpu-[001-004],gpu-007`.

    Raises:
        Stop: when one is no hostlist.
    """
    from ClusterShell.NodeSet import NodeSet, NodeSetException

    found: dict[str, None] = {}
    for name in names:
        try:
            # Only node names: groups, which begin with @, would be looked up in this machine's files.
            nodeset = NodeSet(name, resolver=_no_groups())
        except NodeSetException as error:
            raise Stop(f"{name!r} is no node name or hostlist, like gpu-[001-004]: {error}") from error
        if len(nodeset) > MOST_NAMES:
            raise Stop(f"{name!r} names {len(nodeset)} nodes; accepted: at most {MOST_NAMES}")
        found |= dict.fromkeys(nodeset)
    return tuple(found)


def _no_groups() -> Any:
    from ClusterShell.NodeSet import RESOLVER_NOGROUP

    return RESOLVER_NOGROUP


async def collect(
    ledger: Ledger, settings: Settings, names: Sequence[str], now: datetime, *, everything: bool
) -> Found:
    """The nodes in care, or, where any are named, those; with `everything` also those whose care is over."""
    known = {each.node: each for each in await in_care(ledger, settings.cluster, now)}
    shown = [name for name, each in known.items() if everything or each.open]
    wanted = list(names) or shown
    score = await scores(ledger, settings.cluster, wanted, now)
    listed = tuple(Listed(name, known.get(name), score[name]) for name in sorted(wanted))
    return Found(listed, sum(not each.open for each in known.values()) if not names and not everything else 0)


async def story(ledger: Ledger, settings: Settings, node: str, now: datetime) -> Story:
    """One node's.

    Raises:
        NotFoundStop: when the ledger knows nothing of it.
    """
    rows = tuple(row for row in await ledger.rows(node=node, limit=MOST_ROWS) if row.cluster == settings.cluster)
    if not rows:
        raise NotFoundStop(f"the ledger knows nothing of a node {node} on cluster {settings.cluster}")
    known = {each.node: each for each in await in_care(ledger, settings.cluster, now)}.get(node)
    told = tuple(row for row in rows if row.kind is not RowKind.FAULT)
    score = (await scores(ledger, settings.cluster, (node,), now))[node]
    return Story(node, known, score, told, len(rows) - len(told), ticket_of(known))


def ticket_of(known: Quarantine | None) -> str:
    """The text of a quarantine's ticket; empty where there is none."""
    if known is None or not known.ticket:
        return ""
    try:
        return Path(known.ticket).read_text(encoding="utf-8", errors="replace")[:_TICKET]
    except OSError as error:
        return f"{known.ticket}: {error.strerror}"


# --- for programs -----------------------------------------------------------------------------------------------------


def as_json(each: Listed) -> dict[str, Any]:
    """One node for other programs; keys are only ever added."""
    return {
        "node": each.node,
        "care": each.quarantine.model_dump(mode="json") if each.quarantine else None,
        "in_care": bool(each.quarantine and each.quarantine.open),
        "lemon_score": round(each.score.value, 2),
        "lemon_why": list(each.score.why),
    }


def story_as_json(told: Story) -> dict[str, Any]:
    """The story for other programs."""
    rows = [row.model_dump(mode="json") for row in told.rows]
    more = {"rows": rows, "faults": told.faults, "ticket": told.ticket or None}
    return {**as_json(Listed(told.node, told.quarantine, told.score)), **more}


# --- for people -------------------------------------------------------------------------------------------------------


def print_table(console: Console, found: Found, now: datetime) -> None:
    """The list; a hostlist of the nodes in care at its end, to be put into other commands."""
    if not found.listed:
        console.print(words("No node is in Relight's care.", "green"))
    else:
        console.print(_table(found, now))
    open_ = [each.node for each in found.listed if each.quarantine and each.quarantine.open]
    if len(open_) > 1:
        console.print()
        console.print(words(f"in care: {nodes(open_)}", "dim"))
    if found.ended:
        console.print(words(f"{count(found.ended, 'node')} left care: relight nodes --all", "dim"))


def _table(found: Found, now: datetime) -> Table:
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="dim")
    for name in ("NODE", "STATE", "SINCE", "CAUSE"):
        table.add_column(name, no_wrap=True)
    table.add_column("LEMON", justify="right", no_wrap=True)
    table.add_column("NOW", overflow="fold")
    for each in found.listed:
        known = each.quarantine
        lemon = words(f"{each.score.value:.1f}", "bold red" if each.score.value >= LEMON else "dim")
        if known is None:
            table.add_row(words(each.node), words("not in care", "dim"), "", "", lemon, "")
            continue
        since = words(span(now - known.since) if known.open else ago(known.at, now))
        state = words(_state(known), STYLES.get(_state(known), "blue"))
        table.add_row(words(each.node, "bold"), state, since, words(known.cls), lemon, words(known.text, "", 160))
    return table


def _state(known: Quarantine) -> str:
    return known.outcome or known.phase


def tell(console: Console, told: Story, now: datetime) -> None:
    """Print the story; what a person has to do comes last."""
    known = told.quarantine
    console.print(_headline(told, now))
    console.print()
    console.print(grid(_facts(told, now)))
    console.print()
    console.print(words("What happened, the newest last", "dim"))
    console.print(_timeline(told.rows, now))
    if known and known.phase == CarePhase.WAITING and known.open:
        console.print()
        console.print(words(f"Waiting for people: relight approve node/{told.node}", "bold yellow"))
    if told.ticket and known and known.open:
        console.print()
        console.print(words("Ticket", "dim"))
        for line in told.ticket.splitlines():
            console.print(words(line))


def _headline(told: Story, now: datetime) -> Text:
    known = told.quarantine
    state = _state(known) if known else "not in care"
    length = ""
    if known:
        length = f"for {span(now - known.since)}" if known.open else f"ended {ago(known.at, now)}"
    pieces = [(f"Node {told.node}", "bold"), (state.replace("_", " ").upper(), STYLES.get(state, "blue"))]
    return joined([*pieces, (length, "dim")])


def _facts(told: Story, now: datetime) -> list[Part]:
    known, score = told.quarantine, told.score
    facts = []
    if known:
        facts.append(
            Part("Cause", (words(known.cls, "bold"), words(f"incident {known.incident}, care {known.care}", "dim")))
        )
        facts.append(Part("Since", (words(f"{local(known.since, now)} {zone(now)}, {ago(known.since, now)}"),)))
        if known.next:
            asked = f"; asked for: {known.remedy}" if known.remedy else ""
            facts.append(Part("Verdict", (words(f"{known.next}{asked}", "bold"),)))
        facts.append(Part("Now", (words(known.text, "", 400),)))
        if known.ticket:
            facts.append(Part("Kept in", (words(str(Path(known.ticket).parent)),)))
    lemon = "bold red" if score.value >= LEMON else ""
    why = f": {', '.join(score.why)}" if score.why else ""
    facts.append(Part("Lemon", (words(f"{score.value:.1f}{why}", lemon),)))
    if told.faults:
        facts.append(Part("Faults", (words(f"{count(told.faults, 'fault')} told by its agent: -o json"),)))
    return facts


def _timeline(rows: Sequence[Row], now: datetime) -> Table:
    table = Table.grid(padding=(0, 2, 0, 0))
    table.add_column(no_wrap=True, style="dim")
    table.add_column(no_wrap=True)
    table.add_column(overflow="fold")
    if len(rows) > MOST_TOLD:
        table.add_row("", "", words(f"{len(rows) - MOST_TOLD} earlier ones: -o json", "dim"))
    for row in rows[-MOST_TOLD:]:
        name, text = told_of(row)
        table.add_row(local(row.at, now), words(name), words(text, "", 300))
    return table


def told_of(row: Row) -> tuple[str, str]:
    """A row of any kind, in a word and a line."""
    return _TELLERS.get(row.kind, _other)(row)


def _care(row: Row) -> tuple[str, str]:
    step, _, name = str(row.body.get("step", "")).partition("-")
    return str(row.body.get("outcome") or ("judged" if step == "judged" else name.replace("-", " ") or step)), _text(
        row
    )


def _leave(row: Row) -> tuple[str, str]:
    leave = row.body.get("leave", {})
    verb = "granted" if leave.get("granted") else "refused"
    return f"leave {verb}", f"{leave.get('action', 'drain')}: {leave.get('reason', '')}"


def _intent(row: Row) -> tuple[str, str]:
    return "meant", f"{row.body.get('what', '')} {row.body.get('reason', '')}".strip()


def _effect(row: Row) -> tuple[str, str]:
    return "done", str(row.body.get("done", {}).get("text", ""))


def _decision(row: Row) -> tuple[str, str]:
    said = row.body.get("decision", {})
    not_counted = "" if row.body.get("counts") else f" (not counted: {row.body.get('remark', '')})"
    who = said.get("by") or "an unverified sender"
    return "approved" if said.get("approved") else "rejected", f"{who}: {said.get('reason', '')}{not_counted}"


def _reversed(row: Row) -> tuple[str, str]:
    return "undone", f"a person undid our {row.body.get('what', '')}: {_text(row)}"


def _other(row: Row) -> tuple[str, str]:
    return str(row.kind), _text(row)


def _text(row: Row) -> str:
    return str(row.body.get("text", ""))


_TELLERS = {
    RowKind.CARE: _care,
    RowKind.LEAVE: _leave,
    RowKind.INTENT: _intent,
    RowKind.EFFECT: _effect,
    RowKind.DECISION: _decision,
    RowKind.REVERSED: _reversed,
}
