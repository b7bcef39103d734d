"""Policy: what may be done, and the pure decision what to do about one interruption."""

from collections.abc import Collection, Iterable, Sequence
from datetime import datetime, timedelta

from pydantic import Field

from relight.domain.attempts import Attempt
from relight.domain.base import Value
from relight.domain.detectors import Blind
from relight.domain.diagnosis import Action, Diagnosis, Hypothesis
from relight.domain.evidence import Answer, Interruption, Source
from relight.domain.hands import Hand, held_by_another, held_by_slurm, requeued
from relight.domain.incidents import MOVED, USED_AN_ATTEMPT, Incident, Outcome
from relight.domain.plan import MIN_JOB_AGE_MARGIN, Mode, Plan, Restart
from relight.domain.progress import HangPolicy
from relight.domain.slurm import ENDED, ENDED_BADLY, JobRecord, JobState, NodeRecord, SlurmFacts
from relight.domain.wishes import job_mode


class Policy(Value):
    """What the operator allows on this cluster."""

    mode: Mode = Mode.MONITOR
    trust_temporal_ui: bool = False
    """Whether a bare `approve` signal, whose sender proves no identity, may approve a restart."""
    approval_expires: timedelta = timedelta(minutes=30)
    """A plan nobody decided on by then is dropped, and the incident ends as `expired`."""
    attempts_without_progress: int = Field(default=3, ge=1, le=100)
    """After so many restarts of a job that did not get past the failure, it is left stopped."""
    drains_per_hour: int = Field(default=1, ge=0, le=100)
    """Nodes that may be drained in any hour on the whole cluster."""
    partitions: tuple[str, ...] = ()
    """Only jobs of these partitions are looked after; empty: of all."""
    progress_within: timedelta = timedelta(minutes=30)
    """How long a restarted attempt may take to get past the failed step."""
    hang: HangPolicy = HangPolicy()


_GOES_ON_AFTER_FAILURE = ("after:", "afterany:", "afternotok:", "aftercorr:")


def successors(attempt: Attempt, jobs: Iterable[JobRecord], waited: Collection[int] = ()) -> tuple[JobRecord, ...]:
    """Jobs that will go on with this one's work, so that a requeue would put two writers on one checkpoint.

    Of the same owner, waiting or running, submitted as another job, and: depending on it in a way that a
    failure satisfies; or of its name under `singleton`; or of its name and working directory. A job that
    waits with `afterok` is none: it cannot start after a failure, and needs the retry.

    Args:
        attempt: whose work it is.
        jobs: all jobs.
        waited: ids of jobs that are known to have waited for it (see `AttemptState.successors`).
    """
    return tuple(job for job in jobs if _goes_on(attempt.record, job, waited))


def _goes_on(old: JobRecord, job: JobRecord, waited: Collection[int]) -> bool:
    if job.user != old.user or job.job_id == old.job_id or job.state not in {JobState.PENDING, JobState.RUNNING}:
        return False
    if job.array_job_id and job.array_job_id == old.array_job_id:
        return False
    if job.het_job_id and job.het_job_id == old.het_job_id:
        return False
    # A task of an array that waited as one record has an id of its own once it runs.
    if job.job_id in waited or job.array_job_id in waited or _depends_on(old, job.dependency):
        return True
    if job.name != old.name:
        return False
    return "singleton" in job.dependency or (bool(job.work_dir) and job.work_dir == old.work_dir)


def _depends_on(old: JobRecord, dependency: str) -> bool:
    ids = {str(old.job_id), old.display_id}
    if old.array_job_id:
        ids |= {f"{old.array_job_id}_*", str(old.array_job_id)}
    for part in dependency.replace("?", ",").split(","):
        kind, _, names = part.strip().partition(":")
        if kind + ":" not in _GOES_ON_AFTER_FAILURE:
            continue
        if any(name.split("(")[0].split("+")[0] in ids for name in names.split(":")):
            return True
    return False


