"""How an execution ended, told apart in one table, and whether that end is an interruption. Pure.

Seen on Slurm 22.05.8, 24.11.5 and 26.05.5 (what `squeue --json` shows first, and `sacct -D` at the same time):

| end | record | accounting |
| --- | --- | --- |
| failed | COMPLETING, then FAILED, `NonZeroExitCode` | FAILED at once |
| killed by a signal, no such folder | FAILED, `JobLaunchFailure` (22.05) or `RaisedSignal` (0:9, 0:53) | FAILED |
| lost node | no requeue: NODE_FAIL; else PENDING, restarts + 1, at once | NODE_FAIL in both cases |
| time limit | TIMEOUT, up to 30 s past the limit; also for a running job whose deadline has passed | TIMEOUT |
| preempted | PREEMPTED; where requeued PENDING, restarts + 1, like a person's requeue | PREEMPTED in both cases |
| cancelled | CANCELLED, exit 0:15 | `CANCELLED by UID`; a memory limit without cgroups is `by 0` |
| prolog failed | PENDING, restarts + 1, node drained with `Prolog error`; held, if so configured | REQUEUED |
| prolog failed, `--no-requeue` | CANCELLED, node drained | `CANCELLED by 0` |
| launch failed | the same, held, but no node is drained; both with `launch failed requeued held` | REQUEUED |
| special exit | PENDING+SPECIAL_EXIT, held, restarts + 1 | REQUEUED |
| requeued (and held) by a person | PENDING, restarts + 1 (`JobHeldUser`, `job requeued in held state`) | REQUEUED |

While COMPLETING 22.05 hides the record's final state; accounting has it by then. Whose a requeue and a hold are is told
in `hands.py`.
"""

from collections.abc import Collection, Sequence
from datetime import datetime, timedelta
from enum import StrEnum
from typing import NamedTuple

from relight.domain.attempts import Attempt, same_lineage
from relight.domain.base import clip
from relight.domain.evidence import Detection, Evidence, Interruption, Source
from relight.domain.hands import Cause, Hand, held, launch_failed, prolog_errors, requeue_cause, requeued
from relight.domain.slurm import ENDED, AccountingRow, JobFlag, JobRecord, JobState, NodeRecord


class End(StrEnum):
    """The ways in which an execution ends."""

    COMPLETED = "completed"
    FAILED = "failed"
    OUT_OF_MEMORY = "out of memory"
    NODE_FAIL = "node failed"
    BOOT_FAIL = "node did not boot"
    TIME_LIMIT = "time limit"
    HUNG = "time limit after a long silence"
    DEADLINE = "deadline"
    PREEMPTED = "preempted"
    CANCELLED_BY_OWNER = "cancelled by its owner"
    CANCELLED_BY_ROOT = "cancelled by root or Slurm"
    """Slurm cancels as root or SlurmUser: an administrator's `sudo scancel` looks the same."""
    CANCELLED_BY_OTHER = "cancelled by another user"
    """An operator, a coordinator, a service."""
    CANCELLED = "cancelled"
    """By whom is not known."""
    PROLOG_FAILED = "prolog failed"
    LAUNCH_FAILED = "launch failed"
    SPECIAL_EXIT = "special exit"
    REQUEUED = "requeued"
    HELD = "requeued and held"
    REVOKED = "revoked"
    UNKNOWN = "not known"


class Meaning(NamedTuple):
    """What an end means."""

    interruption: Interruption | None
    """None: nobody's failure, or not Relight's to undo."""
    source: str
    """Where the rule is from."""


_STATES = "squeue(1), JOB STATE CODES"

