"""`approve` and `reject` against the real workflow on a real Temporal server; only what acts is a stub."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from click.testing import CliRunner, Result
from temporalio import activity
from temporalio.client import Client, WorkflowHandle
from temporalio.worker import Worker

from relight.activities import contracts as c
from relight.activities.close import Close
from relight.activities.records import save
from relight.activities.site import Site
from relight.clients.kernel_logs import KernelLogFiles
from relight.clients.ledger_sql import SqlLedger
from relight.clients.log_files import LogFiles
from relight.clients.memory import MemorySlurm
from relight.domain.attempts import AttemptKey
from relight.domain.diagnosis import Diagnosis
from relight.domain.evidence import Detection, Interruption
from relight.domain.incidents import Incident, Outcome, Phase
from relight.domain.ledger import Change, RowKind
from relight.domain.plan import Mode, Plan, Restart
from relight.domain.policy import Policy, Verdict
from relight.workers.cli import main
from relight.workers.controller import sandbox
from relight.workers.keys import make_key
from relight.workflows.recover_job import RecoverJob

from .conftest import user_code

KEY = AttemptKey(cluster="main", job_id=4711, submit_time=datetime(2026, 11, 30, 2, 0, tzinfo=UTC))
PLAN = Plan(attempt=KEY, restart=Restart.NONE, cancel=True, reason="a retry would fail the same way")


def now() -> datetime:
    return datetime.now(UTC)


class Stubs:
    """Look and act as the real activities would, on nothing."""

    def __init__(self, site: Site) -> None:
        self.site = site

    @activity.defn(name=c.CONFIRM.name)
    async def confirm(self, arg: c.ConfirmInput) -> c.Confirmation:
        incident = Incident(
            **arg.incident.model_dump(exclude={"attempt"}),
            attempt=arg.incident.attempt,
            lineage="j1",
            phase=Phase.CONFIRMING,
            mode=Mode.APPROVE,
            opened_at=now(),
            detected_at=now(),
            job_name="llama-70b",
            user="alice",
        )
        await self.site.ledger.commit(Change(incidents=(incident,)))
        return c.Confirmation(reason="still silent", lineage="j1", job_name="llama-70b", user="alice")

    @activity.defn(name=c.DIAGNOSE.name)
    async def diagnose(self, arg: c.DiagnoseInput) -> Diagnosis:
        return user_code()

    @activity.defn(name=c.PLAN.name)
    async def plan(self, arg: c.PlanInput) -> Verdict:
        policy = Policy(mode=Mode.APPROVE)
        verdict = Verdict(plan=PLAN, mode=Mode.APPROVE, mode_reason="cluster policy says approve", policy=policy)
        update = {"phase": Phase.PLANNING, "plan": PLAN}
        await save(self.site, arg.incident, "plan", RowKind.PLANNED, verdict.model_dump(mode="json"), **update)
        return verdict

    @activity.defn(name=c.CANCEL.name)
    async def cancel(self, arg: c.ActInput) -> c.Done:
        return c.Done(text="cancelled", at=now())


@pytest.fixture
def site(ledger: SqlLedger, data: Path) -> Site:
    slurm = MemorySlurm(now)
    make_key(data / "approval.key")
    return Site(
        cluster="main",
        slurm=slurm,
        nodes=slurm,
        ledger=ledger,
        logs=LogFiles(),
        kernel_logs=KernelLogFiles(""),
        policy=Policy(mode=Mode.APPROVE),
        clock=now,
        sleep=asyncio.sleep,
        kept=data / "outputs",
        approval_key=data / "approval.key",
    )


@pytest.fixture
def config(tmp_path: Path, data: Path, temporal: Client) -> Path:
    path = tmp_path / "relight.yaml"
    address = temporal.service_client.config.target_host
    path.write_text(f"data: {data}\ntemporal: {{address: '{address}'}}\npolicy: {{mode: approve}}\n")
    return path


def worker(temporal: Client, site: Site) -> Worker:
    stubs, close = Stubs(site), Close(site)
    acts = [stubs.confirm, stubs.diagnose, stubs.plan, stubs.cancel]
    acts += [close.record_decision, close.verify_decision, close.close]
    return Worker(
        temporal, task_queue="relight-main", workflows=[RecoverJob], activities=acts, workflow_runner=sandbox()
    )


async def until(holds: Callable[[], Awaitable[bool]]) -> None:
    """Look again until it holds, for half a minute at most."""
    async with asyncio.timeout(30):
        while not await holds():  # noqa: ASYNC110 - what is looked at is in another process
            await asyncio.sleep(0.05)


async def _waits(handle: WorkflowHandle) -> bool:
    return (await handle.query(RecoverJob.status)).phase is Phase.WAITING


@pytest.fixture
async def waiting(temporal: Client, site: Site, tmp_path: Path) -> AsyncIterator[Incident]:
    """An incident whose workflow waits for a person, with a worker that serves it."""
    async with worker(temporal, site):
        detection = Detection(id="d1", attempt=KEY, kind=Interruption.HANG, detected_at=now())
        handle = await temporal.start_workflow(
            RecoverJob.run,
            c.RecoverInput(attempt=KEY, kind=Interruption.HANG),
            id=f"{KEY.workflow_id}/{tmp_path.name}",
            task_queue="relight-main",
            start_signal="evidence",
            start_signal_args=[detection],
        )
        await until(lambda: _waits(handle))
        (incident,) = await site.ledger.incidents()
        yield incident
        await handle.terminate() if (await site.ledger.incident(incident.id)).open else None


Decide = Callable[..., "asyncio.Future[Result]"]


@pytest.fixture
def decide(config: Path) -> Decide:
    """Run a command in a thread, as its own process would run."""

    def call(*words: str, stdin: str | None = None) -> "asyncio.Future[Result]":
        arguments = [words[0], "--config", str(config), *words[1:]]
        return asyncio.ensure_future(
            asyncio.to_thread(CliRunner(env={"COLUMNS": "100"}).invoke, main, arguments, input=stdin)
        )

    return call


async def closed(site: Site, incident: Incident) -> Incident:
    async def over() -> bool:
        return not (await site.ledger.incident(incident.id)).open

    await until(over)
    return await site.ledger.incident(incident.id)


async def test_an_approval_counts_and_is_on_record(waiting: Incident, decide: Decide, site: Site):
    """The plan is shown, the decision is signed, the workflow goes on, and the ledger names who and why."""
    result = await decide("approve", waiting.id, "--yes", "--reason", "seen it", "--digest", PLAN.digest[:8])
    assert result.exit_code == 0, result.output
    for told in ("cancel job 4711", PLAN.digest[:12], "4711 llama-70b of alice", "counted: approved"):
        assert told in result.stdout
    assert (await closed(site, waiting)).outcome is Outcome.STOPPED
    (row,) = await site.ledger.rows(kind=RowKind.DECISION)
    decision = row.body["decision"]
    assert (decision["verified"], decision["reason"], row.body["counts"]) == (True, "seen it", True)
    assert decision["by"]


async def test_a_rejection_ends_it_with_its_reason(waiting: Incident, decide: Decide, site: Site):
    """Nothing is done then, and the outcome says why."""
    result = await decide("reject", "4711", "--yes", "--reason", "maintenance at six")
    assert (result.exit_code, "counted: rejected" in result.stdout) == (0, True)
    end = await closed(site, waiting)
    assert (end.outcome, end.outcome_reason) == (Outcome.REJECTED, "maintenance at six")


@pytest.mark.parametrize(("answer", "status"), [("n\n", 3), ("", 1), ("\n", 3)])
async def test_nothing_is_sent_without_a_yes(waiting: Incident, decide: Decide, site: Site, answer: str, status: int):
    """No, an empty answer, and no answer at all: the incident goes on waiting."""
    result = await decide("approve", waiting.id, stdin=answer)
    assert result.exit_code == status
    assert "nothing sent" in result.stderr
    assert await site.ledger.rows(kind=RowKind.DECISION) == ()


async def test_a_typed_yes_is_enough(waiting: Incident, decide: Decide):
    """Without --yes the plan is shown first, then asked for."""
    result = await decide("approve", waiting.id, stdin="y\n")
    assert result.exit_code == 0
    assert result.stdout.index("cancel job 4711") < result.stdout.index("Approve this plan?")


async def test_another_plan_than_the_one_looked_at_is_refused(waiting: Incident, decide: Decide, site: Site):
    """--digest holds the decision to what the person saw."""
    result = await decide("approve", waiting.id, "--yes", "--digest", "0" * 8)
    assert result.exit_code == 3
    assert f"its digest is {PLAN.digest[:12]} now, not 00000000" in result.stderr
    assert await site.ledger.rows(kind=RowKind.DECISION) == ()


async def test_a_foreign_key_does_not_count(waiting: Incident, decide: Decide, site: Site, data: Path):
    """Signed with another key: the workflow's own words, exit 3, and it goes on waiting."""
    genuine = (data / "approval.key").read_bytes()
    verifying = data / "site.key"
    verifying.write_bytes(genuine)
    object.__setattr__(site, "approval_key", verifying)
    (data / "approval.key").write_text("f" * 64)
    result = await decide("approve", waiting.id, "--yes")
    assert result.exit_code == 3
    assert "not counted: the signature is not of this site's approval key" in result.stderr
    assert (await site.ledger.incident(waiting.id)).open


