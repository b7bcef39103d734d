"""What workflows and activities say to each other: one model in, one model out, and each activity's name.

Workflows import this file and nothing else of the activities.
"""

from datetime import datetime, timedelta
from typing import Generic, NamedTuple, TypeVar

from relight.domain.approvals import DecisionProof
from relight.domain.attempts import AttemptKey
from relight.domain.base import Value
from relight.domain.breaker import Report
from relight.domain.checkpoint_look import CheckpointLook
from relight.domain.diagnosis import Diagnosis
from relight.domain.evidence import Detection, Evidence, Interruption
from relight.domain.guard import Grant, NodeAct, PartitionCount, Room
from relight.domain.guard_standing import Standing
from relight.domain.incidents import Outcome, StepTime
from relight.domain.plan import Decision, Plan
from relight.domain.policy import Policy, Verdict
from relight.domain.resubmission import FreshJob
from relight.domain.signatures import SignedDecision
from relight.domain.slurm import NodeRecord

I = TypeVar("I")  # noqa: E741 - input
O = TypeVar("O")  # noqa: E741 - output

WATCH_WORKFLOW = "WatchCluster"
RECOVER_WORKFLOW = "RecoverJob"
GUARD_WORKFLOW = "GuardCluster"
NOTIFY_WORKFLOW = "NotifyChannel"


def watch_id(cluster: str) -> str:
    """Workflow id of a cluster's watchers."""
    return f"watch/{cluster}"


def guard_id(cluster: str) -> str:
    """Workflow id of a cluster's guard."""
    return f"guard/{cluster}"


def notify_id(cluster: str, channel: str) -> str:
    """Workflow id of one channel's notices."""
    return f"notify/{cluster}/{channel}"


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
    fresh: FreshJob | None = None
    """The job that was submitted in the attempt's place: what is done from then on is done to it."""
    again: int = 0
    """How often its restart has been begun anew, as slurmctld had forgotten it: each has rows of its own."""

    def entry(self, step: str, phase: str = "done") -> str:
        """Deterministic id of a ledger row: workflow, run, step, phase."""
        named = f"{step}~{self.again}" if self.again else step
        return f"{self.workflow_id}/{self.run_id}/{named}/{phase}"


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
    fresh_job: bool = False
    """Whether the incident can carry out a plan that submits a fresh job."""
    checkpoints: CheckpointLook | None = None
    """What is known of the job's checkpoints; None: nobody has looked."""


class LookAtCheckpointsInput(Value):
    """Asks what the job would go on from."""

    incident: IncidentRef


class DecisionInput(Value):
    """Records a person's word."""

    incident: IncidentRef
    plan: Plan
    decision: Decision
    counts: bool
    remark: str = ""
    number: int = 0
    """The how manieth word heard about the plan; 0: it was not counted, and is known by what it says."""
    score: str = ""
    """Where the approval stands with it, for example `1 of 2 approvals (ada)`."""
    proof: DecisionProof | None = None
    """By which it can be judged again; None where it does not count."""


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
    approved_until: datetime | None = None
    """By when what people have approved must have begun; None: nobody had to approve it."""
    not_before: datetime | None = None
    """The job begins no sooner; None: at once."""


class SubmitInput(ActInput):
    """Submits a fresh job in the attempt's place."""

    allow: tuple[str, ...] = ()
    """Nodes of ours in the old job's list that the new one may use again."""


class ExcludeInput(Value):
    """Sets which nodes a job's retry keeps away from, beside the user's own list."""

    incident: IncidentRef
    nodes: tuple[str, ...]
    take_back: bool = False
    """True to remove these instead, as far as they are ours: expired, or they leave too few nodes."""
    until: dict[str, datetime] = {}
    """When each is taken back."""


class Done(Value):
    """How an action went."""

    outcome: Outcome | None = None
    """Set when the incident ends here: somebody else acted, or the world has changed."""
    text: str
    """What was read back, in words."""
    at: datetime
    fresh: FreshJob | None = None
    """The job that was submitted."""


class FallBackInput(Value):
    """Lets the next attempt go on from an older checkpoint."""

    act: ActInput
    ended: bool
    """Whether the old attempt was seen to have ended, and its job is queued again."""


class FallenBack(Value):
    """How it went."""

    waits: bool = False
    """The old attempt has not ended yet: nothing was done."""
    outcome: Outcome | None = None
    """Set when the incident ends here: a restart would go on from what is damaged."""
    text: str
    at: datetime


class AwaitEndedInput(Value):
    """Waits until Slurm has ended the old attempt."""

    incident: IncidentRef
    requeued_at: datetime | None = None
    tell_stuck: bool = False
    """True to be told, once, of nodes that hang in COMPLETING past all limits."""
    since: datetime | None = None
    """Since when it is waited for, where that was told."""


