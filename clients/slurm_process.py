"""Runs one command: never through a shell, with bounded output, ended and reaped when it is late or not wanted."""

import asyncio
import contextlib
import os
import signal
from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import NamedTuple

MAX_OUTPUT = 512 * 1024 * 1024
"""A job is 3 KB of JSON on 22.05 and 8 KB on 24.11: some 60,000 jobs. More than this is not an answer."""
MAX_ERROR_TEXT = 64 * 1024
REAP = 2.0
"""Seconds to wait for a killed command. One under sudo belongs to root and cannot be killed by us at all."""
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


def command_environment(slurm_conf: str | None, bin_dir: str | None) -> dict[str, str]:
    """The whole environment of a Slurm command.

    It is built anew: variables such as SQUEUE_STATES, SINFO_FORMAT or SLURM_CLUSTERS change what the commands
    print, and those of the service's own login must not.
    """
    kept = ("HOME", "LD_LIBRARY_PATH", "LOGNAME", "SLURM_CONF", "SLURM_CONF_SERVER", "SLURM_JWT", "USER")
    environment = {key: os.environ[key] for key in kept if key in os.environ}
    path = os.environ.get("PATH", "")
    environment |= {"LC_ALL": "C", "TZ": "UTC", "SLURM_TIME_FORMAT": "standard"}
    environment["PATH"] = ":".join(part for part in (bin_dir, path, SYSTEM_FOLDERS) if part)
    if slurm_conf:
        environment["SLURM_CONF"] = slurm_conf
    return environment


async def run_command(command: Sequence[str], environment: Mapping[str, str], timeout: timedelta) -> Done:  # noqa: ASYNC109
    """Run a command to its end and return what it printed, bytes that are no UTF-8 replaced.

    Raises:
        NotStartedError: when there is no such program, or no process could be made.
        NotFinishedError: when it ran longer than `timeout` or printed more than `MAX_OUTPUT` bytes.
    """
    try:
        process = await asyncio.create_subprocess_exec(
            *command,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            env=dict(environment),
            start_new_session=True,  # so that what a prefix such as sudo starts can be killed with it
        )
    except (OSError, ValueError) as error:  # ValueError: an argument holds a NUL
        raise NotStartedError(f"`{command[0]}` could not be started: {error}") from error
    try:
        async with asyncio.timeout(timeout.total_seconds()):
            return await _communicate(process)
    except TimeoutError:
        raise NotFinishedError(f"`{command[0]}` gave no answer within {timeout.total_seconds():g} s") from None
    finally:
        await _end(process)


async def _communicate(process: asyncio.subprocess.Process) -> Done:
    if process.stdout is None or process.stderr is None:  # pragma: no cover
        raise NotStartedError("no pipes")
    errors = asyncio.create_task(_head(process.stderr))
    try:
        out = await _whole(process.stdout)
        return Done(await process.wait(), out, await errors)
    finally:
        errors.cancel()


async def _whole(stream: asyncio.StreamReader) -> str:
    """Everything up to the end."""
    parts: list[bytes] = []
    size = 0
    while chunk := await stream.read(1 << 16):
        size += len(chunk)
        if size > MAX_OUTPUT:
            raise NotFinishedError(f"more than {MAX_OUTPUT} bytes of output")
        parts.append(chunk)
    return b"".join(parts).decode(errors="replace")


async def _head(stream: asyncio.StreamReader) -> str:
    """The beginning; the rest is read and dropped, so that the command is not held up."""
    head = bytearray()
    while chunk := await stream.read(1 << 16):
        head += chunk[: MAX_ERROR_TEXT - len(head)]
    return head.decode(errors="replace")


async def _end(process: asyncio.subprocess.Process) -> None:
    """Kill the command's whole session if it still runs, and reap it."""
    if process.returncode is None:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(process.pid, signal.SIGKILL)
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(process.wait(), REAP)
    # Closes the pipes too, when a grandchild that we may not kill still holds them.
    process._transport.close()  # type: ignore[attr-defined]  # noqa: SLF001
