"""One controller worker under one load, and what that costs it."""

import asyncio
import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, NamedTuple

import psutil
import yaml

from relight.config.settings import load
from relight.domain.attempts import AttemptKey
from relight.lab.bench_cost_worker import FIRST_JOB, Load
from relight.lab.bench_detection_report import summary
from relight.lab.bench_load import log_file
from relight.lab.bench_seen import Seen, seen_by
from relight.lab.bench_trials import FATAL_LINES
from relight.lab.cluster import Cluster
from relight.lab.ports import claimed_ports
from relight.lab.processes import MARK, spawn, wait_until
from relight.lab.stack import StackError
from relight.lab.temporal import TemporalServer
from relight.workers.ingest import open_key

CURVE_S = 20.0
"""How long a point of a curve is measured."""
SETTLE_S = 12.0
"""Before it: two beats of each agent, and what the start left to be caught up."""
READY_WITHIN_S = 240.0
"""For all attempts to be seen, and for their logs to be read."""
LOOK_EVERY_S = 1.0
SAMPLED = 40
"""Jobs of which it is asked whether their logs have been read."""
CANARIES = 10
"""Further logs, each of which gets one fatal line: how soon it is noted shows whether the worker keeps up."""
NOTED_WITHIN_S = 15.0


class Point(NamedTuple):
    """One load."""

    part: str
    logs: int = 0
    agents: int = 0
    slurm: int = 0
    """Pending jobs and defined nodes, so many of each."""
    seconds: float = CURVE_S
    relayed: bool = False
    """Whether the agents' beats come in batches, by relays."""


class Measure:
    """One worker, with a ledger of its own, under one load."""

    def __init__(self, folder: Path, cluster: Cluster, server: TemporalServer) -> None:
        """Nothing runs yet."""
        self._folder = folder
        self._cluster = cluster
        self._server = server
        with claimed_ports(1) as self._port:
            pass

    def take(self, point: Point) -> dict[str, Any]:
        """Put the load on it, let it settle, and measure for as long as the point says."""
        logs = self._folder / "logs"
        logs.mkdir(parents=True)
        config = self._configure()
        with ExitStack() as running:
            generators = {}
            if point.logs:
                for number in range(point.logs + 1, point.logs + 1 + CANARIES):
                    log_file(logs, number).write_text("loading checkpoint shards\n")
                generators["logs"] = running.enter_context(_generator("logs", str(logs), str(point.logs)))
                wait_until(log_file(logs, point.logs).exists, 30, "the logs to be there", 0.2)
            # Agents need nodes: those beyond what the cluster has are pretended.
            running_jobs = point.logs + CANARIES if point.logs else 0
            pretended = Load(running=running_jobs, nodes=max(0, point.agents - point.slurm), logs=logs)
            worker = running.enter_context(self._worker(config, pretended))
            if point.agents:
                key = load(config, environment={}).ingest_key
                open_key(key)
                words = ("127.0.0.1", str(self._port), str(key), str(point.agents))
                how = "relayed" if point.relayed else "beats"
                generators["beats"] = running.enter_context(_generator(how, *words))
            seen = running.enter_context(seen_by(config))
            numbers = asyncio.run(_watched(worker, seen, point, logs))
            return numbers | {f"load_{name}": _ended(one) for name, one in generators.items()}

    def _configure(self) -> Path:
        config = self._folder / "relight.yaml"
        settings = {
            "cluster": f"cost-{self._folder.name}",
            "data": str(self._folder / "relight"),
            "temporal": {"address": self._server.address},
            "slurm": {"way": "commands", "conf": str(self._cluster.slurm_conf)},
            "ingest": {"listen": f"127.0.0.1:{self._port}"},
        }
        config.write_text(yaml.safe_dump(settings))
        return config

    @contextmanager
    def _worker(self, config: Path, pretended: Load) -> Iterator[psutil.Process]:
        log = self._folder / "worker.log"
        own = {name: value for name, value in os.environ.items() if not name.startswith("RELIGHT_")}
        environment = own | {"RELIGHT_CONFIG": str(config), MARK: str(self._folder.parent)}
        command = [sys.executable, "-m", "relight.lab.bench_cost_worker", pretended.model_dump_json()]
        process = spawn(command, log, environment)
        try:
            wait_until(lambda: "watching cluster" in log.read_text() or not process.alive, 60, "the worker to be ready")
            if not process.alive:
                raise StackError(f"the worker ended at once: {log.read_text()[-500:]}")
            yield psutil.Process(process.pid)
        finally:
            process.end()


