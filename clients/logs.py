"""The contract with log sources: job outputs and kernel logs, wherever they are kept.

LogError
├── LogUnreadableError    no permission, not a regular file, a dead mount: nothing is known. May pass.
└── LogNotFoundError      no such file (yet).
"""

from typing import BinaryIO, Protocol

from relight.domain.base import Value


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


class Logs(Protocol):
    """Reads files that grow."""

    async def read_new(self, path: str, cursor: Cursor | None, *, max_bytes: int = 4 << 20) -> Chunk:
        """Lines added since `cursor`; with None, from the last `max_bytes` of the file."""

    async def size(self, path: str) -> int:
        """Size in bytes."""

    def open(self, path: str, offset: int = 0) -> BinaryIO:
        """Open for reading from `offset` on. Blocks: for a thread. Raises OSError."""

    async def keep(self, path: str, folder: str, *, head: int = 1 << 20, tail: int = 16 << 20) -> str:
        """Copy the first `head` and last `tail` bytes into `folder` (a gap is said in the copy); returns its path."""
