"""No interruption is lost or handled twice, whenever the worker is killed: here a real one is, again and again."""

import asyncio
import os
import random
import sys
import urllib.request
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import NamedTuple

import pytest
import yaml
from temporalio.client import Client

from relight.clients.ledger_sql import SqlLedger
from relight.domain.incidents import Outcome
from relight.domain.ledger import RowKind
from relight.domain.slurm import JobRecord, JobState
from relight.lab import temporal
from relight.lab.ports import claimed_ports
from relight.lab.processes import MARK, Process, marked, spawn

from . import mortal_worker
from .mortal_worker import write_jobs

pytestmark = [pytest.mark.system, pytest.mark.slow]

JOBS, KILLS = 40, 12
AT_LATEST_S = 8.0
"""After a worker's start, when it is killed at random: on its way up, or at work."""
SOON_S = 0.4
"""After a detection's row, when it is killed on that detection's way to its incident."""
PATIENCE_S = 180.0


class Site(NamedTuple):
    """A real Temporal server, a ledger file, and the simulated jobs."""

    folder: Path
    server: temporal.TemporalServer
    ledger: SqlLedger
    page: str
    """Where the worker's metrics are."""

    def start(self) -> Process:
        """Start a worker."""
        environment = {name: value for name, value in os.environ.items() if not name.startswith("RELIGHT_")}
        command = [sys.executable, mortal_worker.__file__, str(self.folder / "relight.yaml"), str(self.jobs)]
        return spawn(command, self.folder / "worker.log", {**environment, MARK: str(self.folder)})

    @property
    def jobs(self) -> Path:
        """The file of Slurm's jobs."""
        return self.folder / "jobs.json"

    async def detected(self) -> list[str]:
        """The attempts that detections are about, each as often as it has any."""
        return [row.attempt for row in await self.ledger.rows(kind=RowKind.DETECTED)]

    async def until(self, condition, what: str) -> None:
        """Wait."""
        try:
            async with asyncio.timeout(PATIENCE_S):
                while not await condition():  # noqa: ASYNC110 - another process brings it about
                    await asyncio.sleep(0.02)
        except TimeoutError:
            tail = (self.folder / "worker.log").read_text()[-3000:]
            pytest.fail(f"waited {PATIENCE_S:g} s for {what}\n{tail}")


@asynccontextmanager
async def opened(folder: Path) -> AsyncIterator[Site]:
    """Start the server, open the ledger, and end whatever was started."""
    with claimed_ports(1) as port:
        page = f"127.0.0.1:{port}"
    data = folder / "data"
    server = await asyncio.to_thread(temporal.start, folder / "temporal")
    settings = {
        "cluster": "mortal",
        "data": str(data),
        "temporal": {"address": server.address},
        "telemetry": {"prometheus": page},
    }
    (folder / "relight.yaml").write_text(yaml.safe_dump(settings))
    ledger = SqlLedger.open(f"sqlite:///{data / 'ledger.sqlite'}", data / "ledger.key")
    try:
        yield Site(folder, server, ledger, page)
    finally:
        for process in marked(folder):
            process.kill()
        server.stop()
        ledger.close()


def running(number: int) -> JobRecord:
    """A job that trains."""
    at = datetime.now(UTC).replace(microsecond=0)
    return JobRecord(
        job_id=number,
        name=f"train{number}",
        user="alice",
        partition="gpu",
        state=JobState.RUNNING,
        submit_time=at,
        start_time=at,
        nodes=("n1",),
        node_count=1,
        work_dir=f"/home/alice/{number}",
    )


async def test_a_worker_that_is_killed_again_and_again(tmp_path):
    """Each job that failed meanwhile has one detection, and one incident with one run of its workflow."""
    seed = random.SystemRandom().randrange(1 << 32)
    chance = random.Random(seed)  # noqa: S311 - it chooses moments, no secrets
    said = f"seed {seed}"
    jobs = {number: running(number) for number in range(1, JOBS + 1)}
    async with opened(tmp_path) as site:
        write_jobs(site.jobs, jobs)
        worker = site.start()
        await site.until(lambda: _count(site.ledger.running_attempts("mortal"), JOBS), "all attempts to be seen")
        left = list(jobs)
        chance.shuffle(left)
        for kill in range(KILLS):
            for number in (left.pop() for _ in range(chance.randint(1, 4)) if left):
                ended = {"state": JobState.FAILED, "exit_code": 1, "end_time": datetime.now(UTC).replace(microsecond=0)}
                jobs[number] = jobs[number].model_copy(update=ended)
            write_jobs(site.jobs, jobs)
            if kill % 2:
                before = len(await site.detected())
                await site.until(lambda known=before: _more(site, known), "a detection")
                await asyncio.sleep(chance.uniform(0, SOON_S))
            else:
                await asyncio.sleep(chance.uniform(0, AT_LATEST_S))
            await asyncio.to_thread(worker.kill)
            worker = site.start()
        failed = {number for number in jobs if jobs[number].state is JobState.FAILED}
        await site.until(lambda: _all_closed(site, len(failed)), f"all {len(failed)} incidents to close")
        seen = Counter(await site.detected())
        assert (len(seen), set(seen.values())) == (len(failed), {1}), said
        incidents = await site.ledger.incidents(cluster="mortal", limit=1000)
        assert {incident.attempt.job_id for incident in incidents} == failed, said
        assert Counter(incident.outcome for incident in incidents) == {Outcome.OBSERVED: len(failed)}, said
        assert await site.ledger.undelivered() == (), said
        assert (await site.ledger.verify()).ok, said
        client = await Client.connect(site.server.address)
        await site.until(lambda: _runs(client, failed), f"one run of each incident to be listed ({said})")
        await site.until(lambda: _shows_an_empty_outbox(site), f"the metrics page to show an empty outbox ({said})")


async def _count(read, wanted: int) -> bool:
    return len(await read) == wanted


async def _more(site: Site, known: int) -> bool:
    return len(await site.detected()) > known


async def _all_closed(site: Site, wanted: int) -> bool:
    incidents = await site.ledger.incidents(cluster="mortal", limit=1000)
    return len(incidents) >= wanted and not any(incident.open for incident in incidents)


async def _runs(client: Client, failed: set[int]) -> bool:
    """True once the web UI would list one run for each of these jobs, and no more."""
    runs = [run.id.split("/")[2] async for run in client.list_workflows("WorkflowType = 'RecoverJob'")]
    return sorted(map(int, runs)) == sorted(failed)


async def _shows_an_empty_outbox(site: Site) -> bool:
    def page() -> str:
        with urllib.request.urlopen(f"http://{site.page}/metrics", timeout=10) as answer:
            return str(answer.read().decode())

    return 'relight_outbox_undelivered{cluster="mortal"} 0' in await asyncio.to_thread(page)
