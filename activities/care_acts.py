"""The changes that the care of a node may make to it: return it, set it down, ask the platform for its repair.

Each looks again right before it writes: whose the node is, whether it is still as it was judged, whether it is still
allowed. `relight-node` looks once more, as root.
"""

from collections.abc import Awaitable, Callable
from datetime import timedelta
from typing import NamedTuple

from temporalio import activity

from relight.activities import care_contracts as k
from relight.activities import contracts as c
from relight.activities.approved import lapsed
from relight.activities.care import look_whether_drained
from relight.activities.leaves import on_record
from relight.activities.mutations import Mutation
from relight.activities.restart import STUCK_MARGIN, ReadBackError
from relight.activities.site import Site
from relight.clients.slurm import AmbiguousWriteError, NodeNotFoundError
from relight.domain.care import CHECKS_LAST, CareOutcome, Hold, hold, jobs_on
from relight.domain.evidence import Answer
from relight.domain.guard import NodeAct
from relight.domain.incidents import Outcome, node_reason
from relight.domain.permits import Permit
from relight.domain.policy_rules import node_permit
from relight.domain.rights import Right
from relight.domain.slurm import NodeFlag, NodeRecord, NodeState

ACTION = {Right.REBOOT: "Action:Reboot", Right.REPLACE: "Action:Replace"}
"""The reasons by which HyperPod is asked for a repair (SageMaker HyperPod developer guide, "Manually replace or reboot
a node using Slurm")."""


