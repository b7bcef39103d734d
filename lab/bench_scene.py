"""What the detection benchmark's trials work with: jobs that come to grief, agents, and slurmctld's hook."""

import asyncio
import json
import shlex
import shutil
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from itertools import count
from pathlib import Path
from random import Random
from typing import NamedTuple

from relight.clients import relight_hook
from relight.domain.attempts import AttemptKey
from relight.domain.reports import agent_token
from relight.lab import bench_job
from relight.lab.agents import NodeAgent, start_agents
from relight.lab.bench_seen import Seen, wait_for
from relight.lab.cluster import Cluster
from relight.lab.processes import WaitTimeoutError
from relight.workers.ingest import HOOK

BEAT_S = 5.0
"""An agent's beat, as it ships."""
SEEN_WITHIN_S = 60.0
"""For a job to start and to be seen; it may have to wait for a free core."""
HEALTHY_S = 7200.0
SLURMD_TIMEOUT_S = 300
"""Slurm's default. In the lab's own setting Slurm itself finds a dead node within seconds, as it does nowhere else."""


class Plan(NamedTuple):
    """What a job does (`bench_job`)."""

    do: str
    """`nothing`, `crash`, `fatal`, `hang` or `slow`."""
    step_s: float
    at_step: int = 0
    """The step in which it happens."""
    stay_s: float = HEALTHY_S
    """For so long it stays after it, when nobody ends it."""
    factor: float = 1.0
    """How many times its usual step time it takes from then on."""
    text: str = ""
    """The line that it prints."""

    @property
    def runs_s(self) -> float:
        """How long it runs before it happens."""
        return self.step_s * self.at_step


class Job(NamedTuple):
    """A job that was submitted."""

    id: int
    plan: Plan
    truth: Path

    def times(self) -> list[datetime]:
        """What it has written down."""
        text = self.truth.read_text() if self.truth.exists() else ""
        return [datetime.fromtimestamp(float(line), UTC) for line in text.splitlines()]

    async def fault(self) -> datetime | None:
        """When it happened; None when it did not come to it."""
        # On a busy machine each step takes a little longer.
        return await wait_for(lambda: next(iter(self.times()), None), 1.5 * self.plan.runs_s + 30)


class Scene:
    """What the trials work with.

    Args:
        cluster: runs, with a worker that watches it.
        seen: follows that worker's ledger.
        agents: of all nodes.
        connect: the ingest endpoint's address and the key of the agents' tokens.
        rng: draws the trials.
    """

    def __init__(
        self, cluster: Cluster, seen: Seen, agents: dict[str, NodeAgent], connect: tuple[str, bytes], rng: Random
    ) -> None:
        """Nothing has been submitted yet."""
        self.cluster = cluster
        self.seen = seen
        self.agents = agents
        self.rng = rng
        self.faults: dict[int, datetime] = {}
        """By job, when its first fault happened: what was detected before was a false alarm."""
        self._connect = connect
        self._numbers = count(1)
        self._folder = cluster.make_run_folder("trials")

    @asynccontextmanager
    async def job(self, plan: Plan, *where: str) -> AsyncIterator[Job]:
        """A job that ends with the block; `where` are options of sbatch."""
        name = f"trial-{next(self._numbers):04}"
        truth = self._folder / f"{name}.truth"
        words = json.dumps({**plan._asdict(), "seed": name, "truth": str(truth)})
        command = shlex.join([sys.executable, "-ISu", bench_job.__file__, words])
        options = (f"--job-name={name}", "--no-requeue", f"--output={self._folder}/{name}.out", *where)
        submitted = asyncio.to_thread(self.cluster.submit, f"#!/bin/sh\nexec {command}\n", *options)
        job = Job(await submitted, plan, truth)
        try:
            yield job
        finally:
            await asyncio.to_thread(self.cluster.run, "scancel", "--quiet", str(job.id), check=False)

    async def seen_running(self, job: Job) -> AttemptKey:
        """Wait until Relight knows the job.

        Raises:
            WaitTimeoutError: it does not, in time.
        """
        key = await self.seen.attempt(job.id, SEEN_WITHIN_S)
        if key is None:
            raise WaitTimeoutError(f"job {job.id} was not seen running within {SEEN_WITHIN_S:g} s")
        return key

    async def happened(self, job: Job) -> datetime:
        """Wait until the job has come to grief.

        Raises:
            WaitTimeoutError: it has not, in time.
        """
        at = await job.fault()
        if at is None:
            raise WaitTimeoutError(f"job {job.id} did not come to step {job.plan.at_step}")
        self.faults[job.id] = at
        return at

    async def start_agent(self, node: str) -> None:
        """Start a node's agent anew."""
        url, key = self._connect
        started = await asyncio.to_thread(start_agents, self.cluster, url, key, nodes=[node], beat_s=BEAT_S)
        self.agents.update(started)


class Hook:
    """`relight-hook` as EpilogSlurmctld, behind a switch."""

    def __init__(self, folder: Path, url: str, key: bytes) -> None:
        """Install it, switched off."""
        for name in ("sbin", "etc"):
            (folder / name).mkdir(parents=True)
        hook, token = folder / "sbin/relight-hook", folder / "etc/token"
        shutil.copy(relight_hook.__file__, hook)
        token.touch(mode=0o600)
        token.write_text(agent_token(key, HOOK))
        (folder / "etc/relight-hook.conf").write_text(f"url = {url}\ntoken_file = {token}\n")
        self._on = folder / "on"
        self.program = folder / "sbin/switch"
        self.program.write_text(f"#!/bin/sh\n[ -e {self._on} ] || exit 0\nexec {hook}\n")
        for program in (hook, self.program):
            program.chmod(0o755)

    def switch(self, *, on: bool) -> None:
        """Let it tell, or not."""
        if on:
            self._on.touch()
        else:
            self._on.unlink()


def configure(cluster: Cluster, hook: Hook) -> None:
    """Give slurmctld the hook and the default SlurmdTimeout; it takes up the first when it is restarted."""
    lines = [line for line in cluster.slurm_conf.read_text().splitlines() if not line.startswith("SlurmdTimeout=")]
    lines += [f"SlurmdTimeout={SLURMD_TIMEOUT_S}", f"EpilogSlurmctld={hook.program}"]
    cluster.slurm_conf.write_text("\n".join(lines) + "\n")
    cluster.kill_controller()
    cluster.start_controller()
