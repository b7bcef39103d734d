"""Commands over SSH: one connection that is kept, made when it is first needed and again after it was lost.

Nothing here tries twice: a failed attempt is the answer of all who waited for it, and each of them asks again in its
own time.
"""

import asyncio
import shlex
import signal
from collections.abc import Mapping, Sequence
from contextlib import suppress
from datetime import timedelta
from pathlib import Path

import asyncssh

from relight.clients.slurm_process import (
    MAX_ERROR_TEXT,
    MAX_OUTPUT,
    SYSTEM_FOLDERS,
    Done,
    NotFinishedError,
    NotStartedError,
)
from relight.clients.ssh_hosts import Address, SshError
from relight.clients.ssh_keys import Keys
from relight.clients.ssh_login import Login, log_in

MAX_COMMANDS = 4
"""At once. sshd's MaxSessions is 10 a connection; it counts a session that has just ended beside the one that follows
it (seen on 10.0), and SFTP takes up to two (`ssh_files.py`)."""
MAX_LINE = 100_000
"""Bytes of a command line: Linux takes 128 KiB as one argument, which is what the other side's shell gets."""
NOT_FOUND = 127
"""Exit status of a shell and of env(1) for a program that is not there."""
SIGNALLED = 128
"""What a shell adds to the number of the signal that ended its command. None of ours ends so by itself."""


class SshConnection:
    """A connection to one host, possibly through a jump host.

    Args:
        host: name or address.
        port: of its sshd.
        user: to log in as; empty: our own name.
        key: file of the private key, without a passphrase; empty: the keys of the agent.
        agent: the agent's socket; empty: SSH_AUTH_SOCK.
        known_hosts: OpenSSH's file of host keys. A host that is not in it is refused.
        trust_on_first_use: add the key of a host that is not in it instead. One that has changed is always refused.
        jump: `user@host:port` to go through; the same keys and known hosts are for it.
        connect_timeout: for the whole of an attempt, jump host and login included.
        keepalive: after this much silence the other side is asked whether it lives; after three without an answer the
            connection counts as lost.
    """

    def __init__(
        self,
        host: str,
        *,
        port: int = 22,
        user: str = "",
        key: str | Path = "",
        agent: str = "",
        known_hosts: str | Path = "~/.ssh/known_hosts",
        trust_on_first_use: bool = False,
        jump: str = "",
        connect_timeout: timedelta = timedelta(seconds=10),
        keepalive: timedelta = timedelta(seconds=15),
    ) -> None:
        self.address = Address(user, host, port)
        self._hops = (*((Address.parse(jump),) if jump else ()), self.address)
        self._key = Path(key).expanduser() if key else None
        self._agent = agent
        self._login = Login(Path(known_hosts).expanduser(), trust_on_first_use, keepalive)
        self._timeout = connect_timeout
        self._live: asyncssh.SSHClientConnection | None = None
        self._attempt: asyncio.Task[asyncssh.SSHClientConnection] | None = None
        self.commands = asyncio.Semaphore(MAX_COMMANDS)
        """One for each command that runs."""

    async def connected(self) -> asyncssh.SSHClientConnection:
        """The connection, made now when there is none; all who wait share one attempt.

        Raises:
            SshError: why there is none.
        """
        if self._live is not None and not self._live.is_closed():
            return self._live
        if self._attempt is None:
            self._attempt = asyncio.create_task(self._connect())
            self._attempt.add_done_callback(self._attempted)
        # A caller that gives up must not end what others wait for.
        return await asyncio.shield(self._attempt)

    async def close(self) -> None:
        """End it; whatever runs over it is lost. It is made again when needed."""
        if self._attempt is not None:
            self._attempt.cancel()
        live, self._live = self._live, None
        if live is not None:
            live.close()
            await live.wait_closed()

    def _attempted(self, attempt: "asyncio.Task[asyncssh.SSHClientConnection]") -> None:
        self._attempt = None
        if not attempt.cancelled() and attempt.exception() is None:
            self._live = attempt.result()

    async def _connect(self) -> asyncssh.SSHClientConnection:
        connection, at = None, self._hops[0]
        try:
            async with asyncio.timeout(self._timeout.total_seconds()), Keys(self._key, self._agent) as keys:
                for at in self._hops:
                    connection = await log_in(at, connection, keys, self._login)
        except BaseException as error:
            if connection is not None:
                connection.close()
            if isinstance(error, TimeoutError):
                seconds = f"{self._timeout.total_seconds():g} s"
                raise SshError(f"{at}: no login within {seconds}: is it up, and does a firewall let us in?") from None
            raise
        if connection is None:  # pragma: no cover
            raise SshError("no host")
        return connection


def slurm_environment(slurm_conf: str | None = None, bin_dir: str | None = None) -> dict[str, str]:
    """What Slurm's commands need over there, whatever the account's own settings are; see `command_environment`."""
    environment = {"LC_ALL": "C", "TZ": "UTC", "SLURM_TIME_FORMAT": "standard"}
    if slurm_conf:
        environment["SLURM_CONF"] = slurm_conf
    if bin_dir:
        environment["PATH"] = f"{bin_dir}:{SYSTEM_FOLDERS}"
    return environment


