"""All that a plan depends on, as read for it."""

from datetime import datetime

from relight.domain.attempts import Attempt
from relight.domain.base import Value
from relight.domain.budget import Mark
from relight.domain.checkpoint_look import CheckpointLook
from relight.domain.detectors import Blind
from relight.domain.evidence import Answer, Interruption
from relight.domain.exclusions import Exclusion
from relight.domain.guard_standing import Standing
from relight.domain.hands import Hand
from relight.domain.incidents import Incident
from relight.domain.plan import MIN_JOB_AGE_MARGIN
from relight.domain.slurm import AccountingRow, JobRecord, NodeRecord, SlurmFacts

LOSES_TIME = frozenset({Interruption.STRAGGLER, Interruption.NUMERICS})
"""Kinds under which training goes on, if slowly or for nothing."""


class Situation(Value):
    """All that a plan depends on, as read for it."""

    attempt: Attempt
    kind: Interruption
    now: datetime
    record: JobRecord | None
    """None when slurmctld no longer knows the job."""
    execution: AccountingRow | None = None
    """The attempt's own row of accounting, read where slurmctld no longer knows the job; None: that does not say."""
    no_fresh_job: str | None = None
    """Why the attempt cannot be submitted anew by Relight; empty: it can; None: it was not asked."""
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
    marks: tuple[Mark, ...] = ()
    """How far the job's attempts are known to have saved their work, this one's too."""
    exclusions: tuple[Exclusion, ...] = ()
    """Ours from earlier incidents that stand, expired ones too."""
    lemons: dict[str, float] = {}
    """How bad a node's own history is; empty where it is not known."""
    guard: Standing = Standing()
    """How the guard stands: pauses, the breaker, the kill switch."""
    began: datetime | None = None
    """When the interruption was detected; None: taken for now."""
    requeues: int = 0
    """How often Relight has requeued this job; counted where the job's comment sets a limit."""

    checkpoints: CheckpointLook | None = None
    """What is known of the job's checkpoints; None: nobody has looked."""

    @property
    def deadline(self) -> datetime | None:
        """Until when Slurm can still requeue the ended attempt; None where nothing presses."""
        if self.ended_at is None or self.hand is Hand.SLURM:
            return None
        return self.ended_at + self.facts.min_job_age - MIN_JOB_AGE_MARGIN
