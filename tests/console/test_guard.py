"""`relight pause`, `resume` and `breaker` against the real guard on a real Temporal server, and what `status` tells."""

import asyncio
import json
import re
from collections.abc import AsyncIterator, Awaitable, Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from click.testing import CliRunner, Result
from temporalio.client import Client
from temporalio.worker import Worker

from relight.activities import contracts as c
from relight.activities.guard import Guard
from relight.activities.site import Site
from relight.clients.kernel_logs import KernelLogFiles
from relight.clients.ledger_sql import SqlLedger
from relight.clients.log_files import LogFiles
from relight.clients.memory import MemorySlurm
from relight.domain.breaker import Report, Sign, Trip
from relight.domain.detectors import Sight, WorkerReport, WorkerReports, sights_cursor
from relight.domain.diagnosis import Category
from relight.domain.guard import Grant, PartitionCount
from relight.domain.guard_standing import Pause, Reset, Standing, standing_cursor
from relight.domain.ledger import RowKind
from relight.domain.policy import Policy
from relight.workers.cli import main
from relight.workers.controller import sandbox
from relight.workflows.guard_cluster import GuardCluster

from .conftest import Night, ago

Relight = Callable[..., Awaitable[Result]]
SECOND = timedelta(seconds=1)


def now() -> datetime:
    return datetime.now(UTC)


@pytest.fixture
async def guard(temporal: Client, ledger: SqlLedger, tmp_path: Path) -> AsyncIterator[Client]:
    """The cluster's guard with its real activities, on a ledger on disk and a simulated Slurm."""
    slurm = MemorySlurm(now)
    site = Site(
        cluster="main",
        slurm=slurm,
        nodes=slurm,
        ledger=ledger,
        logs=LogFiles(),
        kernel_logs=KernelLogFiles(""),
        policy=Policy(),
        clock=now,
        sleep=asyncio.sleep,
        kept=tmp_path,
    )
    acts = Guard(site)
    async with Worker(
        temporal,
        task_queue=f"relight-{tmp_path}",
        workflows=[GuardCluster],
        activities=[acts.look, acts.record_standing],
        workflow_runner=sandbox(),
    ):
        handle = await temporal.start_workflow(
            GuardCluster.run, c.GuardState(cluster="main"), id=c.guard_id("main"), task_queue=f"relight-{tmp_path}"
        )
        yield temporal
        await temporal.get_workflow_handle(handle.id).terminate()


@pytest.fixture
def command(temporal: Client, config: Path) -> Relight:
    """Runs the command line beside this loop, which the worker needs."""
    address = temporal.service_client.config.target_host
    config.write_text(config.read_text().replace("127.0.0.1:1\n", f"{address}\n"))

    async def run(*args: str) -> Result:
        return await asyncio.to_thread(CliRunner(env={"COLUMNS": "120"}).invoke, main, [*args, "--config", str(config)])

    return run


async def test_a_pause_and_its_end(guard: Client, command: Relight, ledger: SqlLedger):
    """Told to who asks, kept in the ledger with who and why, and shown; a resume ends exactly that scope."""
    paused = await command("pause", "--for", "2h", "--reason", "power work", "--partition", "gpu")
    assert paused.exit_code == 0, paused.output
    assert "partition gpu is paused by " in paused.output
    shown = await command("breaker")
    assert shown.exit_code == 0
    assert "partition gpu is paused by " in shown.output
    assert "for 2.0 h more: power work" in shown.output
    refused = await command("resume")
    assert refused.exit_code == 3
    assert "the cluster is not paused; paused: partition gpu" in refused.output
    resumed = await command("resume", "--partition", "gpu")
    assert resumed.exit_code == 0, resumed.output
    rows = await ledger.rows(kind=RowKind.GUARD)
    assert [row.body["what"] for row in rows] == ["paused", "resumed"]
    assert all(row.body["by"] for row in rows)


async def test_the_breaker_opens_and_is_reset(guard: Client, command: Relight, ledger: SqlLedger):
    """A person is called, with what, which and what to do; the reset needs a reason, and is kept with it."""
    assert (await command("breaker", "reset", "--reason", "x")).exit_code == 3
    handle = guard.get_workflow_handle(c.guard_id("main"))
    for number in range(3):
        report = Report(
            sign=Sign.INCIDENT, incident=f"i{number}", began=now(), category=Category.NODE, nodes=(f"gpu-{number}",)
        )
        await handle.signal("report", report)
    async with asyncio.timeout(20):
        while not await ledger.rows(kind=RowKind.GUARD):  # noqa: ASYNC110 - what is looked at lies in a file
            await asyncio.sleep(0.05)
    shown = await command("breaker")
    assert shown.exit_code == 1
    assert "3 nodes found broken within 10m (gpu-0, gpu-1, gpu-2); incidents i0, i1, i2" in " ".join(
        shown.output.split()
    )
    assert "relight breaker reset --reason" in " ".join(shown.output.split())
    assert (await command("breaker", "reset")).exit_code == 2
    assert (await command("breaker", "reset", "--reason", "switch replaced")).exit_code == 0
    shown = await command("breaker")
    assert shown.exit_code == 0
    assert "closed; last reset by " in shown.output
    assert "switch replaced" in shown.output
    assert [row.body["what"] for row in await ledger.rows(kind=RowKind.GUARD)] == ["tripped", "reset"]


