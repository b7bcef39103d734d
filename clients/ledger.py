"""The contract with the ledger: append-only audit trail and read model in one.

LedgerError
├── LedgerUnavailableError   the database does not answer. Trying again helps. No ledger, no mutation.
└── LedgerCorruptError       the chain or the schema is not what we wrote. Trying again does not help.
"""

from datetime import datetime
from typing import Any, Protocol

from relight.domain.attempts import AttemptKey, AttemptState
from relight.domain.audit import Anchor
from relight.domain.evidence import Detection
from relight.domain.incidents import Incident
from relight.domain.ledger import Backlog, ChainReport, Change, Row, RowKind


class LedgerError(Exception):
    """Root of everything that the ledger can raise."""


class LedgerUnavailableError(LedgerError):
    """The database does not answer."""


class LedgerCorruptError(LedgerError):
    """The chain or schema is not what was written."""


class Ledger(Protocol):
    """Everything seen, decided, approved, done and verified."""

    async def commit(self, change: Change) -> int:
        """Write a change in one transaction; returns how many entries were new."""

    async def rows(
        self,
        *,
        incident: str | None = None,
        lineage: str | None = None,
        attempt: str | None = None,
        node: str | None = None,
        kind: RowKind | None = None,
        after: int = 0,
        since: datetime | None = None,
        limit: int = 1000,
    ) -> tuple[Row, ...]:
        """Rows of the audit trail that fit all that is given, in the order written, with seq > `after`.

        `since` leaves out what was written earlier. Rows of `kind` alone are then read from the newest one backwards:
        what that costs does not grow with the ledger.
        """

    async def has(self, entry_id: str) -> bool:
        """True when an entry with this id has been written."""

    async def cursor(self, name: str) -> dict[str, Any] | None:
        """Where the watcher of that name stands; None when it never wrote."""

    async def undelivered(self, limit: int = 100, *, cluster: str | None = None) -> tuple[Detection, ...]:
        """Detections in the outbox not yet delivered (of one cluster), oldest first."""

    async def delivered(self, *detection_ids: str) -> None:
        """Mark detections as delivered, all in one transaction."""

    async def backlog(self, cluster: str) -> Backlog:
        """What waits: counted, not read."""

    async def attempt(self, key: AttemptKey) -> AttemptState | None:
        """One attempt; None when it was never seen."""

    async def running_attempts(self, cluster: str) -> tuple[AttemptState, ...]:
        """Attempts not yet seen ended."""

    async def attempts_of_job(self, cluster: str, job_id: int, limit: int = 50) -> tuple[AttemptState, ...]:
        """The attempts of a Slurm job id, newest first (lineages told apart by `attempt.lineage`)."""

    async def incident(self, incident_id: str) -> Incident | None:
        """One incident by its id, or by the beginning of it where that is unambiguous."""

    async def incidents(
        self,
        *,
        cluster: str | None = None,
        lineage: str | None = None,
        attempt: AttemptKey | None = None,
        open_only: bool = False,
        limit: int = 50,
    ) -> tuple[Incident, ...]:
        """Incidents that fit, newest first."""

    async def verify(self) -> ChainReport:
        """Check every row's hash and link."""

    async def anchor(self, cluster: str) -> Anchor | None:
        """The head as it is now, signed with the chain's key, to be kept elsewhere; None while there is no row."""
