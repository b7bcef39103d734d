"""What the console reads of lists and of the cluster as a whole, as values: filters, pages, lines.

Texts stand here as they were written, log lines among them: whoever shows them escapes them.
"""

from datetime import datetime
from typing import Any, Generic, TypeVar

from pydantic import AwareDatetime, Field

from relight.domain.base import Value

T = TypeVar("T")
MOST = 200
"""Items of one page."""
_SHORT = 200


class Ask(Value):
    """Which part of a list."""

    limit: int = Field(default=50, ge=1, le=MOST)
    cursor: str = Field(default="", max_length=_SHORT)
    """`next` of the page before; empty: from the beginning."""


class Page(Value, Generic[T]):
    """A part of a list."""

    items: tuple[T, ...] = ()
    next: str = ""
    """Asks for what follows; empty: nothing does."""
    total: int | None = None
    """Items on all pages; None where counting would cost too much."""


class IncidentFilter(Value):
    """Which incidents; all that is given must fit."""

    open: bool | None = None
    user: str = Field(default="", max_length=_SHORT)
    job: int | None = Field(default=None, ge=1, lt=1 << 63)
    """Slurm's job id."""
    kind: str = Field(default="", max_length=_SHORT)
    outcome: str = Field(default="", max_length=_SHORT)
    category: str = Field(default="", max_length=_SHORT)
    node: str = Field(default="", max_length=_SHORT)
    """One that the verdict implicates."""
    text: str = Field(default="", max_length=_SHORT)
    """Part of an id, job name, user, cause or node, or a job id."""
    since: AwareDatetime | None = None
    """Opened at or after."""
    until: AwareDatetime | None = None
    everything: bool = False
    """Also what was not confirmed."""


class IncidentLine(Value):
    """An incident in a list."""

    id: str
    job_id: int
    job: str
    """As Slurm's commands print it: `123`, `123_4`, `123+1`."""
    job_name: str
    user: str
    kind: str
    phase: str
    mode: str
    outcome: str
    """Empty while it is open."""
    outcome_reason: str
    cause: str
    """Signature of the verdict; empty before there is one."""
    category: str
    confidence: float | None
    summary: str
    nodes: tuple[str, ...]
    plan: str
    """In words."""
    digest: str
    """Of the plan; empty where there is none."""
    occurred_at: datetime | None
    detected_at: datetime
    opened_at: datetime
    closed_at: datetime | None
    open: bool
    waiting: bool
    """For people."""
    decide_until: datetime | None
    approvals: str
    """While it waits: `1 of 2 approvals (ada)`."""


class JobFilter(Value):
    """Which jobs; all that is given must fit."""

    running: bool | None = None
    user: str = Field(default="", max_length=_SHORT)
    job: int | None = Field(default=None, ge=1, lt=1 << 63)
    text: str = Field(default="", max_length=_SHORT)
    """Part of a name, user, partition or lineage, or a job id."""


class JobLine(Value):
    """A job (a lineage of attempts) in a list."""

    job: str
    job_id: int
    lineage: str
    name: str
    user: str
    partition: str
    running: bool
    attempts: int
    """That Relight has seen."""
    restarts: int
    """As Slurm counts them."""
    nodes: tuple[str, ...]
    last_step: int | None
    last_step_at: datetime | None
    started_at: datetime
    ended_at: datetime | None
    incidents: int
    open_incident: str
    """Id of the newest that is open; empty: none is."""


class NodeFilter(Value):
    """Which nodes; all that is given must fit."""

    state: str = Field(default="", pattern="^(in_care|ended)?$")
    text: str = Field(default="", max_length=_SHORT)
    """Part of a name."""


class NodeLine(Value):
    """A node in a list."""

    node: str
    in_care: bool
    phase: str
    """Of its quarantine; empty where it never was in one."""
    outcome: str
    cause: str
    since: datetime | None
    at: datetime | None
    """Of the quarantine's last step."""
    text: str
    incident: str
    remedy: str
    lemon: float
    lemon_why: tuple[str, ...]
    is_lemon: bool


class NodeRow(Value):
    """One thing that happened to a node."""

    at: datetime
    name: str
    text: str
    incident: str


class NodePage(Value):
    """All that is told of one node."""

    line: NodeLine
    story: tuple[NodeRow, ...]
    """The newest 500, oldest first; single faults are left out."""
    faults: int
    ticket: str
    kept_in: str
    next: str
    """The last verdict on it."""


