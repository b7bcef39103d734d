"""The watchers: long activities that read the outside again and again and write what they find to the ledger.

Each detection and the state it came from are written in one transaction; delivering it is another's work
(`deliver.py`). A failed read changes nothing and is said: a blind watcher must not look like a healthy cluster.
"""

from collections.abc import Awaitable, Callable, Iterable
from datetime import datetime, timedelta

from temporalio import activity

from relight.activities import contracts as c
from relight.activities.site import Site, poll
from relight.clients.slurm import SlurmBusyError, SlurmError, SlurmUnavailableError
from relight.domain.attempts import Attempt, AttemptKey, AttemptState, attempt_key, ended_key, lineage_id, same_lineage
from relight.domain.evidence import Detection
from relight.domain.ledger import Change, Entry, RowKind
from relight.domain.policy import requeued, successors
from relight.domain.slurm import ENDED_BADLY, JobRecord, JobState
from relight.domain.watching import Ended, compare, ending, flashes, lost_nodes, node_down, purged

MIN_PERIOD = timedelta(seconds=1)
READ_SHARE = 10
"""A period is at least ten times what the read itself took: Relight never keeps slurmctld busy."""
NODES_PERIOD = timedelta(seconds=2)
BACK_OFF = timedelta(seconds=15)


class Watch:
    """Watches the jobs and nodes of a cluster."""

    def __init__(self, site: Site) -> None:
        """Bind to a cluster."""
        self._site = site
        self._blind: dict[str, datetime] = {}
        self._last: tuple[JobRecord, ...] = ()
        """All jobs in the look before this one."""

    @activity.defn(name=c.WATCH_JOBS.name)
    async def watch_jobs(self, arg: c.WatchInput) -> c.Nothing:
        """Notice attempts that start and attempts that end."""
        return await self._watch("jobs", self._look_at_jobs, MIN_PERIOD, arg.run_for)

    async def _watch(
        self, what: str, look: Callable[[], Awaitable[None]], period: timedelta, run_for: timedelta
    ) -> c.Nothing:
        """Look again and again, one read at a time, and leave slurmctld alone when it says that it is busy."""
        until = self._site.clock() + run_for
        generation = 0
        while self._site.clock() < until:
            generation += 1
            started = self._site.clock()
            pause = period
            try:
                await look()
                self._sees(what)
            except SlurmUnavailableError as error:
                await self._is_blind(what, error)
                pause = BACK_OFF if isinstance(error, SlurmBusyError) else period
            took = self._site.clock() - started
            await poll(self._site, max(pause, READ_SHARE * took) - took, generation)
        return c.Nothing()

    async def _look_at_jobs(self) -> None:
        began = self._site.clock()
        running = {s.attempt.key: s for s in await self._site.ledger.running_attempts(self._site.cluster)}
        jobs = await self._site.slurm.jobs()
        found = compare({key: s.attempt for key, s in running.items()}, jobs, self._site.cluster)
        for ended in found.ended:
            await self._attempt_ended(running[ended.attempt.key], ended, jobs)
        for record in found.started:
            key = attempt_key(self._site.cluster, record)
            if self._looked_after(record) and not await self._site.known(key):
                await self._attempt_started(record, key)
        await self._flashes(jobs, began)
        self._last = jobs

    def _looked_after(self, record: JobRecord) -> bool:
        return not self._site.policy.partitions or record.partition in self._site.policy.partitions

    async def _flashes(self, jobs: tuple[JobRecord, ...], began: datetime) -> None:
        """Attempts that began and failed since the last look, which is remembered over restarts of the worker."""
        name = f"jobs/{self._site.cluster}"
        last = await self._site.ledger.cursor(name)
        since = datetime.fromisoformat(last["looked_at"]) if last else began
        for record in flashes(jobs, since):
            key = ended_key(self._site.cluster, record)
            if self._looked_after(record) and not await self._site.known(key):
                state = await self._attempt_started(record, key)
                await self._attempt_ended(state, Ended(state.attempt, record), jobs)
        await self._site.ledger.commit(Change(cursors={name: {"looked_at": began.isoformat()}}))

    async def _attempt_started(self, record: JobRecord, key: AttemptKey) -> AttemptState:
        """Snapshot an attempt at once: later the record may be gone, and its node list empty."""
        earlier = await self._site.ledger.attempts_of_job(self._site.cluster, record.job_id, limit=1)
        continues = bool(earlier) and same_lineage(earlier[0].attempt, record)
        lineage = earlier[0].attempt.lineage if continues else lineage_id(self._site.cluster, record)
        try:
            script: str | None = await self._site.slurm.batch_script(record.job_id)
        except SlurmError:
            script = None
        attempt = Attempt(key=key, lineage=lineage, record=record, seen_at=self._site.clock(), script=script)
        body = {"record": record.model_dump(mode="json"), "script": script and script[:65536]}
        entry = self._site.entry(f"{key}/seen", RowKind.ATTEMPT_SEEN, body, attempt)
        state = AttemptState(attempt=attempt)
        await self._site.ledger.commit(Change(entries=(entry,), attempts=(state,)))
        return state

    async def _attempt_ended(self, state: AttemptState, ended: Ended, jobs: tuple[JobRecord, ...]) -> None:
        attempt, record = ended
        now = self._site.clock()
        waited = dict.fromkeys((*state.successors, *(j.job_id for j in successors(attempt, (*self._last, *jobs)))))
        state = state.model_copy(update={"successors": tuple(waited)})
        if record is not None and not requeued(attempt, record):
            record = await self._site.settled(record)
            if record.state is JobState.UNKNOWN:
                # It ends, but how is not known yet: look again. By then they may no longer show that they waited.
                await self._site.ledger.commit(Change(attempts=(state,)))
                return
            ended = Ended(attempt, record)
        if record is None:
            detection, how = await self._purged(attempt, now)
        else:
            hand, nodes = await self._site.hand(attempt, record)
            if not nodes and record.state in ENDED_BADLY:
                nodes = await self._site.slurm.nodes()
            detection = ending(ended, hand, lost_nodes(attempt, nodes), now)
            how = f"{record.state}, queued again by {hand}"
        body = {"how": how, "record": record.model_dump(mode="json") if record else None}
        entry = self._site.entry(f"{attempt.key}/ended", RowKind.ATTEMPT_ENDED, body, attempt)
        over = state.model_copy(update={"running": False, "ended_at": now})
        await self._write((entry,), (over,), detection, attempt)

    async def _purged(self, attempt: Attempt, now: datetime) -> tuple[Detection | None, str]:
        """The record is gone, as after an outage of ours: accounting may still say how the attempt ended."""
        try:
            executions = await self._site.slurm.executions(attempt.key.job_id)
        except SlurmError as error:
            return None, f"slurmctld no longer knows it, and accounting does not say ({error})"
        for execution in executions:
            if execution.submit_time == attempt.key.submit_time:
                return purged(attempt, execution, now), f"{execution.state} (from accounting)"
        return None, f"slurmctld no longer knows it, nor does accounting ({JobState.UNKNOWN})"

    @activity.defn(name=c.WATCH_NODES.name)
    async def watch_nodes(self, arg: c.WatchInput) -> c.Nothing:
        """Notice nodes under running attempts that slurmctld has declared down."""
        return await self._watch("nodes", self._look_at_nodes, NODES_PERIOD, arg.run_for)

    async def _look_at_nodes(self) -> None:
        nodes = await self._site.slurm.nodes()
        down = [n for n in nodes if n.state == "DOWN"]
        if not down:
            return
        for state in await self._site.ledger.running_attempts(self._site.cluster):
            for node in lost_nodes(state.attempt, down)[:1]:
                detection = node_down(state.attempt, node, self._site.clock())
                await self._write((), (), detection, state.attempt)

    async def _write(
        self,
        entries: Iterable[Entry],
        attempts: tuple[AttemptState, ...],
        detection: Detection | None,
        attempt: Attempt,
    ) -> None:
        """The finding and the state it came from, in one transaction."""
        rows = list(entries)
        if detection:
            body = {"detection": detection.model_dump(mode="json")}
            rows.append(self._site.entry(f"{detection.id}/detected", RowKind.DETECTED, body, attempt))
        detections = (detection,) if detection else ()
        await self._site.ledger.commit(Change(entries=tuple(rows), attempts=attempts, detections=detections))

    async def _is_blind(self, what: str, error: Exception) -> None:
        """Say once that this watcher cannot see, and why."""
        if what in self._blind:
            return
        now = self._site.clock()
        self._blind[what] = now
        activity.logger.warning("watching %s is blind: %s", what, error)
        body = {"what": what, "why": str(error)[:500]}
        entry = self._site.entry(f"blind/{self._site.cluster}/{what}/{now.isoformat()}", RowKind.BLIND, body)
        await self._site.ledger.commit(Change(entries=(entry,)))

    def _sees(self, what: str) -> None:
        if since := self._blind.pop(what, None):
            activity.logger.info("watching %s sees again after %s", what, self._site.clock() - since)
