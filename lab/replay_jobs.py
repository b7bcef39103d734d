"""Jobs that never ran: their step lines as a follower would see them, from a seed, with no sleeping.

A job is made in stages, as in life: what it prints and when, what its buffer lets out, what the file system shows.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from enum import StrEnum
from random import Random
from typing import NamedTuple

from relight.domain.progress import Phase, Sign

POLL_S = 0.5
"""The follower looks so often."""
LINE_BYTES = 95
LONGEST_STALL_S = 25.0
"""Longer unannounced stalls at odd steps cannot be told from a hang by silence: they are `odd` jobs."""
SPIKES = 1e-4
"""Loss spikes a step; each comes back within a hundred steps."""
SLOW_FIRST_STEPS = 2
LONGEST_REFRESH_S = 60.0
PAUSE_EVERY_S = (240, 7200)
"""Jobs choose intervals of checkpoints and evaluations that are this long."""
INTERVALS = (50, 100, 200, 250, 500, 1000, 2000, 5000)


class Told(StrEnum):
    """How a job announces that it does something else than stepping."""

    BEFORE = "before"
    BOTH = "both"
    AFTER = "after"
    NEVER = "never"


class Lag(StrEnum):
    """How late the file system shows what was written."""

    NONE = "none"
    SECONDS = "seconds"
    """1 to 5 s."""
    CACHED = "cached"
    """Attributes are cached for 3 to 60 s, so changes come in bursts."""


class FaultKind(StrEnum):
    """What goes wrong."""

    HANG = "hang"
    SLOW = "slow"
    NAN = "nan"
    EXPLODE = "explode"


@dataclass(frozen=True)
class Fault:
    """A fault from a step on."""

    kind: FaultKind
    step: int
    factor: float = 1.0
    """Of the step time (SLOW) or of the loss (EXPLODE)."""


@dataclass(frozen=True)
class Pause:
    """Something that keeps the steps waiting, every so many steps."""

    phase: Phase
    every: int
    seconds: float
    told: Told


@dataclass(frozen=True)
class Job:
    """How one job behaves; times in seconds."""

    seed: int
    step_seconds: float = 1.0
    jitter: float = 0.03
    """Standard deviation of ln(step time)."""
    startup: float = 120.0
    compiling: float = 60.0
    """The first step takes so much longer, the second half of it."""
    pauses: tuple[Pause, ...] = ()
    stride: int = 1
    """Steps from one line to the next."""
    prints_seconds: bool = True
    counts_pauses: bool = False
    """Whether the printed step time holds the pauses too."""
    block: int = 0
    """Bytes of the buffer; 0: each line at once."""
    lag: Lag = Lag.NONE
    stalls: float = 0.0
    """Data stalls in a thousand steps."""
    stall_seconds: float = 6.0
    """Their median."""
    loss_offset: float = 0.0
    first_step: int = 1
    total: int | None = None


class Seen(NamedTuple):
    """Lines that become visible together."""

    at: float
    """Seconds since the attempt began."""
    signs: list[Sign]


class Written(NamedTuple):
    """A line as it leaves the trainer."""

    at: float
    sign: Sign


def healthy_job(seed: int) -> Job:
    """A job drawn from what is ordinary, the same for the same seed."""
    rng = Random(seed)
    step = math.exp(rng.uniform(math.log(0.3), math.log(30)))
    stride = rng.choice([1, 1, 1, 10, 10, 100] if step < 1 else [1, 1, 10])
    phases = rng.choice([(Phase.CHECKPOINT,), *3 * [(Phase.CHECKPOINT, Phase.EVALUATION)]])
    return Job(
        seed=seed,
        step_seconds=step,
        jitter=rng.uniform(0.02, 0.05),
        startup=rng.uniform(20, 600),
        compiling=rng.choice([0.0, rng.uniform(5, 300)]),
        pauses=tuple(_pause(rng, phase, step) for phase in phases),
        stride=stride,
        prints_seconds=rng.choice([True, True, True, False]),
        counts_pauses=rng.choice([True, False, False]),
        block=rng.choice([0, 0, 4096, 8192]),
        lag=rng.choices(list(Lag), [60, 25, 15])[0],
        stalls=rng.choice([0.0, 0.0, rng.uniform(0.1, 2)]),
        loss_offset=rng.choice([0.0, 0.0, -5.0]),
        first_step=rng.choice([0, 1, 1]),
    )


def odd_job(seed: int) -> Job:
    """A healthy job that pauses where nothing announces or explains it: what silence alone cannot tell from a hang."""
    rng = Random(-seed)
    pause = Pause(Phase.EVALUATION, rng.randrange(200, 2000), rng.uniform(40, 200), Told.NEVER)
    return replace(healthy_job(seed), step_seconds=rng.uniform(0.3, 2), pauses=(pause,), block=0, stalls=0.0)


def _pause(rng: Random, phase: Phase, step: float) -> Pause:
    least, most = PAUSE_EVERY_S
    fitting = [every for every in INTERVALS if least <= every * step <= most]
    told = rng.choices(list(Told), [35, 20, 20, 25])[0]
    seconds = math.exp(rng.uniform(math.log(10), math.log(300)))
    return Pause(phase, rng.choice(fitting), seconds, told)


def follow(job: Job, seconds: float, fault: Fault | None = None, attempt: int = 0) -> Iterator[Seen]:
    """What a follower sees of one attempt, for so many seconds or until it hangs."""
    lines = _printed(job, Random(f"{job.seed}/{attempt}"), seconds, fault)
    return _polled(_shown(_flushed(lines, job.block), job.lag, Random(job.seed)))


def _printed(job: Job, rng: Random, seconds: float, fault: Fault | None) -> Iterator[Written]:
    now, step, since_line, drift = job.startup, job.first_step, 0.0, 0.0
    spike = 0.0
    steps = 0
    while now < seconds and (job.total is None or step <= job.total):
        if fault and fault.kind is FaultKind.HANG and step >= fault.step:
            return
        drift = 0.98 * drift + rng.gauss(0, 0.001)
        took = job.step_seconds * math.exp(rng.gauss(0, job.jitter) + drift)
        if fault and fault.kind is FaultKind.SLOW and step >= fault.step:
            took *= fault.factor
        if steps < SLOW_FIRST_STEPS:
            took += job.compiling / (steps + 1)
        if rng.random() < job.stalls / 1000:
            took += min(LONGEST_STALL_S, rng.lognormvariate(math.log(job.stall_seconds), 0.6))
        now += took
        since_line += took
        steps += 1
        spike = rng.uniform(1, 6) if rng.random() < SPIKES else spike * 0.96
        loss = _loss(job, rng, step, fault) + spike
        if step % job.stride == 0:
            counted = since_line / min(steps, job.stride) if job.prints_seconds else None
            yield Written(now, Sign(step=step, total=job.total, seconds=counted, loss=loss))
            since_line = 0.0
        for pause in job.pauses:
            if step % pause.every == 0 and step > job.first_step:
                length = pause.seconds * rng.lognormvariate(0, 0.15)
                yield from _paused(pause, now, length)
                now += length
                since_line += length if job.counts_pauses else 0.0
        step += 1


def _paused(pause: Pause, now: float, length: float) -> Iterator[Written]:
    if pause.told in (Told.BEFORE, Told.BOTH):
        yield Written(now, Sign(phase=pause.phase))
    if pause.told in (Told.AFTER, Told.BOTH):
        yield Written(now + length, Sign(phase=pause.phase, begins=False))


def _loss(job: Job, rng: Random, step: int, fault: Fault | None) -> float:
    loss = job.loss_offset + 2.5 + 8 * math.exp(-step / 500) + rng.gauss(0, 0.04)
    if fault and step >= fault.step:
        if fault.kind is FaultKind.NAN:
            return math.nan
        if fault.kind is FaultKind.EXPLODE:
            return loss + abs(loss) * (fault.factor - 1)
    return loss


def _flushed(lines: Iterator[Written], block: int) -> Iterator[Seen]:
    """Each line at once, or, with a buffer, all that fill a block, when the next does not fit."""
    held: list[Sign] = []
    for at, sign in lines:
        if held and (len(held) + 1) * LINE_BYTES > block:
            yield Seen(at, held)
            held = []
        held.append(sign)
        if not block:
            yield Seen(at, held)
            held = []


def _shown(written: Iterator[Seen], lag: Lag, rng: Random) -> Iterator[Seen]:
    """The same, as late as the file system shows it, never out of order."""
    shown = refreshed = 0.0
    for at, signs in written:
        if lag is Lag.SECONDS:
            shown = max(shown, at + rng.uniform(1, 5))
        elif lag is Lag.CACHED:
            while refreshed < at:
                refreshed += rng.uniform(3, LONGEST_REFRESH_S)
            shown = refreshed
        else:
            shown = at
        yield Seen(shown, signs)


def _polled(shown: Iterator[Seen]) -> Iterator[Seen]:
    """What one look of the follower finds."""
    held: list[Sign] = []
    look = 0.0
    for at, signs in shown:
        due = math.ceil(at / POLL_S) * POLL_S
        if held and due > look:
            yield Seen(look, held)
            held = []
        look = due
        held = [*held, *signs]
    if held:
        yield Seen(look, held)
