"""Judges the attempts that are followed, one after the other, and lets none of them hold up the others."""

import asyncio
from collections.abc import Awaitable, Callable, Collection
from datetime import timedelta

from relight.activities.follow_state import Following

STARTED_TOGETHER = 64
WAITED_FOR = 16
"""So many may be waiting for Slurm or the ledger at the same time."""


class Checks:
    """Runs a check of each attempt in each round; one that waits for something goes on in the next rounds.

    Args:
        check: judges one attempt among all.
        patience: how long a round waits for checks.
    """

    def __init__(
        self, check: Callable[[Following, Collection[Following]], Awaitable[None]], patience: timedelta
    ) -> None:
        self._check = check
        self._patience = patience.total_seconds()
        self._under_way: dict[Following, asyncio.Future[None]] = {}
        self._begin_with: Following | None = None

    @property
    def under_way(self) -> Collection[Following]:
        """Those that are being judged: nothing new should be told of them meanwhile."""
        return {each for each, task in self._under_way.items() if not task.done()}

    async def look(self, everyone: Collection[Following]) -> None:
        """Check all that run and whose last check has ended; where time runs out, the next round begins with others."""
        until = asyncio.get_running_loop().time() + self._patience
        self._settle()
        turn = [each for each in everyone if each.running and each not in self._under_way]
        at = turn.index(self._begin_with) if self._begin_with in turn else 0
        turn = turn[at:] + turn[:at]
        while turn and await self._fewer(WAITED_FOR, until):
            for each in turn[:STARTED_TOGETHER]:
                self._under_way[each] = asyncio.ensure_future(self._check(each, everyone))
            del turn[:STARTED_TOGETHER]
        self._begin_with = turn[0] if turn else None
        await self._fewer(1, until)

    async def close(self) -> None:
        """Give up what is under way."""
        tasks = [*self._under_way.values()]
        self._under_way.clear()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _fewer(self, than: int, until: float) -> bool:
        """Wait until fewer are under way; False when there is no more time for it."""
        while True:
            self._settle()
            if len(self._under_way) < than:
                return True
            left = until - asyncio.get_running_loop().time()
            if left <= 0:
                return False
            await asyncio.wait(self._under_way.values(), timeout=left, return_when=asyncio.FIRST_COMPLETED)

    def _settle(self) -> None:
        """Let those go that have ended; their errors are raised here."""
        for each in [each for each, task in self._under_way.items() if task.done()]:
            self._under_way.pop(each).result()
