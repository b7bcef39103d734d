"""What the ledger says against one node, for its lemon score, and where its quarantine stands. Pure."""

from collections.abc import Iterable, Iterator, Sequence
from datetime import datetime
from typing import Protocol

from relight.domain.base import Value
from relight.domain.diagnosis import Diagnosis
from relight.domain.evidence import Trust
from relight.domain.ledger import Row, RowKind
from relight.domain.lemons import Sign, SignKind


class Diagnosed(Protocol):
    """What of an incident speaks for or against a node."""

    @property
    def id(self) -> str:
        """The incident's."""

    @property
    def detected_at(self) -> datetime:
        """When it was detected."""

    @property
    def diagnosis(self) -> Diagnosis | None:
        """None: there was none."""


def signs_of(node: str, incidents: Iterable[Diagnosed], rows: Iterable[Row]) -> Iterator[Sign]:
    """What speaks against the node.

    Args:
        node: which.
        incidents: recent ones, of any job.
        rows: the ledger's rows on this node, in the order written.
    """
    for incident in incidents:
        yield from _of_incident(node, incident)
    returned = False
    for row in rows:
        if row.node != node:
            continue
        if row.kind is RowKind.EFFECT and _changed(row):
            kind = SignKind.REPEATED if returned else SignKind.DRAINED
            yield Sign(kind, row.at, row.incident)
            returned = False
        elif row.kind is RowKind.CARE and row.body.get("outcome") == "returned":
            returned = True
        elif row.kind is RowKind.FAULT and row.body.get("attempts") is not None:
            yield from _of_fault(row)


def _changed(row: Row) -> bool:
    """Whether the row is the effect of a drain or a down that was made."""
    step, done = str(row.body.get("step", "")), row.body.get("done", {})
    return step.startswith(("drain-", "down-")) and not done.get("outcome") and done.get("done", True)


GPU_KINDS = frozenset({"xid", "sxid", "gpu_lost", "recovery_action", "ecc", "row_remap", "nvlink", "pcie"})
"""What an agent reports that speaks against a node (`reports.FaultKind`)."""


def _of_fault(row: Row) -> Iterator[Sign]:
    fault = row.body.get("fault", {})
    if fault.get("kind") in GPU_KINDS and not fault.get("cleared"):
        yield Sign(SignKind.FAULT, row.at, f"{fault.get('kind')}/{fault.get('xid') or ''}")


def _of_incident(node: str, incident: Diagnosed) -> Iterator[Sign]:
    if incident.diagnosis is None:
        return
    verdict = incident.diagnosis.verdict
    witnessed = any(e.node == node and e.trust is Trust.PLATFORM for e in verdict.evidence)
    if node in verdict.drain_nodes or (witnessed and node in verdict.implicated.nodes):
        yield Sign(SignKind.WITNESSED, incident.detected_at, incident.id)
    elif verdict.implicated.nodes == (node,):
        yield Sign(SignKind.FAILED_FIRST, incident.detected_at, incident.id)


class Quarantine(Value):
    """Where a node's newest quarantine stands, as the ledger's rows tell it."""

    node: str
    care: str
    """Its id."""
    incident: str
    phase: str
    outcome: str = ""
    text: str = ""
    """The last step, in words."""
    cls: str = ""
    since: datetime
    at: datetime
    """Of the last step."""
    ticket: str = ""
    next: str = ""
    """The last verdict: return, keep, hand over."""
    remedy: str = ""

    @property
    def open(self) -> bool:
        """True while the node is cared for."""
        return not self.outcome


def quarantines(rows: Sequence[Row], before: Iterable[Quarantine] = ()) -> tuple[Quarantine, ...]:
    """The newest quarantine of each node that the rows (kind `care`, in the order written) tell of.

    `before` is what earlier rows told.
    """
    newest = {each.node: each for each in before}
    for row in rows:
        body = row.body
        known = newest.get(row.node)
        if known is None or known.care != row.incident:
            known = None
        newest[row.node] = Quarantine(
            node=row.node,
            care=row.incident,
            incident=str(body.get("incident", "")),
            phase=str(body.get("phase", "")),
            outcome=str(body.get("outcome") or ""),
            text=str(body.get("text", "")),
            cls=str(body.get("cls") or (known.cls if known else "")),
            since=known.since if known else row.at,
            at=row.at,
            ticket=str(body.get("ticket") or (known.ticket if known else "")),
            next=str(body.get("next") or (known.next if known else "")),
            remedy=str(body.get("remedy") or (known.remedy if known else "")),
        )
    return tuple(newest[name] for name in sorted(newest))