class CareActs:
    """Changes nodes in quarantine."""

    def __init__(self, site: Site) -> None:
        """Bind to a cluster."""
        self._site = site

    # --- return ---

    @activity.defn(name=k.RETURN_NODE.name)
    async def return_node(self, arg: k.NodeActInput) -> k.Acted:
        """Give the node back, if it is still ours, empty, checked a short while ago, and that is allowed."""
        begun = await self._begin(arg, f"undrain-{arg.care.node}-{arg.round}")
        if isinstance(begun, k.Acted):
            return begun
        node: NodeRecord | None
        mutation, meant, node = begun
        held = hold(node, arg.care.mark)
        if held is Hold.FREED and meant:
            return await self._returned(mutation, arg, node)
        if held is not Hold.OURS:
            text = f"{arg.care.node} is in other hands: {node.state}, {node.reason or 'no reason'}"
            return await self._end(mutation, arg, CareOutcome.OVERRIDDEN, text)
        if why := await self._not_now(arg, node):
            return await self._not_done(mutation, arg, why)
        if not meant:
            await mutation.intend(_meant(arg, "undrain", node.reason), arg.care.node)
        await self._write(arg.care.node, lambda: self._site.nodes.undrain(arg.care.node))
        node = await self._node(arg)
        if node is None or hold(node, arg.care.mark) is not Hold.FREED:
            raise ReadBackError(f"node {arg.care.node} still reads {node and node.state} with {node and node.reason!r}")
        return await self._returned(mutation, arg, node)

    async def _returned(self, mutation: Mutation, arg: k.NodeActInput, node: NodeRecord) -> k.Acted:
        answers = "" if not node.lost else "; it does not answer yet"
        return await self._effect(mutation, arg, f"{node.name} is {node.state} and back in service{answers}", done=True)

    async def _not_now(self, arg: k.NodeActInput, node: NodeRecord) -> str:
        """Why it must not be returned after all: the last look."""
        if void := lapsed(self._site, arg.approved_until):
            return void.text
        age = self._site.clock() - arg.checked_at if arg.checked_at else timedelta.max
        if age > CHECKS_LAST:
            return "the checks are too old"
        drained = await look_whether_drained(self._site, node)
        if drained.answer is not Answer.YES:
            return drained.text
        return self._not_permitted(arg, node)

    # --- down ---

    @activity.defn(name=k.DOWN_NODE.name)
    async def down_node(self, arg: k.NodeActInput) -> k.Acted:
        """Set a node down that hangs in COMPLETING past all limits, with leave on record, and allowed."""
        begun = await self._begin(arg, f"down-{arg.care.node}")
        if isinstance(begun, k.Acted):
            return begun
        node: NodeRecord | None
        mutation, meant, node = begun
        reason = node_reason(arg.care.incident, arg.cls, arg.summary)
        if not (node.state is NodeState.DOWN and hold(node, arg.care.mark) is Hold.OURS):
            if hold(node, arg.care.mark) is Hold.TAKEN:
                text = f"somebody else has set it aside: {node.reason}"
                return await self._end(mutation, arg, CareOutcome.OVERRIDDEN, text)
            if NodeFlag.COMPLETING not in node.flags:
                return await self._end(mutation, arg, CareOutcome.CLEARED, f"{node.name} is through: {node.state}")
            if why := await self._must_not_down(arg, node):
                return await self._not_done(mutation, arg, why)
            if not meant:
                await mutation.intend(_meant(arg, "down", reason), node.name)
            await self._write(node.name, lambda: self._site.nodes.down(arg.care.node, reason))
            node = await self._node(arg)
        if node is None or node.state is not NodeState.DOWN or hold(node, arg.care.mark) is not Hold.OURS:
            raise ReadBackError(f"node {arg.care.node} reads {node and node.state} with {node and node.reason!r}")
        return await self._effect(mutation, arg, f"{node.name} is down: {node.reason}", done=True)

    async def _must_not_down(self, arg: k.NodeActInput, node: NodeRecord) -> str:
        if void := lapsed(self._site, arg.approved_until):
            return void.text
        now, leave = self._site.clock(), arg.leave
        if leave is None or not leave.granted or (leave.expires and now > leave.expires):
            return "the leave to set it down has expired"
        if not await on_record(self._site, arg.care, node.name, NodeAct.DOWN):
            return "no leave is on record"
        healthy = [job.display_id for job in jobs_on(node.name, await self._site.slurm.jobs()) if not job.completing]
        if healthy:
            return f"job {', '.join(healthy[:4])} is on it and would be lost"
        facts = await self._site.slurm.facts()
        limit = facts.kill_wait + facts.unkillable_step_timeout + STUCK_MARGIN
        if arg.stuck_since is None or now - arg.stuck_since < limit:
            limits = "KillWait + UnkillableStepTimeout + 30 s"
            return f"it has not been completing for {limit.total_seconds():.0f} s ({limits})"
        return self._not_permitted(arg, node)

    # --- the platform's own repair ---

    @activity.defn(name=k.ASK_PLATFORM.name)
    async def ask_platform(self, arg: k.NodeActInput) -> k.Acted:
        """Put HyperPod's word in place of our mark: from then on the node is the platform's."""
        begun = await self._begin(arg, f"action-{arg.care.node}-{arg.round}")
        if isinstance(begun, k.Acted):
            return begun
        node: NodeRecord | None
        mutation, meant, node = begun
        words = ACTION[arg.right]
        if not node.reason.startswith(words):
            if hold(node, arg.care.mark) is not Hold.OURS:
                text = f"{arg.care.node} is in other hands: {node.state}, {node.reason or 'no reason'}"
                return await self._end(mutation, arg, CareOutcome.OVERRIDDEN, text)
            if why := await self._must_not_ask(arg, node):
                return await self._not_done(mutation, arg, why)
            if not meant:
                await mutation.intend(_meant(arg, arg.right, words), node.name)
            await self._write(node.name, lambda: self._site.nodes.action(arg.care.node, words.removeprefix("Action:")))
            node = await self._node(arg)
        if node is None or not node.reason.startswith(words):
            raise ReadBackError(f"node {arg.care.node} reads {node and node.state} with {node and node.reason!r}")
        return await self._effect(mutation, arg, f"{node.name} now reads {words}: it is the platform's", done=True)

    async def _must_not_ask(self, arg: k.NodeActInput, node: NodeRecord) -> str:
        if void := lapsed(self._site, arg.approved_until):
            return void.text
        drained = await look_whether_drained(self._site, node)
        if drained.answer is not Answer.YES:
            return drained.text
        if not self._site.platform_repairs:
            return "care.reasons is no longer hyperpod"
        return self._not_permitted(arg, node)

    # --- what they share ---

    async def _begin(self, arg: k.NodeActInput, step: str) -> "k.Acted | _Begun":
        """The node as it is now, or what became of it: it was done before, or Slurm no longer knows it."""
        mutation = Mutation(self._site, arg.care, step)
        done, meant = await mutation.before()
        if done:
            return _acted(done)
        node = await self._node(arg)
        if node is None:
            return await self._end(mutation, arg, CareOutcome.GONE, f"Slurm no longer knows {arg.care.node}")
        return _Begun(mutation, meant, node)

    async def _node(self, arg: k.NodeActInput) -> NodeRecord | None:
        try:
            return await self._site.slurm.node(arg.care.node)
        except NodeNotFoundError:
            return None

    def _not_permitted(self, arg: k.NodeActInput, node: NodeRecord) -> str:
        """Why the policy no longer lets it be done: it may have changed since it was decided."""
        permit = node_permit(self._site.policy, self._site.cluster, node.partitions, arg.right)
        allowed = permit is Permit.AUTO or (permit is Permit.APPROVE and arg.approved_until is not None)
        return "" if allowed else f"the policy says {permit} for {arg.right}"

    async def _write(self, node: str, write: Callable[[], Awaitable[None]]) -> None:
        try:
            await write()
        except AmbiguousWriteError as error:
            activity.logger.info("change of %s: %s", node, error)  # the read-back tells

    async def _effect(self, mutation: Mutation, arg: k.NodeActInput, text: str, *, done: bool) -> k.Acted:
        told = c.Done(text=text, outcome=None if done else Outcome.EXPIRED, at=self._site.clock())
        return _acted(await mutation.effect(told, arg.care.node))

    async def _not_done(self, mutation: Mutation, arg: k.NodeActInput, why: str) -> k.Acted:
        return await self._effect(mutation, arg, f"not done: {why}", done=False)

    async def _end(self, mutation: Mutation, arg: k.NodeActInput, outcome: CareOutcome, text: str) -> k.Acted:
        told = c.Done(text=f"{outcome}: {text}", outcome=Outcome.OVERRIDDEN, at=self._site.clock())
        return _acted(await mutation.effect(told, arg.care.node))


class _Begun(NamedTuple):
    """An act on a node that is there."""

    mutation: Mutation
    meant: bool
    """Whether its intent is on record already."""
    node: NodeRecord


def _meant(arg: k.NodeActInput, what: str, reason: str) -> dict[str, str]:
    """The body of an intent; where people had to approve it, with until when that held."""
    until = {"approved_until": arg.approved_until.isoformat()} if arg.approved_until else {}
    return {"what": what, "reason": reason, **until}


def _acted(done: c.Done) -> k.Acted:
    """The quarantine's own outcome stands at the beginning of the text, so that a repeated call finds it."""
    word, _, rest = done.text.partition(": ")
    if done.outcome is Outcome.OVERRIDDEN and word in {*CareOutcome}:
        return k.Acted(outcome=CareOutcome(word), done=False, text=rest, at=done.at)
    return k.Acted(done=done.outcome is None, text=done.text, at=done.at)
