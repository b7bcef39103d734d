"""Whether a detection is true and still stands, judged from a fresh look. Pure."""

from collections.abc import Sequence

from relight.domain.attempts import Attempt, Progress
from relight.domain.base import Value
from relight.domain.evidence import Detection, Interruption
from relight.domain.incidents import Incident, Outcome
from relight.domain.policy import requeued
from relight.domain.slurm import JobRecord, JobState
from relight.domain.watching import alive


class Judgement(Value):
    """Confirmed (no outcome) or how the incident ends here."""

    outcome: Outcome | None = None
    reason: str


def judge(
    attempt: Attempt,
    detection: Detection,
    record: JobRecord | None,
    *,
    progress: Progress,
    node_still_lost: bool,
    earlier: Sequence[Incident],
) -> Judgement | None:
    """The judgement, or None when Slurm has not made up its mind yet: look again.

    `record` is None when slurmctld does not know the job any more; `earlier` are other incidents of the same attempt.
    """
    running = record is not None and alive(attempt.key, record)
    old = _already_handled(detection, earlier, running=running)
    if old:
        return old
    if detection.kind is Interruption.HANG:
        return _hang(detection, record, progress, running=running)
    if record is not None and record.state is JobState.UNKNOWN and not requeued(attempt, record):
        return None
    if not running:
        seen = f"Slurm shows {record.state}" if record else "Slurm no longer knows the job"
        return Judgement(reason=f"the attempt is no longer running: {seen}")
    if detection.kind is Interruption.NODE_LOST and node_still_lost:
        return None
    return Judgement(outcome=Outcome.NOT_CONFIRMED, reason="the attempt is running")


def _already_handled(detection: Detection, earlier: Sequence[Incident], *, running: bool) -> Judgement | None:
    """Workflow ids are the first deduplication, not the last: a late echo opens a second run (seen)."""
    for incident in earlier:
        if incident.open or incident.closed_at is None or incident.outcome is Outcome.NOT_CONFIRMED:
            continue
        if _other_end(incident, detection):
            continue
        if detection.detected_at <= incident.closed_at or not running:
            return Judgement(outcome=Outcome.NOT_CONFIRMED, reason=f"handled by incident {incident.id} already")
    return None


_LEFT_RUNNING = frozenset({Outcome.OBSERVED, Outcome.EXPIRED, Outcome.REJECTED, Outcome.OVERRIDDEN, Outcome.FAILED})


def _other_end(incident: Incident, detection: Detection) -> bool:
    """True where a hang was left alone and the attempt has now ended: that is another interruption, not an echo."""
    hang = Interruption.HANG
    return incident.kind is hang and detection.kind is not hang and incident.outcome in _LEFT_RUNNING


def _hang(detection: Detection, record: JobRecord | None, progress: Progress, *, running: bool) -> Judgement | None:
    if record is None or not running:
        return Judgement(
            outcome=Outcome.NOT_CONFIRMED, reason="the attempt is no longer running; its end is judged on its own"
        )
    if record.state is JobState.UNKNOWN:
        return None
    if record.state is JobState.SUSPENDED:
        return Judgement(outcome=Outcome.NOT_CONFIRMED, reason="the job is suspended: a suspended job does not hang")
    if moved_since(detection, progress):
        return Judgement(outcome=Outcome.NOT_CONFIRMED, reason=f"training has moved on to step {progress.last_step}")
    return Judgement(reason=f"still running, and still silent since step {progress.last_step}")


def moved_since(detection: Detection, progress: Progress) -> bool:
    """True when a step became visible after the detection."""
    return progress.last_step_at is not None and progress.last_step_at > detection.detected_at
