"""What came before what: order within a source is trusted, order between sources is by their clocks.

Clocks of a cluster may be minutes apart and zones wrong. What all sources tell of one moment (the last rank joins,
a step is done by all at once) shows by how much: such lines are *anchors*. Where no anchor relates two clocks, stamps
closer than `SKEW` are in no known order, and a stamp with a zone is in no known order to one without.
"""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime, timedelta
from statistics import median
from typing import NamedTuple

from relight.attribution.origin import Speaker, Stamp, speaker, stamp_of
from relight.attribution.reading import LogScan
from relight.attribution.tasks import Tasks
from relight.attribution.whose import Owner

SKEW = timedelta(minutes=10)
"""Clocks of one cluster that nothing relates may be this far apart."""
TOGETHER = timedelta(seconds=5)
"""How far apart the moments are at which ranks end what they do together: a step, the set-up of the world's group."""
STARTED = timedelta(minutes=2)
"""The same for what each does by itself when it starts: images load at different speeds."""


class Clock(NamedTuple):
    """Whose stamps: all lines of a log, or those of one node in a log that several nodes write."""

    log: int
    """Place of the log among those read."""
    node: str
    zoned: bool
    """Stamps that name their zone are a clock of their own."""


class Ahead(NamedTuple):
    """How a clock runs against the others of its frame."""

    frame: int
    """Clocks that anchors relate are of one frame."""
    by: timedelta
    within: timedelta
    """How well that is known."""


class Moment(NamedTuple):
    """When a line was printed."""

    own: datetime
    """By its own clock."""
    at: datetime
    """By the clock that most of its frame agree on; its own where nothing relates it to others."""
    clock: Clock
    node: str
    """On which node, where that is known: a node has one clock."""
    ahead: Ahead | None = None

    def before(self, other: "Moment", margin: timedelta = timedelta(0)) -> bool | None:
        """True when known to be earlier by more than the margin, False when known to be later, None when unknown."""
        earlier, later = self.own, other.own
        if self.clock == other.clock:
            doubt = timedelta(0)
        elif self.ahead and other.ahead and self.ahead.frame == other.ahead.frame:
            earlier, later = self.at, other.at
            doubt = self.ahead.within + other.ahead.within
        elif self.clock.zoned != other.clock.zoned or self.wrong or other.wrong:
            return None
        else:
            doubt = timedelta(0) if self.node and self.node == other.node else SKEW
        gap = later - earlier
        if gap > doubt + margin:
            return True
        return False if gap < -doubt else None

    @property
    def wrong(self) -> bool:
        """True when its clock is known to be further off than clocks of one cluster usually are."""
        return self.ahead is not None and abs(self.ahead.by) > SKEW


class Timeline:
    """The clocks of all logs, compared."""

    def __init__(
        self,
        scans: Sequence[LogScan],
        near: datetime | None,
        owners: Sequence[Owner],
        node_of: Mapping[int, str],
        tasks: Tasks,
    ) -> None:
        """Learn from the logs' anchors.

        Args:
            scans: the logs.
            near: gives zone and year to stamps that lack them.
            owners: whose each log is.
            node_of: the node of a rank.
            tasks: what labels before lines are.
        """
        self._near, self._owners, self._node_of, self._tasks = near, owners, node_of, tasks
        shared = [len({seat.node for seat in scan.seats.values()}) > 1 for scan in scans]
        self._shared = [many and owner == Owner() for many, owner in zip(shared, owners, strict=True)]
        self._ahead = _learn(self._anchors(scans))
        self.ahead_of_others = self._by_node()
        """By how much a node's clock runs ahead of those of most others, where that is known."""

    def moment(self, log: int, stamp: Stamp, who: Speaker) -> Moment:
        """When a line with this stamp was printed."""
        clock, node = self._clock(log, stamp, who)
        ahead = self._ahead.get(clock)
        return Moment(stamp.at, stamp.at - ahead.by if ahead else stamp.at, clock, node, ahead)

    def _clock(self, log: int, stamp: Stamp, who: Speaker) -> tuple[Clock, str]:
        node = self._node(log, who)
        return Clock(log, node if self._shared[log] else "", stamp.zoned), node

    def _node(self, log: int, who: Speaker) -> str:
        owner, who = self._owners[log], self._tasks.place(who)
        rank = who.rank if who.rank is not None else owner.rank
        return who.node or owner.node or (self._node_of.get(rank, "") if rank is not None else "")

    def _anchors(self, scans: Sequence[LogScan]) -> dict[str, list[tuple[Clock, datetime]]]:
        events: dict[str, list[tuple[Clock, datetime]]] = defaultdict(list)
        for number, scan in enumerate(scans):
            for (event, node), text in scan.anchors.items():
                if stamp := stamp_of(text, self._near):
                    who = speaker(text) if self._shared[number] else Speaker()
                    clock, _ = self._clock(number, stamp, who if who.node or not node else who._replace(node=node))
                    events[event].append((clock, stamp.at))
        return events

    def _by_node(self) -> dict[str, timedelta]:
        found: dict[str, timedelta] = {}
        for clock, ahead in self._ahead.items():
            if node := self._node(clock.log, Speaker(node=clock.node or None)):
                found.setdefault(node, ahead.by)
        return found


def _learn(events: dict[str, list[tuple[Clock, datetime]]]) -> dict[Clock, Ahead]:
    """How the clocks run against each other: along shared events from clock to clock, the tight ones first."""
    of_clock: dict[Clock, list[str]] = defaultdict(list)
    for event, seen in events.items():
        for clock, _ in seen:
            of_clock[clock].append(event)
    found: dict[Clock, Ahead] = {}
    for frame, start in enumerate(sorted(of_clock, key=lambda clock: -len(of_clock[clock]))):
        if start not in found:
            members = _spread(start, frame, events, of_clock)
            if len(members) > 1:
                found |= _by_most(members)
    return found


def _spread(
    start: Clock,
    frame: int,
    events: dict[str, list[tuple[Clock, datetime]]],
    of_clock: dict[Clock, list[str]],
) -> dict[Clock, Ahead]:
    known = {start: Ahead(frame, timedelta(0), timedelta(0))}
    used: set[str] = set()
    tight, loose = [start], [start]
    while tight or loose:
        by_tight = bool(tight)
        clock = tight.pop() if by_tight else loose.pop()
        for event in of_clock[clock]:
            if event in used or (event == "startup") is by_tight:
                continue
            used.add(event)
            new = _compared(clock, known[clock], events[event], STARTED if event == "startup" else TOGETHER)
            fresh = {other: ahead for other, ahead in new if other not in known}
            known |= fresh
            tight += fresh
            loose += fresh
    return known


def _compared(
    clock: Clock,
    ahead: Ahead,
    seen: Iterable[tuple[Clock, datetime]],
    apart: timedelta,
) -> Iterable[tuple[Clock, Ahead]]:
    own = dict(seen)
    moment = own[clock] - ahead.by
    return [(other, Ahead(ahead.frame, at - moment, ahead.within + apart)) for other, at in own.items()]


def _by_most(members: dict[Clock, Ahead]) -> dict[Clock, Ahead]:
    """The same, against the clock in the middle: one that is wrong is not made the measure of the others."""
    middle = timedelta(seconds=median(ahead.by.total_seconds() for ahead in members.values()))
    return {clock: ahead._replace(by=ahead.by - middle) for clock, ahead in members.items()}
