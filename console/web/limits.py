"""How often something may be tried: a bucket of tries for each name, filled again by time."""

import math
from collections import OrderedDict
from collections.abc import Callable
from typing import NamedTuple

MOST_NAMES = 10_000
_MINUTE = 60.0


class _Bucket(NamedTuple):
    left: float
    at: float


class Limit:
    """So many a minute for each name, all at once or spread. The names used longest ago are forgotten beyond 10,000."""

    def __init__(self, per_minute: int, clock: Callable[[], float]) -> None:
        self._most = per_minute
        self._clock = clock
        self._buckets: OrderedDict[str, _Bucket] = OrderedDict()

    def wait(self, name: str) -> int:
        """Seconds until the next try is allowed; 0: it is now."""
        left = self._left(name)
        return 0 if left >= 1 else math.ceil((1 - left) * _MINUTE / self._most)

    def use(self, name: str) -> None:
        """Count one try."""
        self._buckets[name] = _Bucket(max(0.0, self._left(name) - 1), self._clock())
        self._buckets.move_to_end(name)
        while len(self._buckets) > MOST_NAMES:
            self._buckets.popitem(last=False)

    def _left(self, name: str) -> float:
        known = self._buckets.get(name)
        if known is None:
            return float(self._most)
        return min(float(self._most), known.left + (self._clock() - known.at) * self._most / _MINUTE)
