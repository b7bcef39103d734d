"""What is new in the ledger, for all who look at once: one poll, however many pages are open."""

import asyncio
from collections.abc import AsyncIterator
from datetime import timedelta

from relight.clients.ledger import LedgerError
from relight.clients.ledger_pages import LedgerPages, Mark
from relight.console.web.errors import Unreachable
from relight.console.web.read_shelf import Shelf
from relight.console.web.read_values import Changes
from relight.domain.ledger import RowKind

EVERY = timedelta(seconds=0.5)
"""An incident shows within this and the time of one read; one read of an index costs less than a millisecond."""
MOST = 500
"""Rows told one by one."""


def changes(marks: tuple[Mark, ...], after: int, *, more: bool) -> Changes:
    """What these rows are about."""
    return Changes(
        cursor=marks[-1].seq if marks else after,
        incidents=tuple(dict.fromkeys(mark.incident for mark in marks if mark.incident)),
        jobs=tuple(dict.fromkeys(mark.lineage for mark in marks if mark.lineage)),
        nodes=tuple(dict.fromkeys(mark.node for mark in marks if mark.node)),
        kinds=tuple(dict.fromkeys(mark.kind for mark in marks)),
        guard=any(mark.kind == RowKind.GUARD for mark in marks),
        more=more,
    )


async def since(pages: LedgerPages, after: int, limit: int) -> Changes:
    """What was written after a row; where that is too much to tell, only that it is, up to the newest row."""
    marks = await pages.marks(after, limit + 1)
    if len(marks) <= limit:
        return changes(marks, after, more=False)
    return Changes(cursor=await pages.head(), more=True)


class Feed:
    """Tells what is new to everybody who listens. It polls while anybody does."""

    def __init__(self, shelf: Shelf, every: timedelta = EVERY) -> None:
        self._shelf = shelf
        self._every = every.total_seconds()
        self._listeners: set[asyncio.Queue[Changes]] = set()
        self._poll: asyncio.Task[None] | None = None

    async def subscribe(self) -> AsyncIterator[Changes]:
        """What is new from now on. Who is slow is told once, that there was more than fits."""
        queue: asyncio.Queue[Changes] = asyncio.Queue(maxsize=1)
        self._listeners.add(queue)
        if self._poll is None or self._poll.done():
            self._poll = asyncio.create_task(self._keep_looking(), name="ledger feed")
        try:
            while True:
                yield await queue.get()
        finally:
            self._listeners.discard(queue)

    async def close(self) -> None:
        """Stop polling."""
        if self._poll is not None:
            self._poll.cancel()
            await asyncio.gather(self._poll, return_exceptions=True)

    async def _keep_looking(self) -> None:
        cursor: int | None = None
        while self._listeners:
            try:
                pages = self._shelf.pages
                if cursor is None:
                    cursor = await pages.head()
                new = await since(pages, cursor, MOST)
            except (LedgerError, Unreachable):
                new = None  # the database is away: looked again in a moment, from where we stand
            if new is not None and new.any:
                cursor = new.cursor
                self._tell(new)
            await asyncio.sleep(self._every)

    def _tell(self, new: Changes) -> None:
        for queue in self._listeners:
            if queue.full():
                queue.get_nowait()
                queue.put_nowait(Changes(cursor=new.cursor, more=True))
            else:
                queue.put_nowait(new)
