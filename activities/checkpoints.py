"""The guard of checkpoints: what a job would go on from, and the change by which it goes on from an older one."""

import asyncio
import pwd
import shlex
from datetime import datetime, timedelta

from temporalio import activity

from relight.activities import contracts as c
from relight.activities.approved import lapsed
from relight.activities.mutations import Mutation
from relight.activities.site import Site, beating
from relight.clients import lineages
from relight.clients.checkpoints import Checkpoints, MovesUnavailableError
from relight.clients.logs import LogError
from relight.clients.slurm import AmbiguousWriteError
from relight.domain.attempts import Attempt
from relight.domain.checkpoint_formats import ASIDE
from relight.domain.checkpoint_look import CheckpointLook, FallBack, Why, look_of
from relight.domain.checkpoint_roots import roots
from relight.domain.checkpoints import Series, Survey
from relight.domain.evidence import Answer
from relight.domain.fallback import moot
from relight.domain.hands import held, requeued
from relight.domain.incidents import Outcome
from relight.domain.slurm import ENDED, JobRecord

TAIL = 1 << 20
"""Bytes of each output in which lines that name checkpoints are looked for."""
WITHIN = timedelta(seconds=15)
"""For the look itself; a restart is not held up for longer."""
TRIES = 5
"""After so many looks or changes in vain a job is not restarted from what is damaged, but left to a person."""
LOOK_AGAIN = timedelta(seconds=0.25)
HELD_WITHIN = timedelta(seconds=20)


class UnsureError(Exception):
    """Whether the planned checkpoint still stands is not known; trying again looks again."""


async def survey_of(site: Site, checkpoints: Checkpoints, attempt: Attempt) -> Survey:
    """What lies where the attempt's comment, output, script and work dir say; never anybody else's files."""
    lines: list[str] = []
    for path in attempt.outputs:
        try:
            lines += (await site.logs.read_new(path, None, max_bytes=TAIL)).lines
        except LogError:
            continue
    named = roots(attempt.record, attempt.script, lines)
    owner: int | None = None
    if site.moves is not None:  # files of this machine: its users are known here
        owner = await asyncio.to_thread(_user_id, attempt.record.user)
        if owner is None:
            problem = f"user {attempt.record.user} is not known here: nothing was looked at"
            return Survey(roots=named, problems=(problem,), read_at=site.clock())
    async with beating():
        return await checkpoints.look(named, owner=owner, within=WITHIN)


def _user_id(name: str) -> int | None:
    try:
        return pwd.getpwnam(name).pw_uid
    except KeyError:
        return None


