"""How long the ways to Slurm take on a cluster of many nodes and many pending jobs. Printed, never asserted."""

import asyncio
import os
import platform
import shutil
import tempfile
import time
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any, TypeVar

from pydantic import BaseModel, ConfigDict, Field
from rich.console import Group
from rich.table import Table
from rich.text import Text

from relight.clients.slurm import Slurm, SlurmError
from relight.config.settings import Way
from relight.lab.cluster import Cluster, ClusterSpec
from relight.lab.errors import ClusterError, WayMissingError
from relight.lab.ways import open_way

T = TypeVar("T")

MOST_JOBS = 9_000
"""slurmctld's MaxJobCount is 10,000 where slurm.conf does not say."""
MOST_NODES = 5_000
WARM_UP = 3
"""Rounds before the counted ones: connections, caches, code that is imported at its first use."""
SUBMITTERS = 4
"""Concurrent sbatch processes; more of them gain nothing on two cores."""
GOALS = {
    Way.PYSLURM: {"read_ms": 50, "mutate_ms": 10},
    Way.COMMANDS: {"read_ms": 300, "mutate_ms": 60},
    Way.SSH: {"read_ms": 400},
}
"""Medians in milliseconds that are to be reached at 1,000 jobs and 1,000 nodes; a read is all jobs and all nodes."""

JOB = """\
#!/bin/sh
#SBATCH --job-name=train --nodes=1 --gres=gpu:8 --time=1-00:00:00 --output=%x-%j.out
#SBATCH --comment={"relight":{"mode":"auto"}}
exec sleep 1
"""


class Load(BaseModel):
    """What is on the cluster, and how often it is measured."""

    model_config = ConfigDict(frozen=True)

    jobs: int = Field(ge=1, le=MOST_JOBS)
    """Pending ones. Every job is held, so none starts."""
    nodes: int = Field(ge=1, le=MOST_NODES)
    """One of them runs; slurmctld knows the others from slurm.conf alone."""
    repeat: int = Field(ge=1)
    """Counted rounds for each way."""


def measure(ways: Sequence[Way], load: Load, say: Callable[[str], None]) -> dict[str, Any]:
    """Start a cluster, fill it, measure each way, end it; return the numbers with their conditions.

    Raises:
        ClusterError: when the cluster cannot be started or filled. A way that fails is told in the result.
    """
    conditions = _machine()
    with _cluster(load.nodes, say) as cluster:
        return asyncio.run(_measure(cluster, ways, load, say)) | {"machine": conditions}


@contextmanager
def _cluster(nodes: int, say: Callable[[str], None]) -> Iterator[Cluster]:
    folder = Path(tempfile.mkdtemp(prefix="relight-bench-"))
    folder.chmod(0o755)
    cluster = Cluster(ClusterSpec(folder=folder, nodes=1, defined_nodes=nodes - 1))
    try:
        say(f"starting a cluster; nodes: {nodes}, of which one runs")
        cluster.start()
        yield cluster
    finally:
        cluster.stop()
        shutil.rmtree(folder, ignore_errors=True)


async def _measure(cluster: Cluster, ways: Sequence[Way], load: Load, say: Callable[[str], None]) -> dict[str, Any]:
    async with open_way(Way.COMMANDS, cluster) as slurm:
        try:
            version = (await slurm.facts()).version
            begun = time.perf_counter()
            job_ids = await _submit(slurm, str(cluster.work_folder()), load.jobs)
        except SlurmError as error:
            raise ClusterError(f"the jobs could not be submitted: {error}") from error
    submit_s = time.perf_counter() - begun
    say(f"held jobs submitted: {load.jobs}, in {submit_s:.1f} s")
    say(f"each way: {WARM_UP} rounds that are not counted, then {load.repeat} that are")
    return {
        "slurm": version,
        **load.model_dump(),
        "warm_up": WARM_UP,
        "submit_s": round(submit_s, 2),
        "ways": {way.value: await _way(way, cluster, job_ids, load, say) for way in ways},
    }


async def _submit(slurm: Slurm, work_dir: str, jobs: int) -> list[int]:
    """Submit separate jobs: the pending tasks of an array are one record until something tells them apart."""
    left = iter(range(jobs))

    async def submit_in_turn() -> list[int]:
        return [await slurm.submit_batch(JOB, work_dir, held=True) for _ in left]

    parts = await asyncio.gather(*(submit_in_turn() for _ in range(SUBMITTERS)))
    return sorted(job_id for part in parts for job_id in part)


async def _way(
    way: Way, cluster: Cluster, job_ids: Sequence[int], load: Load, say: Callable[[str], None]
) -> dict[str, Any]:
    """The numbers of one way as far as it came, and why it came no further."""
    numbers: dict[str, Any] = {}
    try:
        async with open_way(way, cluster) as slurm:
            say(f"{way}: reading")
            numbers["read_ms"] = await _reads(slurm, load)
            say(f"{way}: changing")
            numbers["mutate_ms"] = await _mutations(slurm, job_ids, load.repeat)
    except WayMissingError as error:
        numbers["missing"] = str(error)
    except (SlurmError, ClusterError) as error:
        numbers["failed"] = f"{type(error).__name__}: {error}"
    for reason in _reasons(way, numbers):
        say(reason)
    return numbers


