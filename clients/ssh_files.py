"""Files over SFTP, on the connection that the commands use: for sites whose file systems are not mounted here."""

import asyncio
import errno
import os
import stat
from collections.abc import Awaitable, Callable, Coroutine, Hashable
from contextlib import suppress
from datetime import timedelta
from pathlib import Path
from typing import Any, TypeVar, cast

import asyncssh

from relight.clients.files import Entry, UnreachableError, check_regular
from relight.clients.ssh import SshConnection
from relight.clients.ssh_hosts import SshError
from relight.domain.base import short_hash

T = TypeVar("T")

HEAD = 4096
"""Bytes at the beginning of a file by which it is known again."""
STUCK = timedelta(minutes=5)
"""How long a session may hang in one file before it is closed."""
MAX_SESSIONS = 2
"""At a time, those that hang included: what `MAX_COMMANDS` leaves of sshd's MaxSessions."""

_LOST = (asyncssh.SFTPConnectionLost, asyncssh.SFTPNoConnection, asyncssh.DisconnectError, ConnectionError)
_KINDS: tuple[tuple[type[asyncssh.SFTPError], int], ...] = (
    (asyncssh.SFTPNoSuchFile, errno.ENOENT),
    (asyncssh.SFTPPermissionDenied, errno.EACCES),
    (asyncssh.SFTPOpUnsupported, errno.ENOSYS),
)


class SftpFiles:
    """Implements `Files` over a connection's SFTP subsystem, for any number of threads; made on the event loop.

    sftp-server answers one request after the other, and keeps all waiting when a file system hangs. So a session
    that leaves a request unanswered is put aside: new ones go to a fresh session, and whoever asked for the hanging
    file waits on, so that `Bounded` lets nobody else into that folder.

    Args:
        connection: to where the files are.
        patience: how long a request may take before its session is put aside.
    """

    def __init__(self, connection: SshConnection, *, patience: timedelta = timedelta(seconds=5)) -> None:
        self._connection = connection
        self._patience = patience.total_seconds()
        self._loop = asyncio.get_running_loop()
        self._starting = asyncio.Lock()
        self._session: asyncssh.SFTPClient | None = None
        self._under: asyncssh.SSHClientConnection | None = None
        """The connection of that session."""
        self._stuck: set[asyncssh.SFTPClient] = set()

    def open(self, path: str) -> "SftpFile":
        """Open a regular file.

        It is opened under its real name. Whoever puts a FIFO in its place between the look and the opening makes this
        session hang; nothing in SFTP opens a file without waiting.
        """

        async def work(sftp: asyncssh.SFTPClient) -> SftpFile:
            real = await sftp.realpath(path)
            check_regular(_result(await sftp.stat(real)).st_mode)
            file = await sftp.open(real, "rb")
            found = _result(await file.stat())
            return SftpFile(self, sftp, file, real, found)

        opened = self.ask(path, work)
        try:
            check_regular(opened.stat().st_mode)
        except OSError:
            opened.close()
            raise
        return opened

    def listing(self, folder: str, most: int) -> list[Entry]:
        """At most `most` of what is in a folder."""

        async def work(sftp: asyncssh.SFTPClient) -> list[Entry]:
            found: list[Entry] = []
            names = sftp.scandir(folder)
            try:
                async for name in names:
                    if len(found) >= most:
                        break
                    if name.filename not in (".", ".."):
                        found.append(_SftpEntry(self, folder, str(name.filename), _result(name.attrs)))
            finally:
                await names.aclose()  # type: ignore[attr-defined]  # it is an asynchronous generator
            return found

        return self.ask(folder, work)

    def place(self, folder: str) -> Hashable:
        """The real path."""
        return self.real(folder)

    def space(self, folder: str) -> tuple[int, int, int | None]:
        """What statvfs tells there: OpenSSH's extension of SFTP."""
        told = self.ask(folder, lambda sftp: sftp.statvfs(folder))
        size = told.frsize or told.bsize
        return told.bavail * size, told.blocks * size, told.favail if told.files else None

    def real(self, path: str) -> str:
        """The path without links."""
        return self.ask(path, lambda sftp: sftp.realpath(path))

    def stat(self, path: str) -> os.stat_result:
        """The attributes, links followed."""
        return _result(self.ask(path, lambda sftp: sftp.stat(path)))

    def ask(
        self, path: str, work: Callable[[asyncssh.SFTPClient], Awaitable[T]], within: asyncssh.SFTPClient | None = None
    ) -> T:
        """Do some work in a session, in `within` when it has a handle of that one. Blocks: never on the event loop.

        Raises:
            OSError: what the other side says of the file.
            UnreachableError: it says nothing.
        """
        if "\0" in path:
            raise ValueError("embedded null byte")  # sftp-server ends for one (as os.open, which says so)
        return asyncio.run_coroutine_threadsafe(self._ask(work, within), self._loop).result()

    def forget(self, work: Coroutine[Any, Any, None]) -> None:
        """Do some work without waiting for it."""
        asyncio.run_coroutine_threadsafe(work, self._loop)

    async def _ask(self, work: Callable[[asyncssh.SFTPClient], Awaitable[T]], within: asyncssh.SFTPClient | None) -> T:
        sftp = within or await self._current()
        task = asyncio.ensure_future(work(sftp))
        await asyncio.wait({task}, timeout=self._patience)
        if not task.done():
            self._put_aside(sftp)
            await asyncio.wait({task}, timeout=STUCK.total_seconds())
            self._stuck.discard(sftp)
            sftp.exit()
        if not task.done():
            task.cancel()
            raise UnreachableError(f"{self._connection.address}: SFTP does not answer")
        try:
            return task.result()
        except _LOST as error:
            if self._session is sftp:
                self._session = None
            raise UnreachableError(f"{self._connection.address}: SFTP ended: {error}") from error
        except asyncssh.SFTPError as error:
            code = next((number for kind, number in _KINDS if isinstance(error, kind)), errno.EIO)
            raise OSError(code, error.reason or os.strerror(code)) from error

    async def _current(self) -> asyncssh.SFTPClient:
        """The session in use; started when there is none, or its connection was lost."""
        async with self._starting:
            try:
                connection = await self._connection.connected()
                if self._session is None or self._under is not connection:
                    if len(self._stuck) >= MAX_SESSIONS:
                        raise UnreachableError(f"{self._connection.address}: SFTP still does not answer")
                    async with asyncio.timeout(self._patience):
                        self._session = await connection.start_sftp_client(path_errors="surrogateescape")
                        self._under = connection
            except SshError as error:
                raise UnreachableError(str(error)) from error
            except TimeoutError:
                raise UnreachableError(f"{self._connection.address}: SFTP does not start") from None
            except (OSError, asyncssh.Error) as error:
                raise UnreachableError(f"{self._connection.address}: no SFTP there: {error}") from error
            return self._session

    def _put_aside(self, sftp: asyncssh.SFTPClient) -> None:
        self._stuck.add(sftp)
        if self._session is sftp:
            self._session = None