class Situation(Value):
    """All that a plan depends on, as read for it."""

    attempt: Attempt
    kind: Interruption
    now: datetime
    record: JobRecord | None
    """None when slurmctld no longer knows the job."""
    hand: Hand = Hand.NOBODY
    facts: SlurmFacts
    ended_at: datetime | None = None
    nodes: tuple[NodeRecord, ...] = ()
    """The nodes of the job's partition."""
    successors: tuple[str, ...] = ()
    """Display ids of jobs that go on with the work."""
    earlier: tuple[Incident, ...] = ()
    """Earlier incidents of the same job, newest first."""
    witness: Answer = Answer.UNKNOWN
    """For a hang: whether something beside the silence of the log shows it."""
    blind: tuple[Blind, ...] = ()
    """What the decision rests on and is not seen now."""


PROLOG_WINDOW = timedelta(hours=1)
"""How long a node that slurmctld drained for a failed prolog counts against releasing another job: each job that is
released into a broken prolog takes a node out of service. The same hour, and the same number, as for our own drains."""

NODE_FAIL = "SLURM_NODE_FAIL"
"""The catalogue's signature of a node that slurmctld declared down."""


class Verdict(Value):
    """What the policy says: a plan with the mode it is carried out in, or why nothing is to be done."""

    plan: Plan
    mode: Mode
    mode_reason: str
    policy: Policy
    """The policy in force when this was decided."""
    outcome: Outcome | None = None
    """Set when there is no restart: how the incident ends, once what the plan does besides is done."""


LOSES_TIME = frozenset({Interruption.STRAGGLER, Interruption.NUMERICS})
"""Kinds under which training goes on, if slowly or for nothing."""

EXIT_DO_NOT_REQUEUE = 93
"""A job's own word that it must not be requeued (the convention of NVIDIA's resiliency extension)."""


def decide(situation: Situation, diagnosis: Diagnosis, policy: Policy) -> Verdict:
    """The plan for one interruption. The first rule that fits decides."""
    cause = diagnosis.verdict
    mode, mode_reason = job_mode(policy.mode, situation.attempt.record.comment)
    if situation.kind is Interruption.HANG and situation.witness is not Answer.YES and mode is Mode.AUTO:
        mode, mode_reason = Mode.APPROVE, "a silent log alone never acts: no second witness of the hang"
    if situation.kind in LOSES_TIME and mode is Mode.AUTO:
        mode, mode_reason = Mode.APPROVE, f"an attempt that still trains is never ended unasked ({situation.kind})"
    if situation.blind and mode is Mode.AUTO:
        mode, mode_reason = Mode.APPROVE, "; ".join(each.text for each in situation.blind[:3])
    stop = _no_retry(situation, cause, policy)
    if stop:
        outcome, reason = stop
        # An attempt that still holds its nodes although a retry is useless is ended, so that it frees them.
        # The next attempt, which Slurm may have started by itself, is not the one that was diagnosed.
        record = situation.record
        holds = record is not None and record.running and not requeued(situation.attempt, record)
        cancel = outcome is Outcome.STOPPED and holds
        drain = () if outcome is Outcome.NOT_CONFIRMED else _drains(situation, cause)
        plan = Plan(
            attempt=situation.attempt.key,
            restart=Restart.NONE,
            cancel=cancel,
            drain=drain,
            reason=reason + _undrained(situation, cause),
        )
        return Verdict(
            plan=plan,
            mode=mode,
            mode_reason=mode_reason,
            policy=policy,
            outcome=outcome,
        )
    exclude, remark = exclusions(situation, cause)
    restart = Restart.ADOPT if situation.hand is Hand.SLURM else Restart.REQUEUE
    plan = Plan(
        attempt=situation.attempt.key,
        restart=restart,
        release=situation.record is not None and restart is Restart.ADOPT and held_by_slurm(situation.record),
        exclude=exclude,
        drain=_drains(situation, cause),
        reason=(cause.summary or str(cause.category)) + remark + _undrained(situation, cause),
        requeue_until=_deadline(situation),
    )
    return Verdict(plan=plan, mode=mode, mode_reason=mode_reason, policy=policy)


