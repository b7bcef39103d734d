"""One act lease per job: the job's next incident waits until the open one has closed."""

from datetime import timedelta

from temporalio import activity
from temporalio.client import Client, WorkflowExecutionStatus
from temporalio.service import RPCError, RPCStatusCode

from relight.activities import contracts as c
from relight.activities.records import row
from relight.activities.site import Site, poll
from relight.domain.evidence import Answer
from relight.domain.incidents import Incident, Outcome, Phase
from relight.domain.ledger import Change, RowKind

LOOK_AGAIN = timedelta(seconds=0.5)


class Lease:
    """Waits for other incidents."""

    def __init__(self, site: Site, client: Client) -> None:
        """Bind to a cluster and to Temporal."""
        self._site = site
        self._client = client

    @activity.defn(name=c.AWAIT_CLOSED.name)
    async def await_closed(self, arg: c.AwaitClosedInput) -> c.Nothing:
        """Wait until the ledger shows no open incident of that workflow.

        A person may have terminated the workflow from Temporal's web UI, so that nobody will ever close its
        incident: then it is closed here, and the ledger says why.
        """
        while incident := await self._open(arg):
            if await self._runs(incident) is not Answer.NO:
                await poll(self._site, LOOK_AGAIN)
            elif incident == await self._open(arg):  # read again: it may have closed itself between our two looks
                await self._close(incident)
        return c.Nothing()

    async def _open(self, arg: c.AwaitClosedInput) -> Incident | None:
        known = await self._site.ledger.incidents(cluster=self._site.cluster, open_only=True, limit=1000)
        others = (i for i in known if i.workflow_id == arg.workflow_id and i.id != arg.incident.id)
        return next(others, None)

    async def _runs(self, incident: Incident) -> Answer:
        handle = self._client.get_workflow_handle(incident.workflow_id, run_id=incident.run_id)
        try:
            status = (await handle.describe()).status
        except RPCError as error:
            return Answer.NO if error.status is RPCStatusCode.NOT_FOUND else Answer.UNKNOWN
        return Answer.YES if status is WorkflowExecutionStatus.RUNNING else Answer.NO

    async def _close(self, incident: Incident) -> None:
        now, reason = self._site.clock(), "its workflow was ended from outside (terminated)"
        ref = c.IncidentRef(
            id=incident.id,
            workflow_id=incident.workflow_id,
            run_id=incident.run_id,
            attempt=incident.attempt,
            kind=incident.kind,
        )
        body = {"outcome": Outcome.FAILED, "reason": reason, "steps": []}
        entry = row(self._site, ref, "close", RowKind.CLOSED, body, lineage=incident.lineage)
        update = {"phase": Phase.CLOSED, "outcome": Outcome.FAILED, "outcome_reason": reason, "closed_at": now}
        await self._site.ledger.commit(Change(entries=(entry,), incidents=(incident.model_copy(update=update),)))
