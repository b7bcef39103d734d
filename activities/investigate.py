"""Activities that look and judge: confirm, diagnose, plan. They change nothing outside the ledger."""

import asyncio
import io
from collections.abc import Callable
from datetime import datetime, timedelta
from functools import partial
from pathlib import Path
from typing import BinaryIO

from temporalio import activity

from relight.activities import contracts as c
from relight.activities.faults import ends_programs
from relight.activities.records import row, save
from relight.activities.site import Site, poll
from relight.attribution.catalogue import load
from relight.attribution.engine import diagnose
from relight.attribution.scanner import Scanner
from relight.attribution.sources import Context, LogSource, PriorFailure
from relight.clients.logs import LogError
from relight.domain.attempts import Attempt, AttemptState
from relight.domain.confirmation import FAULT_DECIDES_WITHIN, Judgement, judge
from relight.domain.diagnosis import Diagnosis
from relight.domain.evidence import Detection, Evidence, Interruption, Source
from relight.domain.incidents import Incident, Outcome, Phase
from relight.domain.ledger import Change, RowKind
from relight.domain.policy import Hand, Situation, Verdict, decide, successors
from relight.domain.progress import witness
from relight.domain.slurm import JobRecord, NodeRecord
from relight.domain.watching import lost_nodes

SLURM_DECIDES_WITHIN = timedelta(seconds=60)
"""How long a lost node's job may still show RUNNING before the loss counts as not confirmed."""
MAX_KERNEL_LOGS = 256
"""Nodes whose kernel log is read for one incident: of a larger job, the suspects first."""
LOOK_AGAIN = timedelta(seconds=0.5)


class Investigate:
    """Looks at the outside on behalf of an incident."""

    def __init__(self, site: Site) -> None:
        """Bind to a cluster; compiling the signatures takes most of a second, so it is done before they are needed."""
        self._site = site
        self._scanner = Scanner(load(site.catalogue))

    @activity.defn(name=c.CONFIRM.name)
    async def confirm(self, arg: c.ConfirmInput) -> c.Confirmation:
        """Open the incident in the ledger, then look again before believing the detection."""
        state = await self._site.known(arg.incident.attempt)
        if state is None:
            return await self._confirmed(arg, None, Judgement(outcome=Outcome.NOT_CONFIRMED, reason=_NEVER_SEEN), ())
        others = await self._site.ledger.incidents(cluster=self._site.cluster, lineage=state.attempt.lineage, limit=50)
        others = tuple(i for i in others if i.id != arg.incident.id)
        judgement = await self._judge(arg, state, others)
        return await self._confirmed(arg, state.attempt, judgement, others)

    async def _judge(self, arg: c.ConfirmInput, state: AttemptState, others: tuple[Incident, ...]) -> Judgement:
        """Ask Slurm until it has made up its mind about a lost node, or for as long as that may take."""
        attempt = state.attempt
        fault = arg.detection.kind is Interruption.GPU_FAULT
        lost_by_it = fault and ends_programs(arg.detection, self._scanner.catalogue)
        until = self._site.clock() + (FAULT_DECIDES_WITHIN if fault else SLURM_DECIDES_WITHIN)
        while True:
            record = await self._site.record(attempt.key.job_id)
            lost: tuple[NodeRecord, ...] = ()
            if arg.detection.kind is Interruption.NODE_LOST:
                lost = lost_nodes(attempt, await self._site.slurm.nodes())
            judgement = judge(
                attempt,
                arg.detection,
                record,
                progress=await self._site.progress(attempt.key),
                node_still_lost=bool(lost),
                earlier=tuple(i for i in others if i.attempt == attempt.key),
                now=self._site.clock(),
                ends_programs=lost_by_it,
            )
            if judgement is not None:
                return judgement
            if self._site.clock() >= until:
                text = "Slurm still shows the attempt running on all its nodes"
                return Judgement(outcome=Outcome.NOT_CONFIRMED, reason=text)
            await poll(self._site, LOOK_AGAIN)

    async def _confirmed(
        self, arg: c.ConfirmInput, attempt: Attempt | None, judgement: Judgement, others: tuple[Incident, ...]
    ) -> c.Confirmation:
        now = self._site.clock()
        record = attempt.record if attempt else None
        lease = next((i.workflow_id for i in others if i.open and i.attempt != arg.incident.attempt), "")
        confirmation = c.Confirmation(
            outcome=judgement.outcome,
            reason=judgement.reason,
            lineage=attempt.lineage if attempt else "",
            job_name=record.name if record else "",
            user=record.user if record else "",
            partition=record.partition if record else "",
            nodes=record.nodes[:64] if record else (),
            open_incident="" if judgement.outcome else lease,
        )
        incident = Incident(
            id=arg.incident.id,
            workflow_id=arg.incident.workflow_id,
            run_id=arg.incident.run_id,
            attempt=arg.incident.attempt,
            lineage=confirmation.lineage,
            kind=arg.detection.kind,
            phase=Phase.CONFIRMING,
            mode=self._site.policy.mode,
            opened_at=now,
            detected_at=arg.detection.detected_at,
            occurred_at=arg.detection.occurred_at,
            job_name=confirmation.job_name,
            user=confirmation.user,
        )
        opened = {"detection": arg.detection.model_dump(mode="json")}
        seen = {"outcome": judgement.outcome, "reason": judgement.reason}
        entries = (
            row(self._site, arg.incident, "open", RowKind.OPENED, opened, lineage=incident.lineage),
            row(self._site, arg.incident, "confirm", RowKind.CONFIRMED, seen, lineage=incident.lineage),
        )
        await self._site.ledger.commit(Change(entries=entries, incidents=(incident,)))
        return confirmation

    @activity.defn(name=c.DIAGNOSE.name)
    async def diagnose(self, arg: c.DiagnoseInput) -> Diagnosis:
        """Read the attempt's outputs, its nodes' kernel logs and what Slurm says, and rank the causes."""
        attempt = await self._site.attempt(arg.incident.attempt)
        progress = await self._site.progress(attempt.key)
        record = await self._site.record(attempt.key.job_id)
        nodes = await self._site.slurm.nodes()
        starts = {path: position.start for path, position in progress.files.items()}
        sources = [
            LogSource(Path(path).name, Source.JOB_LOG, None, partial(self._site.logs.open, path, starts.get(path, 0)))
            for path in attempt.outputs
        ]
        kernel, unreadable = await self._kernel_logs(attempt)
        earlier = await self._earlier(arg.incident, attempt)
        context = _context(attempt, record, nodes, arg.detection, earlier=earlier, last_step=progress.last_step)
        beat = asyncio.create_task(_beat())
        try:
            found = await asyncio.to_thread(diagnose, [*sources, *kernel], context, self._scanner)
        finally:
            beat.cancel()
        told = (*arg.detection.evidence, *arg.evidence)
        diagnosis = bounded(found.model_copy(update={"unreadable": (*found.unreadable, *unreadable)}), told)
        body = diagnosis.model_dump(mode="json")
        update = {"phase": Phase.DIAGNOSING, "diagnosis": diagnosis}
        await save(self._site, arg.incident, "diagnose", RowKind.DIAGNOSED, body, **update)
        return diagnosis

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
        rows = await self._site.ledger.incidents(cluster=self._site.cluster, lineage=attempt.lineage, limit=20)
        real = (i for i in rows if i.id != incident.id and not i.open and i.outcome is not Outcome.NOT_CONFIRMED)
        return tuple(real)

    @activity.defn(name=c.PLAN.name)
    async def plan(self, arg: c.PlanInput) -> Verdict:
        """Read once more all that the plan depends on, and let the policy decide."""
        state = await self._site.known(arg.incident.attempt)
        if state is None:
            raise ValueError(_NEVER_SEEN)
        attempt = state.attempt
        record = await self._site.record(attempt.key.job_id)
        nodes = await self._site.slurm.nodes()
        jobs = await self._site.slurm.jobs()
        mine = {attempt.record.partition} if attempt.record.partition else set()
        situation = Situation(
            attempt=attempt,
            kind=arg.detection.kind,
            now=self._site.clock(),
            record=record,
            hand=(await self._site.hand(attempt, record, nodes))[0] if record else Hand.NOBODY,
            facts=await self._site.slurm.facts(),
            ended_at=_ended_at(state, record),
            nodes=tuple(n for n in nodes if not mine or mine & set(n.partitions)),
            successors=tuple(job.display_id for job in successors(attempt, jobs, state.successors)),
            earlier=await self._earlier(arg.incident, attempt),
            witness=witness(arg.detection),
        )
        verdict = decide(situation, arg.diagnosis, self._site.policy)
        body = {"digest": verdict.plan.digest, **verdict.model_dump(mode="json")}
        update = {"phase": Phase.PLANNING, "plan": verdict.plan, "mode": verdict.mode}
        await save(self._site, arg.incident, "plan", RowKind.PLANNED, body, **update)
        return verdict


