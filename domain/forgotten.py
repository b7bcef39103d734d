"""A requeue that slurmctld no longer knows of. Pure.

slurmctld saves its state every 5 s. One that is killed, and started again or replaced by its backup, goes on from what
it last saved: a job that was queued again since is FAILED as before, with the old SubmitTime and the old count of
restarts, and accounting agrees (seen on 22.05). Nobody queues it again then but who knows that it had been done.
"""

from datetime import datetime, timedelta

from relight.domain.attempts import Attempt
from relight.domain.base import Value
from relight.domain.hands import requeued
from relight.domain.slurm import ENDED_BADLY, JobRecord

FOR_SO_LONG = timedelta(seconds=4)
"""How long it must show like that: the mark of a requeue is never a matter of seconds, but a single read may be."""
MOST_TIMES = 5
"""So often one incident queues its job again for that; a slurmctld that dies each time is a person's to look at."""


def unqueued(attempt: Attempt, record: JobRecord) -> bool:
    """True where the record shows the attempt ended badly for good, and nobody's requeue of it."""
    return record.state in ENDED_BADLY and not record.completing and not requeued(attempt, record)


class Unqueued(Value):
    """Since when the record has shown the attempt ended and not queued again, though it had been."""

    since: datetime | None = None

    def seen(self, attempt: Attempt, record: JobRecord | None, now: datetime) -> "Unqueued":
        """With one more look at the job."""
        if record is None or not unqueued(attempt, record):
            return Unqueued()
        return self if self.since else Unqueued(since=now)

    def forgotten(self, now: datetime) -> bool:
        """True once it is certain."""
        return self.since is not None and now - self.since >= FOR_SO_LONG


def told(record: JobRecord) -> str:
    """What happened, for a person."""
    return f"slurmctld has forgotten the requeue: job {record.job_id} is {record.state} as before"
