"""Activities that prove what a restart brought: the next attempt runs, and training passes the failed step."""

from datetime import datetime, timedelta

from temporalio import activity

from relight.activities import contracts as c
from relight.activities.durable import Durable, bound
from relight.activities.records import save
from relight.activities.resubmit_look import look_for_fresh_job, told_of
from relight.activities.site import Site, poll
from relight.clients.slurm import SlurmError
from relight.domain import forgotten
from relight.domain.attempts import Attempt, Progress, attempt_key
from relight.domain.exclusions import MAYBE_UNPLACEABLE, UNPLACEABLE, in_the_way
from relight.domain.forgotten import Unqueued
from relight.domain.hands import Hand, requeued
from relight.domain.incidents import Outcome, Phase
from relight.domain.ledger import RowKind
from relight.domain.progress import passed
from relight.domain.slurm import ENDED, JobRecord, JobState
from relight.domain.waiting import code, why
from relight.domain.watching import alive, unstarted

LOOK_OFTEN = timedelta(seconds=0.25)
LOOK_AGAIN = timedelta(seconds=0.5)
LOOK_SLOWLY = timedelta(seconds=2)
SAID_AFTER = timedelta(seconds=4)
"""A job that starts sooner is not said to wait."""
MOST_REASONS = 8
"""Reasons to wait that are told of one job: a queue may go through many."""
OFTEN_AT_FIRST = 240
"""Looks before a job that waits in the queue is looked at less often: a minute."""
UNPLACEABLE_AFTER = timedelta(seconds=30)
"""How long Slurm must have said that nodes are not available: it may say so in passing, while nodes come and go."""


