"""Nodes, as lines of a list and as a page of their own. Reads the ledger alone."""

import asyncio
from collections.abc import Sequence
from datetime import datetime, timedelta
from pathlib import Path

from relight.clients.ledger_pages import WantedRows
from relight.clients.node_history import LOOKED_BACK, MOST_INCIDENTS
from relight.console.nodes import Listed, Story, ticket_of, told_of
from relight.console.web.read_shelf import Shelf
from relight.console.web.read_values import Ask, NodeFilter, NodeLine, NodePage, NodeRow, Page
from relight.domain.care_history import Quarantine, quarantines, signs_of
from relight.domain.ledger import RowKind
from relight.domain.lemons import FORGOTTEN, LEMON, Score, score

MOST_NODES = 5000
MOST_SIGNS = 1000
"""Rows of a node that are looked through for its lemon score, the newest."""
_SIGNS = (RowKind.EFFECT, RowKind.CARE, RowKind.FAULT)
MOST_TOLD = 500
MOST_READ = 2000
"""Rows of one node, the newest."""
LOOK_AFTER = timedelta(seconds=1)
SCORE_AFTER = timedelta(seconds=30)


class Nodes:
    """A cluster's nodes. Where quarantines stand is kept for a moment, as a list is cut from all of them."""

    def __init__(self, shelf: Shelf, cluster: str) -> None:
        self._shelf = shelf
        self._cluster = cluster
        self._known: dict[str, Quarantine] = {}
        self._head: int | None = None
        self._looked: datetime | None = None
        self._looking = asyncio.Lock()
        """One look at a time: the first one reads much."""
        self._scores: dict[str, Score] = {}
        self._scored: datetime | None = None

    async def page(self, wanted: NodeFilter, ask: Ask, after: str, now: datetime) -> Page[NodeLine]:
        """Those in care first, then by name."""
        await self._look(now)
        fit = [each for each in self._known.values() if _fits(each, wanted)]
        listed = sorted(fit, key=_place)
        begin = next((i for i, each in enumerate(listed) if _place(each) > after), len(listed)) if after else 0
        shown = listed[begin : begin + ask.limit]
        known = await self._score([each.node for each in shown], now)
        lines = tuple(node_line(Listed(each.node, each, known[each.node])) for each in shown)
        last = _place(shown[-1]) if shown and begin + ask.limit < len(listed) else ""
        return Page(items=lines, next=last, total=len(listed))

    async def story(self, node: str, now: datetime) -> Story | None:
        """One node's; None where the ledger knows nothing of it."""
        wanted = WantedRows(cluster=self._cluster, node=node)
        rows = tuple(reversed(await self._shelf.pages.rows(wanted, MOST_READ)))
        if not rows:
            return None
        await self._look(now)
        known = self._known.get(node)
        told = tuple(row for row in rows if row.kind is not RowKind.FAULT)
        score_ = (await self._score([node], now))[node]
        ticket = await asyncio.to_thread(ticket_of, known)
        return Story(node, known, score_, told, len(rows) - len(told), ticket)

    async def warm(self, now: datetime) -> None:
        """Read what lists are cut from, before anybody waits for it."""
        await self._look(now)
        await self._score([], now)

    async def _look(self, now: datetime) -> None:
        async with self._looking:
            if self._looked and now - self._looked < LOOK_AFTER:
                return
            pages = self._shelf.pages
            head = await pages.head()
            if self._head is None:
                rows = await pages.newest_care(self._cluster, now - LOOKED_BACK, MOST_NODES)
            elif head > self._head:
                rows = await pages.care_after(self._cluster, self._head)
            else:
                rows = ()
            self._known = {each.node: each for each in quarantines(rows, self._known.values())}
            self._head, self._looked = head, now

    async def _score(self, nodes: Sequence[str], now: datetime) -> dict[str, Score]:
        if self._scored is None or now - self._scored > SCORE_AFTER:
            self._scores, self._scored = {}, now
        missing = [node for node in nodes if node not in self._scores]
        if missing:
            incidents = await self._shelf.pages.verdicts(self._cluster, now - FORGOTTEN, MOST_INCIDENTS)
            for node in missing:
                rows = await self._shelf.pages.of_node(self._cluster, node, _SIGNS, now - FORGOTTEN, MOST_SIGNS)
                self._scores[node] = score(signs_of(node, incidents, rows), now)
        return {node: self._scores[node] for node in nodes}


def _place(each: Quarantine) -> str:
    """Sorts as the list does."""
    return f"{0 if each.open else 1}{each.node}"


def _fits(each: Quarantine, wanted: NodeFilter) -> bool:
    in_state = not wanted.state or each.open == (wanted.state == "in_care")
    return in_state and wanted.text.lower() in each.node.lower()


def node_line(each: Listed) -> NodeLine:
    """A node in a list."""
    known = each.quarantine
    return NodeLine(
        node=each.node,
        in_care=bool(known and known.open),
        phase=known.phase if known else "",
        outcome=known.outcome if known else "",
        cause=known.cls if known else "",
        since=known.since if known else None,
        at=known.at if known else None,
        text=known.text if known else "",
        incident=known.incident if known else "",
        remedy=known.remedy if known else "",
        lemon=round(each.score.value, 2),
        lemon_why=each.score.why,
        is_lemon=each.score.value >= LEMON,
    )


def node_page(story: Story) -> NodePage:
    """All that is told of one node."""
    known = story.quarantine
    rows = []
    for row in story.rows[-MOST_TOLD:]:
        name, text = told_of(row)
        rows.append(NodeRow(at=row.at, name=name, text=text, incident=row.incident))
    return NodePage(
        line=node_line(Listed(story.node, known, story.score)),
        story=tuple(rows),
        faults=story.faults,
        ticket=story.ticket,
        kept_in=str(Path(known.ticket).parent) if known and known.ticket else "",
        next=known.next if known else "",
    )