class Ended(Value):
    """The old attempt is gone, or hangs on nodes that are named."""

    completing: timedelta
    """How long Slurm itself took, from our wait's start."""
    stuck_nodes: tuple[str, ...] = ()
    """Nodes that are still completing long past the limits: the attempt is not gone, and is waited for on."""
    lingering: tuple[str, ...] = ()
    """Nodes that are still completing although the attempt is gone: slurmctld may let a job go and not its node, where
    an epilog never ends (seen on 22.05)."""
    since: datetime | None = None
    """Since when it is waited for."""
    forgotten: bool = False
    """slurmctld no longer knows our requeue: it is to be done again."""
    outcome: Outcome | None = None
    text: str


class AwaitRunningInput(Value):
    """Waits for the next attempt to run."""

    incident: IncidentRef
    exclude: tuple[str, ...] = ()
    told: tuple[str, ...] | None = None
    """Slurm's reasons to keep it waiting that have been told; None: no reason is asked for."""


class Running(Value):
    """The next attempt runs, or why it will not."""

    attempt: AttemptKey | None = None
    nodes: tuple[str, ...] = ()
    at: datetime
    too_few_nodes: bool = False
    """Slurm says BadConstraints: our exclusion leaves too few nodes."""
    waits: str = ""
    """Slurm's reason to keep it waiting, not told before: it waits on."""
    forgotten: bool = False
    """slurmctld no longer knows our requeue: it is to be done again."""
    outcome: Outcome | None = None
    text: str


class AwaitProgressInput(Value):
    """Waits for training to pass the failed step."""

    incident: IncidentRef
    next_attempt: AttemptKey
    failed_step: int | None
    until: datetime
    fits: bool = False
    """Whether a job that takes long to start, or has many steps to do again, is given longer than that."""
    checkpoints: CheckpointLook | None = None
    """What was there before the restart: a newer whole one is progress, too. None: nobody had looked."""


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
    escalate: str = ""
    """What a person must do next; empty: nothing."""


class DrainRequest(Value):
    """Asks the guard for leave to drain one node."""

    incident: IncidentRef
    node: str
    cls: str
    reason: str
    evidence: tuple[Evidence, ...]
    """The platform witnesses."""
    action: NodeAct = NodeAct.DRAIN
    began: datetime | None = None
    """When what asks was detected: what began before a reset of the breaker is refused. None: not known."""
    targets: int = 1
    """How many nodes the same plan takes out."""
    restarts: bool = False
    """Whether the incident's job waits to be placed again."""


class Leave(Value):
    """The guard's answer."""

    node: str
    granted: bool
    reason: str
    expires: datetime | None = None
    action: NodeAct = NodeAct.DRAIN


class DrainInput(Value):
    """Drains one node, with leave."""

    incident: IncidentRef
    node: str
    cls: str
    summary: str
    leave: Leave
    approved_until: datetime | None = None
    """By when what people have approved must have begun; None: nobody had to approve it."""


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
    grant: Grant | None = None
    """What counts against the limits from now on."""
    standing: Standing | None = None
    """How the guard stands with it; None: written by a guard that kept no standing."""
    undrained_at: datetime | None = None
    """When a person has put the node back into service, as far as the guard could see."""
    answer: str = ""
    """Names this answer among all of the guard's."""


class Asked(Value):
    """One node that leave is asked for."""

    node: str
    attempt: AttemptKey | None = None
    """Whose job waits to be placed again; None: none."""


class LookInput(Value):
    """Asks for all that the guard decides by, freshly read; without nodes Slurm is not asked."""

    cluster: str
    asked: tuple[Asked, ...] = ()
    granted: tuple[str, ...] = ()
    """Nodes with leave within the last hour."""
    pending: tuple[str, ...] = ()
    """Those of them with leave that may not have been used yet."""


class Look(Value):
    """All that the guard decides by."""

    policy: Policy
    standing: Standing
    """As the ledger has it."""
    grants: tuple[Grant, ...] = ()
    """Of the last hour, as the ledger has them."""
    reversals: tuple[Report, ...] = ()
    """Of the last hour."""
    nodes: tuple[NodeRecord, ...] = ()
    """Those asked for and those with leave."""
    unknown: str = ""
    """Why Slurm's nodes could not be read, or the kill switch not be looked for; empty when they were, or need not."""
    partitions: tuple[PartitionCount, ...] = ()
    domains: dict[str, tuple[str, ...]] | None = None
    """By node; None where the topology could not be read."""
    room: dict[str, Room] = {}
    """By node, for the job that waits; missing where it is not known."""
    pending: tuple[str, ...] = ()
    """The nodes with leave that may not have been used yet, which `room` leaves out."""
    undrained: dict[str, datetime] = {}
    """By node, when a person put it back into service after Relight had taken it out."""


class StandingInput(Value):
    """Records a change of how the guard stands."""

    cluster: str
    standing: Standing
    entry: str = ""
    """Id of the row; empty: only the standing is written."""
    what: str = ""
    """`tripped`, `reset`, `paused` or `resumed`."""
    text: str = ""
    """For people."""
    by: str = ""


