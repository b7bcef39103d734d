"""Activities that submit a fresh job where Slurm cannot queue the old one again: held, looked at, then released.

slurmctld tells nobody twice that it took a job, and one that is killed forgets it within 5 s and gives its number to
another. So the job is known by a mark in its comment, which is looked for before anything is submitted.
"""

from datetime import timedelta

from temporalio import activity

from relight.activities import contracts as c
from relight.activities.approved import lapsed
from relight.activities.mutations import Mutation
from relight.activities.site import SUBMIT, Site, poll
from relight.clients.lineages import attempts_of
from relight.clients.slurm import AmbiguousWriteError, JobNotFoundError, RefusedError
from relight.domain.attempts import Attempt
from relight.domain.hands import held, own_row, requeued
from relight.domain.incidents import Outcome
from relight.domain.policy import successors
from relight.domain.resubmission import (
    FreshJob,
    Link,
    differs,
    digest_of,
    is_ours,
    link_cursor,
    mark_for,
    submission,
    why_not,
    with_mark,
)
from relight.domain.slurm import ENDED, ENDED_BADLY, JobRecord, JobState
from relight.domain.watching import alive

SETTLES = timedelta(seconds=30)
"""After a submission whose answer was lost the job may still appear: relight-submit ends its sbatch after 10 s, and
slurmctld answers within MessageTimeout (10 s by default)."""
ENDS_WITHIN = timedelta(seconds=100)
"""How long one call waits for the end of the old job's epilog; another waits on."""
LOOK_AGAIN = timedelta(seconds=0.5)
READ_BACK_WITHIN = timedelta(seconds=20)
HELD_BY_USER = "JobHeldUser"
"""Slurm's code for the hold of `sbatch --hold`; an administrator's is another."""


class NotShownError(Exception):
    """Slurm does not (yet) show what was written; trying again looks first."""


