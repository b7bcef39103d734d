"""How long a restarted attempt may take until training has passed the point where it failed."""

from datetime import timedelta

START_UPS = 3
"""Times the job's own start-up: caches may be cold, and a shared file system busy with others that restart."""
REDONE = 2
"""Times what the steps since the checkpoint took before."""
LONGEST = timedelta(days=1)


def fitted(
    within: timedelta, *, start_up: timedelta | None = None, redone: int = 0, step_seconds: float | None = None
) -> timedelta:
    """The bound for one job: never less than the policy says, and longer where the job itself takes longer.

    Args:
        within: what the policy says.
        start_up: from an earlier attempt's start to its first step line, the longest known; None: not known.
        redone: steps from the checkpoint to the failure, which come again.
        step_seconds: of one step.
    """
    own = START_UPS * (start_up or timedelta(0)) + timedelta(seconds=REDONE * max(0, redone) * (step_seconds or 0.0))
    return max(within, min(own, LONGEST))
