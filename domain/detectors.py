"""Detectors: what each last saw, whether it sees now, and which of them a decision rests on. Pure."""

from collections.abc import Iterable, Mapping
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from pathlib import PurePath

from relight.domain.attempts import Attempt
from relight.domain.base import Value, clip
from relight.domain.evidence import Interruption

EXPECTED = ("jobs", "nodes", "logs", "outbox")
"""Detectors that every worker's cluster has; others are known once they have looked."""
FIRST_LOOK = timedelta(seconds=60)
"""Within which the first look of these is expected."""
LEAST_WITHIN = timedelta(seconds=15)
"""No detector is called overdue sooner: a look may take as long as Slurm's own time-out."""
LATE_PERIODS = 5
ON_DEMAND = timedelta(days=3650)
"""For a detector that looks only when there is something to ask: it is never overdue."""
WRITTEN_WITHIN = timedelta(seconds=30)
"""A worker that has not written for longer is not counted as one that works: it writes every few seconds."""
REMEMBERED = 8
"""Workers kept in the ledger, those that wrote last: each start is a new one."""

MOST_NAMED = 50


class Sees(StrEnum):
    """How a detector does."""

    SEES = "sees"
    BLIND = "blind"
    """Its last look was in vain."""
    OVERDUE = "overdue"
    """It has not looked for too long: nothing it would see is seen, and nobody says so but its age."""
    WAITING = "waiting"
    """Its first look is still to come: unknown, which is not blind."""


class Sight(Value):
    """What one detector last saw."""

    within: timedelta
    """It is overdue when it has not seen again by then."""
    since: datetime
    """Since when it sees, looks in vain, or is waited for."""
    looked: datetime
    """Its last look, in vain or not; before the first, as `since`."""
    last: datetime | None = None
    """When it last looked with success; None: never."""
    problem: str = ""
    """Why it cannot see now; empty while it does."""

    @property
    def tried(self) -> bool:
        """True once it has looked, in vain or not."""
        return self.last is not None or bool(self.problem)

    def state(self, now: datetime) -> Sees:
        """How it does at that time."""
        if self.problem:
            return Sees.BLIND
        if now - (self.last or self.since) > self.within:
            return Sees.OVERDUE
        return Sees.SEES if self.last else Sees.WAITING

    def sees(self, now: datetime) -> bool:
        """False while it is blind or overdue."""
        return self.state(now) not in {Sees.BLIND, Sees.OVERDUE}

    def unseen_since(self) -> datetime:
        """Since when nothing has been seen; for one that is blind or overdue."""
        return self.since if self.problem else self.last or self.since

    def why(self) -> str:
        """The reason in words; for one that is blind or overdue."""
        if self.problem:
            return self.problem
        return "it has not looked since" if self.last else "it has never looked"


def within(period: timedelta) -> timedelta:
    """By when a detector that looks so often should have seen again."""
    return max(LEAST_WITHIN, LATE_PERIODS * period)


class WorkerReport(Value):
    """What one controller worker's detectors last saw."""

    worker: str
    """`<host>/<process id>`."""
    version: str
    mode: str
    """The ceiling that its settings give."""
    policy: str = ""
    """Version of the policy in force there."""
    policy_problem: str = ""
    """Why a newer policy of its settings file is not in force."""
    started_at: datetime
    written_at: datetime
    sights: dict[str, Sight] = {}
    unreadable: dict[str, str] = {}
    """By attempt, those of its outputs that cannot be read now; of the first `MOST_NAMED` attempts."""
    unreadable_count: int = 0
    """All such attempts."""

    def lives(self, now: datetime) -> bool:
        """True while it has written lately."""
        return now - self.written_at <= WRITTEN_WITHIN


