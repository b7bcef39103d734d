"""A Temporal server that skips time, and activities that answer by script."""

import asyncio
import itertools
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, get_type_hints

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from temporalio import activity
from temporalio.api.enums.v1 import IndexedValueType
from temporalio.api.operatorservice.v1 import AddSearchAttributesRequest
from temporalio.api.sdk.v1 import WorkflowMetadata
from temporalio.client import Client, WorkflowHandle
from temporalio.common import WorkflowIDConflictPolicy
from temporalio.contrib.pydantic import pydantic_data_converter
from temporalio.exceptions import ApplicationError
from temporalio.service import RPCError, RPCStatusCode
from temporalio.testing import WorkflowEnvironment
from temporalio.worker import Worker

from relight.activities import care_contracts as k
from relight.activities import contracts as c
from relight.activities.attributes import ALL, at_start
from relight.clients.signing_keys import public_half
from relight.domain import care
from relight.domain.approvals import Request
from relight.domain.attempts import AttemptKey
from relight.domain.care import CareVerdict, Next, care_workflow_id
from relight.domain.checkpoint_look import CheckpointLook
from relight.domain.diagnosis import Action, Category, Diagnosis, Hypothesis, Implicated
from relight.domain.evidence import Answer, Detection, Evidence, Interruption, Source
from relight.domain.guard import Room
from relight.domain.guard_standing import Standing
from relight.domain.incidents import Phase, headline
from relight.domain.permits import NODE_RIGHTS, Permit
from relight.domain.plan import Mode, Plan, Restart
from relight.domain.policy import Policy, Verdict
from relight.domain.reports import CheckName, NodeCheck, Result
from relight.domain.resubmission import FreshJob
from relight.domain.rights import Approver
from relight.domain.signatures import SignedDecision, signed
from relight.domain.slurm import NodeRecord, NodeState
from relight.workers.controller import WORKFLOWS, sandbox
from relight.workflows.guard_cluster import GuardCluster
from relight.workflows.recover_job import RecoverResult
from relight.workflows.story import Status

T0 = datetime(2026, 11, 30, 9, 27, 12, tzinfo=UTC)
KEYS = {
    name: Ed25519PrivateKey.from_private_bytes(name.ljust(32).encode()) for name in ("ada", "bob", "carol", "mallory")
}
"""People's private keys; all but mallory are listed as approvers."""
APPROVERS = tuple(Approver(name=name, key=public_half(key)) for name, key in KEYS.items() if name != "mallory")
CALLS: dict[str, c.Call[Any, Any]] = {
    v.name: v for module in (c, k) for v in vars(module).values() if isinstance(v, c.Call)
}
MUTATIONS = {c.KEEP_OUTPUTS.name, c.REQUEUE.name, c.CANCEL.name, c.EXCLUDE.name, c.RELEASE.name, c.START.name}
MUTATIONS |= {c.DRAIN.name, c.FALL_BACK.name, c.SUBMIT.name, c.RELEASE_FRESH.name}
FRESH = FreshJob(job_id=8, submit_time=T0, mark="relight-fresh:0123456789ab")
"""What is submitted in place of a job that Slurm cannot queue again."""


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add `--record` and `--accept`: known only when a path in or above this folder's is given on the command line."""
    parser.addoption("--record", action="store_true", help="record tests/workflows/histories anew")
    parser.addoption("--accept", action="store_true", help="accept workflow code as it is now")


def _beside_python(name: str) -> str:
    return str(Path(sys.executable).parent / name)


@pytest.fixture
async def environment() -> AsyncIterator[WorkflowEnvironment]:
    """The time-skipping server, one for each test: whatever outlives a workflow stops time for good (seen)."""
    async with await WorkflowEnvironment.start_time_skipping(
        data_converter=pydantic_data_converter,
        test_server_existing_path=_beside_python("temporal-test-server"),
    ) as env:
        # This server can add search attributes but not list them, as `register_search_attributes` does first.
        added = {key.name: IndexedValueType.ValueType(int(key.indexed_value_type)) for key in ALL}
        await env.client.operator_service.add_search_attributes(AddSearchAttributesRequest(search_attributes=added))
        yield env


@pytest.fixture(scope="session")
async def dev_server() -> AsyncIterator[WorkflowEnvironment]:
    """The real server, as `relight` embeds it."""
    async with await WorkflowEnvironment.start_local(
        data_converter=pydantic_data_converter,
        dev_server_existing_path=_beside_python("temporal"),
    ) as env:
        yield env


