"""Why an attempt may have become slow: what its nodes' agents have told since."""

from collections.abc import Iterator
from datetime import datetime, timedelta

from pydantic import ValidationError

from relight.activities.faults import concerns
from relight.activities.site import Site
from relight.domain.attempts import Attempt
from relight.domain.evidence import Evidence, Source
from relight.domain.ledger import Row, RowKind
from relight.domain.reports import FaultKind, NodeFault

SLOWS = frozenset({FaultKind.THROTTLED, FaultKind.NVLINK, FaultKind.PCIE, FaultKind.FABRIC, FaultKind.ECC})
"""Kinds of faults with which a job goes on, if more slowly."""
BEFORE = timedelta(minutes=2)
"""So long before the first slow step a fault may have begun: clocks differ, and a slow start is not told at once."""
MOST_ROWS = 2000
MOST = 6
"""Causes that are told, of different nodes, GPUs and kinds."""


async def causes(site: Site, attempt: Attempt, since: datetime) -> tuple[Evidence, ...]:
    """What was told of the attempt's nodes that makes a job slow, since it has become slow."""
    rows = await site.ledger.rows(kind=RowKind.FAULT, since=since - BEFORE, limit=MOST_ROWS)
    found: dict[tuple[str, str, str], Evidence] = {}
    for node, fault in _faults(rows, site.cluster):
        if fault.kind in SLOWS and not fault.cleared and concerns(fault, node, attempt):
            found.setdefault((node, fault.gpu, fault.kind), _evidence(node, fault))
    return tuple(found.values())[:MOST]


def _faults(rows: tuple[Row, ...], cluster: str) -> Iterator[tuple[str, NodeFault]]:
    for row in rows:
        try:
            fault = NodeFault.model_validate(row.body.get("fault"))
        except ValidationError:  # a newer version has written it
            continue
        if row.cluster == cluster:
            yield row.node, fault


def _evidence(node: str, fault: NodeFault) -> Evidence:
    return Evidence(
        source=Source.AGENT if fault.source == "host" else Source(fault.source),
        text=fault.text,
        signature=fault.kind.upper(),
        node=node,
        gpu=fault.gpu or None,
        at=fault.at,
    )
