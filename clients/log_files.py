"""Log sources that are plain files: on local or shared file systems, or over SFTP."""

import asyncio
import io
import os
import re
import secrets
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from datetime import timedelta
from pathlib import Path
from typing import BinaryIO, Self, TypeVar

from relight.clients import log_reader
from relight.clients.files import Files, LocalFiles, OpenFile, Stream, UnreachableError
from relight.clients.log_reader import MAX_LINE, MAX_PARTIAL, Split, plain, split
from relight.clients.logs import (
    Asked,
    Chunk,
    Cursor,
    LogError,
    LogNotFoundError,
    LogUnreadableError,
    read_each,
)

__all__ = ["MAX_LINE", "MAX_PARTIAL", "Bounded", "LogFiles", "Split", "plain", "split"]

_T = TypeVar("_T")
_COPY = 1 << 20
_MAX_STUCK = 32

_STRANGE = re.compile(r"[^A-Za-z0-9._+-]")


class Bounded:
    """Runs file operations in threads of their own and gives up waiting after a while.

    A call into a hung file system cannot be ended from outside: its thread lingers until the system answers (what is
    read all the time is therefore read by processes: `log_readers`). So that lingering threads do not add up, a folder
    with one gets no other, and 32 of them stop everything. Not `asyncio.to_thread`: its few threads serve the ledger
    too, and the interpreter waits for them at its end.
    """

    def __init__(self, timeout: timedelta) -> None:
        self._timeout = timeout
        self._stuck: dict[threading.Event, str] = {}
        self._lock = threading.Lock()

    async def run(self, path: str, call: Callable[[], _T], *, patience: int = 1) -> _T:
        """What `call` returns, within the time-out times `patience`.

        Raises:
            LogError: as `call` does, or turned from its OSError.
            LogUnreadableError: when it took too long, or an earlier call in the same folder still hangs.
        """
        self._refuse_stuck(path)
        loop, ended = asyncio.get_running_loop(), threading.Event()
        answer: asyncio.Future[_T] = loop.create_future()
        threading.Thread(target=self._work, args=(path, call, ended, answer), daemon=True).start()
        seconds = (self._timeout * patience).total_seconds()
        try:
            return await asyncio.wait_for(answer, seconds)
        except TimeoutError:
            raise LogUnreadableError(f"{path}: the file system did not answer within {seconds:g} s") from None
        finally:
            with self._lock:
                if not ended.is_set():
                    self._stuck[ended] = str(Path(path).parent)

    def _refuse_stuck(self, path: str) -> None:
        with self._lock:
            if str(Path(path).parent) in self._stuck.values() or len(self._stuck) >= _MAX_STUCK:
                raise LogUnreadableError(f"{path}: the file system still does not answer")

    def _work(self, path: str, call: Callable[[], _T], ended: threading.Event, answer: "asyncio.Future[_T]") -> None:
        try:
            result, error = call(), None
        except Exception as e:  # noqa: BLE001  it is raised where it is waited for
            result, error = None, _ours(path, e)
        with self._lock:
            ended.set()
            self._stuck.pop(ended, None)

        def settle() -> None:
            if answer.done():
                return
            if error is not None:
                answer.set_exception(error)
            else:
                answer.set_result(result)  # type: ignore[arg-type]

        with suppress(RuntimeError):  # the loop has ended meanwhile
            answer.get_loop().call_soon_threadsafe(settle)