def _deadline(situation: Situation) -> datetime | None:
    if situation.ended_at is None or situation.hand is Hand.SLURM:
        return None
    return situation.ended_at + situation.facts.min_job_age - MIN_JOB_AGE_MARGIN


_NoRetry = tuple[Outcome, str] | None


def _no_retry(situation: Situation, cause: Hypothesis, policy: Policy) -> _NoRetry:
    """Why there is no retry, or None: the first rule that fits."""
    if situation.record is None:
        return (
            Outcome.EXPIRED,
            "Slurm no longer knows the job (MinJobAge has passed); only a fresh submission remains",
        )
    return (
        _still_trains(situation, situation.record, cause)
        or _not_an_interruption(situation, situation.record)
        or _not_ours_to_requeue(situation, situation.record)
        or _useless(situation, cause, policy)
    )


def _still_trains(situation: Situation, record: JobRecord, cause: Hypothesis) -> _NoRetry:
    """A slow attempt is left to train, and one whose numbers are wrong to its owner: a restart may well be no better.

    Unless the platform itself names a node that makes it slow.
    """
    if situation.kind not in LOSES_TIME:
        return None
    if situation.kind is Interruption.STRAGGLER and set(cause.drain_nodes) & set(situation.attempt.record.nodes):
        return None
    told = next((e.text for e in cause.evidence if e.source is Source.PROGRESS), "") or cause.summary
    if requeued(situation.attempt, record) or not record.running:
        return Outcome.OVERRIDDEN, f"the attempt is no longer running; before: {told}"
    return Outcome.OBSERVED, f"left running: {told}"


def _not_ours_to_requeue(situation: Situation, record: JobRecord) -> _NoRetry:
    theirs = _theirs(situation, record)
    if theirs:
        return theirs
    if situation.hand is Hand.NOBODY and not record.requeue:
        return Outcome.STOPPED, "the job was submitted with --no-requeue"
    if record.exit_code == EXIT_DO_NOT_REQUEUE:
        return Outcome.STOPPED, f"the job ended with exit code {EXIT_DO_NOT_REQUEUE}: do not requeue"
    deadline = _deadline(situation)
    if deadline is not None and situation.now > deadline:
        return Outcome.EXPIRED, "the job ended too long ago: Slurm may forget it first (MinJobAge)"
    return None


def _theirs(situation: Situation, record: JobRecord) -> _NoRetry:
    """What others have done about it: their job, their requeue, their hold."""
    if situation.successors:
        return Outcome.SUCCEEDED_BY, f"job {', '.join(situation.successors[:5])} goes on with the work"
    if situation.hand is Hand.UNKNOWN:
        return Outcome.OVERRIDDEN, "somebody else queued the job again; theirs wins"
    if held_by_another(record):
        return Outcome.OVERRIDDEN, f"the job is held ({record.why}): whoever held it releases it"
    return None


def _useless(situation: Situation, cause: Hypothesis, policy: Policy) -> _NoRetry:
    if situation.hand is Hand.SLURM:
        held = situation.record is not None and held_by_slurm(situation.record)
        # What Slurm starts again by its own rules is not stopped; what it holds is, until somebody releases it.
        return _stays_held(situation, cause, policy) if held else None
    if cause.action is Action.STOP:
        return Outcome.STOPPED, cause.summary or f"a retry would fail the same way ({cause.signature})"
    if cause.action is Action.NONE:
        return Outcome.NOT_CONFIRMED, cause.summary or "nothing failed"
    return _spent(situation, cause, policy)