# --- the script -----------------------------------------------------------------------------------------------------


class Hold:
    """An activity that stays in progress until it is released, at the latest when its incident closes."""

    def __init__(self, answer: Any) -> None:
        """Answer so once released."""
        self.started = asyncio.Event()
        self.release = asyncio.Event()
        self.ended = asyncio.Event()
        self._answer = answer

    async def __call__(self, arg: Any) -> Any:
        self.started.set()
        await self.release.wait()
        self.ended.set()
        return await _answer(self._answer, arg)

    async def end(self) -> None:
        """Release it, and wait until it is through where it has begun."""
        self.release.set()
        if self.started.is_set():
            await self.ended.wait()


async def _answer(answer: Any, arg: Any) -> Any:
    if isinstance(answer, Exception):
        raise answer
    if callable(answer):
        answer = answer(arg)
    return await answer if isinstance(answer, Awaitable) else answer


class Script:
    """Fake activities under the real names: what each answers, and what was asked, in order.

    Without a word to the contrary a crashed job is recovered in mode `auto`.
    """

    def __init__(self, attempt: AttemptKey) -> None:
        """Play the recovery of this attempt."""
        self.attempt = attempt
        self.calls: list[tuple[str, Any]] = []
        self._holds: list[tuple[str, Hold]] = []
        self._answers: dict[str, list[Any]] = {name: [answer] for name, answer in self._recovery().items()}

    def on(self, call: c.Call[Any, Any], *answers: Any) -> None:
        """Answer so: a value, an exception, or a function of the argument; several are used up, the last stays."""
        self._answers[call.name] = list(answers)

    def hold(self, call: c.Call[Any, Any]) -> Hold:
        """Keep the activity in progress until released; then it answers as it would have."""
        hold = Hold(self._answers[call.name][-1])
        self._holds.append((call.name, hold))
        self.on(call, hold)
        return hold

    @property
    def names(self) -> list[str]:
        """The activities called, in order."""
        return [name for name, _ in self.calls]

    @property
    def mutations(self) -> list[str]:
        """Those called that change anything outside the ledger."""
        return [name for name in self.names if name in MUTATIONS]

    def args(self, call: c.Call[Any, Any]) -> list[Any]:
        """What an activity was asked, each time."""
        return [arg for name, arg in self.calls if name == call.name]

    def activities(self) -> list[Callable[..., Any]]:
        """The fakes, to be given to a worker."""
        return [self._fake(call) for call in CALLS.values()]

    def _fake(self, call: c.Call[Any, Any]) -> Callable[..., Any]:
        async def fake(arg: Any) -> Any:
            self.calls.append((call.name, arg))
            if call is c.CLOSE:
                await self._end_holds()
            answers = self._answers[call.name]
            result = await _answer(answers.pop(0) if len(answers) > 1 else answers[0], arg)
            assert isinstance(result, call.result), f"{call.name} answers {result!r}"
            return result

        fake.__annotations__ = {"arg": call.arg, "return": call.result}
        assert get_type_hints(fake)["arg"] is call.arg
        return activity.defn(name=call.name)(fake)

    async def _end_holds(self) -> None:
        """Let nothing outlive its workflow: this server never again skips time once an activity has (seen)."""
        for name, hold in self._holds:
            if name != c.CLOSE.name:
                await hold.end()

    def _recovery(self) -> dict[str, Any]:
        next_attempt = self.attempt.model_copy(update={"submit_time": T0 + timedelta(minutes=5)})
        return {
            c.WATCH_JOBS.name: c.Nothing(),
            c.WATCH_NODES.name: c.Nothing(),
            c.FOLLOW_LOGS.name: c.Nothing(),
            c.DELIVER_DETECTIONS.name: c.Nothing(),
            c.WATCH_AGENTS.name: c.Nothing(),
            c.WATCH_METRICS.name: c.Nothing(),
            c.EXPIRE_OUTPUTS.name: c.Nothing(),
            c.ANCHOR_LEDGER.name: c.Nothing(),
            c.CONFIRM.name: c.Confirmation(
                reason="Slurm shows FAILED", lineage="j1", job_name="train", user="ada", partition="gpu", nodes=("n1",)
            ),
            c.AWAIT_CLOSED.name: c.Nothing(),
            c.DIAGNOSE.name: diagnosis(),
            c.LOOK_AT_CHECKPOINTS.name: CheckpointLook(read_at=T0),
            c.FALL_BACK.name: c.FallenBack(text="the next attempt goes on from step 30", at=T0),
            c.PLAN.name: self.verdict(),
            c.RECORD_DECISION.name: c.Nothing(),
            c.VERIFY_DECISION.name: c.SignatureCheck(genuine=True),
            c.KEEP_OUTPUTS.name: c.Done(text="kept 1", at=T0),
            c.REQUEUE.name: c.Done(text="Slurm shows restart 1, COMPLETING", at=T0),
            c.CANCEL.name: c.Done(text="cancelled", at=T0),
            c.EXCLUDE.name: c.Done(text="ExcNodeList=n2", at=T0),
            c.AWAIT_ENDED.name: c.Ended(completing=timedelta(seconds=2), text="the old attempt ended after 2.0 s"),
            c.RELEASE.name: c.Done(text="Slurm's hold is undone", at=T0),
            c.REPOINT.name: c.Done(text="", at=T0),
            c.START.name: c.Done(text="Slurm may start it at once", at=T0),
            c.SUBMIT.name: c.Done(text="job 8 goes on in place of job 7, held", at=T0, fresh=FRESH),
            c.RELEASE_FRESH.name: c.Done(text="job 8 waits for its start", at=T0),
            c.AWAIT_RUNNING.name: c.Running(attempt=next_attempt, nodes=("n1",), at=T0, text="running again on n1"),
            c.AWAIT_PROGRESS.name: c.Proof(moved=True, step=41, at=T0, text="step 41, past step 40"),
            c.CLOSE.name: c.Nothing(),
            c.READ_NODES.name: _all_idle,
            c.RECORD_LEAVE.name: c.Nothing(),
            c.LOOK.name: self.look(),
            c.RECORD_STANDING.name: c.Nothing(),
            c.MAY_ACT.name: c.MayAct(),
            c.DRAIN.name: lambda arg: c.Done(text=f"{arg.node} has the drain flag", at=T0),
            c.READ_POLICY.name: Policy(),
            **_care_ends_at_once(),
        }

    def look(self, *records: NodeRecord, policy: Policy | None = None, **changes: Any) -> Callable[[Any], c.Look]:
        """The guard's look: these nodes, or, without any, all that are asked for, idle; no topology; room enough."""

        def answer(arg: c.LookInput) -> c.Look:
            names = dict.fromkeys((*(asked.node for asked in arg.asked), *arg.granted))
            nodes = records or tuple(NodeRecord(name=name, state=NodeState.IDLE) for name in names)
            given = {"nodes": nodes, "domains": dict.fromkeys(names, ())}
            given["room"] = dict.fromkeys(names, Room(needs=1, spare=1000))
            return c.Look(**{"policy": policy or Policy(), "standing": Standing(), **given, **changes})

        return answer

    def plan(self, **changes: Any) -> Plan:
        """A plan to requeue the attempt, with these changes."""
        return Plan.model_validate(
            {"attempt": self.attempt, "restart": Restart.REQUEUE, "reason": "ECC error"} | changes
        )

    def verdict(self, mode: Mode = Mode.AUTO, *, outcome: Any = None, policy: Any = None, **plan: Any) -> Verdict:
        """The plan, to be carried out in this mode."""
        policy = Policy(mode=mode, **(policy or {}))
        made = self.plan(**plan)
        why = f"cluster policy says {mode}"
        return Verdict(plan=made, mode=mode, mode_reason=why, policy=policy, outcome=outcome, approvers=APPROVERS)


