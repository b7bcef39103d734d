"""Activities that get a job going again, one effect each: durable intent, fresh look, write, look again, outcome."""

from datetime import datetime, timedelta
from pathlib import Path

from temporalio import activity

from relight.activities import contracts as c
from relight.activities.approved import lapsed
from relight.activities.mutations import Mutation
from relight.activities.records import row
from relight.activities.site import Site, poll
from relight.activities.start_time import StartTime
from relight.clients.lineages import own_exclusions
from relight.clients.logs import LogError, LogNotFoundError
from relight.clients.slurm import AmbiguousWriteError, RefusedError, SlurmUnavailableError
from relight.domain import forgotten
from relight.domain.attempts import Attempt
from relight.domain.capacity import fitting, usable
from relight.domain.confirmation import moved_since
from relight.domain.evidence import Interruption
from relight.domain.exclusions import ALLOW, EXCLUDE, shown
from relight.domain.forgotten import Unqueued, unqueued
from relight.domain.hands import held, held_by_slurm, requeued
from relight.domain.incidents import Outcome
from relight.domain.ledger import Change, RowKind
from relight.domain.policy import successors
from relight.domain.slurm import JobFlag, JobRecord, JobState
from relight.domain.step_outputs import step_outputs
from relight.domain.watching import alive

LOOK_AGAIN = timedelta(seconds=0.25)
READ_BACK_WITHIN = timedelta(seconds=20)
AFTER_REQUEUE = timedelta(seconds=2)
"""A start time set in the same second as the requeue can end the job as FAILED (seen): wait this long."""
NOT_SLURMS_OWN = timedelta(minutes=30)
"""A begin time so far ahead was set by a person: after a requeue Slurm's own is `cred_expire`, 120 s by default."""
STUCK_MARGIN = timedelta(seconds=30)


class ReadBackError(Exception):
    """What was written could not be read back in time; trying again looks first."""


