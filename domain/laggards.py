"""Ranks or nodes that are slower than their peers, step by step.

In synchronous training a collective makes every rank wait for the slowest: the step times that ranks print are all
equal, whoever is slow, and the slow rank is the one that waits *least*. Only a time without the collectives tells:
compute time, time before the first collective, kernel time. Give those; step times of synchronous ranks find nobody.

Peers do the same work. Pipeline stages do not: compare each stage with itself.
"""

import math
from collections.abc import Iterable, Mapping
from datetime import datetime
from statistics import median
from typing import NamedTuple

from relight.domain.base import Value
from relight.domain.baseline import NORMAL
from relight.domain.evidence import Evidence, Source

SLOW_RANK = "SLOW_RANK"
"""Signature of the evidence that a rank lastingly takes longer than its peers."""

PEERS = 4
"""With fewer, nobody can say who is the odd one."""
ODD = 3.5
"""Modified z-score above which one stands out (Iglewicz and Hoaglin, "How to Detect and Handle Outliers", 1993)."""
SHIFT = math.log(1.10)
"""The least lag that counts: a tenth more time."""
CLIP = 1.5 * SHIFT
STEPS = 10
"""Steps of exactly `SHIFT` after which a lag counts as lasting."""
THRESHOLD = STEPS * SHIFT / 2
LEAST_SPREAD = 0.01
"""Of logarithms: peers are never taken to be more alike than this."""
SHARE = 0.25
"""When more of the peers than this lag, they are two kinds, not a crowd and its laggards."""
SMOOTH = 0.1
OPEN_STEPS = 2
"""Ranks are so many steps apart at most: a collective holds them together."""
MOST_RANKS = 16_384
MOST_NAMED = 3


class Lag(Value):
    """One rank or node that is being slow."""

    excess: float
    """The cumulative sum (Page, as in `straggler`) of ln(time / median of the peers), less half of `SHIFT` a step."""
    loss: float
    """That logarithm, smoothed."""
    steps: int


class Laggard(Value):
    """A rank or node that lastingly takes longer than its peers."""

    who: str
    ratio: float
    """Its time over its peers' median: 1.25 is a quarter more."""
    steps: int
    """For how many steps."""


class Peers(Value):
    """What is known of a job's ranks (or nodes); one entry for each that is slow now."""

    lags: dict[str, Lag] = {}
    laggards: tuple[Laggard, ...] | None = None
    """Those that stand out, the slowest first; None when it cannot be told: too few peers, or too many slow ones."""


def with_times(peers: Peers, seconds: Mapping[str, float]) -> Peers:
    """What is known after one step, of which each rank or node (by name) spent so many seconds computing.

    O(n) in the peers, at most one entry for each. Times that are not positive and finite are left out.
    """
    logs = {who: math.log(each) for who, each in seconds.items() if 0 < each < math.inf}
    if len(logs) < PEERS:
        return Peers(lags=peers.lags)
    middle = median(logs.values())
    spread = max(LEAST_SPREAD, NORMAL * median(abs(each - middle) for each in logs.values()))
    lags = {who: lag for who, each in logs.items() if (lag := _lag(peers.lags.get(who), each - middle))}
    odd = [
        (who, lag) for who, lag in lags.items() if lag.excess >= THRESHOLD and lag.loss > max(ODD * spread, SHIFT / 2)
    ]
    if len(odd) > SHARE * len(logs):
        return Peers(lags=lags)
    found = sorted((Laggard(who=who, ratio=math.exp(lag.loss), steps=lag.steps) for who, lag in odd), key=_slowest)
    return Peers(lags=lags, laggards=tuple(found))


def _lag(old: Lag | None, residual: float) -> Lag | None:
    """The lag after one more step; None when there is none (any more)."""
    before = old or Lag(excess=0.0, loss=residual, steps=0)
    excess = before.excess + min(residual, CLIP) - SHIFT / 2
    if excess <= 0:
        return None
    loss = before.loss + SMOOTH * (min(residual, before.loss + CLIP) - before.loss)
    return Lag(excess=min(excess, 2 * THRESHOLD), loss=loss, steps=before.steps + 1)


def _slowest(laggard: Laggard) -> tuple[float, str]:
    return -laggard.ratio, laggard.who


class RankTime(NamedTuple):
    """What a rank says of one of its steps."""

    step: int
    rank: int
    seconds: float
    """Of computing, without the collectives."""
    node: str | None = None


class Ranks(NamedTuple):
    """What is known of a job's ranks, from lines that arrive in any order."""

    peers: Peers = Peers()
    steps: Mapping[int, Mapping[str, float]] = {}
    """The newest steps, whose lines may not all be there yet: seconds by rank."""
    nodes: Mapping[str, str] = {}
    """By rank, where it runs, as far as it says."""
    done: int = -1
    """The newest step that was compared."""

    def with_times(self, times: Iterable[RankTime]) -> "Ranks":
        """After further lines; those of steps that were compared already come too late."""
        times = list(times)
        if not times:
            return self
        steps = {step: dict(seconds) for step, seconds in self.steps.items()}
        peers, nodes, done = self.peers, dict(self.nodes), self.done
        for time in times:
            if time.step < done - STEPS:  # back to a checkpoint
                steps, done = {}, time.step - 1
            if time.step <= done or time.rank >= MOST_RANKS:
                continue
            steps.setdefault(time.step, {})[str(time.rank)] = time.seconds
            if time.node:
                nodes[str(time.rank)] = time.node
            while len(steps) > OPEN_STEPS:
                done = min(steps)
                peers = with_times(peers, steps.pop(done))
        return Ranks(peers, steps, nodes, done)

    def evidence(self, now: datetime) -> tuple[Evidence, ...]:
        """Those that stand out, the slowest first; nothing where it cannot be told."""
        return tuple(
            Evidence(
                source=Source.PROGRESS,
                text=f"rank {each.who} computes {each.ratio - 1:.0%} longer than its peers, for {each.steps} steps",
                signature=SLOW_RANK,
                rank=int(each.who),
                node=self.nodes.get(each.who),
                at=now,
            )
            for each in (self.peers.laggards or ())[:MOST_NAMED]
        )
