"""The contract with log sources: job outputs and kernel logs, wherever they are kept.

LogError
├── LogUnreadableError    no permission, not a regular file, a dead mount: nothing is known. May pass.
└── LogNotFoundError      no such file (yet).
"""

import asyncio
from collections.abc import Sequence
from typing import BinaryIO, NamedTuple, Protocol

from relight.domain.base import Value

TAKEN = 16 << 20
"""Characters in the answers of `read_each` after which it comes to no more logs."""


class LogError(Exception):
    """Root of everything that a log source can raise."""


class LogUnreadableError(LogError):
    """The log is there and cannot be read, or the file system does not answer."""


class LogNotFoundError(LogError):
    """There is no such log."""


class Cursor(Value):
    """Where a follower stands in one file; of a log in a store, see `HttpLogs`."""

    inode: int = 0
    offset: int = 0
    """Bytes consumed, always at the beginning of a line."""
    mark: str = ""
    """Hash of the bytes right before `offset`: a file emptied and grown past it again is another file."""


class Chunk(Value):
    """What was new in a file."""

    lines: tuple[str, ...]
    """Whole lines, decoded leniently, carriage returns and escapes taken out, each cut at 4,096 characters."""
    cursor: Cursor
    restarted: bool = False
    """True when the file was truncated or replaced since the last read: reading began anew at its start."""
    more: bool = False
    """True when the read stopped at its bound and there is more already."""
    skipped: bool = False
    """True when lines before these were left out, as asked for."""


class Asked(NamedTuple):
    """One of many logs that are read together."""

    path: str
    cursor: Cursor | None
    far: int | None = None
    """When more than so many bytes lie ahead, it is read on from near its end."""


class Logs(Protocol):
    """Reads files that grow."""

    async def read_new(self, path: str, cursor: Cursor | None, *, max_bytes: int = 4 << 20) -> Chunk:
        """Lines added since `cursor`; with None, from the last `max_bytes` of the file."""

    async def read_many(self, asked: Sequence[Asked]) -> list[Chunk | LogError | None]:
        """What is new in each, in their order; bounded. Where None stands, that log was not come to: ask again."""

    def place(self, path: str) -> str:
        """What this log becomes unreadable with: logs of one place are read together. Nothing is asked for it."""

    async def ahead(self, path: str, cursor: Cursor) -> int:
        """Bytes that a follower at this cursor has not read; roughly, where a store cannot tell."""

    async def size(self, path: str) -> int:
        """Size in bytes."""

    def open(self, path: str, offset: int = 0) -> BinaryIO:
        """Open for reading from `offset` on. Blocks: for a thread. Raises OSError."""

    async def keep(self, path: str, folder: str, *, head: int = 1 << 20, tail: int = 16 << 20) -> str:
        """Copy the first `head` and last `tail` bytes into `folder` (a gap is said in the copy); returns its path."""


async def read_each(logs: Logs, asked: Sequence[Asked], *, at_once: int = 16) -> list[Chunk | LogError | None]:
    """`Logs.read_many` for a source that is read log by log, so many at the same time."""
    found: list[Chunk | LogError | None] = []
    taken = 0
    while len(found) < len(asked) and taken < TAKEN:
        part = await asyncio.gather(*(_read(logs, each) for each in asked[len(found) : len(found) + at_once]))
        taken += sum(len(line) for chunk in part if isinstance(chunk, Chunk) for line in chunk.lines)
        found += part
    return found + [None] * (len(asked) - len(found))


async def _read(logs: Logs, asked: Asked) -> Chunk | LogError:
    path, cursor, far = asked
    try:
        if far is not None and await logs.ahead(path, cursor or Cursor()) > far:
            chunk = await logs.read_new(path, None, max_bytes=far)
            return chunk.model_copy(update={"skipped": True})
        return await logs.read_new(path, cursor)
    except LogError as error:
        return error
