"""Runs the models of hang, straggler and numerics over jobs that never ran, faster than time."""

import math
import time
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from random import Random
from statistics import median
from typing import Any, NamedTuple

from relight.domain.numerics import Numbers, with_losses
from relight.domain.progress import HangPolicy, Rhythm, again, percentile, silence_limit, with_signs
from relight.domain.straggler import Pace, restarted, with_steps
from relight.lab.replay_jobs import POLL_S, Fault, FaultKind, Job, Lag, Seen, follow, healthy_job, odd_job

RESTARTS_AFTER_S = 7200.0
"""Each second job is requeued after so long, and its next attempt followed with what was learnt."""
LIMIT_OFF = 1.1
"""A job's step time is known to a tenth, so `max(30 s, 5 x step time)` is too."""
TOLD_AS = {
    FaultKind.HANG: "hang",
    FaultKind.SLOW: "straggler",
    FaultKind.NAN: "numerics",
    FaultKind.EXPLODE: "numerics",
}


class Alarm(NamedTuple):
    """A model says that something is wrong."""

    kind: str
    at: float
    """Seconds since the attempt began."""
    step: int | None


@dataclass
class Following:
    """The three models of one attempt."""

    policy: HangPolicy = field(default_factory=HangPolicy)
    rhythm: Rhythm = field(default_factory=Rhythm)
    pace: Pace = field(default_factory=Pace)
    numbers: Numbers = field(default_factory=Numbers)
    arrival: float = 0.0
    lines: int = 0
    stepping: bool = False
    """Whether the job is known to print steps."""

    def take(self, seen: Seen) -> Iterator[Alarm]:
        """What the models say of lines that become visible together, and of the silence before them."""
        alarm = self.silence(seen.at)
        if alarm:
            yield alarm
        gap = seen.at - self.arrival
        rhythm = with_signs(self.rhythm, gap, seen.signs)
        if rhythm is not self.rhythm:
            self.rhythm, self.arrival = rhythm, seen.at
        steps = [sign for sign in seen.signs if sign.step is not None]
        self.lines += len(seen.signs)
        if not steps:
            return
        self.stepping = True
        was_slow, was_wrong = self.pace.slowdown, self.numbers.finding
        self.pace = with_steps(self.pace, [(sign.step or 0, sign.seconds, None) for sign in steps])
        self.numbers = with_losses(self.numbers, [(sign.step or 0, sign.loss, None) for sign in steps])
        slow = self.pace.slowdown
        if slow and not was_slow:
            yield Alarm("straggler", seen.at, slow.since_step + slow.steps - self.pace.stride)
        if self.numbers.finding and not was_wrong:
            yield Alarm("numerics", seen.at, steps[-1].step)

    def silence(self, until: float) -> Alarm | None:
        """The hang that is told when nothing becomes visible before `until`."""
        if not self.stepping:
            return None
        limit = silence_limit(self.rhythm, self.policy, stepped=self.rhythm.step is not None).total_seconds()
        return Alarm("hang", self.arrival + limit, self.rhythm.step) if until - self.arrival >= limit else None


def watch(job: Job, seconds: float, fault: Fault | None = None) -> tuple[list[Alarm], Following]:
    """The alarms over one attempt; one that hangs is watched until it is told."""
    following = Following()
    alarms = [alarm for seen in follow(job, seconds, fault) for alarm in following.take(seen)]
    if fault and fault.kind is FaultKind.HANG:
        alarms.extend(filter(None, [following.silence(math.inf)]))
    return alarms, following


def healthy(jobs: Iterable[Job], hours: float) -> dict[str, Any]:
    """Follow healthy jobs for so many hours each: false alarms by kind, job-hours, lines, CPU a line."""
    alarms: list[tuple[int, Alarm]] = []
    lines = count = 0
    began = time.process_time()
    for job in jobs:
        count += 1
        following = Following()
        left, attempt = hours * 3600, 0
        while left > 0:
            length = min(left, RESTARTS_AFTER_S) if job.seed % 2 else left
            for seen in follow(job, length, attempt=attempt):
                alarms.extend((job.seed, alarm) for alarm in following.take(seen))
            left, attempt = left - length, attempt + 1
            job = _requeued(job, following)  # noqa: PLW2901 - the same job, later
            following = Following(
                rhythm=again(following.rhythm), pace=restarted(following.pace), lines=following.lines, stepping=True
            )
        lines += following.lines
    spent = time.process_time() - began
    return {
        "healthy_job_hours": round(count * hours, 1),
        "false_alarms": len(alarms),
        "false_alarms_of": alarms[:50],
        "lines": lines,
        "cpu_us_per_line": round(spent / max(1, lines) * 1e6, 2),
    }


