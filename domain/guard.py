"""The guard's decision: may this node be drained, or declared down? Pure.

Decided from one fresh look and what was granted before.

Leave to drain is granted only where all of these allow it, and so within the least of the limits:

- one plain node name, in a plan of fewer nodes than would be a common cause (a wild or empty target is an error,
  never "all");
- a platform witness on that very node, which is in service and is not being drained by somebody else;
- no other leave for it, and no person's undrain of it within `cool_down`;
- `drains_per_hour` on the cluster, `drain_share` of each of its partitions within an hour (one node always),
  `drains_per_domain` below its leaf switch or in its block;
- fewer nodes of each of its partitions out of service, for whatever cause, than `most_unavailable` (but one may
  always be);
- room for the job that asks to be placed again, unless the evidence is fatal for the node (`FATAL`).

What is not known (the node, its topology, what the job needs) never grants. Leave to declare a node down is for one
that hangs in COMPLETING, and has a count of its own (`downs_per_hour`).
"""

import math
import re
from collections.abc import Sequence
from datetime import datetime, timedelta
from enum import StrEnum
from typing import NamedTuple

from relight.domain.base import Value, clip
from relight.domain.evidence import Evidence, Trust
from relight.domain.human import Share
from relight.domain.incidents import NODE_REASON_PREFIX
from relight.domain.permits import Policy
from relight.domain.slurm import NodeFlag, NodeRecord, NodeState

WINDOW = timedelta(hours=1)
LEAVE_LASTS = timedelta(minutes=5)
"""A leave not used by then is void: the world has moved on."""
FATAL = frozenset(
    {
        "XID_79",
        "NVML_GPU_LOST",
        "NVRM_INIT_FAILED",
        "NVIDIA_DRIVER_DOWN",
        "AMDGPU_INIT_FAILED",
        "AMDGPU_DRIVER_DOWN",
    }
)
"""Signatures after which no job can use the node's GPUs until somebody has worked on it: a GPU is off the bus or
lost, or the driver does not run (NVIDIA Xid catalogue: Xid 79 needs a restart of the host). Keeping such a node in
service so that the job has nodes enough would only make it fail there. Everything else (memory errors, a link, an
engine) may go on or be put right by a reset, and a job that runs is worth more."""
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,254}")


class NodeAct(StrEnum):
    """What leave is asked for."""

    DRAIN = "drain"
    DOWN = "down"
    """Declare a node down that hangs in COMPLETING."""


class Ruling(NamedTuple):
    """The guard's word, with the reason a person reads."""

    granted: bool
    reason: str


class Grant(Value):
    """Leave that was given."""

    node: str
    incident: str
    at: datetime
    action: NodeAct = NodeAct.DRAIN
    partitions: tuple[str, ...] = ()
    """The node's, then."""
    domains: tuple[str, ...] = ()
    """Its failure domains, then."""


class PartitionCount(Value):
    """A partition as a fresh look shows it."""

    name: str
    nodes: int
    out: int
    """Out of service, for whatever cause."""


class Room(Value):
    """Whether a job that is to be placed again has nodes enough."""

    needs: int
    spare: int
    """Nodes of its partition that could take it, without the one that is asked for and those that leave was given
    for."""


class View(Value):
    """What a fresh look shows of one node that is asked for; what could not be read is None."""

    node: NodeRecord | None = None
    partitions: tuple[PartitionCount, ...] = ()
    """The node's."""
    domains: tuple[str, ...] | None = None
    """Its failure domains; empty where the cluster has none."""
    undrained_at: datetime | None = None
    """When a person put it back into service after Relight had taken it out; None: nobody has."""
    room: Room | None = None
    unseen: tuple[str, ...] = ()
    """Nodes with leave within the last minutes that the look still shows in service."""
    stop: str = ""
    """A pause, the open breaker or the kill switch that stands against it; empty where none does."""


class Case(NamedTuple):
    """What is asked for."""

    node: str
    evidence: tuple[Evidence, ...]
    incident: str = ""
    action: NodeAct = NodeAct.DRAIN
    targets: int = 1
    """How many nodes the same plan takes out."""
    restarts: bool = False
    """Whether a job waits to be placed again."""


def recent(grants: Sequence[Grant], now: datetime, action: NodeAct | None = None) -> tuple[Grant, ...]:
    """The grants that still count, all or those of one action."""
    return tuple(g for g in grants if now - g.at < WINDOW and action in {None, g.action})


def out_of_service(node: NodeRecord) -> bool:
    """True when no job could start there, whoever or whatever is behind it; a node that sleeps to save power could."""
    barred = {
        NodeFlag.BLOCKED,
        NodeFlag.DRAIN,
        NodeFlag.FAIL,
        NodeFlag.INVALID_REG,
        NodeFlag.MAINTENANCE,
        NodeFlag.NOT_RESPONDING,
        NodeFlag.REBOOT_ISSUED,
    }
    return node.state not in {NodeState.IDLE, NodeState.ALLOCATED, NodeState.MIXED} or bool(node.flags & barred)


def counts(nodes: Sequence[NodeRecord]) -> tuple[PartitionCount, ...]:
    """All partitions by name. Nodes that are only planned (FUTURE) do not exist."""
    real = [node for node in nodes if node.state is not NodeState.FUTURE]
    names = sorted({name for node in real for name in node.partitions})
    return tuple(_count(name, [node for node in real if name in node.partitions]) for name in names)


def _count(name: str, nodes: Sequence[NodeRecord]) -> PartitionCount:
    return PartitionCount(name=name, nodes=len(nodes), out=sum(out_of_service(node) for node in nodes))


