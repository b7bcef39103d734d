"""Whether a detection is true and still stands, judged from a fresh look. Pure."""

from collections.abc import Sequence
from datetime import datetime, timedelta

from relight.domain.attempts import Attempt, Progress
from relight.domain.base import Value
from relight.domain.endings import HUNG_UNTIL_LIMIT
from relight.domain.evidence import GOES_ON, Detection, Interruption
from relight.domain.hands import requeued
from relight.domain.incidents import Incident, Outcome
from relight.domain.policy import LOSES_TIME
from relight.domain.silence import lost_before_slurm
from relight.domain.slurm import ENDED, ENDED_BADLY, JobRecord, JobState
from relight.domain.watching import alive

FAULT_SILENCE = timedelta(seconds=60)
"""Silence after which a fault that ends programs has ended this one, although Slurm still shows it running."""
FAULT_DECIDES_WITHIN = timedelta(seconds=120)
"""How long a faulty GPU's job may neither move nor end before the fault counts as not confirmed."""
STEP_IN_FLIGHT = timedelta(seconds=5)
"""A step line so soon after a fault may be of a step that was done before it."""


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
    now: datetime | None = None,
    ends_programs: bool = False,
    heard_again: bool = False,
) -> Judgement | None:
    """The judgement, or None when it cannot be told yet: look again.

    Args:
        attempt: what the detection is about.
        detection: what was found.
        record: the job now; None when slurmctld does not know it any more.
        progress: how far training has come.
        node_still_lost: for a lost node, whether Slurm still calls it so.
        earlier: other incidents of the same attempt.
        now: our clock; without it silence is not told, nor when to stop looking.
        ends_programs: for a GPU fault, whether the catalogue says that the program on that GPU is lost by it.
        heard_again: for a node that was silent, whether its agent beats again.
    """
    running = record is not None and alive(attempt.key, record)
    old = _already_handled(detection, earlier, running=running)
    if old:
        return old
    if detection.kind in {Interruption.HANG, *LOSES_TIME} and not _hung_until_limit(detection):
        return _still_runs(detection, record, progress, running=running)
    if record is not None and record.state is JobState.UNKNOWN and not requeued(attempt, record):
        return None
    if record is None or not running:
        return _is_over(attempt, detection, record)
    if detection.kind is Interruption.GPU_FAULT:
        suspended = record.state is JobState.SUSPENDED
        return _fault(detection, progress, now, ends_programs=ends_programs and not suspended)
    waits = detection.kind is Interruption.NODE_LOST and node_still_lost
    return None if waits else _runs(detection, progress, heard_again=heard_again)


def _is_over(attempt: Attempt, detection: Detection, record: JobRecord | None) -> Judgement:
    seen = f"Slurm shows {record.state}" if record else "Slurm no longer knows the job"
    well = record is not None and record.state in ENDED - ENDED_BADLY and not requeued(attempt, record)
    if well and detection.kind is Interruption.GPU_FAULT:
        return Judgement(outcome=Outcome.NOT_CONFIRMED, reason=f"the attempt ended, but not by the fault: {seen}")
    return Judgement(reason=f"the attempt is no longer running: {seen}")


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
    """True where a hang or a fault was left alone and the attempt has now ended: another interruption, not an echo.

    One that was superseded has answered nothing, not even itself.
    """
    if incident.outcome is Outcome.SUPERSEDED:
        return incident.kind in GOES_ON
    if incident.outcome not in _LEFT_RUNNING:
        return False
    if incident.kind is Interruption.GPU_FAULT:
        later = incident.closed_at is not None and detection.detected_at > incident.closed_at
        return later and detection.kind in {Interruption.CRASH, Interruption.NODE_LOST}
    return incident.kind in {Interruption.HANG, *LOSES_TIME} and detection.kind is not incident.kind


def _hung_until_limit(detection: Detection) -> bool:
    """True for a hang that was told from the attempt's end: that it has ended does not speak against it."""
    return any(evidence.signature == HUNG_UNTIL_LIMIT for evidence in detection.evidence)


def _still_runs(
    detection: Detection, record: JobRecord | None, progress: Progress, *, running: bool
) -> Judgement | None:
    """What is found of an attempt in the middle of its run: it must still run, and still be so."""
    if record is None or not running:
        return Judgement(
            outcome=Outcome.NOT_CONFIRMED, reason="the attempt is no longer running; its end is judged on its own"
        )
    if record.state is JobState.UNKNOWN:
        return None
    if detection.kind in LOSES_TIME:
        return _loses_time(detection, progress)
    if record.state is JobState.SUSPENDED:
        return Judgement(outcome=Outcome.NOT_CONFIRMED, reason="the job is suspended: a suspended job does not hang")
    if moved_since(detection, progress):
        return Judgement(outcome=Outcome.NOT_CONFIRMED, reason=f"training has moved on to step {progress.last_step}")
    return Judgement(reason=f"still running, and still silent since step {progress.last_step}")


def _overdue(progress: Progress) -> timedelta:
    """The time of two step lines: within it the next one may well come."""
    return 2 * timedelta(seconds=(progress.step_seconds or 0.0) * progress.stride)


def _goes_on(detection: Detection, progress: Progress) -> Judgement | None:
    """Not confirmed when a step has come that cannot have been in flight."""
    step = progress.last_step_at
    if step is None or step - detection.detected_at < max(STEP_IN_FLIGHT, _overdue(progress)):
        return None
    return Judgement(outcome=Outcome.NOT_CONFIRMED, reason=f"training goes on: step {progress.last_step}")


def _runs(detection: Detection, progress: Progress, *, heard_again: bool) -> Judgement | None:
    """An attempt that Slurm shows running. With a node that is silent, it may only not have given that node up yet."""
    node = lost_before_slurm(detection)
    if not node:
        return Judgement(outcome=Outcome.NOT_CONFIRMED, reason="the attempt is running")
    if heard_again:
        return Judgement(outcome=Outcome.NOT_CONFIRMED, reason=f"the agent of {node} is heard of again")
    return _goes_on(detection, progress)


def _fault(detection: Detection, progress: Progress, now: datetime | None, *, ends_programs: bool) -> Judgement | None:
    """A GPU fault under a running attempt: it may go on, and its silence proves nothing at once."""
    if (goes_on := _goes_on(detection, progress)) or now is None:
        return goes_on
    at, step, overdue = detection.detected_at, progress.last_step_at, _overdue(progress)
    if ends_programs and step is not None and now - max(at, step) >= max(FAULT_SILENCE, overdue):
        seconds = (now - max(at, step)).total_seconds()
        return Judgement(reason=f"the fault ends programs, and no step has come for {seconds:.0f} s")
    if now - at >= FAULT_DECIDES_WITHIN:
        reason = "the attempt still runs; whether training goes on cannot be told from its output"
        return Judgement(outcome=Outcome.NOT_CONFIRMED, reason=reason)
    return None


def _loses_time(detection: Detection, progress: Progress) -> Judgement:
    """A slow-down or wrong numbers, which may have passed since."""
    slow = detection.kind is Interruption.STRAGGLER
    if (progress.slow_since if slow else progress.wrong_since) is None:
        text = "training is as fast as before again" if slow else "the numbers are in order again"
        return Judgement(outcome=Outcome.NOT_CONFIRMED, reason=f"{text}, at step {progress.last_step}")
    return Judgement(reason=f"still running, and still so at step {progress.last_step}")


def moved_since(detection: Detection, progress: Progress) -> bool:
    """True when a step became visible after the detection."""
    return progress.last_step_at is not None and progress.last_step_at > detection.detected_at
