"""The process that holds pyslurm: started when it is needed, asked one thing at a time, ended when it is late.

What it runs and how the two talk stands in `pyslurm_server.py`, a program of its own of which only the path and the
header are known here.
"""

import asyncio
import contextlib
import json
import os
import signal
import struct
from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import NamedTuple

from relight.clients.slurm_process import MAX_OUTPUT, NotFinishedError, NotStartedError, end_process

HEADER = struct.Struct("!II")
FAILED = '{"error":'
"""How the answer to a request that failed begins."""
MAX_RESIDENT_MIB = 1024
"""pyslurm loses the memory of an array's other records with each read of one of its tasks (its source, `Job.load`)."""
LAST_WORDS = 4096
LAST_WORDS_WITHIN = 0.5
"""Seconds to wait for what a killed process printed."""


class AnsweredError(Exception):
    """Slurm or pyslurm answered with an error.

    Args:
        errno: Slurm's error number; None where it was an error of Python's own.
        type: name of the Python class.
        text: what it says.
        sent: whether it is the answer to the request. False: slurmctld did not even answer the greeting.
    """

    def __init__(self, errno: int | None, type: str, text: str, *, sent: bool) -> None:  # noqa: A002 - as the wire has it
        super().__init__(text)
        self.errno = errno
        self.type = type
        self.sent = sent


class PySlurmProcess:
    """At most one process, started again when it has died. Each request is sent once: nothing is tried again.

    Args:
        command: what starts it.
        environment: its whole environment.
        timeout: for its start, and for each answer.
    """

    def __init__(self, command: Sequence[str], environment: Mapping[str, str], timeout: timedelta) -> None:
        self._command = command
        self._environment = environment
        self._timeout = timeout
        self._process: asyncio.subprocess.Process | None = None
        self._listening: asyncio.Task[None] | None = None
        self._said = bytearray()
        self._turn = asyncio.Lock()
        self._gave_up = -1.0
        """When, by the loop's clock, a request was last left without an answer."""

    async def ask(self, operation: str, *arguments: object) -> str:
        """Send a request and return the answer, the text of a JSON document.

        Raises:
            AnsweredError: it was answered with an error.
            NotStartedError: nothing was sent: the process did not come up, or left unanswered what was asked before.
            NotFinishedError: it was sent, and no answer came: late, ended, or not to be understood.
        """
        request = json.dumps([operation, *arguments]).encode()
        asked = asyncio.get_running_loop().time()
        async with self._turn:
            # Who waits behind a request without an answer would wait for as long again, one after the other.
            if self._gave_up > asked:
                raise NotStartedError(
                    f"`{operation}` was not sent: pyslurm's process left an earlier request unanswered"
                )
            process = await self._running()
            try:
                async with asyncio.timeout(self._timeout.total_seconds()):
                    answer = await _exchange(process, request)
            except (OSError, EOFError, TimeoutError, ValueError) as error:
                why = await self._end(error)
                raise NotFinishedError(f"pyslurm's process gave no answer to `{operation}`: {why}") from error
            except BaseException:
                await self._end()  # given up: its late answer must not be taken for the next request's
                raise
            if answer.resident_mib > MAX_RESIDENT_MIB:
                await self._end()
        if answer.text.startswith(FAILED):
            raise AnsweredError(**json.loads(answer.text)["error"], sent=True)
        return answer.text

    async def close(self) -> None:
        """End the process. A later request starts another."""
        async with self._turn:
            await self._end()

    async def _running(self) -> asyncio.subprocess.Process:
        if self._process is not None and self._process.returncode is None:
            return self._process
        await self._end()
        return await self._start()

    async def _start(self) -> asyncio.subprocess.Process:
        try:
            process = await asyncio.create_subprocess_exec(
                *self._command,
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.PIPE,
                env=dict(self._environment),
                start_new_session=True,
            )
        except (OSError, ValueError) as error:
            raise NotStartedError(f"`{self._command[0]}` could not be started: {error}") from error
        self._process = process
        self._listening = asyncio.create_task(self._listen(process.stderr))
        try:
            async with asyncio.timeout(self._timeout.total_seconds()):
                greeting = json.loads((await _receive(process)).text)
                failed = greeting.get("error")
        except (OSError, EOFError, TimeoutError, ValueError, AttributeError) as error:
            why = await self._end(error)
            raise NotStartedError(f"pyslurm's process did not come up: {why}") from error
        except BaseException:
            await self._end()
            raise
        if failed:
            await self._end()  # so that the next call is greeted too, and finds the same fault by the same words
            raise AnsweredError(**failed, sent=False)
        return process

    async def _listen(self, stream: asyncio.StreamReader | None) -> None:
        """Read what the process prints, so that it is never held up, and keep the last of it."""
        self._said.clear()
        while stream and (chunk := await stream.read(LAST_WORDS)):
            self._said += chunk
            del self._said[:-LAST_WORDS]

    async def _end(self, error: BaseException | None = None) -> str:
        """Kill the process, and return why: the error, and the last of what the process printed."""
        if isinstance(error, TimeoutError):
            self._gave_up = asyncio.get_running_loop().time()
        process, listening = self._process, self._listening
        self._process = self._listening = None
        if process and listening:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(process.pid, signal.SIGKILL)
            await asyncio.wait((listening,), timeout=LAST_WORDS_WITHIN)
            listening.cancel()
            await end_process(process)
        late = f"nothing within {self._timeout.total_seconds():g} s"
        why = late if isinstance(error, TimeoutError) else str(error)
        return "; ".join(part for part in (why, self._said.decode(errors="replace").strip()) if part)


class _Answer(NamedTuple):
    text: str
    resident_mib: int


async def _exchange(process: asyncio.subprocess.Process, request: bytes) -> _Answer:
    if process.stdin is None:  # pragma: no cover
        raise EOFError("no pipe")
    process.stdin.write(HEADER.pack(len(request), 0) + request)
    # Not drained first: where the process writes before it has read all, each would wait for the other.
    answer, _ = await asyncio.gather(_receive(process), process.stdin.drain())
    return answer


async def _receive(process: asyncio.subprocess.Process) -> _Answer:
    if process.stdout is None:  # pragma: no cover
        raise EOFError("no pipe")
    length, resident_mib = HEADER.unpack(await process.stdout.readexactly(HEADER.size))
    if length > MAX_OUTPUT:
        raise ValueError(f"an answer of {length} bytes")
    return _Answer((await process.stdout.readexactly(length)).decode(), resident_mib)
