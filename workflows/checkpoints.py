"""What an incident asks of the guard of checkpoints. A look that fails tells nothing, and holds up no restart."""

from temporalio import workflow
from temporalio.exceptions import ActivityError, is_cancelled_exception

with workflow.unsafe.imports_passed_through():
    from relight.activities import contracts as c
    from relight.domain.checkpoint_look import CheckpointLook
    from relight.workflows.ends import said
    from relight.workflows.options import do

GOOD_CHECKPOINT = "good-checkpoint"
"""Patch: incidents that were begun before go on without a look at the job's checkpoints."""


async def look_at(ref: c.IncidentRef) -> CheckpointLook:
    """What the job would go on from; unknown, with the reason, where that could not be looked at."""
    try:
        return await do(c.LOOK_AT_CHECKPOINTS, c.LookAtCheckpointsInput(incident=ref), "find a whole checkpoint")
    except ActivityError as error:
        if is_cancelled_exception(error):
            raise
        return CheckpointLook(problems=(said(error),), read_at=workflow.now())


async def fall_back(act: c.ActInput, *, ended: bool) -> c.FallenBack:
    """Make the change that the plan holds; before the requeue it waits where the old attempt has not ended yet."""
    to = act.plan.fall_back.label if act.plan.fall_back else ""
    return await do(c.FALL_BACK, c.FallBackInput(act=act, ended=ended), f"go back to the checkpoint of {to}")
