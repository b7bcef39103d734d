"""Files that Relight reads: on this machine, or over SFTP (`ssh_files.py`). All of it blocks: for a thread.

What the file system says of one file is an `OSError`. That it cannot be asked at all is an `UnreachableError`, and on
purpose no `OSError`: passed over like a file without permission, it would turn a lost connection into "nothing there".
"""

import io
import os
import stat
from collections.abc import Hashable
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from _typeshed import WriteableBuffer


class UnreachableError(Exception):
    """The file system cannot be asked: nothing is known of any file. Trying again later helps."""


class OpenFile(Protocol):
    """A regular file, open for reading."""

    def stat(self) -> os.stat_result:
        """Its attributes as they were when it was opened; over SFTP only mode, size and times are told."""

    def identity(self, offset: int) -> int:
        """The same number as long as this is the file whose first `offset` bytes were read before."""

    def real(self) -> Path:
        """Where it really is, links resolved."""

    def read(self, offset: int, count: int) -> bytes:
        """At most `count` bytes from `offset` on; empty only at the end."""

    def close(self) -> None:
        """Give it back; never raises."""


class Entry(Protocol):
    """What a folder holds; `os.DirEntry` is one."""

    @property
    def name(self) -> str:
        """The last part of the path."""

    @property
    def path(self) -> str:
        """The folder's path and the name."""

    def is_dir(self) -> bool:
        """Whether it is a folder, links followed; False for a link to nowhere."""

    def stat(self) -> os.stat_result:
        """Its attributes, links followed."""


class Files(Protocol):
    """A file system."""

    def open(self, path: str) -> OpenFile:
        """Open a regular file, links followed; anything else is an OSError, and is not opened."""

    def listing(self, folder: str, most: int) -> list[Entry]:
        """At most `most` of what is in a folder, in any order."""

    def place(self, folder: str) -> Hashable:
        """The same value for each path that leads to this folder."""

    def space(self, folder: str) -> tuple[int, int, int | None]:
        """Of its file system: bytes that a user may still write, bytes in all, and files that may still be made.

        None where it does not count files. A quota shows in it only where the file system sees to that.
        """


class LocalFiles:
    """Implements `Files` on this machine, its mounts included."""

    def open(self, path: str) -> "LocalFile":
        """Open a regular file without waiting for anything else."""
        # Looked at before it is opened: opening a device can do something by itself.
        check_regular(os.stat(path).st_mode)  # noqa: PTH116
        # Links are followed: logs are often links. Should a FIFO take its place now, O_NONBLOCK returns at once.
        fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC)
        try:
            found = os.fstat(fd)
            check_regular(found.st_mode)
        except BaseException:
            os.close(fd)
            raise
        return LocalFile(fd, found)

    def listing(self, folder: str, most: int) -> list[Entry]:
        """At most `most` of what is in a folder."""
        found: list[Entry] = []
        with os.scandir(folder) as entries:
            for entry in entries:
                if len(found) >= most:
                    break
                found.append(entry)
        return found

    def place(self, folder: str) -> Hashable:
        """Device and inode."""
        there = os.stat(folder)  # noqa: PTH116
        return there.st_dev, there.st_ino

    def space(self, folder: str) -> tuple[int, int, int | None]:
        """What statvfs tells."""
        told = os.statvfs(folder)
        size = told.f_frsize or told.f_bsize
        return told.f_bavail * size, told.f_blocks * size, told.f_favail if told.f_files else None


class LocalFile:
    """An open file of this machine."""

    def __init__(self, fd: int, found: os.stat_result) -> None:
        self._fd, self._found = fd, found

    def stat(self) -> os.stat_result:
        """Its attributes when it was opened."""
        return self._found

    def identity(self, offset: int) -> int:  # noqa: ARG002
        """The inode."""
        return self._found.st_ino

    def real(self) -> Path:
        """The path of the file that is open, whatever has become of the links since."""
        return Path(f"/proc/self/fd/{self._fd}").resolve()

    def read(self, offset: int, count: int) -> bytes:
        """At most `count` bytes from `offset` on."""
        return os.pread(self._fd, count, offset)

    def close(self) -> None:
        """Close it."""
        os.close(self._fd)


class Stream(io.RawIOBase):
    """An open file as Python's own, to be read from `offset` on; closes it with itself.

    Every error is an OSError here, `UnreachableError` too: that is what readers of streams know.
    """

    def __init__(self, file: OpenFile, offset: int = 0) -> None:
        self._file, self._at = file, offset

    def readable(self) -> bool:
        """Yes."""
        return True

    def seekable(self) -> bool:
        """Yes."""
        return True

    def readinto(self, buffer: "WriteableBuffer", /) -> int:
        """Fill what fits, up to the end."""
        view = memoryview(buffer).cast("B")
        try:
            data = self._file.read(self._at, len(view))
        except UnreachableError as error:
            raise OSError(str(error)) from error
        view[: len(data)] = data
        self._at += len(data)
        return len(data)

    def seek(self, offset: int, whence: int = os.SEEK_SET, /) -> int:
        """Move; the end is where it was when the file was opened."""
        start = {os.SEEK_SET: 0, os.SEEK_CUR: self._at, os.SEEK_END: self._file.stat().st_size}[whence]
        if start + offset < 0:
            raise OSError("before the beginning of the file")
        self._at = start + offset
        return self._at

    def tell(self) -> int:
        """Where the next read begins."""
        return self._at

    def close(self) -> None:
        """Close the file too."""
        if not self.closed:
            self._file.close()
        super().close()


def check_regular(mode: int) -> None:
    """Raise OSError for what is no regular file."""
    if not stat.S_ISREG(mode):
        raise OSError("not a regular file")
