"""The guard's decision: may this node be drained? Pure, from fresh reads and the grants of the last hour."""

from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import NamedTuple

from relight.domain.base import Value
from relight.domain.evidence import Evidence, Trust
from relight.domain.incidents import NODE_REASON_PREFIX
from relight.domain.slurm import NodeRecord

WINDOW = timedelta(hours=1)
LEAVE_LASTS = timedelta(minutes=5)
"""A leave not used by then is void: the world has moved on."""


class Ruling(NamedTuple):
    """The guard's word, with the reason a person reads."""

    granted: bool
    reason: str


class Grant(Value):
    """Leave that was given."""

    node: str
    incident: str
    at: datetime


def recent(grants: Sequence[Grant], now: datetime) -> tuple[Grant, ...]:
    """The grants that still count."""
    return tuple(grant for grant in grants if now - grant.at < WINDOW)


def rule(
    node: NodeRecord | None,
    evidence: Sequence[Evidence],
    grants: Sequence[Grant],
    per_hour: int,
    now: datetime,
) -> Ruling:
    """Grant or refuse. `node` is None when it could not be read: unknown is not yes."""
    refusal = _refusal(node, evidence)
    if node is None or refusal:
        return Ruling(granted=False, reason=refusal)
    for grant in recent(grants, now):
        # Two incidents may ask in the same breath, before the first drain can be read back.
        if grant.node == node.name and now - grant.at < LEAVE_LASTS:
            return Ruling(granted=False, reason=f"incident {grant.incident} has leave for this node already")
    used = len(recent(grants, now))
    if used >= per_hour:
        return Ruling(granted=False, reason=f"{used} of {per_hour} drains of this hour are used on this cluster")
    return Ruling(granted=True, reason=f"drain {used + 1} of {per_hour} in this hour")


def _refusal(node: NodeRecord | None, evidence: Sequence[Evidence]) -> str:
    """Why this node must not be drained, whatever the cap says; empty when it may."""
    if node is None:
        return "the node's state could not be read"
    if not any(e.trust is Trust.PLATFORM and e.node == node.name for e in evidence):
        return "no platform witness on this node (a job's own output never drains one)"
    if node.draining:
        owner = "Relight" if node.reason.startswith(NODE_REASON_PREFIX) else "somebody else"
        return f"already drained by {owner}: {node.reason}"
    return "the node is down already; Slurm keeps it out" if node.lost else ""