class GuardCheckpoints:
    """Looks at the checkpoints of one cluster's jobs, and lets them go on from older ones."""

    def __init__(self, site: Site) -> None:
        """Bind to a cluster."""
        self._site = site

    @activity.defn(name=c.LOOK_AT_CHECKPOINTS.name)
    async def look(self, arg: c.LookAtCheckpointsInput) -> CheckpointLook:
        """What the job would go on from, whether that is whole, and whether Relight could change it."""
        site = self._site
        attempt = await site.attempt(arg.incident.attempt)
        progress = await site.progress(attempt.key)
        known = {"stride": progress.stride, "wrong_since": progress.wrong_since}
        if site.checkpoints is None:
            return CheckpointLook(problems=("checkpoints are not looked at on this site",), read_at=site.clock())
        survey = await survey_of(site, site.checkpoints, attempt)
        found = look_of(survey, began=await self._began(attempt), **known)
        if found.series is None:
            return found
        writable, why_not = await self._writable(attempt, found.series, arg.incident)
        return found.model_copy(update={"writable": writable, "why_not": why_not})

    async def _began(self, attempt: Attempt) -> datetime:
        """When the job's first known attempt began."""
        known = await lineages.attempts_of(self._site.ledger, attempt)
        return min(each.record.start_time or each.seen_at for each in (*known, attempt))

    async def _writable(self, attempt: Attempt, series: Series, ref: c.IncidentRef) -> tuple[Answer, str]:
        """Whether Relight could change what the job goes on from; asked with a change of nothing that is there."""
        if self._site.moves is None:
            return Answer.NO, "Relight only reads files on this site"
        nothing = FallBack(why=Why.DAMAGED, folder=series.folder, target="", aside=(series.checkpoints[0].name,))
        try:
            standing = await self._site.moves.look(nothing, attempt.record.user, ref.id)
        except MovesUnavailableError as error:
            return Answer.UNKNOWN, str(error)
        return (Answer.NO, standing.problem) if standing.problem else (Answer.YES, "")

    # --- going back ---

    @activity.defn(name=c.FALL_BACK.name)
    async def fall_back(self, arg: c.FallBackInput) -> c.FallenBack:
        """Let the next attempt go on from the planned checkpoint, once the old one has ended and before the next."""
        back = arg.act.plan.fall_back
        if back is None:
            raise ValueError("the plan goes back to no older checkpoint")
        attempt = await self._site.attempt(arg.act.incident.attempt)
        mutation = Mutation(self._site, arg.act.incident, "fall back", lineage=attempt.lineage)
        done, meant = await mutation.before()
        if done:
            return _told(done)
        record = await self._site.record_of(attempt)
        if not arg.ended and not _has_ended(attempt, record):
            return c.FallenBack(waits=True, text="the old attempt has not ended yet", at=self._site.clock())
        if arg.ended and record is not None and record.running:
            text = "the job runs already: its checkpoints are left as they are"
            return _told(await mutation.effect(self._done(text)))
        return _told(await mutation.effect(await self._carried_out(mutation, arg, attempt, back, meant=meant)))

    async def _carried_out(
        self, mutation: Mutation, arg: c.FallBackInput, attempt: Attempt, back: FallBack, *, meant: bool
    ) -> c.Done:
        try:
            text, problem = await self._made(mutation, arg, attempt, back, meant=meant)
        except (MovesUnavailableError, UnsureError) as error:
            if activity.info().attempt < TRIES:
                raise
            text, problem = "", str(error)
        except _LapsedError as error:
            return error.done
        if not problem:
            return self._done(text)
        if not back.must:
            return self._done(f"not gone back to {back.label}: {problem}")
        text = f"not restarted from a damaged checkpoint: {problem}"
        if arg.ended:
            text += await self._held(arg, attempt)
        return self._done(text, Outcome.STOPPED)

    async def _made(
        self, mutation: Mutation, arg: c.FallBackInput, attempt: Attempt, back: FallBack, *, meant: bool
    ) -> tuple[str, str]:
        """What was done, or why it was not: text and problem.

        Raises:
            MovesUnavailableError: nobody knows how it stands.
            UnsureError: nobody knows what is there now.
        """
        moves, incident = self._site.moves, arg.act.incident.id
        if moves is None:
            return "", "Relight only reads files on this site"
        if not meant:
            if is_moot := await self._moot(attempt, back):
                return is_moot
            if void := lapsed(self._site, arg.act.approved_until):
                raise _LapsedError(void)
            what = {"what": "fall back", "job": attempt.key.job_id, "plan": arg.act.plan.digest}
            await mutation.intend(what | {"change": back.model_dump(mode="json"), "undo": undo(back, incident)})
        standing = await moves.make(back, attempt.record.user, incident)
        if not standing.done:
            return "", standing.problem or "it was not carried out"
        return f"the next attempt goes on from {back.label}; to undo: {undo(back, incident)}", ""

    async def _moot(self, attempt: Attempt, back: FallBack) -> tuple[str, str] | None:
        """Why the change is not to be made after all, by a fresh look: text and problem; None: it is."""
        if self._site.checkpoints is None:
            return "", "checkpoints are not looked at on this site"
        survey = await survey_of(self._site, self._site.checkpoints, attempt)
        series = next((each for each in survey.series if each.folder == back.folder), None)
        if series is None:
            raise UnsureError(f"{back.folder}: no checkpoint found{''.join(f'; {p}' for p in survey.problems[:1])}")
        return moot(series, back)

    async def _held(self, arg: c.FallBackInput, attempt: Attempt) -> str:
        """Keep the job, which is queued again already, from starting by itself."""
        mutation = Mutation(self._site, arg.act.incident, "hold", lineage=attempt.lineage)
        done, _meant = await mutation.before()
        if done:
            return done.text
        job = attempt.key.job_id
        await mutation.intend({"what": "hold", "job": job})
        until = self._site.clock() + HELD_WITHIN
        while True:
            try:
                await self._site.slurm.hold(job)
            except AmbiguousWriteError as error:
                activity.logger.info("hold of job %d: %s", job, error)
            record = await self._site.record_of(attempt)
            if record is None or held(record) or record.running or self._site.clock() > until:
                break
            await self._site.sleep(LOOK_AGAIN.total_seconds())
        text = f"; the job is held: scontrol release {job} lets it start"
        if record is not None and not held(record):
            text = f"; the job is {record.state} and could not be held"
        await mutation.effect(self._done(text))
        return text

    def _done(self, text: str, outcome: Outcome | None = None) -> c.Done:
        return c.Done(text=text, outcome=outcome, at=self._site.clock())


class _LapsedError(Exception):
    """What was approved may not begin any more."""

    def __init__(self, done: c.Done) -> None:
        super().__init__(done.text)
        self.done = done


def _told(done: c.Done) -> c.FallenBack:
    return c.FallenBack(outcome=done.outcome, text=done.text, at=done.at)


def _has_ended(attempt: Attempt, record: JobRecord | None) -> bool:
    """Whether Slurm shows that nothing of the attempt runs any more, and nobody has queued it again."""
    if record is None:
        return True
    return record.state in ENDED and not record.completing and not requeued(attempt, record)


def undo(back: FallBack, incident: str) -> str:
    """What puts it back as it was, as shell commands within the folder."""
    into, folder = f"{ASIDE}{incident}", shlex.quote(back.folder)
    if back.tracker:
        return f"cd {folder} && cp {into}/{back.tracker} {back.tracker}"
    return f"cd {folder} && mv {' '.join(shlex.quote(f'{into}/{name}') for name in back.aside)} ."
