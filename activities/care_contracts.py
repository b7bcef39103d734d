"""What `CareForNode` and its activities say to each other: one model in, one model out. As `contracts`, for nodes."""

from datetime import datetime, timedelta

from relight.activities.contracts import Call, IncidentRef, Leave, Nothing
from relight.domain.approvals import DecisionProof
from relight.domain.base import Value
from relight.domain.care import CareOutcome, CarePhase, CareVerdict, Hold, Repair, Word, care_mark
from relight.domain.evidence import Answer, Evidence
from relight.domain.incidents import StepTime
from relight.domain.permits import Permit
from relight.domain.reports import GpuCard, NodeCheck
from relight.domain.rights import Approver, Right
from relight.domain.signatures import SignedDecision

CARE_WORKFLOW = "CareForNode"


class CareRef(IncidentRef):
    """Names the quarantine an activity works for. Its `attempt` and `kind` are those of the incident behind it.

    `run_id` is that of the first run: rows keep their ids when the workflow continues as new.
    """

    node: str
    incident: str
    """The incident for which the node was set aside: its mark is the node's reason."""

    @property
    def mark(self) -> str:
        """How the reason of a node begins that is ours."""
        return care_mark(self.incident)


class CareState(Value):
    """All that a quarantine carries from run to run."""

    id: str
    first_run: str
    opened_at: datetime
    phase: CarePhase
    down: bool = False
    """Whether the node was set down by us, or is to be."""
    since: datetime
    """When it was set aside: faults from then on count."""
    looks: int = 0
    """How often checks were made that could not all be made, since the last that could."""
    rounds: int = 0
    """Rounds of checks so far: they number what is done and written."""
    words: tuple[Word, ...] = ()
    """What people have said, at most the newest few."""
    signed: tuple[SignedDecision, ...] = ()
    """A person's signed word that it is repaired, for the approval that may follow."""
    nonces: tuple[str, ...] = ()
    """Of signed words that were heard: one heard again is a replay."""
    folder: str = ""
    """Where the evidence is kept."""
    ticket: str = ""
    """The ticket's file."""
    drained: bool = False
    """It was seen really drained."""
    written: int = 0
    """Rows numbered so far."""
    steps: tuple[StepTime, ...] = ()


class CareInput(Value):
    """Starts the care of a node, or tells the one that goes on of a further incident."""

    incident: IncidentRef
    """For which it was set aside, or is to be set down."""
    node: str
    cls: str = ""
    """Signature of the verdict, as in the mark."""
    summary: str = ""
    evidence: tuple[Evidence, ...] = ()
    """The platform's witnesses, at most a few."""
    completing_since: datetime | None = None
    """Set where the node is not drained but hangs while Slurm ends a job on it."""
    state: CareState | None = None
    """Of the run before."""


class CareArg(Value):
    """An activity's argument where the quarantine's name is all it needs."""

    care: CareRef


class AwaitDrainedInput(Value):
    """Waits until the node is really drained."""

    care: CareRef


class Held(Value):
    """In whose hands the node is, and what is on it."""

    hold: Hold | None
    """None: Slurm no longer knows the node."""
    text: str
    at: datetime
    by: str = ""
    """Who set the reason that stands there now, as far as Slurm says."""


class AwaitChangeInput(Value):
    """Waits until the node is in other hands."""

    care: CareRef
    completing: bool = False
    """Also until it is no longer COMPLETING."""


class KeepEvidenceInput(Value):
    """Keeps what is known of the node in one folder."""

    care: CareRef
    arg: CareInput


class Kept(Value):
    """Where evidence is kept, and what."""

    folder: str
    files: tuple[str, ...] = ()
    lost: tuple[str, ...] = ()
    """What could not be kept, each with why."""


class CheckNodeInput(Value):
    """Has the node checked by its agent."""

    care: CareRef
    round: int


