"""`relight doctor`: each check says what was found and what to do; nothing that hangs holds up the rest."""

import asyncio
import json
import sqlite3
import stat
import sys
from collections.abc import Callable
from contextlib import closing
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from click.testing import CliRunner, Result
from temporalio import workflow
from temporalio.api.enums.v1 import TaskQueueType
from temporalio.api.taskqueue.v1 import TaskQueue
from temporalio.api.workflowservice.v1 import DescribeTaskQueueRequest
from temporalio.client import Client
from temporalio.common import SearchAttributeKey
from temporalio.worker import Worker

from relight.activities import attributes
from relight.activities import contracts as c
from relight.clients.files import LocalFiles
from relight.clients.ledger_sql import SqlLedger
from relight.clients.memory import MemorySlurm
from relight.clients.slurm import SlurmUnavailableError
from relight.clients.slurm_process import Done, LocalRunner
from relight.clients.ways import FORCED, Access
from relight.config.settings import PolicySettings, Settings, Way, load
from relight.console.doctor import Probe, check_variables, look
from relight.console.doctor_checks import Check, Health, ok
from relight.console.doctor_site import check_approval_key, check_job_logs, check_kernel_logs, check_ledger
from relight.console.doctor_slurm import (
    check_facts,
    check_slurm,
    check_submitter,
    check_wrapper,
    judge_level,
    owned_by_others,
)
from relight.console.doctor_temporal import check_temporal
from relight.domain.plan import Mode
from relight.domain.slurm import SlurmFacts
from relight.workers.cli import main
from relight.workers.keys import make_approval_key

from .conftest import Night

RECORDED = Path(__file__).parent.parent / "clients" / "recorded" / "24.11"
GOOD = SlurmFacts(
    version="24.11.5",
    cluster="c",
    min_job_age=timedelta(hours=1),
    accounting_storage="accounting_storage/slurmdbd",
    accounting_store_flags=frozenset({"job_comment", "job_script"}),
    slurm_user="slurm",
)


def now() -> datetime:
    return datetime.now(UTC)


def settings(**given: object) -> Settings:
    return Settings(**given)


class Elsewhere:
    """Runs commands as on another machine: nothing of it can be looked at here."""

    run = LocalRunner().run


def access(**given: object) -> Access:
    """A way to a simulated Slurm."""
    slurm = MemorySlurm(now)
    here = LocalRunner()
    parts = {"way": Way.COMMANDS, "why": "", "slurm": slurm, "runner": here, "nodes": slurm, "files": LocalFiles()}
    return Access(**{**parts, "node_command": (), "node_runner": here, "submitter": None, **given})


def by_name(checks: object) -> dict[str, Check]:
    return {check.name: check for check in checks}


# --- the frame ---


async def test_a_check_that_hangs_fails_alone():
    """A dead mount or a frozen slurmctld takes its own time limit, and no other check's."""

    async def hang() -> tuple[Check, ...]:
        await asyncio.sleep(60)
        return ()

    async def fine() -> tuple[Check, ...]:
        return (ok("b", "fine"),)

    found = await look((Probe("a", hang, 0.05), Probe("b", fine)))
    assert [(check.name, check.status) for check in found] == [("a", Health.FAIL), ("b", Health.OK)]
    assert "no answer within 0.05 s" in found[0].found


async def test_a_check_that_stumbles_is_a_line_not_a_traceback():
    """A fault of ours is said as such."""

    async def stumble() -> tuple[Check, ...]:
        raise ZeroDivisionError("division by zero")

    (check,) = await look((Probe("a", stumble),))
    assert check.status is Health.FAIL
    assert "ZeroDivisionError: division by zero" in check.found


def test_a_misspelt_variable_gets_its_neighbour():
    """RELIGHT_ variables that set nothing are the silent kind of wrong."""
    (check,) = check_variables({"RELIGHT_POLCY__MODE": "auto", "RELIGHT_CONFIG": "x", "RELIGHT_CLUSTER": "c"})
    assert "RELIGHT_POLCY__MODE names no setting" in check.found
    assert check.advice == "Did you mean RELIGHT_POLICY?"


# --- Slurm ---


def test_a_slurm_set_up_well_is_all_right():
    """With room for approvals, comments and scripts kept, and accounting on."""
    assert {check.status for check in check_facts(GOOD, settings())} == {Health.OK}


