"""Activities that look and judge: diagnose, plan. They change nothing outside the ledger."""

import asyncio
import io
from collections.abc import Callable
from contextlib import suppress
from datetime import datetime, timedelta
from functools import partial
from pathlib import PurePosixPath
from posixpath import relpath
from typing import BinaryIO

from temporalio import activity

from relight.activities import contracts as c
from relight.activities.agent_faults import AgentFaults
from relight.activities.care_history import scores
from relight.activities.confirm import NEVER_SEEN, Sights, heard_again, no_agents
from relight.activities.flight_dumps import flight_dumps
from relight.activities.guard_standing import standing as standing_of_guard
from relight.activities.records import save
from relight.activities.sights import blind_now
from relight.activities.site import Site, beating, poll
from relight.activities.surroundings import surroundings
from relight.attribution.catalogue import load
from relight.attribution.engine import diagnose
from relight.attribution.scanner import Scanner
from relight.attribution.sources import Context, LogSource, PriorFailure, Seat
from relight.clients import lineages
from relight.clients.logs import LogError
from relight.clients.slurm import SlurmError
from relight.domain import capacity
from relight.domain.attempts import Attempt, AttemptState, Progress
from relight.domain.base import canonical_json, short_hash
from relight.domain.detectors import unread_outputs
from relight.domain.diagnosis import Diagnosis
from relight.domain.evidence import Detection, Evidence, Source
from relight.domain.exclusions import Exclusion, standing
from relight.domain.fresh import fresh_submission
from relight.domain.hands import Hand, not_launched_on, own_row, requeued
from relight.domain.incidents import Incident, Outcome, Phase
from relight.domain.ledger import RowKind
from relight.domain.plan import Restart
from relight.domain.policy import NOT_ANEW, Situation, Verdict, decide, successors
from relight.domain.progress import witness
from relight.domain.ranks import rank_nodes
from relight.domain.resubmission import digest_of, submission, why_not
from relight.domain.silence import lost_before_slurm, shows_loss
from relight.domain.slurm import AccountingRow, JobRecord, JobState
from relight.domain.step_outputs import step_outputs
from relight.domain.watching import lost_nodes
from relight.domain.wishes import wishes

MOST_LEMONS = 64
"""Nodes whose history is looked through for one plan."""
MAX_KERNEL_LOGS = 256
"""Nodes whose kernel log is read for one incident: of a larger job, the suspects first."""
SETTLES_WITHIN = timedelta(seconds=30)
"""How long a plan waits for Slurm to say how the job ended."""
LOOK_AGAIN = timedelta(seconds=0.5)


