"""How soon each kind of interruption is found, how often a healthy job is accused, and what it costs.

Printed, never asserted; what goes wrong is counted and named.

The trials run on a real Slurm cluster with a real Temporal server, the controller worker that ships, in mode `monitor`,
and a node agent on each node; all of it shares this machine.
"""

import asyncio
import os
import platform
import shutil
import subprocess
import tempfile
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator
from contextlib import AsyncExitStack, contextmanager
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from random import Random
from typing import Any

from pydantic import BaseModel, ConfigDict, Field

from relight.config.settings import load
from relight.lab import bench_cost, replay, temporal
from relight.lab import bench_trials as trials
from relight.lab.agents import start_agents, stop_agents
from relight.lab.bench_detection_report import NAMED, Kind, Trial, kinds, summary, wrong
from relight.lab.bench_scene import BEAT_S, SLURMD_TIMEOUT_S, Hook, Plan, Scene, configure
from relight.lab.bench_seen import Seen, seen_by
from relight.lab.cluster import Cluster
from relight.lab.machine import slurm_version
from relight.lab.replay_jobs import healthy_job
from relight.lab.stack import Stack, StackError, StackSpec
from relight.lab.temporal import TemporalError
from relight.workers.ingest import open_key

JOB_NODES, GPU_NODES, SILENT_NODES = 3, 2, 4
"""For small jobs, sixteen on each; for Xids; for power cuts."""
AT_ONCE = {Kind.CRASH: 4, Kind.FATAL_LINE: 10, Kind.HANG: 16, Kind.STRAGGLER: 8}
"""Trials at the same time: with the healthy jobs no more than `JOB_NODES` have cores for, and all kinds end together.

Of crashes only a few: an incident each, more often than one in three seconds, would measure the incidents' own load.
"""
HEALTHY = 4
"""Jobs that run beside the trials for as long as these last."""
WITH_HOOK = "with_hook"
REPLAYED_HOURS, REPLAYED_JOBS_AT_ONCE = 5.0, 20
TELL_EVERY_S = 15.0


class Order(BaseModel):
    """What to measure."""

    model_config = ConfigDict(frozen=True)

    kinds: tuple[Kind, ...] = tuple(Kind)
    trials: int = Field(default=60, ge=1)
    """Of each kind."""
    job_hours: float = Field(default=1000, ge=0)
    """Healthy ones, replayed through the models."""
    cost: bool = True
    seed: int = 1


class Measured:
    """What is known so far; an interruption leaves it as it is."""

    def __init__(self) -> None:
        """Nothing has been measured."""
        self.trials: list[Trial] = []
        self.alarms: list[str] = []
        self.look_s: dict[str, Any] = {}
        """Seconds from one look of the worker at all jobs to the next."""
        self.beside_h = 0.0
        self.replayed_h = 0.0
        self.cost: dict[str, Any] = {}
        self.interrupted = False
        self.failed: dict[str, str] = {}
        """By step, why it came to no end."""
        self.took_s: dict[str, float] = {}


def measure(order: Order, say: Callable[[str], None]) -> dict[str, Any]:
    """Measure all of it, and return the numbers with their conditions.

    Ctrl-C ends it with those there are. A step for which something cannot be started, or breaks, is told in `failed`.
    """
    conditions, measured = _conditions(order), Measured()
    steps: list[tuple[str, Callable[[], None]]] = [
        ("trials", partial(_trials, order, measured, say)),
        ("replay", partial(_replay, order, measured, say)),
        ("cost", partial(bench_cost.measure, measured.cost, say) if order.cost else lambda: None),
    ]
    try:
        for name, step in steps:
            began = time.monotonic()
            try:
                step()
            except (*trials.BROKEN, StackError, TemporalError, ExceptionGroup) as error:
                measured.failed[name] = repr(error)
                say(f"{name}: {error!r}")
            measured.took_s[name] = round(time.monotonic() - began, 1)
    except KeyboardInterrupt:
        measured.interrupted = True
        say("interrupted: what was measured so far is told")
    return _result(measured, conditions)