def part(share: Share, nodes: int) -> int:
    """So many nodes are this share of a partition, rounded down, but one always is: shares of few nodes round badly."""
    return max(1, math.floor(nodes * share + 1e-9))


def wild(node: str) -> str:
    """Why this is not one plain node; empty when it is. `ALL` means every node to scontrol."""
    if not node:
        return "no node is named"
    if node.lower() == "all" or not _NAME.fullmatch(node):
        return f"not one plain node name: {clip(node, 60)!r}"
    return ""


def fatal(case: Case) -> bool:
    """True when a platform witness says that no job can use the node until somebody has worked on it."""
    return any(e.trust is Trust.PLATFORM and e.node == case.node and e.signature in FATAL for e in case.evidence)


def rule(case: Case, view: View, grants: Sequence[Grant], policy: Policy, now: datetime) -> Ruling:
    """Grant or refuse. The first reason against it is told."""
    node = view.node
    mine = recent(grants, now, case.action)
    if refusal := wild(case.node) or view.stop or _too_many(case, policy) or _state(case, node):
        return Ruling(granted=False, reason=refusal)
    if node is None or node.name != case.node:
        return Ruling(granted=False, reason=UNREAD)
    refusal = _beside(case, view, grants, policy, now) or _limits(case, node, view, mine, policy)
    if refusal:
        return Ruling(granted=False, reason=refusal)
    limit = _per_hour(case.action, policy)
    return Ruling(granted=True, reason=f"{case.action} {len(mine) + 1} of {limit} in this hour")


UNREAD = "the node's state could not be read"


def _per_hour(action: NodeAct, policy: Policy) -> int:
    return policy.drains_per_hour if action is NodeAct.DRAIN else policy.downs_per_hour


def _too_many(case: Case, policy: Policy) -> str:
    if 1 <= case.targets < policy.breaker.nodes:
        return ""
    return f"one plan takes out {case.targets} nodes at once: {policy.breaker.nodes} are a common cause"


def _state(case: Case, node: NodeRecord | None) -> str:
    """Why this node must not be touched, whatever the limits say."""
    if node is None:
        return UNREAD
    if not any(e.trust is Trust.PLATFORM and e.node == node.name for e in case.evidence):
        return "no platform witness on this node (a job's own output never drains one)"
    ours = node.reason.startswith(NODE_REASON_PREFIX)
    if node.draining and not (ours and case.action is NodeAct.DOWN):
        return f"already drained by {'Relight' if ours else 'somebody else'}: {node.reason}"
    if node.lost:
        return "the node is down already; Slurm keeps it out"
    if case.action is NodeAct.DOWN and NodeFlag.COMPLETING not in node.flags:
        return "the node no longer hangs in COMPLETING"
    return ""


def _beside(case: Case, view: View, grants: Sequence[Grant], policy: Policy, now: datetime) -> str:
    """What others do, or have done, with this node."""
    for grant in recent(grants, now, case.action):
        # Two incidents may ask in the same breath, before the first drain can be read back.
        if grant.node == case.node and now - grant.at < LEAVE_LASTS:
            return f"incident {grant.incident} has leave for this node already"
    back = view.undrained_at
    if case.action is NodeAct.DRAIN and back is not None and now - back < policy.cool_down:
        again = f"not again before {back + policy.cool_down:%Y-%m-%d %H:%M} UTC"
        return f"a person put it back into service at {back:%Y-%m-%d %H:%M} UTC: {again}"
    return ""


def _limits(case: Case, node: NodeRecord, view: View, mine: Sequence[Grant], policy: Policy) -> str:
    """Which limit is used up; empty while none is."""
    limit = _per_hour(case.action, policy)
    if len(mine) >= limit:
        return f"{len(mine)} of {limit} {case.action}s of this hour are used on this cluster"
    if missing := set(node.partitions) - {each.name for each in view.partitions}:
        return f"partition {min(missing)} could not be counted"
    if view.domains is None:
        return "the cluster's topology could not be read"
    for each in view.partitions:
        if full := _partition_full(each, view, mine, policy):
            return full
    for domain in view.domains:
        used = sum(domain in grant.domains for grant in mine)
        if used >= policy.drains_per_domain:
            return f"{used} of {policy.drains_per_domain} {case.action}s of this hour are used in {domain}"
    return _no_room(case, view)


def _partition_full(each: PartitionCount, view: View, mine: Sequence[Grant], policy: Policy) -> str:
    share = part(policy.drain_share, each.nodes)
    used = sum(each.name in grant.partitions for grant in mine)
    if used >= share:
        return f"{used} of {share} nodes ({policy.drain_share} of partition {each.name}) are used in this hour"
    unseen = sum(each.name in grant.partitions and grant.node in view.unseen for grant in mine)
    most = part(policy.most_unavailable, each.nodes)
    if each.out + unseen >= most:
        out = f"{each.out + unseen} of {each.nodes} nodes of partition {each.name} are out of service"
        return f"{out}: no drain from {most} on ({policy.most_unavailable})"
    return ""


def _no_room(case: Case, view: View) -> str:
    """Too few nodes for the job that asks to be placed again; a node that it could not use anyhow is no loss to it."""
    if case.action is NodeAct.DOWN or not case.restarts or fatal(case):
        return ""
    if view.room is None:
        return "how many nodes the job needs is not known"
    if view.room.spare < view.room.needs:
        return f"the job needs {view.room.needs} nodes and only {view.room.spare} would be left for it"
    return ""
