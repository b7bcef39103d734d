"""Which detectors see, and which are blind: a dead detector must not look like a healthy cluster."""

from collections.abc import Callable
from datetime import datetime, timedelta
from typing import NamedTuple


class Sight(NamedTuple):
    """What one detector last saw."""

    last: datetime | None
    """When it last looked with success; None: never."""
    within: timedelta
    """It is overdue when it has not done so again by then."""
    problem: str = ""
    """Why it cannot see now; empty while it does."""


class Detectors:
    """Remembers, for one cluster, when each detector of this process last saw."""

    def __init__(self, clock: Callable[[], datetime]) -> None:
        self._clock = clock
        self._sights: dict[str, Sight] = {}

    def saw(self, name: str, within: timedelta) -> None:
        """The detector of that name has looked with success, and will again within `within`."""
        self._sights[name] = Sight(self._clock(), within)

    def blind(self, name: str, why: str, within: timedelta) -> None:
        """The detector of that name has looked in vain."""
        old = self._sights.get(name)
        self._sights[name] = Sight(old.last if old else None, within, why)

    def sights(self) -> dict[str, Sight]:
        """By name, all detectors that have looked in this process."""
        return dict(self._sights)
