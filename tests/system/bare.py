"""A real cluster and Relight's watchers alone: no Temporal, no worker, a ledger in memory."""

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta

from temporalio.testing import ActivityEnvironment

from relight.activities.site import Site
from relight.activities.watch import Watch
from relight.clients.kernel_logs import KernelLogFiles
from relight.clients.log_files import LogFiles
from relight.clients.memory import MemorySlurm, memory_ledger
from relight.clients.slurm_commands import SlurmCommands
from relight.clients.slurm_process import LocalRunner
from relight.domain.attempts import AttemptState
from relight.domain.evidence import Detection
from relight.domain.ledger import Row, RowKind
from relight.domain.policy import Policy
from relight.lab.cluster import Cluster

FAR_AWAY = timedelta(hours=1)
PATIENCE_S = 90.0
LOOK_AGAIN_S = 0.2


def clock() -> datetime:
    """The time."""
    return datetime.now(UTC)


@contextmanager
def bare_site(cluster: Cluster) -> Iterator[Site]:
    """The cluster with a ledger in memory; reads are root's, and nodes are not to be changed."""
    ledger = memory_ledger()
    try:
        yield Site(
            cluster="lab",
            slurm=SlurmCommands(LocalRunner(slurm_conf=str(cluster.slurm_conf))),
            nodes=MemorySlurm(clock),
            ledger=ledger,
            logs=LogFiles(),
            kernel_logs=KernelLogFiles(""),
            policy=Policy(),
            clock=clock,
            sleep=asyncio.sleep,
            kept=cluster.folder / "kept",
        )
    finally:
        ledger.close()


class Bare:
    """What a test does with it. Waiting is for conditions, with `PATIENCE_S`."""

    def __init__(self, cluster: Cluster, site: Site, watch: Watch) -> None:
        self.cluster = cluster
        self.site = site
        self.watch = watch

    def submit(self, body: str, *options: str) -> int:
        """Submit a batch script of a few lines as the jobs' owner."""
        folder = self.cluster.make_run_folder("bare", self.cluster.users.owner)
        script = f"#!/bin/bash\n{body}\n"
        return self.cluster.submit(script, f"--chdir={folder}", *options, user=self.cluster.users.owner)

    async def look(self) -> None:
        """One round of the job watcher."""
        await ActivityEnvironment().run(self.watch._look_at_jobs)

    def field(self, job: int, name: str) -> str | None:
        """A field of `scontrol show job`."""
        return self.cluster.job_field(job, name)

    async def until(self, condition: Callable[[], Awaitable[object]], what: str) -> None:
        """Wait."""
        try:
            async with asyncio.timeout(PATIENCE_S):
                while not await condition():  # noqa: ASYNC110 - Slurm sets no event
                    await asyncio.sleep(LOOK_AGAIN_S)
        except TimeoutError:
            rows = [f"{row.kind} {str(row.body)[:300]}" for row in await self.site.ledger.rows()]
            shown = self.cluster.run("squeue", "-a", "-t", "all").stdout
            raise AssertionError("\n".join([f"waited for {what}", *rows, shown])) from None

    async def until_state(self, job: int, *states: str) -> None:
        """Until Slurm shows the job in one of these."""

        async def shown() -> bool:
            return self.field(job, "JobState") in states

        await self.until(shown, f"job {job} to be {' or '.join(states)}")

    async def until_running(self, job: int) -> None:
        """Until Slurm shows it running."""
        await self.until_state(job, "RUNNING")

    async def states(self, job: int) -> tuple[AttemptState, ...]:
        """The job's attempts that the ledger knows, newest first."""
        return await self.site.ledger.attempts_of_job("lab", job)

    async def until_attempt(self, job: int) -> None:
        """Until the watcher has seen it run."""
        await self.until(lambda: self.states(job), f"an attempt of job {job}")

    async def detections(self, job: int) -> list[Detection]:
        """What was reported of the job."""
        return [d for d in await self.site.ledger.undelivered(1000) if d.attempt.job_id == job]

    async def until_detected(self, job: int) -> Detection:
        """The job's first detection, once there is one."""
        await self.until(lambda: self.detections(job), f"a detection of job {job}")
        return (await self.detections(job))[0]

    async def ends(self, job: int) -> list[Row]:
        """How the job's attempts ended, oldest first."""
        keys = [str(state.attempt.key) for state in await self.states(job)]
        return [row for row in await self.site.ledger.rows(kind=RowKind.ATTEMPT_ENDED) if row.attempt in keys]

    async def ended(self, job: int) -> Row:
        """How the job's only attempt ended."""
        (row,) = await self.ends(job)
        return row

    async def until_ended(self, job: int) -> Row:
        """The same, looking until it is known."""

        async def known() -> bool:
            await self.look()
            return bool(await self.ends(job))

        await self.until(known, f"the end of job {job}")
        return await self.ended(job)
