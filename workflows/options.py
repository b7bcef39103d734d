"""One table: how long each activity may take, how it is tried again, and why. And the caps on what travels.

Every activity is idempotent, so retries are without limit where the world may come back (Slurm, the ledger);
an incident that waits is open and visible, one that gave up is lost.
"""

from datetime import timedelta
from typing import NamedTuple, TypeVar

from temporalio import workflow
from temporalio.common import RetryPolicy

from relight.activities import care_contracts as k
from relight.activities import contracts as c

I = TypeVar("I")  # noqa: E741 - input
O = TypeVar("O")  # noqa: E741 - output

MAX_NODES_IN_ATTRIBUTE = 32
"""Search attributes hold at most so many nodes, and a count: 1,000 names failed the workflow (seen)."""
MAX_SUMMARY = 200
"""Temporal's limit on a summary is 400 bytes."""
MAX_DETAILS = 15_000
"""Temporal's limit on current details is 20,000 bytes."""
MAX_REASON = 500
"""Characters of an outcome's reason: a plan for 4,096 nodes names them all."""
MAX_ESCALATION = 1500
"""Characters of what a person must do next; the command for a fresh submission is part of it."""
MAX_EVIDENCE_SIGNALS = 200
"""Signals of evidence taken per incident; the rest is in the ledger."""
MAX_EVIDENCE = 100
"""Pieces of evidence passed on to the diagnosis: 2,400 of them would not fit into one message of 2 MiB."""
MAX_REFUSED = 50
"""Decisions that do not count, taken per incident: each is a row and a step, and anybody can send a bare signal."""
REQUESTS_PER_RUN = 500
"""Drain requests before the guard continues as new."""
LEAVE_WITHIN = timedelta(minutes=2)
"""How long an incident waits for the guard; without an answer nothing is drained."""

DO_NOT_RETRY = [
    "NotPermittedError",
    "RefusedError",
    "NodeNotFoundError",
    "LedgerCorruptError",
    "StoppedError",
    "ValueError",
]
"""Error classes for which another try cannot help; tested against the classes."""


class Options(NamedTuple):
    """Limits of one activity."""

    start_to_close: timedelta
    heartbeat: timedelta | None = None
    attempts: int = 0
    """0: tried again for ever."""
    never_give_up: bool = False
    """Tried again whatever the error: without watchers nothing is detected, and nothing says so."""


def _seconds(value: float) -> timedelta:
    return timedelta(seconds=value)


_WATCHER = Options(timedelta(days=7), _seconds(30), never_give_up=True)
_READ = Options(_seconds(60))
_WRITE = Options(_seconds(60))
_WAIT = Options(timedelta(days=30), _seconds(60))

