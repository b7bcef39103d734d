"""What the beats of the agents tell of the GPUs of attempts that are followed: power against their own, clocks."""

from collections import Counter
from collections.abc import Collection, Iterator
from dataclasses import dataclass, field
from datetime import datetime, timedelta

from relight.activities.follow_stacks import Agents, heard
from relight.activities.follow_state import Following
from relight.activities.ingest import NodeSight
from relight.domain import power, standstill
from relight.domain.attempts import Attempt
from relight.domain.clocks import Clocks
from relight.domain.evidence import Evidence

SHARED_LASTS = timedelta(seconds=30)
ANOTHER = 0.8
"""Of the time between two beats: what comes sooner is no beat of its own."""


@dataclass
class _Seen:
    """One attempt's GPUs."""

    attempt: Attempt
    next_at: datetime
    levels: power.Levels = field(default_factory=power.Levels)
    waits: tuple[datetime, dict[power.Gpu, float]] | None = None
    """A sample that counts once a step has followed it: then the attempt was training."""
    clocks: Clocks = field(default_factory=Clocks)
    held: dict[power.Gpu, power.Held] = field(default_factory=dict)
    beats: dict[str, datetime] = field(default_factory=dict)
    """By node, the last beat that is in `held`."""


class Gpus:
    """The GPUs of all attempts that are followed."""

    def __init__(self, agents: Agents) -> None:
        self._agents = agents
        self._seen: dict[int, _Seen] = {}
        """By job id."""
        self._shared: frozenset[str] = frozenset()
        self._shared_at: datetime | None = None

    def learn(self, each: Following, everyone: Collection[Following], now: datetime) -> None:
        """Know what its GPUs do while it trains; looked at every quarter of a minute."""
        self._learn_shared(everyone, now)
        seen = self._of(each, everyone, now)
        if seen.held:
            seen.held, seen.beats = {}, {}
        if now < seen.next_at:
            return
        seen.next_at = now + power.EVERY
        if seen.waits and each.arrival > seen.waits[0]:
            seen.levels = seen.levels.with_sample(seen.waits[1])
        gpus = {sight.node: sight.gpus for sight in self._sights(each, now)}
        watts: dict[power.Gpu, float] = {}
        for node, its in gpus.items():
            watts |= power.watts_of(node, its)
        seen.waits = (now, watts) if watts else None
        seen.clocks = seen.clocks.with_beats(gpus)

    def suspect(self, each: Following, everyone: Collection[Following], now: datetime) -> None:
        """Take each beat of an attempt that may hang."""
        self._learn_shared(everyone, now)
        seen = self._of(each, everyone, now)
        for sight in self._sights(each, now):
            last = seen.beats.get(sight.node)
            # A report between two beats has no new readings.
            if last is None or sight.last_beat - last >= ANOTHER * sight.every:
                seen.beats[sight.node] = sight.last_beat
                seen.held = power.with_beat(seen.held, sight.node, sight.gpus)

    def anew(self, each: Following) -> None:
        """What they did before is over: from now on they are looked at anew."""
        if seen := self._seen.get(each.attempt.key.job_id):
            seen.held, seen.beats = {}, {}

    def word(self, each: Following, now: datetime) -> standstill.Gpus:
        """Whether one still does what it did, and whether nearly all do not."""
        seen = self._seen.get(each.attempt.key.job_id)
        if seen is None:
            return standstill.Gpus()
        work = power.still_work(seen.levels, seen.held)
        return standstill.Gpus(work=work, fell=bool(power.judge(seen.levels, seen.held, now)))

    def fell(self, each: Following, now: datetime) -> tuple[Evidence, ...]:
        """That their power fell since, and which of them does nothing."""
        seen = self._seen.get(each.attempt.key.job_id)
        return power.judge(seen.levels, seen.held, now) if seen else ()

    def slow(self, each: Following, now: datetime) -> tuple[Evidence, ...]:
        """Those whose clocks are lower than their peers', now and at the last sample."""
        seen = self._seen.get(each.attempt.key.job_id)
        if seen is None:
            return ()
        return seen.clocks.with_beats({sight.node: sight.gpus for sight in self._sights(each, now)}).evidence(now)

    def _of(self, each: Following, everyone: Collection[Following], now: datetime) -> _Seen:
        job_id = each.attempt.key.job_id
        seen = self._seen.get(job_id)
        if seen is None or seen.attempt is not each.attempt:
            if len(self._seen) >= 2 * len(everyone) + 16:
                there = {id(other.attempt) for other in everyone}
                self._seen = {number: one for number, one in self._seen.items() if id(one.attempt) in there}
            seen = self._seen[job_id] = _Seen(each.attempt, now)
        return seen

    def _learn_shared(self, everyone: Collection[Following], now: datetime) -> None:
        if self._shared_at is None or now - self._shared_at >= SHARED_LASTS:
            users = Counter(node for other in everyone for node in other.attempt.record.nodes)
            self._shared = frozenset(node for node, count in users.items() if count > 1)
            self._shared_at = now

    def _sights(self, each: Following, now: datetime) -> Iterator[NodeSight]:
        """Its nodes, as their agents see them; not those that it shares: which GPU is whose is not known there."""
        for node in each.attempt.record.nodes:
            if node not in self._shared and (sight := heard(self._agents, node, now)):
                yield sight
