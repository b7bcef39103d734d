"""When silence means a hang: a model of the job's own rhythm.

Block-buffered output is normal (ten steps a second printed nothing for five seconds: seen), and a network
file system may show a change a minute late; so the limit comes from the arrival gaps of this very file, not
from the step time alone.
"""

from collections.abc import Sequence
from datetime import datetime, timedelta
from itertools import pairwise
from statistics import median, quantiles

from relight.domain.attempts import Attempt, Progress
from relight.domain.base import Value
from relight.domain.evidence import Detection, Evidence, Interruption, Source

MIN_GAPS = 8
"""Fewer gaps than this teach nothing about the file's rhythm."""


class HangPolicy(Value):
    """How long silence may last."""

    floor: timedelta = timedelta(seconds=30)
    """Never sooner than this."""
    steps: float = 5.0
    """Times the job's own step time."""
    gaps: float = 3.0
    """Times the 99th percentile of the file's own arrival gaps."""
    unlearned: timedelta = timedelta(minutes=10)
    """The limit until enough gaps are known."""
    startup: timedelta = timedelta(minutes=30)
    """The limit before the first step line: loading, compiling, first collectives."""


class Rhythm(Value):
    """What is known of how a job's step lines arrive."""

    gaps: tuple[float, ...] = ()
    """Seconds between arrivals of step lines, the newest last, at most `MAX_GAPS`."""
    step_seconds: float | None = None
    """Median seconds a step, as printed or as counted from arrivals."""


MAX_GAPS = 200


def with_arrival(rhythm: Rhythm, gap: float, steps: int, printed: float | None) -> Rhythm:
    """The rhythm after an arrival `gap` seconds after the last, which brought `steps` steps."""
    gaps = (*rhythm.gaps, gap)[-MAX_GAPS:]
    counted = gap / steps if steps > 0 else None
    newest = printed if printed is not None else counted
    old = rhythm.step_seconds
    step_seconds = newest if old is None or newest is None else old + (newest - old) * 0.2
    return Rhythm(gaps=gaps, step_seconds=step_seconds if step_seconds is not None else old)


def silence_limit(rhythm: Rhythm, policy: HangPolicy, *, stepped: bool) -> timedelta:
    """How long this job may be silent before it counts as hanging.

    `max(floor, steps x step time, gaps x p99 of the file's gaps)` once the rhythm is known.
    """
    if not stepped:
        return policy.startup
    if len(rhythm.gaps) < MIN_GAPS:
        return policy.unlearned
    by_step = policy.steps * (rhythm.step_seconds or 0.0)
    by_gap = policy.gaps * percentile(rhythm.gaps, 99)
    return max(policy.floor, timedelta(seconds=by_step), timedelta(seconds=by_gap))


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


def cpu_fell(baseline: float | None, recent: float | None) -> bool | None:
    """Whether CPU use fell away: True, False, or None when either rate is unknown.

    Rates are CPU seconds per second over all tasks. A collective that spins keeps the CPU busy, so *not
    fallen* proves nothing; *fallen* is a witness beside the silence of the log.
    """
    if baseline is None or recent is None or baseline <= 0:
        return None
    return recent < IDLE_SHARE * baseline


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
) -> Detection:
    """The finding that an attempt has been silent for too long, with the second witness where there is one."""
    where = f"since step {last_step}" if last_step is not None else "since it started"
    text = f"no step for {silent.total_seconds():.0f} s {where} (limit {limit.total_seconds():.0f} s)"
    evidence = [Evidence(source=Source.PROGRESS, text=text, at=now)]
    if cpu_fell(baseline, recent):
        text = f"CPU use of all tasks fell from {baseline:.2f} to {recent:.2f} CPU seconds a second"
        evidence.append(Evidence(source=Source.SLURMCTLD, text=text, signature=CPU_FELL, at=now))
    return Detection(
        id=f"{attempt.key}/hang/{last_step if last_step is not None else 'start'}",
        attempt=attempt.key,
        kind=Interruption.HANG,
        detected_at=now,
        occurred_at=now - silent,
        evidence=tuple(evidence),
    )
