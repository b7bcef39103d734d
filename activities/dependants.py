"""The activity that lets jobs which waited for the failed attempt's success wait for the next attempt."""

from temporalio import activity

from relight.activities import contracts as c
from relight.activities.mutations import Mutation
from relight.activities.records import row
from relight.activities.site import Site
from relight.clients.slurm import AmbiguousWriteError, JobNotFoundError, RefusedError
from relight.domain.attempts import Attempt
from relight.domain.base import few
from relight.domain.dependants import Dependant, dependants
from relight.domain.hands import requeued
from relight.domain.ledger import Change, RowKind
from relight.domain.slurm import ENDED

MOST = 64
"""Children of one job that are written anew; what more there are is said."""


class StillFailedError(Exception):
    """A dependency that was written anew still counts as failed; trying again looks first."""


class Dependants:
    """Acts on the children of one job of a cluster."""

    def __init__(self, site: Site) -> None:
        """Bind to a cluster."""
        self._site = site

    @activity.defn(name=c.REPOINT.name)
    async def repoint(self, arg: c.ActInput) -> c.Done:
        """Write the dependency of each child anew, once the job waits or runs again; an empty text: there is none.

        Looked at again right before each write: one that was changed, held back or cancelled by somebody is theirs.
        """
        attempt = await self._site.attempt(arg.incident.attempt)
        mutation = Mutation(self._site, arg.incident, "depend", lineage=attempt.lineage)
        done, meant = await mutation.before()
        if done:
            return done
        fresh = arg.incident.fresh
        found = dependants(attempt, await self._site.slurm.jobs(), str(fresh.job_id) if fresh else "")
        children, more = found.waiting[:MOST], found.waiting[MOST:]
        said = [*found.beyond_help, *([f"{len(more)} more jobs that wait for it are left as they are"] if more else [])]
        next_one = await self._site.target(arg.incident.attempt, fresh)
        if not (children and await self._waits_or_runs(next_one)):
            await self._note(arg.incident, attempt, said)
            text = "; ".join(said)
            return await mutation.effect(self._done(text)) if meant else self._done(text)
        body = {child.job.display_id: child.dependency for child in children}
        await mutation.intend({"what": "depend", "job": attempt.key.job_id, "children": body})
        written = [child for child in children if await self._write(child)]
        await self._check(attempt, next_one, written)
        await self._note(arg.incident, attempt, said)
        names = few([child.job.display_id for child in written])
        first = [f"{len(written)} that waited for its success wait again: {names}"] if written else []
        return await mutation.effect(self._done("; ".join([*first, *said])))

    def _done(self, text: str) -> c.Done:
        return c.Done(text=text, at=self._site.clock())

    async def _waits_or_runs(self, attempt: Attempt) -> bool:
        record = await self._site.record_of(attempt)
        return record is not None and requeued(attempt, record) and record.state not in ENDED

    async def _write(self, child: Dependant) -> bool:
        """False where the child is no longer as it was read."""
        activity.heartbeat()
        job_id = child.job.job_id
        try:
            now = await self._site.slurm.job(job_id)
            if (now.state, now.dependency, now.submit_time) != (
                child.job.state,
                child.job.dependency,
                child.job.submit_time,
            ):
                return False
            await self._site.slurm.depend(job_id, child.dependency)
        except (JobNotFoundError, RefusedError) as error:
            activity.logger.info("dependency of job %d: %s", job_id, error)
            return False
        except AmbiguousWriteError as error:
            activity.logger.info("dependency of job %d: %s", job_id, error)  # the read-back tells
        return True

    async def _check(self, attempt: Attempt, next_one: Attempt, written: list[Dependant]) -> None:
        ids = {child.job.job_id for child in written}
        left = dependants(attempt, await self._site.slurm.jobs()).waiting if ids else ()
        still = [child.job.display_id for child in left if child.job.job_id in ids]
        if still and await self._waits_or_runs(next_one):
            raise StillFailedError(f"the dependency of job {few(still)} still counts as failed")

    async def _note(self, ref: c.IncidentRef, attempt: Attempt, said: list[str]) -> None:
        if said:
            body = {"text": "; ".join(said[:20])}
            entry = row(self._site, ref, "dependants", RowKind.NOTE, body, lineage=attempt.lineage)
            await self._site.ledger.commit(Change(entries=(entry,)))