_NEVER_SEEN = "Relight never saw this attempt running"


def _ended_at(state: AttemptState, record: JobRecord | None) -> datetime | None:
    if record is not None and record.submit_time == state.attempt.key.submit_time and record.running:
        return None
    # The earlier of both: after an outage of ours the end is long past when it is first seen, and Slurm's clock may
    # differ from ours.
    same = record is not None and record.submit_time == state.attempt.key.submit_time
    told = (state.ended_at, record.end_time if record is not None and same else None)
    return min((at for at in told if at), default=None)


def _context(
    attempt: Attempt,
    record: JobRecord | None,
    nodes: tuple[NodeRecord, ...],
    detection: Detection,
    *,
    earlier: tuple[Incident, ...],
    last_step: int | None,
) -> Context:
    same = record if record and record.submit_time == attempt.key.submit_time else None
    return Context(
        nodes=attempt.record.nodes,
        state=same.state if same else None,
        reason=same.reason if same else "",
        exit_code=same.exit_code if same else None,
        exit_signal=same.exit_signal if same else None,
        lost_nodes=tuple(n.name for n in lost_nodes(attempt, nodes)),
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


MAX_HYPOTHESES = 4
MAX_EVIDENCE = 8


def bounded(diagnosis: Diagnosis, told: tuple[Evidence, ...]) -> Diagnosis:
    """The diagnosis small enough to travel; what the watchers told stands with the verdict."""
    kept = [h.model_copy(update={"evidence": h.evidence[:MAX_EVIDENCE]}) for h in diagnosis.hypotheses[:MAX_HYPOTHESES]]
    room = 16 - len(kept[0].evidence)
    kept[0] = kept[0].model_copy(update={"evidence": (*kept[0].evidence, *told[:room])})
    return diagnosis.model_copy(update={"hypotheses": tuple(kept), "unreadable": diagnosis.unreadable[:16]})


def _bytes(data: bytes) -> Callable[[], BinaryIO]:
    return lambda: io.BytesIO(data)


async def _beat() -> None:
    while True:
        activity.heartbeat()
        await asyncio.sleep(5)