def _care_ends_at_once() -> dict[str, Any]:
    """A node that was drained is taken over by somebody else at once, so that its care ends with the incident."""
    limits = k.Limits(
        drain_takes=timedelta(days=1),
        approval_expires=timedelta(minutes=30),
        execution_expires=timedelta(minutes=10),
        trust_bare=False,
        needed=dict.fromkeys(NODE_RIGHTS, 1),
        permits=dict(NODE_RIGHTS),
        approvers=APPROVERS,
    )
    taken = k.Held(hold=care.Hold.TAKEN, text="somebody else has set it aside", at=T0)
    acted = k.Acted(done=True, text="done", at=T0)
    well = tuple(NodeCheck(name=name, result=Result.PASSED, text="well") for name in CheckName)
    verdict = CareVerdict(next=Next.RETURN, reason="all that can be checked is well", permit=Permit.AUTO)
    return {
        k.BEGIN_CARE.name: limits,
        k.READ_LIMITS.name: limits,
        k.AWAIT_DRAINED.name: taken,
        k.AWAIT_CHANGE.name: taken,
        k.KEEP_EVIDENCE.name: k.Kept(folder="/kept/n2", files=("why.json",)),
        k.CHECK_NODE.name: k.Checked(agent=Answer.YES, checks=well, began=T0, at=T0),
        k.JUDGE_NODE.name: k.Judged(verdict=verdict, ticket="/kept/n2/ticket.txt"),
        k.RETURN_NODE.name: acted,
        k.DOWN_NODE.name: acted,
        k.ASK_PLATFORM.name: acted,
        k.RECORD_CARE.name: c.Nothing(),
        k.RECORD_HEARD.name: c.Nothing(),
    }


