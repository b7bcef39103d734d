"""Follows the outputs of running attempts: how far training has come, and whether it goes on as it should."""

import asyncio
from datetime import datetime, timedelta

from temporalio import activity

from relight.activities import contracts as c
from relight.activities.follow_checks import Checks
from relight.activities.follow_lines import Lines, Said, read_progress_file
from relight.activities.follow_reading import PATIENCE, Outcome, Reading
from relight.activities.follow_silence import Silence
from relight.activities.follow_state import Following, Standing
from relight.activities.follow_witnesses import Witnesses
from relight.activities.follow_written import Written
from relight.activities.site import Site, poll
from relight.attribution.progress_count import Counted
from relight.clients.lineages import attempts_of
from relight.clients.logs import Chunk, Cursor, LogError, LogNotFoundError
from relight.domain.attempts import Attempt, AttemptKey, Progress, progress_cursor
from relight.domain.base import short_hash
from relight.domain.findings import Learnt, learnt_cursor
from relight.domain.ledger import Change, Entry, RowKind
from relight.domain.wishes import progress_file

PERIOD = timedelta(seconds=0.5)
"""From the end of a round to the next."""
LONGEST = timedelta(seconds=1)
"""The same where rounds are long: it grows with them up to this, so that a fatal line is still told within 2 s."""
BEGUN = 200
"""Attempts taken up in one round; after a start there may be thousands, and those taken up are to be read meanwhile."""
ASKED_EVERY = timedelta(seconds=4)
"""How often the ledger is asked who runs where there are more than `BEGUN`: each answer tells all of it."""
MANY_LINES = 500
"""So many lines are read in a thread: meanwhile the others are looked after."""
BREATHE = 500
"""After so many lines other tasks have their turn."""
FOUND_WITHIN = timedelta(minutes=5)
"""An attempt of whose outputs none is there by then is not seen: they are not mounted here, or not shipped there."""
NONE_FOUND = "none of its outputs"
ROUND_WITHIN = timedelta(seconds=30)
"""By when all outputs should have been looked at once more."""


