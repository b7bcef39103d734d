"""Job outputs that are kept in a log store instead of a file: what VictoriaLogs and Grafana Loki have in common."""

import asyncio
import io
import re
import secrets
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Coroutine, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import BinaryIO, NamedTuple, Self, TypeVar

from relight.clients.http_store import HttpStore
from relight.clients.log_files import Bounded, split
from relight.clients.logs import TAKEN, Asked, Chunk, Cursor, LogError, LogNotFoundError, LogUnreadableError
from relight.clients.logs_pages import (
    PAGE_BYTES,
    Bounds,
    Log,
    Page,
    Question,
    Row,
    advance,
    backwards,
    from_cursor,
    place_at,
    selected,
    to_cursor,
)
from relight.clients.logs_together import TOGETHER, Together, Wanted
from relight.clients.logs_whole import Asking, Stream, Walk, as_bytes, ends, onward, write
from relight.domain.log_labels import check_templates, needed

_T = TypeVar("_T")
_REMEMBERED = 512
LINE_BYTES = 128
"""What a line of a training log is taken for where only lines are counted."""
_KEEPING = timedelta(minutes=2)
_MOST_EMPTY = 10_000
_STRANGE = re.compile(r"[^A-Za-z0-9._+-]")


class Reading(NamedTuple):
    """How a store is read."""

    late: timedelta = timedelta(seconds=5)
    """How far behind the newest line a line may still arrive."""
    reach: timedelta = timedelta(days=7)
    """How old a log's first line may be; Loki refuses more than 30 days by default."""
    page: int = 5000
    """Lines in one answer, at least 16; Loki refuses more than 5,000 by default."""