class Investigate:
    """Looks at the outside on behalf of an incident."""

    def __init__(self, site: Site, sights: Sights = no_agents) -> None:
        """Bind to a cluster and to what its agents tell.

        Compiling the signatures takes seconds where no process has kept them yet: it is done before they are needed.
        """
        self._site = site
        self._sights = sights
        self._scanner = Scanner(load(site.catalogue))
        self._agent_faults = AgentFaults(site, self._scanner.catalogue)

    @activity.defn(name=c.DIAGNOSE.name)
    async def diagnose(self, arg: c.DiagnoseInput) -> Diagnosis:
        """Read the attempt's outputs, its nodes' kernel logs and what Slurm says, and rank the causes."""
        attempt = await self._site.attempt(arg.incident.attempt)
        progress = await self._site.progress(attempt.key)
        record = await self._site.record_of(attempt)
        nodes = await self._site.slurm.nodes()
        starts = {path: position.start for path, position in progress.files.items()}
        named = {path: PurePosixPath(path).name for path in attempt.outputs}
        # Of what steps write the folder may tell the rank, as in `attempt_0/3/stderr.log`.
        named |= {path: relpath(path, attempt.record.work_dir) for path in await self._step_outputs(attempt)}
        sources = [
            LogSource(name, Source.JOB_LOG, None, partial(self._site.logs.open, path, starts.get(path, 0)))
            for path, name in named.items()
        ]
        kernel, unreadable = await self._kernel_logs(attempt)
        told = await self._agent_faults.around(attempt, _began(arg.detection, progress))
        earlier = await self._earlier(arg.incident, attempt)
        gone = (*(n.name for n in lost_nodes(attempt, nodes)), *self._silent(attempt, arg))
        signalled = (*arg.detection.evidence, *arg.evidence)
        context = _context(attempt, record, arg.detection, gone=gone, earlier=earlier, last_step=progress.last_step)
        unlaunched = not_launched_on(attempt, record, nodes)
        before, beside = await surroundings(self._site, attempt, arg.detection)
        around = {"node_history": before, "spread": beside}
        context = context.model_copy(update={"not_launched_on": unlaunched, "seen": signalled, **around})
        dumps = await flight_dumps(self._site, attempt)
        async with beating():
            found = await asyncio.to_thread(diagnose, [*sources, *kernel], context, self._scanner, told, dumps.recorded)
        unread = (*found.unreadable, *unreadable, *dumps.unreadable)
        diagnosis = bounded(found.model_copy(update={"unreadable": unread}), signalled)
        body = diagnosis.model_dump(mode="json")
        update = {"phase": Phase.DIAGNOSING, "diagnosis": diagnosis}
        await save(self._site, arg.incident, "diagnose", RowKind.DIAGNOSED, body, **update)
        return diagnosis

    async def _step_outputs(self, attempt: Attempt) -> list[str]:
        """Those that are there: which ones a script makes is a reading of it."""
        there = []
        for path in step_outputs(attempt):
            with suppress(LogError):
                await self._site.logs.size(path)
                there.append(path)
        return there

    def _silent(self, attempt: Attempt, arg: c.DiagnoseInput) -> tuple[str, ...]:
        """The attempt's nodes that were found lost before Slurm has said so, and are not heard of again."""
        seen = (*arg.detection.evidence, *arg.evidence)
        nodes = dict.fromkeys(e.node for e in seen if e.node and shows_loss(e))
        again = {lost_before_slurm(arg.detection)} if heard_again(arg.detection, self._sights) else set()
        return tuple(node for node in nodes if node in attempt.record.nodes and node not in again)

    async def _kernel_logs(self, attempt: Attempt) -> tuple[list[LogSource], list[str]]:
        sources: list[LogSource] = []
        unreadable: list[str] = []
        for node in attempt.record.nodes[:MAX_KERNEL_LOGS]:
            activity.heartbeat()
            try:
                data = await self._site.kernel_logs.tail(node)
            except LogError as error:
                unreadable.append(str(error))
                continue
            # An empty kernel log has been read: that node's kernel said nothing.
            if data:
                name = f"kernel log of {node}"
                sources.append(LogSource(name=name, kind=Source.KERNEL_LOG, node=node, open=_bytes(data)))
        return sources, unreadable

    async def _earlier(self, incident: c.IncidentRef, attempt: Attempt) -> tuple[Incident, ...]:
        rows = await self._site.ledger.incidents(
            cluster=self._site.cluster, lineage=attempt.lineage, limit=lineages.MOST_INCIDENTS
        )
        # Those of this very attempt are no earlier failures: a hang that was left alone until it crashed, say.
        others = (i for i in rows if i.attempt != incident.attempt)
        real = (i for i in others if not i.open and i.outcome is not Outcome.NOT_CONFIRMED)
        return tuple(real)

    async def _settled(self, attempt: Attempt) -> JobRecord | None:
        """The job as it is, once Slurm says how it ended: 22.05 hides that for as long as an Epilog takes."""
        until = self._site.clock() + SETTLES_WITHIN
        while True:
            record = await self._site.record_of(attempt)
            hidden = record is not None and record.state is JobState.UNKNOWN and not requeued(attempt, record)
            if not hidden or self._site.clock() >= until:
                return record
            await poll(self._site, LOOK_AGAIN)

    async def _lemons(
        self, attempt: Attempt, diagnosis: Diagnosis, exclusions: tuple[Exclusion, ...]
    ) -> dict[str, float]:
        """How bad the history is of nodes that may be kept out; asked only where there is an order to them."""
        cause = diagnosis.verdict
        named = {*cause.drain_nodes, *cause.implicated.nodes} & {*attempt.record.nodes}
        nodes = named | {each.node for each in exclusions}
        found = await scores(self._site, sorted(nodes)[:MOST_LEMONS]) if len(nodes) > 1 else {}
        return {node: score.value for node, score in found.items()}

    async def _execution(self, attempt: Attempt) -> AccountingRow | None:
        try:
            return own_row(attempt, await self._site.slurm.executions(attempt.key.job_id))
        except SlurmError:
            return None

    @activity.defn(name=c.PLAN.name)
    async def plan(self, arg: c.PlanInput) -> Verdict:
        """Read once more all that the plan depends on, and let the policy decide."""
        state = await self._site.known(arg.incident.attempt)
        if state is None:
            raise ValueError(NEVER_SEEN)
        attempt = state.attempt
        slurm = self._site.slurm
        unseen = await blind_now(self._site, arg.detection.kind, {"jobs": slurm.jobs, "nodes": slurm.nodes})
        record = await self._settled(attempt)
        nodes = await self._site.slurm.nodes()
        jobs = await self._site.slurm.jobs()
        limit = wishes(attempt.record.comment).most_requeues
        mine = {attempt.record.partition} if attempt.record.partition else set()
        # What was not launched has written nothing that could be missed.
        unread = () if not_launched_on(attempt, record, nodes) else unread_outputs(attempt, arg.diagnosis.unreadable)
        ruled = self._site.policy_for(attempt.record)
        earlier = await self._earlier(arg.incident, attempt)
        listed = (record or attempt.record).excluded_nodes
        own = await lineages.own_exclusions(self._site.ledger, attempt)
        exclusions = standing(own, earlier, listed, attempt.key.job_id, ruled.policy.exclusions_expire)
        facts = await self._site.slurm.facts()
        may_submit = self._site.submitter is not None
        situation = Situation(
            attempt=attempt,
            kind=arg.detection.kind,
            now=self._site.clock(),
            record=record,
            hand=await self._site.hand(attempt, record, nodes) if record else Hand.NOBODY,
            facts=facts,
            ended_at=_ended_at(state, record),
            execution=await self._execution(attempt) if record is None else None,
            no_fresh_job=why_not(attempt, facts, may_submit=may_submit) if arg.fresh_job else None,
            nodes=tuple(n for n in nodes if not mine or mine & set(n.partitions)),
            successors=tuple(job.display_id for job in successors(attempt, jobs, state.successors)),
            earlier=earlier,
            marks=await lineages.marks(self._site.ledger, await lineages.attempts_of(self._site.ledger, attempt)),
            exclusions=exclusions,
            lemons=await self._lemons(attempt, arg.diagnosis, exclusions),
            witness=witness(arg.detection),
            guard=await standing_of_guard(self._site),
            began=arg.detection.detected_at,
            blind=(*unseen, *unread),
            requeues=await self._site.requeues(attempt) if limit is not None else 0,
            checkpoints=arg.checkpoints,
        )
        made_by = {"policy_version": ruled.version, "policy_rules": ruled.rules, "approvers": self._site.approvers}
        verdict = decide(situation, arg.diagnosis, ruled.policy).model_copy(update=made_by)
        verdict = grounded(verdict, arg.diagnosis, fresh_submission(arg.incident.id, attempt, verdict.plan.exclude))
        if verdict.plan.restart is Restart.SUBMIT:
            sent = digest_of(submission(attempt, "", without=verdict.allow))
            verdict = _with(verdict, submission=sent)
        if verdict.plan.restart is not Restart.NONE:
            away = {*listed, *verdict.plan.exclude} - {*verdict.allow}
            if room := capacity.told(record or attempt.record, nodes, jobs, away, self._site.clock()):
                verdict = _with(verdict, reason=f"{verdict.plan.reason} ({room})")
        body = {"digest": verdict.plan.digest, **verdict.model_dump(mode="json")}
        update = {"phase": Phase.PLANNING, "plan": verdict.plan, "mode": verdict.mode}
        await save(self._site, arg.incident, "plan", RowKind.PLANNED, body, **update)
        return verdict