class Follow:
    """Follows the outputs of a cluster's running attempts."""

    def __init__(self, site: Site, witnesses: Witnesses | None = None, *, patience: timedelta = PATIENCE) -> None:
        """Bind to a cluster.

        Args:
            site: the cluster.
            witnesses: the word of its agents, where there are agents.
            patience: how long a round waits for a file system, and for the checks of silence.
        """
        self._site = site
        self._lines = Lines(site.formats, site.catalogue)
        witnesses = witnesses or Witnesses(site)
        self._reading = Reading(site.logs, patience)
        self._written = Written(site, witnesses)
        self._checks = Checks(Silence(site, witnesses).check, patience)
        self._asked = float("-inf")

    @activity.defn(name=c.FOLLOW_LOGS.name)
    async def follow_logs(self, arg: c.WatchInput) -> c.Nothing:
        """Read what is new, write down how far each attempt is, report silence that lasts too long."""
        followed: dict[AttemptKey, Following] = {}
        until = self._site.clock() + arg.run_for
        generation = 0
        try:
            while self._site.clock() < until:
                generation += 1
                began = asyncio.get_running_loop().time()
                await self._round(followed)
                took = timedelta(seconds=asyncio.get_running_loop().time() - began)
                await poll(self._site, min(max(PERIOD, took / 2), LONGEST), generation)
            await self._written.write(followed.values(), all_of_it=True)
        finally:
            await self._reading.close()
            await self._checks.close()
        return c.Nothing()

    async def _round(self, followed: dict[AttemptKey, Following]) -> None:
        await self._look_who_runs(followed)
        # Who is being judged is read afterwards: a step now would make the judgement one of the past.
        judged = self._checks.under_way
        now = self._site.clock()
        outcomes = await self._reading.look((each for each in followed.values() if each not in judged), now)
        while outcomes:
            await self._take_all(outcomes)
            outcomes = await self._reading.go_on(outcomes)
        # An attempt that has ended is read once more: its last lines may only now be visible.
        over = [each for each in followed.values() if not each.running and not each.more and each not in judged]
        for each in over:
            each.urgent = each.urgent or each.moved
        await self._written.write(followed.values())
        for each in over:
            del followed[each.attempt.key]
        await self._checks.look(followed.values())
        unread = {str(each.attempt.key): ", ".join(sorted(each.blind)) for each in followed.values() if each.blind}
        self._site.detectors.followed(unread, ROUND_WITHIN)

    async def _look_who_runs(self, followed: dict[AttemptKey, Following]) -> None:
        """Take up attempts that have begun, and know those that have ended."""
        now = asyncio.get_running_loop().time()
        if len(followed) > BEGUN and now < self._asked + ASKED_EVERY.total_seconds():
            return
        running = {s.attempt.key: s.attempt for s in await self._site.ledger.running_attempts(self._site.cluster)}
        for key, each in followed.items():
            each.running = key in running
        new = [attempt for key, attempt in running.items() if key not in followed]
        for attempt in new[:BEGUN]:
            followed[attempt.key] = await self._begin(attempt)
        self._asked = now if len(new) <= BEGUN else float("-inf")

    async def _begin(self, attempt: Attempt) -> Following:
        """Go on where an earlier follower stood, or where the job's last attempt ended in the same file."""
        key, ledger = attempt.key, self._site.ledger
        states = await ledger.attempts_of_job(self._site.cluster, key.job_id, limit=5)
        older = [s.attempt for s in states if s.attempt.key.submit_time < key.submit_time]
        # A fresh job may write on in the file of the one that it takes over from.
        older = older or [a for a in await attempts_of(ledger, attempt) if a.key.job_id != key.job_id]
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
        positions = progress.files.items()
        return Following(
            attempt=attempt,
            progress=progress,
            stepping=progress.last_step is not None or last.last_step is not None,
            arrival=self._site.clock(),
            learnt=learnt,
            precise=progress_file(attempt.record) or "",
            standing={
                p: Standing(Cursor(inode=at.inode, offset=at.offset, mark=at.mark), at.start) for p, at in positions
            },
            counted={path: Counted.model_validate(p.counted) for path, p in positions},
        )

    async def _take_all(self, outcomes: list[Outcome]) -> None:
        """Take what came of a round's reads, those of one attempt in the order of its files."""
        now, blind = self._site.clock(), list[Entry]()
        lines = 0
        for (each, path, standing, _), found in outcomes:
            if isinstance(found, Chunk):
                lines += len(found.lines)
                await self._take(each, path, standing, found)
            elif isinstance(found, LogNotFoundError):
                standing.seen, standing.unread = now, False
                if now - each.attempt.seen_at > FOUND_WITHIN and not each.found_any:
                    blind += self._is_blind(each, NONE_FOUND, found, now)
            elif found is not None:
                standing.unread = False
                blind += self._is_blind(each, path, found, now)
            if lines >= BREATHE:
                lines = 0
                await asyncio.sleep(0)
        if blind:
            await self._site.ledger.commit(Change(entries=tuple(blind)))

    async def _take(self, each: Following, path: str, standing: Standing, chunk: Chunk) -> None:
        now = self._site.clock()
        each.moved = each.moved or chunk.cursor != standing.cursor
        live = standing.is_live(now) and not chunk.skipped
        standing.take(chunk, now)
        if path not in each.progress.files:
            each.progress = each.progress.model_copy(update={"files": each.positions()})
        if path in each.blind or (chunk.lines and not live):
            # When these lines came, or whether the job could write any, is not known.
            each.lives(now)
        each.blind -= {path, NONE_FOUND}
        if chunk.skipped:
            each.skip()
        if chunk.lines:
            said = await self._said(each, path, chunk.lines, now)
            each.take(path, said, now, self._site.policy.hang, live=live)

    async def _said(self, each: Following, path: str, lines: tuple[str, ...], now: datetime) -> Said:
        if path == each.precise:
            return read_progress_file(lines)
        name = path.rpartition("/")[2]
        if len(lines) < MANY_LINES:
            return self._lines.read(lines, name, now)
        return await asyncio.to_thread(self._lines.read, lines, name, now)

    def _is_blind(self, each: Following, path: str, error: LogError, now: datetime) -> list[Entry]:
        """Said once of an output that cannot be read: without it neither hang nor progress is seen."""
        if path in each.blind:
            return []
        each.blind.add(path)
        activity.logger.warning("cannot follow job %d: %s", each.attempt.key.job_id, error)
        entry_id = f"blind/{each.attempt.key}/log/{short_hash(path)}/{now.isoformat()}"
        return [self._site.entry(entry_id, RowKind.BLIND, {"what": "log", "why": str(error)[:500]}, each.attempt)]
