"""What a relay does with reports: those of about a second go to the controller together, faults at once.

A relay keeps nothing: an agent has its answer when the controller has given it, and keeps its faults until then. It
holds no key, so it can speak for no node; one that lies can only withhold.
"""

import asyncio
import json
from collections.abc import Awaitable, Callable, Sequence
from typing import NamedTuple

from relight.domain.reports import MAX_RELAYED

BATCHED_WITHIN = 1.0
"""Seconds that a beat may wait for others."""
ANSWER_WITHIN = 3.5
"""Seconds for the controller's answer: an agent waits for 5."""
BATCH_BYTES = 700 << 10
"""Bytes that are forwarded at once: with one more report and all tokens less than the controller takes (1 MiB)."""
MOST_BYTES = 64 << 20
"""Bytes of reports that wait, or whose answer is waited for. More are refused."""
AT_ONCE = 4
"""Batches under way; the others wait, within `ANSWER_WITHIN`."""


class Answer(NamedTuple):
    """What an agent is answered."""

    status: int
    """HTTP's."""
    body: bytes
    """A `Receipt`, or one line of text."""
    retry_after: int = 0
    """Seconds."""


class Waiting(NamedTuple):
    """A report that has not been answered yet."""

    token: str
    body: bytes
    """As the agent has sent it: one JSON object, in one line."""
    answer: asyncio.Future[Answer]

    @property
    def line(self) -> bytes:
        """A `RelayedReport`."""
        return b'{"token":"%s","report":%s}' % (self.token.encode(), self.body)


Forward = Callable[[bytes], Awaitable[Sequence[Answer]]]
"""Takes lines to the controller; returns an answer for each.

Raises:
    UnreachableError: there is none.
"""


class UnreachableError(Exception):
    """The controller has not answered, or not as it should; the text says how."""


class Batches:
    """Collects reports, and forwards them.

    Args:
        forward: to the controller.
    """

    def __init__(self, forward: Forward) -> None:
        self._forward = forward
        self._gate = asyncio.Semaphore(AT_ONCE)
        self._waiting: list[Waiting] = []
        self._beats: dict[tuple[str, str], Waiting] = {}
        """Those of them that are beats and no more, by node and token: only the newest counts."""
        self._size = 0
        """Bytes of those that wait to be forwarded."""
        self._held = 0
        """Bytes of all that are not answered."""
        self._timer: asyncio.TimerHandle | None = None
        self._tasks: set[asyncio.Task[None]] = set()

    async def report(self, token: str, body: bytes) -> Answer:
        """The controller's answer to an agent's report."""
        # A line is a report: between tokens, JSON may have line ends.
        text = body.replace(b"\n", b" ").replace(b"\r", b" ")
        try:
            report = json.loads(text.decode())
        except (ValueError, RecursionError):
            return Answer(400, b"not JSON\n")
        if not isinstance(report, dict) or not isinstance(report.get("node"), str):
            return Answer(422, b"a report names its node\n")
        if self._held + len(text) > MOST_BYTES:
            return Answer(503, b"the relay has too much to forward\n", retry_after=5)
        waiting = Waiting(token, text, asyncio.get_running_loop().create_future())
        self._add(waiting, report["node"], at_once=bool(report.get("faults") or report.get("answers")))
        try:
            return await waiting.answer
        finally:
            self._held -= len(text)

    def _add(self, waiting: Waiting, node: str, *, at_once: bool) -> None:
        self._held += len(waiting.body)
        if not at_once:
            if old := self._beats.pop((node, waiting.token), None):
                self._waiting.remove(old)
                self._size -= len(old.body)
                _answer(old, Answer(429, b"a newer report of this node has come\n", retry_after=1))
            self._beats[node, waiting.token] = waiting
        self._waiting.append(waiting)
        self._size += len(waiting.body)
        if at_once or len(self._waiting) >= MAX_RELAYED or self._size >= BATCH_BYTES:
            self._flush()
        elif self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(BATCHED_WITHIN, self._flush)

    def _flush(self) -> None:
        """Send all that waits on its way."""
        if self._timer:
            self._timer.cancel()
        batch, self._waiting, self._beats, self._size, self._timer = self._waiting, [], {}, 0, None
        task = asyncio.get_running_loop().create_task(self._send(batch))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _send(self, batch: list[Waiting]) -> None:
        try:
            async with asyncio.timeout(ANSWER_WITHIN), self._gate:
                answers = await self._forward(b"\n".join(waiting.line for waiting in batch))
            if len(answers) != len(batch):
                raise UnreachableError(f"{len(answers)} answers to {len(batch)} reports")  # noqa: TRY301 - one place
        except (UnreachableError, TimeoutError) as error:
            problem = str(error) or "no answer in time"
            answers = [Answer(503, f"the relay does not reach the controller: {problem}\n".encode(), 5)] * len(batch)
        for waiting, answer in zip(batch, answers, strict=True):
            _answer(waiting, answer)

    async def close(self) -> None:
        """Forward what waits, and wait for the answers."""
        if self._waiting:
            self._flush()
        await asyncio.gather(*self._tasks)


def _answer(waiting: Waiting, answer: Answer) -> None:
    # The agent may have gone away meanwhile.
    if not waiting.answer.done():
        waiting.answer.set_result(answer)
