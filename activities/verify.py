"""Activities that prove what a restart brought: the next attempt runs, and training passes the failed step."""

from datetime import datetime, timedelta

from temporalio import activity

from relight.activities import contracts as c
from relight.activities.records import save
from relight.activities.site import Site, poll
from relight.domain.attempts import Attempt, Progress, attempt_key
from relight.domain.incidents import Outcome, Phase
from relight.domain.ledger import RowKind
from relight.domain.progress import passed
from relight.domain.slurm import ENDED, JobRecord, JobState
from relight.domain.watching import alive

LOOK_OFTEN = timedelta(seconds=0.25)
LOOK_AGAIN = timedelta(seconds=0.5)
LOOK_SLOWLY = timedelta(seconds=2)
OFTEN_AT_FIRST = 240
"""Looks before a job that waits in the queue is looked at less often: a minute."""


class Verify:
    """Waits for one job of a cluster."""

    def __init__(self, site: Site) -> None:
        """Bind to a cluster."""
        self._site = site

    @activity.defn(name=c.AWAIT_RUNNING.name)
    async def await_running(self, arg: c.AwaitRunningInput) -> c.Running:
        """Wait for the next attempt, however long the queue is."""
        attempt = await self._site.attempt(arg.incident.attempt)
        looks = 0
        while True:
            record = await self._site.record(attempt.key.job_id)
            running = await self._running(attempt, record, arg)
            if running:
                return running
            looks += 1
            await poll(self._site, LOOK_OFTEN if looks < OFTEN_AT_FIRST else LOOK_SLOWLY, looks)

    async def _running(self, attempt: Attempt, record: JobRecord | None, arg: c.AwaitRunningInput) -> c.Running | None:
        now = self._site.clock()
        if record is None:
            return c.Running(at=now, outcome=Outcome.FAILED, text="Slurm no longer knows the job")
        if record.submit_time > attempt.key.submit_time and record.running:
            key = attempt_key(self._site.cluster, record)
            text = f"running again on {','.join(record.nodes[:8])} (restart {record.restarts})"
            at = record.start_time if record.start_time and record.start_time > now else now
            await self._verified(arg.incident, "running", {"attempt": str(key), "nodes": list(record.nodes[:64])})
            return c.Running(attempt=key, nodes=record.nodes[:64], at=at, text=text)
        newer = await self._newer_attempt(attempt)
        if newer:
            return c.Running(attempt=newer.key, nodes=newer.record.nodes[:64], at=now, text="ran again meanwhile")
        return self._will_not_run(attempt, record, arg)

    def _will_not_run(self, attempt: Attempt, record: JobRecord, arg: c.AwaitRunningInput) -> c.Running | None:
        now = self._site.clock()
        if record.state in {JobState.CANCELLED, JobState.COMPLETED}:
            return c.Running(at=now, outcome=Outcome.OVERRIDDEN, text=f"the job is {record.state} now")
        if record.state is JobState.PENDING and record.reason.startswith("BadConstraints") and arg.exclude:
            return c.Running(at=now, too_few_nodes=True, text="BadConstraints: our exclusion leaves too few nodes")
        if record.submit_time > attempt.key.submit_time and record.state in ENDED and not record.completing:
            # Nobody saw it run, so nobody will open an incident for it: without this the wait would have no end.
            text = f"the next attempt was {record.state} before it was seen running"
            return c.Running(at=now, outcome=Outcome.RESTARTED_NO_PROGRESS, text=text)
        return None

    async def _newer_attempt(self, attempt: Attempt) -> Attempt | None:
        """A later attempt that the watchers saw; it may have ended again between two of our looks."""
        states = await self._site.ledger.attempts_of_job(self._site.cluster, attempt.key.job_id, limit=5)
        newer = [s.attempt for s in states if s.attempt.key.submit_time > attempt.key.submit_time]
        return newer[-1] if newer else None

    @activity.defn(name=c.AWAIT_PROGRESS.name)
    async def await_progress(self, arg: c.AwaitProgressInput) -> c.Proof:
        """Wait for a step beyond the failed one: nothing less counts as recovered."""
        while True:
            progress = await self._site.progress(arg.next_attempt)
            past = f"step {arg.failed_step}" if arg.failed_step is not None else "the failure"
            if passed(progress, arg.failed_step):
                text = f"step {progress.last_step}, past {past}"
                proof = c.Proof(moved=True, step=progress.last_step, at=progress.last_step_at or self._now(), text=text)
                await self._verified(arg.incident, "progress", proof.model_dump(mode="json"))
                return proof
            stop = await self._no_progress(arg)
            if stop:
                return stop
            if self._now() > arg.until:
                return self._out_of_time(arg, progress, past)
            await poll(self._site, LOOK_AGAIN)

    def _out_of_time(self, arg: c.AwaitProgressInput, progress: Progress, past: str) -> c.Proof:
        """The attempt still runs. Where no step was ever seen, its silence proves nothing."""
        silent = progress.last_step is None and (arg.failed_step is None or not progress.files)
        if silent:
            outcome = Outcome.RESTARTED_UNVERIFIED
            why = "its output prints no steps" if progress.files else "its output cannot be read"
            text = f"running, but whether training moves is unknown: {why}"
            return c.Proof(moved=False, at=self._now(), outcome=outcome, text=text)
        text = f"training did not get past {past} until {arg.until:%H:%M:%S} UTC"
        return c.Proof(moved=False, at=self._now(), text=text)

    def _now(self) -> datetime:
        return self._site.clock()

    async def _no_progress(self, arg: c.AwaitProgressInput) -> c.Proof | None:
        record = await self._site.record(arg.next_attempt.job_id)
        if record is not None and (alive(arg.next_attempt, record) or record.state is JobState.UNKNOWN):
            return None
        # One more look: its last lines may have become visible only now that it has ended.
        progress = await self._site.progress(arg.next_attempt)
        if passed(progress, arg.failed_step):
            return None
        last = progress.last_step
        if record is not None and record.state is JobState.CANCELLED:
            return c.Proof(moved=False, at=self._now(), outcome=Outcome.OVERRIDDEN, text="the job was cancelled")
        if record is not None and record.state is JobState.COMPLETED:
            return c.Proof(moved=True, step=last, at=self._now(), text="the job completed")
        state = record.state if record else "no longer known to Slurm"
        return c.Proof(moved=False, step=last, at=self._now(), text=f"the new attempt is {state} without passing it")

    async def _verified(self, ref: c.IncidentRef, what: str, body: dict[str, object]) -> None:
        await save(self._site, ref, f"verified-{what}", RowKind.VERIFIED, {"what": what, **body}, phase=Phase.VERIFYING)