def _reasons(way: str, numbers: Mapping[str, Any]) -> list[str]:
    return [f"{way}: {word}: {numbers[word]}" for word in ("missing", "failed") if word in numbers]


async def _reads(slurm: Slurm, load: Load) -> dict[str, Any]:
    """Read all jobs and all nodes alternately; `n`, `p50` and `max` at the top are of both reads together."""
    spent: dict[str, list[float]] = {"jobs": [], "nodes": []}
    for _ in range(WARM_UP + load.repeat):
        jobs = await _timed(slurm.jobs, spent["jobs"])
        nodes = await _timed(slurm.nodes, spent["nodes"])
        if (len(jobs), len(nodes)) != (load.jobs, load.nodes):
            raise ClusterError(f"read {len(jobs)} jobs and {len(nodes)} nodes of {load.jobs} and {load.nodes}")
    both = [sum(pair) for pair in zip(*spent.values(), strict=True)]
    return _summaries(both[WARM_UP:], spent)


async def _mutations(slurm: Slurm, job_ids: Sequence[int], repeat: int) -> dict[str, Any]:
    """Exclude a node from a held job and set its start time, one job after the other.

    `n`, `p50` and `max` at the top are of single changes of either kind.
    """
    names = [node.name for node in await slurm.nodes()]
    spent: dict[str, list[float]] = {"exclude": [], "start_now": []}
    excluded: dict[int, tuple[str, ...]] = {}
    for number in range(WARM_UP + repeat):
        job_id, node = job_ids[number % len(job_ids)], names[number % len(names)]
        await _timed(partial(slurm.exclude, job_id, (node,)), spent["exclude"])
        await _timed(partial(slurm.start_now, job_id), spent["start_now"])
        excluded[job_id] = (node,)
    seen = {job.job_id: job.excluded_nodes for job in await slurm.jobs()}
    if wrong := [job_id for job_id, nodes in excluded.items() if seen.get(job_id) != nodes]:
        raise ClusterError(f"the exclusions of {len(wrong)} of {len(excluded)} jobs were not changed")
    return _summaries([ms for values in spent.values() for ms in values[WARM_UP:]], spent)


def _summaries(totals: Sequence[float], spent: Mapping[str, Sequence[float]]) -> dict[str, Any]:
    return summary(totals) | {name: summary(values[WARM_UP:]) for name, values in spent.items()}


async def _timed(call: Callable[[], Awaitable[T]], spent: list[float]) -> T:
    """Await a call, and add the milliseconds that it took."""
    begun = time.perf_counter()
    result = await call()
    spent.append((time.perf_counter() - begun) * 1000)
    return result


def summary(milliseconds: Sequence[float]) -> dict[str, Any]:
    """How many values, their median and their maximum."""
    return {"n": len(milliseconds), "p50": round(median(milliseconds), 2), "max": round(max(milliseconds), 2)}


def measured(result: Mapping[str, Any]) -> bool:
    """Whether there are numbers of at least one way, and none of them failed."""
    ways = result["ways"].values()
    return any("read_ms" in way for way in ways) and not any("failed" in way for way in ways)


def report(result: Mapping[str, Any]) -> Group:
    """The numbers for people, with the goals beside them and the conditions below."""
    machine = result["machine"]
    conditions = (
        f"{machine['cores']} cores, load {machine['load_1m']} before it began, Python {machine['python']}. "
        f"{result['warm_up']} rounds came before the {result['repeat']} that count. "
        "Goals are for the median at 1000 jobs and 1000 nodes."
    )
    reasons = [Text(line) for way, numbers in result["ways"].items() for line in _reasons(way, numbers)]
    return Group(_table(result), *reasons, Text(conditions))


def _table(result: Mapping[str, Any]) -> Table:
    shown = Table(title=f"Slurm {result['slurm']}, jobs: {result['jobs']}, nodes: {result['nodes']}; milliseconds")
    shown.add_column("way")
    shown.add_column("what")
    for name in ("n", "p50", "max", "goal"):
        shown.add_column(name, justify="right")
    for way, numbers in result["ways"].items():
        _add_way(shown, Way(way), numbers)
    return shown


def _add_way(shown: Table, way: Way, numbers: Mapping[str, Any]) -> None:
    for kind, total in (("read_ms", "read both"), ("mutate_ms", "one change")):
        told = numbers.get(kind, {})
        parts = {name: part for name, part in told.items() if isinstance(part, Mapping)}
        verb = "read " if kind == "read_ms" else ""
        for name, part in parts.items():
            shown.add_row(way, verb + name, *_cells(part))
        if told:
            goal = GOALS[way].get(kind)
            shown.add_row(way, total, *_cells(told), f"≤ {goal}" if goal else "", style="bold")


def _cells(numbers: Mapping[str, Any]) -> tuple[str, str, str]:
    return str(numbers["n"]), f"{numbers['p50']:.1f}", f"{numbers['max']:.1f}"


def _machine() -> dict[str, Any]:
    return {
        "cores": os.cpu_count(),
        "load_1m": round(os.getloadavg()[0], 2),
        "python": platform.python_version(),
        "at": datetime.now(UTC).isoformat(timespec="seconds"),
    }
