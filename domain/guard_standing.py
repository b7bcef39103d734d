"""How the guard stands: pauses, the breaker, the kill switch. What it says of a plan, an incident and a node. Pure."""

from collections.abc import Sequence
from datetime import datetime, timedelta

from pydantic import Field

from relight.domain.base import Value
from relight.domain.breaker import Trip
from relight.domain.guard import Grant, PartitionCount

LONGEST_PAUSE = timedelta(days=30)
SHORTEST_PAUSE = timedelta(minutes=1)
MOST_PAUSES = 50


def standing_cursor(cluster: str) -> str:
    """The ledger's cursor in which the guard keeps how it stands."""
    return f"guard/{cluster}"


class Pause(Value):
    """A person's word: nothing unasked and nothing approved for a while. It ends by itself."""

    by: str
    reason: str
    since: datetime
    until: datetime
    partition: str = ""
    """Only this partition's jobs and nodes."""
    node: str = ""
    """Only this node: it is neither drained nor declared down. Its jobs are still restarted."""

    @property
    def where(self) -> str:
        """What is paused: `the cluster`, `partition gpu`, `node n1`."""
        if self.node:
            return f"node {self.node}"
        return f"partition {self.partition}" if self.partition else "the cluster"

    def __str__(self) -> str:
        """Who, what, until when and why."""
        return f"{self.where} is paused by {self.by} until {self.until:%Y-%m-%d %H:%M} UTC: {self.reason}"


class Reset(Value):
    """The last reset of the breaker."""

    at: datetime
    by: str
    reason: str


class Standing(Value):
    """How the guard stands; the ledger keeps it, for those who plan, act and look."""

    written_at: datetime | None = None
    """None: the guard has never written, so nobody has paused anything and nothing has opened."""
    pauses: tuple[Pause, ...] = Field(default=(), max_length=MOST_PAUSES)
    trip: Trip | None = None
    """Set while the breaker is open."""
    reset: Reset | None = None
    grants: tuple[Grant, ...] = ()
    """Those of the last hour, when this was written."""
    partitions: tuple[PartitionCount, ...] = ()
    """As the guard last saw them."""
    seen_at: datetime | None = None
    """When that was."""
    killed: str = ""
    """Why the kill switch counts as on; read beside the ledger, never kept in it."""
    unknown: str = ""
    """Why it could not be read: then nothing is done unasked."""

    def paused(self, now: datetime) -> tuple[Pause, ...]:
        """The pauses that have not ended."""
        return tuple(pause for pause in self.pauses if now < pause.until)

    def stops(self, now: datetime, began: datetime, partition: str) -> str:
        """Why an incident that began then may only be observed; empty where it may go on.

        What began before the breaker was reset is not carried out later: the world that it was planned for is gone.
        """
        if self.killed:
            return f"the kill switch is on: {self.killed}"
        if self.trip is not None:
            return f"the breaker is open since {self.trip.at:%Y-%m-%d %H:%M} UTC: {self.trip.why}"
        if self.reset is not None and began <= self.reset.at:
            return f"it began before {self.reset.by} reset the breaker, and is not carried out later"
        for pause in self.paused(now):
            if not pause.node and pause.partition in {"", partition}:
                return str(pause)
        return ""

    def stops_node(self, now: datetime, began: datetime, node: str, partitions: Sequence[str]) -> str:
        """The same for taking that node, of these partitions, out of service."""
        for pause in self.paused(now):
            covers = pause.node == node if pause.node else pause.partition in {"", *partitions}
            if covers:
                return str(pause)
        return self.stops(now, began, "")
