"""What the ledger keeps: rows of the audit trail, and the changes written in one transaction."""

from datetime import datetime
from enum import StrEnum
from typing import Any

from relight.domain.attempts import AttemptState
from relight.domain.base import Value
from relight.domain.evidence import Detection
from relight.domain.incidents import Incident


class RowKind(StrEnum):
    """What a row of the audit trail is about."""

    ATTEMPT_SEEN = "attempt_seen"
    ATTEMPT_ENDED = "attempt_ended"
    DETECTED = "detected"
    OPENED = "opened"
    CONFIRMED = "confirmed"
    DIAGNOSED = "diagnosed"
    PLANNED = "planned"
    DECISION = "decision"
    """A person's word on a plan, whether or not it counted."""
    ESCALATED = "escalated"
    """Nothing was done, and a person must do something: what."""
    INTENT = "intent"
    """Right before a mutation: what will be done, to what, for which incident."""
    EFFECT = "effect"
    """Right after it: what was read back."""
    LEAVE = "leave"
    """The guard's word on a drain, grant or refusal."""
    GUARD = "guard"
    """What changes how the guard stands: the breaker opened or reset, a pause begun or ended."""
    OUTPUTS_KEPT = "outputs_kept"
    OUTPUTS_EXPIRED = "outputs_expired"
    """Right before kept outputs are deleted that are too old, or too much: how many, of which jobs."""
    VERIFIED = "verified"
    CLOSED = "closed"
    BLIND = "blind"
    """A detector could not see, and since when."""
    FAULT = "fault"
    """What a node's agent reported to be wrong with it."""
    CARE = "care"
    """One step of a node's quarantine: begun, drained, evidence kept, checked, judged, told, a person's word, ended."""
    REVERSED = "reversed"
    """A person has undone what Relight had done to a node: nobody does it again on the same evidence for a while."""
    SET_ASIDE = "set_aside"
    """A node was found drained or down, by whoever's hand, or back in service."""
    NOTE = "note"


class Entry(Value):
    """A row to be written. `id` is deterministic: writing the same entry twice keeps the first."""

    id: str
    """For example `<workflow id>/<run id>/<step>/<phase>`; at most 300 characters."""
    kind: RowKind
    at: datetime
    cluster: str
    incident: str = ""
    attempt: str = ""
    """Text form of the attempt's key."""
    lineage: str = ""
    node: str = ""
    body: dict[str, Any] = {}


class Row(Entry):
    """A row as written: numbered and chained."""

    seq: int
    prev_hash: str
    hash: str


class Change(Value):
    """Everything written in one transaction: all of it or nothing."""

    entries: tuple[Entry, ...] = ()
    attempts: tuple[AttemptState, ...] = ()
    """Inserted, or put in place of what was there for the same key."""
    detections: tuple[Detection, ...] = ()
    """Put in the outbox; one whose id is there already is ignored."""
    incidents: tuple[Incident, ...] = ()
    """Inserted, or put in place of what was there for the same id."""
    cursors: dict[str, dict[str, Any]] = {}
    """By name, for example `jobs/<cluster>`: where a watcher stands."""


class Backlog(Value):
    """What waits in a cluster's ledger."""

    open_incidents: int = 0
    undelivered: int = 0
    """Detections in the outbox."""
    oldest: datetime | None = None
    """When the oldest of these was made."""


class ChainReport(Value):
    """What a check of the whole chain found."""

    rows: int
    head: str
    """Hash of the newest row, empty when there is none."""
    broken_at: int | None = None
    """The first row whose hash or link is wrong."""
    problem: str = ""

    @property
    def ok(self) -> bool:
        """True when every row is as it was written."""
        return self.broken_at is None
