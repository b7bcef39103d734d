"""What takes long to reckon and changes slowly: reckoned once for all who look, and kept for a minute."""

import asyncio
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Hashable
from typing import Any

LASTS_S = 60.0
MOST = 32
"""Answers kept; the one asked for longest ago goes first."""


class Kept:
    """Answers by what was asked. Who asks while one is being reckoned waits for that one."""

    def __init__(self) -> None:
        self._found: OrderedDict[Hashable, tuple[float, asyncio.Task[Any]]] = OrderedDict()

    async def get(self, key: Hashable, make: Callable[[], Awaitable[Any]]) -> Any:
        """The answer; an error is not kept."""
        now = asyncio.get_running_loop().time()
        at, task = self._found.get(key, (0.0, None))
        if task is None or (task.done() and (now - at > LASTS_S or task.cancelled() or task.exception())):
            task = asyncio.ensure_future(make())
            self._found[key] = (now, task)
        self._found.move_to_end(key)
        while len(self._found) > MOST:
            self._found.popitem(last=False)
        # Shielded: the one who leaves the page must not end it for the others.
        return await asyncio.shield(task)


KEPT = Kept()