MEANING: dict[End, Meaning] = {
    End.COMPLETED: Meaning(None, _STATES),
    End.FAILED: Meaning(Interruption.CRASH, _STATES),
    End.OUT_OF_MEMORY: Meaning(Interruption.CRASH, _STATES),
    End.NODE_FAIL: Meaning(Interruption.NODE_LOST, _STATES),
    End.BOOT_FAIL: Meaning(Interruption.NODE_LOST, f"{_STATES}, BOOT_FAIL: typically a hardware failure"),
    End.TIME_LIMIT: Meaning(None, _STATES),
    End.HUNG: Meaning(Interruption.HANG, "Relight: the limit only ended what had stopped long before"),
    End.DEADLINE: Meaning(None, f"{_STATES}; sbatch(1), --deadline"),
    End.PREEMPTED: Meaning(None, _STATES),
    End.CANCELLED_BY_OWNER: Meaning(None, f"{_STATES}; sacct(1), State"),
    End.CANCELLED_BY_ROOT: Meaning(None, "sacct(1), State; seen: CANCELLED by 0"),
    End.CANCELLED_BY_OTHER: Meaning(None, "sacct(1), State"),
    End.CANCELLED: Meaning(None, _STATES),
    # The node that could not start it is lost to this job.
    End.PROLOG_FAILED: Meaning(Interruption.NODE_LOST, "slurm.conf(5), Prolog; seen: node drained, Prolog error"),
    End.LAUNCH_FAILED: Meaning(Interruption.CRASH, "seen: PENDING, launch failed requeued held"),
    End.SPECIAL_EXIT: Meaning(None, "scontrol(1), requeuehold State=SpecialExit: asked for by person or site"),
    End.REQUEUED: Meaning(None, "scontrol(1), requeue; slurm.conf(5), RequeueExit"),
    End.HELD: Meaning(None, "scontrol(1), requeuehold; slurm.conf(5), RequeueExitHold"),
    End.REVOKED: Meaning(None, f"{_STATES}, REVOKED: a sibling runs on another cluster of the federation"),
    End.UNKNOWN: Meaning(None, "what is not known is no interruption"),
}

_BY_STATE = {
    JobState.COMPLETED: End.COMPLETED,
    JobState.FAILED: End.FAILED,
    JobState.OUT_OF_MEMORY: End.OUT_OF_MEMORY,
    JobState.NODE_FAIL: End.NODE_FAIL,
    JobState.BOOT_FAIL: End.BOOT_FAIL,
    JobState.DEADLINE: End.DEADLINE,
    JobState.PREEMPTED: End.PREEMPTED,
}
ROOT = frozenset({"0", "root"})
HUNG_UNTIL_LIMIT = "HUNG_UNTIL_LIMIT"
"""Signature of the evidence that an attempt was silent for long when its time limit ended it."""


class Told(NamedTuple):
    """All that is known about an attempt that no longer runs."""

    attempt: Attempt
    record: JobRecord | None = None
    """As slurmctld shows the job now; None when it has forgotten it, or given the id to another job."""
    execution: AccountingRow | None = None
    """The attempt's own row of `sacct --duplicates`; None when it was not asked or does not say."""
    hand: Hand = Hand.NOBODY
    nodes: tuple[NodeRecord, ...] = ()
    owner: Collection[str] = ()
    """The owner's name and user id, as far as known."""
    root: Collection[str] = ROOT
    """Names and ids under which Slurm itself acts."""
    silent: timedelta | None = None
    """How long before its end the last step became visible; None when that is not known."""
    limit: timedelta = timedelta.max
    """The silence that counts as hanging."""


def another_job(attempt: Attempt, record: JobRecord) -> bool:
    """True when slurmctld has given the attempt's job id to another job: the record says nothing of its end."""
    return record.submit_time != attempt.key.submit_time and not same_lineage(attempt, record)


def how_ended(told: Told) -> End:
    """The end. What Slurm does not say is UNKNOWN, never a guess."""
    attempt, record = told.attempt, told.record
    if record is not None and JobFlag.REVOKED in record.flags:
        return End.REVOKED
    if record is not None and requeued(attempt, record):
        return _queued_again(told, record)
    state = end_state(told)
    if state is JobState.CANCELLED:
        return _cancelled(told)
    if state is JobState.TIMEOUT:
        return End.HUNG if told.silent is not None and told.silent > told.limit else End.TIME_LIMIT
    return _BY_STATE.get(state, End.UNKNOWN)


def end_state(told: Told) -> JobState:
    """The state in which the execution ended, by its record or else by accounting."""
    record, execution = told.record, told.execution
    if record is not None and not requeued(told.attempt, record) and record.state in ENDED:
        return record.state
    return execution.state if execution is not None and execution.state in ENDED else JobState.UNKNOWN


_BY_CAUSE = {
    Cause.NODE_FAIL: End.NODE_FAIL,
    Cause.PROLOG_FAILED: End.PROLOG_FAILED,
    Cause.LAUNCH_FAILED: End.LAUNCH_FAILED,
    Cause.PREEMPTED: End.PREEMPTED,
}


