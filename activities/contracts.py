"""What workflows and activities say to each other: one model in, one model out, and each activity's name.

Workflows import this file and nothing else of the activities.
"""

from datetime import datetime, timedelta
from typing import Generic, NamedTuple, TypeVar

from relight.domain.attempts import AttemptKey
from relight.domain.base import Value
from relight.domain.diagnosis import Diagnosis
from relight.domain.evidence import Detection, Evidence, Interruption
from relight.domain.guard import Grant
from relight.domain.incidents import Outcome, StepTime
from relight.domain.plan import Decision, Plan
from relight.domain.policy import Policy, Verdict
from relight.domain.slurm import NodeRecord

I = TypeVar("I")  # noqa: E741 - input
O = TypeVar("O")  # noqa: E741 - output

WATCH_WORKFLOW = "WatchCluster"
RECOVER_WORKFLOW = "RecoverJob"
GUARD_WORKFLOW = "GuardCluster"


def watch_id(cluster: str) -> str:
    """Workflow id of a cluster's watchers."""
    return f"watch/{cluster}"


def guard_id(cluster: str) -> str:
    """Workflow id of a cluster's guard."""
    return f"guard/{cluster}"


class Call(NamedTuple, Generic[I, O]):
    """An activity's name with the types that travel."""

    name: str
    arg: type[I]
    result: type[O]


class Nothing(Value):
    """No answer but that it is done."""


class IncidentRef(Value):
    """Names the incident an activity works for."""

    id: str
    workflow_id: str
    run_id: str
    attempt: AttemptKey
    kind: Interruption

    def entry(self, step: str, phase: str = "done") -> str:
        """Deterministic id of a ledger row: workflow, run, step, phase."""
        return f"{self.workflow_id}/{self.run_id}/{step}/{phase}"


class RecoverInput(Value):
    """Starts `RecoverJob`."""

    attempt: AttemptKey
    kind: Interruption
    detections: tuple[Detection, ...] = ()
    """Those that came to an earlier incident of the attempt and were not answered by it."""


class WatchInput(Value):
    """Starts `WatchCluster` and its watchers."""

    cluster: str
    run_for: timedelta = timedelta(hours=6)
    """How long one run's watchers work before the workflow continues as new."""


class ConfirmInput(Value):
    """Asks whether the detection is true and still stands."""

    incident: IncidentRef
    detection: Detection


class Confirmation(Value):
    """What a fresh look says."""

    outcome: Outcome | None = None
    """Set when the incident ends here."""
    reason: str
    lineage: str = ""
    job_name: str = ""
    user: str = ""
    partition: str = ""
    nodes: tuple[str, ...] = ()
    open_incident: str = ""
    """Workflow id of the job's other open incident, which must close before anything is done."""


class AwaitClosedInput(Value):
    """Waits for another incident of the same job to close."""

    incident: IncidentRef
    workflow_id: str


class DiagnoseInput(Value):
    """Asks for the cause."""

    incident: IncidentRef
    detection: Detection
    evidence: tuple[Evidence, ...] = ()
    """Further evidence that came by signal."""


class PlanInput(Value):
    """Asks what to do."""

    incident: IncidentRef
    detection: Detection
    diagnosis: Diagnosis


class DecisionInput(Value):
    """Records a person's word."""

    incident: IncidentRef
    plan: Plan
    decision: Decision
    counts: bool
    remark: str = ""


class SignedDecision(Value):
    """A decision made with the CLI or console, signed with the site's approval key."""

    incident: str
    decision: Decision
    at: datetime
    signature: str
    """HMAC-SHA256, hexadecimal, over incident, decision and time."""


class VerifyDecisionInput(Value):
    """Asks whether the signature is good."""

    incident: IncidentRef
    signed: SignedDecision


class SignatureCheck(Value):
    """Whether a signed decision is genuine, and why not."""

    genuine: bool
    problem: str = ""


class ActInput(Value):
    """Carries out one part of a plan."""

    incident: IncidentRef
    plan: Plan
    detection: Detection
    diagnosis_class: str = ""
    """Signature of the verdict, for marks."""
    summary: str = ""


class ExcludeInput(Value):
    """Sets which nodes a job's retry keeps away from, beside the user's own list."""

    incident: IncidentRef
    nodes: tuple[str, ...]
    take_back: bool = False
    """True to remove these instead, where they leave too few nodes."""


class Done(Value):
    """How an action went."""

    outcome: Outcome | None = None
    """Set when the incident ends here: somebody else acted, or the world has changed."""
    text: str
    """What was read back, in words."""
    at: datetime


