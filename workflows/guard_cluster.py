"""GuardCluster: one per cluster; whoever wants to take a node out of service asks here, by signal, and is answered."""

import asyncio
from collections import deque
from collections.abc import Callable
from datetime import datetime
from typing import NamedTuple

from temporalio import workflow
from temporalio.exceptions import ActivityError, ApplicationError, FailureError, is_cancelled_exception

with workflow.unsafe.imports_passed_through():
    from relight.activities import contracts as c
    from relight.domain import guard_changes as changes
    from relight.domain.base import clip
    from relight.domain.breaker import Report, kept, trips, with_report
    from relight.domain.guard import LEAVE_LASTS, UNREAD, Grant, Ruling, recent, rule, wild
    from relight.domain.guard_standing import Standing
    from relight.workflows.guard_state import case, details, grant, paused_before, remember, standing_now, view
    from relight.workflows.options import MAX_REASON, REQUESTS_PER_RUN, do

MAX_BATCH = 20
OLD_RUN = "the guard runs on from before an upgrade; it begins anew when a controller worker starts"
WHOLE_GUARD = "whole-guard"
"""Patch: a run that began before it refuses all, until a worker that starts sends `renew`: then the next run begins."""


class _Asked(NamedTuple):
    request: c.DrainRequest
    at: datetime
    """When it came, by the guard's own clock."""


