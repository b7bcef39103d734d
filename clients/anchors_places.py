"""The ledger's head kept in a file, in syslog, or in a git repository."""

import asyncio
import logging
import logging.handlers
import os
import socket
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from urllib.parse import urlsplit

from relight.clients.anchors import LINES, AnchorError, AnchorPlace
from relight.config.audit import SYSLOG_PORT, AnchorSettings
from relight.domain.audit import ANCHOR

WITHIN_S = 20.0
"""A place that has not answered by then has failed."""
_MOST_SAID = 300


def open_anchors(settings: Sequence[AnchorSettings]) -> tuple[AnchorPlace, ...]:
    """The places that the settings name; nothing is touched yet."""
    return tuple(_place(each) for each in settings)


def _place(settings: AnchorSettings) -> AnchorPlace:
    if settings.file:
        return FilePlace(Path(settings.file).expanduser())
    if settings.syslog:
        return SyslogPlace(settings.syslog)
    return GitPlace(Path(settings.git).expanduser(), push=settings.push)


class _OwnThread:
    """Calls in a thread of its own: a mount that hangs for good must take none of those that others wait for."""

    def __init__(self) -> None:
        self._busy = threading.Event()

    async def call(self, work: Callable[[], None]) -> None:
        """Call and wait, but not for ever.

        Raises:
            AnchorError: it did not end in time, or the call before it has not ended yet.
            OSError: what the call raised.
        """
        if self._busy.is_set():
            raise AnchorError("the try before this one still waits for an answer")
        self._busy.set()
        loop = asyncio.get_running_loop()
        done: asyncio.Future[BaseException | None] = loop.create_future()

        def tell(error: BaseException | None) -> None:
            if not done.done():
                done.set_result(error)

        def run() -> None:
            error: BaseException | None = None
            try:
                work()
            except OSError as raised:
                error = raised
            finally:
                self._busy.clear()
                with suppress(RuntimeError):  # nobody waits any more: the loop has ended
                    loop.call_soon_threadsafe(tell, error)

        threading.Thread(target=run, name="anchor", daemon=True).start()
        try:
            async with asyncio.timeout(WITHIN_S):
                error = await done
        except TimeoutError as raised:
            raise AnchorError(f"no answer within {WITHIN_S:g} s") from raised
        if error is not None:
            raise error


class FilePlace:
    """A file that grows by a line each time; it should lie on another machine, where this one can only append."""

    def __init__(self, path: Path) -> None:
        """Name the file."""
        self._path = path
        self._thread = _OwnThread()

    @property
    def name(self) -> str:
        """`file:/path`."""
        return f"file:{self._path}"

    async def keep(self, line: str) -> None:
        """Append it, and have it written to the disk.

        Raises:
            AnchorError: it was not.
        """
        try:
            await self._thread.call(lambda: append(self._path, line))
        except OSError as error:
            raise AnchorError(f"{self._path}: {error.strerror or error}") from error


def append(path: Path, line: str) -> None:
    """Append a line in one write; a line that was cut off before it (a full disk) stays alone."""
    handle = os.open(path, os.O_CREAT | os.O_APPEND | os.O_RDWR, 0o644)
    try:
        size = os.fstat(handle).st_size
        torn = size > 0 and os.pread(handle, 1, size - 1) != b"\n"
        data = f"{chr(10) if torn else ''}{line}\n".encode()
        if os.write(handle, data) != len(data):
            raise OSError(0, "the line was not written as a whole")
        os.fsync(handle)
    finally:
        os.close(handle)


class SyslogPlace:
    """A syslog server: the local socket, UDP (nobody says whether it arrived) or TCP."""

    def __init__(self, address: str) -> None:
        """Name it: `/dev/log`, `udp://loghost:514`, `tcp://loghost:601`."""
        self._address = address
        self._thread = _OwnThread()

    @property
    def name(self) -> str:
        """`syslog:address`."""
        return f"syslog:{self._address}"

    async def keep(self, line: str) -> None:
        """Send it, with facility `auth`, as `relight-anchor: {...}`.

        Raises:
            AnchorError: it could not be sent.
        """
        try:
            await self._thread.call(lambda: self._send(line))
        except OSError as error:
            raise AnchorError(f"{self._address}: {error.strerror or error}") from error

    def _send(self, line: str) -> None:
        url = urlsplit(self._address)
        tcp = url.scheme == "tcp"
        where = (url.hostname or "", url.port or SYSLOG_PORT) if url.scheme else self._address
        kind = socket.SOCK_STREAM if tcp else socket.SOCK_DGRAM
        facility = logging.handlers.SysLogHandler.LOG_AUTH
        handler = _Raising(where, facility=facility, socktype=kind if url.scheme else None)
        try:
            handler.ident = f"{ANCHOR}: "
            handler.append_nul = False
            # Over TCP a line ends a message (RFC 6587, section 3.4.2).
            text = f"{line}\n" if tcp else line
            handler.emit(logging.LogRecord(ANCHOR, logging.INFO, "", 0, "%s", (text,), None))
        finally:
            handler.close()


class _Raising(logging.handlers.SysLogHandler):
    """Says what went wrong instead of printing it."""

    def handleError(self, record: logging.LogRecord) -> None:  # noqa: N802 - the library's name
        """Raise again what `emit` has caught."""
        del record
        raise  # noqa: PLE0704 - called from an except clause


class GitPlace:
    """A git repository: a commit for each head, pushed where that is wanted."""

    def __init__(self, folder: Path, *, push: bool) -> None:
        """Name the repository's folder."""
        self._folder = folder
        self._push = push
        self._thread = _OwnThread()

    @property
    def name(self) -> str:
        """`git:/folder`."""
        return f"git:{self._folder}"

    async def keep(self, line: str) -> None:
        """Append it to a file there, commit that file, and push.

        Raises:
            AnchorError: git says no, or there is none.
        """
        try:
            await self._thread.call(lambda: append(self._folder / LINES, line))
        except OSError as error:
            raise AnchorError(f"{self._folder}: {error.strerror or error}") from error
        await self._git("add", "--", LINES)
        await self._git("commit", "--quiet", "--message", "relight: head of the ledger", "--only", "--", LINES)
        if self._push:
            await self._git("push", "--quiet")

    async def _git(self, *words: str) -> None:
        who = ("-c", "user.name=relight", "-c", "user.email=relight@localhost")
        try:
            process = await asyncio.create_subprocess_exec(
                *("git", "-C", str(self._folder), *who, *words),
                stdin=asyncio.subprocess.DEVNULL,
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.STDOUT,
                env={**os.environ, "GIT_TERMINAL_PROMPT": "0", "LC_ALL": "C"},
            )
        except OSError as error:
            raise AnchorError(f"git cannot be run: {error.strerror}") from error
        try:
            async with asyncio.timeout(WITHIN_S):
                said, _ = await process.communicate()
        except TimeoutError as error:
            raise AnchorError(f"git {words[0]}: no answer within {WITHIN_S:g} s") from error
        finally:
            if process.returncode is None:
                process.kill()
                await process.wait()
        if process.returncode:
            text = " ".join(said.decode(errors="replace").split())[-_MOST_SAID:]
            raise AnchorError(f"git {words[0]} in {self._folder}: {text or f'exit {process.returncode}'}")
