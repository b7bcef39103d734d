"""Follows the outputs of running attempts: how far training has come, and whether it has fallen silent."""

import asyncio
from dataclasses import dataclass, field
from datetime import datetime, timedelta

from temporalio import activity

from relight.activities import contracts as c
from relight.activities.site import Site, poll
from relight.attribution.progress import StepMark, parse_step
from relight.clients.logs import Chunk, Cursor, LogError, LogNotFoundError
from relight.clients.slurm import SlurmError
from relight.domain.attempts import Attempt, AttemptKey, LogPosition, Progress, progress_cursor
from relight.domain.base import short_hash
from relight.domain.ledger import Change, RowKind
from relight.domain.progress import (
    MIN_GAPS,
    CpuSample,
    Rhythm,
    cpu_rate,
    hang_detection,
    silence_limit,
    stride,
    with_arrival,
)
from relight.domain.slurm import JobState

PERIOD = timedelta(seconds=0.5)
AT_ONCE = 16
"""Files read at the same time."""
CATCH_UP = 64 << 20
"""An output that is further ahead of us than this is followed from near its end."""
BASELINE_OVER = timedelta(seconds=15)
"""Slurm tells CPU time in whole seconds per task, so a shorter look is too coarse."""
BASELINE_LASTS = timedelta(minutes=5)
SUSPICION = 0.6
"""Share of the silence limit after which the CPU time is sampled, to have something to compare with at the limit."""


@dataclass
class Following:
    """One attempt being followed; bounded in memory whatever its output."""

    attempt: Attempt
    progress: Progress
    stepping: bool
    """Whether this job is known to print steps, from this attempt or an earlier one."""
    rhythm: Rhythm = field(default_factory=Rhythm)
    arrival: datetime | None = None
    baseline: float | None = None
    baseline_from: CpuSample | None = None
    next_sample: datetime | None = None
    suspected: bool = False
    suspected_from: CpuSample | None = None
    blind: set[str] = field(default_factory=set)
    """Outputs that cannot be read now."""
    more: bool = False


