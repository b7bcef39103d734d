"""Nodes from `sinfo --json` (22.05) or `scontrol show node --json` (23.02 and newer): the same entries."""

from typing import Any

from relight.clients.slurm_parse import GarbledError, epoch, json_list, number, word
from relight.domain.slurm import NodeRecord, parse_node_state

NODE = frozenset({"name", "state"})
"""What only a node has among the objects of such a document."""


def parse_nodes(text: str) -> tuple[NodeRecord, ...]:
    """All nodes of the document.

    Raises:
        GarbledError: when an entry lacks its name or state.
        ReportedError: when the document reports errors.
    """
    return json_list(text, "nodes", NODE, _node)


def _node(entry: dict[str, Any]) -> NodeRecord:
    name = word(entry.get("name"))
    words = _words(entry.get("state")) + _words(entry.get("state_flags"))
    if not name or not words:
        raise GarbledError(f"a node without name or state: {name!r}")
    state = parse_node_state(words)
    return NodeRecord(
        name=name,
        state=state.state,
        flags=state.flags,
        reason=word(entry.get("reason")),
        reason_user=word(entry.get("reason_set_by_user")),
        reason_time=epoch(entry.get("reason_changed_at")),
        partitions=tuple(_words(entry.get("partitions"))),
        features=tuple(_words(entry.get("features"))),
        gres=word(entry.get("gres")),
        boot_time=epoch(entry.get("boot_time")),
        slurmd_start_time=epoch(entry.get("slurmd_start_time")),
        address=word(entry.get("address")),
        port=number(entry.get("port")) or 0,
    )


def _words(value: Any) -> list[str]:
    """A list of words: newer ones print lists, 22.05 `"mixed"` and `"a,b"`."""
    parts = value.split(",") if isinstance(value, str) else value or []
    return [str(part) for part in parts if part]
