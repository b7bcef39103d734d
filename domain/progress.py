"""When silence means a hang, and how far training has come.

The limit of silence comes from the job's own rhythm (`rhythm`), which this module passes on to its users.
"""

from collections.abc import Sequence
from datetime import datetime, timedelta
from itertools import pairwise
from statistics import median, quantiles

from relight.domain.attempts import Attempt, Progress
from relight.domain.base import Value
from relight.domain.evidence import MAX_EVIDENCE_PER_SIGNAL, Answer, Detection, Evidence, Interruption, Source
from relight.domain.power import POWER_FELL
from relight.domain.recurrence import is_due, is_forgotten, may_begin
from relight.domain.rhythm import (
    MIN_GAPS,
    WARM_UP,
    Phase,
    PhaseGaps,
    Rhythm,
    Sign,
    again,
    hidden_steps,
    p99,
    with_arrival,
    with_signs,
)
from relight.domain.stacks import STACKS_IDENTICAL
from relight.domain.standstill import STANDS_STILL

__all__ = [
    "CPU_FELL",
    "FATAL_IN_FLIGHT",
    "FATAL_STEPS",
    "MIN_GAPS",
    "WITNESSES",
    "CpuSample",
    "HangPolicy",
    "Phase",
    "Rhythm",
    "Sign",
    "again",
    "cpu_fell",
    "cpu_rate",
    "hang_detection",
    "limit_after_fatal",
    "passed",
    "percentile",
    "silence_limit",
    "standstill_limit",
    "stride",
    "with_arrival",
    "with_signs",
    "witness",
]


HABIT = 3
"""What was seen so often is a habit."""


class HangPolicy(Value):
    """How long silence may last."""

    floor: timedelta = timedelta(seconds=29)
    """Never sooner than this: with the look that finds it, 30 s."""
    steps: float = 5.0
    """Times the job's own step time."""
    gaps: float = 3.0
    """Times the 99th percentile of the file's own arrival gaps; of a phase's gaps, times the longest."""
    phase: timedelta = timedelta(minutes=2)
    """Never sooner than this within an announced phase: how long a checkpoint takes is up to a shared file system."""
    unlearned: timedelta = timedelta(minutes=10)
    """The limit until enough gaps are known, and for what may be a first checkpoint or evaluation."""
    startup: timedelta = timedelta(minutes=30)
    """The limit before the first step line: loading, compiling, first collectives; also after the last step."""


FATAL_LINE = HangPolicy(floor=timedelta(seconds=20), steps=2.5, gaps=1.5, phase=timedelta(minutes=1))
"""The patience with a job that has printed that it is lost.

A caught exception prints the same line, so its next step must be overdue by the job's own rhythm all the same. What is
not known yet gets no less time than ever, and neither does a start-up, where the line may be of an attempt before.
"""
FATAL_IN_FLIGHT = timedelta(seconds=5)
"""A step line so soon after a fatal one may be of a step that was done before it."""
FATAL_STEPS = 3
"""So many step lines that become visible together, behind the fatal one, are training that goes on."""


def limit_after_fatal(rhythm: Rhythm, policy: HangPolicy, *, stepped: bool) -> timedelta:
    """How long an attempt may be silent after a line that says that it is lost: never longer than without it."""
    limit = silence_limit(rhythm, policy, stepped=stepped)
    return min(limit, silence_limit(rhythm, FATAL_LINE, stepped=True)) if stepped else limit


def standstill_limit(rhythm: Rhythm, policy: HangPolicy, *, stepped: bool) -> timedelta:
    """How long this job may be silent where it is seen to do nothing at all (`standstill`).

    Only what may come for the first time is not waited for then. What the job is known to do, or has announced, it is
    given time for whatever is seen: this happens at each checkpoint of each job, the other at a few steps of a job.
    """
    return silence_limit(rhythm, policy, stepped=stepped, first_times=False)


def silence_limit(rhythm: Rhythm, policy: HangPolicy, *, stepped: bool, first_times: bool = True) -> timedelta:
    """How long this job may be silent, from its last sign of life on, before it counts as hanging.

    `max(floor, steps x step time, gaps x p99 of the file's gaps)` once the rhythm is known; longer within a phase that
    takes longer, and after a step at which a long gap is due or may come for the first time.

    Args:
        rhythm: how its lines arrive.
        policy: how long silence may last.
        stepped: whether it has printed a step.
        first_times: whether to wait for what may come for the first time.
    """
    # Until ordinary gaps are known, the first ones of buffered output tell how long a buffer takes to fill.
    gap = p99(rhythm) if rhythm.known else rhythm.phases.get(Phase.STARTUP, PhaseGaps(0, 0.0)).longest
    by_gap = timedelta(seconds=policy.gaps * gap)
    if not stepped:
        return policy.startup + by_gap
    if rhythm.opened is Phase.END:
        return timedelta.max
    limit = max(policy.floor, timedelta(seconds=policy.steps * (rhythm.step_seconds or 0.0)), by_gap)
    if not rhythm.known or rhythm.arrivals < WARM_UP:
        limit = max(limit, policy.unlearned)
    if rhythm.opened:
        limit = max(limit, _phase_limit(rhythm, rhythm.opened, policy))
    return max(limit, _long_limit(rhythm, policy, by_gap, first_times=first_times))


def _phase_limit(rhythm: Rhythm, phase: Phase, policy: HangPolicy) -> timedelta:
    seen, longest = rhythm.phases.get(phase, PhaseGaps(0, 0.0))
    limit = max(policy.phase, timedelta(seconds=policy.gaps * longest))
    if phase in (Phase.STARTUP, Phase.COMPILE):
        return max(limit, policy.startup)
    return limit if seen >= HABIT else max(limit, policy.unlearned)