class Follow:
    """Follows the outputs of a cluster's running attempts."""

    def __init__(self, site: Site) -> None:
        """Bind to a cluster."""
        self._site = site
        self._gate = asyncio.Semaphore(AT_ONCE)

    @activity.defn(name=c.FOLLOW_LOGS.name)
    async def follow_logs(self, arg: c.WatchInput) -> c.Nothing:
        """Read what is new, write down how far each attempt is, report silence that lasts too long."""
        followed: dict[AttemptKey, Following] = {}
        until = self._site.clock() + arg.run_for
        generation = 0
        while self._site.clock() < until:
            generation += 1
            await self._round(followed)
            await poll(self._site, PERIOD, generation)
        return c.Nothing()

    async def _round(self, followed: dict[AttemptKey, Following]) -> None:
        running = {s.attempt.key: s.attempt for s in await self._site.ledger.running_attempts(self._site.cluster)}
        for key in running.keys() - followed.keys():
            followed[key] = await self._begin(running[key])
        # An attempt that has ended is read once more: its last lines may only now be visible.
        moved = await asyncio.gather(*(self._read(each) for each in followed.values()))
        cursors = {
            progress_cursor(each.attempt.key): each.progress.model_dump(mode="json")
            for each, changed in zip(followed.values(), moved, strict=True)
            if changed
        }
        if cursors:
            await self._site.ledger.commit(Change(cursors=cursors))
        for key in list(followed):
            if key in running:
                await self._check_silence(followed[key])
            elif not followed[key].more:
                del followed[key]

    async def _begin(self, attempt: Attempt) -> Following:
        """Go on where an earlier follower stood, or where the job's last attempt ended in the same file."""
        known = await self._site.ledger.cursor(progress_cursor(attempt.key))
        states = await self._site.ledger.attempts_of_job(self._site.cluster, attempt.key.job_id, limit=5)
        older = [s.attempt.key for s in states if s.attempt.key.submit_time < attempt.key.submit_time]
        last = await self._site.progress(older[0]) if older else Progress()
        if known:
            progress = Progress.model_validate(known)
        else:
            files = {path: p.model_copy(update={"start": p.offset}) for path, p in last.files.items()}
            progress = Progress(files=files)
        stepping = progress.last_step is not None or last.last_step is not None
        return Following(attempt=attempt, progress=progress, stepping=stepping, arrival=self._site.clock())

    async def _read(self, each: Following) -> bool:
        """Read what is new in all of the attempt's outputs; True when its progress changed."""
        before = each.progress
        behind, each.more = each.more, False
        for path in each.attempt.outputs:
            async with self._gate:
                try:
                    chunk = await self._site.logs.read_new(path, await self._cursor(each, path, behind=behind))
                except LogNotFoundError:
                    continue
                except LogError as error:
                    await self._is_blind(each, path, error)
                    continue
            each.blind.discard(path)
            self._take(each, path, chunk)
        return each.progress != before

    async def _cursor(self, each: Following, path: str, *, behind: bool) -> Cursor | None:
        position = each.progress.files.get(path)
        if position and not behind:
            return Cursor(inode=position.inode, offset=position.offset, mark=position.mark)
        offset = position.offset if position else 0
        if await self._site.logs.size(path) - offset > CATCH_UP:
            return None
        return Cursor(inode=position.inode, offset=position.offset, mark=position.mark) if position else Cursor()

    def _take(self, each: Following, path: str, chunk: Chunk) -> None:
        old = each.progress.files.get(path)
        start = 0 if chunk.restarted or old is None else old.start
        at = chunk.cursor
        position = LogPosition(inode=at.inode, offset=at.offset, mark=at.mark, start=start)
        each.progress = each.progress.model_copy(update={"files": {**each.progress.files, path: position}})
        each.more = each.more or chunk.more
        marks = [mark for mark in map(parse_step, chunk.lines) if mark]
        if marks:
            self._stepped(each, marks)

    def _stepped(self, each: Following, marks: list[StepMark]) -> None:
        now = self._site.clock()
        last = marks[-1]
        old = each.progress.last_step
        if old is not None and each.arrival is not None:
            gap = (now - each.arrival).total_seconds()
            each.rhythm = with_arrival(each.rhythm, gap, last.step - old, last.seconds)
        each.arrival = now
        each.stepping = True
        each.suspected = False
        steps = [old, *(mark.step for mark in marks)] if old is not None else [mark.step for mark in marks]
        update = {
            "last_step": last.step,
            "last_step_at": now,
            "step_seconds": each.rhythm.step_seconds,
            "stride": stride(steps, each.progress.stride),
        }
        each.progress = each.progress.model_copy(update=update)

    async def _check_silence(self, each: Following) -> None:
        """Report a hang when the silence is longer than the job's own rhythm explains."""
        now = self._site.clock()
        # What has not been read yet is not silence.
        if each.blind or each.more or not each.stepping or each.arrival is None:
            return
        stepped = each.progress.last_step is not None
        limit = silence_limit(each.rhythm, self._site.policy.hang, stepped=stepped)
        silent = now - each.arrival
        if silent < SUSPICION * limit:
            await self._keep_baseline(each, now)
            return
        if not each.suspected:
            each.suspected = True
            each.suspected_from = await self._sample(each, now)
        if silent < limit or await self._is_suspended(each, now):
            return
        recent = cpu_rate(each.suspected_from, await self._sample(each, now))
        detection = hang_detection(
            each.attempt, each.progress.last_step, silent, limit, baseline=each.baseline, recent=recent, now=now
        )
        body = {"detection": detection.model_dump(mode="json")}
        entry = self._site.entry(f"{detection.id}/detected", RowKind.DETECTED, body, each.attempt)
        if not await self._site.ledger.has(entry.id):
            await self._site.ledger.commit(Change(entries=(entry,), detections=(detection,)))

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

    async def _keep_baseline(self, each: Following, now: datetime) -> None:
        """Know the job's ordinary CPU use, so that its falling away can be told."""
        if len(each.rhythm.gaps) < MIN_GAPS or (each.next_sample and now < each.next_sample):
            return
        sample = await self._sample(each, now)
        rate = cpu_rate(each.baseline_from, sample)
        each.baseline = each.baseline if rate is None else rate
        each.baseline_from = sample
        # Where Slurm does not say, it is not asked again every half second.
        soon = sample is not None and each.baseline is None
        each.next_sample = now + (BASELINE_OVER if soon else BASELINE_LASTS)

    async def _sample(self, each: Following, now: datetime) -> CpuSample | None:
        try:
            used = await self._site.slurm.cpu_time(each.attempt.key.job_id)
        except SlurmError:
            return None
        return None if used is None else CpuSample(at=now, used=used)

    async def _is_blind(self, each: Following, path: str, error: LogError) -> None:
        """Say once that this output cannot be read: without it neither hang nor progress is seen."""
        if path in each.blind:
            return
        each.blind.add(path)
        activity.logger.warning("cannot follow job %d: %s", each.attempt.key.job_id, error)
        entry_id = f"blind/{each.attempt.key}/log/{short_hash(path)}/{self._site.clock().isoformat()}"
        entry = self._site.entry(entry_id, RowKind.BLIND, {"what": "log", "why": str(error)[:500]}, each.attempt)
        await self._site.ledger.commit(Change(entries=(entry,)))