class MayActInput(Value):
    """Asks, right before an incident's first action, whether it may still act."""

    incident: IncidentRef
    began: datetime
    partition: str = ""


class MayAct(Value):
    """Whether an incident may act now."""

    stop: str = ""
    """Why not: it is only observed then. Empty: nothing stands against it."""
    unknown: str = ""
    """Why that could not be read: then nothing is done unasked."""


class PauseInput(Value):
    """What `relight pause` sends."""

    by: str
    reason: str
    lasts: timedelta
    partition: str = ""
    node: str = ""


class ResumeInput(Value):
    """What `relight resume` sends: ends the pause of exactly this scope."""

    by: str
    partition: str = ""
    node: str = ""


class ResetInput(Value):
    """What `relight breaker reset` sends."""

    by: str
    reason: str


class GuardState(Value):
    """All that a guard carries from run to run."""

    cluster: str
    grants: tuple[Grant, ...] = ()
    """Those of the last hour."""
    paused_by: str = ""
    """What version 0.1 kept of a pause."""
    handled: int = 0
    standing: Standing = Standing()
    reports: tuple[Report, ...] = ()
    """What may still open the breaker."""
    waiting: tuple[DrainRequest, ...] = ()
    """Requests that a run from before an upgrade leaves to the next."""


class NotifyInput(Value):
    """Starts `NotifyChannel`, and names the channel to its activities."""

    cluster: str
    channel: str
    """Its name in the settings."""
    messages: int = 0
    """Sent by the runs before."""


class ToSend(Value):
    """What a channel has to send."""

    gone: bool = False
    """The settings have no such channel any more."""
    title: str = ""
    """Of the next message; empty: nothing has come for a while."""


class NoticeSent(Value):
    """How sending one message went."""

    text: str
    """What the channel answered, in words."""


class PolicyInput(Value):
    """Asks for the policy in force."""

    cluster: str


WATCH_JOBS = Call("watch_jobs", WatchInput, Nothing)
WATCH_NODES = Call("watch_nodes", WatchInput, Nothing)
FOLLOW_LOGS = Call("follow_logs", WatchInput, Nothing)
DELIVER_DETECTIONS = Call("deliver_detections", WatchInput, Nothing)
WATCH_AGENTS = Call("watch_agents", WatchInput, Nothing)
ANCHOR_LEDGER = Call("anchor_ledger", WatchInput, Nothing)
WATCH_METRICS = Call("watch_metrics", WatchInput, Nothing)
EXPIRE_OUTPUTS = Call("expire_outputs", WatchInput, Nothing)

CONFIRM = Call("confirm_interruption", ConfirmInput, Confirmation)
AWAIT_CLOSED = Call("await_incident_closed", AwaitClosedInput, Nothing)
DIAGNOSE = Call("diagnose_attempt", DiagnoseInput, Diagnosis)
LOOK_AT_CHECKPOINTS = Call("look_at_checkpoints", LookAtCheckpointsInput, CheckpointLook)
PLAN = Call("plan_recovery", PlanInput, Verdict)
RECORD_DECISION = Call("record_decision", DecisionInput, Nothing)
VERIFY_DECISION = Call("verify_decision", VerifyDecisionInput, SignatureCheck)
KEEP_OUTPUTS = Call("keep_outputs", ActInput, Done)
FALL_BACK = Call("fall_back", FallBackInput, FallenBack)
REQUEUE = Call("requeue_job", ActInput, Done)
CANCEL = Call("cancel_job", ActInput, Done)
EXCLUDE = Call("exclude_nodes", ExcludeInput, Done)
AWAIT_ENDED = Call("await_attempt_ended", AwaitEndedInput, Ended)
RELEASE = Call("release_job", ActInput, Done)
START = Call("start_job", ActInput, Done)
SUBMIT = Call("submit_fresh_job", SubmitInput, Done)
RELEASE_FRESH = Call("release_fresh_job", ActInput, Done)
AWAIT_RUNNING = Call("await_attempt_running", AwaitRunningInput, Running)
AWAIT_PROGRESS = Call("await_progress", AwaitProgressInput, Proof)
REPOINT = Call("repoint_dependants", ActInput, Done)
CLOSE = Call("close_incident", CloseInput, Nothing)
READ_NODES = Call("read_nodes", ReadNodesInput, Nodes)
RECORD_LEAVE = Call("record_leave", LeaveInput, Nothing)
DRAIN = Call("drain_node", DrainInput, Done)
LOOK = Call("look_for_guard", LookInput, Look)
RECORD_STANDING = Call("record_standing", StandingInput, Nothing)
MAY_ACT = Call("may_act", MayActInput, MayAct)
READ_POLICY = Call("read_policy", PolicyInput, Policy)
GATHER_NOTICES = Call("gather_notices", NotifyInput, ToSend)
SEND_NOTICE = Call("send_notice", NotifyInput, NoticeSent)