class Checked(Value):
    """What the checks found."""

    agent: Answer
    """Whether the node's agent is heard."""
    checks: tuple[NodeCheck, ...] = ()
    cards: tuple[GpuCard, ...] = ()
    began: datetime
    at: datetime
    problem: str = ""


class JudgeInput(Value):
    """Asks what becomes of the node."""

    care: CareRef
    round: int
    checked: Checked
    since: datetime
    """When it was set aside."""
    released: Word | None = None
    kept: Word | None = None
    evidence: tuple[Evidence, ...] = ()
    cls: str = ""
    summary: str = ""
    folder: str = ""


class Judged(Value):
    """The decision, with the policy's numbers that the workflow goes by."""

    verdict: CareVerdict
    repairs: tuple[Repair, ...] = ()
    score: float = 0.0
    score_why: tuple[str, ...] = ()
    ticket: str = ""
    """The ticket's file; empty where none was written."""
    action: Right | None = None
    """What the platform's own repair is to be asked for, where the site has one: reboot or replace."""
    action_permit: Permit = Permit.OFF


class Limits(Value):
    """What of the policy in force the workflow goes by."""

    drain_takes: timedelta
    stuck_after: timedelta = timedelta(minutes=2)
    """How long a node may be completing: KillWait, UnkillableStepTimeout, and some more."""
    approval_expires: timedelta
    execution_expires: timedelta
    trust_bare: bool
    needed: dict[Right, int]
    permits: dict[Right, Permit]
    """Of this node."""
    approvers: tuple[Approver, ...] = ()


class NodeActInput(Value):
    """Changes the node: returns it, sets it down, or asks the platform for its repair."""

    care: CareRef
    right: Right
    round: int
    cls: str = ""
    summary: str = ""
    checked_at: datetime | None = None
    """Of a return: how old the checks are."""
    leave: Leave | None = None
    """Of a down: the guard's word."""
    stuck_since: datetime | None = None
    approved_until: datetime | None = None


class Acted(Value):
    """How the change went."""

    outcome: CareOutcome | None = None
    """Set when the quarantine ends here: somebody else acted."""
    done: bool
    """Whether the node is as it was meant to be."""
    text: str
    at: datetime


class RecordInput(Value):
    """Writes down one step of the quarantine."""

    care: CareRef
    step: str
    phase: CarePhase
    text: str
    at: datetime
    word: Word | None = None
    outcome: CareOutcome | None = None
    ticket: str = ""
    cls: str = ""
    reversed: str = ""
    """What a person has undone: `drain` or `down`; empty: nothing."""
    by: str = ""
    """Who, as far as Slurm says."""
    evidence: tuple[Evidence, ...] = ()
    until: datetime | None = None
    """Where people are asked: by when they must have answered."""


class HeardInput(Value):
    """Writes down a person's word on what is asked."""

    care: CareRef
    number: int
    digest: str
    what: str
    decision: dict[str, object]
    counts: bool
    remark: str = ""
    score: str = ""
    proof: DecisionProof | None = None
    """By which it can be judged again; None where it does not count."""


BEGIN_CARE = Call("begin_care", RecordInput, Limits)
READ_LIMITS = Call("read_care_limits", CareArg, Limits)
AWAIT_DRAINED = Call("await_really_drained", AwaitDrainedInput, Held)
AWAIT_CHANGE = Call("await_node_change", AwaitChangeInput, Held)
KEEP_EVIDENCE = Call("keep_node_evidence", KeepEvidenceInput, Kept)
CHECK_NODE = Call("check_node", CheckNodeInput, Checked)
JUDGE_NODE = Call("judge_node", JudgeInput, Judged)
RETURN_NODE = Call("return_node", NodeActInput, Acted)
DOWN_NODE = Call("down_node", NodeActInput, Acted)
ASK_PLATFORM = Call("ask_platform_for_repair", NodeActInput, Acted)
RECORD_CARE = Call("record_care", RecordInput, Nothing)
RECORD_HEARD = Call("record_word_on_node", HeardInput, Nothing)
