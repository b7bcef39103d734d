"""The time from which Slurm itself starts a job that was queued again: now, or later where a restart backs off.

Either way slurmctld starts it: were nothing of Relight ever to come back, the job would run all the same.
"""

from datetime import datetime, timedelta

from temporalio import activity

from relight.activities.site import Site
from relight.clients.slurm import AmbiguousWriteError, RefusedError
from relight.domain.attempts import Attempt
from relight.domain.slurm import JobState

LOOK_AGAIN = timedelta(seconds=0.25)
NEXT_PASS = timedelta(seconds=2)
"""By then Slurm's scheduler has looked at the job again; an Epilog that ends just now sets the begin delay anew."""
SLACK = timedelta(seconds=5)
"""Begin times this much earlier than asked for will do: clocks differ, and the command took its time."""


class StartTime:
    """Sets a job's begin time and looks whether it stays."""

    def __init__(self, site: Site, attempt: Attempt, not_before: datetime | None) -> None:
        """Bind to a job by the attempt that was queued again; None: it may start at once."""
        self._site = site
        self._attempt = attempt
        self._job_id = attempt.key.job_id
        self._not_before = not_before

    @property
    def text(self) -> str:
        """What Slurm shows once it is set."""
        if not self._wait():
            return "Slurm may start it at once"
        return f"Slurm starts it by itself after {self._not_before:%H:%M:%S} UTC"

    def _wait(self) -> timedelta:
        left = self._not_before - self._site.clock() if self._not_before else timedelta(0)
        return max(left, timedelta(0))

    async def write(self) -> bool:
        """Write it, and tell whether it holds; False: Slurm shows another begin time, or none that could be read."""
        wait = self._wait()
        try:
            if wait:
                await self._site.slurm.start_after(self._job_id, wait)
            else:
                await self._site.slurm.start_now(self._job_id)
        except (AmbiguousWriteError, RefusedError) as error:
            activity.logger.info("StartTime of job %d: %s", self._job_id, error)
        return await self._begins_late() if wait else await self._begin_delay_gone()

    async def _begin_delay_gone(self) -> bool:
        until = self._site.clock() + NEXT_PASS
        while self._site.clock() < until:
            record = await self._site.record_of(self._attempt)
            if record is None or record.state is not JobState.PENDING or record.reason != "BeginTime":
                return True
            await self._site.sleep(LOOK_AGAIN.total_seconds())
        return False

    async def _begins_late(self) -> bool:
        """Whether the begin time is still ours after a scheduling pass."""
        until, holds = self._site.clock() + NEXT_PASS, False
        while self._not_before is not None and self._site.clock() < until:
            record = await self._site.record_of(self._attempt)
            if record is None or record.state is not JobState.PENDING:
                return False
            begins = record.eligible_time
            holds = begins is not None and begins >= self._not_before - SLACK
            await self._site.sleep(LOOK_AGAIN.total_seconds())
        return holds