def _result(measured: Measured, conditions: dict[str, Any]) -> dict[str, Any]:
    went_wrong = wrong(measured.trials)
    return {
        "kinds": kinds(measured.trials),
        "false_alarms": len(measured.alarms),
        "false_alarms_of": measured.alarms[:NAMED],
        "healthy_job_hours": round(measured.replayed_h + measured.beside_h, 2),
        "healthy": {"replayed": measured.replayed_h, "beside": round(measured.beside_h, 2)},
        "cost": measured.cost,
        "wrong": went_wrong[:NAMED],
        "wrong_count": len(went_wrong),
        "interrupted": measured.interrupted,
        "failed": measured.failed,
        "conditions": {**conditions, "look_at_jobs_s": measured.look_s, "took_s": measured.took_s},
    }


# The trials


def _trials(order: Order, measured: Measured, say: Callable[[str], None]) -> None:
    if not order.kinds:
        return
    with _stack(say) as stack, seen_by(stack.config) as seen:
        asyncio.run(_on_stage(stack, seen, order, measured, say))


@contextmanager
def _stack(say: Callable[[str], None]) -> Iterator[Stack]:
    folder = Path(tempfile.mkdtemp(prefix="relight-bench-"))
    folder.chmod(0o755)
    nodes = JOB_NODES + GPU_NODES + SILENT_NODES
    stack = Stack(StackSpec(folder=folder, nodes=nodes, agents=True, policy={"mode": "monitor"}))
    try:
        stack.start(say)
        stop_agents(stack.agents)
        yield stack
    finally:
        stack.stop()
        shutil.rmtree(folder, ignore_errors=True)


async def _on_stage(stack: Stack, seen: Seen, order: Order, measured: Measured, say: Callable[[str], None]) -> None:
    settings = load(stack.config, environment={})
    url, key = f"http://{settings.ingest.listen}", open_key(settings.ingest_key)
    hook = Hook(stack.folder / "hook", url, key)
    configure(stack.cluster, hook)
    agents = start_agents(stack.cluster, url, key, beat_s=BEAT_S)
    scene = Scene(stack.cluster, seen, agents, (url, key), Random(order.seed))
    say(f"{len(agents)} node agents with a beat of {BEAT_S:g} s; Slurm's SlurmdTimeout is {SLURMD_TIMEOUT_S} s")
    began = datetime.now(UTC)
    try:
        async with asyncio.TaskGroup() as group, AsyncExitStack() as beside:
            around = [group.create_task(seen.follow()), group.create_task(_tell(order, measured, say))]
            for _ in range(HEALTHY):
                await beside.enter_async_context(scene.job(Plan("nothing", 0.5), _small(stack.cluster)))
            await asyncio.gather(*(_acts(scene, hook, order.trials, measured.trials)[kind]() for kind in order.kinds))
            await seen.look()
            for task in around:
                task.cancel()
    finally:
        measured.look_s = summary(seen.periods())
        measured.beside_h += HEALTHY * (datetime.now(UTC) - began).total_seconds() / 3600
        measured.alarms += _false_alarms(scene)


def _small(cluster: Cluster) -> str:
    """The option of sbatch that keeps small jobs off the nodes on which something will happen."""
    return f"--exclude={','.join(cluster.spec.node_names[JOB_NODES:])}"


