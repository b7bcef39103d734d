"""Reads many logs of a store with few questions.

A follower reads each of its logs twice a second; a store asked so often for each of 2,000 logs would do nothing else.
Logs that differ in the value of one label can be asked for together, and their lines told apart by it.
"""

import asyncio
from collections.abc import Sequence
from typing import NamedTuple, TypeAlias

from relight.clients.logs import LogUnreadableError
from relight.clients.logs_pages import PAGE_BYTES, Bounds, Log, Page, Place, Question, Row, advance, batches
from relight.clients.logs_whole import Asking

TOGETHER = 256
"""Logs in one question."""
_SECOND = 1_000_000_000
_EVER = 1 << 62


class Wanted(NamedTuple):
    """A log that has been read before, and up to where."""

    log: Log
    place: Place
    most: int = PAGE_BYTES
    """Bytes to take; for fewer than a page it is asked for alone."""
    alone: bool = False
    empty: bool = False
    """There was no line of it yet: asking for it takes nothing from the others, however far back it begins."""


class Got(NamedTuple):
    """What was new in it."""

    rows: list[Row]
    place: Place
    more: bool


_Waiting: TypeAlias = "tuple[Wanted, asyncio.Future[Got]]"


class Together:
    """Asks for all logs that are wanted in one turn of the event loop.

    An answer that is cut at the bound of a page may hold nothing new: each log's last seconds are in it again. So a
    cut halves the number of logs that are asked for together, and each whole answer lets it grow again. One log's own
    last seconds never fill a page (`Bounds`).

    Args:
        asking: the store.
        by: the only label whose value differs from log to log; empty where there are more: then each is asked for
            alone.
        bounds: how far back a reader looks again.
    """

    def __init__(self, asking: Asking, by: str, bounds: Bounds) -> None:
        self._asking = asking
        self._by = by
        self._bounds = bounds
        self._most = TOGETHER
        self._waiting: list[_Waiting] = []
        self._questions: set[asyncio.Task[None]] = set()

    async def ask(self, wanted: Wanted) -> Got:
        """What is new in a log.

        Raises:
            LogUnreadableError: no answer, or one without the lines that were taken before.
        """
        loop = asyncio.get_running_loop()
        if not self._waiting:
            loop.call_soon(self._begin)
        answer: asyncio.Future[Got] = loop.create_future()
        self._waiting.append((wanted, answer))
        return await answer

    async def close(self) -> None:
        """Give up all questions; who waits for an answer is told so."""
        _settle(self._waiting, [_closed()] * len(self._waiting))
        for question in self._questions:
            question.cancel()
        await asyncio.gather(*self._questions, return_exceptions=True)

    def _begin(self) -> None:
        waiting, self._waiting = self._waiting, []
        groups = [[each] for each in waiting if self._is_alone(each[0])]
        for empty, apart in ((True, _EVER), (False, max(self._bounds.late, _SECOND))):
            some = [each for each in waiting if each[0].empty is empty and not self._is_alone(each[0])]
            wanted = [(each.place, each.log.labels[self._by]) for each, _ in some]
            groups += [[some[number] for number in numbers] for numbers in batches(wanted, self._most, apart)]
        for group in groups:
            question = asyncio.create_task(self._question(group))
            self._questions.add(question)
            question.add_done_callback(self._questions.discard)

    def _is_alone(self, wanted: Wanted) -> bool:
        return wanted.alone or not self._by or bool(wanted.place.skip) or wanted.most < PAGE_BYTES

    async def _question(self, group: list[_Waiting]) -> None:
        found: Sequence[Got | Exception]
        try:
            found = await self._answers([wanted for wanted, _ in group])
        except asyncio.CancelledError:
            _settle(group, [_closed()] * len(group))
            raise
        except Exception as error:  # noqa: BLE001  it is raised where it is waited for
            found = [error] * len(group)
        _settle(group, found)

    async def _answers(self, group: list[Wanted]) -> Sequence[Got | Exception]:
        if len(group) == 1:
            return [await self._alone(group[0])]
        values = tuple(wanted.log.labels[self._by] for wanted in group)
        low = min(wanted.place.low for wanted in group)
        asked = Question(group[0].log.labels, low, by=self._by, values=values, limit=self._asking.limit)
        page = await self._asking.page(asked)
        if page.full:
            self._most = len(group) // 2
        elif len(group) >= self._most:
            self._most = min(TOGETHER, self._most + max(1, self._most // 8))
        rows: dict[str, list[Row]] = {}
        for row in page.rows:
            rows.setdefault(row.of, []).append(row)
        end = page.rows[-1].at if page.full else None
        return [self._part(wanted, rows.get(of, []), end) for wanted, of in zip(group, values, strict=True)]

    async def _alone(self, wanted: Wanted) -> Got | Exception:
        log, place, most, *_ = wanted
        page = await self._asking.page(
            Question(log.labels, place.low, skip=place.skip, limit=self._asking.limit, most=most)
        )
        if not page.rows and place.taken:
            return _vanished(log)
        rows, place = advance(place, page, self._bounds, can_skip=self._asking.can_skip)
        return Got(rows, place, page.full)

    def _part(self, wanted: Wanted, rows: list[Row], end: int | None) -> Got | Exception:
        """What one log has of an answer for several."""
        log, place, *_ = wanted
        mine = tuple(row for row in rows if row.at >= place.low)
        if not mine and place.taken and end is None:
            return _vanished(log)
        page = Page(mine, full=False)
        new, place = advance(place, page, self._bounds, can_skip=self._asking.can_skip, end=end)
        return Got(new, place, more=end is not None)


def _settle(group: list[_Waiting], found: Sequence[Got | Exception]) -> None:
    for (_, answer), each in zip(group, found, strict=True):
        if answer.done():  # who asked no longer waits
            continue
        if isinstance(each, Exception):
            answer.set_exception(each)
        else:
            answer.set_result(each)


def _closed() -> LogUnreadableError:
    return LogUnreadableError("the log store is no longer read: it has been closed")


def _vanished(log: Log) -> LogUnreadableError:
    return LogUnreadableError(f"the store no longer has the lines of {log} that were read last: another tenant now?")
