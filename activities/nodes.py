"""Activities on nodes: fresh reads for the guard, and the one mutation, draining."""

from temporalio import activity

from relight.activities import contracts as c
from relight.activities.approved import lapsed
from relight.activities.guard import newer
from relight.activities.leaves import on_record
from relight.activities.mutations import Mutation
from relight.activities.records import row
from relight.activities.restart import ReadBackError
from relight.activities.site import Site
from relight.clients.slurm import AmbiguousWriteError, SlurmUnavailableError
from relight.domain.base import clip
from relight.domain.guard import NodeAct
from relight.domain.incidents import Outcome, node_mark, node_reason
from relight.domain.ledger import Change, RowKind
from relight.domain.policy import Policy
from relight.domain.slurm import NodeRecord

MOST_NAME = 100
"""Characters of a node's name that a row keeps: what asks may send anything."""


class NodeActs:
    """Reads and drains nodes of a cluster."""

    def __init__(self, site: Site) -> None:
        """Bind to a cluster."""
        self._site = site

    @activity.defn(name=c.READ_POLICY.name)
    async def read_policy(self, _arg: c.PolicyInput) -> Policy:
        """The policy in force."""
        return Policy.model_validate(self._site.policy.model_dump())

    @activity.defn(name=c.READ_NODES.name)
    async def read_nodes(self, arg: c.ReadNodesInput) -> c.Nodes:
        """Fresh records of these nodes; a failed read is said, not retried: the guard refuses on unknown."""
        try:
            nodes = await self._site.slurm.nodes()
        except SlurmUnavailableError as error:
            return c.Nodes(nodes=(), unknown=str(error)[:300])
        wanted = set(arg.nodes)
        return c.Nodes(nodes=tuple(n for n in nodes if n.name in wanted))

    @activity.defn(name=c.RECORD_LEAVE.name)
    async def record_leave(self, arg: c.LeaveInput) -> c.Nothing:
        """Write down grant or refusal, and in the same transaction how the guard stands with it."""
        ref, node = arg.request.incident, clip(arg.leave.node, MOST_NAME)
        body = {
            "leave": arg.leave.model_copy(update={"node": node}).model_dump(mode="json"),
            "evidence": [e.model_dump(mode="json") for e in arg.request.evidence],
        }
        if arg.grant:
            body["grant"] = arg.grant.model_dump(mode="json")
        if arg.undrained_at:
            body["undrained_at"] = arg.undrained_at.isoformat()
        cursors = await newer(self._site, arg.standing) if arg.standing else {}
        # By the answer, not by the node: the same incident may ask again.
        entry = row(self._site, ref, f"leave-{node}", RowKind.LEAVE, body, phase=arg.answer or "done", node=node)
        await self._site.ledger.commit(Change(entries=(entry,), cursors=cursors))
        return c.Nothing()

    @activity.defn(name=c.DRAIN.name)
    async def drain(self, arg: c.DrainInput) -> c.Done:
        """Drain one node, if the leave still holds and nobody else has touched the node."""
        mutation = Mutation(self._site, arg.incident, f"drain-{arg.node}")
        done, meant = await mutation.before()
        if done:
            return done
        reason = node_reason(arg.incident.id, arg.cls, arg.summary)
        node = await self._site.slurm.node(arg.node)
        stop = self._must_not_drain(arg, node)
        if stop:
            return await mutation.effect(stop, arg.node)
        if not node.draining:
            if void := lapsed(self._site, arg.approved_until):
                return await mutation.effect(void, arg.node)
            if not await on_record(self._site, arg.incident, arg.node, NodeAct.DRAIN):
                return await mutation.effect(self._done("no leave is on record", Outcome.EXPIRED), arg.node)
            if not meant:
                await mutation.intend({"what": "drain", "reason": reason}, arg.node)
            await self._write(arg.node, reason)
            node = await self._site.slurm.node(arg.node)
        if not (node.draining and self._ours(arg, node)):
            raise ReadBackError(f"node {arg.node} reads {node.state} with reason {node.reason!r} after the drain")
        busy = "; work still runs there" if node.state.value in {"ALLOCATED", "MIXED"} else ""
        return await mutation.effect(self._done(f"{arg.node} has the drain flag: {reason}{busy}"), arg.node)

    def _ours(self, arg: c.DrainInput, node: NodeRecord) -> bool:
        """By the mark's beginning: slurmctld appends remarks of its own to a reason (seen)."""
        return node.reason.startswith(node_mark(arg.incident.id))

    def _must_not_drain(self, arg: c.DrainInput, node: NodeRecord) -> c.Done | None:
        if node.draining and self._ours(arg, node):
            return None  # an earlier try did it, with leave: that is told as it is, however late
        if not arg.leave.granted or (arg.leave.expires and self._site.clock() > arg.leave.expires):
            return self._done(f"the leave to drain {arg.node} has expired", Outcome.EXPIRED)
        if node.draining:
            return self._done(f"{arg.node} is drained already: {node.reason}", Outcome.OVERRIDDEN)
        return None

    async def _write(self, node: str, reason: str) -> None:
        try:
            await self._site.nodes.drain(node, reason)
        except AmbiguousWriteError as error:
            activity.logger.info("drain of %s: %s", node, error)  # the read-back tells

    def _done(self, text: str, outcome: Outcome | None = None) -> c.Done:
        return c.Done(text=text, outcome=outcome, at=self._site.clock())
