"""What an incident says to the guard, and asks of it, beside leave to drain."""

from temporalio import workflow
from temporalio.exceptions import FailureError

with workflow.unsafe.imports_passed_through():
    from relight.activities import contracts as c
    from relight.domain.breaker import MOST_NODES, OWN_FAULT, Report, Sign
    from relight.domain.diagnosis import Diagnosis
    from relight.domain.evidence import Detection
    from relight.domain.plan import Mode
    from relight.domain.policy import Verdict
    from relight.workflows.options import do

STOPPED = "StoppedError"
"""What an activity raises where a person's word stands against its change."""


async def tell_guard(
    ref: c.IncidentRef, sign: Sign, detection: Detection, diagnosis: Diagnosis, confirmation: c.Confirmation
) -> None:
    """Tell the guard of a failure that is not the job's own doing; a guard that does not run is no reason to stop."""
    cause = diagnosis.verdict
    if cause.category in OWN_FAULT:
        return
    report = Report(
        sign=sign,
        incident=ref.id,
        began=detection.detected_at,
        kind=detection.kind,
        category=cause.category,
        nodes=cause.drain_nodes[:MOST_NODES],
        job=confirmation.lineage or str(ref.attempt.job_id),
        user=confirmation.user,
        partition=confirmation.partition,
    )
    guard = workflow.get_external_workflow_handle(c.guard_id(ref.attempt.cluster))
    try:
        await guard.signal("report", report)
    except FailureError as error:
        workflow.logger.warning("the guard was not told of incident %s: %s", ref.id, error)


async def why_not_now(ref: c.IncidentRef, verdict: Verdict, detection: Detection, partition: str) -> str:
    """Why an incident must not begin to act any more; empty where nothing stands against it.

    Looked at right before the first action: the plan may have waited half an hour for a person. What a person has
    approved goes on where the guard's standing cannot be read; what nobody has looked at does not.
    """
    arg = c.MayActInput(incident=ref, began=detection.detected_at, partition=partition)
    now = await do(c.MAY_ACT, arg, "look once more whether this may be done")
    return now.stop or (now.unknown if verdict.mode is Mode.AUTO else "")