@pytest.mark.parametrize(
    ("change", "name", "told"),
    [
        ({"accounting_storage": ""}, "accounting", "accounting_storage/slurmdbd"),
        ({"accounting_store_flags": frozenset({"job_env"})}, "store flags", "Add job_comment,job_script"),
        ({"min_job_age": timedelta(minutes=5)}, "MinJobAge", "requeued for 4 min only"),
        ({"min_job_age": timedelta(minutes=31)}, "MinJobAge", "Set MinJobAge=1861 or more"),
        ({"job_requeue": False}, "JobRequeue", "--requeue"),
    ],
)
def test_each_setting_of_slurm_that_is_in_the_way_is_named(change: dict[str, object], name: str, told: str):
    """A warning with the numbers, and the very line to set."""
    check = by_name(check_facts(GOOD.model_copy(update=change), settings()))[name]
    assert check.status is Health.WARN
    assert told in check.advice


@pytest.mark.parametrize(
    ("asked", "mode", "status"),
    [
        (Done(0, "Operator\n", ""), Mode.AUTO, Health.OK),
        (Done(0, "Administrator\n", ""), Mode.AUTO, Health.OK),
        (Done(0, "None\n", ""), Mode.AUTO, Health.FAIL),
        (Done(0, "None\n", ""), Mode.MONITOR, Health.WARN),
        (Done(0, "", ""), Mode.APPROVE, Health.FAIL),
        (Done(1, "", "sacctmgr: error: no slurmdbd"), Mode.AUTO, Health.WARN),
        ("`sacctmgr` could not be started", Mode.AUTO, Health.WARN),
    ],
)
def test_rights_are_judged_by_level_and_unknown_is_a_warning(asked: Done | str, mode: Mode, status: Health):
    """Unknown is never read as yes or as no; too little fails only where Relight is to act."""
    check = judge_level("relight", asked, mode)
    assert check.status is status
    assert check.status is Health.OK or "set adminlevel=Operator" in check.advice


def test_a_wrapper_that_others_can_write_is_not_trusted(tmp_path: Path):
    """It runs with root's rights: it must be root's, and only root's."""
    program = tmp_path / "relight-node"
    program.write_text("#!/bin/sh\n")
    program.chmod(0o777)
    if program.stat().st_uid == 0:
        assert "written by others than root (mode 0777)" in owned_by_others(program)
        program.chmod(0o644)
        assert "not executable" in owned_by_others(program)
        program.chmod(0o755)
        assert owned_by_others(program) == ""
    else:
        assert "not to root" in owned_by_others(program)
    assert "No such file" in owned_by_others(tmp_path / "none")


async def test_the_real_wrapper_answers_with_its_usage():
    """Called without words it changes nothing; a program that is something else is told apart."""
    source = Path(__file__).parent.parent.parent / "clients" / "relight_node.py"
    real = access(node_command=(sys.executable, "-I", str(source)), node_runner=Elsewhere())
    (check,) = await check_wrapper(settings(), real)
    assert (check.status, check.found.endswith("answers over SSH")) == (Health.OK, True)
    other, auto = access(node_command=("/bin/true",), node_runner=Elsewhere()), {"mode": "auto"}
    assert (await check_wrapper(settings(policy=auto), other))[0].status is Health.FAIL
    assert (await check_wrapper(settings(policy={"mode": "monitor"}), access(node_command=())))[0].status is Health.WARN


async def test_the_program_that_submits_fresh_jobs_must_be_roots(tmp_path: Path):
    """Where the site has set it up; nothing is said where it has not."""
    assert await check_submitter(settings(), access()) == ()
    given = settings(slurm={"submit_wrapper": ["sudo", "-n", "-u", "{user}", f"{tmp_path}/relight-submit"]})
    (check,) = await check_submitter(given, access())
    assert check.status is Health.WARN
    assert "No such file" in check.found
    assert f"Install clients/relight_submit.py as {tmp_path}/relight-submit" in check.advice


