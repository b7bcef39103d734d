"""What detection costs the controller worker: cores and memory, by part, by size, and all together.

The worker runs as it ships, in a process of its own, with a real Temporal server and real Slurm commands; what is
pretended is said in `WHAT`. Its time is that of all its processes, Slurm's commands included; the load's is not.
"""

import shutil
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from subprocess import SubprocessError
from typing import Any

import psutil

from relight.lab import temporal
from relight.lab.bench_cost_measure import Measure, Point
from relight.lab.cluster import Cluster
from relight.lab.processes import WaitTimeoutError, marked
from relight.lab.spec import ClusterSpec
from relight.lab.stack import StackError

FULL_S = 60.0
"""How long a full load is measured."""
JOBS_PER_ARRAY = 1000
GOAL = {"cores": 1.0, "rss_mib": 500.0}

WHAT = (
    "The controller worker as it ships; its cores and its memory (the largest sum of resident sets) are those of all "
    "its processes, Slurm's commands included; worker_mib is the worker's own. Logs are real files, ten lines a second "
    "each. Agents speak HTTP, each over a connection of its own, or relayed, 50 beats at once; a beat is of eight "
    "GPUs, every 5 s. slurmctld is real and has as many pending jobs and defined nodes as stated. Pretended are the "
    "records of the running jobs that write the logs. Ten more logs get a fatal line each: how soon it is noted shows "
    "whether the worker keeps up. The load comes from other processes on the same machine and is not counted."
)
POINTS = (
    Point("idle"),
    Point("logs", logs=250),
    Point("logs", logs=500),
    Point("logs", logs=1000),
    Point("logs", logs=2000, seconds=FULL_S),
    Point("agents", agents=1000),
    Point("agents", agents=5000),
    Point("agents", agents=10_000, seconds=FULL_S),
    Point("agents, relayed", agents=10_000, seconds=FULL_S, relayed=True),
    Point("slurm", slurm=1000, seconds=30.0),
    Point("slurm", slurm=10_000, seconds=FULL_S),
    Point("all", logs=2000, agents=10_000, slurm=10_000, seconds=FULL_S, relayed=True),
)


def measure(cost: dict[str, Any], say: Callable[[str], None], points: Sequence[Point] = POINTS) -> None:
    """Measure each point, and put it into `cost` at once.

    Raises:
        ClusterError, TemporalError: when what is needed cannot be started. A point that fails says so in its place.
    """
    told: list[dict[str, Any]] = []
    cost |= {"what": WHAT, "goal": GOAL, "points": told}
    folder = Path(tempfile.mkdtemp(prefix="relight-cost-"))
    try:
        server = temporal.start(folder / "temporal")
        for size in dict.fromkeys(point.slurm for point in points):
            with _cluster(folder / f"slurm-{size}", size, say) as cluster:
                for point in (each for each in points if each.slurm == size):
                    say(f"cost of {point.part}: {point.logs} logs, {point.agents} agents, {point.slurm} jobs and nodes")
                    told.append(_told(point, Measure(folder / str(len(told)), cluster, server), told))
                    say(f"cost of {point.part}: {told[-1]['cores']} cores, {told[-1]['rss_mib']} MiB")
    finally:
        if running := temporal.load(folder / "temporal"):
            running.stop()
        for process in [*marked(folder), *marked(folder / "temporal")]:
            process.kill()
        shutil.rmtree(folder, ignore_errors=True)


def _told(point: Point, measure: Measure, before: Sequence[dict[str, Any]]) -> dict[str, Any]:
    told: dict[str, Any] = {**point._asdict(), "cores": None, "rss_mib": None}
    try:
        told |= measure.take(point)
    except (WaitTimeoutError, StackError, psutil.Error, SubprocessError, OSError) as error:
        return told | {"why": f"{type(error).__name__}: {error}"}
    idle = next((each["cores"] for each in before if each["part"] == "idle"), None)
    if idle is not None and point.part not in ("idle", "all"):
        each = (told["cores"] - idle) / max(point.logs, point.agents, point.slurm)
        told["core_us_each"] = round(1e6 * each, 1)
    return told


@contextmanager
def _cluster(folder: Path, size: int, say: Callable[[str], None]) -> Iterator[Cluster]:
    """A real cluster of one node that runs, with so many more that are defined and so many pending jobs."""
    cluster = Cluster(ClusterSpec(folder=folder, nodes=1, defined_nodes=size))
    try:
        cluster.start()
        if size:
            with cluster.slurm_conf.open("a") as conf:
                conf.write(f"MaxJobCount={2 * size + 1000}\n")
            cluster.kill_controller()
            cluster.start_controller()
            fill(cluster, size)
        say(f"a cluster with {size} pending jobs and {size} defined nodes")
        yield cluster
    finally:
        cluster.stop()


def fill(cluster: Cluster, jobs: int) -> None:
    """Make so many pending jobs, each with a record of its own, as if each had been submitted alone.

    They come as arrays, in no time; a task that is changed by itself (its name, to what it was) is split off.
    """
    for first in range(0, jobs, JOBS_PER_ARRAY):
        last = min(JOBS_PER_ARRAY, jobs - first) - 1
        options = ("--hold", f"--array=0-{last}", "--job-name=train", "--gres=gpu:8", "--time=1-0")
        array = cluster.submit("#!/bin/sh\nexec sleep 1\n", *options, '--comment={"relight":{"mode":"auto"}}')
        if last:
            cluster.run("scontrol", "update", f"JobId={array}_[1-{last}]", "Name=train")
