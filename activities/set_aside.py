"""Writes down when nodes are set aside (drained, or down) and when they are back: what was right is told by that."""

from collections.abc import Iterable, Sequence
from datetime import datetime

from relight.activities.site import Site
from relight.domain.base import clip, compact_time
from relight.domain.incidents import NODE_REASON_PREFIX
from relight.domain.ledger import Change, Entry, RowKind
from relight.domain.slurm import NodeRecord

MOST_AT_ONCE = 256
"""Rows of one look; the others follow with the next looks. Maintenance drains thousands at a time."""
BACK = ""
_REASON = 200


class SetAside:
    """Compares the nodes with the last look, which is kept in the ledger: what happened meanwhile is told as well."""

    def __init__(self, site: Site) -> None:
        """Bind to a cluster."""
        self._site = site
        self._cursor = f"set_aside/{site.cluster}"
        self._known: dict[str, str] | None = None

    async def look(self, nodes: Sequence[NodeRecord]) -> None:
        """Write down what has changed since. The very first look only remembers."""
        now = {node.name: _state(node) for node in nodes}
        known = await self._last()
        if known is None:
            await self._keep((), {name: state for name, state in now.items() if state})
            return
        changed = [node for node in nodes if now[node.name] != known.get(node.name, BACK)][:MOST_AT_ONCE]
        if not changed:
            return
        known = known | {node.name: now[node.name] for node in changed}
        at = self._site.clock()
        kept = {name: state for name, state in known.items() if state}
        await self._keep([self._entry(node, now[node.name], at) for node in changed], kept)

    async def _last(self) -> dict[str, str] | None:
        if self._known is None and (found := await self._site.ledger.cursor(self._cursor)):
            self._known = dict(found["aside"])
        return self._known

    async def _keep(self, entries: Iterable[Entry], known: dict[str, str]) -> None:
        await self._site.ledger.commit(Change(entries=tuple(entries), cursors={self._cursor: {"aside": known}}))
        self._known = known

    def _entry(self, node: NodeRecord, state: str, at: datetime) -> Entry:
        reason = clip(node.reason, _REASON) if state else ""
        body = {
            "state": state or "back",
            "reason": reason,
            "by": clip(node.reason_user, 64) if state else "",
            "ours": reason.startswith(NODE_REASON_PREFIX),
            "text": f"{state}: {reason}" if state else "back in service",
        }
        entry_id = f"set_aside/{self._site.cluster}/{node.name}/{state or 'back'}/{compact_time(at)}"
        return self._site.entry(entry_id, RowKind.SET_ASIDE, body).model_copy(update={"node": node.name})


def _state(node: NodeRecord) -> str:
    """`down` by Slurm's word, `drained` by anybody's, or `BACK`."""
    if node.lost:
        return "down"
    return "drained" if node.draining else BACK
