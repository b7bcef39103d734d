"""Whole logs of a store, page by page: as a stream of bytes for a scanner, and as a copy of the first and last."""

import io
import os
from collections import deque
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from relight.clients.logs_pages import Bounds, Log, Page, Place, Question, Row, advance, backwards, place_at

if TYPE_CHECKING:
    from _typeshed import WriteableBuffer


class Asking(NamedTuple):
    """How a store is asked for pages."""

    page: Callable[[Question], Awaitable[Page]]
    limit: int
    """Lines in one answer."""
    can_skip: bool


class Walk(NamedTuple):
    """Where a reader of a whole log stands."""

    place: Place
    stretch: int = 0
    """Nanoseconds asked for at a time; 0 for all that follow."""


async def onward(asking: Asking, log: Log, walk: Walk, now: int) -> tuple[bytes, Walk | None]:
    """The next page of a walk through a log, and what comes after it; None at its end.

    A store sorts all that it is asked for to find the oldest lines. So once a page was full, a stretch of time that may
    hold a few pages more is asked for instead of everything.
    """
    place = walk.place
    end = place.low + walk.stretch if walk.stretch else None
    if end is not None and end > now:
        end = None
    page = await asking.page(Question(log.labels, place.low, end, skip=place.skip, limit=asking.limit))
    new, after = advance(place, page, Bounds(), can_skip=asking.can_skip)
    following = None
    if page.full:
        following = Walk(after, 4 * max(page.rows[-1].at - page.rows[0].at, 1_000_000_000))
    elif end is not None:
        following = Walk(place_at(end), 2 * walk.stretch)
    return as_bytes(new), following


class Stream(io.RawIOBase):
    """The pages of a walk as one stream of bytes; `turn` waits for the next page."""

    def __init__(self, turn: Callable[[Walk], tuple[bytes, Walk | None]], low: int) -> None:
        self._turn = turn
        self._walk: Walk | None = Walk(place_at(low))
        self._rest = memoryview(b"")

    def readable(self) -> bool:
        """Yes."""
        return True

    def more(self) -> bool:
        """Whether anything is left; waits for the next page if need be."""
        while not self._rest and self._walk:
            data, self._walk = self._turn(self._walk)
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


async def ends(asking: Asking, log: Log, low: int, head: int, tail: int) -> list[bytes]:
    """The first `head` and last `tail` bytes since `low`, in whole pages; a gap between them is said there."""
    parts: list[bytes] = []
    place = place_at(low)
    while sum(map(len, parts)) < head:
        page = await asking.page(Question(log.labels, place.low, skip=place.skip, limit=asking.limit))
        new, place = advance(place, page, Bounds(), can_skip=asking.can_skip)
        parts.append(as_bytes(new))
        if not page.full:
            return parts
    last, gap = await _tail(asking, log, place.low + bool(place.skip), tail)
    return [*parts, *([b"[relight: lines left out here]\n"] if gap else []), *last]


async def _tail(asking: Asking, log: Log, low: int, most: int) -> tuple[deque[bytes], bool]:
    """The last lines since `low`, and whether others lie before them."""
    parts, end = deque[bytes](), None
    while sum(map(len, parts)) < most:
        page = await asking.page(Question(log.labels, low, end, newest=True, limit=asking.limit))
        rows, end = backwards(page)
        parts.appendleft(as_bytes(rows))
        if not page.full:
            return parts, False
    return parts, True


def as_bytes(rows: list[Row] | tuple[Row, ...]) -> bytes:
    """Lines, each with its end."""
    return b"".join(row.text.removesuffix("\n").encode("utf-8", "replace") + b"\n" for row in rows)


def write(target: Path, parts: list[bytes]) -> None:
    """A new file of mode 0600 in a folder made with 0700, whole or not at all. Blocks."""
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