def _with(verdict: Verdict, **plan: object) -> Verdict:
    return verdict.model_copy(update={"plan": verdict.plan.model_copy(update=plan)})


def _ended_at(state: AttemptState, record: JobRecord | None) -> datetime | None:
    if record is not None and record.submit_time == state.attempt.key.submit_time and record.running:
        return None
    # The earlier of both: after an outage of ours the end is long past when it is first seen, and Slurm's clock may
    # differ from ours.
    same = record is not None and record.submit_time == state.attempt.key.submit_time
    told = (state.ended_at, record.end_time if record is not None and same else None)
    return min((at for at in told if at), default=None)


def _began(detection: Detection, progress: Progress) -> datetime:
    """When the attempt went wrong at the earliest: a crash may be the end of a stall that began with the last step."""
    began = detection.occurred_at or detection.detected_at
    return min(began, progress.last_step_at) if progress.last_step_at else began


def _context(
    attempt: Attempt,
    record: JobRecord | None,
    detection: Detection,
    *,
    gone: tuple[str, ...],
    earlier: tuple[Incident, ...],
    last_step: int | None,
) -> Context:
    same = record if record and record.submit_time == attempt.key.submit_time else None
    return Context(
        nodes=attempt.record.nodes,
        rank_map={rank: Seat(node=node) for rank, node in rank_nodes(attempt).items()},
        state=same.state if same else None,
        reason=same.reason if same else "",
        exit_code=same.exit_code if same else None,
        exit_signal=same.exit_signal if same else None,
        lost_nodes=tuple(dict.fromkeys(gone)),
        interruption=detection.kind,
        interrupted_at=detection.occurred_at or detection.detected_at,
        history=tuple(_prior(i, i.diagnosis) for i in reversed(earlier) if i.diagnosis),
        last_step=last_step,
    )