@workflow.defn(name=c.GUARD_WORKFLOW)
class GuardCluster:
    """Takes requests in order, looks freshly once a batch, decides, records, answers.

    Asked by signal, not by update: an update's validator cannot await a read, what it rejects leaves no
    history, and 2,000 per run is a hard stop (seen). Told of incidents by signal too: that is what the breaker counts.
    """

    @workflow.init
    def __init__(self, state: c.GuardState) -> None:
        """Go on from the last run's state."""
        self._state = state.model_copy(update={"waiting": ()})
        self._requests = deque(_Asked(request, workflow.now()) for request in state.waiting)
        self._told = False
        self._handled = 0
        self._renew = False
        self._whole = False
        self._begun = False
        self._changes = 0
        # How it stands is changed and written by the loop and by people's updates: one after the other, or an older
        # standing could be written over a newer one.
        self._standing_lock = asyncio.Lock()

    @workflow.run
    async def run(self, _state: c.GuardState) -> None:
        """The one loop: nothing else decides on this cluster."""
        self._whole = workflow.patched(WHOLE_GUARD)
        self._show()
        if self._whole:
            await self._begin()
        self._begun = True
        while self._handled < REQUESTS_PER_RUN and not workflow.info().is_continue_as_new_suggested():
            await workflow.wait_condition(lambda: self._asked or self._renew)
            if self._renew:
                break
            await self._answer(self._next_batch())
        if self._renew and not self._whole:
            waiting = tuple(asked.request for asked in self._requests)
            workflow.continue_as_new(self._state.model_copy(update={"waiting": waiting}))
        # What came meanwhile is answered before the state moves on: a signal must not be lost.
        await workflow.wait_condition(lambda: self._asked or workflow.all_handlers_finished())
        while self._asked:
            await self._answer(self._next_batch())
            await workflow.wait_condition(lambda: self._asked or workflow.all_handlers_finished())
        workflow.continue_as_new(self._state)

    @property
    def _asked(self) -> bool:
        """True while somebody waits for an answer, or something was told and not yet counted."""
        return bool(self._requests) or self._told

    # --- what others say ------------------------------------------------------------------------------------------

    @workflow.signal(description="An incident asks for leave to drain a node (sent by Relight).")
    def request_drain(self, request: c.DrainRequest) -> None:
        """Queue the request."""
        self._requests.append(_Asked(request, workflow.now()))

    @workflow.signal(description="An incident was diagnosed, or its restart did not help (sent by Relight).")
    def report(self, report: Report) -> None:
        """Take it in; the breaker is looked at with the next batch."""
        reports = with_report(self._state.reports, report.model_copy(update={"at": workflow.now()}))
        self._state = self._state.model_copy(update={"reports": reports})
        self._told = True

    @workflow.signal(description="Begin a new run with what the ledger knows (sent by a worker that starts).")
    def renew(self) -> None:
        """Begin a new run: the code of a new version counts from then on."""
        self._renew = True

    @workflow.update(description="Pause for a while: nothing is done, asked or unasked, and no node is drained.")
    async def pause(self, arg: c.PauseInput) -> str:
        """For people: observe only, in this scope, until it ends by itself."""
        return await self._change(lambda standing: changes.pause(standing, now=workflow.now(), **dict(arg)))

    @workflow.update(description="End the pause of this scope.")
    async def resume(self, arg: c.ResumeInput) -> str:
        """For people: go by policy again."""
        return await self._change(lambda standing: changes.resume(standing, now=workflow.now(), **dict(arg)))

    @workflow.update(description="Reset the breaker: needs a name and a reason. What began before is not carried out.")
    async def reset_breaker(self, arg: c.ResetInput) -> str:
        """For people: close the breaker. Requests and incidents from before neither count nor are carried out later."""
        return await self._change(lambda standing: changes.reset(standing, now=workflow.now(), **dict(arg)))

    @workflow.query(description="Grants of the last hour, pauses, and the breaker.")
    def state(self) -> c.GuardState:
        """What the guard carries."""
        return self._state

    async def _change(self, make: Callable[[Standing], changes.Change]) -> str:
        """Let a person's word count at once, and answer when it stands in the ledger, where plans look."""
        await workflow.wait_condition(lambda: self._begun)
        async with self._standing_lock:
            change = make(self._state.standing)
            if change.problem:
                raise ApplicationError(change.problem, type="RefusedError", non_retryable=True)
            self._stand(change.standing)
            if self._whole and (problem := await self._record(change.what, change.text, change.by)):
                raise ApplicationError(f"it counts for drains, but not for plans: {problem}", non_retryable=True)
        self._show()
        return change.text

    # --- the loop -------------------------------------------------------------------------------------------------

    async def _begin(self) -> None:
        """Take over what the ledger knows: whoever ended the last run must not have ended its pauses and counts."""
        look = await self._look(())
        if self._state.paused_by:
            old = paused_before(self._state.paused_by, workflow.now())
            self._stand(self._state.standing.model_copy(update={"pauses": (*self._state.standing.pauses, old)}))
            self._state = self._state.model_copy(update={"paused_by": ""})
        if not isinstance(look, str):
            await self._record("", "", "")
            await self._count(look)

    def _next_batch(self) -> list[_Asked]:
        return [self._requests.popleft() for _ in range(min(MAX_BATCH, len(self._requests)))]

    async def _answer(self, batch: list[_Asked]) -> None:
        """Answer each, whatever happens: a guard that fails takes the hour's counts with it."""
        self._told = False
        if not self._whole:
            await self._refuse_before(batch)
            return
        look = await self._look(tuple(batch))
        if isinstance(look, str):
            for asked in batch:
                await self._tell(asked.request, _refused(asked.request, f"the guard could not look: {look}"))
            return
        await self._count(look)
        for asked in batch:
            await self._decide(asked, look)

    async def _look(self, batch: tuple[_Asked, ...]) -> c.Look | str:
        """One fresh look, and what of it the guard remembers; the reason where there is none."""
        now = workflow.now()
        grants = recent(self._state.grants, now)
        requests = [asked.request for asked in batch if not wild(asked.request.node)]
        arg = c.LookInput(
            cluster=self._state.cluster,
            asked=tuple(c.Asked(node=r.node, attempt=r.incident.attempt if r.restarts else None) for r in requests),
            granted=tuple(dict.fromkeys(grant.node for grant in grants)),
            pending=tuple(dict.fromkeys(g.node for g in grants if now - g.at < LEAVE_LASTS)),
        )
        names = ", ".join(dict.fromkeys(r.node for r in requests[:5]))
        try:
            look = await do(c.LOOK, arg, f"look at {names or 'what the ledger knows'}")
        except ActivityError as error:
            if is_cancelled_exception(error):
                raise
            return str(error.cause or error)
        self._state = remember(self._state, look, workflow.now())
        return look

    async def _count(self, look: c.Look) -> None:
        """Open the breaker where too much comes together."""
        async with self._standing_lock:
            standing, now, policy = self._state.standing, workflow.now(), look.policy.breaker
            reports = kept(self._state.reports, policy, now)
            self._state = self._state.model_copy(update={"reports": reports})
            reset_at = standing.reset.at if standing.reset else None
            trip = None if standing.trip else trips((*reports, *look.reversals), policy, now, reset_at)
            if trip is not None:
                self._stand(standing.model_copy(update={"trip": trip}))
                await self._record("tripped", str(trip), "")
        self._show()

    async def _decide(self, asked: _Asked, look: c.Look) -> None:
        """Rule, count, record, answer. What cannot be recorded is refused: no ledger, no mutation."""
        async with self._standing_lock:
            leave = await self._granted_or_refused(asked, look)
        await self._tell(asked.request, leave)

    async def _granted_or_refused(self, asked: _Asked, look: c.Look) -> c.Leave:
        request, now = asked.request, workflow.now()
        ruling = self._rule(asked, look, now)
        given = grant(request, look, now) if ruling.granted else None
        grants = recent(self._state.grants, now)
        self._state = self._state.model_copy(update={"grants": (*grants, given) if given else grants})
        leave = c.Leave(
            node=request.node,
            granted=ruling.granted,
            reason=clip(ruling.reason, MAX_REASON),
            expires=now + LEAVE_LASTS if ruling.granted else None,
            action=request.action,
        )
        try:
            await self._record_leave(request, leave, given, look)
        except ActivityError as error:
            if is_cancelled_exception(error):
                raise
            return _refused(request, f"the ledger did not take it: {error.cause or error}")
        return leave

    def _rule(self, asked: _Asked, look: c.Look, now: datetime) -> Ruling:
        request = asked.request
        if look.unknown and not wild(request.node):
            return Ruling(granted=False, reason=f"{UNREAD}: {look.unknown}")
        seen = view(request.node, look, self._state.grants, now)
        # The kill switch as this look found it: it is part of no state.
        standing = self._state.standing.model_copy(update={"killed": look.standing.killed})
        partitions = seen.node.partitions if seen.node else ()
        stop = standing.stops_node(now, min(asked.at, request.began or asked.at), request.node, partitions)
        return rule(case(request), seen.model_copy(update={"stop": stop}), self._state.grants, look.policy, now)

    async def _refuse_before(self, batch: list[_Asked]) -> None:
        """In a run that began before the patch: the commands of then, and no grant, as today's limits are not met."""
        names = tuple(dict.fromkeys(asked.request.node for asked in batch))
        cluster = self._state.cluster
        if not batch:
            return
        try:
            await do(c.READ_POLICY, c.PolicyInput(cluster=cluster), "read the policy in force")
            await do(c.READ_NODES, c.ReadNodesInput(cluster=cluster, nodes=names), f"read {','.join(names[:5])}")
        except ActivityError as error:
            if is_cancelled_exception(error):
                raise
            for asked in batch:
                await self._tell(asked.request, _refused(asked.request, OLD_RUN))
            return
        for asked in batch:
            leave = _refused(asked.request, OLD_RUN)
            try:
                await do(c.RECORD_LEAVE, c.LeaveInput(request=asked.request, leave=leave), "refuse draining")
            except ActivityError as error:
                if is_cancelled_exception(error):
                    raise
            await self._tell(asked.request, leave)

    async def _record_leave(self, request: c.DrainRequest, leave: c.Leave, grant: Grant | None, look: c.Look) -> None:
        arg = c.LeaveInput(
            request=request,
            leave=leave,
            grant=grant,
            standing=self._stand(self._state.standing),
            undrained_at=look.undrained.get(request.node),
            answer=f"{workflow.info().run_id}-{self._handled + 1}",
        )
        verb = "grant" if leave.granted else "refuse"
        await do(c.RECORD_LEAVE, arg, f"{verb} {request.action} of {clip(request.node, 60)}")

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

    # --- how it stands --------------------------------------------------------------------------------------------

    def _stand(self, standing: Standing) -> Standing:
        """Stand so from now on, with the counts of now."""
        self._state = self._state.model_copy(update={"standing": standing})
        self._state = self._state.model_copy(update={"standing": standing_now(self._state, workflow.now())})
        return self._state.standing

    async def _record(self, what: str, text: str, by: str) -> str:
        """Write down how it stands, and what has changed; returns why that could not be done, empty where it was."""
        self._changes += 1
        info = workflow.info()
        arg = c.StandingInput(
            cluster=self._state.cluster,
            standing=self._stand(self._state.standing),
            entry=f"{info.workflow_id}/{info.run_id}/{self._changes}/{what}" if what else "",
            what=what,
            text=clip(text, MAX_REASON),
            by=by,
        )
        try:
            await do(c.RECORD_STANDING, arg, clip(text, 100) or "write down how the guard stands")
        except ActivityError as error:
            if is_cancelled_exception(error):
                raise
            return f"the ledger did not take it: {error.cause or error}"
        return ""

    def _show(self) -> None:
        workflow.set_current_details(details(self._state, workflow.now()))


def _refused(request: c.DrainRequest, reason: str) -> c.Leave:
    return c.Leave(node=request.node, granted=False, reason=clip(reason, MAX_REASON), action=request.action)
