"""Which of the faults that node agents report interrupt a job, and what the catalogue calls them."""

import re
from collections.abc import Collection
from datetime import datetime

from relight.attribution.catalogue import Catalogue, Role, Signature
from relight.attribution.xids import TEXT_DECIDES
from relight.domain.attempts import Attempt
from relight.domain.base import short_hash
from relight.domain.diagnosis import Action, Category
from relight.domain.evidence import PLATFORM_WINDOW, Detection, Evidence, Interruption, Source
from relight.domain.reports import FaultKind, NodeFault

GPU_FAULTS = frozenset(
    {
        FaultKind.XID,
        FaultKind.SXID,
        FaultKind.GPU_LOST,
        FaultKind.RECOVERY_ACTION,
        FaultKind.ECC,
        FaultKind.ROW_REMAP,
        FaultKind.NVLINK,
    }
)
_BY_KIND = {FaultKind.GPU_LOST: "NVML_GPU_LOST", FaultKind.RECOVERY_ACTION: "XID_154"}
"""For what NVML tells without a line of the driver's."""
_SOURCES = {
    "nvml": Source.NVML,
    "kernel_log": Source.KERNEL_LOG,
    "dcgm": Source.DCGM,
    "exporter": Source.EXPORTER,
}


class Recogniser:
    """Knows the catalogue's signatures of GPU faults."""

    def __init__(self, catalogue: Catalogue) -> None:
        self._catalogue = catalogue
        gpu = [one for one in catalogue.signatures.values() if one.category is Category.GPU or _names_xid(one)]
        # The surest first: one line may fit several.
        self._known = [
            (one, re.compile(pattern))
            for one in sorted(gpu, key=lambda one: (one.generic, -one.weight))
            for pattern in one.expressions
        ]

    def signature(self, fault: NodeFault) -> Signature | None:
        """What the catalogue calls the fault; None when it does not know it."""
        for one, pattern in self._known:
            if pattern.search(fault.text):
                return one
        for one in self._catalogue.signatures.values():
            if fault.xid is not None and fault.xid in one.xids:
                return one
        return self._catalogue.signatures.get(_BY_KIND.get(fault.kind, ""))

    def interrupts(self, fault: NodeFault) -> bool:
        """True for a fault that may end what runs on the GPU. One that the catalogue does not know may.

        Not: the end of a state, what the catalogue says to live with (Xid 63), echoes (Xid 45), a remapping that
        waits for the next reset, a number of DCGM's that may mean nothing.
        """
        if fault.kind not in GPU_FAULTS or fault.cleared:
            return False
        if fault.kind is FaultKind.ROW_REMAP and "failure" not in fault.text.lower():
            return False
        if fault.source in {"dcgm", "exporter"} and fault.xid in TEXT_DECIDES:
            return False
        known = self.signature(fault)
        return known is None or (known.role is Role.ROOT and known.action is not Action.NONE)


def _names_xid(signature: Signature) -> bool:
    return any("Xid" in pattern for pattern in signature.expressions)


def ends_programs(detection: Detection, catalogue: Catalogue) -> bool:
    """Whether the catalogue says that the program on the faulty GPU is lost."""
    named: Collection[str] = {e.signature for e in detection.evidence if e.signature}
    return any(catalogue[name].role is Role.ROOT for name in named if name in catalogue)


def concerns(fault: NodeFault, node: str, attempt: Attempt) -> bool:
    """True when the attempt holds the node, and did so when the fault happened, or within a minute after it.

    A fault that is told late, because the agent could not reach us, is not the next job's. The node's clock and
    Slurm's may differ by less than that minute. Where it is not known to the second when the fault happened, the
    attempt must have been there all the while: it may have been the job's before, which went down with it.
    """
    started = attempt.record.start_time
    if node not in attempt.record.nodes or started is None:
        return node in attempt.record.nodes
    return fault.at >= started - PLATFORM_WINDOW if fault.after is None else fault.after >= started


def fault_name(node: str, fault: NodeFault) -> str:
    """A short name of the fault, the same each time it is told."""
    return f"{fault.kind}/{short_hash(f'{node}/{fault.id}', 16)}"


def gpu_fault(attempt: Attempt, node: str, fault: NodeFault, signature: Signature | None, now: datetime) -> Detection:
    """The finding that a GPU of a running attempt has failed, with the word of who told it."""
    evidence = Evidence(
        source=_SOURCES.get(fault.source, Source.NVML),
        text=fault.text,
        signature=signature.id if signature else None,
        node=node,
        gpu=fault.gpu or None,
        at=fault.at,
    )
    return Detection(
        id=f"{attempt.key}/gpu_fault/{fault_name(node, fault)}",
        attempt=attempt.key,
        kind=Interruption.GPU_FAULT,
        detected_at=now,
        occurred_at=fault.at,
        evidence=(evidence,),
    )
