"""What node agents told of an attempt's nodes around its interruption, recognised, as evidence for the diagnosis."""

import re
from collections.abc import Iterator
from datetime import datetime, timedelta

from pydantic import ValidationError

from relight.activities.faults import GPU_FAULTS, Recogniser, concerns
from relight.activities.site import Site
from relight.attribution.catalogue import Catalogue, Signature
from relight.attribution.sources import Told
from relight.domain.attempts import Attempt
from relight.domain.evidence import PLATFORM_WINDOW, Source
from relight.domain.ledger import Row, RowKind
from relight.domain.reports import FaultKind, NodeFault

CLOCKS = timedelta(seconds=60)
"""So much may a node's clock be ahead of ours: rows bear ours, faults the node's."""
MOST_ROWS = 5000
"""Faults read for one incident, the first ones: a switch that fails is told of by a thousand nodes."""
_ALTERNATIVES = {
    FaultKind.PCIE: ("PCIE_AER_FATAL",),
    FaultKind.FABRIC: ("IB_LOCAL_CATASTROPHIC", "MLX5_KERNEL"),
}
"""What the catalogue may call a fault that is none of a GPU, where its text fits."""
_OTHERWISE = {
    FaultKind.FABRIC: "IB_PORT_EVENT",
    FaultKind.OOM_KILL: "SLURM_OOM",
    FaultKind.DISK_FULL: "NODE_DISK_FULL",
    FaultKind.STALE_MOUNT: "NODE_MOUNT_STALE",
}
"""And whatever its text: paths and processes have any name, so nothing else is looked for in it."""
_JOB = re.compile(r"/job_(\d+)[/,]")
"""Whose process ran out of memory: slurmd's cgroups are named after jobs."""


class AgentFaults:
    """Reads them from the ledger.

    Args:
        site: the cluster.
        catalogue: the signatures.
    """

    def __init__(self, site: Site, catalogue: Catalogue) -> None:
        self._site = site
        self._catalogue = catalogue
        self._recogniser = Recogniser(catalogue)

    async def around(self, attempt: Attempt, began: datetime) -> tuple[Told, ...]:
        """What was told of the attempt's nodes since a minute before the interruption began."""
        since = began - PLATFORM_WINDOW - CLOCKS
        rows = await self._site.ledger.rows(kind=RowKind.FAULT, since=since, limit=MOST_ROWS)
        return tuple(self._told(rows, attempt))

    def _told(self, rows: tuple[Row, ...], attempt: Attempt) -> Iterator[Told]:
        for row in rows:
            fault = _fault(row) if row.cluster == self._site.cluster else None
            if fault is None or fault.cleared or not concerns(fault, row.node, attempt):
                continue
            if _another_jobs(fault, attempt):
                continue
            if signature := self._signature(fault):
                kind = Source.AGENT if fault.source == "host" else Source(fault.source)
                yield Told(row.node, kind, signature.id, fault.text, fault.at, fault.gpu)

    def _signature(self, fault: NodeFault) -> Signature | None:
        if fault.kind in GPU_FAULTS:
            return self._recogniser.signature(fault)
        signatures = self._catalogue.signatures
        for known in filter(None, map(signatures.get, _ALTERNATIVES.get(fault.kind, ()))):
            if any(re.search(pattern, fault.text) for pattern in known.expressions):
                return known
        return signatures.get(_OTHERWISE.get(fault.kind, ""))


def _another_jobs(fault: NodeFault, attempt: Attempt) -> bool:
    owner = _JOB.search(fault.text) if fault.kind is FaultKind.OOM_KILL else None
    return owner is not None and int(owner[1]) != attempt.key.job_id


def _fault(row: Row) -> NodeFault | None:
    """The fault of a row; None for one that a newer version has written."""
    try:
        return NodeFault.model_validate(row.body.get("fault"))
    except ValidationError:
        return None