class AuditFilter(Value):
    """Which rows of the audit trail; all that is given must fit."""

    incident: str = Field(default="", max_length=_SHORT)
    lineage: str = Field(default="", max_length=_SHORT)
    attempt: str = Field(default="", max_length=_SHORT)
    node: str = Field(default="", max_length=_SHORT)
    kind: str = Field(default="", max_length=_SHORT)
    since: AwareDatetime | None = None
    until: AwareDatetime | None = None


class AuditLine(Value):
    """A row of the audit trail."""

    seq: int
    at: datetime
    kind: str
    cluster: str
    incident: str
    attempt: str
    lineage: str
    node: str
    id: str
    summary: str
    """In a few words."""
    body: dict[str, Any]
    hash: str
    prev_hash: str


class SettingRow(Value):
    """One setting in force."""

    key: str
    value: str
    origin: str
    """`default`, a variable's name, or `<file>:<line>`."""


class ApproverLine(Value):
    """Who may approve what."""

    name: str
    may: tuple[str, ...]
    fingerprint: str
    vouches_for: tuple[str, ...]
    owner_may: tuple[str, ...]


class SettingsPage(Value):
    """The settings in force in this console's process."""

    cluster: str
    mode: str
    policy_version: str
    rows: tuple[SettingRow, ...]
    approvers: tuple[ApproverLine, ...]
    """Empty: the site's own key approves."""
    needed: dict[str, int]
    """Approvals by action."""
    notes: tuple[str, ...]
    """What is odd, though valid."""
    file_problem: str
    """Why a newer settings file cannot be used; empty: it can."""


class WorkerLine(Value):
    """A worker."""

    worker: str
    version: str
    started_at: datetime
    last_sign: datetime
    lives: bool
    policy: str
    policy_problem: str


class DetectorLine(Value):
    """A detector."""

    name: str
    state: str
    """`sees`, `blind`, `overdue` or `waiting`."""
    sees: bool
    last: datetime | None
    since: datetime | None
    """When it stopped seeing; None while it sees."""
    why: str


class Told(Value):
    """A line for people, with how it is meant."""

    text: str
    tone: str = ""
    """`bad`, `warn`, `quiet` or empty."""


class PauseLine(Value):
    """A pause."""

    where: str
    by: str
    until: datetime
    reason: str


class PartitionLine(Value):
    """How much of a partition is unavailable."""

    name: str
    nodes: int
    out: int
    limit: int


class GuardView(Value):
    """How the guard stands."""

    breaker_open: bool
    breaker_since: datetime | None
    breaker_why: str
    kill_switch: bool
    kill_file: str
    unknown: str
    """Why it is not known how it stands; empty: it is."""
    pauses: tuple[PauseLine, ...]
    drains_used: int
    drains_of: int
    downs_used: int
    downs_of: int
    partitions: tuple[PartitionLine, ...]
    seen_at: datetime | None
    lines: tuple[Told, ...]
    """The same in the words of `relight status`."""


class EscalationLine(Value):
    """An incident that ended with nothing done, and is left to people."""

    incident: str
    job_id: int
    at: datetime
    todo: str


class NowPage(Value):
    """The cluster now."""

    cluster: str
    mode: str
    at: datetime
    well: bool
    problem: str
    """What is not well, in a sentence; empty: all is."""
    workers: tuple[WorkerLine, ...]
    detectors: tuple[DetectorLine, ...]
    guard: GuardView | None
    """None: not for this person."""
    open: int
    """Open incidents."""
    waiting: tuple[IncidentLine, ...]
    """The soonest time-out first."""
    opened: tuple[IncidentLine, ...]
    """Open ones, the newest first, at most 50."""
    recent: tuple[IncidentLine, ...]
    """Closed ones of the last day, the newest first, at most 20; what was not confirmed is left out."""
    escalated: tuple[EscalationLine, ...]
    undelivered: int
    """Detections that have not reached their incident."""
    oldest_undelivered: datetime | None
    running: int
    """Attempts that run."""
    unreadable_outputs: int


class Changes(Value):
    """What has been written to the ledger since a cursor."""

    cursor: int
    """To ask from the next time."""
    incidents: tuple[str, ...] = ()
    jobs: tuple[str, ...] = ()
    """Lineages."""
    nodes: tuple[str, ...] = ()
    kinds: tuple[str, ...] = ()
    guard: bool = False
    more: bool = False
    """More than fits here: read everything anew."""

    @property
    def any(self) -> bool:
        """True when anything was written."""
        return bool(self.kinds) or self.more
