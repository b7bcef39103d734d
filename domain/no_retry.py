"""Why an interrupted job is not started again: the first rule that fits."""

from datetime import timedelta

from relight.domain.budget import budget, charged_to
from relight.domain.diagnosis import Action, Hypothesis
from relight.domain.evidence import Interruption, Source
from relight.domain.hands import Hand, held_by_another, held_by_slurm, requeued
from relight.domain.incidents import Outcome
from relight.domain.permits import Policy
from relight.domain.plan import Restart
from relight.domain.situation import LOSES_TIME, Situation
from relight.domain.slurm import ENDED, ENDED_BADLY, JobRecord, JobState
from relight.domain.wishes import Wishes

PROLOG_WINDOW = timedelta(hours=1)
"""How long a node that slurmctld drained for a failed prolog counts against releasing another job: each job that is
released into a broken prolog takes a node out of service. The same hour, and the same number, as for our own drains."""

EXIT_DO_NOT_REQUEUE = 93
"""A job's own word that it must not be requeued (the convention of NVIDIA's resiliency extension)."""

NoRetry = tuple[Outcome, str] | None
"""How the incident ends then, and why; None: a retry it is."""


def no_retry(situation: Situation, cause: Hypothesis, policy: Policy, asked: Wishes) -> NoRetry:
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
        or _not_wished(situation, asked)
        or _useless(situation, cause, policy)
    )


def _still_trains(situation: Situation, record: JobRecord, cause: Hypothesis) -> NoRetry:
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


def _not_ours_to_requeue(situation: Situation, record: JobRecord) -> NoRetry:
    theirs = _theirs(situation, record)
    if theirs:
        return theirs
    if situation.hand is Hand.NOBODY and not record.requeue:
        return Outcome.STOPPED, "the job was submitted with --no-requeue"
    if situation.hand is Hand.NOBODY and record.exit_code in situation.facts.requeue_exit:
        return Outcome.OVERRIDDEN, f"Slurm itself queues the job again for exit code {record.exit_code} (RequeueExit)"
    if record.exit_code == EXIT_DO_NOT_REQUEUE:
        return Outcome.STOPPED, f"the job ended with exit code {EXIT_DO_NOT_REQUEUE}: do not requeue"
    if situation.deadline is not None and situation.now > situation.deadline:
        return Outcome.EXPIRED, "the job ended too long ago: Slurm may forget it first (MinJobAge)"
    return None


def _theirs(situation: Situation, record: JobRecord) -> NoRetry:
    """What others have done about it: their job, their requeue, their hold."""
    if situation.successors:
        return Outcome.SUCCEEDED_BY, f"job {', '.join(situation.successors[:5])} goes on with the work"
    if situation.hand is Hand.UNKNOWN:
        return Outcome.OVERRIDDEN, "somebody else queued the job again; theirs wins"
    if held_by_another(record):
        return Outcome.OVERRIDDEN, f"the job is held ({record.why}): whoever held it releases it"
    return None


def _not_wished(situation: Situation, asked: Wishes) -> NoRetry:
    """What the job's comment says of requeues; Slurm's own are none of ours."""
    if situation.hand is Hand.SLURM:
        return None
    if asked.chained:
        return Outcome.STOPPED, "the job's comment says singleton_dependency: its chain goes on, it is not requeued"
    if asked.most_requeues is not None and situation.requeues >= asked.most_requeues:
        done = "once" if situation.requeues == 1 else f"{situation.requeues} times"
        return Outcome.STOPPED, f"requeued {done}: the job's comment allows no more (max_requeue_times)"
    return None


def _useless(situation: Situation, cause: Hypothesis, policy: Policy) -> NoRetry:
    if situation.hand is Hand.SLURM:
        held = situation.record is not None and held_by_slurm(situation.record)
        # What Slurm starts again by its own rules is not stopped; what it holds is, until somebody releases it.
        return _stays_held(situation, cause, policy) if held else None
    if cause.action is Action.STOP:
        return Outcome.STOPPED, cause.summary or f"a retry would fail the same way ({cause.signature})"
    if cause.action is Action.NONE:
        return Outcome.NOT_CONFIRMED, cause.summary or "nothing failed"
    return _spent(situation, cause, policy)


def _spent(situation: Situation, cause: Hypothesis, policy: Policy) -> NoRetry:
    restart = Restart.ADOPT if situation.hand is Hand.SLURM else Restart.REQUEUE
    spent = budget(situation.earlier, situation.marks, policy).spent(charged_to(cause, restart))
    return (Outcome.STOPPED, f"{spent}; {cause.summary}".rstrip("; ")) if spent else None


def _stays_held(situation: Situation, cause: Hypothesis, policy: Policy) -> NoRetry:
    """Why a job that Slurm holds after a failed launch is not released: it may cost one node after the other."""
    since = situation.now - PROLOG_WINDOW
    failed = [n.name for n in situation.nodes if n.prolog_failed and n.reason_time and n.reason_time >= since]
    if len(failed) > max(1, policy.drains_per_hour):
        named = ", ".join(failed[:5])
        return Outcome.STOPPED, f"prologs failed on {len(failed)} nodes within the hour ({named}): Slurm's hold stays"
    return _spent(situation, cause, policy)


def _not_an_interruption(situation: Situation, record: JobRecord) -> NoRetry:
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
