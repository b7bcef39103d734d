"""What is found about an attempt that goes on: slower than itself, or with numbers that are wrong. Pure."""

from datetime import datetime
from typing import Any

from relight.domain.attempts import Attempt, AttemptKey
from relight.domain.base import Value
from relight.domain.evidence import Detection, Evidence, Interruption, Source
from relight.domain.numerics import Numbers, NumericsFinding
from relight.domain.rhythm import Rhythm, again
from relight.domain.straggler import Pace, Slowdown, restarted

SLOWER_THAN_ITSELF = "SLOWER_THAN_ITSELF"
"""Signature of the evidence of a sustained loss of throughput, at steps of the same work."""
SLOWER_STEPS = "SLOWER_STEPS"
"""The same where a step's work is not printed: longer sequences or larger batches would look alike."""


class Learnt(Value):
    """What the follower has learnt of a job, kept under the cursor `learnt_cursor`; six kilobytes at most."""

    rhythm: Rhythm = Rhythm()
    pace: Pace = Pace()
    numbers: Numbers = Numbers()
    source: str = ""
    """The file whose steps count."""
    fatal: Evidence | None = None
    """A line that says that the attempt is lost, while no step has followed it."""

    def next_attempt(self, *, same_size: bool) -> "Learnt":
        """What it teaches about the job's next attempt; its pace only where that has as many nodes."""
        return Learnt(rhythm=again(self.rhythm), pace=restarted(self.pace) if same_size else Pace())


def learnt_cursor(key: AttemptKey) -> str:
    """Name of the ledger cursor that holds what was learnt of an attempt."""
    return f"learnt/{key}"


def slow_detection(attempt: Attempt, slow: Slowdown, now: datetime) -> Detection:
    """The finding that an attempt has become slower than itself; one for each slow-down."""
    text = (
        f"steps take {slow.ratio - 1:.0%} longer since step {slow.since_step}: {slow.recent_seconds:.3g} s instead of "
        f"{slow.baseline_seconds:.3g} s, over {slow.steps} steps"
    )
    if not slow.by_work:
        text += "; the work of a step is not printed: longer sequences or larger batches would look alike"
    signature = SLOWER_THAN_ITSELF if slow.by_work else SLOWER_STEPS
    return _detection(attempt, Interruption.STRAGGLER, slow.since_step, text, now, signature=signature)


def numerics_detection(attempt: Attempt, finding: NumericsFinding, now: datetime) -> Detection:
    """The finding that an attempt's numbers are wrong; one for each first wrong step."""
    text = f"{finding.text}, since step {finding.step}"
    return _detection(attempt, Interruption.NUMERICS, finding.step, text, now, signature=str(finding.kind).upper())


def _detection(attempt: Attempt, kind: Interruption, step: int, text: str, now: datetime, **evidence: Any) -> Detection:
    return Detection(
        id=f"{attempt.key}/{kind}/{step}",
        attempt=attempt.key,
        kind=kind,
        detected_at=now,
        evidence=(Evidence(source=Source.PROGRESS, text=text, at=now, **evidence),),
    )
