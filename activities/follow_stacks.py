"""Asks the agents of a suspected attempt's nodes for its ranks' stacks, twice, so that they are there at the limit.

Nothing here is waited for: the follower looks by in each of its rounds.
"""

import asyncio
from collections.abc import Callable, Collection
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Protocol

from relight.activities.follow_state import Following
from relight.activities.ingest import NodeSight
from relight.domain.attempts import Attempt
from relight.domain.base import compact_time, short_hash
from relight.domain.evidence import Evidence
from relight.domain.reports import ProbeAnswer, ProbeKind, ProbeRequest
from relight.domain.stacks import Pair, judge
from relight.domain.standstill import Gpus, stands_still

MAX_NODES = 256
"""Of a larger attempt, these many nodes are asked."""
MAX_ASKED = 1024
"""Nodes that are asked at a time, for all attempts: when a file system stalls, all are suspected at once."""
APART = timedelta(seconds=6)
"""From the first look to the second, at least; the later the second one is, the more it tells."""
WITHIN = timedelta(seconds=25)
"""For an answer: a beat until the question is fetched, and 20 s for the stacks."""
GRACE = timedelta(seconds=5)
"""So much later than the limit a hang is told, where stacks are on their way and nothing else bears it out."""
BEATS = 3
"""An agent that has missed so many is not asked."""


class Agents(Protocol):
    """The nodes' agents, as far as they are heard of (`Ingest`)."""

    async def ask(self, node: str, request: ProbeRequest, within: timedelta) -> ProbeAnswer:
        """Ask a node's agent. No answer in time is an answer with a problem."""

    def sight(self, node: str, /) -> NodeSight | None:
        """What is known of a node by its agent; None when it was never heard of."""


class Nobody:
    """Where there are no agents."""

    async def ask(self, node: str, request: ProbeRequest, within: timedelta) -> ProbeAnswer:
        """Never asked: nobody was ever heard of."""
        raise NotImplementedError(node, request, within)

    def sight(self, _node: str) -> NodeSight | None:
        """Nothing is known of any node."""
        return None


def heard(agents: Agents, node: str, now: datetime) -> NodeSight | None:
    """What a node's agent tells, unless it has fallen silent."""
    sight = agents.sight(node)
    return sight if sight and sight.silent(now) <= BEATS * sight.every else None


@dataclass
class _Node:
    """One node's answers."""

    every: timedelta
    """From one beat of its agent to the next."""
    first: asyncio.Task[ProbeAnswer]
    answered: datetime | None = None
    second: asyncio.Task[ProbeAnswer] | None = None

    def due(self, limit_at: datetime) -> datetime | None:
        """When to ask again: as late as the answer can still be there at the limit; None while the first is open."""
        if self.answered is None or not self.first.result().stacks:
            return None
        return max(self.answered + APART - self.every, limit_at - 2 * self.every - timedelta(seconds=2))


class _Look:
    """Both looks at one attempt."""

    def __init__(self, agents: Agents, attempt: Attempt, now: datetime, limit_at: datetime) -> None:
        self.attempt = attempt
        self.limit_at = limit_at
        """By when it is to be judged."""
        self._judged: tuple[datetime, Evidence | None] | None = None
        self._agents = agents
        self._name = f"{short_hash(str(attempt.key))}/{compact_time(now)}"
        heard_of = [(node, heard(agents, node, now)) for node in attempt.record.nodes[:MAX_NODES]]
        self._nodes = {node: _Node(sight.every, self._ask(node, 1)) for node, sight in heard_of if sight}

    def _ask(self, node: str, number: int) -> asyncio.Task[ProbeAnswer]:
        job_id = self.attempt.key.job_id
        request = ProbeRequest(id=f"{self._name}/{number}", kind=ProbeKind.STACKS, job_id=job_id)
        return asyncio.create_task(self._agents.ask(node, request, WITHIN))

    def go_on(self, now: datetime, limit_at: datetime) -> None:
        """Ask again where that is due."""
        for name, node in self._nodes.items():
            if node.answered is None and node.first.done():
                node.answered = now
            due = node.due(limit_at)
            if node.second is None and due is not None and now >= due:
                node.second = self._ask(name, 2)

    @property
    def size(self) -> int:
        """Nodes that are asked."""
        return len(self._nodes)

    @property
    def under_way(self) -> bool:
        """Whether second answers are still to come."""
        return any(node.second is not None and not node.second.done() for node in self._nodes.values())

    def evidence(self, now: datetime) -> tuple[Evidence, ...]:
        """What the answers tell."""
        return judge(self._pairs(), len(self.attempt.record.nodes), now)

    def standstill(self, gpus: Callable[[], Gpus], now: datetime) -> Evidence | None:
        """That the attempt does nothing, once all answers are there; judged once, and soon a thing of the past."""
        if self._judged is None:
            pairs = self._pairs()
            if not pairs or len(pairs) < self.size:
                return None
            self._judged = now, stands_still(pairs, len(self.attempt.record.nodes), gpus(), now)
        at, found = self._judged
        return found if now - at <= GRACE else None

    def _pairs(self) -> list[Pair]:
        return [
            Pair(name, node.first.result(), node.second.result())
            for name, node in self._nodes.items()
            if node.second is not None and node.second.done()
        ]

    def end(self) -> None:
        """Nothing is wanted any more."""
        for node in self._nodes.values():
            node.first.cancel()
            if node.second is not None:
                node.second.cancel()


class Stacks:
    """The looks at suspected attempts."""

    def __init__(self, agents: Agents) -> None:
        self._agents = agents
        self._looks: dict[int, _Look] = {}
        """By job id."""

    def suspect(self, each: Following, everyone: Collection[Following], now: datetime, limit_at: datetime) -> bool:
        """Look at an attempt that may hang and will be told to do so at `limit_at`; True where that is a new look."""
        job_id = each.attempt.key.job_id
        look = self._looks.get(job_id)
        if look is not None and limit_at > look.limit_at + GRACE:
            # It was judged, and is not told yet.
            self.clear(each)
            look = None
        begins = look is None or look.attempt is not each.attempt
        if look is None or begins:
            self._drop_ended(everyone)
            asked = sum(other.size for other in self._looks.values())
            if asked + min(MAX_NODES, len(each.attempt.record.nodes)) > MAX_ASKED:
                return False
            look = self._looks[job_id] = _Look(self._agents, each.attempt, now, limit_at)
        look.go_on(now, limit_at)
        return begins

    def clear(self, each: Following) -> None:
        """It goes on, or all is told."""
        if look := self._looks.pop(each.attempt.key.job_id, None):
            look.end()

    def under_way(self, each: Following) -> bool:
        """Whether stacks are to come."""
        look = self._looks.get(each.attempt.key.job_id)
        return look is not None and look.under_way

    def evidence(self, each: Following, now: datetime) -> tuple[Evidence, ...]:
        """What the stacks tell by now."""
        look = self._looks.get(each.attempt.key.job_id)
        return look.evidence(now) if look else ()

    def standstill(self, each: Following, gpus: Callable[[], Gpus], now: datetime) -> Evidence | None:
        """That the attempt does nothing at all; `gpus` tells what its GPUs do."""
        look = self._looks.get(each.attempt.key.job_id)
        return look.standstill(gpus, now) if look else None

    def _drop_ended(self, everyone: Collection[Following]) -> None:
        there = {id(each.attempt) for each in everyone}
        for job_id, look in list(self._looks.items()):
            if id(look.attempt) not in there:
                look.end()
                del self._looks[job_id]