async def test_the_account_that_needs_leave_for_the_wrapper_is_the_one_that_calls_it():
    """Over SSH it is not whoever asks the doctor; with a forced command of its own there is no sudo."""
    ssh = settings(slurm={"ssh": {"host": "slurmctl", "user": "svc"}})
    (by_sudo,) = await check_wrapper(ssh, access(node_command=("/bin/true",), node_runner=Elsewhere()))
    assert by_sudo.advice == "Allow it: `svc ALL=(root) NOPASSWD: /bin/true` in /etc/sudoers.d/relight there."
    forced = Elsewhere()
    forced.run = lambda _command, timeout: LocalRunner().run(("/bin/true",), timeout)
    (by_key,) = await check_wrapper(ssh, access(node_command=FORCED, node_runner=forced))
    assert "forced command of the account of slurm.node_ssh" in by_key.advice


async def test_the_way_to_slurm_is_named_with_its_reason():
    """Which way, why that one, what it leaves to the commands; and what to do when there is no answer."""
    checks = by_name(await check_slurm(settings(), access(way=Way.PYSLURM, why="pyslurm is installed and works")))
    assert checks["Slurm"].found.startswith("by pyslurm, directly: 24.11.5, ClusterName test")
    assert checks["way"].found.startswith("pyslurm is installed and works; left to the commands: executions, cpu_time")
    ssh = settings(slurm={"ssh": {"host": "slurmctl", "user": "relight"}})
    slurm = MemorySlurm(now)
    slurm.fail_next("facts", SlurmUnavailableError("its host key has changed"))
    checks = by_name(await check_slurm(ssh, access(way=Way.SSH, why="slurm.ssh.host is set", slurm=slurm)))
    assert checks["Slurm"].found == (
        "by commands over SSH, relight@slurmctl:22, as that user: its host key has changed"
    )
    assert checks["Slurm"].status is Health.FAIL
    assert checks["way"].found == "slurm.ssh.host is set"


def test_what_an_operator_may_not_do_is_said():
    """Slurm refuses it on every version: the doctor says so before somebody finds out at night."""
    asked = Done(0, "Operator\n", "")
    assert judge_level("relight", asked, Mode.AUTO).found == (
        "relight: Operator; may not: drain nodes (relight-node does), write AdminComment"
    )


# --- files ---


async def test_job_logs_are_tried_on_jobs_that_run(tmp_path: Path):
    """All readable, some, none, no job, and a Slurm that does not say: five different answers."""
    slurm = MemorySlurm(now)
    assert (await check_job_logs(slurm))[0].status is Health.WARN
    log = tmp_path / "a.out"
    log.write_text("step 1\n")
    slurm.start(slurm.submit(nodes=1, stdout=str(log)))
    assert (await check_job_logs(slurm))[0] == ok("job logs", "1 of 1 running job readable")
    slurm.start(slurm.submit(nodes=1, stdout=str(tmp_path / "none.out")))
    partly = (await check_job_logs(slurm))[0]
    assert (partly.status, partly.found) == (Health.WARN, "1 of 2 running jobs readable")
    assert "none.out: no such file" in partly.advice
    log.unlink()
    assert (await check_job_logs(slurm))[0].status is Health.FAIL
    slurm.fail_next("jobs", SlurmUnavailableError("frozen"))
    assert "Slurm does not say: frozen" in (await check_job_logs(slurm))[0].found


async def test_kernel_logs_are_tried_on_a_few_nodes(tmp_path: Path):
    """None configured is a warning; configured and unreadable everywhere fails."""
    slurm = MemorySlurm(now)
    assert (await check_kernel_logs(settings(), slurm))[0].status is Health.WARN
    there = settings(logs={"kernel": f"{tmp_path}/{{node}}.log"})
    assert (await check_kernel_logs(there, slurm))[0].status is Health.FAIL
    (tmp_path / "n1.log").write_text("NVRM: Xid\n")
    partly = (await check_kernel_logs(there, slurm))[0]
    assert (partly.status, partly.found) == (Health.WARN, "1 of 4 nodes readable")


async def test_an_approval_key_that_others_read_fails(tmp_path: Path):
    """Whoever reads it may approve; a group may be meant to."""
    site = settings(data=str(tmp_path), policy=PolicySettings(mode=Mode.APPROVE))
    assert "nobody can approve" in (await check_approval_key(site))[0].found
    key = tmp_path / "approval.key"
    key.write_text("k")
    key.chmod(0o600)
    assert "no private key; accepted: an OpenSSH key" in (await check_approval_key(site))[0].found
    key.unlink()
    make_approval_key(key)
    for mode, status in ((0o600, Health.OK), (0o640, Health.OK), (0o644, Health.FAIL), (0o660, Health.FAIL)):
        key.chmod(mode)
        assert (await check_approval_key(site))[0].status is status