class Restart:
    """Acts on one job of a cluster."""

    def __init__(self, site: Site) -> None:
        """Bind to a cluster."""
        self._site = site

    def _done(self, text: str, outcome: Outcome | None = None) -> c.Done:
        return c.Done(text=text, outcome=outcome, at=self._site.clock())

    def _mutation(self, ref: c.IncidentRef, attempt: Attempt, step: str) -> Mutation:
        return Mutation(self._site, ref, step, lineage=attempt.lineage)

    @activity.defn(name=c.KEEP_OUTPUTS.name)
    async def keep_outputs(self, arg: c.ActInput) -> c.Done:
        """Copy head and tail of the attempt's outputs: requeue truncates them, and a hard link too (seen)."""
        attempt = await self._site.attempt(arg.incident.attempt)
        folder = self._site.kept / str(attempt.key.job_id) / arg.incident.id
        kept, lost = [], []
        of_steps = step_outputs(attempt)
        for path in (*attempt.outputs, *of_steps):
            try:
                kept.append(await self._site.logs.keep(path, str(folder)))
            except LogError as error:
                if path in of_steps and isinstance(error, LogNotFoundError):
                    continue  # read off the script, and not there
                lost.append(f"{Path(path).name}: {error}")
        done = self._done(f"kept {len(kept)} in {folder}" + (f"; not kept: {'; '.join(lost)}" if lost else ""))
        entry = row(self._site, arg.incident, "keep", RowKind.OUTPUTS_KEPT, {"kept": kept, "not_kept": lost})
        await self._site.ledger.commit(Change(entries=(entry,)))
        return done

    # --- requeue ---

    @activity.defn(name=c.REQUEUE.name)
    async def requeue(self, arg: c.ActInput) -> c.Done:
        """Queue the job again, if the attempt is still the one that was diagnosed and nobody else acted."""
        attempt = await self._site.attempt(arg.incident.attempt)
        mutation = self._mutation(arg.incident, attempt, "requeue")
        done, meant = await mutation.before()
        if done:
            return done
        record = await self._site.record_of(attempt)
        stop = await self._must_not_requeue(attempt, record, arg, meant=meant)
        if stop:
            return await mutation.effect(stop)
        if record is None or not requeued(attempt, record):
            if void := lapsed(self._site, arg.approved_until):
                return await mutation.effect(void)
            what = {"what": "requeue", "job": attempt.key.job_id, "plan": arg.plan.digest}
            await mutation.intend(what)
            theirs = await self._write_requeue(attempt, meant=meant)
            if theirs:
                return await mutation.effect(theirs)
        record = await self._await_requeued(attempt)
        text = f"Slurm shows restart {record.restarts}, {record.state}"
        return await mutation.effect(self._done(text))

    async def _write_requeue(self, attempt: Attempt, *, meant: bool) -> c.Done | None:
        """Write it; somebody else's requeue, which came between look and write, is returned as theirs."""
        try:
            await self._site.slurm.requeue(attempt.key.job_id)
        except AmbiguousWriteError:
            return None  # the read-back tells; if nothing has changed by then, the next try looks first
        except RefusedError:
            # Slurm refuses to requeue a job that is pending already: then somebody was faster, unless an earlier
            # try of ours was. Any other refusal stands.
            record = await self._site.record_of(attempt)
            if record is None or not requeued(attempt, record):
                raise
            if not meant:
                return self._done("somebody else queued the job again first", Outcome.OVERRIDDEN)
        return None

    async def _must_not_requeue(
        self, attempt: Attempt, record: JobRecord | None, arg: c.ActInput, *, meant: bool
    ) -> c.Done | None:
        """Why the requeue must not be written now: the last look before it."""
        if record is None:
            return self._done("Slurm no longer knows the job", Outcome.EXPIRED)
        if requeued(attempt, record):
            text = "somebody else queued the job again meanwhile"
            return None if meant else self._done(text, Outcome.OVERRIDDEN)
        if record.state in {JobState.CANCELLED, JobState.COMPLETED, JobState.PREEMPTED}:
            return self._done(f"the job is {record.state} now", Outcome.OVERRIDDEN)
        return await self._lively(attempt, record, arg) or await self._succeeded(attempt)

    async def _lively(self, attempt: Attempt, record: JobRecord, arg: c.ActInput) -> c.Done | None:
        if arg.detection.kind in {Interruption.HANG, Interruption.GPU_FAULT}:
            return await self._moved_on(attempt, arg)
        if arg.detection.kind is Interruption.STRAGGLER:
            slow = (await self._site.progress(attempt.key)).slow_since is not None
            return None if slow else self._done("training is as fast as before again", Outcome.NOT_CONFIRMED)
        if alive(attempt.key, record):
            return self._done("the attempt is running", Outcome.NOT_CONFIRMED)
        return None

    async def _moved_on(self, attempt: Attempt, arg: c.ActInput) -> c.Done | None:
        """Set where the attempt that hung has gone on since."""
        progress = await self._site.progress(attempt.key)
        if moved_since(arg.detection, progress):
            return self._done(f"training moved on to step {progress.last_step}", Outcome.NOT_CONFIRMED)
        return None

    async def _succeeded(self, attempt: Attempt) -> c.Done | None:
        # Submitted while the plan waited for a person: two jobs would write one checkpoint folder.
        state = await self._site.known(attempt.key)
        found = successors(attempt, await self._site.slurm.jobs(), state.successors if state else ())
        others = [job.display_id for job in found]
        if others:
            return self._done(f"job {', '.join(others[:5])} goes on with the work", Outcome.SUCCEEDED_BY)
        return None

    async def _await_requeued(self, attempt: Attempt) -> JobRecord:
        """The record once Slurm's own mark of the requeue shows: SubmitTime moved, or the restart count grew."""
        until = self._site.clock() + READ_BACK_WITHIN
        while True:
            record = await self._site.record_of(attempt)
            if record and requeued(attempt, record):
                return record
            if self._site.clock() > until:
                raise ReadBackError(f"job {attempt.key.job_id} does not show the requeue")
            await self._site.sleep(LOOK_AGAIN.total_seconds())

    # --- exclusions and start time ---

    @activity.defn(name=c.EXCLUDE.name)
    async def exclude(self, arg: c.ExcludeInput) -> c.Done:
        """Merge our nodes into the user's own ExcNodeList, or take ours back."""
        attempt = await self._site.target(arg.incident.attempt, arg.incident.fresh)
        verb = ALLOW if arg.take_back else EXCLUDE
        mutation = self._mutation(arg.incident, attempt, f"{verb}-{','.join(arg.nodes)}"[:120])
        done, _meant = await mutation.before()
        if done:
            return done
        record = await self._site.record_of(attempt)
        if record is None:
            return await mutation.effect(self._done("Slurm no longer knows the job", Outcome.EXPIRED))
        if moot := self._exclusions_are_moot(attempt, record):
            return await mutation.effect(moot)
        now = set(record.excluded_nodes)
        if arg.take_back:
            wanted = now - (set(arg.nodes) & set(await own_exclusions(self._site.ledger, attempt)))
        else:
            wanted = now | set(await self._with_room(attempt, record, arg.nodes))
        changed = sorted(wanted ^ now)
        if changed:
            until = {node: arg.until[node].isoformat() for node in changed if node in arg.until}
            what = {"what": verb, "job": record.job_id, "nodes": changed}
            await mutation.intend(what | ({"until": until} if until else {}))
            try:
                await self._site.slurm.exclude(record.job_id, tuple(sorted(wanted)))
            except RefusedError as error:
                # It may have started between the look and the write; then the read-back says so.
                activity.logger.info("exclusions of job %d refused: %s", record.job_id, error)
            record = await self._site.slurm.job(record.job_id)
            if record.running:
                return await mutation.effect(self._done("the job runs already: exclusions cannot be changed"))
        if set(record.excluded_nodes) != wanted:
            raise ReadBackError(f"ExcNodeList reads {record.excluded_nodes}, not {sorted(wanted)}")
        return await mutation.effect(self._done(shown(wanted)))

    async def _with_room(self, attempt: Attempt, record: JobRecord, nodes: tuple[str, ...]) -> tuple[str, ...]:
        """The best proven of them, as many as leave enough nodes now: the plan may have waited for a person.

        Where nodes cannot be read all of them: should they be too many, Slurm says so, and they are taken back.
        """
        try:
            shown = await self._site.slurm.nodes()
        except SlurmUnavailableError:
            return nodes
        left = usable(record, shown) - set(record.excluded_nodes)
        kept = fitting(nodes, left, attempt.record.node_count)
        if len(kept) < len(nodes):
            activity.logger.info("job %d: %s not excluded, too few nodes would be left", record.job_id, nodes)
        return kept

    def _exclusions_are_moot(self, attempt: Attempt, record: JobRecord) -> c.Done | None:
        if record.state is JobState.CANCELLED:
            return self._done("the job was cancelled", Outcome.OVERRIDDEN)
        if unqueued(attempt, record):
            return self._done(forgotten.told(record))  # the wait for its end goes on from there
        return self._done("the job runs already: exclusions cannot be changed") if record.running else None

    @activity.defn(name=c.AWAIT_ENDED.name)
    async def await_ended(self, arg: c.AwaitEndedInput) -> c.Ended:
        """Wait until COMPLETING is gone and the requeue is old enough for a start time to hold."""
        attempt = await self._site.attempt(arg.incident.attempt)
        facts = await self._site.slurm.facts()
        started = arg.since or self._site.clock()
        ready = (arg.requeued_at or started) + (AFTER_REQUEUE if arg.requeued_at else timedelta(0))
        limit = facts.kill_wait + facts.unkillable_step_timeout + STUCK_MARGIN
        told = arg.since is not None
        unqueued = Unqueued()
        while True:
            record = await self._site.record_of(attempt)
            if record is None:
                return self._ended(started, "Slurm no longer knows the job", Outcome.EXPIRED)
            if record.state is JobState.CANCELLED:
                return self._ended(started, "the job was cancelled", Outcome.OVERRIDDEN)
            unqueued = unqueued.seen(attempt, record, self._site.clock())
            if arg.requeued_at and unqueued.forgotten(self._site.clock()):
                return c.Ended(completing=self._site.clock() - started, forgotten=True, text=forgotten.told(record))
            if not record.completing and requeued(attempt, record):
                break
            if not told and self._site.clock() - started > limit:
                stuck, text = await self._say_stuck(arg.incident, attempt)
                told = True
                if arg.tell_stuck and stuck:
                    length = self._site.clock() - started
                    return c.Ended(completing=length, stuck_nodes=stuck, since=started, text=text)
            await poll(self._site, LOOK_AGAIN)
        completing = self._site.clock() - started
        text = f"the old attempt ended after {completing.total_seconds():.1f} s"
        body = {"what": "ended", "completing_s": completing.total_seconds(), "text": text}
        entry = row(self._site, arg.incident, "ended", RowKind.VERIFIED, body, lineage=attempt.lineage)
        await self._site.ledger.commit(Change(entries=(entry,)))
        wait = (ready - self._site.clock()).total_seconds()
        if wait > 0:
            await self._site.sleep(wait)
        lingering = await self._completing(attempt) if arg.tell_stuck else ()
        return c.Ended(completing=completing, text=text, lingering=lingering, since=self._site.clock())

    def _ended(self, started: datetime, text: str, outcome: Outcome) -> c.Ended:
        return c.Ended(completing=self._site.clock() - started, outcome=outcome, text=text)

    async def _say_stuck(self, ref: c.IncidentRef, attempt: Attempt) -> tuple[tuple[str, ...], str]:
        """COMPLETING past all limits is a state of its own: name the nodes, propose `down`, go on waiting."""
        stuck = await self._completing(attempt)
        text = f"still completing on {', '.join(stuck) or 'unknown nodes'}: a person may set them down"
        entry = row(self._site, ref, "stuck", RowKind.NOTE, {"text": text, "nodes": list(stuck)})
        await self._site.ledger.commit(Change(entries=(entry,)))
        return stuck, text

    async def _completing(self, attempt: Attempt) -> tuple[str, ...]:
        """The attempt's nodes that are still completing; none where that cannot be read now."""
        try:
            nodes = await self._site.slurm.nodes()
        except SlurmUnavailableError:
            return ()
        return tuple(n.name for n in nodes if n.name in attempt.record.nodes and "COMPLETING" in n.flags)

    @activity.defn(name=c.RELEASE.name)
    async def release(self, arg: c.ActInput) -> c.Done:
        """Undo the hold that Slurm put on the job when it could not launch it; never anybody else's."""
        attempt = await self._site.attempt(arg.incident.attempt)
        job_id = attempt.key.job_id
        mutation = self._mutation(arg.incident, attempt, "release")
        done, meant = await mutation.before()
        if done:
            return done
        until, refused = self._site.clock() + READ_BACK_WITHIN, None
        while True:
            record = await self._site.record_of(attempt)
            over = self._release_is_over(attempt, record, meant=meant)
            if over:
                return await mutation.effect(over)
            if refused:
                raise refused
            if self._site.clock() > until:
                raise ReadBackError(f"job {job_id} still shows Slurm's hold")
            if not meant:
                await mutation.intend({"what": "release", "job": job_id})
                meant = True
            refused = await self._write_release(job_id)
            await self._site.sleep(LOOK_AGAIN.total_seconds())

    def _release_is_over(self, attempt: Attempt, record: JobRecord | None, *, meant: bool) -> c.Done | None:
        """How the job stands without the hold that was planned for; None while it has it."""
        if record is None:
            return self._done("Slurm no longer knows the job", Outcome.EXPIRED)
        if record.state is JobState.UNKNOWN:
            raise ReadBackError(f"the state of job {record.job_id} is not known")
        if record.restarts > attempt.record.restarts + 1:
            return self._done("the job has been launched again meanwhile", Outcome.OVERRIDDEN)
        if held_by_slurm(record):
            return None
        if record.state is not JobState.PENDING and not record.running:
            return self._done(f"the job is {record.state} now", Outcome.OVERRIDDEN)
        if held(record):
            return self._held(record)
        return self._done("Slurm's hold is undone" if meant else "somebody else has undone Slurm's hold")

    async def _write_release(self, job_id: int) -> RefusedError | None:
        """Write it. An answer that was lost is no matter: the hold is looked at before another try."""
        try:
            await self._site.slurm.release(job_id)
        except AmbiguousWriteError as error:
            activity.logger.info("release of job %d: %s", job_id, error)
        except RefusedError as error:
            return error
        return None

    @activity.defn(name=c.START.name)
    async def start(self, arg: c.ActInput) -> c.Done:
        """Set StartTime: now, so that the job need not wait out Slurm's begin delay (121 s by default), or later."""
        attempt = await self._site.attempt(arg.incident.attempt)
        mutation = self._mutation(arg.incident, attempt, "start")
        done, meant = await mutation.before()
        if done:
            return done
        until = self._site.clock() + READ_BACK_WITHIN
        while True:
            record = await self._site.record_of(attempt)
            stop = self._start_is_moot(attempt, record)
            if stop:
                return await mutation.effect(stop)
            if record is not None and record.state is JobState.UNKNOWN:
                raise ReadBackError(f"the state of job {attempt.key.job_id} is not known")
            begin = StartTime(self._site, attempt, arg.not_before)
            if record is not None and not meant and (theirs := self._put_off(record)):
                return await mutation.effect(theirs)
            if not meant:
                later = {"not_before": arg.not_before.isoformat()} if arg.not_before else {}
                await mutation.intend({"what": "start", "job": attempt.key.job_id, **later})
                meant = True
            if await begin.write():
                return await mutation.effect(self._done(begin.text))
            if self._site.clock() > until:
                # Slurm's own begin delay starts the job all the same: that is the dead man's switch.
                return await mutation.effect(self._done("Slurm keeps its begin delay; the job starts by itself"))

    def _start_is_moot(self, attempt: Attempt, record: JobRecord | None) -> c.Done | None:
        if record is None:
            return self._done("Slurm no longer knows the job", Outcome.EXPIRED)
        if unqueued(attempt, record):
            return self._done(forgotten.told(record))  # the wait for the next attempt goes on from there
        if record.state is JobState.RUNNING:
            return self._done("the job runs already")
        if record.state not in {JobState.PENDING, JobState.UNKNOWN}:
            return self._done(f"the job is {record.state} now", Outcome.OVERRIDDEN)
        if JobFlag.RESV_DEL_HOLD in record.flags:
            return self._done("Slurm holds the job, as its reservation has ended")
        return self._held(record) if held(record) else None

    def _put_off(self, record: JobRecord) -> c.Done | None:
        """Somebody has set a begin time since the requeue: Slurm's own delay is never so long."""
        begin = record.eligible_time
        if begin is None or begin - self._site.clock() < NOT_SLURMS_OWN:
            return None
        return self._done(f"somebody has put the job off until {begin:%Y-%m-%d %H:%M:%S} UTC: it starts then")

    def _held(self, record: JobRecord) -> c.Done:
        return self._done(f"the job is held ({record.why}): whoever held it releases it", Outcome.OVERRIDDEN)

    @activity.defn(name=c.CANCEL.name)
    async def cancel(self, arg: c.ActInput) -> c.Done:
        """End an attempt that still runs and that a retry would not help."""
        attempt = await self._site.attempt(arg.incident.attempt)
        mutation = self._mutation(arg.incident, attempt, "cancel")
        done, meant = await mutation.before()
        if done:
            return done
        record = await self._site.record_of(attempt)
        if record is None or not alive(attempt.key, record):
            state = record.state if record else "no longer known"
            return await mutation.effect(self._done(f"nothing to cancel: the job is {state}"))
        moved = await self._moved_on(attempt, arg) if arg.detection.kind is Interruption.HANG else None
        if moved:
            return await mutation.effect(moved)
        if void := lapsed(self._site, arg.approved_until):
            return await mutation.effect(void)
        if not meant:
            await mutation.intend({"what": "cancel", "job": record.job_id})
        await self._site.slurm.cancel(record.job_id)
        until = self._site.clock() + READ_BACK_WITHIN
        while record is not None and alive(attempt.key, record):
            if self._site.clock() > until:
                raise ReadBackError(f"job {attempt.key.job_id} still runs after scancel")
            await self._site.sleep(LOOK_AGAIN.total_seconds())
            record = await self._site.record_of(attempt)
        return await mutation.effect(self._done("cancelled"))
