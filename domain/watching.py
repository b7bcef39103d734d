"""What a read of all jobs means for the attempts that were running: pure comparison, no I/O."""

from collections.abc import Iterable, Mapping
from datetime import datetime
from typing import NamedTuple

from relight.domain.attempts import Attempt, AttemptKey
from relight.domain.evidence import Detection, Evidence, Interruption, Source
from relight.domain.policy import Hand
from relight.domain.slurm import ENDED_BADLY, AccountingRow, JobFlag, JobRecord, JobState, NodeRecord


class Ended(NamedTuple):
    """An attempt that is no longer running; its record is None when slurmctld no longer has one."""

    attempt: Attempt
    record: JobRecord | None


class Comparison(NamedTuple):
    """What changed since the last read."""

    started: tuple[JobRecord, ...]
    ended: tuple[Ended, ...]


def alive(key: AttemptKey, record: JobRecord) -> bool:
    """True while this record still shows this very attempt holding its nodes.

    A state that could not be read is not an end.
    """
    if record.submit_time != key.submit_time or JobFlag.COMPLETING in record.flags:
        return False
    return record.state in {JobState.RUNNING, JobState.SUSPENDED, JobState.UNKNOWN}


def compare(running: Mapping[AttemptKey, Attempt], jobs: Iterable[JobRecord], cluster: str) -> Comparison:
    """Attempts that started and attempts that ended, going by one read of all jobs."""
    by_id = {job.job_id: job for job in jobs}
    ended = tuple(
        Ended(attempt, by_id.get(key.job_id))
        for key, attempt in running.items()
        if key.job_id not in by_id or not alive(key, by_id[key.job_id])
    )
    known = {(key.job_id, key.submit_time) for key in running if key.cluster == cluster}
    started = tuple(job for job in by_id.values() if job.running and (job.job_id, job.submit_time) not in known)
    return Comparison(started, ended)


def flashes(jobs: Iterable[JobRecord], since: datetime) -> tuple[JobRecord, ...]:
    """Records of executions that may have begun and failed between two looks: bad ends not before `since`.

    Slurm tells times in whole seconds, so the second of `since` itself still counts.
    """
    limit = since.replace(microsecond=0)
    return tuple(
        job
        for job in jobs
        if job.state in ENDED_BADLY and not job.completing and job.nodes and job.end_time and job.end_time >= limit
    )


def lost_nodes(attempt: Attempt, nodes: Iterable[NodeRecord]) -> tuple[NodeRecord, ...]:
    """The attempt's nodes that slurmctld calls down or not responding."""
    mine = set(attempt.record.nodes)
    return tuple(node for node in nodes if node.name in mine and node.lost)


def ending(
    ended: Ended,
    hand: Hand,
    lost: Iterable[NodeRecord],
    now: datetime,
) -> Detection | None:
    """The interruption that an ended attempt is, or None when it ended in a way that is nobody's fault.

    A requeue by the user or another tool, preemption, cancellation, a time limit and success are not
    interruptions.
    """
    attempt, record = ended
    gone = tuple(lost)
    if hand in {Hand.RELIGHT, Hand.UNKNOWN} or record is None:
        return None
    if hand is not Hand.SLURM and record.state not in ENDED_BADLY:
        return None
    by_node = hand is Hand.SLURM or record.state is JobState.NODE_FAIL
    kind = Interruption.NODE_LOST if by_node else Interruption.CRASH
    return Detection(
        id=f"{attempt.key}/ended",
        attempt=attempt.key,
        kind=kind,
        detected_at=now,
        occurred_at=record.end_time,
        evidence=(_state_evidence(record, now), *(_node_evidence(node, now) for node in gone[:8])),
    )


def node_down(attempt: Attempt, node: NodeRecord, now: datetime) -> Detection:
    """A running attempt's node that slurmctld has declared down."""
    return Detection(
        id=f"{attempt.key}/node_lost/{node.name}",
        attempt=attempt.key,
        kind=Interruption.NODE_LOST,
        detected_at=now,
        occurred_at=node.reason_time,
        evidence=(_node_evidence(node, now),),
    )


def _state_evidence(record: JobRecord, now: datetime) -> Evidence:
    ended = f"{record.state} (exit code {record.exit_code}:{record.exit_signal}, restarts {record.restarts})"
    return Evidence(source=Source.SLURMCTLD, text=f"job {record.display_id} is {ended}", at=now)


def _node_evidence(node: NodeRecord, now: datetime) -> Evidence:
    state = "+".join([str(node.state), *sorted(node.flags)])
    text = f"node {node.name} is {state}: {node.reason or 'no reason given'}"
    return Evidence(source=Source.SLURMCTLD, text=text[:600], node=node.name, at=node.reason_time or now)


def purged(attempt: Attempt, execution: AccountingRow, now: datetime) -> Detection | None:
    """The interruption that accounting shows for an attempt which slurmctld has forgotten, or None."""
    if execution.state not in ENDED_BADLY:
        return None
    kind = Interruption.NODE_LOST if execution.state is JobState.NODE_FAIL else Interruption.CRASH
    text = f"job {execution.job_id} ended as {execution.state} (exit code {execution.exit_code})"
    return Detection(
        id=f"{attempt.key}/ended",
        attempt=attempt.key,
        kind=kind,
        detected_at=now,
        occurred_at=execution.end_time,
        evidence=(Evidence(source=Source.ACCOUNTING, text=text, at=execution.end_time),),
    )