@pytest.mark.parametrize(
    ("args", "status", "said"),
    [
        (("pause", "--for", "2", "--reason", "x"), 2, "must be a duration with its unit"),
        (("pause", "--for", "2h"), 2, "Missing option '--reason'"),
        (("pause", "--reason", "x"), 2, "Missing option '--for'"),
        (("pause", "--for", "0s", "--reason", "x"), 3, "a pause lasts from 1m to 30d"),
        (("pause", "--for", "90d", "--reason", "x"), 3, "a pause lasts from 1m to 30d"),
        (("pause", "--for", "1h", "--reason", " "), 3, "say why"),
        (("pause", "--for", "1h", "--reason", "x", "--node", "n[1-4]"), 3, "not one plain node name: 'n[1-4]'"),
        (("pause", "--for", "1h", "--reason", "x", "--node", "a", "--partition", "b"), 3, "not both"),
    ],
)
async def test_what_makes_no_sense_is_refused(
    guard: Client, command: Relight, args: tuple[str, ...], status: int, said: str
):
    """One clear line, and the status that says what kind of refusal it is."""
    found = await command(*args)
    assert found.exit_code == status
    assert said in found.output
    assert "Traceback" not in found.output


async def test_without_a_guard(temporal: Client, ledger: SqlLedger, command: Relight):
    """Said, with what to do."""
    found = await command("pause", "--for", "1h", "--reason", "x")
    assert found.exit_code == 4
    assert "no guard runs for cluster main" in found.output


# --- from the ledger alone ------------------------------------------------------------------------------------------


@pytest.fixture
def stands(night: Night) -> Callable[[Standing], None]:
    """The guard has written so; a worker works and all detectors see."""
    sight = Sight(within=60 * SECOND, since=now(), looked=now(), last=now())
    report = WorkerReport(
        worker="head/1",
        version="0",
        mode="auto",
        started_at=now(),
        written_at=now(),
        sights=dict.fromkeys(("jobs", "nodes", "logs", "outbox"), sight),
        unreadable={},
        unreadable_count=0,
    )
    night.commit(cursors={sights_cursor("main"): WorkerReports(workers=(report,)).model_dump(mode="json")})

    def write(standing: Standing) -> None:
        night.commit(cursors={standing_cursor("main"): standing.model_dump(mode="json")})

    return write


def test_status_tells_how_much_of_the_limits_is_used(stands: Callable[..., None], relight: Callable[..., Result]):
    """Drains of the hour, and how full each partition's share of unavailable nodes is; with the age of that look."""
    grants = (Grant(node="n1", incident="i", at=ago(minutes=10)), Grant(node="n2", incident="i", at=ago(minutes=70)))
    counts = (PartitionCount(name="gpu", nodes=40, out=2), PartitionCount(name="cpu", nodes=10, out=0))
    stands(Standing(written_at=ago(minutes=10), grants=grants, partitions=counts, seen_at=ago(minutes=10)))
    found = relight("status")
    assert found.exit_code == 0, found.output
    assert "1 of 1 drain this hour used" in found.output
    told_of = r"2 of 40 nodes of partition gpu unavailable \(15% = 6, seen 1\d min ago\)"
    assert re.search(told_of, found.output), found.output
    told = json.loads(relight("status", "-o", "json").output)["guard"]
    assert told["used"]["drains"] == {"used": 1, "of": 1}
    assert told["partitions"][0] == {"name": "gpu", "nodes": 40, "out": 2, "limit": 6}
    assert not told["breaker"]["open"]


def test_status_tells_who_has_paused_and_is_well_all_the_same(
    stands: Callable[..., None], relight: Callable[..., Result]
):
    """A pause is a person's wish, and it ends by itself; one that has ended is not told."""
    pauses = (
        Pause(by="ada", reason="power\x1b[2J work", since=ago(hours=1), until=now() + timedelta(hours=2), node="n7"),
        Pause(by="bob", reason="over", since=ago(hours=3), until=ago(hours=1)),
    )
    stands(Standing(written_at=ago(hours=1), pauses=pauses))
    found = relight("status")
    assert found.exit_code == 0
    assert "node n7 is paused by ada for 2.0 h more: power work" in found.output
    assert "bob" not in found.output


def test_status_calls_a_person_while_the_breaker_is_open(stands: Callable[..., None], relight: Callable[..., Result]):
    """Since when, why, which nodes, and what to do; the command ends with 1."""
    trip = Trip(at=ago(minutes=5), why="3 nodes found broken within 10m", nodes=("n1", "n2", "n3"), incidents=("i1",))
    stands(Standing(written_at=ago(minutes=5), trip=trip, reset=Reset(at=ago(days=3), by="ada", reason="x")))
    found = relight("status")
    assert found.exit_code == 1
    text = " ".join(found.output.split())
    assert "the breaker is open since" in text
    assert "3 nodes found broken within 10m (n1, n2, n3); incidents i1." in text
    assert "All detectors see, but Relight only observes: relight breaker" in text
    assert json.loads(relight("breaker", "-o", "json").output)["breaker"]["nodes"] == ["n1", "n2", "n3"]


def test_status_tells_of_the_kill_switch(stands: Callable[..., None], relight: Callable[..., Result]):
    """By its default file in the data folder."""
    stands(Standing(written_at=now()))
    file = Path(json.loads(relight("breaker", "-o", "json").output)["kill_switch"]["file"])
    assert file.name == "KILL"
    file.touch()
    found = relight("breaker")
    assert found.exit_code == 1
    assert "the kill switch is on, nothing is touched" in found.output
    file.unlink()
    assert relight("breaker").exit_code == 0


def test_a_standing_that_cannot_be_read_is_said(
    night: Night, stands: Callable[..., None], relight: Callable[..., Result]
):
    """Not shown as closed."""
    night.commit(cursors={standing_cursor("main"): {"pauses": 3}})
    found = relight("breaker")
    assert found.exit_code == 1
    assert "unknown" in found.output