OPTIONS: dict[str, Options] = {
    # Watchers run for hours and beat; a worker that died is noticed after 30 s.
    c.WATCH_JOBS.name: _WATCHER,
    c.WATCH_NODES.name: _WATCHER,
    c.FOLLOW_LOGS.name: _WATCHER,
    c.DELIVER_DETECTIONS.name: _WATCHER,
    c.WATCH_AGENTS.name: _WATCHER,
    c.WATCH_METRICS.name: _WATCHER,
    # Waits for a slow file system in a thread, and beats all the while.
    c.EXPIRE_OUTPUTS.name: _WATCHER,
    # Each place answers within 20 s, git within three times that: beaten between them, and tried again by itself.
    c.ANCHOR_LEDGER.name: Options(timedelta(days=7), _seconds(120), never_give_up=True),
    # Waits for Slurm to make up its mind about a lost node: SlurmdTimeout, which may be up to 65,533 s, and 60 s more.
    c.CONFIRM.name: Options(timedelta(days=1), _seconds(30)),
    c.AWAIT_CLOSED.name: _WAIT,
    # A 5 GB log takes a while to scan. After five tries the cause counts as unknown: a job is not left dead for it.
    c.DIAGNOSE.name: Options(_seconds(300), _seconds(60), attempts=5),
    # One look, bounded inside at 15 s, and the reads before it; afterwards what is there counts as unknown.
    c.LOOK_AT_CHECKPOINTS.name: Options(_seconds(45), _seconds(30), attempts=2),
    # A look and a change, each bounded; after five tries it is given up inside, and the job held where that is needed.
    c.FALL_BACK.name: Options(_seconds(120), _seconds(30)),
    # Waits up to 20 s for what has gone blind to see again, and up to 30 s for Slurm to say how the job ended.
    c.PLAN.name: Options(_seconds(120)),
    c.RECORD_DECISION.name: _READ,
    c.VERIFY_DECISION.name: _READ,
    # Bounded at 10 s inside; keeping outputs never holds up a recovery.
    c.KEEP_OUTPUTS.name: Options(_seconds(30), attempts=2),
    c.REQUEUE.name: _WRITE,
    c.CANCEL.name: _WRITE,
    c.EXCLUDE.name: _WRITE,
    c.RELEASE.name: _WRITE,
    c.START.name: _WRITE,
    # Waits for the old job's epilog, and, where an answer was lost, half a minute before it submits again.
    c.SUBMIT.name: Options(_seconds(300), _seconds(60)),
    c.RELEASE_FRESH.name: _WRITE,
    # Jobs that wait for this one's success are written anew beside its restart, which never waits for them long.
    c.REPOINT.name: Options(_seconds(60), _seconds(30), attempts=5),
    # A job may wait in the queue for weeks.
    c.AWAIT_ENDED.name: _WAIT,
    c.AWAIT_RUNNING.name: _WAIT,
    c.AWAIT_PROGRESS.name: _WAIT,
    c.CLOSE.name: _READ,
    c.READ_NODES.name: _READ,
    c.RECORD_LEAVE.name: _READ,
    # The guard's one look: nodes and topology, each within Slurm's own time-out.
    c.LOOK.name: _READ,
    c.RECORD_STANDING.name: _READ,
    c.MAY_ACT.name: _READ,
    # A node that cannot be drained after ten tries is said so; the restart does not wait for it.
    c.DRAIN.name: Options(_seconds(120), attempts=10),
    c.READ_POLICY.name: _READ,
    c.GATHER_NOTICES.name: _WATCHER,
    # One try of at most a minute; whatever the channel says, a person may correct it, and nothing else waits for it.
    c.SEND_NOTICE.name: Options(_seconds(120), never_give_up=True),
    k.BEGIN_CARE.name: _READ,
    k.READ_LIMITS.name: _READ,
    k.RECORD_CARE.name: _READ,
    k.RECORD_HEARD.name: _READ,
    # A node's jobs may run for weeks, and a node may wait for its repair for months.
    k.AWAIT_DRAINED.name: _WAIT,
    k.AWAIT_CHANGE.name: Options(timedelta(days=180), _seconds(60)),
    k.KEEP_EVIDENCE.name: Options(_seconds(60), attempts=3),
    # All checks of an agent: three minutes of ours, ten of the site's script, and some beats.
    k.CHECK_NODE.name: Options(timedelta(minutes=20), _seconds(60)),
    k.JUDGE_NODE.name: _READ,
    # What cannot be done after ten tries is said so, and a person is told.
    k.RETURN_NODE.name: Options(_seconds(120), attempts=10),
    k.DOWN_NODE.name: Options(_seconds(120), attempts=10),
    k.ASK_PLATFORM.name: Options(_seconds(120), attempts=10),
}


async def do(call: c.Call[I, O], arg: I, summary: str = "") -> O:
    """Run an activity with its options from the table; the summary is what the Temporal web UI shows."""
    options = OPTIONS[call.name]
    result: O = await workflow.execute_activity(
        call.name,
        arg,
        result_type=call.result,
        start_to_close_timeout=options.start_to_close,
        heartbeat_timeout=options.heartbeat,
        retry_policy=RetryPolicy(
            initial_interval=_seconds(0.5),
            backoff_coefficient=2,
            maximum_interval=_seconds(10),
            maximum_attempts=options.attempts,
            non_retryable_error_types=[] if options.never_give_up else DO_NOT_RETRY,
        ),
        summary=summary[:MAX_SUMMARY] or None,
    )
    return result