class AwaitEndedInput(Value):
    """Waits until Slurm has ended the old attempt."""

    incident: IncidentRef
    requeued_at: datetime | None = None


class Ended(Value):
    """The old attempt is gone."""

    completing: timedelta
    """How long Slurm itself took, from our wait's start."""
    stuck_nodes: tuple[str, ...] = ()
    """Nodes that were still completing long past the limits."""
    outcome: Outcome | None = None
    text: str


class AwaitRunningInput(Value):
    """Waits for the next attempt to run."""

    incident: IncidentRef
    exclude: tuple[str, ...] = ()


class Running(Value):
    """The next attempt runs, or why it will not."""

    attempt: AttemptKey | None = None
    nodes: tuple[str, ...] = ()
    at: datetime
    too_few_nodes: bool = False
    """Slurm says BadConstraints: our exclusion leaves too few nodes."""
    outcome: Outcome | None = None
    text: str


class AwaitProgressInput(Value):
    """Waits for training to pass the failed step."""

    incident: IncidentRef
    next_attempt: AttemptKey
    failed_step: int | None
    until: datetime


class Proof(Value):
    """Whether training moves again."""

    moved: bool
    step: int | None = None
    at: datetime
    outcome: Outcome | None = None
    text: str


class CloseInput(Value):
    """Closes the incident."""

    incident: IncidentRef
    outcome: Outcome
    reason: str
    steps: tuple[StepTime, ...] = ()


class DrainRequest(Value):
    """Asks the guard for leave to drain one node."""

    incident: IncidentRef
    node: str
    cls: str
    reason: str
    evidence: tuple[Evidence, ...]
    """The platform witnesses."""


class Leave(Value):
    """The guard's answer."""

    node: str
    granted: bool
    reason: str
    expires: datetime | None = None


class DrainInput(Value):
    """Drains one node, with leave."""

    incident: IncidentRef
    node: str
    cls: str
    summary: str
    leave: Leave


class ReadNodesInput(Value):
    """Asks for fresh node records."""

    cluster: str
    nodes: tuple[str, ...]


class Nodes(Value):
    """Node records, and the names that could not be read."""

    nodes: tuple[NodeRecord, ...]
    unknown: str = ""
    """Why they could not be read; empty when they were."""


class LeaveInput(Value):
    """Records grant or refusal."""

    request: DrainRequest
    leave: Leave


class GuardState(Value):
    """All that a guard carries from run to run."""

    cluster: str
    grants: tuple[Grant, ...] = ()
    """Those of the last hour."""
    paused_by: str = ""
    handled: int = 0


class PolicyInput(Value):
    """Asks for the policy in force."""

    cluster: str


WATCH_JOBS = Call("watch_jobs", WatchInput, Nothing)
WATCH_NODES = Call("watch_nodes", WatchInput, Nothing)
FOLLOW_LOGS = Call("follow_logs", WatchInput, Nothing)
DELIVER_DETECTIONS = Call("deliver_detections", WatchInput, Nothing)
WATCH_AGENTS = Call("watch_agents", WatchInput, Nothing)
WATCH_METRICS = Call("watch_metrics", WatchInput, Nothing)

CONFIRM = Call("confirm_interruption", ConfirmInput, Confirmation)
AWAIT_CLOSED = Call("await_incident_closed", AwaitClosedInput, Nothing)
DIAGNOSE = Call("diagnose_attempt", DiagnoseInput, Diagnosis)
PLAN = Call("plan_recovery", PlanInput, Verdict)
RECORD_DECISION = Call("record_decision", DecisionInput, Nothing)
VERIFY_DECISION = Call("verify_decision", VerifyDecisionInput, SignatureCheck)
KEEP_OUTPUTS = Call("keep_outputs", ActInput, Done)
REQUEUE = Call("requeue_job", ActInput, Done)
CANCEL = Call("cancel_job", ActInput, Done)
EXCLUDE = Call("exclude_nodes", ExcludeInput, Done)
AWAIT_ENDED = Call("await_attempt_ended", AwaitEndedInput, Ended)
RELEASE = Call("release_job", ActInput, Done)
START = Call("start_job", ActInput, Done)
AWAIT_RUNNING = Call("await_attempt_running", AwaitRunningInput, Running)
AWAIT_PROGRESS = Call("await_progress", AwaitProgressInput, Proof)
CLOSE = Call("close_incident", CloseInput, Nothing)
READ_NODES = Call("read_nodes", ReadNodesInput, Nodes)
RECORD_LEAVE = Call("record_leave", LeaveInput, Nothing)
DRAIN = Call("drain_node", DrainInput, Done)
READ_POLICY = Call("read_policy", PolicyInput, Policy)
