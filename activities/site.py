"""What every activity of a cluster works with: the clients, the policy in force, a clock."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

from temporalio import activity

from relight.activities.detectors import Detectors
from relight.clients.checkpoints import CheckpointMoves, Checkpoints
from relight.clients.kernel_logs import KernelLogs
from relight.clients.ledger import Ledger
from relight.clients.lineages import attempts_of
from relight.clients.logs import Logs
from relight.clients.metrics import GpuMetrics
from relight.clients.reach import Reach
from relight.clients.slurm import JobNotFoundError, NodeControl, Slurm, SlurmError, Submitter
from relight.domain.attempts import Attempt, AttemptKey, AttemptState, Progress, progress_cursor
from relight.domain.endings import another_job
from relight.domain.evidence import Detection
from relight.domain.hands import Hand, own_row, requeued, whose_hand
from relight.domain.ledger import Entry, RowKind
from relight.domain.policy import Policy
from relight.domain.policy_rules import InForce, in_force, version_of
from relight.domain.resubmission import FreshJob, stand_in
from relight.domain.rights import Approver
from relight.domain.slurm import ENDED, JobRecord, JobState, NodeRecord

SUBMIT = "submit"
"""What an intent is called by which a fresh job is submitted."""


def as_files(_: JobRecord) -> tuple[str, ...]:
    """A site without a log store: outputs are read as the files that they are."""
    return ()


@dataclass(frozen=True)
class Site:
    """One cluster, as its controller worker sees it."""

    cluster: str
    slurm: Slurm
    nodes: NodeControl
    ledger: Ledger
    logs: Logs
    kernel_logs: KernelLogs
    policy: Policy
    clock: Callable[[], datetime]
    sleep: Callable[[float], Awaitable[None]]
    kept: Path
    """Folder for the outputs of failed attempts."""
    keep_outputs_for: timedelta = timedelta(days=30)
    keep_outputs_at_most: int = 50 * 10**9
    """Bytes of all kept outputs together."""
    catalogue: tuple[Path, ...] = ()
    formats: tuple[Path, ...] = ()
    """The site's own files of progress formats."""
    approvers: tuple[Approver, ...] = ()
    """Whose signatures count where people must approve."""
    named: Callable[[JobRecord], tuple[str, ...]] = as_files
    """How a job's outputs are named in `logs` (`Attempt.logs`)."""
    reach: Reach | None = None
    """Asks nodes' slurmd; None where this machine is not in the cluster's own network."""
    metrics: GpuMetrics | None = None
    """What DCGM's exporters show; None where that is not read."""
    submitter: Submitter | None = None
    """Submits as a job's user; None where the site does not let Relight do so."""
    platform_repairs: bool = False
    """Whether the platform reboots or replaces a node by its reason (`care.reasons: hyperpod`)."""
    checkpoints: Checkpoints | None = None
    """Where jobs' checkpoints are looked at; None: nowhere."""
    moves: CheckpointMoves | None = None
    """Lets a job go on from an older checkpoint; None: files are only read on this site."""
    kill_switch: Path | None = None
    """While this file is there, nothing is touched; None: there is no such file on this site."""
    detectors: Detectors = field(init=False)
    policy_problem: str = field(init=False, default="")
    """Why a newer policy of the settings file is not in force; empty: it is, or there is none."""

    def __post_init__(self) -> None:
        """Detectors go by the site's clock."""
        object.__setattr__(self, "detectors", Detectors(self.clock))

    def policy_for(self, job: JobRecord) -> InForce:
        """The policy for one job, rules applied."""
        return in_force(self.policy, self.cluster, job)

    @property
    def policy_version(self) -> str:
        """Names the policy in force."""
        return version_of(self.policy)

    def enforce(self, policy: Policy) -> None:
        """From now on this policy counts; what has been decided keeps the one it was decided by."""
        object.__setattr__(self, "policy", policy)
        object.__setattr__(self, "policy_problem", "")

    def refuse(self, problem: str) -> None:
        """The settings file has a policy that cannot be used: the one in force stays."""
        object.__setattr__(self, "policy_problem", problem)

    async def record(self, job_id: int) -> JobRecord | None:
        """The job as slurmctld shows it now, or None when it does not (or no longer) know it."""
        try:
            record = await self.slurm.job(job_id)
        except JobNotFoundError:
            return None
        return await self.settled(record)

    async def record_of(self, attempt: Attempt) -> JobRecord | None:
        """The attempt's job as slurmctld shows it now; None also where its id is another job's by now."""
        record = await self.record(attempt.key.job_id)
        return None if record is not None and another_job(attempt, record) else record

    async def settled(self, record: JobRecord) -> JobRecord:
        """The record with its final state, where 22.05 hides that behind COMPLETING and accounting knows it (seen)."""
        if record.state is not JobState.UNKNOWN or not record.completing:
            return record
        try:
            executions = await self.slurm.executions(record.job_id)
        except SlurmError:
            return record
        same = (e for e in executions if e.submit_time == record.submit_time and e.state in ENDED)
        known = next(same, None)
        return record.model_copy(update={"state": known.state}) if known else record

    async def known(self, key: AttemptKey) -> AttemptState | None:
        """What the ledger knows of the attempt."""
        return await self.ledger.attempt(key)

    async def attempt(self, key: AttemptKey) -> Attempt:
        """The attempt's snapshot.

        Raises:
            ValueError: when it was never seen; an incident of it has then not been confirmed either.
        """
        state = await self.known(key)
        if state is None:
            raise ValueError(f"Relight never saw attempt {key}")
        return state.attempt

    async def target(self, key: AttemptKey, fresh: FreshJob | None) -> Attempt:
        """What is acted on and waited for: the attempt's own job, or the one that was submitted in its place."""
        attempt = await self.attempt(key)
        return stand_in(attempt, fresh) if fresh else attempt

    async def progress(self, key: AttemptKey) -> Progress:
        """How far the attempt's training has come."""
        value = await self.ledger.cursor(progress_cursor(key))
        return Progress.model_validate(value) if value else Progress()

    async def hand(self, attempt: Attempt, record: JobRecord, nodes: tuple[NodeRecord, ...]) -> Hand:
        """Who queued the attempt again; accounting is asked too, and may not know."""
        if not requeued(attempt, record):
            return Hand.NOBODY
        try:
            rows = await self.slurm.executions(attempt.key.job_id)
        except SlurmError:
            rows = ()
        row = own_row(attempt, rows)
        return whose_hand(attempt, record, nodes, ours=await self.meant_to_requeue(attempt.key), execution=row)

    async def meant_to_requeue(self, key: AttemptKey) -> bool:
        """True when the ledger holds our intent to requeue this attempt, or to submit it anew."""
        rows = await self.ledger.rows(attempt=str(key), kind=RowKind.INTENT)
        return any(row.body.get("what") in {"requeue", SUBMIT} for row in rows)

    async def requeues(self, attempt: Attempt) -> int:
        """How often Relight has meant to requeue this job, or to submit it anew."""
        mine = await attempts_of(self.ledger, attempt)
        return sum([await self.meant_to_requeue(each.key) for each in mine])

    def entry(self, entry_id: str, kind: RowKind, body: dict[str, Any], attempt: Attempt | None = None) -> Entry:
        """A ledger row that belongs to no incident."""
        return Entry(
            id=entry_id,
            kind=kind,
            at=self.clock(),
            cluster=self.cluster,
            attempt=str(attempt.key) if attempt else "",
            lineage=attempt.lineage if attempt else "",
            body=body,
        )

    def detected(self, detection: Detection, attempt: Attempt) -> Entry:
        """The audit row of a detection, the same each time it is made."""
        body = {"detection": detection.model_dump(mode="json")}
        return self.entry(f"{detection.id}/detected", RowKind.DETECTED, body, attempt)


BEAT = 5.0
"""Seconds between two beats of something long."""


@asynccontextmanager
async def beating() -> AsyncIterator[None]:
    """Beat all the while: what is done within may take longer than Temporal waits for a beat."""
    beat = asyncio.create_task(_beat())
    try:
        yield
    finally:
        beat.cancel()


async def _beat() -> None:
    while True:
        activity.heartbeat()
        await asyncio.sleep(BEAT)


async def poll(site: Site, every: timedelta, beat: object = None) -> None:
    """Beat, then wait until the next look. A beat carries a number at most, never state."""
    activity.heartbeat(beat) if beat is not None else activity.heartbeat()
    await site.sleep(every.total_seconds())
