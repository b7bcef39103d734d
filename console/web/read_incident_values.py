"""What the console reads of one incident and of one job, as values. Texts stand here as they were written."""

from datetime import datetime, timedelta

from relight.console.web.read_values import IncidentLine, JobLine, Told
from relight.domain.base import Value
from relight.domain.diagnosis import Echo, Suspect


class Step(Value):
    """One thing done in an incident."""

    name: str
    at: datetime
    text: str
    since_detection: timedelta
    took: timedelta
    """Since the step before."""


class Mark(Value):
    """One piece of evidence."""

    source: str
    trust: str
    """`platform`, or `job`: whatever a user's program can write."""
    text: str
    signature: str
    node: str
    rank: int | None
    gpu: str
    at: datetime | None
    file: str
    line: int | None


class Cause(Value):
    """One possible cause."""

    signature: str
    category: str
    confidence: float
    summary: str
    nodes: tuple[str, ...]
    ranks: tuple[int, ...]
    gpus: tuple[str, ...]
    drain_nodes: tuple[str, ...]
    """Nodes that a platform witness found broken."""
    evidence: tuple[Mark, ...]


class RankLine(Value):
    """What is known of one rank."""

    rank: int
    node: str
    gpu: str
    last_step: int | None
    said: str
    """Signature of the first failure line that it printed; empty: none."""
    implicated: bool


class NearLine(Value):
    """A line near the one that shows the cause."""

    line: int
    text: str


class PlanView(Value):
    """What was proposed."""

    words: str
    reason: str
    digest: str
    short_digest: str
    mode: str
    mode_reason: str
    policy_version: str
    policy_rules: tuple[str, ...]
    restart: str
    cancel: bool
    exclude: tuple[str, ...]
    drain: tuple[str, ...]
    rights: tuple[str, ...]
    """What people are asked to approve."""
    acts: bool
    requeue_until: datetime | None
    fresh: str
    """What a person can do once Slurm has forgotten the attempt: a command."""
    requested_by: str


class SaidLine(Value):
    """A person's word, and whether it counted."""

    at: datetime
    approved: bool
    by: str
    reason: str
    counts: bool
    remark: str


class ApprovalView(Value):
    """Where the approval of a plan stands, and what this person may do about it here."""

    waiting: bool
    needed: int
    have: int
    score: str
    until: datetime | None
    on_timeout: str
    """What happens then, in a sentence."""
    able: tuple[str, ...]
    """Who may approve; `site`: who can read the site's approval key."""
    may_approve: bool
    may_reject: bool
    why_not: str
    """Why this person may not approve here; empty: may."""
    command: str
    """How to approve with one's own key instead."""
    said: tuple[SaidLine, ...]


class DeedLine(Value):
    """One change to the outside."""

    name: str
    at: datetime
    node: str
    intent: str
    """Empty: nothing needed to be, or must be, written."""
    effect: str | None
    """What was read back; None: nothing (yet)."""


class LeaveLine(Value):
    """The guard's word on a drain."""

    at: datetime
    node: str
    granted: bool
    reason: str


class IncidentPage(Value):
    """All that is told of one incident."""

    line: IncidentLine
    cluster: str
    partition: str
    job_nodes: tuple[str, ...]
    restarts: int | None
    attempt: str
    lineage: str
    workflow_id: str
    run_id: str
    temporal_url: str
    """Of its page in Temporal's web UI; empty where that is not known."""
    steps: tuple[Step, ...]
    """From what happened (where that is known) to the end."""
    cause: Cause | None
    others: tuple[Cause, ...]
    root: Mark | None
    """The line that shows the cause."""
    around: tuple[NearLine, ...]
    echoes: int
    folded: tuple[Echo, ...]
    ranks: tuple[RankLine, ...]
    suspects: tuple[Suspect, ...]
    unreadable: tuple[str, ...]
    would_change: tuple[str, ...]
    failed_step: int | None
    plan: PlanView | None
    approval: ApprovalView | None
    """None where people were not asked."""
    deeds: tuple[DeedLine, ...]
    leaves: tuple[LeaveLine, ...]
    verified: tuple[str, ...]
    todo: tuple[str, ...]
    """What a person has to do, where nothing was done."""
    outputs: tuple[str, ...]
    """The attempt's output files, or its logs in a store."""
    kept: tuple[str, ...]
    """Copies of them."""
    previous: str
    """The job's incident before; empty: none."""
    following: str


class Trying(Value):
    """An activity under way."""

    name: str
    attempt: int
    failure: str


class TryingPage(Value):
    """What an open incident is trying right now, as Temporal knows."""

    trying: tuple[Trying, ...] = ()
    unknown: str = ""
    """Why that is not known; empty: it is."""
    lines: tuple[Told, ...] = ()


class AttemptLine(Value):
    """One attempt of a job."""

    number: int
    attempt: str
    """Its key; empty: Relight never saw it running."""
    running: bool
    nodes: tuple[str, ...]
    restarts: int | None
    started_at: datetime | None
    ended_at: datetime | None
    how: str
    """How it ended, in Slurm's words."""
    last_step: int | None
    last_step_at: datetime | None
    step_seconds: float | None
    saved_step: int | None
    saved_at: datetime | None
    why_nothing: str
    """Why it has no incident; empty where it has."""
    incidents: tuple[IncidentLine, ...]


class Point(Value):
    """How far a job had come."""

    at: datetime
    step: int
    attempt: int
    """Its number."""


class CauseBudget(Value):
    """What a job has used of its restarts for one cause."""

    name: str
    used: int
    allowed: int
    left: int


class ExclusionLine(Value):
    """A node that is kept out of the job's retries."""

    node: str
    until: datetime | None


class BudgetView(Value):
    """A job's retry budget."""

    fruitless: int
    """Restarts without progress."""
    most_fruitless: int
    by_cause: tuple[CauseBudget, ...]
    exclusions: tuple[ExclusionLine, ...]
    begins: datetime | None
    """When Slurm starts the job by itself, while it backs off."""
    lines: tuple[Told, ...]


class CheckpointMark(Value):
    """A checkpoint that the job's output said was written."""

    attempt: int
    step: int
    at: datetime | None


class JobPage(Value):
    """All that is told of one job."""

    line: JobLine
    attempts: tuple[AttemptLine, ...]
    """Oldest first."""
    budget: BudgetView
    curve: tuple[Point, ...]
    """What the ledger knows of its progress: of each attempt the first step, newest checkpoint and newest step."""
    checkpoints: tuple[CheckpointMark, ...]
    asks: tuple[str, ...]
    """What its comment asks of Relight."""
    others: int
    """Attempts under the same Slurm id that belong to another job."""
