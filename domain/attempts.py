"""Attempts: one execution of a job each, and the key by which everything about it is told apart."""

from datetime import UTC, datetime
from typing import Any

from relight.domain.base import Value, compact_time, short_hash
from relight.domain.slurm import ENDED, JobRecord


class AttemptKey(Value):
    """Names one execution for ever: cluster, Slurm job id, and the SubmitTime read *while RUNNING*.

    While COMPLETING a requeued record shows the old SubmitTime with the new restart count (seen), so a
    key is never made from a record that is not RUNNING: use `attempt_key`.
    """

    cluster: str
    job_id: int
    submit_time: datetime

    def __str__(self) -> str:
        """`<cluster>/<job id>/<SubmitTime>`."""
        return f"{self.cluster}/{self.job_id}/{compact_time(self.submit_time)}"

    @property
    def workflow_id(self) -> str:
        """Id of the workflow that handles this attempt's interruption."""
        return f"recover/{self}"

    @classmethod
    def parse(cls, text: str) -> "AttemptKey":
        """Read the text form back.

        Raises:
            ValueError: when the text is not `<cluster>/<job id>/<SubmitTime>`.
        """
        cluster, job_id, submit = text.rsplit("/", 2)
        at = datetime.strptime(submit, "%Y%m%dT%H%M%SZ").replace(tzinfo=UTC)
        return cls(cluster=cluster, job_id=int(job_id), submit_time=at)


class NotRunningError(ValueError):
    """An attempt key was asked of a record that is not RUNNING."""


def attempt_key(cluster: str, record: JobRecord) -> AttemptKey:
    """The key of the attempt that this record shows running.

    Raises:
        NotRunningError: when the record is pending, completing or ended.
    """
    if not record.running:
        raise NotRunningError(f"job {record.display_id} is {record.state}, not RUNNING")
    return AttemptKey(cluster=cluster, job_id=record.job_id, submit_time=record.submit_time)


def ended_key(cluster: str, record: JobRecord) -> AttemptKey:
    """The key of an attempt that nobody saw running, from its record once it has ended for good.

    Ended and no longer COMPLETING, a record's SubmitTime is that of the execution which it shows.

    Raises:
        NotRunningError: when the record is pending, running or completing.
    """
    if record.completing or record.state not in ENDED:
        raise NotRunningError(f"job {record.display_id} is {record.state}, not at its end")
    return AttemptKey(cluster=cluster, job_id=record.job_id, submit_time=record.submit_time)


class Attempt(Value):
    """What Relight knew of an attempt when it turned RUNNING; later the record may be gone."""

    key: AttemptKey
    lineage: str
    """Id of the job (what a user thinks of as one job) that this attempt belongs to."""
    record: JobRecord
    seen_at: datetime
    script: str | None = None
    """The batch script as submitted; None when it could not be read."""
    logs: tuple[str, ...] = ()
    """Where its outputs are in the site's log store (`domain.log_labels.references`); empty: they are read as files."""

    @property
    def outputs(self) -> tuple[str, ...]:
        """What the attempt's output is read from, each once: files, or logs in a store."""
        return self.logs or tuple(dict.fromkeys(p for p in (self.record.stdout, self.record.stderr) if p))


class AttemptState(Value):
    """An attempt and where it stands: the read model that watchers keep."""

    attempt: Attempt
    running: bool = True
    ended_at: datetime | None = None
    """When Relight first saw it no longer RUNNING."""
    ends: int = 0
    """How often slurmctld has forgotten an end of it and shown it RUNNING again: each end is told for itself."""
    successors: tuple[int, ...] = ()
    """Jobs that waited to go on with its work in the last look before its end: Slurm clears a job's dependency when
    it starts (seen), so afterwards it no longer shows."""


class LogPosition(Value):
    """Where the follower of one output file stands."""

    inode: int = 0
    offset: int = 0
    mark: str = ""
    """The log source's own mark of this place, by which it knows the file again."""
    start: int = 0
    """Where this attempt's output begins: earlier attempts wrote before it when the job appends."""
    counted: dict[str, Any] = {}
    """What is known of how this file's steps are counted (`attribution.progress_count.Counted`)."""


class Progress(Value):
    """How far an attempt's training has come, as its output shows; kept under the cursor `progress_cursor`."""

    last_step: int | None = None
    last_step_at: datetime | None = None
    """When the newest step line became visible."""
    step_seconds: float | None = None
    """Seconds a step, smoothed."""
    stride: int = 1
    """Steps from one step line to the next: a trainer may print every tenth."""
    files: dict[str, LogPosition] = {}
    slow_since: int | None = None
    """The step since which it has been slower than itself; None while it is not."""
    wrong_since: int | None = None
    """The step since which its numbers have been wrong; None while they are not."""
    saved_step: int | None = None
    """The newest step at which its output says that a checkpoint was written, all of it; None: no line said so."""
    saved_at: datetime | None = None
    """When that line became visible."""
    first_step: int | None = None
    """The first step seen of this attempt; None also in what was written down before this was kept."""
    first_step_at: datetime | None = None
    """When it became visible; None where nobody knows: it was there already when its output was first read."""
    saves: int = 0
    """Checkpoints that its lines announce, or say to be written."""
    saves_timed: int = 0
    """Those of them whose time is in `saving_seconds`."""
    saving_seconds: float = 0.0
    """What they have kept from training: how much later than usual the next step came."""
    stalled_seconds: float = 0.0
    """The same of silences that were as long as a hang and ended by themselves."""


def progress_cursor(key: AttemptKey) -> str:
    """Name of the ledger cursor that holds an attempt's progress."""
    return f"progress/{key}"


def lineage_id(cluster: str, record: JobRecord) -> str:
    """Id for a job that is seen for the first time."""
    return "j" + short_hash(f"{cluster}/{record.job_id}/{record.user}/{compact_time(record.submit_time)}", 10)


def same_lineage(last: Attempt, record: JobRecord) -> bool:
    """True when the record is a later execution of the same job, not a reused id.

    Fewer restarts than last seen, another user, name or script path: Slurm gave the id to another job. A requeue moves
    SubmitTime and adds a restart; a later SubmitTime without one is the same script, submitted again under a reused id.
    """
    old = last.record
    same = (old.user, old.name, old.command) == (record.user, record.name, record.command)
    if record.submit_time > old.submit_time:
        return same and record.restarts > old.restarts
    return same and record.restarts >= old.restarts and record.submit_time == old.submit_time
