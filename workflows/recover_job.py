"""RecoverJob: one interruption of one attempt, from the first evidence to a named outcome."""

import asyncio
from collections.abc import Coroutine
from contextlib import suppress
from datetime import datetime, timedelta
from functools import partial
from typing import Any, TypeVar

from temporalio import workflow
from temporalio.exceptions import ActivityError, ApplicationError, FailureError, is_cancelled_exception

with workflow.unsafe.imports_passed_through():
    from relight.activities import attributes
    from relight.activities import contracts as c
    from relight.domain.approvals import Approval, Heard, request_for
    from relight.domain.base import Value, clip
    from relight.domain.breaker import Sign
    from relight.domain.diagnosis import Action, Category, Diagnosis, Hypothesis
    from relight.domain.evidence import GOES_ON, Detection, Evidence
    from relight.domain.forgotten import MOST_TIMES
    from relight.domain.fresh import by_hand
    from relight.domain.incidents import (
        Outcome,
        Phase,
        StepTime,
        advance,
        headline,
        incident_id,
        may_close,
        overtaken,
        overtaken_by,
    )
    from relight.domain.plan import Decision, Mode, Plan, Restart
    from relight.domain.policy import Verdict
    from relight.domain.signatures import SignedDecision
    from relight.domain.silence import waits_for_slurm
    from relight.workflows import checkpoints
    from relight.workflows.approval import Asking, Asks, Say, check_size
    from relight.workflows.approval_before import AskingOne
    from relight.workflows.care_start import care_for, care_for_stuck, care_input, leave_evidence
    from relight.workflows.ends import said, to_its_end, unless
    from relight.workflows.guarded import STOPPED, tell_guard, why_not_now
    from relight.workflows.options import (
        LEAVE_WITHIN,
        MAX_ESCALATION,
        MAX_EVIDENCE,
        MAX_EVIDENCE_SIGNALS,
        MAX_NODES_IN_ATTRIBUTE,
        MAX_REASON,
        do,
    )
    from relight.workflows.story import Status, summary_of, tell

T = TypeVar("T")
OVERTAKEN = "overtaken"
"""Patch: incidents that were open before it wait on until their approval expires."""
SAFE_HANDS = "safe-hands"
"""Patch: incidents that were begun before approvals by several people, the guard's word on whole incidents, back-off
between attempts and the care of nodes go on without them."""
FRESH_JOB = "fresh-job"
"""Patch: incidents that were begun before it are never answered by a fresh job."""


class RecoverResult(Value):
    """How the incident ended."""

    incident: str
    outcome: Outcome
    reason: str


class _Ended(Exception):  # noqa: N818 - the normal way out, not an error
    """The incident ends here."""

    def __init__(self, outcome: Outcome, reason: str) -> None:
        super().__init__(reason)
        self.outcome = outcome
        self.reason = reason


