"""Proof by checkpoints that training moves, and how long a job is given for any proof."""

from datetime import datetime, timedelta

from relight.activities import contracts as c
from relight.activities.checkpoints import survey_of
from relight.activities.site import Site
from relight.clients import lineages
from relight.domain.attempts import AttemptState
from relight.domain.checkpoint_look import durable_before
from relight.domain.checkpoints import is_new_durable, newest_whole
from relight.domain.evidence import Answer
from relight.domain.start_up import fitted

LOOK_EVERY = timedelta(minutes=1)
"""Between two looks at the files of a job whose output shows no steps."""
MOST_ATTEMPTS = 5
"""Newest attempts from which the job's start-up is known."""


class Durable:
    """Looks whether a whole checkpoint with more training in it than the newest of before has been written."""

    def __init__(self, site: Site, arg: c.AwaitProgressInput) -> None:
        """Nothing is looked at yet."""
        self._site = site
        self._arg = arg
        self._next = site.clock() + LOOK_EVERY

    async def look(self, *, silent: bool, last: bool) -> str:
        """What was found, in words; empty where nothing is known to be new.

        Args:
            silent: whether the output shows no steps; while it does, they tell sooner than any checkpoint.
            last: whether time is up: then it is looked in any case.
        """
        before = self._arg.checkpoints
        if (
            before is None
            or self._site.checkpoints is None
            or not (last or (silent and self._site.clock() >= self._next))
        ):
            return ""
        attempt = await self._site.attempt(self._arg.incident.attempt)
        now = await survey_of(self._site, self._site.checkpoints, attempt)
        self._next = self._site.clock() + LOOK_EVERY
        known, sure = durable_before(before)
        began = await _began(self._site, self._arg)
        if is_new_durable(known, now, known_before=sure, began_at=began) is not Answer.YES:
            return ""
        newest = newest_whole(now)
        than = f", newer than {known.label}" if known else ""
        return f"the checkpoint of {newest.label if newest else 'a later step'} is whole{than}"


async def bound(site: Site, arg: c.AwaitProgressInput) -> datetime:
    """By when training must have moved: as the policy says, or later where the job itself takes longer."""
    if not arg.fits:
        return arg.until
    known = await site.known(arg.incident.attempt)
    if known is None:
        return arg.until
    progress = await site.progress(arg.incident.attempt)
    whole = durable_before(arg.checkpoints)[0] if arg.checkpoints else None
    redone = 0
    if arg.failed_step is not None and whole is not None and whole.step is not None:
        redone = arg.failed_step - whole.step
    own = fitted(timedelta(0), start_up=await _start_up(site, known), redone=redone, step_seconds=progress.step_seconds)
    return max(arg.until, await _began(site, arg) + own)


async def _began(site: Site, arg: c.AwaitProgressInput) -> datetime:
    """When the next attempt began; its SubmitTime where the watchers have not seen it."""
    known = await site.known(arg.next_attempt)
    record = known.attempt.record if known else None
    return (record.start_time if record else None) or arg.next_attempt.submit_time


async def _start_up(site: Site, known: AttemptState) -> timedelta | None:
    """The longest that one of the job's newest attempts took until its first step line."""
    took = []
    for attempt in (await lineages.attempts_of(site.ledger, known.attempt))[:MOST_ATTEMPTS]:
        progress, started = await site.progress(attempt.key), attempt.record.start_time or attempt.seen_at
        if progress.first_step_at is not None and progress.first_step_at > started:
            took.append(progress.first_step_at - started)
    return max(took, default=None)
