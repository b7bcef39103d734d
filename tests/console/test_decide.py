"""`approve` and `reject` against the real workflow on a real Temporal server; only what acts is a stub."""

import asyncio
import json
import subprocess
from collections.abc import AsyncIterator, Awaitable, Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
import yaml
from click.testing import CliRunner, Result
from temporalio import activity
from temporalio.client import Client, WorkflowHandle
from temporalio.service import RPCError, RPCStatusCode
from temporalio.worker import Worker

from relight.activities import contracts as c
from relight.activities.close import Close
from relight.activities.records import save
from relight.activities.site import Site
from relight.clients.kernel_logs import KernelLogFiles
from relight.clients.ledger_sql import SqlLedger
from relight.clients.log_files import LogFiles
from relight.clients.memory import MemorySlurm
from relight.config.settings import Settings
from relight.console.context import user_name
from relight.domain.attempts import AttemptKey
from relight.domain.diagnosis import Diagnosis
from relight.domain.evidence import Detection, Interruption
from relight.domain.incidents import Incident, Outcome, Phase
from relight.domain.ledger import Change, RowKind
from relight.domain.plan import Mode, Plan, Restart
from relight.domain.policy import Verdict
from relight.workers.cli import main
from relight.workers.controller import sandbox
from relight.workers.keys import approvers
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
        verdict = Verdict(
            plan=PLAN,
            mode=Mode.APPROVE,
            mode_reason="cluster policy says approve",
            policy=self.site.policy,
            approvers=self.site.approvers,
        )
        update = {"phase": Phase.PLANNING, "plan": PLAN}
        await save(self.site, arg.incident, "plan", RowKind.PLANNED, verdict.model_dump(mode="json"), **update)
        return verdict

    @activity.defn(name=c.MAY_ACT.name)
    async def may_act(self, arg: c.MayActInput) -> c.MayAct:
        return c.MayAct()

    @activity.defn(name=c.CANCEL.name)
    async def cancel(self, arg: c.ActInput) -> c.Done:
        return c.Done(text="cancelled", at=now())


def person(home: Path, name: str, *options: str) -> Path:
    """A person's SSH key, made as people make theirs."""
    path = home / f"id_{name}"
    words = ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", f"{name}@laptop", *options, "-f", str(path)]
    subprocess.run(words, check=True, stdin=subprocess.DEVNULL)
    return path


def listed(home: Path, **people: Any) -> dict[str, Any]:
    """People as the settings list them; each gets a key."""
    keys = {name: person(home, name).with_suffix(".pub").read_text() for name in people}
    return {"approvers": [{"name": name, "key": keys[name], **more} for name, more in people.items()]}


@pytest.fixture
def approvals() -> Callable[[Path], dict[str, Any]]:
    """What the settings say of approvers; nobody is listed where a test does not parametrise it."""
    return lambda _home: {}


@pytest.fixture
def needed() -> dict[str, int]:
    """What the policy says of `approvers`."""
    return {}


@pytest.fixture
def settings(data: Path, temporal: Client, approvals: Any, needed: dict[str, int]) -> Settings:
    address = temporal.service_client.config.target_host
    policy = {"mode": "approve", "approvers": needed}
    return Settings.model_validate(
        {"data": str(data), "temporal": {"address": address}, "policy": policy, "approvals": approvals(data)}
    )


@pytest.fixture
def site(ledger: SqlLedger, data: Path, settings: Settings) -> Site:
    slurm = MemorySlurm(now)
    return Site(
        cluster="main",
        slurm=slurm,
        nodes=slurm,
        ledger=ledger,
        logs=LogFiles(),
        kernel_logs=KernelLogFiles(""),
        policy=settings.policy,
        clock=now,
        sleep=asyncio.sleep,
        kept=data / "outputs",
        approvers=approvers(settings),
    )


@pytest.fixture
def config(tmp_path: Path, settings: Settings) -> Path:
    path = tmp_path / "relight.yaml"
    kept = settings.model_dump(
        mode="json", include={"data", "temporal", "policy", "approvals"}, exclude={"policy": {"hang"}}
    )
    path.write_text(yaml.safe_dump(kept))
    return path


def queue(site: Site) -> str:
    """Each test's own: a poll that the worker before is giving up may still take a task of the same queue."""
    return f"relight-{site.kept}"


