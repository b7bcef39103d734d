"""The controller worker whose cost is measured: the one that ships, on a Slurm beside which pretended jobs run.

    RELIGHT_CONFIG=... python -m relight.lab.bench_cost_worker '{"running": 2000, "nodes": 10000, "logs": "/tmp/..."}'

Slurm's commands are real. One machine cannot run two thousand jobs or ten thousand nodes: the records of running jobs,
and of further nodes, are added to what Slurm says, and nodes that are only defined there are shown idle. The jobs' logs
are real files.
"""

import asyncio
import logging
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, cast

from pydantic import BaseModel, ConfigDict

from relight.activities.site import Site
from relight.clients.ledger_sql import SqlLedger
from relight.clients.slurm import Slurm
from relight.config.settings import Settings, load
from relight.domain.slurm import JobRecord, JobState, NodeRecord, NodeState
from relight.lab.bench_load import log_file, node_name
from relight.workers import controller

FIRST_JOB = 1_000_000
USERS = 50


class Load(BaseModel):
    """What is pretended."""

    model_config = ConfigDict(frozen=True)

    running: int = 0
    """Running jobs, one node each."""
    nodes: int = 0
    """Nodes beside those of the real cluster."""
    logs: Path = Path("/nonexistent")
    """Folder of the jobs' outputs."""


class Loaded:
    """Slurm as it is, and what is pretended beside it; implements `Slurm`."""

    def __init__(self, slurm: Slurm, load: Load) -> None:
        """Make the records."""
        self._slurm = slurm
        now = datetime.now(UTC).replace(microsecond=0)
        self._jobs = {FIRST_JOB + n: _running(n, load.logs, now) for n in range(1, load.running + 1)}
        self._nodes = tuple(NodeRecord(name=node_name(n), state=NodeState.IDLE) for n in range(1, load.nodes + 1))

    async def jobs(self) -> tuple[JobRecord, ...]:
        """All jobs, really read, and the pretended ones."""
        return (*await self._slurm.jobs(), *self._jobs.values())

    async def job(self, job_id: int) -> JobRecord:
        """One job."""
        return self._jobs[job_id] if job_id in self._jobs else await self._slurm.job(job_id)

    async def nodes(self) -> tuple[NodeRecord, ...]:
        """All nodes."""
        up = {"state": NodeState.IDLE, "reason": ""}
        real = await self._slurm.nodes()
        return (*(one.model_copy(update=up) if one.state is NodeState.DOWN else one for one in real), *self._nodes)

    async def batch_script(self, job_id: int) -> str:
        """A pretended job's is short."""
        if job_id in self._jobs:
            return "#!/bin/bash\nsrun python train.py\n"
        return await self._slurm.batch_script(job_id)

    def __getattr__(self, name: str) -> Any:
        # Also `cpu_time`: sstat is run for a pretended job too, and its cost counts.
        return getattr(self._slurm, name)


def _running(number: int, logs: Path, now: datetime) -> JobRecord:
    output = str(log_file(logs, number))
    return JobRecord(
        job_id=FIRST_JOB + number,
        name="train",
        user=f"user{number % USERS}",
        partition="gpu",
        state=JobState.RUNNING,
        submit_time=now,
        start_time=now,
        nodes=(node_name(number),),
        node_count=1,
        work_dir=str(logs),
        stdout=output,
        stderr=output,
    )


async def work(settings: Settings, load: Load) -> None:
    """Be the controller worker until SIGTERM."""

    @asynccontextmanager
    async def site(settings: Settings, ledger: SqlLedger) -> AsyncIterator[Site]:
        async with controller.open_site(settings, ledger) as real:
            yield replace(real, slurm=cast("Slurm", Loaded(real.slurm, load)))

    async def ready() -> None:
        print(f"relight: watching cluster {settings.cluster}, with pretended jobs", file=sys.stderr, flush=True)

    await controller.run(settings, ready=ready, site=site)


if __name__ == "__main__":
    logging.basicConfig(level=logging.WARNING, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    asyncio.run(work(load(), Load.model_validate_json(sys.argv[1])))
