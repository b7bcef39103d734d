"""Which outputs are read in a round, and what came of it: a file system that does not answer holds up only its own."""

import asyncio
from collections.abc import Iterable
from datetime import datetime, timedelta
from typing import NamedTuple

from relight.activities.follow_state import Following, Standing
from relight.clients.logs import Asked, Chunk, Cursor, LogError, Logs, LogUnreadableError

PATIENCE = timedelta(seconds=1)
"""How long a round waits for the answer of a place; what comes later is taken in a later round."""
ENOUGH = 2.0
"""Seconds after which a round asks for nothing more: who is far behind catches up in many."""


class Turn(NamedTuple):
    """One file of one attempt, whose turn it is to be read."""

    each: Following
    path: str
    standing: Standing
    asked: Asked


class Outcome(NamedTuple):
    """What came of it; None: it was not come to."""

    turn: Turn
    found: Chunk | LogError | None


class Reading:
    """Reads what is new in all outputs, those of one place in one go.

    Args:
        logs: where they are.
        patience: how long a round waits for a place.
    """

    def __init__(self, logs: Logs, patience: timedelta = PATIENCE) -> None:
        self._logs = logs
        self._patience = patience.total_seconds()
        self._under_way: dict[str, asyncio.Task[list[Outcome]]] = {}
        self._late: set[str] = set()
        self._enough = 0.0

    async def look(self, everyone: Iterable[Following], now: datetime) -> list[Outcome]:
        """What has come of the reads that were asked for, in this round or before.

        A file is read once at a time: of those that are still waited for nothing is told, and they count as unread.
        """
        self._enough = asyncio.get_running_loop().time() + ENOUGH
        for place, turns in self._turns(everyone, now).items():
            if place not in self._under_way:
                self._under_way[place] = asyncio.create_task(self._ask(turns))
        return await self._come()

    async def go_on(self, outcomes: Iterable[Outcome]) -> list[Outcome]:
        """The same for those of the outcomes that were not come to: an answer is bounded. Nothing after a while.

        A place that could not be read at all is not asked for more of it.
        """
        if asyncio.get_running_loop().time() > self._enough:
            return []
        left: dict[str, list[Turn]] = {}
        answers: dict[str, set[bool]] = {}
        for turn, found in outcomes:
            place = self._logs.place(turn.path)
            if found is None:
                left.setdefault(place, []).append(turn)
            else:
                answers.setdefault(place, set()).add(not isinstance(found, LogUnreadableError))
        asked = [place for place in left if place not in self._under_way and answers.get(place) != {False}]
        for place in asked:
            self._under_way[place] = asyncio.create_task(self._ask(left[place]))
        return await self._come() if asked else []

    async def _come(self) -> list[Outcome]:
        prompt = [task for place, task in self._under_way.items() if place not in self._late]
        if prompt:
            await asyncio.wait(prompt, timeout=self._patience)
        outcomes: list[Outcome] = []
        for place, task in list(self._under_way.items()):
            if task.done():
                del self._under_way[place]
                self._late.discard(place)
                outcomes += task.result()
            else:
                self._late.add(place)
        return outcomes

    async def close(self) -> None:
        """Give up what is still waited for."""
        tasks = [*self._under_way.values()]
        self._under_way.clear()
        self._late.clear()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _turns(self, everyone: Iterable[Following], now: datetime) -> dict[str, list[Turn]]:
        """By place, first those that were not come to the last time."""
        turns: dict[str, list[Turn]] = {}
        for each in everyone:
            for path in each.files:
                standing = each.standing.setdefault(path, Standing())
                asked = Asked(path, standing.cursor or Cursor(), standing.far(now))
                turns.setdefault(self._logs.place(path), []).append(Turn(each, path, standing, asked))
        for batch in turns.values():
            batch.sort(key=_read_last)
        return turns

    async def _ask(self, turns: list[Turn]) -> list[Outcome]:
        for turn in turns:
            turn.standing.unread = True
        found = await self._logs.read_many([turn.asked for turn in turns])
        return [*map(Outcome, turns, found)]


def _read_last(turn: Turn) -> bool:
    return not turn.standing.unread
