"""Activities of a node's quarantine that read, wait and write down. What changes a node is in `care_acts`."""

from datetime import timedelta
from typing import Any

from temporalio import activity

from relight.activities import care_contracts as k
from relight.activities import contracts as c
from relight.activities.restart import STUCK_MARGIN
from relight.activities.site import Site, poll
from relight.clients.slurm import NodeNotFoundError
from relight.domain.care import Drained, Hold, hold, is_empty, really_drained
from relight.domain.evidence import Answer
from relight.domain.ledger import Change, Entry, RowKind
from relight.domain.permits import NODE_RIGHTS
from relight.domain.policy_rules import node_permit
from relight.domain.slurm import NodeFlag, NodeRecord

LOOK_AGAIN = timedelta(seconds=2)
"""At a node that is being emptied: its jobs may end at any moment, and one node is read at a time."""
LOOK_SLOWLY = timedelta(seconds=10)
"""At a node that waits for people."""
AT_FIRST = 150
"""Looks until the emptying of a node is looked at slowly too: five minutes."""


class NodeCare:
    """Reads, waits for and records nodes in quarantine on a cluster."""

    def __init__(self, site: Site) -> None:
        """Bind to a cluster."""
        self._site = site

    # --- writing down ---

    @activity.defn(name=k.BEGIN_CARE.name)
    async def begin(self, arg: k.RecordInput) -> k.Limits:
        """Write down that the care has begun; the answer is what the policy says of this node."""
        await self._write(arg)
        return await self._limits(arg.care.node)

    @activity.defn(name=k.READ_LIMITS.name)
    async def limits(self, arg: k.CareArg) -> k.Limits:
        """What the policy in force says of this node, now."""
        return await self._limits(arg.care.node)

    @activity.defn(name=k.RECORD_CARE.name)
    async def record(self, arg: k.RecordInput) -> c.Nothing:
        """Write down one step."""
        await self._write(arg)
        return c.Nothing()

    @activity.defn(name=k.RECORD_HEARD.name)
    async def record_heard(self, arg: k.HeardInput) -> c.Nothing:
        """Write down a person's word on what is asked, whether or not it counts."""
        body = {
            "decision": arg.decision,
            "counts": arg.counts,
            "remark": arg.remark,
            "plan": arg.digest,
            "what": arg.what,
            "score": arg.score,
        }
        if arg.proof:
            body["proof"] = arg.proof.model_dump(mode="json")
        entry = self._entry(arg.care, f"decision-{arg.digest[:12]}-{arg.number}", RowKind.DECISION, body)
        await self._site.ledger.commit(Change(entries=(entry,)))
        return c.Nothing()

    async def _write(self, arg: k.RecordInput) -> None:
        body: dict[str, Any] = {"step": arg.step, "phase": arg.phase, "text": arg.text, "incident": arg.care.incident}
        if arg.word:
            body["word"] = arg.word.model_dump(mode="json")
        body |= {name: value for name in ("outcome", "ticket", "cls") if (value := getattr(arg, name))}
        if arg.until:
            body["until"] = arg.until.isoformat()
        entries = [self._entry(arg.care, f"care-{arg.step}", RowKind.CARE, body)]
        if arg.reversed:
            entries.append(self._reversal(arg))
        await self._site.ledger.commit(Change(entries=tuple(entries)))

    def _reversal(self, arg: k.RecordInput) -> Entry:
        """For the guard: who undid what, and on which evidence it had been done."""
        told = [evidence.text for evidence in arg.evidence]
        body = {"what": arg.reversed, "by": arg.by, "text": arg.text, "mark": arg.care.mark, "evidence": told}
        entry = self._entry(arg.care, "reversed", RowKind.REVERSED, body)
        return entry.model_copy(update={"incident": arg.care.incident})

    def _entry(self, care: k.CareRef, step: str, kind: RowKind, body: dict[str, Any]) -> Entry:
        return entry_of(self._site, care, step, kind, body)

    async def _limits(self, name: str) -> k.Limits:
        policy, facts = self._site.policy, await self._site.slurm.facts()
        node = await self._read(name)
        partitions = node.partitions if node else ()
        return k.Limits(
            drain_takes=policy.drain_takes,
            stuck_after=facts.kill_wait + facts.unkillable_step_timeout + STUCK_MARGIN,
            approval_expires=policy.approval_expires,
            execution_expires=policy.execution_expires,
            trust_bare=policy.trust_temporal_ui,
            needed={right: policy.approvers_needed((right,)) for right in NODE_RIGHTS},
            permits={right: node_permit(policy, self._site.cluster, partitions, right) for right in NODE_RIGHTS},
            approvers=self._site.approvers,
        )

    # --- waiting ---

    @activity.defn(name=k.AWAIT_DRAINED.name)
    async def await_drained(self, arg: k.AwaitDrainedInput) -> k.Held:
        """Wait until the node is really drained, however long its jobs take, or until it is in other hands."""
        looks = 0
        while True:
            node = await self._read(arg.care.node)
            held = self._held(arg.care, node)
            if node is None or held.hold is not Hold.OURS:
                return held
            if is_empty(node):
                drained = await look_whether_drained(self._site, node)
                if drained.answer is Answer.YES:
                    return held.model_copy(update={"text": drained.text})
            looks += 1
            await poll(self._site, LOOK_AGAIN if looks < AT_FIRST else LOOK_SLOWLY, looks)

    @activity.defn(name=k.AWAIT_CHANGE.name)
    async def await_change(self, arg: k.AwaitChangeInput) -> k.Held:
        """Wait until the node is in other hands, or, where that is asked for, no longer hangs in COMPLETING."""
        looks = 0
        while True:
            node = await self._read(arg.care.node)
            held = self._held(arg.care, node)
            if node is None or (arg.completing and not _hangs(node)):
                return held
            if not arg.completing and held.hold is not Hold.OURS:
                return held
            looks += 1
            await poll(self._site, LOOK_AGAIN if arg.completing else LOOK_SLOWLY, looks)

    async def _read(self, name: str) -> NodeRecord | None:
        try:
            return await self._site.slurm.node(name)
        except NodeNotFoundError:
            return None

    def _held(self, care: k.CareRef, node: NodeRecord | None) -> k.Held:
        now = self._site.clock()
        if node is None:
            return k.Held(hold=None, text=f"Slurm no longer knows {care.node}", at=now)
        held = hold(node, care.mark)
        text = {
            Hold.OURS: f"{node.state}, {node.reason}",
            Hold.TAKEN: f"somebody else has set it aside: {node.reason}",
            Hold.FREED: f"it is back in service ({node.state})",
        }[held]
        return k.Held(hold=held, text=text, at=now, by=node.reason_user if held is Hold.TAKEN else "")


def _hangs(node: NodeRecord) -> bool:
    return NodeFlag.COMPLETING in node.flags


async def look_whether_drained(site: Site, node: NodeRecord) -> Drained:
    """Whether the node is really drained: all jobs are read, for the node's own record does not show suspended ones."""
    return really_drained(node, await site.slurm.jobs())


def entry_of(site: Site, care: k.CareRef, step: str, kind: RowKind, body: dict[str, Any]) -> Entry:
    """A row of a quarantine: found by its id, and by the node."""
    return Entry(
        id=care.entry(step),
        kind=kind,
        at=site.clock(),
        cluster=site.cluster,
        incident=care.id,
        attempt=str(care.attempt),
        node=care.node,
        body=body,
    )