def _requeued(job: Job, following: Following) -> Job:
    """The job as it goes on: from the last round step, its run-up shorter than when all was new."""
    step = following.rhythm.step or job.first_step
    return replace(job, first_step=step // 50 * 50 + (job.first_step and 1))


def faulty(kind: FaultKind, trials: int, factor: float = 1.0, *, plain: bool = False) -> dict[str, Any]:
    """Break `trials` jobs: found, missed, alarms before the fault, and delay in seconds and in steps.

    `plain` jobs print each step at once; what is told of the others depends on their buffer and file system.
    """
    seconds, steps, over, early, missed = [], [], 0, 0, 0
    for seed in range(trials):
        job, fault, length = _broken(kind, 10_000 + seed, factor, plain=plain)
        at = _fault_time(job, fault, length)
        alarms, _ = watch(job, length, fault)
        found = [alarm for alarm in alarms if alarm.kind == TOLD_AS[kind] and alarm.at >= at]
        early += sum(alarm.at < at for alarm in alarms)
        if not found:
            missed += 1
            continue
        seconds.append(found[0].at - at)
        over += seconds[-1] > LIMIT_OFF * max(30.0, 5 * job.step_seconds) + POLL_S
        if kind is not FaultKind.HANG:
            steps.append(float((found[0].step or 0) - fault.step + 1))
    result = {"n": trials, "missed": missed, "early": early, "seconds": _summary(seconds), "steps": _summary(steps)}
    return result | ({"over_limit": over} if kind is FaultKind.HANG else {})


def _broken(kind: FaultKind, seed: int, factor: float, *, plain: bool) -> tuple[Job, Fault, float]:
    rng = Random(seed)
    job = healthy_job(seed)
    if plain:
        job = replace(job, stride=1, prints_seconds=True, block=0, lag=Lag.NONE, stalls=0.0)
    if kind is FaultKind.SLOW:
        job = replace(job, prints_seconds=True)
    # Known long enough to have a baseline, at a step that is not special.
    after = rng.randrange(300, 3000) if job.stride == 1 else rng.randrange(300, 1000) * job.stride
    step = after + job.first_step
    steps = after + (150 if kind is FaultKind.EXPLODE else 60) * job.stride
    pauses = sum(steps / pause.every * pause.seconds * 1.5 for pause in job.pauses)
    length = job.startup + 2 * job.compiling + steps * job.step_seconds * max(1.0, factor) * 1.3 + pauses + 4000
    return job, Fault(kind, step, factor), length


def _fault_time(job: Job, fault: Fault, length: float) -> float:
    """When the last good step became visible to somebody without buffer and lag."""
    at = 0.0
    for seen in follow(replace(job, block=0, lag=Lag.NONE, stride=1), length, Fault(FaultKind.HANG, fault.step)):
        at = seen.at
    return at


def _summary(values: list[float]) -> Mapping[str, float] | None:
    if not values:
        return None
    return {
        "p50": round(median(values), 2),
        "p95": round(percentile(values, 95), 2),
        "max": round(max(values), 2),
    }


def replay(jobs: int, hours: float, trials: int) -> dict[str, Any]:
    """Follow so many healthy jobs for so many hours each, and break `trials` of each kind."""
    slow = {f"straggler_{factor:g}": faulty(FaultKind.SLOW, trials, factor) for factor in (1.1, 1.2, 1.5)}
    plain = {f"straggler_{f:g}_plain": faulty(FaultKind.SLOW, trials, f, plain=True) for f in (1.1, 1.2, 1.5)}
    return {
        **healthy((healthy_job(seed) for seed in range(jobs)), hours),
        "odd": healthy((odd_job(seed) for seed in range(max(1, jobs // 10))), hours),
        "kinds": {
            "hang": faulty(FaultKind.HANG, trials),
            "hang_plain": faulty(FaultKind.HANG, trials, plain=True),
            **slow,
            **plain,
            "nan": faulty(FaultKind.NAN, trials),
            "explode": faulty(FaultKind.EXPLODE, trials, 3.0),
        },
    }
