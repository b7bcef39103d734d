"""GuardCluster: one per cluster; whoever wants to drain a node asks here, by signal, and is answered by signal."""

from collections import deque

from temporalio import workflow
from temporalio.exceptions import ActivityError, FailureError, is_cancelled_exception

with workflow.unsafe.imports_passed_through():
    from relight.activities import contracts as c
    from relight.domain.base import clip
    from relight.domain.guard import LEAVE_LASTS, Grant, Ruling, recent, rule
    from relight.domain.policy import Policy
    from relight.domain.slurm import NodeRecord
    from relight.workflows.options import MAX_REASON, REQUESTS_PER_RUN, do

MAX_BATCH = 20


@workflow.defn(name=c.GUARD_WORKFLOW)
class GuardCluster:
    """Takes requests in order, reads fresh node state once a batch, decides, records, answers.

    Asked by signal, not by update: an update's validator cannot await a read, what it rejects leaves no
    history, and 2,000 per run is a hard stop (seen).
    """

    @workflow.init
    def __init__(self, state: c.GuardState) -> None:
        """Go on from the last run's state."""
        self._state = state
        self._requests: deque[c.DrainRequest] = deque()
        self._handled = 0

    @workflow.run
    async def run(self, _state: c.GuardState) -> None:
        """The one loop: nothing else decides on this cluster."""
        self._show()
        while self._handled < REQUESTS_PER_RUN and not workflow.info().is_continue_as_new_suggested():
            await workflow.wait_condition(lambda: bool(self._requests))
            batch = [self._requests.popleft() for _ in range(min(MAX_BATCH, len(self._requests)))]
            await self._answer(batch)
        # Requests that came meanwhile are answered before the state moves on: a signal must not be lost.
        while self._requests:
            await self._answer([self._requests.popleft()])
        await workflow.wait_condition(workflow.all_handlers_finished)
        workflow.continue_as_new(self._state)

    @workflow.signal(description="An incident asks for leave to drain a node (sent by Relight).")
    def request_drain(self, request: c.DrainRequest) -> None:
        """Queue the request."""
        self._requests.append(request)

    @workflow.update(description="Pause: refuse every drain until resumed. Takes who and why.")
    def pause(self, who_and_why: str) -> str:
        """For people: grant nothing until resumed."""
        self._state = self._state.model_copy(update={"paused_by": who_and_why or "somebody"})
        self._show()
        return f"paused by {self._state.paused_by}"

    @workflow.update(description="Resume after a pause.")
    def resume(self) -> str:
        """For people: rule by policy again."""
        self._state = self._state.model_copy(update={"paused_by": ""})
        self._show()
        return "resumed"

    @workflow.query(description="Grants of the last hour, and whether it is paused.")
    def state(self) -> c.GuardState:
        """What the guard carries."""
        return self._state

    async def _answer(self, batch: list[c.DrainRequest]) -> None:
        """Answer each, whatever happens: a guard that fails takes the hour's grants with it."""
        cluster = self._state.cluster
        names = tuple(dict.fromkeys(r.node for r in batch))
        try:
            policy = await do(c.READ_POLICY, c.PolicyInput(cluster=cluster), "read the policy in force")
            read = await do(c.READ_NODES, c.ReadNodesInput(cluster=cluster, nodes=names), f"read {','.join(names[:5])}")
        except ActivityError as error:
            if is_cancelled_exception(error):
                raise
            for request in batch:
                await self._tell(request, _refused(request, f"the guard could not look: {error.cause or error}"))
            return
        fresh = {node.name: node for node in read.nodes}
        for request in batch:
            await self._decide(request, fresh.get(request.node), policy)

    async def _decide(self, request: c.DrainRequest, node: NodeRecord | None, policy: Policy) -> None:
        """Rule, count, record, answer. What cannot be recorded is refused: no ledger, no mutation."""
        now = workflow.now()
        ruling = self._rule(request, node, policy)
        grants = recent(self._state.grants, now)
        if ruling.granted:
            grants = (*grants, Grant(node=request.node, incident=request.incident.id, at=now))
        self._state = self._state.model_copy(update={"grants": grants})
        leave = c.Leave(
            node=request.node,
            granted=ruling.granted,
            reason=ruling.reason,
            expires=now + LEAVE_LASTS if ruling.granted else None,
        )
        verb = "grant" if leave.granted else "refuse"
        try:
            await do(c.RECORD_LEAVE, c.LeaveInput(request=request, leave=leave), f"{verb} draining {request.node}")
        except ActivityError as error:
            if is_cancelled_exception(error):
                raise
            leave = _refused(request, f"the ledger did not take it: {error.cause or error}")
        await self._tell(request, leave)

    async def _tell(self, request: c.DrainRequest, leave: c.Leave) -> None:
        self._state = self._state.model_copy(update={"handled": self._state.handled + 1})
        self._handled += 1
        # With the run: a leave that comes late must not reach the next incident of the same attempt.
        asked = request.incident
        handle = workflow.get_external_workflow_handle(asked.workflow_id, run_id=asked.run_id)
        try:
            await handle.signal("leave", leave)
        except FailureError as error:
            workflow.logger.warning("incident %s took no answer: %s", request.incident.id, error)
        self._show()

    def _rule(self, request: c.DrainRequest, node: NodeRecord | None, policy: Policy) -> Ruling:
        if self._state.paused_by:
            return Ruling(granted=False, reason=f"paused by {self._state.paused_by}")
        return rule(node, request.evidence, self._state.grants, policy.drains_per_hour, workflow.now())

    def _show(self) -> None:
        paused = f"**Paused by {self._state.paused_by}.** " if self._state.paused_by else ""
        used = len(recent(self._state.grants, workflow.now()))
        workflow.set_current_details(
            f"{paused}Leave to drain granted {used} times in the last hour; {self._state.handled} requests in all.",
        )


def _refused(request: c.DrainRequest, reason: str) -> c.Leave:
    return c.Leave(node=request.node, granted=False, reason=clip(reason, MAX_REASON))