class SshRunner:
    """Implements `Runner` over a connection.

    One line is sent for each command. It is for the account's own shell, which must be a POSIX one, or for its forced
    command.

    Args:
        connection: to where the commands run.
        environment: variables that are set there by env(1) in front of each command; sshd takes none from a client by
            itself. None: as Slurm's commands need them. Empty for a forced command that is no shell.
    """

    def __init__(self, connection: SshConnection, environment: Mapping[str, str] | None = None) -> None:
        self._connection = connection
        given = slurm_environment() if environment is None else environment
        self._prefix = ("env", *(f"{name}={value}" for name, value in given.items())) if given else ()

    async def run(self, command: Sequence[str], timeout: timedelta, *, stdin: str = "") -> Done:  # noqa: ASYNC109
        """See `Runner`."""
        line = shlex.join((*self._prefix, *command))
        _check(line, command[0])
        session, seconds = _Session(command[0]), timeout.total_seconds()
        try:
            async with asyncio.timeout(seconds), self._connection.commands:
                connection = await self._connection.connected()
                opening = asyncio.create_task(connection.create_session(lambda: session, line, encoding=None))
                opening.add_done_callback(_look_at)
                # When time is up between opening and starting, the opening goes on, to be closed by the session.
                await asyncio.shield(opening)
                session.feed(stdin.encode(errors="surrogateescape"))
                done = await session.ended
        except TimeoutError:
            raise session.error(f"gave no answer within {seconds:g} s") from None
        except SshError as error:
            raise NotStartedError(str(error)) from error
        except (OSError, asyncssh.Error) as error:
            more = "; does its sshd allow ten sessions (MaxSessions)?" * isinstance(error, asyncssh.ChannelOpenError)
            raise session.error(f"has no answer from {self._connection.address}: {error}{more}") from error
        finally:
            session.end()
        if done.code == NOT_FOUND:
            raise NotStartedError(" ".join(done.err.split())[:500] or f"`{command[0]}` was not found")
        if SIGNALLED < done.code < SIGNALLED + signal.NSIG:
            return done._replace(code=SIGNALLED - done.code)
        return done


def _check(line: str, program: str) -> None:
    """Before anything is sent: sshd ends the whole connection for a NUL."""
    try:
        size = len(line.encode())
    except UnicodeEncodeError as error:
        raise NotStartedError(f"`{program}` could not be started: {error}") from error
    if "\0" in line or size > MAX_LINE:
        raise NotStartedError(f"`{program}` could not be started: its arguments hold a NUL or are too long")


def _look_at(opening: "asyncio.Task[object]") -> None:
    """An error that nobody waits for any more is no warning in the log."""
    if not opening.cancelled():
        opening.exception()


class _Session(asyncssh.SSHClientSession[bytes]):
    """One command: gathers what it prints, bounded, and how it ends."""

    def __init__(self, program: str) -> None:
        self._program = program
        self._channel: asyncssh.SSHClientChannel[bytes] | None = None
        self._given_up = self._closed = False
        self._out: list[bytes] = []
        self._size, self._err = 0, bytearray()
        self._code: int | None = None
        self.ended: asyncio.Future[Done] = asyncio.get_running_loop().create_future()

    def connection_made(self, chan: asyncssh.SSHClientChannel[bytes]) -> None:
        """The channel is open, and the command is about to be sent."""
        if self._given_up:
            chan.abort()
            raise asyncssh.ChannelOpenError(asyncssh.OPEN_CONNECT_FAILED, "given up")
        self._channel = chan

    def data_received(self, data: bytes, datatype: asyncssh.DataType) -> None:
        """A piece of output."""
        if datatype is not None:
            self._err += data[: MAX_ERROR_TEXT - len(self._err)]
            return
        self._size += len(data)
        if self._size > MAX_OUTPUT:
            self._lost(f"printed more than {MAX_OUTPUT} bytes")
            self.end()
        else:
            self._out.append(data)

    def exit_status_received(self, status: int) -> None:
        """It ended by itself."""
        self._code = status

    def exit_signal_received(self, signal: str, core_dumped: bool, msg: str, lang: str) -> None:  # noqa: ARG002
        """A signal ended it."""
        self._code = -_number(signal)

    def connection_lost(self, exc: Exception | None) -> None:
        """The channel is closed."""
        self._closed = True
        if self._code is None:
            self._lost(f"was cut off: {exc or 'the other side closed the channel'}")
        elif not self.ended.done():
            out = b"".join(self._out).decode(errors="replace")
            self.ended.set_result(Done(self._code, out, self._err.decode(errors="replace")))

    def feed(self, data: bytes) -> None:
        """Give it all of its input; one that does not want it says so by its exit status."""
        if self._channel:
            with suppress(OSError):
                if data:
                    self._channel.write(data)
                self._channel.write_eof()

    def error(self, text: str) -> Exception:
        """What its failure means: before its channel is open, nothing was sent."""
        kind = NotStartedError if self._channel is None else NotFinishedError
        return kind(f"`{self._program}` {text}")

    def end(self) -> None:
        """Leave nothing behind; does nothing after the end.

        sshd passes the signal on to the whole process group, but not for a forced command (the gate has an alarm), nor
        for root (seen on 9.2).
        """
        self._given_up = True
        if self._channel and not self._closed:
            with suppress(OSError):
                self._channel.kill()
            self._channel.abort()
        if self.ended.done() and not self.ended.cancelled():
            self.ended.exception()

    def _lost(self, text: str) -> None:
        if not self.ended.done():
            self.ended.set_exception(NotFinishedError(f"`{self._program}` {text}"))


def _number(name: str) -> int:
    """A signal's number here; 0x7F for a name that this system does not have."""
    return getattr(signal, f"SIG{name.partition('@')[0]}", 0x7F)
