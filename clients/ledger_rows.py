"""How values become rows of the ledger's tables, and back."""

import json
from datetime import UTC, datetime
from typing import Any

from sqlalchemy import RowMapping

from relight.clients.ledger import LedgerCorruptError
from relight.domain.attempts import AttemptState
from relight.domain.base import Value, canonical_json
from relight.domain.evidence import Detection
from relight.domain.incidents import Incident
from relight.domain.ledger import Change, Entry, Row


def storable(words: str) -> str:
    """The text without what a database refuses (lone surrogates, NUL), each as an escape."""
    return words.encode("utf-8", "backslashreplace").decode().replace("\x00", "\\u0000")


def stamp(at: datetime) -> str:
    """A time as stored: UTC with microseconds, so that text order is time order."""
    aware = at if at.tzinfo else at.replace(tzinfo=UTC)
    return aware.astimezone(UTC).isoformat(timespec="microseconds")


def _entry_columns(entry: Entry) -> dict[str, str]:
    """The entry as it is stored."""
    plain = entry.model_dump(mode="json", include={"body"})
    return {
        "id": storable(entry.id),
        "kind": entry.kind.value,
        "at": stamp(entry.at),
        "cluster": storable(entry.cluster),
        "incident": storable(entry.incident),
        "attempt": storable(entry.attempt),
        "lineage": storable(entry.lineage),
        "node": storable(entry.node),
        "body": storable(canonical_json(plain["body"])),
    }


class Work:
    """A change made ready to be written, so that the transaction itself is short."""

    def __init__(self, change: Change) -> None:
        self.entries: dict[str, dict[str, str]] = {}
        for entry in change.entries:
            self.entries.setdefault(storable(entry.id), _entry_columns(entry))
        self.attempts = {storable(str(a.attempt.key)): _attempt_columns(a) for a in change.attempts}
        self.detections = {storable(d.id): _detection_columns(d) for d in reversed(change.detections)}
        self.incidents = {storable(i.id): _incident_columns(i) for i in change.incidents}
        self.cursors = {
            storable(name): {"name": storable(name), "value": storable(canonical_json(value))}
            for name, value in change.model_dump(mode="json", include={"cursors"})["cursors"].items()
        }

    @property
    def empty(self) -> bool:
        """True when there is nothing to write."""
        return not (self.entries or self.attempts or self.detections or self.incidents or self.cursors)


def _text(value: Value) -> str:
    return storable(canonical_json(value.model_dump(mode="json")))


def _attempt_columns(state: AttemptState) -> dict[str, Any]:
    key = state.attempt.key
    return {
        "key": storable(str(key)),
        "cluster": storable(key.cluster),
        "job_id": key.job_id,
        "lineage": storable(state.attempt.lineage),
        "running": state.running,
        "seen_at": stamp(state.attempt.seen_at),
        "state": _text(state),
        "user": storable(state.attempt.record.user),
        "job_name": storable(state.attempt.record.name),
        "partition": storable(state.attempt.record.partition),
    }


def _detection_columns(detection: Detection) -> dict[str, Any]:
    return {
        "id": storable(detection.id),
        "cluster": storable(detection.attempt.cluster),
        "created_at": stamp(detection.detected_at),
        "body": _text(detection),
        "delivered_at": None,
    }


def _incident_columns(incident: Incident) -> dict[str, Any]:
    cause = incident.diagnosis.verdict if incident.diagnosis else None
    nodes = cause.implicated.nodes if cause else ()
    return {
        "id": storable(incident.id),
        "cluster": storable(incident.attempt.cluster),
        "lineage": storable(incident.lineage),
        "attempt": storable(str(incident.attempt)),
        "open": incident.open,
        "opened_at": stamp(incident.opened_at),
        "state": _text(incident),
        "user": storable(incident.user),
        "job_id": incident.attempt.job_id,
        "job_name": storable(incident.job_name),
        "kind": incident.kind.value,
        "phase": incident.phase.value,
        "mode": incident.mode.value,
        "outcome": incident.outcome.value if incident.outcome else "",
        "cause": storable(cause.signature) if cause else "",
        "category": cause.category.value if cause else "",
        # Between spaces, so that ` gpu-1 ` is found and not gpu-10.
        "nodes": storable(f" {' '.join(nodes)} ") if nodes else "",
        "closed_at": stamp(incident.closed_at) if incident.closed_at else "",
    }


def read_row(found: RowMapping) -> Row:
    """A row of the audit trail as it was written.

    Raises:
        LedgerCorruptError: when it cannot be read.
    """
    try:
        return Row(**{**found, "body": json.loads(found["body"])})
    except ValueError as e:  # pydantic's and json's errors are both
        raise LedgerCorruptError(f"row {found['seq']} of the ledger cannot be read: {e}") from e
