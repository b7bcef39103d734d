"""Ledger rows and the read model of incidents, as activities write them."""

from typing import Any

from relight.activities.contracts import IncidentRef
from relight.activities.site import Site
from relight.domain.ledger import Change, Entry, RowKind


def row(
    site: Site,
    ref: IncidentRef,
    step: str,
    kind: RowKind,
    body: dict[str, Any],
    *,
    phase: str = "done",
    lineage: str = "",
    node: str = "",
) -> Entry:
    """A row of an incident; its id is the same each time the step is repeated."""
    return Entry(
        id=ref.entry(step, phase),
        kind=kind,
        at=site.clock(),
        cluster=site.cluster,
        incident=ref.id,
        attempt=str(ref.attempt),
        lineage=lineage,
        node=node,
        body=body,
    )


async def save(site: Site, ref: IncidentRef, step: str, kind: RowKind, body: dict[str, Any], **update: Any) -> None:
    """Write a row and bring the incident's read model up to date, in one transaction."""
    known = await site.ledger.incident(ref.id)
    entry = row(site, ref, step, kind, body, lineage=known.lineage if known else "")
    incidents = (known.model_copy(update=update),) if known and update else ()
    await site.ledger.commit(Change(entries=(entry,), incidents=incidents))
