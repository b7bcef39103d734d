"""Follows the outputs of running attempts: how far training has come, and whether it goes on as it should."""

import asyncio
from datetime import datetime, timedelta
from pathlib import Path

from temporalio import activity

from relight.activities import contracts as c
from relight.activities.follow_lines import Lines, Said, read_progress_file
from relight.activities.follow_silence import Silence
from relight.activities.follow_state import Following
from relight.activities.site import Site, poll
from relight.attribution.progress_count import Counted
from relight.clients.logs import Chunk, Cursor, LogError, LogNotFoundError
from relight.domain.attempts import Attempt, AttemptKey, LogPosition, Progress, progress_cursor
from relight.domain.base import short_hash
from relight.domain.findings import Learnt, learnt_cursor
from relight.domain.ledger import Change, Entry, RowKind
from relight.domain.wishes import progress_file

PERIOD = timedelta(seconds=0.5)
AT_ONCE = 16
"""Files read at the same time."""
CATCH_UP = 64 << 20
"""An output that is further ahead of us than this is followed from near its end."""
MANY_LINES = 500
"""So many lines are read in a thread: meanwhile the others are looked after."""
LEARNT_EVERY = timedelta(seconds=10)
"""How often what was learnt is written down: it is larger than the positions, and a little of it may be lost."""


class Follow:
    """Follows the outputs of a cluster's running attempts."""

    def __init__(self, site: Site) -> None:
        """Bind to a cluster."""
        self._site = site
        self._gate = asyncio.Semaphore(AT_ONCE)
        self._lines = Lines(site.formats, site.catalogue)
        self._silence = Silence(site)

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
        await self._write_down([each for each, changed in zip(followed.values(), moved, strict=True) if changed])
        for key in list(followed):
            if key in running:
                await self._silence.check(followed[key], followed.values())
            elif not followed[key].more:
                del followed[key]

    async def _write_down(self, changed: list[Following]) -> None:
        """Positions, what was learnt, and what was found, in one transaction."""
        cursors, entries = {}, []
        for each in changed:
            key, now = each.attempt.key, self._site.clock()
            cursors[progress_cursor(key)] = each.progress.model_dump(mode="json")
            if each.learnt_at is None or now - each.learnt_at >= LEARNT_EVERY:
                cursors[learnt_cursor(key)] = each.learnt.model_dump(mode="json", exclude_defaults=True)
                each.learnt_at = now
            entries += await self._found(each)
        if not cursors:
            return
        detections = tuple(each for following in changed for each in following.found)
        await self._site.ledger.commit(Change(cursors=cursors, entries=tuple(entries), detections=detections))
        for each in changed:
            each.found.clear()

    async def _found(self, each: Following) -> list[Entry]:
        rows = []
        for detection in list(each.found):
            row = self._site.detected(detection, each.attempt)
            if await self._site.ledger.has(row.id):
                each.found.remove(detection)
            else:
                rows.append(row)
        return rows

    async def _begin(self, attempt: Attempt) -> Following:
        """Go on where an earlier follower stood, or where the job's last attempt ended in the same file."""
        key, ledger = attempt.key, self._site.ledger
        states = await ledger.attempts_of_job(self._site.cluster, key.job_id, limit=5)
        older = [s.attempt for s in states if s.attempt.key.submit_time < key.submit_time]
        last = await self._site.progress(older[0].key) if older else Progress()
        if known := await ledger.cursor(progress_cursor(key)):
            progress = Progress.model_validate(known)
            learnt = Learnt.model_validate(await ledger.cursor(learnt_cursor(key)) or {})
        else:
            files = {path: p.model_copy(update={"start": p.offset}) for path, p in last.files.items()}
            progress, learnt = Progress(files=files), Learnt()
            if older and older[0].lineage == attempt.lineage:
                same_size = older[0].record.node_count == attempt.record.node_count
                before = Learnt.model_validate(await ledger.cursor(learnt_cursor(older[0].key)) or {})
                learnt = before.next_attempt(same_size=same_size)
        return Following(
            attempt=attempt,
            progress=progress,
            stepping=progress.last_step is not None or last.last_step is not None,
            arrival=self._site.clock(),
            learnt=learnt,
            precise=progress_file(attempt.record) or "",
            counted={path: Counted.model_validate(p.counted) for path, p in progress.files.items()},
        )

    async def _read(self, each: Following) -> bool:
        """Read what is new in all of the attempt's outputs; True when its progress changed."""
        before = each.progress
        behind, each.more = each.more, False
        for path in each.files:
            async with self._gate:
                try:
                    chunk = await self._site.logs.read_new(path, await self._cursor(each, path, behind=behind))
                except LogNotFoundError:
                    continue
                except LogError as error:
                    await self._is_blind(each, path, error)
                    continue
            each.blind.discard(path)
            await self._take(each, path, chunk)
        return each.progress != before

    async def _cursor(self, each: Following, path: str, *, behind: bool) -> Cursor | None:
        position = each.progress.files.get(path)
        if position and not behind:
            return Cursor(inode=position.inode, offset=position.offset, mark=position.mark)
        offset = position.offset if position else 0
        if await self._site.logs.size(path) - offset > CATCH_UP:
            return None
        return Cursor(inode=position.inode, offset=position.offset, mark=position.mark) if position else Cursor()

    async def _take(self, each: Following, path: str, chunk: Chunk) -> None:
        old = each.progress.files.get(path)
        start = 0 if chunk.restarted or old is None else old.start
        if chunk.lines:
            now = self._site.clock()
            said = await self._said(each, path, chunk.lines, now)
            each.take(path, said, now, self._site.policy.hang)
        at, counter = chunk.cursor, each.counted.get(path)
        position = LogPosition(
            inode=at.inode,
            offset=at.offset,
            mark=at.mark,
            start=start,
            counted=counter.model_dump(exclude_defaults=True) if counter else {},
        )
        each.progress = each.progress.model_copy(update={"files": {**each.progress.files, path: position}})
        each.more = each.more or chunk.more

    async def _said(self, each: Following, path: str, lines: tuple[str, ...], now: datetime) -> Said:
        if path == each.precise:
            return read_progress_file(lines)
        if len(lines) < MANY_LINES:
            return self._lines.read(lines, Path(path).name, now)
        return await asyncio.to_thread(self._lines.read, lines, Path(path).name, now)

    async def _is_blind(self, each: Following, path: str, error: LogError) -> None:
        """Say once that this output cannot be read: without it neither hang nor progress is seen."""
        if path in each.blind:
            return
        each.blind.add(path)
        activity.logger.warning("cannot follow job %d: %s", each.attempt.key.job_id, error)
        entry_id = f"blind/{each.attempt.key}/log/{short_hash(path)}/{self._site.clock().isoformat()}"
        entry = self._site.entry(entry_id, RowKind.BLIND, {"what": "log", "why": str(error)[:500]}, each.attempt)
        await self._site.ledger.commit(Change(entries=(entry,)))