def worker(temporal: Client, site: Site) -> Worker:
    stubs, close = Stubs(site), Close(site)
    acts = [stubs.confirm, stubs.diagnose, stubs.plan, stubs.may_act, stubs.cancel]
    acts += [close.record_decision, close.verify_decision, close.close]
    return Worker(temporal, task_queue=queue(site), workflows=[RecoverJob], activities=acts, workflow_runner=sandbox())


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
            id=KEY.workflow_id,
            task_queue=queue(site),
            start_signal="evidence",
            start_signal_args=[detection],
        )
        await until(lambda: _waits(handle))
        (incident,) = await site.ledger.incidents()
        yield incident
        try:
            # Closed in the ledger, it may still have to end: the next test's evidence would go to it.
            await handle.terminate()
        except RPCError as error:
            if error.status is not RPCStatusCode.NOT_FOUND:
                raise


Decide = Callable[..., "asyncio.Future[Result]"]


@pytest.fixture
def decide(config: Path) -> Decide:
    """Run a command in a thread, as its own process would run."""

    def call(*words: object, stdin: str | None = None) -> "asyncio.Future[Result]":
        arguments = [str(words[0]), "--config", str(config), *map(str, words[1:])]
        env = {"COLUMNS": "100", "HOME": str(config.parent)}
        return asyncio.ensure_future(asyncio.to_thread(CliRunner(env=env).invoke, main, arguments, input=stdin))

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
    assert decision["by"] == f"{user_name()} (by the site key)"
    assert row.body["score"] == f"1 of 1 approval ({decision['by']})"


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


async def test_another_key_than_the_sites_is_refused_before_it_is_sent(waiting: Incident, decide: Decide, data: Path):
    """On a site that lists nobody one's own key is nobody's."""
    result = await decide("approve", waiting.id, "--yes", "--key", person(data, "eve"))
    assert result.exit_code == 3
    assert "is the key of nobody who may approve here; the site's own key signs here" in result.stderr


async def test_who_cannot_read_the_key_learns_who_can(waiting: Incident, decide: Decide, data: Path):
    """Before anything is sent."""
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


# --- people with their own keys -------------------------------------------------------------------------------------

PEOPLE = {"ada": {}, "bob": {}, "carol": {"may": ["restart"]}}
several = pytest.mark.parametrize("approvals", [lambda home: listed(home, **PEOPLE)], ids=["people"])
two = pytest.mark.parametrize("needed", [{"stop": 2}], ids=["two"])


@several
@two
async def test_two_people_approve_with_their_own_keys(
    waiting: Incident, decide: Decide, relight: Callable[..., Result], site: Site, data: Path
):
    """Each sees how far it is; the lists say so; the second decides; the ledger names both."""
    first = await decide("approve", waiting.id, "--yes", "--key", data / "id_ada", "--reason", "seen")
    assert first.exit_code == 0, first.stderr
    assert "0 of 2 approvals (stop: middle)" in first.stdout
    assert "may approve: ada, bob" in first.stdout
    assert f"ada, with {data}/id_ada" in " ".join(first.stdout.split())
    assert "counted: 1 of 2 approvals (ada)" in first.stdout
    for command in (("status",), ("incidents",), ("show", waiting.id)):
        page = await asyncio.to_thread(relight, *command)
        assert "1 of 2 approvals" in page.stdout, page.output
    again = await decide("approve", waiting.id, "--yes", "--key", data / "id_ada")
    assert (again.exit_code, "ada has approved it already" in again.stderr) == (3, True)
    third = await decide("approve", waiting.id, "--yes", "--key", data / "id_carol")
    assert (third.exit_code, "carol may not approve: stop" in third.stderr) == (3, True)
    second = await decide("approve", waiting.id, "--yes", "--key", data / "id_bob")
    assert "1 of 2 approvals (ada)" in second.stdout
    assert "counted: approved" in second.stdout
    assert (await closed(site, waiting)).outcome is Outcome.STOPPED
    rows = await site.ledger.rows(kind=RowKind.DECISION)
    assert [(row.body["decision"]["by"], row.body["counts"]) for row in rows] == [
        ("ada", True),
        ("ada", False),
        ("carol", False),
        ("bob", True),
    ]


@several
@two
async def test_one_no_outweighs_what_was_approved(waiting: Incident, decide: Decide, site: Site, data: Path):
    """Also of somebody who could not have approved it."""
    await decide("approve", waiting.id, "--yes", "--key", data / "id_ada")
    result = await decide("reject", waiting.id, "--yes", "--key", data / "id_carol", "--reason", "keep it")
    assert "counted: rejected" in result.stdout
    assert (await closed(site, waiting)).outcome_reason == "keep it"


@several
async def test_ones_own_key_is_found_where_ssh_keeps_it(waiting: Incident, decide: Decide, data: Path, config: Path):
    """Without --key; and where there is none, how to name or make one is said."""
    result = await decide("approve", waiting.id, "--yes")
    assert result.exit_code == 3
    assert f"{config.parent}/.ssh/id_ed25519: No such file" in result.stderr
    assert "--key" in result.stderr
    (config.parent / ".ssh").mkdir()
    (data / "id_bob").rename(config.parent / ".ssh/id_ed25519")
    assert "counted: approved" in (await decide("approve", waiting.id, "--yes")).stdout


