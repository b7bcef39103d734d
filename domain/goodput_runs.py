"""Runs for the account of time, made from what the ledger and Slurm's accounting know of attempts. Pure."""

from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime, timedelta
from typing import NamedTuple

from relight.domain.attempts import Attempt, AttemptKey, AttemptState, Progress
from relight.domain.endings import MEANING, End
from relight.domain.evidence import Interruption
from relight.domain.goodput import Run
from relight.domain.goodput_parts import Moments
from relight.domain.incidents import Incident, Outcome
from relight.domain.ledger import Row
from relight.domain.slurm import ENDED_BADLY, AccountingRow, JobState

ACTED = frozenset(
    {
        Outcome.RECOVERED,
        Outcome.ADOPTED,
        Outcome.RESTARTED_NO_PROGRESS,
        Outcome.RESTARTED_UNVERIFIED,
        Outcome.STOPPED,
    }
)
"""Outcomes of incidents that ended the attempt, or took its end for an interruption."""
_BY_HAND = frozenset(
    {End.TIME_LIMIT, End.REQUEUED, End.HELD, End.CANCELLED_BY_OWNER, End.CANCELLED_BY_OTHER, End.CANCELLED}
)
"""How people, and limits, end an attempt that hangs."""


class Ending(NamedTuple):
    """How an attempt ended, as its row of the ledger tells."""

    end: End
    state: JobState
    at: datetime | None
    """By Slurm's clock; None where its record was another execution's already."""

    @property
    def badly(self) -> bool:
        """Whether the end itself is an interruption."""
        return MEANING[self.end].interruption is not None


def ending_of(row: Row) -> Ending:
    """The end that a row of kind `attempt_ended` tells of. Rows of earlier versions say less."""
    record = row.body.get("record") or {}
    word = str(record.get("state") or str(row.body.get("how", "")).split(" ")[0])
    state = JobState(word) if word in JobState.__members__ else JobState.UNKNOWN
    end = str(row.body.get("end", ""))
    known = End(end) if end in set(End) else _end_by_state(state)
    submitted, ended = _time(record.get("submit_time")), _time(record.get("end_time"))
    own = submitted is not None and row.attempt.endswith(f"{submitted:%Y%m%dT%H%M%SZ}")
    return Ending(known, state, ended if own else None)


def _end_by_state(state: JobState) -> End:
    found = {JobState.COMPLETED: End.COMPLETED, JobState.CANCELLED: End.CANCELLED, JobState.TIMEOUT: End.TIME_LIMIT}
    return found.get(state, End.FAILED if state in ENDED_BADLY else End.UNKNOWN)


def _time(value: object) -> datetime | None:
    return datetime.fromisoformat(value) if isinstance(value, str) else None


class Seen(NamedTuple):
    """What the ledger knows of one attempt."""

    state: AttemptState
    progress: Progress | None
    """None: its output was never read."""
    ending: Ending | None = None


def run_of(seen: Seen, incident: Incident | None, now: datetime) -> Run:
    """One attempt as a run, its times as its records showed them; `exact` has accounting's.

    Args:
        seen: what the ledger knows.
        incident: the one about its end, if any.
        now: for one that still runs.
    """
    attempt, ending = seen.state.attempt, seen.ending
    record, progress = attempt.record, seen.progress or Progress()
    started = record.start_time or attempt.seen_at
    ended = now if seen.state.running else (ending and ending.at) or seen.state.ended_at or started
    state = ending.state if ending else JobState.UNKNOWN
    end = ending.end if ending else _end_by_state(state)
    line = timedelta(seconds=progress.step_seconds * progress.stride) if progress.step_seconds else None
    return Run(
        attempt=attempt.key,
        gpus=record.gpus,
        nodes=record.node_count or len(record.nodes),
        queued_at=attempt.key.submit_time,
        started_at=started,
        ended_at=max(ended, started),
        running=seen.state.running,
        ended_badly=not seen.state.running and _badly(end, state, incident),
        completed=end is End.COMPLETED,
        first_step=progress.first_step,
        first_step_at=progress.first_step_at,
        last_step=progress.last_step,
        last_step_at=progress.last_step_at,
        stride=progress.stride,
        line_every=line,
        saving=timedelta(seconds=progress.saving_seconds),
        saves=progress.saves,
        timed_saves=progress.saves_timed,
        stalled=timedelta(seconds=progress.stalled_seconds),
        saved_step=progress.saved_step,
        read=bool(progress.files) or progress.last_step is not None,
    )