class LogFiles:
    """Implements `Logs` for regular files.

    Args:
        timeout: how long one operation may take; keeping a copy may take twice that.
        private: folders that are never read from. A user names the file that his job's output goes to, and a
            link there must not lead to the ledger's key. Over SFTP they count as paths of that machine: its
            file systems may be ours as well.
        files: where they are; None: on this machine.
    """

    def __init__(
        self,
        *,
        timeout: timedelta = timedelta(seconds=5),
        private: tuple[Path, ...] = (),
        files: Files | None = None,
    ) -> None:
        self._bounded = Bounded(timeout)
        self._files = files or LocalFiles()
        self._private = tuple(path.resolve() for path in private)

    async def read_new(self, path: str, cursor: Cursor | None, *, max_bytes: int = 4 << 20) -> Chunk:
        """Lines added since `cursor`; with None, from the last `max_bytes`; with `Cursor()`, from the start.

        A progress bar that is redrawn with carriage returns yields its newest complete state without waiting
        for the end of its line; a line of more than 1 MiB comes in pieces.
        """
        return await self._bounded.run(path, lambda: self._read_new(path, cursor, max_bytes))

    async def read_many(self, asked: Sequence[Asked]) -> list[Chunk | LogError | None]:
        """What is new in each, in their order, a thread for each read; None where the bound of all was reached."""
        return await read_each(self, asked)

    def place(self, path: str) -> str:  # noqa: ARG002
        """The same for all files."""
        return ""

    async def ahead(self, path: str, cursor: Cursor) -> int:
        """Bytes behind the cursor; all of them, when it is of another file."""

        def look() -> int:
            with self._opened(path) as file:
                return file.size - (cursor.offset if log_reader.is_same(file, _at(cursor)) else 0)

        return await self._bounded.run(path, look)

    async def size(self, path: str) -> int:
        """Size in bytes."""

        def look() -> int:
            with self._opened(path) as file:
                return file.size

        return await self._bounded.run(path, look)

    def open(self, path: str, offset: int = 0) -> BinaryIO:
        """Open for reading from `offset` on, under the same checks as any read. Blocks: for a thread.

        Raises:
            OSError: also where the path leads to no regular file, or into a private folder.
        """
        try:
            return io.BufferedReader(Stream(self._opened(path).file, offset), _COPY)
        except (LogUnreadableError, UnreachableError) as error:
            raise OSError(str(error)) from error

    async def keep(self, path: str, folder: str, *, head: int = 1 << 20, tail: int = 16 << 20) -> str:
        """Copy the first `head` and last `tail` bytes into `folder`; returns the copy's path.

        The copy is a new file of mode 0600 with a name of its own, in a folder made with 0700, and appears whole
        or not at all.
        """
        given_up = threading.Event()

        def copy() -> str:
            with self._opened(path) as file:
                return _keep(file, path, Path(folder), (head, tail), given_up)

        try:
            return await self._bounded.run(path, copy, patience=2)
        finally:
            given_up.set()

    def _opened(self, path: str) -> "_Opened":
        file = self._files.open(path)
        opened = _Opened(file)
        try:
            real = file.real() if self._private else Path()
        except BaseException:
            file.close()
            raise
        if any(real.is_relative_to(folder) for folder in self._private):
            file.close()
            raise LogUnreadableError(f"{path}: leads into a private folder")
        return opened

    def _read_new(self, path: str, cursor: Cursor | None, max_bytes: int) -> Chunk:
        with self._opened(path) as file:
            found = log_reader.read_new(file, None if cursor is None else _at(cursor), max_bytes)
        inode, offset, mark = found.place
        at = Cursor(inode=inode, offset=offset, mark=mark)
        return Chunk(lines=found.lines, cursor=at, restarted=found.restarted, more=found.more)


def _at(cursor: Cursor) -> log_reader.Place:
    return log_reader.Place(cursor.inode, cursor.offset, cursor.mark)


class _Opened:
    """A file that may be read, closed at the end of a `with`."""

    def __init__(self, file: OpenFile) -> None:
        self.file, self.size = file, file.stat().st_size

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.file.close()

    def identity(self, offset: int) -> int:
        """The same number as long as this is the file whose first `offset` bytes were read before."""
        return self.file.identity(offset)

    def read(self, offset: int, count: int) -> bytes:
        """Up to `count` bytes; fewer only at the end of the file."""
        parts = []
        while count > 0:
            part = self.file.read(offset, min(count, _COPY))
            if not part:
                break
            parts.append(part)
            offset, count = offset + len(part), count - len(part)
        return b"".join(parts)


def _keep(file: _Opened, path: str, folder: Path, bounds: tuple[int, int], given_up: threading.Event) -> str:
    head, tail = bounds
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    name = f"{_STRANGE.sub('_', Path(path).name)[:100]}.{secrets.token_hex(6)}"
    fresh, final = folder / f".{name}.part", folder / name
    handle = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    try:
        with os.fdopen(handle, "wb") as copy:
            parts = [(0, file.size)]
            gap = file.size - head - tail
            if gap > 0:
                parts = [(0, head), (file.size - tail, tail)]
            for number, (offset, count) in enumerate(parts):
                if number:
                    copy.write(f"\n[relight: {gap} bytes left out here]\n".encode())
                for at in range(offset, offset + count, _COPY):
                    copy.write(file.read(at, min(_COPY, offset + count - at)))
            copy.flush()
            os.fsync(copy.fileno())
        if given_up.is_set():
            raise LogUnreadableError(f"{path}: copied too late")
        fresh.rename(final)
    finally:
        fresh.unlink(missing_ok=True)
    return str(final)


def _ours(path: str, error: Exception) -> Exception:
    """What the system or our own checks raised, as a `LogError`."""
    if isinstance(error, LogError):
        return error
    if isinstance(error, UnreachableError):
        return LogUnreadableError(f"{path}: {error}")
    if isinstance(error, (FileNotFoundError, NotADirectoryError)):
        return LogNotFoundError(f"{path}: no such file")
    if isinstance(error, OSError):
        return LogUnreadableError(f"{path}: {error.strerror or error}")
    if isinstance(error, ValueError):  # a path with a NUL in it
        return LogNotFoundError(f"{path!r}: {error}")
    return error
