"""What a fault asks for beyond that the node reads well now: by NVIDIA's catalogue of Xids, and ours."""

import re
from collections.abc import Iterable
from datetime import datetime

from relight.activities.faults import GPU_FAULTS, Recogniser
from relight.attribution.catalogue import Catalogue
from relight.attribution.signature import Retry, Role, Signature
from relight.attribution.xids import xids
from relight.domain.base import clip
from relight.domain.care import Remedy, Repair
from relight.domain.diagnosis import Category
from relight.domain.evidence import Evidence
from relight.domain.reports import FaultKind, NodeFault

_XID = re.compile(r"\bXid\b\s*(?:\([^)]{0,40}\)\s*)?:?\s*(\d{1,3})\b")
_MILD = ("IGNORE", "RESTART_APP", "UPDATE_SWFW", "CHECK_APP", "CHECK_UVM", "WORKFLOW_XID_45", "RESTART_FM")
"""What NVIDIA asks for that no hands are needed for, or that is not about this GPU."""
_ADVISED = (
    ("reboot", Remedy.REBOOT),
    ("reset", Remedy.RESET),
    ("drain", Remedy.RESET),
    ("recover", Remedy.RESET),
)
"""What the driver's own advice (Xid 154, NVML's recovery action) says, in its words (nvml.h)."""


def asked_by_xid(number: int, text: str) -> Remedy:
    """What NVIDIA asks for at once after this Xid; of one that its catalogue does not have, that somebody looks."""
    known = xids().get(number)
    immediate = known.immediate if known else ""
    if immediate == "XID_154":
        advice = text.lower()
        return next((remedy for word, remedy in _ADVISED if word in advice), Remedy.NONE)
    if known is None or not immediate:
        return Remedy.REPLACE
    if immediate.startswith(_MILD):
        return Remedy.NONE
    if immediate.startswith(("RESTART_BM", "RESTART_VM")):
        return Remedy.REBOOT
    if immediate.startswith(("CONTACT_SUPPORT", "CHECK_MECHANICALS")):
        return Remedy.REPLACE
    return Remedy.RESET


class Repairs:
    """Knows what faults ask for."""

    def __init__(self, catalogue: Catalogue) -> None:
        self._catalogue = catalogue
        self._recogniser = Recogniser(catalogue)

    def of_faults(self, faults: Iterable[NodeFault]) -> tuple[Repair, ...]:
        """What the agent's faults ask for."""
        found = []
        for fault in faults:
            remedy = self._of_fault(fault)
            if remedy is not Remedy.NONE:
                found.append(Repair(remedy=remedy, text=clip(fault.text, 200), at=fault.at, gpu=fault.gpu))
        return tuple(found)

    def of_evidence(self, evidence: Iterable[Evidence], otherwise: datetime) -> tuple[Repair, ...]:
        """What the witnesses ask for on whose word the node was set aside."""
        found = []
        for each in evidence:
            remedy = self._of_text(each.text, each.signature)
            if remedy is not Remedy.NONE:
                at = min(each.at or otherwise, otherwise)
                found.append(Repair(remedy=remedy, text=clip(each.text, 200), at=at, gpu=each.gpu or ""))
        return tuple(found)

    def bad(self, faults: Iterable[NodeFault]) -> tuple[str, ...]:
        """Those that a node at rest does not have, in words."""
        return tuple(clip(fault.text, 200) for fault in faults if self._recogniser.interrupts(fault))

    def _of_fault(self, fault: NodeFault) -> Remedy:
        if fault.cleared or fault.kind not in GPU_FAULTS:
            return Remedy.NONE
        if fault.xid is not None:
            return asked_by_xid(fault.xid, fault.text)
        if fault.kind is FaultKind.RECOVERY_ACTION:
            return asked_by_xid(154, fault.text)
        if fault.kind is FaultKind.ROW_REMAP:
            return Remedy.REPLACE if "failure" in fault.text.lower() else Remedy.RESET
        if fault.kind is FaultKind.GPU_LOST:
            return Remedy.REBOOT
        return _of_signature(self._recogniser.signature(fault))

    def _of_text(self, text: str, signature: str | None) -> Remedy:
        if found := _XID.search(text):
            return asked_by_xid(int(found[1]), text)
        known = self._catalogue.signatures.get(signature or "")
        if known and len(known.xids) == 1:
            return asked_by_xid(known.xids[0], text)
        return _of_signature(known)


def _of_signature(signature: Signature | None) -> Remedy:
    if signature is None:
        return Remedy.NONE
    if signature.retry is Retry.AFTER_RESET:
        return Remedy.RESET
    # A GPU's own failure without a number: nobody says that it passes by itself.
    return Remedy.RESET if signature.category is Category.GPU and signature.role is Role.ROOT else Remedy.NONE