class HttpLogs(ABC):
    """Implements `Logs` for a store; a "path" is an output's path, or a `reference` to the job's fields.

    Each line comes once, provided that when it arrives in the store (1) it is stamped at most `late` before the newest
    line that was taken, and (2) no more than 512 lines (or 1 MiB) that were taken are stamped like it or later. A line
    that arrives later than that is not followed; `open` reads it. Lines of one moment come in the store's order.
    Lines are never held back: what a failing rank says last must be seen at once, not `late` after.

    A cursor's `offset` is a time in nanoseconds, to be given to `open`; times are the stamps of the lines, so a clock
    of the store, of the nodes or of ours that is wrong shifts nothing (ours decides how far `reach` goes back; the
    controller's, by the `reference`, where a job's log begins).

    An empty store is not silence. Each read asks for the last lines taken again: where the store has none of them, the
    log is unreadable (another tenant, say).

    Logs that are read in the same turn of the event loop are asked for together (`logs_together.py`).

    To be entered on the event loop that uses it; only `open` is for other threads.
    """

    can_skip = False
    """Whether the store can leave out the first lines of an answer, in an order that stays the same."""

    def __init__(
        self, store: HttpStore, labels: Mapping[str, str], reading: Reading, now: Callable[[], datetime] | None
    ) -> None:
        check_templates(labels)
        self._store = store
        self._labels = dict(labels)
        self._reading = reading
        self._now = now or (lambda: datetime.now(UTC))
        self._limit = max(16, reading.page)
        late = round(reading.late.total_seconds() * 1e9)
        # Fewer than fill a page: what is asked for again must leave room for what is new.
        self._bounds = Bounds(late=late, lines=min(_REMEMBERED, self._limit // 2), size=PAGE_BYTES // 4)
        self._asking = Asking(self.page, self._limit, self.can_skip)
        telling = [label for label, template in labels.items() if needed(template)]
        self._together = Together(self._asking, telling[0] if len(telling) == 1 else "", self._bounds)
        self._empty: set[str] = set()
        """Logs of which there was no line when they were first read."""
        self._copies = Bounded(timedelta(seconds=30))
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None

    async def __aenter__(self) -> Self:
        await self._store.__aenter__()
        self._loop, self._thread = asyncio.get_running_loop(), threading.current_thread()
        return self

    async def __aexit__(self, *_: object) -> None:
        self._loop = None
        await self._together.close()
        await self._store.__aexit__()

    @abstractmethod
    async def page(self, asked: Question) -> Page:
        """The one question, which each store is asked in its own language."""

    @abstractmethod
    async def count(self, log: Log, low: int) -> int:
        """Bytes of the log since `low` that the store holds, at least roughly; 0 also where there is no such log."""

    async def read_new(self, path: str, cursor: Cursor | None, *, max_bytes: int = PAGE_BYTES) -> Chunk:
        """Lines added since `cursor`; with None, the last page of the log; with `Cursor()`, from its first line.

        At most a page of lines, and `max_bytes` of them (a line that is longer comes alone).

        Raises:
            LogNotFoundError: the store answers that there is no such line at all.
            LogUnreadableError: anything else; nothing is taken then, the cursor stays good.
        """
        log = selected(self._labels, path)
        most = min(max_bytes, PAGE_BYTES)
        if cursor is None:
            return await self._read_end(log, most)
        known, oldest = from_cursor(cursor), self._oldest(log)
        place = known or place_at(oldest)
        if place.low < oldest:
            place = place._replace(low=oldest, skip=0)
        # A first read may be long, and is of one log alone; one that found nothing is repeated with others like it.
        first = not known and path not in self._empty
        new, after, more = await self._together.ask(Wanted(log, place, most, alone=first, empty=not known))
        self._empty.discard(path)
        if not known and not new and not more:
            if len(self._empty) < _MOST_EMPTY:
                self._empty.add(path)
            raise self._nothing(log)
        restarted = known is None and cursor != Cursor()
        return Chunk(lines=_lines(new), cursor=to_cursor(after), restarted=restarted, more=more)

    async def _read_end(self, log: Log, most: int) -> Chunk:
        page = await self.page(Question(log.labels, self._oldest(log), newest=True, limit=self._limit, most=most))
        rows, _ = backwards(page)
        if not rows:
            raise self._nothing(log)
        new, place = advance(place_at(rows[0].at), Page(rows, full=False), self._bounds, can_skip=False)
        return Chunk(lines=_lines(new), cursor=to_cursor(place))

    async def read_many(self, asked: Sequence[Asked]) -> list[Chunk | LogError | None]:
        """What is new in each, in their order: many with one question (`logs_together.py`).

        None for those that were not come to: the bound of all was reached, or the store has refused many in a row.
        """
        found: list[Chunk | LogError | None] = []
        taken, answers = 0, True
        while len(found) < len(asked) and taken < TAKEN and answers:
            part = await asyncio.gather(*(self._read(each) for each in asked[len(found) : len(found) + TOGETHER]))
            taken += sum(len(line) for chunk in part if isinstance(chunk, Chunk) for line in chunk.lines)
            answers = not all(isinstance(each, LogUnreadableError) for each in part)
            found += part
        return found + [None] * (len(asked) - len(found))

    async def _read(self, asked: Asked) -> Chunk | LogError:
        path, cursor, far = asked
        try:
            chunk = await self.read_new(path, cursor)
            # Counted only where a page did not reach the end: others are read with one question for many.
            if far is None or not chunk.more or await self.ahead(path, chunk.cursor) <= far:
                return chunk
            return (await self.read_new(path, None)).model_copy(update={"skipped": True})
        except LogError as error:
            return error

    def place(self, path: str) -> str:  # noqa: ARG002
        """The store: all its logs become unreadable together."""
        return self._store.url

    async def ahead(self, path: str, cursor: Cursor) -> int:
        """Roughly how many bytes a follower at this cursor has not read; 0 also where there is no such log."""
        log = selected(self._labels, path)
        known, oldest = from_cursor(cursor), self._oldest(log)
        return await self.count(log, max(known.newest + 1, oldest) if known else oldest)

    async def size(self, path: str) -> int:
        """Roughly the bytes of the log that the store holds; 0 also where there is no such log."""
        return await self.ahead(path, Cursor())

    def open(self, path: str, offset: int = 0) -> BinaryIO:
        """Open for reading, from the lines stamped `offset` on: page by page, one page in memory. Blocks: for a thread.

        What arrived out of order comes in the order of its stamps. Ends where the log ends when its last page is read.

        Raises:
            OSError: also where there is no such log, and from any read.
        """
        try:
            log = selected(self._labels, path)
        except LogError as error:
            raise OSError(str(error)) from error

        def turn(walk: Walk) -> tuple[bytes, Walk | None]:
            return self.wait(onward(self._asking, log, walk, round(self._now().timestamp() * 1e9)))

        stream = Stream(turn, max(offset, self._oldest(log)))
        if not stream.more() and not offset and not self.wait(self._has_another(log)):
            raise FileNotFoundError(str(self._nothing(log)))
        return io.BufferedReader(stream, 1 << 20)

    async def _has_another(self, log: Log) -> bool:
        """Whether the job's other output has lines: then this one is known to be empty."""
        if log.beside is None:
            return False
        return bool((await self.page(Question(log.beside, self._oldest(log), limit=16))).rows)

    def wait(self, call: Coroutine[None, None, _T]) -> _T:
        """What a coroutine returns, waited for from another thread; its errors are OSErrors."""
        loop = self._loop
        if loop is None or threading.current_thread() is self._thread:
            call.close()
            raise OSError("a log store is read from other threads than its own, and before it is closed")
        try:
            return asyncio.run_coroutine_threadsafe(call, loop).result()
        except LogError as error:
            raise OSError(str(error)) from error

    async def keep(self, path: str, folder: str, *, head: int = 1 << 20, tail: int = 16 << 20) -> str:
        """Copy the first `head` and last `tail` bytes into `folder` (a gap is said in the copy); returns its path.

        The copy is a new file of mode 0600 in a folder made with 0700, and appears whole or not at all. Pages are kept
        whole, so each part may be longer by one; both are in memory until they are written.
        """
        log = selected(self._labels, path)
        try:
            async with asyncio.timeout(_KEEPING.total_seconds()):
                parts = await ends(self._asking, log, self._oldest(log), head, tail)
        except TimeoutError:
            raise LogUnreadableError(f"{path}: not copied within {_KEEPING.total_seconds():g} s") from None
        if not any(parts):
            raise self._nothing(log)
        target = Path(folder) / f"{_STRANGE.sub('_', Path(path).name)[:100]}.{secrets.token_hex(6)}"
        await self._copies.run(str(target), lambda: write(target, parts))
        return str(target)

    def _oldest(self, log: Log) -> int:
        reach = max(1, round((self._now() - self._reading.reach).timestamp())) * 1_000_000_000
        return max(reach, log.since)

    def _nothing(self, log: Log) -> LogNotFoundError:
        oldest = datetime.fromtimestamp(self._oldest(log) // 1_000_000_000, UTC)
        since = f"since {oldest:%Y-%m-%d %H:%M:%S}Z" + (", when its job began" if log.since else "")
        return LogNotFoundError(f"{self._store.whose} has no line of {log} {since}")


def _lines(rows: list[Row]) -> tuple[str, ...]:
    """Lines for reading; an entry of several lines (a shipper had joined them) is several again."""
    return split(as_bytes(rows)).lines