def _all_idle(arg: c.ReadNodesInput) -> c.Nodes:
    return c.Nodes(nodes=tuple(NodeRecord(name=name, state=NodeState.IDLE) for name in arg.nodes))


def signed_by(name: str, request: Request, *, approved: bool = True, key: str = "", **changes: Any) -> SignedDecision:
    """A decision of this person on what was asked, just then; with these changes before it is signed."""
    decision = {"approved": approved, "digest": request.digest, "by": name, "reason": "looks right"}
    decision |= {field: changes.pop(field) for field in ("digest", "by", "reason") if field in changes}
    fields = {
        "incident": request.subject,
        "run_id": request.run_id,
        "decision": decision,
        "at": request.asked_at,
        "nonce": f"{name}-1",
        "key": public_half(KEYS[key or name]),
        "signature": "",
    }
    return signed(SignedDecision.model_validate(fields | changes), KEYS[name])


def witness(node: str) -> Evidence:
    """A platform witness on a node."""
    return Evidence(source=Source.KERNEL_LOG, text="NVRM: Xid 48: double bit ECC", node=node, signature="XID_48")


def diagnosis(*, nodes: Sequence[str] = ("n2",), **changes: Any) -> Diagnosis:
    """A broken GPU on these nodes, with a witness of the platform for each of the first ones."""
    hypothesis = Hypothesis.model_validate(
        {
            "signature": "CUDA_ECC",
            "category": Category.GPU,
            "action": Action.RESTART_EXCLUDING_NODE,
            "action_if_it_repeats": Action.STOP,
            "confidence": 0.9,
            "implicated": Implicated(ranks=(3,), nodes=tuple(nodes)),
            "summary": "an uncorrectable memory error of a GPU",
            "drain_nodes": tuple(nodes),
            "evidence": tuple(witness(node) for node in nodes[:16]),
        }
        | changes
    )
    return Diagnosis(hypotheses=(hypothesis,), failed_step=40)


# --- one incident ---------------------------------------------------------------------------------------------------


class Incident:
    """An attempt whose interruption is handled by a worker with scripted activities."""

    def __init__(self, client: Client, script: Script, task_queue: str) -> None:
        """Stand ready; nothing is started yet."""
        self.client = client
        self.script = script
        self.attempt = script.attempt
        self.task_queue = task_queue

    @property
    def workflow_id(self) -> str:
        """Where the incident's workflow is found."""
        return self.attempt.workflow_id

    def detection(self, name: str = "d1", kind: Interruption = Interruption.CRASH, **changes: Any) -> Detection:
        """A watcher's finding about the attempt."""
        evidence = (Evidence(source=Source.SLURMCTLD, text=f"{name}: JobState=FAILED"),)
        fields = {"id": name, "attempt": self.attempt, "kind": kind, "detected_at": T0, "evidence": evidence}
        return Detection.model_validate(fields | changes)

    async def start(self, detection: Detection | None = None) -> WorkflowHandle[Any, RecoverResult]:
        """Deliver a detection the way the relay does: signal with start."""
        detection = detection or self.detection()
        return await self.client.start_workflow(
            c.RECOVER_WORKFLOW,
            c.RecoverInput(attempt=self.attempt, kind=detection.kind),
            id=self.workflow_id,
            task_queue=self.task_queue,
            id_conflict_policy=WorkflowIDConflictPolicy.USE_EXISTING,
            start_signal="evidence",
            start_signal_args=[detection],
            search_attributes=at_start(self.attempt, detection.kind),
            static_summary=headline(detection),
            result_type=RecoverResult,
        )

    async def run(self, detection: Detection | None = None) -> RecoverResult:
        """Start, and wait for the end."""
        return await (await self.start(detection)).result()

    async def status(self, handle: WorkflowHandle[Any, Any]) -> Status:
        """What the query `status` says."""
        return await handle.query("status", result_type=Status)

    async def waiting(self, handle: WorkflowHandle[Any, Any]) -> Status:
        """The status once a person is waited for."""
        return await eventually(lambda: self.status(handle), lambda status: status.phase is Phase.WAITING)

    def steps(self) -> dict[str, str]:
        """The steps that the incident was closed with: name and text."""
        (close,) = self.script.args(c.CLOSE)
        return {step.name: step.text for step in close.steps}


