"""Whether an attempt that is followed hangs: its silence against its own rhythm, with what else bears it out."""

from collections.abc import Collection
from datetime import datetime, timedelta
from pathlib import PurePath

from relight.activities.follow_stacks import GRACE
from relight.activities.follow_state import Following
from relight.activities.follow_witnesses import Witnesses
from relight.activities.site import Site
from relight.clients.slurm import SlurmError
from relight.domain.base import short_hash
from relight.domain.evidence import Answer
from relight.domain.ledger import Change, RowKind
from relight.domain.progress import CpuSample, cpu_rate, hang_detection, limit_after_fatal, witness
from relight.domain.slurm import JobState

BASELINE_OVER = timedelta(seconds=15)
"""Slurm tells CPU time in whole seconds per task, so a shorter look is too coarse."""
BASELINE_LASTS = timedelta(minutes=5)
SAMPLES_APART = timedelta(seconds=0.5)
"""Between two jobs' samples for their baselines: each asks Slurm, and of thousands none is in a hurry."""
LOOKED_AT_EVERY = timedelta(seconds=30)
"""While an attempt is given time for a first checkpoint or evaluation, it is looked at whether it does anything."""
SUSPICION = 0.6
"""Share of the silence limit after which CPU time, power and stacks are looked at, to have them at the limit."""
AT_ONCE = timedelta(seconds=5)
"""Jobs whose last signs of life are no further apart fell silent together."""
MANY = 4
"""With fewer jobs on a file system, their falling silent together tells nothing of it."""
MOST_TOLD = 1000
"""Hangs that are remembered as told; the ledger knows all of them."""
FILES_FIRST = timedelta(minutes=30)
"""So long a file system is suspected; then the jobs are, whatever made them hang together."""