def _acts(scene: Scene, hook: Hook, number: int, done: list[Trial]) -> dict[Kind, Callable[[], Awaitable[object]]]:
    """What to do for each kind."""
    where, names = _small(scene.cluster), scene.cluster.spec.node_names
    gpu_nodes, silent = names[JOB_NODES : JOB_NODES + GPU_NODES], names[JOB_NODES + GPU_NODES :]

    async def crashes() -> None:
        await trials.many(Kind.CRASH, number, AT_ONCE[Kind.CRASH], partial(trials.crash, scene, where), done)
        hook.switch(on=True)
        hooked = partial(trials.crash, scene, where, WITH_HOOK)
        await trials.many(Kind.CRASH, number, AT_ONCE[Kind.CRASH], hooked, done)
        hook.switch(on=False)

    async def xids() -> None:
        times = iter(range(number))
        # All eyes of the agents are open by then.
        await asyncio.sleep(2 * BEAT_S)
        await asyncio.gather(*(trials.xids(scene, node, times, done) for node in gpu_nodes))

    async def silences() -> None:
        times, turn = iter(range(number)), asyncio.Lock()
        await asyncio.gather(*(trials.power_cuts(scene, node, turn, times, done) for node in silent))

    def side_by_side(kind: Kind, one: Callable[[Scene, str], Awaitable[Trial]]) -> Callable[[], Awaitable[None]]:
        return lambda: trials.many(kind, number, AT_ONCE[kind], partial(one, scene, where), done)

    return {
        Kind.CRASH: crashes,
        Kind.FATAL_LINE: side_by_side(Kind.FATAL_LINE, trials.fatal_line),
        Kind.NODE_SILENT: silences,
        Kind.XID: xids,
        Kind.HANG: side_by_side(Kind.HANG, trials.hang),
        Kind.STRAGGLER: side_by_side(Kind.STRAGGLER, trials.straggler),
    }


async def _tell(order: Order, measured: Measured, say: Callable[[str], None]) -> None:
    """Say how far it is, again and again."""
    began = time.monotonic()
    while True:
        await asyncio.sleep(TELL_EVERY_S)
        tried = Counter(trial.kind for trial in measured.trials if trial.ran)
        # Crashes once without the hook, once with it.
        wanted = {kind: order.trials * (2 if kind is Kind.CRASH else 1) for kind in order.kinds}
        far = ", ".join(f"{kind} {tried[kind]}/{number}" for kind, number in wanted.items())
        say(f"{time.monotonic() - began:.0f} s: {far}")


def _false_alarms(scene: Scene) -> list[str]:
    """Detections on jobs to which nothing had happened yet."""
    found = []
    for job, detections in scene.seen.detections.items():
        fault = scene.faults.get(job)
        early = [d for d in detections if fault is None or d.detected_at < fault]
        found += [f"job {job}: {d.kind}: {d.evidence[0].text if d.evidence else d.id}" for d in early]
    return found


# Healthy jobs


def _replay(order: Order, measured: Measured, say: Callable[[str], None]) -> None:
    """Healthy jobs that never ran: phases, buffers, file systems that lag, faster than time."""
    jobs = round(order.job_hours / REPLAYED_HOURS)
    for first in range(0, jobs, REPLAYED_JOBS_AT_ONCE):
        seeds = range(first, min(first + REPLAYED_JOBS_AT_ONCE, jobs))
        told = replay.healthy((healthy_job(order.seed * 1_000_000 + seed) for seed in seeds), REPLAYED_HOURS)
        measured.replayed_h += told["healthy_job_hours"]
        measured.alarms += [f"replayed job {seed}: {alarm}" for seed, alarm in told["false_alarms_of"]]
        say(f"replayed {measured.replayed_h:.0f} healthy job-hours; false alarms so far: {len(measured.alarms)}")


# Conditions


def _conditions(order: Order) -> dict[str, Any]:
    return {
        "at": datetime.now(UTC).isoformat(timespec="seconds"),
        "cores": os.cpu_count(),
        "load_1m": round(os.getloadavg()[0], 2),
        "slurm": ".".join(f"{part:02}" for part in slurm_version()),
        "temporal": _temporal_version(),
        "python": platform.python_version(),
        "seed": order.seed,
        "at_once": {kind.value: number for kind, number in AT_ONCE.items()} | {"healthy": HEALTHY},
        "agents_beat_s": BEAT_S,
        "slurmd_timeout_s": SLURMD_TIMEOUT_S,
        "all_on_one_machine": True,
        "gpus": "none: NVML is a stand-in, read by the real pynvml",
        "jobs": "step printers that sleep, one core each; step times vary by 2 %",
    }


def _temporal_version() -> str:
    done = subprocess.run([str(temporal.binary()), "--version"], capture_output=True, text=True, check=False)
    return " ".join(done.stdout.split())
