"""CareForNode: one quarantine of one node, from the drain until it is back in service or in other hands."""

import asyncio
from collections.abc import Callable, Coroutine
from datetime import datetime, timedelta
from typing import Any, TypeVar

from temporalio import workflow
from temporalio.exceptions import ActivityError, is_cancelled_exception

with workflow.unsafe.imports_passed_through():
    from relight.activities import attributes
    from relight.activities import care_contracts as k
    from relight.activities import contracts as c
    from relight.domain.approvals import Approval, Heard, Request
    from relight.domain.base import Value, clip
    from relight.domain.care import (
        CareOutcome,
        CarePhase,
        CareVerdict,
        Hold,
        Next,
        Word,
        WordKind,
        care_id,
        look_again_after,
    )
    from relight.domain.care_digest import WHAT, care_request
    from relight.domain.incidents import StepTime
    from relight.domain.permits import Permit
    from relight.domain.reports import NodeCheck
    from relight.domain.rights import Right
    from relight.domain.signatures import SignedDecision
    from relight.workflows.approval import Asking, Say, check_size
    from relight.workflows.care_guard import LeaveToDown
    from relight.workflows.care_story import CareStatus, tell_care
    from relight.workflows.care_words import KeepSay, ReleaseSay, check_release, check_said, hear_release
    from relight.workflows.ends import said, to_its_end, unless
    from relight.workflows.options import MAX_REASON, MAX_REFUSED, do

T = TypeVar("T")
THROUGH = "it is through its completing by itself; nothing was done to it"
MOST_STEPS = 60
MOST_WORDS = 20
MOST_NONCES = 50
MOST_SIGNED = 4


class CareResult(Value):
    """How the quarantine ended."""

    care: str
    node: str
    outcome: CareOutcome
    reason: str


class _Ended(Exception):  # noqa: N818 - the normal way out, not an error
    """The quarantine ends here."""

    def __init__(self, outcome: CareOutcome, reason: str, *, reversed_by: str | None = None) -> None:
        super().__init__(reason)
        self.outcome = outcome
        self.reason = reason
        self.reversed_by = reversed_by
        """Set where a person has undone what we did: who, as far as Slurm says; else None."""