def _badly(end: End, state: JobState, incident: Incident | None) -> bool:
    """Whether the attempt was interrupted: by its end, or because an incident of it says so."""
    if MEANING[end].interruption is not None or (end is End.UNKNOWN and state in ENDED_BADLY):
        return True
    if incident is None or end is End.COMPLETED:
        return False
    return incident.outcome in ACTED or (incident.kind is Interruption.HANG and end in _BY_HAND)


def exact(run: Run, rows: Iterable[AccountingRow]) -> Run:
    """The run with accounting's times, where it has any of it."""
    key = run.attempt
    row = next((row for row in rows if (row.job_id, row.submit_time) == (key.job_id, key.submit_time)), None)
    if row is None or row.start_time is None:
        return run
    ended = run.ended_at if run.running or row.end_time is None else row.end_time
    return run.model_copy(update={"started_at": row.start_time, "ended_at": max(ended, row.start_time)})


def unseen(like: Attempt, rows: Iterable[AccountingRow], known: Iterable[AttemptKey]) -> tuple[Run, ...]:
    """The executions of a job that Relight never saw: when they ran is known, and nothing of what they did.

    Args:
        like: the first attempt of the job that was seen. Of executions before it only as many are the job's own as it
            had restarts: older ones are another's, which had the same id.
        rows: all executions.
        known: the attempts that were seen.
    """
    there = {key.submit_time for key in known if key.job_id == like.key.job_id}
    mine = [row for row in rows if row.job_id == like.key.job_id and row.submit_time not in there]
    before = [row for row in mine if row.submit_time and row.submit_time < like.key.submit_time]
    own = {*before[len(before) - min(len(before), like.record.restarts) :]}
    found = []
    for row in mine:
        if row.submit_time is None or row.start_time is None or row.end_time is None:
            continue
        if row.submit_time < like.key.submit_time and row not in own:
            continue
        key = AttemptKey(cluster=like.key.cluster, job_id=row.job_id, submit_time=row.submit_time)
        nodes = len(row.nodes) or like.record.node_count
        each = like.record.gpus // like.record.node_count if like.record.node_count else 0
        run = Run(
            attempt=key,
            gpus=each * nodes,
            nodes=nodes,
            queued_at=row.submit_time,
            started_at=row.start_time,
            ended_at=max(row.end_time, row.start_time),
            ended_badly=row.state in ENDED_BADLY,
            completed=row.state is JobState.COMPLETED,
            read=False,
        )
        found.append(run)
    return tuple(found)


def moments_of(incident: Incident) -> Moments:
    """When what was done about an interruption, by the incident's own steps."""
    at = {step.name: step.at for step in incident.steps}
    declined = incident.outcome in {Outcome.EXPIRED, Outcome.REJECTED}
    return Moments(
        detected=incident.detected_at,
        planned=at.get("planned"),
        approved=at.get("approved") or (incident.closed_at if declined else None),
        started=at.get("start set") or at.get("requeued"),
    )


def clipped(run: Run, since: datetime) -> Run | None:
    """What of a run lies after that time; None: nothing. Its steps and saves are taken to be spread evenly."""
    if run.ended_at <= since:
        return None
    if run.started_at >= since:
        return run
    update: dict[str, object] = {"started_at": since, "queued_at": since}
    first, last = run.first_step_at, run.last_step_at
    if first is not None and last is not None and first < since and run.last_step is not None:
        left = (last - since) / (last - first) if last > since else 0.0
        done = run.last_step - (run.first_step if run.first_step is not None else run.last_step)
        update |= {
            "first_step": run.last_step - round(done * left),
            "first_step_at": since,
            "last_step_at": max(last, since),
            "saving": run.saving * left,
            "saves": round(run.saves * left),
            "timed_saves": round(run.timed_saves * left),
            "stalled": run.stalled * left,
        }
    return run.model_copy(update=update)


def told(runs: Iterable[Run], incidents: Mapping[AttemptKey, Incident]) -> dict[AttemptKey, Moments]:
    """The moments of these runs' incidents, by their attempts; there may be thousands of others."""
    return {run.attempt: moments_of(incidents[run.attempt]) for run in runs if run.attempt in incidents}


def in_order(runs: Sequence[Run]) -> tuple[Run, ...]:
    """By their start, as `of_job` and `costs` count them."""
    return tuple(sorted(runs, key=lambda run: run.started_at))