async def test_a_site_that_lists_people_needs_no_key_of_its_own(tmp_path: Path):
    """They sign with theirs."""
    key = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIOOpHHRjjPzerSRq6uUgnLAwE2FMV/MCd0VwGky6dQWo"
    site = settings(data=str(tmp_path), approvals={"approvers": [{"name": "ada", "key": key}]})
    check = (await check_approval_key(site))[0]
    assert (check.status, check.found) == (Health.OK, "not used: 1 approver listed, who sign themselves")


async def test_a_ledger_that_was_changed_is_found_out(ledger: SqlLedger, data: Path):
    """The chain says at which row."""
    await asyncio.to_thread(Night(ledger).attempt, 1, now())
    await asyncio.to_thread(Night(ledger).attempt, 2, now())
    site = settings(data=str(data))
    assert by_name(await check_ledger(site))["ledger"].found.startswith("2 rows, chain verified")
    with closing(sqlite3.connect(data / "ledger.sqlite")) as database, database:
        database.execute("DROP TRIGGER ledger_no_update")
        database.execute("UPDATE ledger SET at = 'never' WHERE seq = 1")
    check = by_name(await check_ledger(site))["ledger"]
    assert check.status is Health.FAIL
    assert "broken at row 1" in check.found


# --- Temporal ---


@workflow.defn(name=c.WATCH_WORKFLOW, sandboxed=False)
class Watches:
    @workflow.run
    async def run(self) -> None:
        await workflow.wait_condition(lambda: False)


def beside(temporal: Client, **more: object) -> Settings:
    return settings(temporal={"address": temporal.service_client.config.target_host, **more}, cluster="doctored")


async def polled(temporal: Client, queue: str) -> None:
    """Wait until the server has heard from a worker of the queue: its first poll may come late."""
    request = DescribeTaskQueueRequest(namespace=temporal.namespace, task_queue=TaskQueue(name=queue))
    request.task_queue_type = TaskQueueType.TASK_QUEUE_TYPE_WORKFLOW
    async with asyncio.timeout(20):
        while True:
            if (await temporal.workflow_service.describe_task_queue(request)).pollers:
                return
            await asyncio.sleep(0.05)


async def test_a_temporal_without_a_worker_watches_nothing(temporal: Client):
    """The server answers; nobody polls, and neither watchers nor guard were ever started."""
    checks = by_name(await check_temporal(beside(temporal)))
    assert checks["Temporal"].status is checks["attributes"].status is Health.OK
    assert "nobody polls relight-doctored" in checks["worker"].found
    assert "watch/doctored was never started: no job is watched" in checks["WatchCluster"].found
    assert checks["GuardCluster"].status is Health.FAIL


async def test_a_worker_and_its_watchers_are_seen(temporal: Client):
    """Polling on this cluster's queue, watchers running; once ended, they are said to be."""
    async with Worker(temporal, task_queue="relight-doctored", workflows=[Watches]):
        handle = await temporal.start_workflow(Watches.run, id="watch/doctored", task_queue="relight-doctored")
        await polled(temporal, "relight-doctored")
        checks = by_name(await check_temporal(beside(temporal)))
        assert checks["worker"].found.startswith("1 worker on relight-doctored")
        assert checks["WatchCluster"].status is Health.OK
        await handle.terminate()
    ended = by_name(await check_temporal(beside(temporal)))["WatchCluster"]
    assert "watch/doctored is TERMINATED" in ended.found


async def test_missing_search_attributes_fail(temporal: Client, monkeypatch: pytest.MonkeyPatch):
    """An incident would block at the first of them."""
    more = SearchAttributeKey.for_keyword("RelightNotThere")
    monkeypatch.setattr(attributes, "ALL", (*attributes.ALL, more))
    check = by_name(await check_temporal(beside(temporal)))["attributes"]
    assert (check.status, "RelightNotThere" in check.found) == (Health.FAIL, True)


