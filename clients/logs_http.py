"""Job outputs that are kept in a log store instead of a file: what VictoriaLogs and Grafana Loki have in common."""

import asyncio
import io
import os
import re
import secrets
import threading
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Coroutine, Mapping
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO, NamedTuple, Self, TypeVar

from relight.clients.http_store import HttpStore
from relight.clients.log_files import Bounded, split
from relight.clients.logs import Chunk, Cursor, LogError, LogNotFoundError, LogUnreadableError
from relight.clients.logs_pages import (
    Bounds,
    Page,
    Place,
    Question,
    Row,
    advance,
    backwards,
    check_templates,
    from_cursor,
    place_at,
    selected,
    to_cursor,
)

if TYPE_CHECKING:
    from _typeshed import WriteableBuffer

_T = TypeVar("_T")
_REMEMBERED = 512
PAGE_BYTES = 4 << 20
"""An answer is read up to here."""
_KEEPING = timedelta(minutes=2)
_STRANGE = re.compile(r"[^A-Za-z0-9._+-]")


class Reading(NamedTuple):
    """How a store is read."""

    late: timedelta = timedelta(seconds=5)
    """How far behind the newest line a line may still arrive."""
    reach: timedelta = timedelta(days=7)
    """How old a log's first line may be; Loki refuses more than 30 days by default."""
    page: int = 5000
    """Lines in one answer, at least 16; Loki refuses more than 5,000 by default."""


class Walk(NamedTuple):
    """Where a reader of a whole log stands."""

    place: Place
    stretch: int = 0
    """Nanoseconds asked for at a time; 0 for all that follow."""


