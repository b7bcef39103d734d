"""The process that reads one file system (`log_reader.py`), as its owner sees it.

A call into a file system that hangs (a hard NFS mount whose server is gone) cannot be ended from outside. A process
can be killed; and where the kernel does not even let it go, the others are as they were.
"""

import asyncio
import contextlib
import json
import os
import sys
from collections.abc import Iterable, Sequence
from typing import Any, Protocol

from relight.clients import log_reader as program
from relight.clients.logs import LogUnreadableError

IDLE = 600.0
"""Seconds after which a process that nobody asks is ended."""
MOST_PATIENCE = 12
"""What did not answer is left alone for the time-out, twice that, ... up to so many times that."""


class Asking(Protocol):
    """A wish: a named tuple that goes to the process as JSON."""

    @property
    def path(self) -> str:
        """The file or folder that is asked about."""


class MountReader:
    """The process that reads one file system: started when it is needed, killed when it does not answer.

    Args:
        place: what it reads, for a person.
        mount: a mount point of it.
        private: folders that are never read from.
        timeout: seconds for an answer.
        python: which program, as arguments of Python.
    """

    def __init__(
        self,
        place: str,
        mount: str,
        private: Iterable[str],
        timeout: float,
        python: Sequence[str] = ("-I", "-S", program.__file__),
    ) -> None:
        self._place = place
        self._here = os.memfd_create("relight-reads")
        arguments = (mount, json.dumps(list(private)), str(self._here))
        self._command = (sys.executable, *python, *arguments)
        self._timeout = timeout
        self._process: asyncio.subprocess.Process | None = None
        self._killed = False
        self._turn = asyncio.Lock()
        self._failures = 0
        self._again = float("-inf")
        """When it may be started again."""
        self._hung: dict[str, tuple[int, float]] = {}
        """Paths at which it did not answer: how often, and until when each is left out."""
        self._asked = _now()

    @property
    def idle(self) -> bool:
        """Whether nobody has asked for long, and no process of it hangs."""
        hangs = self._killed and self._process is not None and self._process.returncode is None
        return not hangs and not self._turn.locked() and _now() - self._asked > IDLE

    async def ask(self, wishes: Sequence[Asking]) -> list[list[Any]]:
        """The answers to the first of the wishes, or to all.

        Raises:
            LogUnreadableError: there is none in time, or a process before this one still hangs.
        """
        async with self._turn:
            self._asked = _now()
            process = await self._running()
            left_out = {wish.path for wish in wishes if self._is_left_out(wish.path)}
            sent = [wish for wish in wishes if wish.path not in left_out]
            try:
                os.pwrite(self._here, _NOWHERE, 0)
                async with asyncio.timeout(self._timeout):
                    found = iter(await _exchange(process, sent) if sent else [])
            except TimeoutError:
                self._note(sent)
                self._kill()
                raise LogUnreadableError(f"{self._place} did not answer within {self._timeout:g} s") from None
            except (OSError, EOFError, ValueError) as error:
                self._kill()
                raise LogUnreadableError(f"the process that reads {self._place} has ended: {error}") from error
            except BaseException:
                self._kill()  # given up: its answer must not be taken for the next one
                raise
            self._failures = 0
            answers = []
            for wish in wishes:
                answer = _LEFT_OUT if wish.path in left_out else next(found, None)
                if answer is None:
                    break
                if answer is not _LEFT_OUT:
                    self._hung.pop(wish.path, None)
                answers.append(answer)
            return answers

    async def close(self) -> None:
        """End the process; one that the kernel does not let go is left to it."""
        async with self._turn:
            self.end()
            if self._process:
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(self._process.wait(), 1)

    def end(self) -> None:
        """End the process without waiting for it; it must not be asked any more."""
        self._kill()
        os.close(self._here)

    async def _running(self) -> asyncio.subprocess.Process:
        process = self._process
        if process and process.returncode is None:
            if not self._killed:
                return process
            raise LogUnreadableError(f"{self._place} still does not answer")
        if _now() < self._again:
            raise LogUnreadableError(f"{self._place} did not answer, and is left alone for a while")
        try:
            self._process = await asyncio.create_subprocess_exec(
                *self._command,
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                pass_fds=(self._here,),
                cwd="/",
                limit=program.ANSWER,
                start_new_session=True,
            )
        except OSError as error:
            raise LogUnreadableError(f"no process to read {self._place}: {error}") from error
        self._killed = False
        return self._process

    def _kill(self) -> None:
        if self._process and self._process.returncode is None:
            self._killed = True
            with contextlib.suppress(ProcessLookupError):
                self._process.kill()

    def _note(self, sent: Sequence[Asking]) -> None:
        """Leave what did not answer alone for a while: the file system, and for longer the file at which it hung.

        It may hang at that file alone, where something is mounted only once one looks.
        """
        self._failures += 1
        self._again = _now() + self._timeout * min(2 ** (self._failures - 1), MOST_PATIENCE)
        (number,) = program.HEADER.unpack(os.pread(self._here, program.HEADER.size, 0))
        if number < len(sent):
            path = sent[number].path
            count = self._hung.get(path, (0, 0.0))[0] + 1
            self._hung[path] = count, _now() + MOST_PATIENCE * self._timeout * min(2 ** (count - 1), 60)

    def _is_left_out(self, path: str) -> bool:
        return path in self._hung and _now() < self._hung[path][1]


_NOWHERE = program.HEADER.pack(2**32 - 1)
"""What it has at hand before it has begun with the first wish."""
_LEFT_OUT = ["unreadable", "the file system did not answer there"]


async def _exchange(process: asyncio.subprocess.Process, wishes: Sequence[Asking]) -> list[list[Any]]:
    if process.stdin is None or process.stdout is None:  # pragma: no cover
        raise EOFError("no pipes")
    request = json.dumps(wishes).encode()
    process.stdin.write(program.HEADER.pack(len(request)) + request)
    await process.stdin.drain()
    (length,) = program.HEADER.unpack(await process.stdout.readexactly(program.HEADER.size))
    answers: list[list[Any]] = json.loads(await process.stdout.readexactly(length))
    return answers


def _now() -> float:
    return asyncio.get_running_loop().time()