async def terminate(handle: WorkflowHandle[Any, Any]) -> None:
    """End a workflow that has no end of its own.

    The time-skipping server, once nothing else is left to wait for, skips ten years to its time-out (seen).
    """
    try:
        # Its last task is through once it answers.
        await handle.query("__temporal_workflow_metadata", result_type=WorkflowMetadata)
        await handle.terminate()
    except RPCError as error:
        if error.status is not RPCStatusCode.NOT_FOUND:
            raise


async def start_guard(incident: Incident) -> WorkflowHandle[Any, Any]:
    """The guard of the incident's cluster."""
    return await incident.client.start_workflow(
        GuardCluster.run,
        c.GuardState(cluster=incident.attempt.cluster),
        id=c.guard_id(incident.attempt.cluster),
        task_queue=incident.task_queue,
    )


async def eventually(look: Callable[[], Awaitable[Any]], good: Callable[[Any], bool], within: float = 20) -> Any:
    """Look until it is good; the last look is in the failure's message."""
    seen: Any = None
    try:
        async with asyncio.timeout(within):
            while not good(seen := await look()):  # noqa: ASYNC110 - what is looked at lives on a server
                await asyncio.sleep(0.01)
    except TimeoutError:
        pytest.fail(f"not within {within} s; last seen: {seen!r}")
    return seen


async def _end_of(handle: WorkflowHandle[Any, Any]) -> None:
    """Wait for a workflow that ends by itself, if there is one: what its activities outlive stops time (seen)."""
    try:
        await handle.result()
    except RPCError as error:
        if error.status is not RPCStatusCode.NOT_FOUND:
            raise


_numbers = itertools.count(1000)


@asynccontextmanager
async def staged(client: Client, *, job_id: int, **options: Any) -> AsyncIterator[Incident]:
    """A worker with scripted activities, on a cluster and a task queue of its own."""
    cluster = f"lab{job_id}"
    script = Script(AttemptKey(cluster=cluster, job_id=job_id, submit_time=T0))
    task_queue = f"relight-{cluster}"
    async with Worker(
        client,
        task_queue=task_queue,
        workflows=options.pop("workflows", WORKFLOWS),
        activities=script.activities(),
        workflow_runner=sandbox(),
        **options,
    ):
        yield Incident(client, script, task_queue)
        for node in {arg.node for arg in script.args(c.DRAIN)}:
            await _end_of(client.get_workflow_handle(care_workflow_id(cluster, node)))


@pytest.fixture
async def incident(environment: WorkflowEnvironment) -> AsyncIterator[Incident]:
    """An incident on the time-skipping server."""
    async with staged(environment.client, job_id=next(_numbers)) as made:
        yield made


@pytest.fixture
def script(incident: Incident) -> Script:
    """The incident's script."""
    return incident.script


@pytest.fixture(scope="session")
def stage() -> Callable[..., Any]:
    """Makes an incident on another server, or with a job id of one's own."""
    return staged


@pytest.fixture(scope="session")
def make_diagnosis() -> Callable[..., Diagnosis]:
    """Makes a diagnosis."""
    return diagnosis


@pytest.fixture(scope="session")
def decision_of() -> Callable[..., SignedDecision]:
    """Signs a decision: `signed_by`."""
    return signed_by


@pytest.fixture(scope="session")
def platform_witness() -> Callable[[str], Evidence]:
    """Makes a platform witness on a node."""
    return witness


@pytest.fixture(scope="session")
def end() -> Callable[[WorkflowHandle[Any, Any]], Awaitable[None]]:
    """Terminates a workflow that has no end of its own."""
    return terminate


@pytest.fixture(scope="session")
def until() -> Callable[..., Awaitable[Any]]:
    """Looks until what is seen is good."""
    return eventually


@pytest.fixture(scope="session")
def gives_up() -> Callable[[str], ApplicationError]:
    """Makes an error of an activity for which another try cannot help."""
    return lambda text: ApplicationError(text, type="RefusedError")