class Resubmit:
    """Submits jobs of one cluster anew."""

    def __init__(self, site: Site) -> None:
        """Bind to a cluster."""
        self._site = site

    def _done(self, text: str, outcome: Outcome | None = None, fresh: FreshJob | None = None) -> c.Done:
        return c.Done(text=text, outcome=outcome, at=self._site.clock(), fresh=fresh)

    @activity.defn(name=c.SUBMIT.name)
    async def submit(self, arg: c.SubmitInput) -> c.Done:
        """Submit the attempt's script anew, held, exactly once; only where the old job is known to be over."""
        attempt = await self._site.attempt(arg.incident.attempt)
        mutation = Mutation(self._site, arg.incident, SUBMIT, lineage=attempt.lineage)
        done, meant = await mutation.before()
        if done:
            return done
        mark = mark_for(arg.incident.entry(SUBMIT))
        found = await self._look(attempt, mark, wait=meant)
        if not found:
            stop = await self._must_not(attempt, arg) or lapsed(self._site, arg.approved_until)
            if stop:
                return await mutation.effect(stop)
            what = {"what": SUBMIT, "job": attempt.key.job_id, "mark": mark, "plan": arg.plan.digest}
            await mutation.intend(what)
            try:
                await self._write(attempt, mark, arg)
            except RefusedError as error:
                return await mutation.effect(self._done(f"it was not submitted: {error}", Outcome.FAILED))
            found = await self._look(attempt, mark, wait=True)
        if not found:
            raise NotShownError(f"Slurm shows no job with the mark {mark}")
        return await self._taken(attempt, mutation, mark, found)

    async def _look(self, attempt: Attempt, mark: str, *, wait: bool) -> tuple[JobRecord, ...]:
        """The jobs with the mark; where one may have been written, it is given time to appear."""
        until = self._site.clock() + SETTLES
        while True:
            found = with_mark(await self._site.slurm.jobs(), attempt.record.user, mark)
            if found or not wait or self._site.clock() >= until:
                return found
            await poll(self._site, LOOK_AGAIN)

    async def _must_not(self, attempt: Attempt, arg: c.SubmitInput) -> c.Done | None:
        """Why nothing must be submitted now: the last look before it."""
        may = self._site.submitter is not None
        if why := why_not(attempt, await self._site.slurm.facts(), may_submit=may):
            return self._done(f"it cannot be submitted anew: {why}", Outcome.FAILED)
        if arg.plan.submission != digest_of(submission(attempt, "", without=arg.allow)):
            return self._done("what would be submitted is not what was planned", Outcome.FAILED)
        record = await self._settled(attempt)
        stop = self._lives(attempt, record) if record else await self._not_known_to_be_over(attempt)
        return stop or await self._succeeded(attempt)

    async def _settled(self, attempt: Attempt) -> JobRecord | None:
        """The old job once Slurm has ended it: until then it may still write into its checkpoint folder."""
        until = self._site.clock() + ENDS_WITHIN
        while True:
            record = await self._site.record_of(attempt)
            ends = record is not None and not requeued(attempt, record)
            if record is None or not ends or not (record.completing or record.state is JobState.UNKNOWN):
                return record
            if self._site.clock() >= until:
                raise NotShownError(f"job {record.job_id} has not ended yet")
            await poll(self._site, LOOK_AGAIN)

    def _lives(self, attempt: Attempt, record: JobRecord) -> c.Done | None:
        """Why the old job is not over, or not ours to go on with."""
        if requeued(attempt, record):
            return self._done("somebody else queued the job again meanwhile", Outcome.OVERRIDDEN)
        if alive(attempt.key, record):
            return self._done("the attempt is running", Outcome.NOT_CONFIRMED)
        if record.state not in ENDED_BADLY:
            return self._done(f"the job is {record.state} now", Outcome.OVERRIDDEN)
        return None

    async def _not_known_to_be_over(self, attempt: Attempt) -> c.Done | None:
        row = own_row(attempt, await self._site.slurm.executions(attempt.key.job_id))
        if row is not None and row.end_time is not None and row.state in ENDED_BADLY:
            return None
        return self._done("Slurm no longer knows the job, nor does accounting know how it ended", Outcome.FAILED)

    async def _succeeded(self, attempt: Attempt) -> c.Done | None:
        state = await self._site.known(attempt.key)
        found = successors(attempt, await self._site.slurm.jobs(), state.successors if state else ())
        others = [job.display_id for job in found]
        if others:
            return self._done(f"job {', '.join(others[:5])} goes on with the work", Outcome.SUCCEEDED_BY)
        return None

    async def _write(self, attempt: Attempt, mark: str, arg: c.SubmitInput) -> None:
        sent = submission(attempt, mark, without=arg.allow)
        if self._site.submitter is None:  # pragma: no cover - looked at right before
            raise RefusedError("Relight may not submit as users here")
        try:
            await self._site.submitter.submit_anew(sent)
        except AmbiguousWriteError as error:
            activity.logger.info("submission in place of job %d: %s", attempt.key.job_id, error)  # the look tells

    async def _taken(self, attempt: Attempt, mutation: Mutation, mark: str, found: tuple[JobRecord, ...]) -> c.Done:
        """The job that was submitted, if it is like the old one; what was submitted twice is cancelled, still held."""
        job, *twice = found
        for each in twice:
            if each.state is JobState.PENDING:
                await self._site.slurm.cancel(each.job_id)
        if job.state is JobState.CANCELLED:
            text = f"job {job.display_id}, submitted in its place, was cancelled"
            return await mutation.effect(self._done(text, Outcome.OVERRIDDEN))
        if other := differs(attempt.record, job):
            await self._site.slurm.cancel(job.job_id)
            text = f"the fresh job {job.display_id} would not be the same, and was cancelled: {'; '.join(other)}"
            return await mutation.effect(self._done(text[:500], Outcome.FAILED))
        fresh = FreshJob(job_id=job.job_id, submit_time=job.submit_time, mark=mark, command=job.command)
        ids = [each.key.job_id for each in (attempt, *await attempts_of(self._site.ledger, attempt))]
        before = tuple(dict.fromkeys(ids))
        link = Link(lineage=attempt.lineage, user=attempt.record.user, mark=mark, before=before)
        cursor = {link_cursor(self._site.cluster, job.job_id): link.model_dump(mode="json")}
        text = f"job {job.display_id} goes on in place of job {attempt.key.job_id}, held"
        return await mutation.effect(self._done(text, fresh=fresh), cursors=cursor)

    @activity.defn(name=c.RELEASE_FRESH.name)
    async def release(self, arg: c.ActInput) -> c.Done:
        """Undo the hold with which the fresh job was submitted, now or, where it waits, for later."""
        attempt, fresh = await self._site.attempt(arg.incident.attempt), arg.incident.fresh
        if fresh is None:
            raise ValueError("there is no fresh job")
        mutation = Mutation(self._site, arg.incident, "release-fresh", lineage=attempt.lineage)
        done, meant = await mutation.before()
        if done:
            return done
        until = self._site.clock() + READ_BACK_WITHIN
        while True:
            record = await self._fresh(attempt, fresh)
            if over := self._release_is_over(record, fresh, meant=meant):
                return await mutation.effect(over)
            if self._site.clock() > until:
                raise NotShownError(f"job {fresh.job_id} is still held")
            if not meant:
                later = {"not_before": arg.not_before.isoformat()} if arg.not_before else {}
                await mutation.intend({"what": "release", "job": fresh.job_id, **later})
                meant = True
            await self._write_release(fresh, arg)
            await self._site.sleep(LOOK_AGAIN.total_seconds())

    async def _fresh(self, attempt: Attempt, fresh: FreshJob) -> JobRecord | None:
        try:
            record = await self._site.slurm.job(fresh.job_id)
        except JobNotFoundError:
            return None
        return record if is_ours(record, attempt.record.user, fresh.mark) else None

    def _release_is_over(self, record: JobRecord | None, fresh: FreshJob, *, meant: bool) -> c.Done | None:
        if record is None:  # the wait for its start finds out what has become of it
            return self._done(f"Slurm does not show job {fresh.job_id}")
        if record.state is JobState.CANCELLED:
            return self._done(f"job {record.display_id} was cancelled", Outcome.OVERRIDDEN)
        if record.running or record.state in ENDED:
            return self._done(f"job {record.display_id} is {record.state}")
        if not held(record):
            return self._done(f"job {record.display_id} waits for its start" if meant else "somebody has released it")
        if record.reason != HELD_BY_USER:
            return self._done(f"the job is held ({record.why}): whoever held it releases it", Outcome.OVERRIDDEN)
        return None

    async def _write_release(self, fresh: FreshJob, arg: c.ActInput) -> None:
        """An answer that was lost is no matter: the hold is looked at before another try."""
        try:
            wait = arg.not_before - self._site.clock() if arg.not_before else timedelta(0)
            if wait > timedelta(0):
                await self._site.slurm.start_after(fresh.job_id, wait)
            await self._site.slurm.release(fresh.job_id)
        except AmbiguousWriteError as error:
            activity.logger.info("release of job %d: %s", fresh.job_id, error)
