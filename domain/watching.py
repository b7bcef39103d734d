"""What a read of all jobs means for the attempts that were running: pure comparison, no I/O.

No clock of ours is compared with Slurm's: the two may differ, and either may be set forward or back between two looks.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from datetime import datetime
from typing import NamedTuple

from relight.domain.attempts import Attempt, AttemptKey
from relight.domain.endings import nodes_evidence
from relight.domain.evidence import Detection, Interruption
from relight.domain.slurm import ENDED, ENDED_BADLY, AccountingRow, JobFlag, JobRecord, JobState, NodeRecord


class Ended(NamedTuple):
    """An attempt that is no longer running; its record is None when slurmctld no longer has one."""

    attempt: Attempt
    record: JobRecord | None


class Again(NamedTuple):
    """An attempt that slurmctld has started a second time, or of which it tells more than at first, with its record."""

    attempt: Attempt
    record: JobRecord


class Comparison(NamedTuple):
    """What changed since the last read."""

    started: tuple[JobRecord, ...]
    ended: tuple[Ended, ...]
    again: tuple[Again, ...] = ()


class Execution(NamedTuple):
    """Names one execution of a job within a cluster."""

    job_id: int
    submit_time: datetime


def alive(key: AttemptKey, record: JobRecord) -> bool:
    """True while this record still shows this very attempt holding its nodes.

    A state that could not be read is not an end.
    """
    if record.submit_time != key.submit_time or JobFlag.COMPLETING in record.flags:
        return False
    return record.state in {JobState.RUNNING, JobState.SUSPENDED, JobState.UNKNOWN}


def unstarted(attempt: Attempt, record: JobRecord) -> bool:
    """True where slurmctld has forgotten that it started the attempt, and will start it again under the same key.

    One that is killed goes on from the state that it last saved, up to 5 s before (seen on 22.05): what was RUNNING is
    PENDING again, with the same SubmitTime and as many restarts. It is no end, and nobody has queued the job again.
    """
    same = record.submit_time == attempt.key.submit_time and record.restarts == attempt.record.restarts
    return same and record.state is JobState.PENDING


def began_anew(attempt: Attempt, record: JobRecord) -> bool:
    """True once it was, perhaps on other nodes."""
    known = attempt.record.start_time
    return known is not None and record.start_time is not None and record.start_time > known


def _renewed(attempt: Attempt, record: JobRecord | None) -> bool:
    """True where the snapshot is of yesterday: of an earlier start, or without the output files that Slurm tells now.

    A slurmctld that has just come back shows jobs without them, and says that they may not be requeued (seen on 22.05).
    """
    if record is None or not record.running or record.submit_time != attempt.key.submit_time:
        return False
    return began_anew(attempt, record) or bool(record.stdout and not attempt.record.stdout)


def compare(running: Mapping[AttemptKey, Attempt], jobs: Iterable[JobRecord], cluster: str) -> Comparison:
    """Attempts that started and attempts that ended, going by one read of all jobs."""
    by_id = {job.job_id: job for job in jobs}
    ended = tuple(
        Ended(attempt, by_id.get(key.job_id))
        for key, attempt in running.items()
        if key.job_id not in by_id or not (alive(key, by_id[key.job_id]) or unstarted(attempt, by_id[key.job_id]))
    )
    again = tuple(
        Again(attempt, by_id[key.job_id])
        for key, attempt in running.items()
        if _renewed(attempt, by_id.get(key.job_id))
    )
    known = {(key.job_id, key.submit_time) for key in running if key.cluster == cluster}
    started = tuple(job for job in by_id.values() if job.running and (job.job_id, job.submit_time) not in known)
    return Comparison(started, ended, again)


def executions(jobs: Iterable[JobRecord]) -> frozenset[Execution]:
    """The executions that these records show."""
    return frozenset(Execution(job.job_id, job.submit_time) for job in jobs)


def over(jobs: Iterable[JobRecord]) -> frozenset[Execution]:
    """The executions that a read shows at their end."""
    return executions(job for job in jobs if job.state in ENDED and not job.completing)


def newest(jobs: Iterable[JobRecord]) -> datetime | None:
    """The newest time of Slurm's own clock in a read, in whole seconds; None where it shows no job.

    StartTime and the EndTime of an open record may be forecasts, so they do not count.
    """
    times = [at for job in jobs for at in (job.submit_time, job.end_time if job.state in ENDED else None) if at]
    return max(times, default=None)


def flashes(
    jobs: Iterable[JobRecord], seen: Collection[Execution], since: datetime | None = None
) -> tuple[JobRecord, ...]:
    """Records of executions that may have begun and failed between two looks.

    Args:
        jobs: this read.
        seen: the executions that were over in the last one.
        since: where the last read is not known in full (it was another process's), its newest time of Slurm's clock.
    """
    return tuple(
        job
        for job in jobs
        if job.state in ENDED_BADLY
        and not job.completing
        and job.nodes
        and job.end_time
        and (job.job_id, job.submit_time) not in seen
        and (since is None or job.end_time >= since)
    )


def missed(
    base: JobRecord, rows: Sequence[AccountingRow], *, after: datetime | None, before: datetime | None
) -> tuple[JobRecord, ...]:
    """The executions of a job that ran and ended unseen, oldest first, each as its record would have shown it.

    Args:
        base: any record of the job; what is not the execution's own is taken from it.
        rows: `sacct --duplicates` of the job.
        after: only executions submitted later; None: all.
        before: only executions submitted earlier; None: all. `base.restarts` is the count of the one at `before`, or
            at `after` where there is no `before`.
    """
    ran = sorted(
        (row for row in rows if row.submit_time and row.start_time and row.end_time),
        key=lambda row: row.submit_time or base.submit_time,
    )
    between = [
        row
        for row in ran
        if row.submit_time
        and (after is None or row.submit_time > after)
        and (before is None or row.submit_time < before)
    ]
    first = base.restarts + 1
    if before is not None:
        # Older rows than there were restarts are another job's, which had the same id.
        between = between[max(0, len(between) - base.restarts) :]
        first = base.restarts - len(between)
    return tuple(_as_record(base, row, first + number) for number, row in enumerate(between))


def _as_record(base: JobRecord, row: AccountingRow, restarts: int) -> JobRecord:
    return base.model_copy(
        update={
            "state": row.state,
            "flags": frozenset(),
            "reason": "",
            "exit_code": row.exit_code,
            "exit_signal": row.exit_signal,
            "restarts": restarts,
            "submit_time": row.submit_time,
            "eligible_time": None,
            "start_time": row.start_time,
            "end_time": row.end_time,
            "nodes": row.nodes,
            "batch_host": row.nodes[0] if row.nodes else "",
        }
    )


def lost_nodes(attempt: Attempt, nodes: Iterable[NodeRecord]) -> tuple[NodeRecord, ...]:
    """The attempt's nodes that slurmctld calls down or not responding."""
    mine = set(attempt.record.nodes)
    return tuple(node for node in nodes if node.name in mine and node.lost)


def nodes_down(attempt: Attempt, nodes: Sequence[NodeRecord], now: datetime) -> Detection:
    """A running attempt's nodes that slurmctld has declared down: one finding, named after the first of them."""
    return Detection(
        id=node_lost_id(attempt, nodes[0].name),
        attempt=attempt.key,
        kind=Interruption.NODE_LOST,
        detected_at=now,
        occurred_at=min((node.reason_time for node in nodes if node.reason_time), default=None),
        evidence=nodes_evidence(nodes, now),
    )


def node_lost_id(attempt: Attempt, node: str) -> str:
    """Id of the finding that the attempt has lost the node, whoever finds it first."""
    return f"{attempt.key}/node_lost/{node}"