class Silence:
    """Reports attempts of a cluster that are silent for longer than their rhythm explains."""

    def __init__(self, site: Site, witnesses: Witnesses | None = None) -> None:
        """Bind to a cluster; `witnesses` are the word of its agents, where there are agents."""
        self._site = site
        self._witnesses = witnesses or Witnesses(site)
        self._stalled: dict[str, datetime] = {}
        """File systems under suspicion, each with when its jobs fell silent."""
        self._told: dict[int, datetime] = {}
        """By job id, the last sign of life of those that are told to hang: once is enough."""
        self._sampled_at: datetime | None = None

    async def check(self, each: Following, everyone: Collection[Following]) -> None:
        """Report a hang when the silence is longer than the job's own rhythm explains."""
        now = self._site.clock()
        # What has not been read yet, or found at all, is not silence.
        if each.blind or each.more or not each.found_any or not each.stepping:
            return
        if self._told.get(each.attempt.key.job_id) == each.arrival:
            return
        since, limit = self._limit(each)
        silent = now - since
        if_still = self._limit_if_still(each, silent, limit)
        if silent < SUSPICION * if_still:
            self._witnesses.goes_on(each, everyone, now)
            await self._keep_baseline(each, now, len(everyone))
            return
        self._witnesses.suspect(each, everyone, now, since + looked_at(silent, if_still, limit))
        if silent >= SUSPICION * limit and not each.suspected:
            each.suspected = True
            each.suspected_from = await self._sample(each, now)
        still = self._witnesses.standstill(each, now) if if_still <= silent < limit else None
        if still:
            limit = if_still
        if silent < limit or await self._is_suspended(each, now) or await self._files_stall(each, everyone, now):
            return
        recent = cpu_rate(each.suspected_from, await self._sample(each, now)) if each.suspected else None
        told = self._witnesses.of_hang(each, now)
        detection = hang_detection(
            each.attempt,
            each.progress.last_step,
            now - each.arrival,
            limit,
            baseline=each.baseline,
            recent=recent,
            now=now,
            fatal=each.fatal,
            more=(still, *told) if still else told,
        )
        if witness(detection) is not Answer.YES and self._witnesses.to_come(each, silent - limit):
            return
        entry = self._site.detected(detection, each.attempt)
        if not await self._site.ledger.has(entry.id):
            await self._site.ledger.commit(Change(entries=(entry,), detections=(detection,)))
        self._witnesses.told(each)
        if len(self._told) >= MOST_TOLD:
            self._told.clear()
        self._told[each.attempt.key.job_id] = each.arrival

    def _limit(self, each: Following) -> tuple[datetime, timedelta]:
        """From when on its silence counts, and how long it may last."""
        policy = self._site.policy.hang
        limit = each.limit(policy)
        if each.fatal is None or each.fatal.at is None:
            return each.arrival, limit
        stepped = each.progress.last_step is not None
        hasty = limit_after_fatal(each.learnt.rhythm, policy, stepped=stepped)
        since = max(each.arrival, each.fatal.at)
        # The line makes it earlier, never later.
        return (since, hasty) if since - each.arrival + hasty < limit else (each.arrival, limit)

    def _limit_if_still(self, each: Following, silent: timedelta, limit: timedelta) -> timedelta:
        """How long it may be silent where it does nothing; not asked while the silence is short, as it mostly is."""
        policy = self._site.policy.hang
        return limit if silent < SUSPICION * policy.floor else min(limit, each.limit_if_still(policy))

    async def _files_stall(self, each: Following, everyone: Collection[Following], now: datetime) -> bool:
        """Whether the file system rather than the job has fallen silent; said once."""
        mount = _mount(each)
        group = [other for other in everyone if other.stepping and _mount(other) == mount]
        together = [other for other in group if abs(other.arrival - each.arrival) <= AT_ONCE]
        owners = {other.attempt.record.user for other in together}
        if len(group) < MANY or len(owners) < 2 or 2 * len(together) <= len(group):  # noqa: PLR2004 - users apart
            self._stalled.pop(mount, None)
            return False
        if now - each.arrival > FILES_FIRST:
            return False
        if mount not in self._stalled:
            self._stalled[mount] = each.arrival
            who = f"{len(together)} of {len(group)} jobs with output in {mount}"
            why = f"{who} fell silent at once: is it the file system?"
            entry_id = f"blind/files/{short_hash(f'{self._site.cluster}/{mount}')}/{each.arrival.isoformat()}"
            entry = self._site.entry(entry_id, RowKind.BLIND, {"what": "file system", "why": why})
            await self._site.ledger.commit(Change(entries=(entry,)))
        return True

    async def _is_suspended(self, each: Following, now: datetime) -> bool:
        """Suspended jobs never hang: their silence begins anew when they go on. Unknown is not yes."""
        try:
            record = await self._site.record(each.attempt.key.job_id)
        except SlurmError:
            return False
        if record is None or record.state is not JobState.SUSPENDED:
            return False
        each.arrival, each.suspected = now, False
        return True

    async def _keep_baseline(self, each: Following, now: datetime, jobs: int) -> None:
        """Know the job's ordinary CPU use, so that its falling away can be told."""
        if not each.learnt.rhythm.known or (each.next_sample and now < each.next_sample):
            return
        # The clock may be set back meanwhile.
        if self._sampled_at and abs(now - self._sampled_at) < SAMPLES_APART:
            return
        self._sampled_at = now
        sample = await self._sample(each, now)
        rate = cpu_rate(each.baseline_from, sample)
        each.baseline = each.baseline if rate is None else rate
        each.baseline_from = sample
        # Where Slurm does not say, it is not asked again every half second.
        soon = sample is not None and each.baseline is None
        each.next_sample = now + (BASELINE_OVER if soon else max(BASELINE_LASTS, 2 * jobs * SAMPLES_APART))

    async def _sample(self, each: Following, now: datetime) -> CpuSample | None:
        try:
            used = await self._site.slurm.cpu_time(each.attempt.key.job_id)
        except SlurmError:
            return None
        return None if used is None else CpuSample(at=now, used=used)


def looked_at(silent: timedelta, if_still: timedelta, limit: timedelta) -> timedelta:
    """After how much silence an attempt is next judged: where it may be given more time, from `if_still` on."""
    rounds = max(0, -((if_still + GRACE - silent) // LOOKED_AT_EVERY))
    after = if_still + rounds * LOOKED_AT_EVERY
    return after if limit - after >= LOOKED_AT_EVERY else limit


def _mount(each: Following) -> str:
    """Where the file lies whose steps count, as far as its path tells: what a site mounts stands near the root."""
    path = each.learnt.source or next(iter(each.files), "")
    return str(PurePath(*PurePath(path).parts[:2]))