class SftpFile:
    """An open file over SFTP."""

    def __init__(
        self,
        files: SftpFiles,
        sftp: asyncssh.SFTPClient,
        file: asyncssh.SFTPClientFile,
        path: str,
        found: os.stat_result,
    ) -> None:
        self._files, self._sftp, self._file, self._path, self._found = files, sftp, file, path, found

    def stat(self) -> os.stat_result:
        """Mode, size and times when it was opened."""
        return self._found

    def identity(self, offset: int) -> int:
        """A hash of its beginning, of no more than what was read before: SFTP tells no inode.

        A file that was emptied, or another in its place, differs in there (a log begins with a date, a host, a number)
        or in the bytes before the cursor, or is shorter. One that is equal in all three has said nothing new.
        """
        count = min(offset, HEAD)
        return int(short_hash(self.read(0, count).hex(), 12), 16) if count else 0

    def real(self) -> Path:
        """The path by which it was opened, once more without links: the same unless somebody has meddled since."""
        return Path(self._files.real(self._path))

    def read(self, offset: int, count: int) -> bytes:
        """At most `count` bytes."""
        # It is open as a binary file.
        return self._files.ask(
            self._path, lambda _: cast("Awaitable[bytes]", self._file.read(count, offset)), self._sftp
        )

    def close(self) -> None:
        """Closed without waiting; a lost connection has closed it already."""

        async def work() -> None:
            with suppress(asyncssh.Error, OSError, ValueError):
                await self._file.close()

        self._files.forget(work())


class _SftpEntry:
    """What a folder holds, with what the listing told of it."""

    def __init__(self, files: SftpFiles, folder: str, name: str, found: os.stat_result) -> None:
        self.name, self.path = name, f"{folder.rstrip('/')}/{name}"
        self._files, self._found = files, found

    def is_dir(self) -> bool:
        """Whether it is a folder, links followed."""
        try:
            return stat.S_ISDIR(self.stat().st_mode)
        except FileNotFoundError:
            return False

    def stat(self) -> os.stat_result:
        """The attributes, links followed; asked for only where the listing told those of a link."""
        if stat.S_ISLNK(self._found.st_mode):
            self._found = self._files.stat(self.path)
        return self._found


def _result(attrs: asyncssh.SFTPAttrs) -> os.stat_result:
    """As the standard library has it, without device and inode."""
    times = (attrs.atime or 0, attrs.mtime or 0, attrs.mtime or 0)
    return os.stat_result((attrs.permissions or 0, 0, 0, 1, attrs.uid or 0, attrs.gid or 0, attrs.size or 0, *times))
