"""Delivers the outbox: each detection starts its incident's workflow or is told to the one that runs.

Findings about one attempt are folded (`domain.folding`): the first is sent at once, what comes while it is not yet time
for the next signal is sent as one. Those of different attempts do not wait for each other.
"""

import asyncio
from collections import OrderedDict, defaultdict
from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import NamedTuple

from temporalio import activity
from temporalio.client import Client
from temporalio.common import WorkflowIDConflictPolicy, WorkflowIDReusePolicy
from temporalio.service import RPCError

from relight.activities import contracts as c
from relight.activities.attributes import at_start
from relight.activities.site import Site, poll
from relight.clients.ledger import LedgerUnavailableError
from relight.domain.attempts import AttemptKey
from relight.domain.detectors import within
from relight.domain.evidence import Detection, Interruption
from relight.domain.folding import MAX_SIGNALS, SIGNALS_APART, fold
from relight.domain.incidents import headline
from relight.domain.ledger import RowKind

LOOK_AGAIN = timedelta(seconds=0.25)
READ_AT_ONCE = 5000
"""Detections read from the outbox at a time."""
AT_ONCE = 32
"""Incidents signalled at the same time, and then marked in one transaction."""
ANSWER_WITHIN = timedelta(seconds=10)
REMEMBERED = 10_000
"""Attempts of which it is remembered when their incident was last signalled."""


class _Told(NamedTuple):
    """What an attempt's incident has been sent by this process."""

    at: datetime
    signals: int
    kinds: frozenset[Interruption]


class Deliver:
    """The relay between ledger and Temporal: at least once, deduplicated by detection id in the workflow."""

    def __init__(self, site: Site, client: Client, task_queue: str) -> None:
        """Bind to a cluster and its task queue."""
        self._site = site
        self._client = client
        self._task_queue = task_queue
        self._told: OrderedDict[AttemptKey, _Told] = OrderedDict()

    @activity.defn(name=c.DELIVER_DETECTIONS.name)
    async def deliver(self, arg: c.WatchInput) -> c.Nothing:
        """Deliver whatever is undelivered, again and again."""
        until = self._site.clock() + arg.run_for
        generation = 0
        while self._site.clock() < until:
            generation += 1
            if not await self._round():
                await poll(self._site, LOOK_AGAIN, generation)
        return c.Nothing()

    async def _round(self) -> bool:
        """Deliver what is due; True when there may be more that is. A failure ends the activity, and nothing is lost.

        Temporal starts it again.
        """
        try:
            waiting = await self._site.ledger.undelivered(READ_AT_ONCE, cluster=self._site.cluster)
        except LedgerUnavailableError as error:
            self._is_blind(error)
            return False
        by_attempt: defaultdict[AttemptKey, list[Detection]] = defaultdict(list)
        for detection in waiting:
            by_attempt[detection.attempt].append(detection)
        due = [(key, found) for key, found in by_attempt.items() if self._is_due(key)]
        failed: list[BaseException] = []
        for start in range(0, len(due), AT_ONCE):
            activity.heartbeat()
            failed += await self._deliver(due[start : start + AT_ONCE])
            if len(failed) == start + AT_ONCE:  # nothing at all was taken
                break
        if failed:
            self._is_blind(failed[0])
            raise failed[0]
        self._site.detectors.saw("outbox", within(LOOK_AGAIN))
        return bool(due) and len(waiting) == READ_AT_ONCE

    def _is_blind(self, error: BaseException) -> None:
        if not self._site.detectors.sights()["outbox"].problem:
            activity.logger.warning("detections are not delivered: %s", error)
        self._site.detectors.blind("outbox", str(error), within(LOOK_AGAIN))

    def _is_due(self, key: AttemptKey) -> bool:
        told = self._told.get(key)
        # The clock may be set back meanwhile.
        return told is None or abs(self._site.clock() - told.at) >= SIGNALS_APART

    async def _deliver(self, due: Sequence[tuple[AttemptKey, Sequence[Detection]]]) -> list[BaseException]:
        """One signal about each of these attempts; what was taken is marked, what went wrong is returned."""
        done = await asyncio.gather(*(self._tell(*each) for each in due), return_exceptions=True)
        taken = [name for names in done if not isinstance(names, BaseException) for name in names]
        if taken:
            await self._site.ledger.delivered(*taken)
        return [error for error in done if isinstance(error, BaseException)]

    async def _tell(self, key: AttemptKey, waiting: Sequence[Detection]) -> list[str]:
        """Send one signal about an attempt; returns the ids of the detections that need no other."""
        # A worker that dies between signal and mark leaves one that was answered, perhaps by an incident that is
        # closed by now: to send it again would open another.
        answered = await self._answered(key)
        fresh = [detection for detection in waiting if detection.id not in answered]
        done = [detection.id for detection in waiting if detection.id in answered]
        if not fresh:
            return done
        told = self._told.get(key)
        # What starts an incident stays as it was found.
        same = [each for each in fresh if each.kind is fresh[0].kind] if told else fresh[:1]
        if not await self._has_enough(key, told, same[0].kind):
            await self._signal(fold(same))
        return [*done, *(detection.id for detection in same)]

    async def _answered(self, key: AttemptKey) -> set[str]:
        rows = await self._site.ledger.rows(attempt=str(key), kind=RowKind.OPENED)
        return {row.body["detection"]["id"] for row in rows}

    async def _has_enough(self, key: AttemptKey, told: _Told | None, kind: Interruption) -> bool:
        """True once the incident that is open has had its share of signals: the rest it has in the ledger."""
        if told is None or told.signals < MAX_SIGNALS or kind not in told.kinds:
            return False
        if await self._site.ledger.incidents(attempt=key, open_only=True, limit=1):
            return True
        del self._told[key]
        return False

    async def _signal(self, detection: Detection) -> None:
        """Signal with start."""
        key = detection.attempt
        try:
            await self._client.start_workflow(
                c.RECOVER_WORKFLOW,
                c.RecoverInput(attempt=key, kind=detection.kind),
                id=key.workflow_id,
                task_queue=self._task_queue,
                # With REJECT_DUPLICATE a second hang of the same attempt would be lost (seen); a late echo is
                # dropped by the workflow's first step.
                id_reuse_policy=WorkflowIDReusePolicy.ALLOW_DUPLICATE,
                id_conflict_policy=WorkflowIDConflictPolicy.USE_EXISTING,
                start_signal="evidence",
                start_signal_args=[detection],
                search_attributes=at_start(key, detection.kind),
                static_summary=headline(detection),
                rpc_timeout=ANSWER_WITHIN,
            )
        except RPCError as error:
            activity.logger.warning("detection %s not delivered: %s", detection.id, error)
            raise
        old = self._told.pop(key, _Told(self._site.clock(), 0, frozenset()))
        self._told[key] = _Told(self._site.clock(), old.signals + 1, old.kinds | {detection.kind})
        if len(self._told) > REMEMBERED:
            self._told.popitem(last=False)