def _queued_again(told: Told, record: JobRecord) -> End:
    if told.hand is Hand.RELIGHT:
        return End.REQUEUED
    cause = requeue_cause(told.attempt, record, told.nodes, told.execution)
    if cause is not None:
        return _BY_CAUSE[cause]
    if JobFlag.SPECIAL_EXIT in record.flags:
        return End.SPECIAL_EXIT
    return End.HELD if held(record) else End.REQUEUED


def _cancelled(told: Told) -> End:
    by = told.execution.cancelled_by if told.execution else ""
    if not by:
        return End.CANCELLED
    # An owner who is root is an owner.
    if by in told.owner or by == told.attempt.record.user:
        return End.CANCELLED_BY_OWNER
    if by in told.root:
        return End.CANCELLED_BY_ROOT
    return End.CANCELLED_BY_OTHER if told.owner or not by.isdecimal() else End.CANCELLED


_SAID_BY_STATE = frozenset({End.TIME_LIMIT, End.CANCELLED, End.REQUEUED, End.UNKNOWN})


def describe(told: Told, end: End) -> str:
    """The end for a person: Slurm's state first, then what else is known, then who queued the job again."""
    state = told.record.state if told.record is not None else end_state(told)
    words = [str(state)]
    if _BY_STATE.get(state) is not end and end not in _SAID_BY_STATE:
        by = told.execution.cancelled_by if told.execution else ""
        words.append(f"({end}: uid {by})" if by.isdecimal() else f"({end})")
    if told.record is None:
        return " ".join([*words, "(from accounting)"])
    return f"{' '.join(words)}, queued again by {told.hand}"


MAX_NODES_NAMED = 8


def detection(told: Told, end: End, now: datetime) -> Detection | None:
    """The interruption that the end is, or None.

    A failed launch is a crash, one whose prolog failed a lost node: the attempt is over either way.
    """
    kind = MEANING[end].interruption
    if kind is None:
        return None
    mine = set(told.attempt.record.nodes)
    gone = [node for node in told.nodes if node.name in mine and node.lost] or prolog_errors(told.attempt, told.nodes)
    evidence = [_state_evidence(told, now), *nodes_evidence(gone, now)]
    if end is End.HUNG and told.silent is not None:
        evidence.append(_silence_evidence(told.silent, told.limit, now))
    at = told.record.end_time if told.record is not None else None
    return Detection(
        id=f"{told.attempt.key}/ended",
        attempt=told.attempt.key,
        kind=kind,
        detected_at=now,
        occurred_at=at or (told.execution.end_time if told.execution else None),
        evidence=tuple(evidence),
    )


def _state_evidence(told: Told, now: datetime) -> Evidence:
    record, execution = told.record, told.execution
    if record is None:
        state = execution.state if execution else JobState.UNKNOWN
        code = execution.exit_code if execution else 0
        text = f"job {told.attempt.key.job_id} ended as {state} (exit code {code})"
        return Evidence(source=Source.ACCOUNTING, text=text, at=execution.end_time if execution else now)
    ended = f"{record.state} (exit code {record.exit_code}:{record.exit_signal}, restarts {record.restarts})"
    why = f": {record.why}" if record.reason_text or launch_failed(record) else ""
    return Evidence(source=Source.SLURMCTLD, text=f"job {record.display_id} is {ended}{why}"[:600], at=now)


def node_evidence(node: NodeRecord, now: datetime) -> Evidence:
    """What slurmctld says of a node, as a platform witness."""
    state = "+".join([str(node.state), *sorted(node.flags)])
    text = f"node {node.name} is {state}: {node.reason or 'no reason given'}"
    return Evidence(source=Source.SLURMCTLD, text=text[:600], node=node.name, at=node.reason_time or now)


def nodes_evidence(nodes: Sequence[NodeRecord], now: datetime) -> tuple[Evidence, ...]:
    """A witness on each of the first nodes, and one more line for all the others."""
    named = tuple(node_evidence(node, now) for node in nodes[:MAX_NODES_NAMED])
    rest = [node.name for node in nodes[MAX_NODES_NAMED:]]
    if not rest:
        return named
    text = clip(f"{len(rest)} more nodes with them: {', '.join(rest)}", 600)
    return (*named, Evidence(source=Source.SLURMCTLD, text=text, at=now))


def _silence_evidence(silent: timedelta, limit: timedelta, now: datetime) -> Evidence:
    text = f"no step for {silent.total_seconds():.0f} s before the time limit (more than {limit.total_seconds():.0f} s)"
    return Evidence(source=Source.PROGRESS, text=text, signature=HUNG_UNTIL_LIMIT, at=now)
