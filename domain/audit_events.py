"""Rows of the audit trail for others: who it was, and as an event of CloudEvents 1.0. Pure."""

from collections.abc import Mapping
from typing import Any
from urllib.parse import quote

from relight.domain.ledger import Row, RowKind

SERVICE = "relight"
"""Who acted, where no person did."""
HAS_ACTOR = (RowKind.DECISION, RowKind.CARE, RowKind.GUARD, RowKind.REVERSED)
"""Kinds of rows that may tell of a person."""


def actor(row: Row) -> str:
    """The person whose word or deed the row is, as it was proven or claimed; `relight` where it is none's."""
    body = row.body
    if row.kind is RowKind.DECISION:
        return str(body.get("decision", {}).get("by") or "unverified")
    if row.kind is RowKind.CARE:
        return str(body.get("word", {}).get("by") or SERVICE)
    return str(body.get("by") or SERVICE) if row.kind in HAS_ACTOR else SERVICE


def is_of(row: Row, name: str) -> bool:
    """Whether the row is that person's: `ada` is also `ada (by the site key)`."""
    found = actor(row)
    return found == name or found.startswith(f"{name} ")


def as_row(row: Row) -> Mapping[str, Any]:
    """All columns, the body as the object that it is: what `hash` is over can be made from it again."""
    return row.model_dump(mode="json")


def as_cloudevent(row: Row) -> Mapping[str, Any]:
    """The row in the JSON format of CloudEvents 1.0.2.

    `id` is unique within `source`; names of extensions have small letters and digits only; `sequence` is the documented
    extension of that name, whose values order as text.
    """
    subject = row.incident or row.attempt or row.node
    event: dict[str, Any] = {
        "specversion": "1.0",
        "id": row.id,
        "source": f"/relight/{quote(row.cluster, safe='')}/ledger",
        "type": f"relight.ledger.{row.kind}",
        "time": row.at.isoformat(),
        "datacontenttype": "application/json",
        "sequence": f"{row.seq:020d}",
        "prevhash": row.prev_hash,
        "hash": row.hash,
        "data": row.body,
    }
    named = {"subject": subject, "incident": row.incident, "attempt": row.attempt, "lineage": row.lineage}
    # An attribute that is there must not be empty.
    return event | {name: value for name, value in (named | {"node": row.node}).items() if value}