def _prior(incident: Incident, diagnosis: Diagnosis) -> PriorFailure:
    cause = diagnosis.verdict
    return PriorFailure(
        signature=cause.signature,
        failed_step=diagnosis.failed_step,
        nodes=cause.implicated.nodes,
        outcome=str(incident.outcome or ""),
    )


def grounded(verdict: Verdict, diagnosis: Diagnosis, fresh: str) -> Verdict:
    """The verdict, its plan bound to what it rests on, with what a person can do when Slurm has forgotten the job."""
    cause = diagnosis.verdict
    seen = [evidence.model_dump(mode="json") for evidence in cause.evidence]
    rests_on = {"policy": verdict.policy_version, "cause": cause.signature, "evidence": seen}
    by_us = {Restart.REQUEUE, Restart.SUBMIT}
    forgotten = verdict.plan.restart in by_us or verdict.outcome is Outcome.EXPIRED or NOT_ANEW in verdict.plan.reason
    update = {"basis": short_hash(canonical_json(rests_on), 16), "fresh": fresh if forgotten else ""}
    return verdict.model_copy(update={"plan": verdict.plan.model_copy(update=update)})


MAX_HYPOTHESES = 4
MAX_EVIDENCE = 8


def bounded(diagnosis: Diagnosis, told: tuple[Evidence, ...]) -> Diagnosis:
    """The diagnosis small enough to travel; what the watchers told stands with the verdict."""
    kept = [h.model_copy(update={"evidence": h.evidence[:MAX_EVIDENCE]}) for h in diagnosis.hypotheses[:MAX_HYPOTHESES]]
    room = 16 - len(kept[0].evidence)
    new = [e for e in told if e not in kept[0].evidence]  # an agent's fault is both told and found in the ledger
    kept[0] = kept[0].model_copy(update={"evidence": (*kept[0].evidence, *new[:room])})
    return diagnosis.model_copy(update={"hypotheses": tuple(kept), "unreadable": diagnosis.unreadable[:16]})


def _bytes(data: bytes) -> Callable[[], BinaryIO]:
    return lambda: io.BytesIO(data)