@workflow.defn(name=c.RECOVER_WORKFLOW)
class RecoverJob:
    """Confirm, diagnose, plan, ask, exclude and drain, restart, verify, close."""

    @workflow.init
    def __init__(self, arg: c.RecoverInput) -> None:
        """Name the incident; the evidence that started it comes by signal, or from the run before."""
        info = workflow.info()
        self._ref = c.IncidentRef(
            id=incident_id(arg.attempt, info.run_id),
            workflow_id=info.workflow_id,
            run_id=info.run_id,
            attempt=arg.attempt,
            kind=arg.kind,
        )
        self._phase = Phase.CONFIRMING
        self._detections: list[Detection] = []
        self._evidence: list[Evidence] = []
        self._confirmation: c.Confirmation | None = None
        self._diagnosis: Diagnosis | None = None
        self._verdict: Verdict | None = None
        self._decide_until: datetime | None = None
        self._asks: Asks | None = None
        self._acting: c.ActInput | None = None
        """The restart that is under way, or was the last."""
        self._leaves: dict[str, c.Leave] = {}
        self._stop: tuple[Outcome, str] | None = None
        self._newer = ""
        self._overtaken = ""
        self._steps: list[StepTime] = []
        self._outcome: Outcome | None = None
        self._reason = ""
        self._safe_hands = False
        self._fresh_job = False
        self._good_checkpoint = False
        for detection in arg.detections:
            self.evidence(detection)

    @workflow.run
    async def run(self, _arg: c.RecoverInput) -> RecoverResult:
        """Platform only: whatever happens inside, the incident ends in a named outcome."""
        self._safe_hands = workflow.patched(SAFE_HANDS)
        self._fresh_job = workflow.patched(FRESH_JOB)
        self._good_checkpoint = workflow.patched(checkpoints.GOOD_CHECKPOINT)
        try:
            await self._recover()
        except _Ended as end:
            outcome, reason = end.outcome, end.reason
        except ActivityError as error:
            outcome, reason = self._failed(error)
        except asyncio.CancelledError:
            outcome, reason = Outcome.OVERRIDDEN, "the workflow was cancelled by a person"
        result = await self._close(outcome, reason)
        await workflow.wait_condition(workflow.all_handlers_finished)
        # No await from here on: a detection that comes later makes the server ask again, and is looked at then.
        unanswered = self._unanswered(result.outcome)
        if unanswered:
            attempt, kind = self._ref.attempt, unanswered[0].kind
            workflow.continue_as_new(
                c.RecoverInput(attempt=attempt, kind=kind, detections=unanswered),
                search_attributes=attributes.at_start(attempt, kind),
            )
        return result

    def _failed(self, error: ActivityError) -> tuple[Outcome, str]:
        if is_cancelled_exception(error):
            return Outcome.OVERRIDDEN, "the workflow was cancelled by a person"
        cause = error.cause
        if isinstance(cause, ApplicationError) and cause.type == STOPPED:
            return Outcome.OVERRIDDEN, cause.message
        return Outcome.FAILED, said(error)

    def _unanswered(self, outcome: Outcome) -> tuple[Detection, ...]:
        """Detections that need an incident of their own: the latest of each kind, last those of what goes on.

        A hang that was not confirmed because the attempt has just crashed leaves the crash to be handled, and the
        crash came by signal to this very run.
        """
        others = {d.kind: d for d in self._detections[1:]}
        first = self._detections[0] if self._detections else None
        ended = first is not None and first.kind in GOES_ON and bool(others.keys() - {first.kind})
        if first is not None and self._overtaken:
            others.setdefault(first.kind, first)  # where the newer finding is not confirmed, this one stands as it did
        if outcome is Outcome.NOT_CONFIRMED or ended:
            return tuple(sorted(others.values(), key=lambda d: d.kind in GOES_ON))
        return ()

    # --- the runbook -------------------------------------------------------------------------------------------

    async def _recover(self) -> None:
        await workflow.wait_condition(lambda: bool(self._detections) or self._stop is not None)
        self._raise_if_stopped()
        detection = self._detections[0]
        self._step("detected", headline(detection), at=detection.detected_at)
        await self._confirm(detection)
        diagnosis = await self._diagnose(detection)
        verdict = await self._plan(detection, diagnosis)
        if verdict.outcome and not verdict.plan.acts:
            raise _Ended(verdict.outcome, verdict.plan.reason)
        if verdict.mode is Mode.MONITOR:
            raise _Ended(Outcome.OBSERVED, summary_of(verdict.mode, verdict.plan.describe()))
        if verdict.mode is Mode.APPROVE:
            await self._approval(verdict)
        await self._look_whether_it_may(detection, verdict)
        self._go(Phase.ACTING)
        if self._asks and (void := self._asks.begin()):
            raise _Ended(Outcome.EXPIRED, f"{void}; nothing was done")
        await self._carry_out(detection, diagnosis, verdict)

    async def _look_whether_it_may(self, detection: Detection, verdict: Verdict) -> None:
        """A pause, the breaker or the kill switch may have come since the plan was made: nothing new begins then."""
        if not self._safe_hands:
            return
        partition = self._confirmation.partition if self._confirmation else ""
        stop = await self._unless_stopped(why_not_now(self._ref, verdict, detection, partition))
        if stop:
            raise _Ended(Outcome.OVERRIDDEN if self._phase is Phase.WAITING else Outcome.OBSERVED, stop)

    async def _tell_guard(self, sign: Sign) -> None:
        if self._safe_hands and self._detections and self._diagnosis and self._confirmation:
            await tell_guard(self._ref, sign, self._detections[0], self._diagnosis, self._confirmation)

    async def _confirm(self, detection: Detection) -> None:
        if waits := waits_for_slurm(detection):
            self._step("waiting", waits)
        arg = c.ConfirmInput(incident=self._ref, detection=detection)
        confirmation = await self._unless_stopped(do(c.CONFIRM, arg, waits or "look again before believing it"))
        self._confirmation = confirmation
        self._step("confirmed" if not confirmation.outcome else "not confirmed", confirmation.reason)
        if confirmation.outcome:
            raise _Ended(confirmation.outcome, confirmation.reason)
        workflow.upsert_search_attributes([attributes.USER.value_set(confirmation.user)])
        if confirmation.open_incident:
            await self._take_over(confirmation.open_incident)

    async def _take_over(self, other: str) -> None:
        """One act lease per job: the older incident ends before this one does anything."""
        handle = workflow.get_external_workflow_handle(other)
        try:
            await handle.signal("superseded", self._ref.id)
        except FailureError:
            # Nothing runs there, so nothing acts; what the ledger still shows as open is closed by the wait.
            self._step("lease", f"{other} had ended already")
        await self._unless_stopped(
            do(c.AWAIT_CLOSED, c.AwaitClosedInput(incident=self._ref, workflow_id=other), f"wait for {other} to close"),
        )

    async def _diagnose(self, detection: Detection) -> Diagnosis:
        self._go_on(Phase.DIAGNOSING)
        arg = c.DiagnoseInput(incident=self._ref, detection=detection, evidence=tuple(self._evidence))
        try:
            diagnosis = await self._unless_stopped(do(c.DIAGNOSE, arg, "find the cause in logs, kernel logs and Slurm"))
        except ActivityError as error:
            if is_cancelled_exception(error):
                raise
            diagnosis = _undiagnosed(self._failed(error)[1])
        self._diagnosis = diagnosis
        cause = diagnosis.verdict
        nodes = cause.implicated.nodes
        workflow.upsert_search_attributes(
            [
                attributes.CAUSE.value_set(cause.signature),
                attributes.CATEGORY.value_set(str(cause.category)),
                attributes.NODES.value_set(list(nodes[:MAX_NODES_IN_ATTRIBUTE])),
                attributes.NODE_COUNT.value_set(len(nodes)),
            ],
        )
        self._step("diagnosed", cause.summary or cause.signature)
        await self._tell_guard(Sign.INCIDENT)
        return diagnosis

    async def _plan(self, detection: Detection, diagnosis: Diagnosis) -> Verdict:
        self._go_on(Phase.PLANNING)
        arg = c.PlanInput(incident=self._ref, detection=detection, diagnosis=diagnosis, fresh_job=self._fresh_job)
        if self._good_checkpoint:
            found = await self._unless_stopped(checkpoints.look_at(self._ref))
            if found.series or found.problems:
                self._step("checkpoints", found.sentence, at=found.read_at)
            arg = arg.model_copy(update={"checkpoints": found})
        verdict = await self._unless_stopped(do(c.PLAN, arg, "decide by policy"))
        self._verdict = verdict
        workflow.upsert_search_attributes([attributes.MODE.value_set(str(verdict.mode))])
        self._step("planned", f"{verdict.plan.describe()} [{verdict.mode}]")
        return verdict

    async def _approval(self, verdict: Verdict) -> None:
        """Wait for people; nobody answering means no."""
        self._go_on(Phase.WAITING)
        self._asks = self._asking(verdict)
        self._show()
        answer = await self._asks.answer(lambda: self._stop is not None)
        self._raise_if_stopped()
        if answer.outcome:
            raise _Ended(answer.outcome, answer.text)
        self._step("approved", answer.text)

    def _asking(self, verdict: Verdict) -> Asks:
        owner = self._confirmation.user if self._confirmation else ""
        asked = request_for(verdict, self._ref.id, self._ref.run_id, owner=owner, now=workflow.now())
        self._decide_until = asked.until
        if not self._safe_hands:
            record = partial(self._record_before, verdict.plan)
            return AskingOne(self._ref, verdict, asked.until, waits=self._waits, late=self._late_before, record=record)
        return Asking(asked, late=self._late, record=partial(self._record, verdict.plan), show=self._show)

    async def _carry_out(self, detection: Detection, diagnosis: Diagnosis, verdict: Verdict) -> None:
        plan = verdict.plan
        drains = asyncio.gather(*(self._drain(node, diagnosis) for node in plan.drain))
        try:
            if plan.restart is Restart.NONE:
                await drains
                self._raise_if_stopped()
                await self._leave_stopped(self._act(plan, detection, diagnosis))
                raise _Ended(verdict.outcome or Outcome.STOPPED, plan.reason)
            await self._restart(self._act(plan, detection, diagnosis))
            self._go(Phase.VERIFYING)
            if self._newer:
                self.superseded(self._newer)
            end = await self._verify(plan, diagnosis, verdict.policy.progress_within)
        except (asyncio.CancelledError, ActivityError) as error:
            if is_cancelled_exception(error):
                drains.cancel()
            raise
        finally:
            await drains
        raise end

    def _act(self, plan: Plan, detection: Detection, diagnosis: Diagnosis) -> c.ActInput:
        return c.ActInput(
            incident=self._ref,
            plan=plan,
            detection=detection,
            diagnosis_class=diagnosis.verdict.signature,
            summary=diagnosis.verdict.summary,
            approved_until=self._approved_until,
        )

    @property
    def _approved_until(self) -> datetime | None:
        """By when what people approved must have begun; None where nobody had to."""
        approval = self._asks.approval if self._asks else None
        return approval.act_until if approval else None

    async def _leave_stopped(self, act: c.ActInput) -> None:
        if act.plan.cancel:
            self._ended_or_step("cancelled", await do(c.CANCEL, act, f"cancel job {act.plan.attempt.job_id}"))

    async def _restart(self, act: c.ActInput) -> None:
        """By a requeue, ours or Slurm's own, or by a fresh job."""
        plan = act.plan
        self._acting = act
        if not act.incident.again:
            await self._keep_outputs(act)
        self._raise_if_stopped()
        gone_back = plan.restart is not Restart.ADOPT and await self._fall_back(act, ended=False)
        if plan.restart is Restart.SUBMIT:
            if not gone_back:
                raise _Ended(Outcome.FAILED, "the old attempt has not ended: nothing was submitted")
            await self._submit(act)
        else:
            await self._requeue(act, gone_back=gone_back)

    async def _requeue(self, act: c.ActInput, *, gone_back: bool) -> None:
        """The order is Slurm's: see docs/architecture.md, "Acting on Slurm"."""
        plan = act.plan
        job = plan.attempt.job_id
        requeued_at = None
        if plan.restart is Restart.REQUEUE:
            done = await do(c.REQUEUE, act, f"requeue job {job}")
            self._ended_or_step("requeued", done)
            requeued_at = done.at
        verdict = self._verdict if self._safe_hands else None
        if verdict and verdict.allow:
            back = c.ExcludeInput(incident=act.incident, nodes=verdict.allow, take_back=True)
            self._ended_or_step("allowed again", await do(c.EXCLUDE, back, f"allow {','.join(verdict.allow)} again"))
        if plan.exclude:
            until = {e.node: e.until for e in verdict.exclusions if e.node in plan.exclude} if verdict else {}
            arg = c.ExcludeInput(incident=act.incident, nodes=plan.exclude, until=until)
            done = await do(c.EXCLUDE, arg, f"keep job {job} off {','.join(plan.exclude)}")
            self._ended_or_step("excluded", done)
        if self._safe_hands and plan.restart is Restart.REQUEUE:
            await self._repoint(act)
        ended = await self._until_ended(act.incident, requeued_at)
        if ended.forgotten:
            await self._restart_again(act, ended.text)
            return
        if ended.outcome:
            raise _Ended(ended.outcome, ended.text)
        self._step("ended", ended.text)
        if not gone_back:
            await self._fall_back(act, ended=True)
        later = verdict.not_before if verdict else None
        if plan.release:
            await self._back_off(later)
            self._ended_or_step("released", await do(c.RELEASE, act, f"release Slurm's hold of job {job}"))
        act = act.model_copy(update={"not_before": later})
        at = f"{later:%H:%M:%S} UTC" if later else "now"
        self._ended_or_step("start set", await do(c.START, act, f"StartTime={at} for job {job}"))

    async def _fall_back(self, act: c.ActInput, *, ended: bool) -> bool:
        """Let the next attempt go on from an older checkpoint; False where the old attempt must end first."""
        if act.plan.fall_back is None:
            return True
        done = await checkpoints.fall_back(act, ended=ended)
        if done.outcome:
            raise _Ended(done.outcome, done.text)
        if not done.waits:
            self._step("went back", done.text, at=done.at)
        return not done.waits

    async def _submit(self, act: c.ActInput) -> None:
        """A fresh job in the attempt's place: held until it is as it should be (docs/decisions/0022-fresh-job.md)."""
        plan, verdict = act.plan, self._verdict
        job = plan.attempt.job_id
        send = c.SubmitInput(**dict(act), allow=verdict.allow if verdict else ())
        done = await do(c.SUBMIT, send, f"submit job {job} anew, held")
        self._ended_or_step("submitted", done)
        act = act.model_copy(update={"incident": act.incident.model_copy(update={"fresh": done.fresh})})
        self._acting = act
        if plan.exclude:
            until = {e.node: e.until for e in verdict.exclusions if e.node in plan.exclude} if verdict else {}
            away = c.ExcludeInput(incident=act.incident, nodes=plan.exclude, until=until)
            self._ended_or_step("excluded", await do(c.EXCLUDE, away, f"keep it off {','.join(plan.exclude)}"))
        await self._repoint(act)
        act = act.model_copy(update={"not_before": verdict.not_before if verdict else None})
        self._ended_or_step("released", await do(c.RELEASE_FRESH, act, "release the fresh job"))

    async def _until_ended(self, ref: c.IncidentRef, requeued_at: datetime | None) -> c.Ended:
        wait = c.AwaitEndedInput(incident=ref, requeued_at=requeued_at, tell_stuck=self._safe_hands)
        ended = await self._unless_stopped(do(c.AWAIT_ENDED, wait, "wait until Slurm has ended the old attempt"))
        if self._safe_hands and ended.stuck_nodes:
            self._step("stuck", ended.text)
            for text in await care_for_stuck(self._ref, ended):
                self._step("care", text)
            wait = wait.model_copy(update={"since": ended.since})
            ended = await self._unless_stopped(do(c.AWAIT_ENDED, wait, "go on waiting for the old attempt's end"))
        elif self._safe_hands and ended.lingering:
            for text in await care_for_stuck(self._ref, ended):
                self._step("care", text)
        return ended

    async def _restart_again(self, act: c.ActInput, text: str) -> None:
        """Begin anew what slurmctld has forgotten, looking first as ever; what was approved has been begun in time."""
        again = act.incident.again + 1
        if again > MOST_TIMES:
            raise _Ended(Outcome.FAILED, f"{text}; that was the {again}th time")
        self._step("forgotten", text)
        ref = act.incident.model_copy(update={"again": again, "fresh": None})
        await self._restart(act.model_copy(update={"incident": ref, "approved_until": None}))

    async def _repoint(self, act: c.ActInput) -> None:
        """Let jobs that waited for this one's success wait again. What goes wrong here never holds up the restart."""
        try:
            done = await do(
                c.REPOINT, act, f"let what waits for job {act.plan.attempt.job_id} wait for its next attempt"
            )
        except ActivityError as error:
            if is_cancelled_exception(error):
                raise
            self._step("dependants not pointed anew", self._failed(error)[1])
        else:
            if done.text:
                self._step("dependants", done.text, at=done.at)

    async def _back_off(self, until: datetime | None) -> None:
        """Leave Slurm's own hold as it is until then: released, the job may start before a start time can be set."""
        left = until - workflow.now() if until else timedelta(0)
        if left <= timedelta(0):
            return
        self._step("backs off", f"Slurm's hold stays until {until:%H:%M:%S} UTC")
        with suppress(TimeoutError):
            await workflow.wait_condition(lambda: self._stop is not None, timeout=left, timeout_summary="back-off")
        self._raise_if_stopped()

    async def _keep_outputs(self, act: c.ActInput) -> None:
        """Requeue truncates the outputs; keeping them is worth ten seconds but never the recovery itself."""
        try:
            done = await do(c.KEEP_OUTPUTS, act, "keep the outputs of the failed attempt")
            self._step("outputs kept", done.text)
        except ActivityError as error:
            if is_cancelled_exception(error):
                raise
            self._step("outputs not kept", str(error.cause or error))

    async def _verify(self, plan: Plan, diagnosis: Diagnosis, within: timedelta) -> "_Ended":
        running = await self._until_running(plan)
        self._step("running", running.text, at=running.at)
        if running.attempt is None:
            raise _Ended(running.outcome or Outcome.FAILED, running.text)
        arg = c.AwaitProgressInput(
            incident=self._ref,
            next_attempt=running.attempt,
            failed_step=diagnosis.failed_step,
            until=workflow.now() + within,
            fits=self._good_checkpoint,
            checkpoints=self._verdict.checkpoints if self._verdict else None,
        )
        past = f"step {diagnosis.failed_step}" if diagnosis.failed_step is not None else "its first step"
        proof = await self._unless_stopped(do(c.AWAIT_PROGRESS, arg, f"wait for training to pass {past}"))
        self._step("progress" if proof.moved else "no progress", proof.text, at=proof.at)
        if proof.outcome:
            return _Ended(proof.outcome, proof.text)
        if not proof.moved:
            await self._tell_guard(Sign.NOT_HELPED)
            return _Ended(Outcome.RESTARTED_NO_PROGRESS, proof.text)
        outcome = Outcome.ADOPTED if plan.restart is Restart.ADOPT else Outcome.RECOVERED
        return _Ended(outcome, proof.text)

    async def _until_running(self, plan: Plan) -> c.Running:
        """Wait for the next attempt; where our exclusions leave too few nodes, take the least proven back."""
        told: tuple[str, ...] | None = () if self._safe_hands else None
        kept_out = self._verdict.exclusions if self._safe_hands and self._verdict else ()
        exclude = [e.node for e in kept_out] or list(plan.exclude)
        while True:
            ref = self._acting.incident if self._acting else self._ref
            arg = c.AwaitRunningInput(incident=ref, exclude=tuple(exclude), told=told)
            running = await self._unless_stopped(do(c.AWAIT_RUNNING, arg, "wait for the next attempt to run"))
            if running.forgotten and self._acting:
                await self._restart_again(self._acting, running.text)
                continue
            if running.waits:
                told = (*(told or ()), running.waits)
                self._step("waiting", running.text, at=running.at)
                continue
            if not (running.too_few_nodes and exclude):
                return running
            node = exclude.pop()
            back = c.ExcludeInput(incident=ref, nodes=(node,), take_back=True)
            self._ended_or_step("exclusion taken back", await do(c.EXCLUDE, back, f"allow {node} again: too few nodes"))

    async def _drain(self, node: str, diagnosis: Diagnosis) -> None:
        """Ask the guard, then drain. Whatever goes wrong here is said, and never holds up the restart."""
        try:
            leave = await self._leave(node, diagnosis)
            if self._called_off:
                leave = leave.model_copy(update={"granted": False, "reason": "the incident was cancelled"})
            if not leave.granted:
                self._step("drain refused", f"{node}: {leave.reason}")
                return
            if self._asks and (void := self._asks.lapsed()):
                self._step("not drained", f"{node}: {void}")
                return
            arg = c.DrainInput(
                incident=self._ref,
                node=node,
                cls=diagnosis.verdict.signature,
                summary=diagnosis.verdict.summary,
                leave=leave,
                approved_until=self._approved_until,
            )
            done = await do(c.DRAIN, arg, f"drain {node}")
            self._step("drained" if done.outcome is None else "not drained", done.text, at=done.at)
            if self._safe_hands and done.outcome is None:
                self._step("care", await care_for(care_input(arg, leave_evidence(node, diagnosis))))
        except ActivityError as error:
            if is_cancelled_exception(error):
                raise
            self._step("drain failed", f"{node}: {self._failed(error)[1]}")

    async def _leave(self, node: str, diagnosis: Diagnosis) -> c.Leave:
        witnesses = leave_evidence(node, diagnosis)
        request = c.DrainRequest(
            incident=self._ref,
            node=node,
            cls=diagnosis.verdict.signature,
            reason=diagnosis.verdict.summary,
            evidence=witnesses,
            began=self._detections[0].detected_at if self._detections else None,
            targets=len(self._verdict.plan.drain) if self._verdict else 1,
            restarts=self._verdict is not None and self._verdict.plan.restart is not Restart.NONE,
        )
        guard = workflow.get_external_workflow_handle(c.guard_id(self._ref.attempt.cluster))
        try:
            await guard.signal("request_drain", request)
            await workflow.wait_condition(
                lambda: node in self._leaves or self._called_off,
                timeout=LEAVE_WITHIN,
                timeout_summary=f"leave to drain {node}",
            )
        except (FailureError, TimeoutError):
            return c.Leave(node=node, granted=False, reason="the guard did not answer")
        return self._leaves.get(node) or c.Leave(node=node, granted=False, reason="not answered yet")

    @property
    def _called_off(self) -> bool:
        """True once a person has cancelled: no further action."""
        return self._stop is not None and self._stop[0] is Outcome.OVERRIDDEN

    def _escalation(self, outcome: Outcome) -> str:
        """What a person must do next where time has run out; nothing was done then."""
        if outcome is not Outcome.EXPIRED or self._verdict is None or not self._safe_hands:
            return ""
        user = self._confirmation.user if self._confirmation else ""
        return clip(" ".join(by_hand(self._verdict.plan, user, workflow.now())), MAX_ESCALATION)

    # --- what people and other workflows say ----------------------------------------------------------------------

    @workflow.signal(description="A watcher's finding about this attempt (sent by Relight).")
    def evidence(self, detection: Detection) -> None:
        """Take a detection; the first starts the work, the rest is evidence beside it."""
        if any(known.id == detection.id for known in self._detections):
            return
        # The first of its kind is taken whatever came before: it may need an incident of its own.
        if len(self._detections) >= MAX_EVIDENCE_SIGNALS and any(d.kind is detection.kind for d in self._detections):
            return
        self._detections.append(detection)
        self._look_whether_overtaken()
        room = MAX_EVIDENCE - len(self._evidence)
        self._evidence.extend(detection.evidence[:room] if len(self._detections) > 1 else ())

    def _look_whether_overtaken(self) -> None:
        """End where a newer finding makes the plan moot. A decision that counts already is carried out all the same."""
        by = overtaken_by(self._detections, self._phase)
        decided = self._asks is not None and self._asks.settled
        if by is None or self._stop or decided or not workflow.patched(OVERTAKEN):
            return
        self._overtaken = overtaken(by)
        self._stop = (Outcome.SUPERSEDED, self._overtaken)
        self._step("overtaken", headline(by))

    @workflow.signal(
        description='Approve the plan: {"digest": "first 8 digits or more of the plan\'s digest", "reason": "why"}.',
    )
    async def approve(self, say: Say) -> None:
        """A person's yes by bare signal: it proves no identity, so it counts only where the site says so."""
        await self._bare(say, approved=True)

    @workflow.signal(description='Reject the plan: {"reason": "why"}. Nothing is done then.')
    async def reject(self, say: Say) -> None:
        """A person's no. A no needs no proof of identity: it only keeps Relight from acting."""
        await self._bare(say, approved=False)

    @workflow.signal(description='End this incident without (further) action: {"reason": "why"}.')
    def cancel(self, say: Say) -> None:
        """A person ends the incident."""
        self._stop = self._stop or (Outcome.OVERRIDDEN, f"cancelled by a person: {say.reason or 'no reason given'}")

    @workflow.signal(description="A newer incident of the same job takes over (sent by Relight).")
    def superseded(self, by: str) -> None:
        """End before anything is done; once restarted, the newer failure means no progress."""
        if self._phase is Phase.VERIFYING:
            self._stop = self._stop or (Outcome.RESTARTED_NO_PROGRESS, f"failed again: incident {by}")
        elif self._phase is Phase.ACTING:
            self._newer = by  # a restart half done is worse than either: it is looked at once the job is on its way
        else:
            self._stop = self._stop or (Outcome.SUPERSEDED, f"incident {by} of the same job took over")

    @workflow.signal(description="The guard's answer to a request for leave to drain (sent by Relight).")
    def leave(self, answer: c.Leave) -> None:
        """Keep the guard's word."""
        self._leaves.setdefault(answer.node, answer)

    @workflow.update(description="Decide with a signed decision (sent by `relight approve` and `relight reject`).")
    async def decide(self, signed: SignedDecision) -> str:
        """Take a signed decision; the answer says whether it counts, and why not."""
        if self._asks is None:
            return f"not counted: the incident is {self._phase}, not waiting for approval"
        return await self._asks.signed(signed)

    @decide.validator
    def _sane(self, signed: SignedDecision) -> None:
        """Keep out of the history what is far too large for a decision."""
        check_size(signed)

    @workflow.query(description="What people are asked to approve, and who has.")
    def approval(self) -> Approval | None:
        """Where the approval stands; None where nobody is (or was) asked."""
        return self._asks.approval if self._asks else None

    @workflow.query(description="Everything known of the incident.")
    def status(self) -> Status:
        """The incident as it stands."""
        return Status(
            incident=self._ref.id,
            workflow_id=self._ref.workflow_id,
            phase=self._phase,
            detection=self._detections[0] if self._detections else None,
            confirmation=self._confirmation,
            diagnosis=self._diagnosis,
            verdict=self._verdict,
            decide_until=self._decide_until,
            approval=self._asks.approval if self._asks else None,
            outcome=self._outcome,
            reason=self._reason,
            steps=tuple(self._steps),
        )

    async def _bare(self, say: Say, *, approved: bool) -> None:
        waits = self._phase is Phase.WAITING or bool(self._overtaken)
        if self._asks and (waits or self._safe_hands):
            await self._asks.bare(say, approved=approved)

    def _late(self) -> str:
        """Why no word counts any more; empty while words do."""
        if self._overtaken or self._stop:
            return f"too late, {self._overtaken or 'the incident ends'}"
        return "" if self._phase is Phase.WAITING else f"too late: the incident is {self._phase}"

    async def _record(self, plan: Plan, heard: Heard) -> None:
        arg = c.DecisionInput(
            incident=self._ref,
            plan=plan,
            decision=heard.decision,
            counts=heard.counts,
            remark=heard.remark,
            number=heard.approval.heard,
            score=heard.approval.score,
            proof=heard.proof,
        )
        await do(c.RECORD_DECISION, arg, f"record {'approval' if heard.decision.approved else 'rejection'}")
        if not heard.counts:
            self._step("decision not counted", heard.remark)

    def _waits(self) -> bool:
        return self._phase is Phase.WAITING and not self._overtaken

    def _late_before(self) -> str | None:
        waits = self._phase is Phase.WAITING and self._stop is None
        return None if waits else ", ".join(filter(None, ["too late", self._overtaken]))

    async def _record_before(self, plan: Plan, decision: Decision, remark: str) -> None:
        arg = c.DecisionInput(incident=self._ref, plan=plan, decision=decision, counts=not remark, remark=remark)
        await do(c.RECORD_DECISION, arg, f"record {'approval' if decision.approved else 'rejection'}")
        if remark:
            self._step("decision not counted", remark)

    # --- the platform part ----------------------------------------------------------------------------------------

    async def _unless_stopped(self, work: Coroutine[Any, Any, T]) -> T:
        """Wait for the work, or end it when a person or a newer incident stops this one."""
        return await unless(lambda: _Ended(*self._stop) if self._stop else None, work)

    def _raise_if_stopped(self) -> None:
        if self._stop:
            raise _Ended(*self._stop)

    def _ended_or_step(self, name: str, done: c.Done) -> None:
        if done.outcome:
            raise _Ended(done.outcome, done.text)
        self._step(name, done.text, at=done.at)

    def _go(self, phase: Phase) -> None:
        self._phase = advance(self._phase, phase)
        workflow.upsert_search_attributes([attributes.PHASE.value_set(str(phase))])
        self._show()

    def _go_on(self, phase: Phase) -> None:
        """Go on to this phase, unless what has come meanwhile makes the plan moot."""
        self._go(phase)
        self._look_whether_overtaken()
        self._raise_if_stopped()

    def _step(self, name: str, text: str, at: datetime | None = None) -> None:
        self._steps.append(StepTime(name=name, at=at or workflow.now(), text=clip(text, 300)))
        self._show()

    def _show(self) -> None:
        workflow.set_current_details(tell(self.status()))

    async def _close(self, outcome: Outcome, reason: str) -> RecoverResult:
        reason = clip(reason, MAX_REASON)
        if not may_close(self._phase, outcome):
            reason = f"{reason} (outcome {outcome} from {self._phase})"
            outcome = Outcome.FAILED
        self._outcome, self._reason = outcome, reason
        self._step(str(outcome), reason)
        escalate = self._escalation(outcome)
        if escalate:
            self._step("escalated", f"left to a person; what to do: relight show {self._ref.id}")
        self._go(Phase.CLOSED)
        workflow.upsert_search_attributes([attributes.OUTCOME.value_set(str(outcome))])
        steps = tuple(self._steps)
        arg = c.CloseInput(incident=self._ref, outcome=outcome, reason=reason, steps=steps, escalate=escalate)
        await to_its_end(do(c.CLOSE, arg, f"close as {outcome}"))
        return RecoverResult(incident=self._ref.id, outcome=outcome, reason=reason)


def _undiagnosed(problem: str) -> Diagnosis:
    """The verdict where the diagnosis itself failed: unknown, never a reason to leave the job dead."""
    unknown = Hypothesis(
        signature="UNKNOWN",
        category=Category.UNKNOWN,
        action=Action.RESTART,
        action_if_it_repeats=Action.STOP,
        confidence=0,
        summary="The cause could not be looked for.",
    )
    return Diagnosis(hypotheses=(unknown,), unreadable=(clip(f"diagnosis failed: {problem}", 300),))