async def test_who_cannot_read_the_key_learns_who_can(waiting: Incident, decide: Decide, data: Path):
    """Before anything is asked or sent."""
    (data / "approval.key").unlink()
    (data / "approval.key").mkdir()
    result = await decide("approve", waiting.id, "--yes")
    assert result.exit_code == 3
    assert "may not approve" in result.stderr
    assert "Only who can read that key may: user" in result.stderr


async def test_a_site_without_a_key_says_where_it_comes_from(waiting: Incident, decide: Decide, data: Path):
    """The controller worker makes it."""
    (data / "approval.key").unlink()
    result = await decide("reject", waiting.id, "--yes", "--reason", "no")
    assert result.exit_code == 3
    assert "The controller worker makes one" in result.stderr


async def test_a_closed_incident_is_refused_with_its_end(waiting: Incident, decide: Decide, site: Site):
    """Too late is said as such, from the ledger alone."""
    await decide("reject", waiting.id, "--yes", "--reason", "no")
    await closed(site, waiting)
    result = await decide("approve", waiting.id, "--yes")
    assert result.exit_code == 3
    assert f"incident {waiting.id} is closed: rejected (no)" in result.stderr


async def test_a_workflow_that_temporal_does_not_know_is_not_found(temporal: Client, site: Site, decide: Decide):
    """The ledger says open, Temporal knows nothing: most likely another namespace."""
    gone = Incident(
        id="i0123456789",
        workflow_id="recover/main/1/gone",
        run_id="3f0c1f2e-0000-4000-8000-000000000000",
        attempt=KEY,
        lineage="j1",
        kind=Interruption.HANG,
        phase=Phase.PLANNING,
        mode=Mode.APPROVE,
        opened_at=now(),
        detected_at=now(),
    )
    await site.ledger.commit(Change(incidents=(gone,)))
    result = await decide("approve", gone.id, "--yes")
    assert result.exit_code == 4
    assert "Temporal knows no workflow recover/main/1/gone" in result.stderr


