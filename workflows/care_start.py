"""Hands a node over to its care: one workflow a node, started by the first incident that sets it aside."""

from temporalio import workflow
from temporalio.exceptions import FailureError, WorkflowAlreadyStartedError
from temporalio.workflow import ParentClosePolicy

with workflow.unsafe.imports_passed_through():
    from relight.activities import attributes
    from relight.activities import care_contracts as k
    from relight.activities import contracts as c
    from relight.domain.base import clip, few
    from relight.domain.care import care_workflow_id
    from relight.domain.diagnosis import Diagnosis
    from relight.domain.evidence import Evidence, Trust

MOST_WITNESSES = 4
MOST_STUCK = 8
"""Nodes that hang at once and are taken into care: more have a cause in common, and a person has been told of all."""
STUCK = "STUCK_COMPLETING"


async def care_for(arg: k.CareInput) -> str:
    """Start the care of a node, or tell the one that goes on; what was done, in words. It outlives the incident."""
    cluster = arg.incident.attempt.cluster
    workflow_id = care_workflow_id(cluster, arg.node)
    try:
        await workflow.start_child_workflow(
            k.CARE_WORKFLOW,
            arg,
            id=workflow_id,
            parent_close_policy=ParentClosePolicy.ABANDON,
            search_attributes=attributes.at_start(arg.incident.attempt, arg.incident.kind),
            static_summary=clip(f"{arg.node}: {arg.cls}: {arg.summary}", 200),
        )
    except WorkflowAlreadyStartedError:
        try:
            await workflow.get_external_workflow_handle(workflow_id).signal("again", arg)
        except FailureError as error:
            return f"{arg.node}: its care had just ended, and is not begun anew: {error}"
        return f"{arg.node} is cared for already: told of this incident"
    return f"{arg.node} is cared for: relight nodes {arg.node}"


def leave_evidence(node: str, diagnosis: Diagnosis) -> tuple[Evidence, ...]:
    """The platform's witnesses on this node: what the guard and the care are shown."""
    found = [e for h in diagnosis.hypotheses for e in h.evidence if e.node == node and e.trust is Trust.PLATFORM]
    return tuple(found[:MOST_WITNESSES])


def care_input(drain: c.DrainInput, evidence: tuple[Evidence, ...]) -> k.CareInput:
    """The care of a node that was drained."""
    return k.CareInput(
        incident=drain.incident, node=drain.node, cls=drain.cls, summary=drain.summary, evidence=evidence
    )


async def care_for_stuck(ref: c.IncidentRef, ended: c.Ended) -> list[str]:
    """Take nodes into care that hang in COMPLETING: there, setting them down is proposed. What was done, in words."""
    told = []
    nodes = ended.stuck_nodes or ended.lingering
    for node in nodes[:MOST_STUCK]:
        arg = k.CareInput(
            incident=ref,
            node=node,
            cls=STUCK,
            summary=f"Slurm cannot end job {ref.attempt.job_id} on it",
            completing_since=ended.since,
        )
        told.append(await care_for(arg))
    if left := nodes[MOST_STUCK:]:
        told.append(f"too many hang at once for a fault of their own, left to a person: {few(left)}")
    return told