def _spent(situation: Situation, cause: Hypothesis, policy: Policy) -> _NoRetry:
    spent = attempts_without_progress(situation.earlier)
    if spent >= policy.attempts_without_progress:
        return Outcome.STOPPED, f"{spent} restarts brought no progress; {cause.summary}".rstrip("; ")
    return None


def _stays_held(situation: Situation, cause: Hypothesis, policy: Policy) -> _NoRetry:
    """Why a job that Slurm holds after a failed launch is not released: it may cost one node after the other."""
    since = situation.now - PROLOG_WINDOW
    failed = [n.name for n in situation.nodes if n.prolog_failed and n.reason_time and n.reason_time >= since]
    if len(failed) > max(1, policy.drains_per_hour):
        named = ", ".join(failed[:5])
        return Outcome.STOPPED, f"prologs failed on {len(failed)} nodes within the hour ({named}): Slurm's hold stays"
    return _spent(situation, cause, policy)


def _not_an_interruption(situation: Situation, record: JobRecord) -> _NoRetry:
    if situation.hand is Hand.SLURM or record.state in ENDED_BADLY or record.running:
        return None
    if requeued(situation.attempt, record):
        return None  # judged by whose hand it was
    if record.state is JobState.TIMEOUT and situation.kind is Interruption.HANG:
        return None  # it hung until its time was up
    if record.state in ENDED - ENDED_BADLY:
        return Outcome.OVERRIDDEN, f"the job is {record.state}: that is not Relight's to undo"
    if record.state is JobState.UNKNOWN:
        return Outcome.FAILED, "the job's state could not be read"
    return None


def attempts_without_progress(earlier: Sequence[Incident]) -> int:
    """Restarts in a row, newest first, that did not get past the failure."""
    count = 0
    for incident in earlier:
        if incident.outcome in MOVED:
            break
        if incident.outcome in USED_AN_ATTEMPT:
            count += 1
    return count


def _drains(situation: Situation, cause: Hypothesis) -> tuple[str, ...]:
    if cause.signature == NODE_FAIL:
        # slurmctld keeps a lost node out by itself; one that is back already is not condemned for having been away.
        return ()
    if _nodes_unseen(situation):
        return ()  # nobody would see that the node is well, or in somebody else's hands
    mine = set(situation.attempt.record.nodes)
    drained = {node.name for node in situation.nodes if node.draining or node.lost}
    return tuple(n for n in cause.drain_nodes if n in mine and n not in drained)


def _nodes_unseen(situation: Situation) -> str:
    """Why nothing is drained although the cause names nodes; empty where nodes are seen."""
    return next((each.text for each in situation.blind if each.detector == "nodes"), "")


def _undrained(situation: Situation, cause: Hypothesis) -> str:
    why = _nodes_unseen(situation)
    return f" (nothing is drained: {why})" if why and cause.drain_nodes else ""


def exclusions(situation: Situation, cause: Hypothesis) -> tuple[tuple[str, ...], str]:
    """Nodes to keep out of the retry, and a remark when some could not be.

    An exclusion that leaves too few nodes is accepted by Slurm and then pends for ever as BadConstraints
    (seen). So eligible nodes are counted before, and the least proven exclusions are left out: those without
    a platform witness first.
    """
    if cause.action is not Action.RESTART_EXCLUDING_NODE:
        return (), ""
    mine = set(situation.attempt.record.nodes)
    proven = [n for n in cause.drain_nodes if n in mine]
    wanted = [*proven, *(n for n in cause.implicated.nodes if n in mine and n not in proven)]
    user_excludes = set(situation.attempt.record.excluded_nodes)
    free = {n.name for n in situation.nodes if n.eligible} - user_excludes
    kept = list(wanted)
    while kept and len(free - set(kept)) < situation.attempt.record.node_count:
        kept.pop()
    dropped = [n for n in wanted if n not in kept]
    remark = f" ({', '.join(dropped)} not excluded: too few nodes would be left)" if dropped else ""
    return tuple(kept), remark