@workflow.defn(name=k.CARE_WORKFLOW)
class CareForNode:
    """Really drained, evidence kept, checked, then returned, kept or handed over; a person's hand ends it."""

    @workflow.init
    def __init__(self, arg: k.CareInput) -> None:
        """Name the quarantine, or go on with the run before."""
        info = workflow.info()
        incident = arg.incident
        first = arg.state.first_run if arg.state else info.run_id
        self._arg = arg
        self._ref = k.CareRef(
            id=arg.state.id if arg.state else care_id(incident.attempt.cluster, arg.node, first),
            workflow_id=info.workflow_id,
            run_id=first,
            attempt=incident.attempt,
            kind=incident.kind,
            node=arg.node,
            incident=incident.id,
        )
        completing = arg.completing_since is not None
        self._state = arg.state or k.CareState(
            id=self._ref.id,
            first_run=first,
            opened_at=workflow.now(),
            since=workflow.now(),
            phase=CarePhase.COMPLETING if completing else CarePhase.DRAINING,
        )
        self._stuck_since = arg.completing_since
        self._limits: k.Limits | None = None
        self._judged: k.Judged | None = None
        self._checks: tuple[NodeCheck, ...] = ()
        self._asking: Asking | None = None
        self._leave_to_down = LeaveToDown(self._ref, self._state.opened_at)
        self._woken = False
        self._stop: tuple[CareOutcome, str] | None = None
        self._refused = 0
        self._outcome: CareOutcome | None = None
        self._reason = ""

    @workflow.run
    async def run(self, _arg: k.CareInput) -> CareResult:
        """Platform only: whatever happens inside, the quarantine ends in a named outcome."""
        workflow.upsert_search_attributes(
            [
                attributes.CLUSTER.value_set(self._cluster),
                attributes.NODES.value_set([self._ref.node]),
                attributes.NODE_COUNT.value_set(1),
                attributes.CAUSE.value_set(self._arg.cls),
            ]
        )
        reversed_by: str | None = None
        try:
            await self._care()
            raise AssertionError  # the care has no end but an outcome
        except _Ended as end:
            outcome, reason, reversed_by = end.outcome, end.reason, end.reversed_by
        except ActivityError as error:
            outcome, reason = self._failed(error)
        except asyncio.CancelledError:
            outcome, reason = CareOutcome.OVERRIDDEN, "the workflow was cancelled by a person"
        result = await self._close(outcome, reason, reversed_by)
        await workflow.wait_condition(workflow.all_handlers_finished)
        return result

    def _failed(self, error: ActivityError) -> tuple[CareOutcome, str]:
        if is_cancelled_exception(error):
            return CareOutcome.OVERRIDDEN, "the workflow was cancelled by a person"
        return CareOutcome.FAILED, said(error)

    # --- the runbook ------------------------------------------------------------------------------------------------

    async def _care(self) -> None:
        fresh = self._arg.state is None
        self._limits = await (self._begin() if fresh else do(k.READ_LIMITS, k.CareArg(care=self._ref), "read limits"))
        self._show()
        while True:
            if self._stuck_since is not None:
                await self._set_down()
            if not self._state.drained:
                await self._until_drained()
                continue  # it may have been found to hang meanwhile
            await self._keep_evidence()
            await self._round()
            await self._renew()

    async def _begin(self) -> k.Limits:
        arg = self._record("begun", f"{self._arg.cls}: {self._arg.summary}").model_copy(update={"cls": self._arg.cls})
        return await do(k.BEGIN_CARE, arg, f"take {self._ref.node} into care")

    async def _until_drained(self) -> None:
        """Wait until nothing is left on it; after a while a person is told, and it is waited for all the same."""
        self._go(CarePhase.DRAINING)
        arg = k.AwaitDrainedInput(care=self._ref)
        wait = asyncio.create_task(do(k.AWAIT_DRAINED, arg, f"wait until {self._ref.node} is really drained"))
        takes = self._policy.drain_takes
        left = max(self._state.opened_at + takes - workflow.now(), timedelta(0))
        try:
            await workflow.wait_condition(lambda: wait.done() or self._interrupted, timeout=left)
        except TimeoutError:
            await self._tell("still draining", f"work has gone on for {takes} since the drain: somebody should look")
            await workflow.wait_condition(lambda: wait.done() or self._interrupted)
        if not wait.done():
            wait.cancel()
            self._raise_if_stopped()
            return  # it hangs: `_set_down` is next
        held = await wait
        self._raise_if_gone(held)
        self._change(drained=True)
        await self._tell("drained", held.text)

    @property
    def _interrupted(self) -> bool:
        return self._stop is not None or self._stuck_since is not None

    async def _keep_evidence(self) -> None:
        if self._state.folder:
            return
        self._go(CarePhase.CHECKING)
        arg = k.KeepEvidenceInput(care=self._ref, arg=self._arg.model_copy(update={"state": None}))
        try:
            kept = await self._unless_stopped(do(k.KEEP_EVIDENCE, arg, "keep what is known of it"))
        except ActivityError as error:
            if is_cancelled_exception(error):
                raise
            self._step("evidence not kept", said(error))  # worth having, and no reason to leave the node uncared for
            return
        self._change(folder=kept.folder)
        lost = f"; not kept: {'; '.join(kept.lost)}" if kept.lost else ""
        self._step("evidence kept", f"{len(kept.files)} files in {kept.folder}{lost}")

    async def _round(self) -> None:
        """Check, judge, and do what follows; then wait for what may change it."""
        self._go(CarePhase.CHECKING)
        self._woken = False
        number = self._state.rounds + 1
        self._change(rounds=number)
        ask = k.CheckNodeInput(care=self._ref, round=number)
        checked = await self._unless_stopped(do(k.CHECK_NODE, ask, f"have {self._ref.node} checked by its agent"))
        self._checks = checked.checks
        found = ", ".join(f"{check.name} {check.result}" for check in checked.checks) or checked.problem
        self._step("checked", found)
        judged = await self._unless_stopped(do(k.JUDGE_NODE, self._to_judge(number, checked), "decide"))
        self._judged = judged
        self._change(ticket=judged.ticket or self._state.ticket)
        verdict = judged.verdict
        self._step(str(verdict.next), verdict.reason)
        self._limits = await do(k.READ_LIMITS, k.CareArg(care=self._ref), "read the policy in force")
        if verdict.next is Next.END:
            held = await do(k.AWAIT_CHANGE, k.AwaitChangeInput(care=self._ref), "whose it is now")
            self._raise_if_gone(held)
        if verdict.next is Next.RETURN:
            tried = await self._return(verdict, checked, number)
            verdict = verdict.model_copy(update={"again": tried})
        elif judged.action is not None:
            await self._ask_platform(judged.action, judged.action_permit, verdict, number)
        await self._wait(verdict)

    def _to_judge(self, number: int, checked: k.Checked) -> k.JudgeInput:
        return k.JudgeInput(
            care=self._ref,
            round=number,
            checked=checked,
            since=self._state.since,
            released=self._last(WordKind.RELEASE),
            kept=self._last(WordKind.KEEP),
            evidence=self._arg.evidence,
            cls=self._arg.cls,
            summary=self._arg.summary,
            folder=self._state.folder,
        )

    def _last(self, kind: WordKind) -> Word | None:
        return next((word for word in reversed(self._state.words) if word.kind is kind), None)

    async def _return(self, verdict: CareVerdict, checked: k.Checked, number: int) -> bool:
        """Give it back, as far as the policy lets us; where it stays out, whether it was tried: then it is again."""
        arg = self._act(Right.RETURN, number).model_copy(update={"checked_at": checked.at})
        acted = await self._permitted(
            Right.RETURN, verdict.permit, verdict.reason, lambda until: self._done(k.RETURN_NODE, arg, until)
        )
        if acted is None:
            return False
        if acted.done:
            raise _Ended(CareOutcome.RETURNED, acted.text)
        self._raise_if_over(acted)
        await self._tell("not returned", acted.text)
        return True

    async def _ask_platform(self, right: Right, permit: Permit, verdict: CareVerdict, number: int) -> None:
        # What ends in a person's hands is never begun unasked: a replacement destroys the node's disks.
        allowed = permit if permit is not Permit.AUTO else Permit.APPROVE
        arg = self._act(right, number)
        acted = await self._permitted(
            right, allowed, verdict.reason, lambda until: self._done(k.ASK_PLATFORM, arg, until)
        )
        if acted is None:
            return
        if acted.done:
            raise _Ended(CareOutcome.HANDED_OVER, acted.text)
        self._raise_if_over(acted)
        self._step("platform not asked", acted.text)

    # --- a node that hangs in COMPLETING ----------------------------------------------------------------------------

    async def _set_down(self) -> None:
        """Propose `down`; comes back once it is down, or through by itself where it is drained besides."""
        self._go(CarePhase.COMPLETING)
        since, self._stuck_since = self._stuck_since, None
        drained_too = self._state.drained or self._arg.completing_since is None
        if await self._comes_through(since + self._policy.stuck_after if since else workflow.now()):
            if drained_too:
                return
            raise _Ended(CareOutcome.CLEARED, THROUGH)
        arg = self._act(Right.DOWN, self._state.rounds).model_copy(update={"stuck_since": since})
        why = f"it has been completing since {since:%H:%M:%S} UTC, past KillWait and UnkillableStepTimeout"

        async def act(until: Any) -> k.Acted:
            leave = await self._leave_to_down.ask(self._arg.cls, why)
            if not leave.granted:
                return k.Acted(done=False, text=f"the guard refuses: {leave.reason}", at=workflow.now())
            return await self._done(k.DOWN_NODE, arg.model_copy(update={"leave": leave}), until)

        acted = await self._permitted(Right.DOWN, self._policy.permits[Right.DOWN], why, act, completing=True)
        if acted is not None and acted.done:
            self._change(down=True)
            await self._tell("down", acted.text)
            return
        if acted is not None and acted.outcome not in {None, CareOutcome.CLEARED}:
            self._raise_if_over(acted)
        if acted is not None and acted.outcome is None:
            await self._tell("not set down", acted.text)
        if drained_too:
            return  # its quarantine goes on as it was
        held = await self._unless_stopped(
            do(k.AWAIT_CHANGE, k.AwaitChangeInput(care=self._ref, completing=True), "wait until it is through")
        )
        if held.hold is not Hold.OURS:
            raise _Ended(CareOutcome.CLEARED, THROUGH)

    async def _comes_through(self, until: datetime) -> bool:
        """Wait out what Slurm's own limits allow; True where the node is no longer completing by then."""
        left = until - workflow.now()
        if left <= timedelta(0):
            return False
        change = self._watch(completing=True)
        try:
            await workflow.wait_condition(lambda: change.done() or self._stop is not None, timeout=left)
        except TimeoutError:
            change.cancel()
            return False
        if not change.done():
            change.cancel()
        self._raise_if_stopped()
        return True

    # --- leave of the policy and of people ----------------------------------------------------------------------------

    async def _permitted(
        self,
        right: Right,
        permit: Permit,
        why: str,
        act: Callable[[Any], Coroutine[Any, Any, k.Acted]],
        *,
        completing: bool = False,
    ) -> k.Acted | None:
        """Do it in the mode that is allowed; None where it is not done. `act` gets by when it must begin."""
        what = WHAT[right].format(node=self._ref.node)
        if permit in {Permit.OFF, Permit.MONITOR}:
            if permit is Permit.MONITOR:
                await self._tell("would", f"would {what}: {why} (the policy says monitor for {right})")
            return None
        until = None
        if permit is Permit.APPROVE:
            if not await self._approved(right, why, completing=completing):
                return None
            until = self._asking.approval.act_until if self._asking else None
        self._go(CarePhase.RETURNING if right is Right.RETURN else self._state.phase)
        try:
            return await act(until)
        except ActivityError as error:
            if is_cancelled_exception(error):
                raise
            return k.Acted(done=False, text=said(error), at=workflow.now())

    async def _approved(self, right: Right, why: str, *, completing: bool) -> bool:
        """Ask people; False where they said no or nothing. Ends the care where the node changes hands meanwhile."""
        self._go(CarePhase.WAITING)
        request = self._request(right, why)
        self._asking = Asking(request, late=self._late, record=self._heard, show=self._show)
        asks = f"{request.what}: {request.needed} must approve until {request.until:%H:%M:%S} UTC"
        await self._tell("asked", asks, until=request.until)
        if right is Right.RETURN:
            # Who has just said that it is repaired has said that it may return.
            for signed in self._state.signed:
                await self._asking.signed(signed)
        change = self._watch(completing=completing)
        answer = await self._asking.answer(lambda: self._stop is not None or self._woken or change.done())
        await self._look_at(change, completing=completing)
        self._raise_if_stopped()
        if answer.outcome is None and not self._asking.settled:
            self._asking = None
            return False  # called off: a person's word, or the node itself, has changed what is asked about
        if answer.outcome is not None:
            self._asking = None
            await self._tell(str(answer.outcome), answer.text)
            return False
        if void := self._asking.begin():
            await self._tell("expired", void)
            return False
        await self._tell("approved", answer.text)
        return True

    def _late(self) -> str:
        return self._stop[1] if self._stop else ""

    def _request(self, right: Right, why: str) -> Request:
        policy = self._policy
        return care_request(
            right,
            cluster=self._cluster,
            node=self._ref.node,
            mark=self._ref.mark,
            run_id=_run_id(),
            why=clip(why, MAX_REASON),
            needed=policy.needed[right],
            approvers=policy.approvers,
            trust_bare=policy.trust_bare,
            now=workflow.now(),
            expires=policy.approval_expires,
            execution_expires=policy.execution_expires,
        )

    async def _heard(self, heard: Heard) -> None:
        request = heard.approval.request
        arg = k.HeardInput(
            care=self._ref,
            number=self._numbered(),
            digest=request.digest,
            what=request.what,
            decision=heard.decision.model_dump(mode="json"),
            counts=heard.counts,
            remark=heard.remark,
            score=heard.approval.score,
            proof=heard.proof,
        )
        await do(k.RECORD_HEARD, arg, "record a person's word")
        self._step("decision" if heard.counts else "decision not counted", heard.answer)

    # --- waiting ------------------------------------------------------------------------------------------------------

    async def _wait(self, verdict: CareVerdict) -> None:
        """Until a person says something, until it is time to look again, or until it is in other hands."""
        self._go(CarePhase.KEPT)
        again = verdict.again
        await self._tell("kept", _kept(verdict))
        looks = self._state.looks + 1 if again else 0
        self._change(looks=looks)
        change = self._watch()
        timeout = look_again_after(looks - 1) if again else None
        if not self._woken:
            try:
                await workflow.wait_condition(
                    lambda: self._woken or self._interrupted or change.done(),
                    timeout=timeout,
                    timeout_summary="look again",
                )
            except TimeoutError:
                self._step("again", "what could not be checked is checked again")
        await self._look_at(change)
        self._raise_if_stopped()

    def _watch(self, *, completing: bool = False) -> "asyncio.Task[k.Held]":
        arg = k.AwaitChangeInput(care=self._ref, completing=completing)
        return asyncio.create_task(do(k.AWAIT_CHANGE, arg, f"watch whose {self._ref.node} is"))

    async def _look_at(self, change: "asyncio.Task[k.Held]", *, completing: bool = False) -> None:
        """End where the node has changed hands; otherwise stop watching."""
        if not change.done():
            change.cancel()
            return
        held = await change
        if completing and held.hold is Hold.FREED:
            if self._arg.completing_since is not None and not self._state.drained:
                raise _Ended(CareOutcome.CLEARED, THROUGH)
            return
        self._raise_if_gone(held)

    def _raise_if_gone(self, held: k.Held) -> None:
        if held.hold is None:
            raise _Ended(CareOutcome.GONE, held.text)
        if held.hold is Hold.OURS:
            return
        by = held.by if held.hold is Hold.FREED else None
        raise _Ended(CareOutcome.OVERRIDDEN, held.text, reversed_by=by)

    def _raise_if_over(self, acted: k.Acted) -> None:
        if acted.outcome is not None:
            raise _Ended(acted.outcome, acted.text)

    async def _renew(self) -> None:
        """Continue as new before the history is too long; nothing is lost: all there is to know is one object."""
        if not workflow.info().is_continue_as_new_suggested():
            return
        await workflow.wait_condition(workflow.all_handlers_finished)
        workflow.continue_as_new(
            self._arg.model_copy(update={"state": self._state, "completing_since": self._stuck_since})
        )

    # --- what people and other workflows say --------------------------------------------------------------------------

    @workflow.update(description="It is repaired: check it again, and return it if it is well (`relight release`).")
    async def release(self, say: ReleaseSay) -> str:
        """Take a person's word that the node is repaired; the answer says whether it counts."""
        if self._refused >= MAX_REFUSED:
            return "not counted: too many words that do not count"
        if self._limits is None or self._stop or self._outcome:
            return "not counted: the care has only just begun, or is over"
        heard = hear_release(say, self._request(Right.RETURN, "repaired"), self._state.nonces, workflow.now())
        if heard.word is None:
            self._refused += 1
            return f"not counted: {heard.wrong}"
        if say.signed:
            nonces = (*self._state.nonces, say.signed.nonce)[-MOST_NONCES:]
            self._change(nonces=nonces, signed=(*self._state.signed, say.signed)[-MOST_SIGNED:])
        await self._take(heard.word)
        return (
            f"counted: {self._ref.node} is checked again" if self._state.drained else "counted: it is not drained yet"
        )

    @release.validator
    def _check_release(self, say: ReleaseSay) -> None:
        check_release(say)

    @workflow.update(description="Leave it out, whatever the checks say (`relight keep`).")
    async def keep(self, say: KeepSay) -> str:
        """Take a person's word that the node stays out."""
        if self._stop or self._outcome:
            return "not counted: too late"
        await self._take(Word(kind=WordKind.KEEP, by=say.by, reason=say.reason, at=workflow.now()))
        return f"counted: {self._ref.node} stays out until it is released"

    @keep.validator
    def _check_keep(self, say: KeepSay) -> None:
        check_said(say.by, say.reason)

    async def _take(self, word: Word) -> None:
        self._change(words=(*self._state.words, word)[-MOST_WORDS:])
        text = f"{word.by or 'somebody'}: {word.reason or 'no reason given'}"
        # Written down before it is acted on: no ledger, no mutation.
        await do(k.RECORD_CARE, self._record(str(word.kind), text, word=word), f"record {word.kind}")
        self._step(str(word.kind), text)
        self._woken = True

    @workflow.update(
        description="Decide on what is asked with a signed decision (`relight approve`, `relight reject`)."
    )
    async def decide(self, signed: SignedDecision) -> str:
        """Take a signed decision; the answer says whether it counts, and why not."""
        if self._asking is None or self._state.phase is not CarePhase.WAITING:
            return f"not counted: node/{self._ref.node} is {self._state.phase}, not waiting for approval"
        return await self._asking.signed(signed)

    @decide.validator
    def _check_decide(self, signed: SignedDecision) -> None:
        check_size(signed)

    @workflow.signal(description='Approve what is asked: {"digest": "its first 8 digits or more", "reason": "why"}.')
    async def approve(self, say: Say) -> None:
        """A bare yes counts only where the site takes those, and for nothing that concerns a node."""
        await self._bare(say, approved=True)

    @workflow.signal(description='Reject what is asked: {"reason": "why"}. Nothing is done then.')
    async def reject(self, say: Say) -> None:
        """A bare no only keeps Relight from acting."""
        await self._bare(say, approved=False)

    async def _bare(self, say: Say, *, approved: bool) -> None:
        if self._asking is not None and self._state.phase is CarePhase.WAITING:
            await self._asking.bare(say, approved=approved)

    @workflow.signal(description='End the care; the node stays as it is: {"reason": "why"}.')
    def cancel(self, say: Say) -> None:
        """A person takes the node into their own hands."""
        text = f"the care was ended by a person: {say.reason or 'no reason given'}"
        self._stop = self._stop or (CareOutcome.OVERRIDDEN, text)

    @workflow.signal(description="A further incident concerns this node (sent by Relight).")
    def again(self, arg: k.CareInput) -> None:
        """A node in care hangs in COMPLETING, or was named once more."""
        if arg.completing_since is not None and not self._state.drained:
            self._stuck_since = self._stuck_since or arg.completing_since
        self._step("named again", f"incident {arg.incident.id}: {arg.cls}")

    @workflow.signal(description="The guard's answer to a request for leave (sent by Relight).")
    def leave(self, answer: c.Leave) -> None:
        """Keep the guard's word."""
        self._leave_to_down.take(answer)

    @workflow.query(description="Everything known of the quarantine.")
    def status(self) -> CareStatus:
        """The quarantine as it stands."""
        return CareStatus(
            id=self._ref.id,
            workflow_id=self._ref.workflow_id,
            run_id=_run_id(),
            cluster=self._cluster,
            node=self._ref.node,
            incident=self._ref.incident,
            cls=self._arg.cls,
            summary=self._arg.summary,
            phase=self._state.phase,
            outcome=self._outcome,
            reason=self._reason,
            since=self._state.since,
            judged=self._judged,
            checks=tuple(check.model_copy(update={"output": ""}) for check in self._checks),
            words=self._state.words,
            folder=self._state.folder,
            approval=self.approval(),
            release=self._request(Right.RETURN, "repaired") if self._limits else None,
            steps=self._state.steps,
        )

    @workflow.query(description="Where the approval stands; null where nobody is asked.")
    def approval(self) -> Approval | None:
        """For `relight approve node/NAME`."""
        return self._asking.approval if self._asking and self._state.phase is CarePhase.WAITING else None

    # --- the platform part --------------------------------------------------------------------------------------------

    @property
    def _cluster(self) -> str:
        return self._ref.attempt.cluster

    @property
    def _policy(self) -> k.Limits:
        if self._limits is None:
            raise AssertionError  # read before anything else
        return self._limits

    def _act(self, right: Right, number: int) -> k.NodeActInput:
        return k.NodeActInput(care=self._ref, right=right, round=number, cls=self._arg.cls, summary=self._arg.summary)

    async def _done(self, call: "c.Call[k.NodeActInput, k.Acted]", arg: k.NodeActInput, until: Any) -> k.Acted:
        return await do(
            call, arg.model_copy(update={"approved_until": until}), WHAT[arg.right].format(node=arg.care.node)
        )

    async def _unless_stopped(self, work: Coroutine[Any, Any, T]) -> T:
        """Wait for the work, or end it when a person ends the care."""
        return await unless(lambda: _Ended(*self._stop) if self._stop else None, work)

    def _raise_if_stopped(self) -> None:
        if self._stop:
            raise _Ended(*self._stop)

    def _change(self, **changes: Any) -> None:
        self._state = self._state.model_copy(update=changes)

    def _numbered(self) -> int:
        """The next number of a row: none is written twice, whatever run writes it."""
        self._change(written=self._state.written + 1)
        return self._state.written

    def _record(self, step: str, text: str, word: Word | None = None) -> k.RecordInput:
        return k.RecordInput(
            care=self._ref,
            step=f"{self._numbered()}-{step.replace(' ', '-')}",
            phase=self._state.phase,
            text=clip(text, MAX_REASON),
            at=workflow.now(),
            word=word,
        )

    async def _tell(self, step: str, text: str, until: datetime | None = None) -> None:
        """A step that the ledger keeps."""
        self._step(step, text)
        record = self._record(step, text).model_copy(update={"until": until})
        await do(k.RECORD_CARE, record, f"record: {step}")

    def _step(self, name: str, text: str) -> None:
        step = StepTime(name=name, at=workflow.now(), text=clip(text, 300))
        self._change(steps=(*self._state.steps, step)[-MOST_STEPS:])
        self._show()

    def _go(self, phase: CarePhase) -> None:
        self._change(phase=phase)
        workflow.upsert_search_attributes([attributes.PHASE.value_set(str(phase))])
        self._show()

    def _show(self) -> None:
        workflow.set_current_details(tell_care(self.status()))

    async def _close(self, outcome: CareOutcome, reason: str, reversed_by: str | None) -> CareResult:
        self._outcome, self._reason = outcome, clip(reason, MAX_REASON)
        self._step(str(outcome), self._reason)
        self._go(CarePhase.CLOSED)
        workflow.upsert_search_attributes([attributes.OUTCOME.value_set(str(outcome))])
        update: dict[str, Any] = {"outcome": outcome, "ticket": self._state.ticket}
        if reversed_by is not None:
            update |= {
                "reversed": "down" if self._state.down else "drain",
                "by": reversed_by,
                "evidence": self._arg.evidence,
            }
        arg = self._record("closed", self._reason).model_copy(update=update)
        await to_its_end(do(k.RECORD_CARE, arg, f"close as {outcome}"))
        return CareResult(care=self._ref.id, node=self._ref.node, outcome=outcome, reason=self._reason)


def _kept(verdict: CareVerdict) -> str:
    """Why it stays out, for people."""
    if verdict.next is Next.RETURN:
        why = {Permit.APPROVE: "people have not approved it", Permit.AUTO: "that did not work, and is tried again"}
        said = why.get(verdict.permit, f"the policy says {verdict.permit} for return")
        return f"well, and not returned: {said} ({verdict.reason})"
    return f"{verdict.next}: {verdict.reason}"


def _run_id() -> str:
    return workflow.info().run_id