class HttpLogs(ABC):
    """Implements `Logs` for a store; a "path" is an output's path, or a `reference` to the job's fields.

    Each line comes once, provided that when it arrives in the store (1) it is stamped at most `late` before the newest
    line that was taken, and (2) no more than 512 lines (or 1 MiB) that were taken are stamped like it or later. A line
    that arrives later than that is not followed; `open` reads it. Lines of one moment come in the store's order.
    Lines are never held back: what a failing rank says last must be seen at once, not `late` after.

    A cursor's `offset` is a time in nanoseconds, to be given to `open`; times are the stamps of the lines, so a clock
    of the store, of the nodes or of ours that is wrong shifts nothing (ours decides how far `reach` goes back).

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
        self._copies = Bounded(timedelta(seconds=30))
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None

    async def __aenter__(self) -> Self:
        await self._store.__aenter__()
        self._loop, self._thread = asyncio.get_running_loop(), threading.current_thread()
        return self

    async def __aexit__(self, *_: object) -> None:
        self._loop = None
        await self._store.__aexit__()

    @abstractmethod
    async def page(self, asked: Question) -> Page:
        """The one question, which each store is asked in its own language."""

    @abstractmethod
    async def size(self, path: str) -> int:
        """Bytes of the log that the store holds."""

    async def read_new(self, path: str, cursor: Cursor | None, *, max_bytes: int = PAGE_BYTES) -> Chunk:
        """Lines added since `cursor`; with None, the last page of the log; with `Cursor()`, from its first line.

        At most a page of lines, and `max_bytes` of them (a line that is longer comes alone).

        Raises:
            LogNotFoundError: the store answers that there is no such line at all.
            LogUnreadableError: anything else; nothing is taken then, the cursor stays good.
        """
        labels = selected(self._labels, path)
        most = min(max_bytes, PAGE_BYTES)
        if cursor is None:
            return await self._read_end(path, labels, most)
        known, oldest = from_cursor(cursor), self._oldest()
        place = known or place_at(oldest)
        if place.low < oldest:
            place = place._replace(low=oldest, skip=0)
        page = await self.page(Question(labels, place.low, skip=place.skip, limit=self._limit, most=most))
        if not page.rows and known is None:
            raise self._nothing(path)
        new, after = advance(place, page, self._bounds, can_skip=self.can_skip)
        restarted = known is None and cursor != Cursor()
        return Chunk(lines=_lines(new), cursor=to_cursor(after), restarted=restarted, more=page.full)

    async def _read_end(self, path: str, labels: Mapping[str, str], most: int) -> Chunk:
        page = await self.page(Question(labels, self._oldest(), newest=True, limit=self._limit, most=most))
        rows, _ = backwards(page)
        if not rows:
            raise self._nothing(path)
        new, place = advance(place_at(rows[0].at), Page(rows, full=False), self._bounds, can_skip=False)
        return Chunk(lines=_lines(new), cursor=to_cursor(place))

    def open(self, path: str, offset: int = 0) -> BinaryIO:
        """Open for reading, from the lines stamped `offset` on: page by page, one page in memory. Blocks: for a thread.

        What arrived out of order comes in the order of its stamps. Ends where the log ends when its last page is read.

        Raises:
            OSError: also where there is no such log, and from any read.
        """
        stream = _Stream(self, path, offset)
        if not stream.more() and not offset:
            raise FileNotFoundError(str(self._nothing(path)))
        return io.BufferedReader(stream, 1 << 20)

    async def onward(self, path: str, walk: Walk) -> tuple[bytes, Walk | None]:
        """The next page of a walk through a log, and what comes after it; None at its end.

        A store sorts all that it is asked for to find the oldest lines. So once a page was full, a stretch of time
        that may hold a few pages more is asked for instead of everything.
        """
        place = walk.place if walk.place.low else place_at(self._oldest())
        end = place.low + walk.stretch if walk.stretch else None
        if end is not None and end > self._now().timestamp() * 1e9:
            end = None
        asked = Question(selected(self._labels, path), place.low, end, skip=place.skip, limit=self._limit)
        page = await self.page(asked)
        new, after = advance(place, page, Bounds(), can_skip=self.can_skip)
        following = None
        if page.full:
            following = Walk(after, 4 * max(page.rows[-1].at - page.rows[0].at, 1_000_000_000))
        elif end is not None:
            following = Walk(place_at(end), 2 * walk.stretch)
        return _bytes(new), following

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
        labels = selected(self._labels, path)
        try:
            async with asyncio.timeout(_KEEPING.total_seconds()):
                first, low = await self._head(labels, head)
                last, gap = (deque[bytes](), False) if low is None else await self._tail(labels, low, tail)
        except TimeoutError:
            raise LogUnreadableError(f"{path}: not copied within {_KEEPING.total_seconds():g} s") from None
        if not any(first) and not last:
            raise self._nothing(path)
        said = [b"[relight: lines left out here]\n"] if gap else []
        target = Path(folder) / f"{_STRANGE.sub('_', Path(path).name)[:100]}.{secrets.token_hex(6)}"
        await self._copies.run(str(target), lambda: _write(target, [*first, *said, *last]))
        return str(target)

    async def _head(self, labels: Mapping[str, str], most: int) -> tuple[list[bytes], int | None]:
        """The first lines, and where those behind them begin; None where there are none."""
        parts: list[bytes] = []
        place = place_at(self._oldest())
        while sum(map(len, parts)) < most:
            page = await self.page(Question(labels, place.low, skip=place.skip, limit=self._limit))
            new, place = advance(place, page, Bounds(), can_skip=self.can_skip)
            parts.append(_bytes(new))
            if not page.full:
                return parts, None
        return parts, place.low + bool(place.skip)

    async def _tail(self, labels: Mapping[str, str], low: int, most: int) -> tuple[deque[bytes], bool]:
        """The last lines since `low`, and whether others lie before them."""
        parts, end = deque[bytes](), None
        while sum(map(len, parts)) < most:
            page = await self.page(Question(labels, low, end, newest=True, limit=self._limit))
            rows, end = backwards(page)
            parts.appendleft(_bytes(rows))
            if not page.full:
                return parts, False
        return parts, True

    def _oldest(self) -> int:
        return max(1, round((self._now() - self._reading.reach).timestamp())) * 1_000_000_000

    def _nothing(self, path: str) -> LogNotFoundError:
        days = self._reading.reach / timedelta(days=1)
        return LogNotFoundError(f"{path}: {self._store.whose} has no line of it within {days:g} days")


class _Stream(io.RawIOBase):
    """The pages of a walk as one stream of bytes."""

    def __init__(self, logs: HttpLogs, path: str, offset: int) -> None:
        self._logs, self._path = logs, path
        self._walk: Walk | None = Walk(place_at(offset))
        self._rest = memoryview(b"")

    def readable(self) -> bool:
        """Yes."""
        return True

    def more(self) -> bool:
        """Whether anything is left; waits for the next page if need be."""
        while not self._rest and self._walk:
            data, self._walk = self._logs.wait(self._logs.onward(self._path, self._walk))
            self._rest = memoryview(data)
        return bool(self._rest)

    def readinto(self, buffer: "WriteableBuffer", /) -> int:
        """Fill what fits."""
        self.more()
        view = memoryview(buffer).cast("B")
        count = min(len(view), len(self._rest))
        view[:count] = self._rest[:count]
        self._rest = self._rest[count:]
        return count


def _bytes(rows: list[Row] | tuple[Row, ...]) -> bytes:
    return b"".join(row.text.removesuffix("\n").encode("utf-8", "replace") + b"\n" for row in rows)


def _lines(rows: list[Row]) -> tuple[str, ...]:
    """Lines for reading; an entry of several lines (a shipper had joined them) is several again."""
    return split(_bytes(rows)).lines


def _write(target: Path, parts: list[bytes]) -> None:
    target.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    fresh = target.with_name(f".{target.name}.part")
    handle = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    try:
        with os.fdopen(handle, "wb") as copy:
            copy.writelines(parts)
            copy.flush()
            os.fsync(copy.fileno())
        fresh.rename(target)
    finally:
        fresh.unlink(missing_ok=True)