class Verify:
    """Waits for one job of a cluster."""

    def __init__(self, site: Site) -> None:
        """Bind to a cluster."""
        self._site = site

    @activity.defn(name=c.AWAIT_RUNNING.name)
    async def await_running(self, arg: c.AwaitRunningInput) -> c.Running:
        """Wait for the next attempt, however long the queue is."""
        attempt, fresh = await self._site.target(arg.incident.attempt, arg.incident.fresh), arg.incident.fresh
        looks, began = 0, self._site.clock()
        lacking: datetime | None = None
        lost_since: datetime | None = None
        unqueued = Unqueued()
        while True:
            record = await self._site.record_of(attempt)
            if record is None and fresh and self._now() - (lost_since or self._now()) < forgotten.FOR_SO_LONG:
                lost_since = lost_since or self._now()
                await poll(self._site, LOOK_OFTEN)
                continue
            lost_since = None if record else lost_since
            if record is None and fresh:
                return await look_for_fresh_job(self._site, attempt, fresh)
            running = await self._running(attempt, record, arg)
            if running:
                return await told_of(self._site, running) if fresh else running
            unqueued = unqueued.seen(attempt, record, self._now())
            if record and unqueued.forgotten(self._now()) and await self._requeued_by_us(arg.incident):
                return c.Running(at=self._now(), forgotten=True, text=forgotten.told(record))
            lacking = (lacking or self._now()) if record and _lacks_nodes(record, arg) else None
            if record and lacking and self._now() - lacking >= UNPLACEABLE_AFTER:
                if stuck := await self._stuck(attempt, record, arg):
                    return stuck
                lacking = None
            if record and self._site.clock() - began >= SAID_AFTER and (waits := _waits(record, arg)):
                return waits.model_copy(update={"at": self._site.clock()})
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
        if record.state is JobState.PENDING and record.reason.startswith(UNPLACEABLE) and arg.exclude:
            return c.Running(at=now, too_few_nodes=True, text=f"{UNPLACEABLE}: our exclusion leaves too few nodes")
        if record.submit_time > attempt.key.submit_time and record.state in ENDED and not record.completing:
            # Nobody saw it run, so nobody will open an incident for it: without this the wait would have no end.
            text = f"the next attempt was {record.state} before it was seen running"
            return c.Running(at=now, outcome=Outcome.RESTARTED_NO_PROGRESS, text=text)
        return None

    async def _stuck(self, attempt: Attempt, record: JobRecord, arg: c.AwaitRunningInput) -> c.Running | None:
        """Set where our exclusions are why nodes are not available; not known where nodes cannot be read."""
        try:
            nodes = await self._site.slurm.nodes()
        except SlurmError:
            return None
        if not in_the_way(record, nodes, arg.exclude, attempt.record.node_count):
            return None
        return c.Running(at=self._now(), too_few_nodes=True, text=f"{record.why}: our exclusion leaves too few nodes")

    async def _requeued_by_us(self, ref: c.IncidentRef) -> bool:
        return await self._site.ledger.has(ref.entry("requeue", "effect"))

    async def _newer_attempt(self, attempt: Attempt) -> Attempt | None:
        """A later attempt that the watchers saw; it may have ended again between two of our looks."""
        states = await self._site.ledger.attempts_of_job(self._site.cluster, attempt.key.job_id, limit=5)
        mine = [s.attempt for s in states if s.attempt.lineage == attempt.lineage]
        newer = [each for each in mine if each.key.submit_time > attempt.key.submit_time]
        return newer[-1] if newer else None

    @activity.defn(name=c.AWAIT_PROGRESS.name)
    async def await_progress(self, arg: c.AwaitProgressInput) -> c.Proof:
        """Wait for a step beyond the failed one, or a newer durable checkpoint: nothing less counts as recovered."""
        until, durable = await bound(self._site, arg), Durable(self._site, arg)
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
            late = self._now() > until
            if saved := await durable.look(silent=progress.last_step is None, last=late):
                proof = c.Proof(moved=True, step=progress.last_step, at=self._now(), text=saved)
                await self._verified(arg.incident, "progress", proof.model_dump(mode="json"))
                return proof
            if late:
                return self._out_of_time(arg, progress, past, until)
            await poll(self._site, LOOK_AGAIN)

    def _out_of_time(self, arg: c.AwaitProgressInput, progress: Progress, past: str, until: datetime) -> c.Proof:
        """The attempt still runs. Where no step was ever seen, its silence proves nothing."""
        silent = progress.last_step is None and (arg.failed_step is None or not progress.files)
        if silent:
            outcome = Outcome.RESTARTED_UNVERIFIED
            why = "its output prints no steps" if progress.files else "its output cannot be read"
            text = f"running, but whether training moves is unknown: {why}"
            return c.Proof(moved=False, at=self._now(), outcome=outcome, text=text)
        text = f"training did not get past {past} until {until:%H:%M:%S} UTC"
        return c.Proof(moved=False, at=self._now(), text=text)

    def _now(self) -> datetime:
        return self._site.clock()

    async def _no_progress(self, arg: c.AwaitProgressInput) -> c.Proof | None:
        watched = await self._watched(arg)
        record = await self._site.record_of(watched)
        if record is not None and _goes_on(watched, record):
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
        theirs = await self._theirs(watched, record) if record else ""
        if theirs:
            return c.Proof(moved=False, step=last, at=self._now(), outcome=Outcome.OVERRIDDEN, text=theirs)
        state = record.state if record else "no longer known to Slurm"
        return c.Proof(moved=False, step=last, at=self._now(), text=f"the new attempt is {state} without passing it")

    async def _watched(self, arg: c.AwaitProgressInput) -> Attempt:
        """The next attempt; where it was too short for the watchers to see, what is known of it by the one before."""
        if known := await self._site.known(arg.next_attempt):
            return known.attempt
        before = await self._site.attempt(arg.incident.attempt)
        unseen = {"submit_time": arg.next_attempt.submit_time, "restarts": before.record.restarts + 1, "nodes": ()}
        record = before.record.model_copy(update=unseen)
        return before.model_copy(update={"key": arg.next_attempt, "record": record})

    async def _theirs(self, attempt: Attempt, record: JobRecord) -> str:
        """Who else ended the attempt that was being watched; empty where it ended by itself, or by Slurm."""
        if record.state is JobState.PREEMPTED:
            return "the job was preempted"
        if not requeued(attempt, record):
            return ""
        hand = await self._site.hand(attempt, record, await self._site.slurm.nodes())
        return "somebody else queued the job again, or it was preempted" if hand is Hand.UNKNOWN else ""

    async def _verified(self, ref: c.IncidentRef, what: str, body: dict[str, object]) -> None:
        await save(self._site, ref, f"verified-{what}", RowKind.VERIFIED, {"what": what, **body}, phase=Phase.VERIFYING)


def _goes_on(watched: Attempt, record: JobRecord) -> bool:
    """True while it runs, and where slurmctld has forgotten its start and will make it again."""
    return alive(watched.key, record) or record.state is JobState.UNKNOWN or unstarted(watched, record)


def _lacks_nodes(record: JobRecord, arg: c.AwaitRunningInput) -> bool:
    return bool(arg.exclude) and record.state is JobState.PENDING and record.reason.startswith(MAYBE_UNPLACEABLE)


def _waits(record: JobRecord, arg: c.AwaitRunningInput) -> c.Running | None:
    """Why it waits, where that has been asked for and not been told."""
    reason = code(record)
    if arg.told is None or not reason or reason in arg.told or len(arg.told) >= MOST_REASONS:
        return None
    return c.Running(at=record.submit_time, waits=reason, text=why(record))