class WorkerReports(Value):
    """Those of all workers of a cluster, the newest first; kept under the cursor `sights_cursor`."""

    workers: tuple[WorkerReport, ...] = ()

    def with_report(self, report: WorkerReport) -> "WorkerReports":
        """With this one in place of the worker's last."""
        others = [each for each in self.workers if each.worker != report.worker]
        newest = sorted((report, *others), key=lambda each: each.written_at, reverse=True)
        return WorkerReports(workers=tuple(newest[:REMEMBERED]))

    def counted(self, now: datetime) -> tuple[WorkerReport, ...]:
        """Those that tell how things stand: all that live, or the last that did."""
        living = tuple(each for each in self.workers if each.lives(now))
        return living or self.workers[:1]

    def sights(self, now: datetime) -> dict[str, Sight]:
        """Each detector as the worker that looked last with it tells: its activity runs in one of them."""
        found: dict[str, Sight] = {}
        for report in self.counted(now):
            for name, sight in report.sights.items():
                other = found.get(name)
                if other is None or (sight.tried, sight.looked) > (other.tried, other.looked):
                    found[name] = sight
        return dict(sorted(found.items(), key=lambda item: (item[0] not in EXPECTED, item[0])))


def sights_cursor(cluster: str) -> str:
    """Name of the ledger cursor that holds a cluster's `WorkerReports`."""
    return f"detectors/{cluster}"


class Blind(Value):
    """Something that a decision rests on and that is not seen now."""

    detector: str
    text: str
    """In words, with since when and why."""


ALWAYS_NEEDED = frozenset({"jobs", "nodes"})
"""What the job is doing, and where it may go."""
RESTS_ON: Mapping[Interruption, frozenset[str]] = {
    Interruption.CRASH: frozenset({"logs"}),
    Interruption.HANG: frozenset({"logs"}),
    Interruption.STRAGGLER: frozenset({"logs"}),
    Interruption.NUMERICS: frozenset({"logs"}),
    Interruption.NODE_LOST: frozenset(),
    Interruption.GPU_FAULT: frozenset({"ingest", "agents", "metrics"}),
}
"""By kind, what would have spoken against the finding or for another cause."""


def blind_for(
    kind: Interruption, sights: Mapping[str, Sight], now: datetime, read: Mapping[str, datetime] | None = None
) -> tuple[Blind, ...]:
    """The detectors that a decision about such an interruption rests on and that do not see now.

    One that has never looked is unknown, not blind: right after a start the decision's own fresh reads are enough.

    Args:
        kind: what was found.
        sights: what each detector last saw.
        now: the time.
        read: by detector, when the decision's own read of the same was answered. What is older than that is no matter:
            after an outage of Slurm its watchers look again only once their look has timed out and their pause is over.
    """
    own = read or {}
    asked = ((name, sights[name]) for name in sorted((ALWAYS_NEEDED | RESTS_ON[kind]) & sights.keys()))
    return tuple(
        Blind(detector=name, text=_said(name, sight, now))
        for name, sight in asked
        if sight.tried and not sight.sees(now) and not (name in own and sight.looked < own[name])
    )


def _said(name: str, sight: Sight, now: datetime) -> str:
    since = f"{sight.unseen_since().astimezone(UTC):%H:%M:%S} UTC"
    if sight.state(now) is Sees.OVERDUE:
        return f"watching {name} is overdue since {since}"
    return clip(f"watching {name} is blind since {since}: {sight.problem}", 200)


def unread_outputs(attempt: Attempt, unreadable: Iterable[str]) -> tuple[Blind, ...]:
    """The attempt's own outputs among what a diagnosis could not read.

    An empty one has been read, and what was written to /dev/null was meant for nobody.
    """
    told = tuple(unreadable)
    names = dict.fromkeys(PurePath(path).name for path in attempt.outputs if path != "/dev/null")
    found = (text for name in names for text in told if text.startswith(f"{name}: ") and text != f"{name}: empty")
    return tuple(Blind(detector="logs", text=clip(f"its output cannot be read: {text}", 200)) for text in found)