def _long_limit(rhythm: Rhythm, policy: HangPolicy, by_gap: timedelta, *, first_times: bool) -> timedelta:
    """The patience for long gaps that no line announces; zero when none is to be expected.

    Of what was never seen not even the length is known: what a buffer holds back (`by_gap`) comes on top.
    """
    limit = timedelta(0)
    step, since, reach = rhythm.step, rhythm.since, hidden_steps(rhythm)
    if step is not None and since is not None:
        if rhythm.total is not None and step + reach >= rhythm.total:
            return policy.startup + by_gap
        if first_times and may_begin(since, step, reach):
            limit = policy.unlearned + by_gap
    for kind in rhythm.long:
        if step is not None and since is not None and is_forgotten(kind, since, step, reach):
            continue
        if step is not None and is_due(kind, step, reach):
            limit = max(limit, timedelta(seconds=policy.gaps * kind.longest))
        # What comes at any step counts twice; what came only once must not make the model blind.
        stray = timedelta(seconds=2 * kind.irregular)
        limit = max(limit, min(stray, policy.unlearned) if len(kind.gaps) == 1 else stray)
    return limit


def percentile(values: Sequence[float], percent: int) -> float:
    """The `percent`-th percentile, 1 to 99, by linear interpolation; a single value is its own."""
    if len(values) == 1:
        return values[0]
    if percent == 50:  # noqa: PLR2004 - the median by its definition
        return float(median(values))
    return quantiles(values, n=100, method="inclusive")[percent - 1]


def stride(steps: Sequence[int], known: int) -> int:
    """Steps from one step line to the next: the newest forward difference, or what was known before."""
    forward = [b - a for a, b in pairwise(steps) if b > a]
    return forward[-1] if forward else known


def passed(progress: Progress, failed_step: int | None) -> bool:
    """Whether training has passed the point where it failed.

    The last line seen before a failure is of the step before the one that failed, and one more line may have been lost
    with the process: the same failure at the same step was seen once as 28 and once as 29. So two lines beyond count.
    """
    if progress.last_step is None:
        return False
    return failed_step is None or progress.last_step >= failed_step + 2 * progress.stride


CPU_FELL = "CPU_FELL"
"""Signature of the evidence that a job's CPU use fell away."""
IDLE_SHARE = 0.10
"""CPU time a second below this share of the job's own baseline counts as fallen silent."""


WITNESSES = frozenset({CPU_FELL, POWER_FELL, STACKS_IDENTICAL, STANDS_STILL})
"""Signatures of evidence that bears out a hang."""


def cpu_fell(baseline: float | None, recent: float | None) -> bool | None:
    """Whether CPU use fell away: True, False, or None when either rate is unknown.

    Rates are CPU seconds per second over all tasks. A collective that spins keeps the CPU busy, so *not
    fallen* proves nothing; *fallen* is a witness beside the silence of the log.
    """
    if baseline is None or recent is None or baseline <= 0:
        return None
    return recent < IDLE_SHARE * baseline


def witness(detection: Detection) -> Answer:
    """Whether something beside the silence of the log shows the hang.

    A line that says that the attempt is lost is one once training has begun; before, it may be of an earlier attempt.
    """
    begun = not detection.id.endswith("/hang/start")
    told = any(
        e.signature in WITNESSES or (begun and e.source is Source.JOB_LOG and e.signature) for e in detection.evidence
    )
    return Answer.YES if told else Answer.UNKNOWN


class CpuSample(Value):
    """CPU time that all tasks of a job had used at a time."""

    at: datetime
    used: timedelta


def cpu_rate(first: CpuSample | None, second: CpuSample | None) -> float | None:
    """CPU seconds per second between two samples; None when either is missing or they are not apart."""
    if first is None or second is None or second.at <= first.at:
        return None
    return max(0.0, (second.used - first.used) / (second.at - first.at))


def hang_detection(
    attempt: Attempt,
    last_step: int | None,
    silent: timedelta,
    limit: timedelta,
    *,
    baseline: float | None,
    recent: float | None,
    now: datetime,
    fatal: Evidence | None = None,
    more: Sequence[Evidence] = (),
) -> Detection:
    """The finding that an attempt has been silent for too long, with its other witnesses.

    Args:
        attempt: which.
        last_step: its newest step.
        silent: for how long.
        limit: how long it may.
        baseline: its ordinary CPU seconds a second.
        recent: the same since it fell silent.
        now: when this is found.
        fatal: the line in its output that says that it is lost.
        more: what its GPUs and stacks tell.
    """
    where = f"since step {last_step}" if last_step is not None else "since it started"
    text = f"no step for {silent.total_seconds():.0f} s {where} (limit {limit.total_seconds():.0f} s)"
    evidence = [Evidence(source=Source.PROGRESS, text=text, at=now)]
    if cpu_fell(baseline, recent):
        text = f"CPU use of all tasks fell from {baseline:.2f} to {recent:.2f} CPU seconds a second"
        evidence.append(Evidence(source=Source.SLURMCTLD, text=text, signature=CPU_FELL, at=now))
    if fatal:
        evidence.append(fatal)
    evidence += more[: MAX_EVIDENCE_PER_SIGNAL - len(evidence)]
    return Detection(
        id=f"{attempt.key}/hang/{last_step if last_step is not None else 'start'}",
        attempt=attempt.key,
        kind=Interruption.HANG,
        detected_at=now,
        occurred_at=now - silent,
        evidence=tuple(evidence),
    )
