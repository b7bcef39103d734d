"""Many findings about one attempt made into few signals: a fabric fault is told by two thousand nodes at once.

A workflow takes 10,000 signals (the 10,001st is refused: seen), and each is four events of its history. Nothing is
lost by folding: every finding is a row of the ledger.
"""

from collections.abc import Sequence
from datetime import timedelta

from relight.domain.evidence import MAX_EVIDENCE_PER_SIGNAL, Detection, Evidence, Trust

SIGNALS_APART = timedelta(seconds=2)
"""Between two signals to the same incident."""
MAX_SIGNALS = 200
"""To one incident; what comes then is in the ledger alone, unless it is the first of its kind."""
MAX_SIGNAL_BYTES = 16 << 10
"""Of a signal's detection as JSON."""


def fold(detections: Sequence[Detection]) -> Detection:
    """One detection that stands for all of these, which are of one attempt and one kind, oldest first.

    It is the newest of them, with as much of their evidence as a signal may carry: each different piece once, the
    platform's first.
    """
    newest = detections[-1]
    if len(detections) == 1 and _size(newest) <= MAX_SIGNAL_BYTES:
        return newest
    found: dict[tuple[object, ...], Evidence] = {}
    for piece in sorted(
        (piece for detection in detections for piece in detection.evidence),
        key=lambda piece: piece.trust is not Trust.PLATFORM,
    ):
        found.setdefault((piece.source, piece.signature, piece.node, piece.gpu, piece.text), piece)
    update = {"evidence": (), "folded": len(detections) - 1}
    room = MAX_SIGNAL_BYTES - _size(newest.model_copy(update=update))
    kept: list[Evidence] = []
    for piece in found.values():
        size = len(piece.model_dump_json().encode()) + 1
        if len(kept) < MAX_EVIDENCE_PER_SIGNAL and size <= room:
            kept.append(piece)
            room -= size
    return newest.model_copy(update={**update, "evidence": tuple(kept)})


def _size(detection: Detection) -> int:
    return len(detection.model_dump_json().encode())
