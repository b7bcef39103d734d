"""Which detectors see, and which are blind: a dead detector must not look like a healthy cluster."""

from collections.abc import Callable, Mapping
from datetime import datetime, timedelta
from typing import NamedTuple

from relight.domain.detectors import EXPECTED, FIRST_LOOK, Sight

MOST_UNWRITTEN = 1000
"""Times of blindness kept while the ledger does not answer; later ones are not written down."""


class Unseen(NamedTuple):
    """A time in which a detector did not see, now over."""

    name: str
    why: str
    since: datetime
    until: datetime


class Detectors:
    """Remembers, for one cluster, when each detector of this process last saw.

    Args:
        clock: tells the time.
    """

    def __init__(self, clock: Callable[[], datetime]) -> None:
        self._clock = clock
        self.started_at = clock()
        waiting = Sight(within=FIRST_LOOK, since=self.started_at, looked=self.started_at)
        self._sights = dict.fromkeys(EXPECTED, waiting)
        self._before: dict[str, datetime] = {}
        self._over: list[Unseen] = []
        self._unreadable: dict[str, str] = {}

    def saw(self, name: str, within: timedelta) -> None:
        """The detector of that name has looked with success, and will again within `within`."""
        now, old = self._clock(), self._sights.get(name)
        sees = old is not None and old.last is not None and old.sees(now)
        if since := self._before.pop(name, None):
            self._ended(Unseen(name, "the worker before this one did not see", since, now))
        elif old is not None and not old.sees(now):
            self._ended(Unseen(name, old.why(), old.unseen_since(), now))
        self._sights[name] = Sight(within=within, since=old.since if old and sees else now, looked=now, last=now)

    def blind(self, name: str, why: str, within: timedelta) -> datetime:
        """The detector of that name has looked in vain; returns since when it does."""
        now, old = self._clock(), self._sights.get(name)
        since = old.since if old is not None and old.problem else now
        last = old.last if old is not None else None
        self._sights[name] = Sight(within=within, since=since, looked=now, last=last, problem=why[:500] or "no reason")
        return since

    def followed(self, unreadable: Mapping[str, str], within: timedelta) -> None:
        """All outputs have been looked at once; these attempts have some that cannot be read."""
        self._unreadable = dict(unreadable)
        self.saw("logs", within)

    def was_blind(self, name: str, since: datetime) -> None:
        """An earlier worker has left this detector blind: its next success ends that too."""
        self._before[name] = since

    def sights(self) -> dict[str, Sight]:
        """By name, all detectors that have looked in this process or should."""
        return dict(self._sights)

    @property
    def unreadable(self) -> dict[str, str]:
        """By attempt, outputs that could not be read in the last round."""
        return self._unreadable

    def _ended(self, unseen: Unseen) -> None:
        if len(self._over) < MOST_UNWRITTEN:
            self._over.append(unseen)

    def over(self) -> tuple[Unseen, ...]:
        """Times of blindness that have ended and are not yet written down, oldest first."""
        return tuple(self._over)

    def written(self, count: int) -> None:
        """So many of these have been written down."""
        del self._over[:count]
