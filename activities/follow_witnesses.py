"""What agents can add to what the outputs of an attempt show: stacks, power, clocks, faults of its nodes."""

from collections.abc import Collection
from datetime import datetime, timedelta
from functools import partial

from relight.activities.follow_gpus import Gpus
from relight.activities.follow_stacks import GRACE, Agents, Nobody, Stacks
from relight.activities.follow_state import Following
from relight.activities.site import Site
from relight.activities.slow_causes import causes
from relight.domain.evidence import MAX_EVIDENCE_PER_SIGNAL, Detection, Evidence, Interruption


class Witnesses:
    """What agents tell of the attempts that are followed. Nothing here waits for an agent.

    Args:
        site: the cluster.
        agents: its nodes' agents, where there are any.
    """

    def __init__(self, site: Site, agents: Agents | None = None) -> None:
        self._site = site
        self._stacks = Stacks(agents or Nobody())
        self._gpus = Gpus(agents or Nobody())

    def goes_on(self, each: Following, everyone: Collection[Following], now: datetime) -> None:
        """It steps: know what that looks like."""
        self._stacks.clear(each)
        self._gpus.learn(each, everyone, now)

    def suspect(self, each: Following, everyone: Collection[Following], now: datetime, limit_at: datetime) -> None:
        """It has been silent for most of what it may: ask, so that the answers are there at the limit."""
        if self._stacks.suspect(each, everyone, now, limit_at):
            self._gpus.anew(each)
        self._gpus.suspect(each, everyone, now)

    def standstill(self, each: Following, now: datetime) -> Evidence | None:
        """That it does nothing at all, as far as everything shows that they see."""
        return self._stacks.standstill(each, partial(self._gpus.word, each, now), now)

    def of_hang(self, each: Following, now: datetime) -> tuple[Evidence, ...]:
        """What they tell of its silence by now."""
        return (*self._gpus.fell(each, now), *self._stacks.evidence(each, now))

    def to_come(self, each: Following, beyond: timedelta) -> bool:
        """Whether stacks are on their way that are worth waiting for, so much beyond the limit."""
        return beyond < GRACE and self._stacks.under_way(each)

    def told(self, each: Following) -> None:
        """Its hang is told: nothing is asked any more."""
        self._stacks.clear(each)

    async def with_causes(self, each: Following, detection: Detection) -> Detection:
        """A slow-down, with what may be its causes."""
        slow = each.learnt.pace.slowdown
        if detection.kind is not Interruption.STRAGGLER or slow is None:
            return detection
        now = detection.detected_at
        since = now - timedelta(seconds=slow.steps * slow.recent_seconds)
        told = (*await causes(self._site, each.attempt, since), *each.ranks.evidence(now), *self._gpus.slow(each, now))
        # Asked again when it could not be written down.
        evidence = (detection.evidence[0], *told)[:MAX_EVIDENCE_PER_SIGNAL]
        return detection.model_copy(update={"evidence": evidence})
