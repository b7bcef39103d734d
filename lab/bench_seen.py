"""What a running worker writes to its ledger, followed from outside while it is written."""

import asyncio
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import datetime
from itertools import pairwise
from pathlib import Path
from typing import Any, TypeVar

from relight.clients.ledger_sql import SqlLedger
from relight.config.settings import load
from relight.domain.attempts import AttemptKey, Progress, progress_cursor
from relight.domain.evidence import Detection
from relight.domain.findings import learnt_cursor
from relight.domain.ledger import Row, RowKind

T = TypeVar("T")

LOOK_AGAIN_S = 0.2
"""Nothing is measured by this: the ledger's rows hold their times."""


class Seen:
    """Attempts and detections, as far as they are in the ledger."""

    def __init__(self, ledger: SqlLedger, cluster: str) -> None:
        """Nothing has been read yet."""
        self._ledger = ledger
        self._cluster = cluster
        self._looks: list[datetime] = []
        self._after = dict.fromkeys((RowKind.ATTEMPT_SEEN, RowKind.DETECTED), 0)
        self.attempts: dict[int, AttemptKey] = {}
        """By Slurm job id."""
        self.detections: defaultdict[int, list[Detection]] = defaultdict(list)
        """By Slurm job id, in the order written."""

    async def follow(self) -> None:
        """Read what is new, for ever."""
        while True:
            await self.look()
            await asyncio.sleep(LOOK_AGAIN_S)

    async def look(self) -> None:
        """Read what is new."""
        for row in await self._new(RowKind.ATTEMPT_SEEN):
            key = AttemptKey.parse(row.attempt)
            self.attempts[key.job_id] = key
        for row in await self._new(RowKind.DETECTED):
            found = Detection.model_validate(row.body["detection"])
            self.detections[found.attempt.job_id].append(found)
        cursor = await self._ledger.cursor(f"jobs/{self._cluster}") or {}
        if (at := cursor.get("looked_at")) and (not self._looks or self._looks[-1].isoformat() != at):
            self._looks.append(datetime.fromisoformat(at))

    def periods(self) -> list[float]:
        """Seconds from one of the worker's looks at all jobs to the next, as far as they were seen here."""
        return [(after - before).total_seconds() for before, after in pairwise(self._looks)]

    async def _new(self, kind: RowKind) -> tuple[Row, ...]:
        rows = await self._ledger.rows(kind=kind, after=self._after[kind])
        if rows:
            self._after[kind] = rows[-1].seq
        return rows

    async def attempt(self, job: int, within: float) -> AttemptKey | None:
        """The job's attempt, as soon as Relight has seen it run."""
        return await wait_for(lambda: self.attempts.get(job), within)

    async def detection(
        self, job: int, wanted: Callable[[Detection], bool], within: float, *, since: datetime
    ) -> Detection | None:
        """The job's first detection of that sort, from `since` on; None when there is none within so many seconds."""

        def first() -> Detection | None:
            return next((d for d in self.detections[job] if d.detected_at >= since and wanted(d)), None)

        return await wait_for(first, within)

    async def fatal_line_at(self, key: AttemptKey) -> datetime | None:
        """When the follower noted a fatal line of the attempt; None while it has written down none."""
        for name in (progress_cursor(key), learnt_cursor(key)):
            value: dict[str, Any] = await self._ledger.cursor(name) or {}
            if (fatal := value.get("fatal")) and fatal.get("at"):
                return datetime.fromisoformat(fatal["at"])
        return None

    async def last_step_at(self, key: AttemptKey) -> datetime | None:
        """When the attempt's newest step became visible."""
        value = await self._ledger.cursor(progress_cursor(key))
        return Progress.model_validate(value).last_step_at if value else None


async def wait_for(look: Callable[[], T | None], within: float) -> T | None:
    """Look again and again until there is something, at most for so many seconds."""
    try:
        async with asyncio.timeout(within):
            while (found := look()) is None:  # noqa: ASYNC110 - a ledger sets no event
                await asyncio.sleep(LOOK_AGAIN_S)
            return found
    except TimeoutError:
        return None


@contextmanager
def seen_by(config: Path) -> Iterator[Seen]:
    """The ledger that a worker's settings file names."""
    settings = load(config, environment={})
    ledger = SqlLedger.open(settings.ledger_url, settings.ledger_key)
    try:
        yield Seen(ledger, settings.cluster)
    finally:
        ledger.close()
