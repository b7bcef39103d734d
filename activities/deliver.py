"""Delivers the outbox: each detection starts its incident's workflow or is told to the one that runs."""

from datetime import timedelta

from temporalio import activity
from temporalio.client import Client
from temporalio.common import WorkflowIDConflictPolicy, WorkflowIDReusePolicy
from temporalio.service import RPCError

from relight.activities import contracts as c
from relight.activities.attributes import at_start
from relight.activities.site import Site, poll
from relight.clients.ledger import LedgerUnavailableError
from relight.domain.evidence import Detection
from relight.domain.incidents import headline

LOOK_AGAIN = timedelta(seconds=0.25)


class Deliver:
    """The relay between ledger and Temporal: at least once, deduplicated by detection id in the workflow."""

    def __init__(self, site: Site, client: Client, task_queue: str) -> None:
        """Bind to a cluster and its task queue."""
        self._site = site
        self._client = client
        self._task_queue = task_queue

    @activity.defn(name=c.DELIVER_DETECTIONS.name)
    async def deliver(self, arg: c.WatchInput) -> c.Nothing:
        """Deliver whatever is undelivered, again and again."""
        until = self._site.clock() + arg.run_for
        generation = 0
        while self._site.clock() < until:
            generation += 1
            for detection in await self._waiting():
                await self._deliver(detection)
                await self._site.ledger.delivered(detection.id)
            await poll(self._site, LOOK_AGAIN, generation)
        return c.Nothing()

    async def _waiting(self) -> tuple[Detection, ...]:
        try:
            return await self._site.ledger.undelivered()
        except LedgerUnavailableError as error:
            activity.logger.warning("the ledger does not answer: %s", error)
            return ()

    async def _deliver(self, detection: Detection) -> None:
        """Signal with start. A failure ends the activity; Temporal starts it again and nothing is lost."""
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
            )
        except RPCError as error:
            activity.logger.warning("detection %s not delivered: %s", detection.id, error)
            raise
