"""Runs one command: never through a shell, with bounded output, ended and reaped when it is late or not wanted.

Everything that runs a command takes a `Runner`; where it runs (here, or over SSH) is the runner's business alone.
"""

import asyncio
import contextlib
import os
import signal
from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import NamedTuple, Protocol

MAX_OUTPUT = 512 * 1024 * 1024
"""A job is 3 KB of JSON on 22.05 and 8 KB on 24.11: some 60,000 jobs. More than this is not an answer."""
MAX_ERROR_TEXT = 64 * 1024
REAP = 2.0
"""Seconds to wait for a killed command. One under sudo belongs to root and cannot be killed by us at all."""
BIG_PAGES = "glibc.malloc.hugetlb=1"
"""For GLIBC_TUNABLES. Slurm's commands build JSON of small pieces: 20,000 page faults for 1,000 jobs, 3,300 with big
pages, which saves a sixth of the time (seen on 22.05 and 26.05). A C library that does not know it ignores it."""
SYSTEM_FOLDERS = "/usr/local/bin:/usr/bin:/bin:/usr/local/sbin:/usr/sbin:/sbin"


class Done(NamedTuple):
    """A command that ended by itself."""

    code: int
    """Exit status, negative for a signal."""
    out: str
    err: str


class NotStartedError(Exception):
    """The command could not be started: it certainly did nothing."""


class NotFinishedError(Exception):
    """The command was late or said too much, and was killed: it may have done something."""


class Runner(Protocol):
    """Where commands run."""

    async def run(self, command: Sequence[str], timeout: timedelta, *, stdin: str = "") -> Done:  # noqa: ASYNC109
        """Run a command to its end and return what it printed, bytes that are no UTF-8 replaced.

        Args:
            command: the program and its arguments; none is ever seen by a shell.
            timeout: how long it may take.
            stdin: what it can read.

        Raises:
            NotStartedError: it certainly did nothing: no such program, no connection.
            NotFinishedError: it may have done something: late, too much output, connection lost while it ran.
        """


class LocalRunner:
    """Runs commands on this machine.

    Args:
        slurm_conf: path of slurm.conf; None for the site's own.
        bin_dir: folder that is searched first for the commands.
    """

    def __init__(self, *, slurm_conf: str | None = None, bin_dir: str | None = None) -> None:
        self._environment = command_environment(slurm_conf, bin_dir)

    async def run(self, command: Sequence[str], timeout: timedelta, *, stdin: str = "") -> Done:  # noqa: ASYNC109
        """See `Runner`."""
        return await run_command(command, self._environment, timeout, stdin=stdin)


def command_environment(slurm_conf: str | None, bin_dir: str | None) -> dict[str, str]:
    """The whole environment of a Slurm command.

    It is built anew: variables such as SQUEUE_STATES, SINFO_FORMAT or SLURM_CLUSTERS change what the commands
    print, and those of the service's own login must not.
    """
    kept = ("HOME", "LD_LIBRARY_PATH", "LOGNAME", "SLURM_CONF", "SLURM_CONF_SERVER", "SLURM_JWT", "USER")
    environment = {key: os.environ[key] for key in kept if key in os.environ}
    path = os.environ.get("PATH", "")
    environment |= {"LC_ALL": "C", "TZ": "UTC", "SLURM_TIME_FORMAT": "standard", "GLIBC_TUNABLES": BIG_PAGES}
    environment["PATH"] = ":".join(part for part in (bin_dir, path, SYSTEM_FOLDERS) if part)
    if slurm_conf:
        environment["SLURM_CONF"] = slurm_conf
    return environment


async def run_command(
    command: Sequence[str],
    environment: Mapping[str, str],
    timeout: timedelta,  # noqa: ASYNC109
    *,
    stdin: str = "",
) -> Done:
    """Run a command to its end and return what it printed, bytes that are no UTF-8 replaced.

    Raises:
        NotStartedError: when there is no such program, or no process could be made.
        NotFinishedError: when it ran longer than `timeout` or printed more than `MAX_OUTPUT` bytes.
    """
    try:
        process = await asyncio.create_subprocess_exec(
            *command,
            stdin=asyncio.subprocess.PIPE if stdin else asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            env=dict(environment),
            start_new_session=True,  # so that what a prefix such as sudo starts can be killed with it
        )
    except (OSError, ValueError) as error:  # ValueError: an argument holds a NUL
        raise NotStartedError(f"`{command[0]}` could not be started: {error}") from error
    try:
        async with asyncio.timeout(timeout.total_seconds()):
            return await _communicate(process, stdin.encode())
    except TimeoutError:
        raise NotFinishedError(f"`{command[0]}` gave no answer within {timeout.total_seconds():g} s") from None
    finally:
        await end_process(process)


async def _communicate(process: asyncio.subprocess.Process, stdin: bytes) -> Done:
    if process.stdout is None or process.stderr is None:  # pragma: no cover
        raise NotStartedError("no pipes")
    errors = asyncio.create_task(_head(process.stderr))
    fed = asyncio.create_task(_feed(process.stdin, stdin))
    try:
        out = await _whole(process.stdout)
        return Done(await process.wait(), out, await errors)
    finally:
        errors.cancel()
        fed.cancel()


async def _feed(stream: asyncio.StreamWriter | None, data: bytes) -> None:
    if stream is None:
        return
    with contextlib.suppress(ConnectionError):  # a command that does not want it all says so by its exit status
        stream.write(data)
        await stream.drain()
        stream.close()


async def _whole(stream: asyncio.StreamReader) -> str:
    """Everything up to the end."""
    whole = bytearray()
    while chunk := await stream.read(1 << 16):
        whole += chunk
        if len(whole) > MAX_OUTPUT:
            raise NotFinishedError(f"more than {MAX_OUTPUT} bytes of output")
    return whole.decode(errors="replace")


async def _head(stream: asyncio.StreamReader) -> str:
    """The beginning; the rest is read and dropped, so that the command is not held up."""
    head = bytearray()
    while chunk := await stream.read(1 << 16):
        head += chunk[: MAX_ERROR_TEXT - len(head)]
    return head.decode(errors="replace")


async def end_process(process: asyncio.subprocess.Process) -> None:
    """Kill the command's whole session if it still runs, and reap it."""
    if process.returncode is None:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(process.pid, signal.SIGKILL)
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(process.wait(), REAP)
    # Closes the pipes too, when a grandchild that we may not kill still holds them.
    process._transport.close()  # type: ignore[attr-defined]  # noqa: SLF001