@contextmanager
def _generator(*words: str) -> Iterator["subprocess.Popen[str]"]:
    command = [sys.executable, "-m", "relight.lab.bench_load", *words]
    # Not ended by the Ctrl-C that ends us: we do.
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, start_new_session=True)
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


def _ended(generator: "subprocess.Popen[str]") -> dict[str, Any]:
    """End it and return what it says to have done."""
    generator.terminate()
    said, _ = generator.communicate(timeout=30)
    return dict(json.loads(said or "{}"))


async def _watched(worker: psutil.Process, seen: Seen, point: Point, logs: Path) -> dict[str, Any]:
    """Wait until the load is on the worker, then measure."""
    if not point.logs:
        await asyncio.sleep(SETTLE_S)
        return await _over(worker, point.seconds)
    lacking = await _until_followed(seen, point.logs + CANARIES)
    await asyncio.sleep(SETTLE_S)
    canaries = range(point.logs + 1, point.logs + 1 + CANARIES)
    apart = point.seconds / CANARIES
    numbers, *noted = await asyncio.gather(
        _over(worker, point.seconds),
        *(
            _noted(seen, key, log_file(logs, number), index * apart)
            for index, number in enumerate(canaries)
            if (key := seen.attempts.get(FIRST_JOB + number))
        ),
    )
    return {**numbers, "fatal_line": summary(noted)} | ({"why": lacking} if lacking else {})


async def _until_followed(seen: Seen, number: int) -> str:
    """Wait until all jobs are seen, and steps of some of them are known; returns what is lacking after a long time."""
    deadline = time.monotonic() + READY_WITHIN_S
    waiting: list[AttemptKey] = []
    while len(seen.attempts) < number or waiting:
        if time.monotonic() > deadline:
            return f"before, {len(seen.attempts)} of {number} jobs were seen, {len(waiting)} of {SAMPLED} logs not read"
        await asyncio.sleep(1)
        await seen.look()
        keys = [key for _, key in sorted(seen.attempts.items())][: number - CANARIES]
        some = keys[:: max(1, len(keys) // SAMPLED)]
        waiting = [key for key in some if await seen.last_step_at(key) is None]
    return ""


async def _noted(seen: Seen, key: AttemptKey, file: Path, delay: float) -> float | None:
    """How long it takes until a fatal line, written so much later, is noted."""
    await asyncio.sleep(delay)
    with file.open("a") as log:
        log.write(f"{FATAL_LINES[0]}\n")
    written = datetime.now(UTC)
    while datetime.now(UTC) - written < timedelta(seconds=NOTED_WITHIN_S):
        await asyncio.sleep(LOOK_EVERY_S)
        if at := await seen.fatal_line_at(key):
            return max(0.0, (at - written).total_seconds())
    return None


async def _over(worker: psutil.Process, seconds: float) -> dict[str, Any]:
    """Cores and memory over so many seconds; memory is the largest of several looks."""
    before, began = spent(worker), time.monotonic()
    own, all_of_it = [], []
    while (left := began + seconds - time.monotonic()) > 0:
        await asyncio.sleep(min(left, LOOK_EVERY_S))
        own.append(resident([worker]))
        all_of_it.append(resident(_family(worker)))
    cores = (spent(worker) - before) / (time.monotonic() - began)
    return {
        "cores": round(cores, 3),
        "rss_mib": round(max(all_of_it), 1),
        "worker_mib": round(max(own), 1),
        "load_1m": round(os.getloadavg()[0], 2),
    }


def _family(process: psutil.Process) -> list[psutil.Process]:
    return [process, *process.children(recursive=True)]


def spent(process: psutil.Process) -> float:
    """CPU seconds, user and system, of a process, of all it has started and of those that it has outlived."""
    total = 0.0
    for each in _family(process):
        with suppress(psutil.NoSuchProcess):
            times = each.cpu_times()
            total += times.user + times.system + times.children_user + times.children_system
    return total


def resident(processes: Sequence[psutil.Process]) -> float:
    """MiB that they hold, as far as they run now."""
    total = 0
    for each in processes:
        with suppress(psutil.NoSuchProcess):
            total += each.memory_info().rss
    return total / 2**20