async def test_a_namespace_that_does_not_exist_is_named(temporal: Client):
    """And nothing else is asked of it."""
    (check,) = await check_temporal(beside(temporal, namespace="nowhere"))
    assert check.status is Health.FAIL
    assert "temporal operator namespace create nowhere" in check.advice


# --- the whole command ---


def program(folder: Path, name: str, text: str) -> None:
    path = folder / name
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(path.stat().st_mode | stat.S_IXUSR)


@pytest.fixture
def slurm_bin(tmp_path: Path) -> Path:
    """Commands that say what the real ones said."""
    folder = tmp_path / "bin"
    folder.mkdir()
    config, nodes = RECORDED / "config.txt", RECORDED / "nodes-lost-drained-draining.json"
    jobs = RECORDED / "jobs-running-on-two-nodes-with-json-comment.json"
    answers = f'"show config") cat {config};; --version) cat {RECORDED / "version.txt"};; *) cat {nodes};;'
    program(folder, "scontrol", f'case "$*" in {answers} esac')
    program(folder, "squeue", f"cat {jobs}")
    program(folder, "sacctmgr", "echo Operator")
    return folder


Doctor = Callable[..., Result]


@pytest.fixture
def doctor(tmp_path: Path, data: Path, slurm_bin: Path) -> Doctor:
    def call(*words: str, timeout: str = "PT10S", env: dict[str, str] | None = None) -> Result:
        path = tmp_path / "relight.yaml"
        path.write_text(
            f"data: {data}\ntemporal: {{address: '127.0.0.1:1'}}\nslurm: {{bin: {slurm_bin}, timeout: {timeout}}}\n"
        )
        return CliRunner(env={"COLUMNS": "100", **(env or {})}).invoke(main, ["doctor", "--config", str(path), *words])

    return call


def test_doctor_reports_all_and_fails_where_something_fails(ledger: SqlLedger, doctor: Doctor):
    """Slurm answers, the ledger opens, Temporal is down: exit 1, and advice with each that is not well."""
    result = doctor("-o", "json", env={"RELIGHT_CLUSTR": "x"})
    assert result.exit_code == 1
    checks = {each["name"]: each for each in json.loads(result.stdout)}
    assert checks["settings"]["status"] == "ok"
    assert checks["Slurm"]["status"] == "ok"
    assert "24.11" in checks["Slurm"]["found"]
    assert checks["ledger"]["found"].startswith("0 rows, chain verified")
    assert checks["Temporal"]["status"] == "fail"
    assert checks["variable"]["advice"] == "Did you mean RELIGHT_CLUSTER?"
    assert all(each["advice"] for each in checks.values() if each["status"] != "ok")


def test_doctor_reads_well_for_people(ledger: SqlLedger, doctor: Doctor):
    """Statuses, names, arrows to what to do, and one line of sum."""
    out = doctor().output
    assert "Relight doctor" in out
    assert "→ Start it (`temporal server start-dev`)" in out
    assert "failed, " in out.splitlines()[-1]
    assert "Traceback" not in out


def test_a_frozen_slurm_takes_its_timeout_and_no_longer(ledger: SqlLedger, doctor: Doctor, slurm_bin: Path):
    """slurmctld may hang for minutes; the doctor does not."""
    for name in ("scontrol", "squeue", "sacctmgr"):
        program(slurm_bin, name, "exec sleep 60")
    begun = datetime.now(UTC)
    result = doctor("-o", "json", timeout="PT1S")
    assert datetime.now(UTC) - begun < timedelta(seconds=12)
    checks = {each["name"]: each for each in json.loads(result.stdout)}
    assert checks["Slurm"]["status"] == "fail"
    assert "within 1 s" in checks["Slurm"]["found"]


def test_no_ledger_yet_is_found_and_none_is_made(data: Path, doctor: Doctor):
    """Looking must not leave a ledger behind."""
    checks = {each["name"]: each for each in json.loads(doctor("-o", "json").stdout)}
    assert checks["ledger"]["status"] == "fail"
    assert "does not exist" in checks["ledger"]["found"]
    assert list(data.iterdir()) == []


def test_the_defaults_load_for_these_tests(tmp_path: Path):
    """The settings used above are those that the program itself reads."""
    assert load(environment={}).policy == PolicySettings()
