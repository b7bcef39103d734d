"""Who queued a job again, and who holds it: read off what Slurm shows. Pure.

Nothing in a record names the hand. Each leaves other signs (seen alike on 22.05.8, 24.11.5 and 26.05.5):

| what happened | record | accounting | nodes |
| --- | --- | --- | --- |
| a lost node | `BeginTime` | NODE_FAIL | down or not responding, for as long as that lasts |
| a failed prolog | held, `launch failed requeued held` | REQUEUED | drained: `Prolog error` |
| the same under `nohold_on_prolog_fail` | `BeginTime` | REQUEUED | drained: `Prolog error` |
| a failed launch | held, `launch failed requeued held` | REQUEUED | as they were |
| preemption | `BeginTime` | PREEMPTED | as they were |
| a person's `requeue` | `BeginTime` | REQUEUED | as they were |
| a person's `requeuehold` | held, `job requeued in held state` | REQUEUED | as they were |

Every hold shows the code `JobHeldUser` or `JobHeldAdmin`; whose it is stands in the words beside it, which a later
`scontrol hold` or `release` takes away.
"""

from collections.abc import Iterable
from enum import StrEnum

from relight.domain.attempts import Attempt
from relight.domain.slurm import AccountingRow, JobFlag, JobRecord, JobState, NodeRecord


class Hand(StrEnum):
    """Who queued a job again."""

    NOBODY = "nobody"
    SLURM = "slurm"
    RELIGHT = "relight"
    UNKNOWN = "unknown"
    """The user, their tool, an administrator, or Slurm for a job of higher priority."""


class Cause(StrEnum):
    """For what Slurm itself queues a job again."""

    NODE_FAIL = "node failed"
    PROLOG_FAILED = "prolog failed"
    LAUNCH_FAILED = "launch failed"
    PREEMPTED = "preempted"


def requeued(attempt: Attempt, record: JobRecord) -> bool:
    """True when the record shows that the attempt was queued again since.

    Either SubmitTime has moved, or, while still COMPLETING, the restart count has grown (both seen).
    """
    return record.submit_time > attempt.key.submit_time or record.restarts > attempt.record.restarts


def own_row(attempt: Attempt, rows: Iterable[AccountingRow]) -> AccountingRow | None:
    """The attempt's own row of accounting; None where that does not say."""
    return next((row for row in rows if row.submit_time == attempt.key.submit_time), None)


def whose_hand(
    attempt: Attempt,
    record: JobRecord,
    nodes: Iterable[NodeRecord],
    *,
    ours: bool,
    execution: AccountingRow | None = None,
) -> Hand:
    """Who queued the attempt again.

    Args:
        attempt: what was queued again.
        record: the job now.
        nodes: the nodes now.
        ours: whether the ledger holds our intent to requeue it.
        execution: the attempt's own row of accounting; None where that does not say.
    """
    if not requeued(attempt, record):
        return Hand.NOBODY
    if ours:
        return Hand.RELIGHT
    cause = requeue_cause(attempt, record, nodes, execution)
    # A job of higher priority takes the nodes: nothing failed, and nothing is Relight's to mend.
    return Hand.UNKNOWN if cause in {None, Cause.PREEMPTED} else Hand.SLURM


def requeue_cause(
    attempt: Attempt, record: JobRecord, nodes: Iterable[NodeRecord], execution: AccountingRow | None
) -> Cause | None:
    """For what Slurm itself has queued the attempt again; None where it does not look like Slurm's doing."""
    nodes = tuple(nodes)
    if execution is not None and execution.state is JobState.NODE_FAIL:
        return Cause.NODE_FAIL
    if execution is not None and execution.state is JobState.PREEMPTED:
        return Cause.PREEMPTED
    if prolog_errors(attempt, nodes):
        return Cause.PROLOG_FAILED
    if launch_failed(record):
        return Cause.LAUNCH_FAILED
    # Accounting calls a person's requeue REQUEUED, which is read as PENDING: a node that is lost now is not why.
    by_person = execution is not None and execution.state is JobState.PENDING and execution.end_time is not None
    lost = any(node.name in attempt.record.nodes and node.lost for node in nodes)
    return Cause.NODE_FAIL if lost and not by_person and not held(record) else None


def launch_failed(record: JobRecord) -> bool:
    """True when Slurm says that it queued the job again because it could not be launched."""
    words = record.why.replace("_", " ").lower()
    return JobFlag.LAUNCH_FAILED in record.flags or words.startswith("launch failed")


def prolog_errors(attempt: Attempt, nodes: Iterable[NodeRecord]) -> tuple[NodeRecord, ...]:
    """The attempt's nodes that slurmctld drained for a failed prolog since it started."""
    mine, started = set(attempt.record.nodes), attempt.record.start_time
    return tuple(
        node
        for node in nodes
        if node.name in mine
        and node.prolog_failed
        and node.reason_time is not None
        and started is not None
        and node.reason_time >= started
    )


def not_launched_on(attempt: Attempt, record: JobRecord | None, nodes: Iterable[NodeRecord]) -> tuple[str, ...]:
    """Nodes that could not start the attempt, where Slurm has queued it again for that.

    Those whose prolog failed; else, as a batch script is launched there, the attempt's batch host.
    """
    if record is None or not requeued(attempt, record):
        return ()
    failed = tuple(node.name for node in prolog_errors(attempt, nodes))
    if failed or not launch_failed(record):
        return failed
    return (attempt.record.batch_host,) if attempt.record.batch_host else ()


_HOLDS = frozenset({JobFlag.REQUEUE_HOLD, JobFlag.SPECIAL_EXIT, JobFlag.RESV_DEL_HOLD})


def held(record: JobRecord) -> bool:
    """True when the job does not start until somebody releases it."""
    return bool(record.flags & _HOLDS) or "held" in record.reason.lower() or "held" in record.reason_text.lower()


def held_by_slurm(record: JobRecord) -> bool:
    """True for the hold that Slurm puts on a job which it could not launch: an operator may undo it."""
    return _waits(record) and held(record) and launch_failed(record)


def held_by_another(record: JobRecord) -> bool:
    """True for any other hold: a person's or a site's tool's. It is theirs to undo."""
    return _waits(record) and held(record) and not launch_failed(record)


def _waits(record: JobRecord) -> bool:
    """22.05 hides PENDING behind COMPLETING until the last attempt's epilog has ended."""
    return record.state is JobState.PENDING or (record.state is JobState.UNKNOWN and record.completing)