@several
async def test_keys_that_cannot_sign_are_told_apart(waiting: Incident, decide: Decide, data: Path):
    """Each with what is wrong and what is accepted; nothing is sent."""
    open_to_all = data / "id_ada"
    open_to_all.chmod(0o644)
    person(data, "locked", "-N", "secret")
    rsa = data / "id_rsa"
    words = ["ssh-keygen", "-q", "-t", "rsa", "-b", "2048", "-N", "", "-f", str(rsa)]
    await asyncio.to_thread(subprocess.run, words, check=True)
    (data / "garbage").write_bytes(bytes(range(256)) * 300)
    (data / "garbage").chmod(0o600)
    for name, said in {
        "id_ada": "mode 0644 lets others read it: chmod 600",
        "id_bob.pub": "lets others read it",
        "id_locked": "needs a passphrase, and there is no terminal to ask for it on",
        "id_rsa": "a key of type RSA; accepted: Ed25519 (ssh-keygen -t ed25519)",
        "garbage": "no private key; accepted: an OpenSSH key",
        "nowhere": "No such file or directory",
    }.items():
        result = await decide("approve", waiting.id, "--yes", "--key", data / name)
        assert result.exit_code == 3, result.output
        assert said in result.stderr
        assert "Traceback" not in result.output
    stranger = await decide("approve", waiting.id, "--yes", "--key", person(data, "eve"))
    assert "is the key of nobody who may approve here; these people's keys do: ada, bob, carol" in stranger.stderr


@several
async def test_a_reason_of_60_kb_is_refused_here(waiting: Incident, decide: Decide, data: Path):
    """Before it is sent."""
    result = await decide("reject", waiting.id, "--yes", "--key", data / "id_ada", "--reason", "x" * 60_000)
    assert (result.exit_code, "accepted: at most 2000" in result.stderr) == (3, True)


@several
async def test_who_may_approve_is_told(relight: Callable[..., Result], site: Site):
    """People, what each may, and how many each action needs; as JSON for programs."""
    page = await asyncio.to_thread(relight, "approvers")
    assert page.exit_code == 0, page.output
    for told in ("ada", "everything", "carol", "restart", "heavy", "2 approvals"):
        assert told in page.stdout
    found = json.loads((await asyncio.to_thread(relight, "approvers", "-o", "json")).stdout)
    assert [each["name"] for each in found["approvers"]] == ["ada", "bob", "carol"]
    assert found["actions"]["down"] == {"weight": "heavy", "needed": 2}


async def test_a_site_that_lists_nobody_is_told_who_reads_its_key(relight: Callable[..., Result], site: Site):
    """And that what needs two is never done there."""
    page = await asyncio.to_thread(relight, "approvers")
    assert "the site's own key signs, as one person" in page.stdout
    assert f"Only who can read that key may: user {user_name()}" in " ".join(page.stdout.split())
    assert "only 1 may approve it: nobody is asked" in page.stdout


@several
async def test_who_may_not_read_the_ledger_decides_all_the_same(
    waiting: Incident, decide: Decide, temporal: Client, config: Path, data: Path
):
    """From a login node, with settings that name Temporal and the cluster alone: the plan is the workflow's own."""
    address = temporal.service_client.config.target_host
    text = f"data: {config.parent / 'nowhere'}\ntemporal: {{address: '{address}'}}\n"
    await asyncio.to_thread(config.write_text, text)
    unknown = await decide("approve", "i0123456789", "--yes", "--key", data / "id_bob")
    assert (unknown.exit_code, "must name one open incident; Temporal knows none" in unknown.stderr) == (4, True)
    assert "no ledger here yet" in unknown.stderr

    async def listed_alone() -> bool:
        found = [each.run_id async for each in temporal.list_workflows("ExecutionStatus = 'Running'")]
        return found == [waiting.run_id]

    await until(listed_alone)
    result = await decide("approve", "4711", "--yes", "--key", data / "id_bob")
    assert "counted: approved" in result.stdout, result.output
    assert waiting.id in result.stdout


async def test_a_node_that_is_in_nobodys_care_is_not_found(site: Site, decide: Decide):
    """`node/NAME` stands where an incident's id does."""
    result = await decide("approve", "node/n2", "--yes")
    assert result.exit_code == 4
    assert "node n2 is not in Relight's care" in result.stderr


# --- what cannot be decided -------------------------------------------------------------------------------------------


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