async def test_without_a_worker_the_person_is_not_left_waiting(
    temporal: Client, site: Site, decide: Decide, monkeypatch: pytest.MonkeyPatch
):
    """A query that nobody answers ends soon, with what to look at."""
    monkeypatch.setattr("relight.console.decide.ANSWER_WITHIN", timedelta(seconds=1))
    handle = await temporal.start_workflow(
        RecoverJob.run,
        c.RecoverInput(attempt=KEY, kind=Interruption.HANG),
        id="recover/main/4711/no-worker",
        task_queue="nobody-polls-here",
    )
    run_id = handle.first_execution_run_id or ""
    incident = Incident(
        id="i9876543210",
        workflow_id=handle.id,
        run_id=run_id,
        attempt=KEY,
        lineage="j1",
        kind=Interruption.HANG,
        phase=Phase.PLANNING,
        mode=Mode.APPROVE,
        opened_at=now(),
        detected_at=now(),
    )
    await site.ledger.commit(Change(incidents=(incident,)))
    result = await decide("approve", incident.id, "--yes")
    await handle.terminate()
    assert result.exit_code == 1
    assert "Is `relight worker controller` running?" in result.stderr


async def test_temporal_that_is_down_is_said_with_its_address(site: Site, decide: Decide, config: Path, data: Path):
    """One line with the reason, one with what to do."""
    incident = Incident(
        id="iaaaaaaaaaa",
        workflow_id="w",
        run_id="r",
        attempt=KEY,
        lineage="j1",
        kind=Interruption.HANG,
        phase=Phase.PLANNING,
        mode=Mode.APPROVE,
        opened_at=now(),
        detected_at=now(),
    )
    await site.ledger.commit(Change(incidents=(incident,)))
    await asyncio.to_thread(config.write_text, f"data: {data}\ntemporal: {{address: '127.0.0.1:1'}}\n")
    result = await decide("approve", incident.id, "--yes")
    assert result.exit_code == 1
    assert "Temporal at 127.0.0.1:1 cannot be reached: Connection refused" in result.stderr


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("reject", "i1", "--yes"), "--reason"),
        (("reject", "i1", "--yes", "--reason", " "), "--reason must say why"),
        (("approve", "i1", "--digest", "12345"), "8 or more hexadecimal digits"),
        (("approve", "i1", "--digest", "zzzzzzzz"), "8 or more hexadecimal digits"),
        (("approve",), "ID"),
    ],
)
async def test_wrong_usage_is_told_before_anything_is_opened(decide: Decide, words: tuple[str, ...], said: str):
    """Exit 2, with what is missing or wrong."""
    result = await decide(*words)
    assert result.exit_code == 2
    assert said in result.stderr
