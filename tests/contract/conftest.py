"""One real cluster with separate people, and one client per way: `commands`, `ssh`, `pyslurm`.

Each test names the operations it proves by `@pytest.mark.operation(...)`. With RELIGHT_CONTRACT_RESULTS set to a file's
name, what became of them is written there as JSON, per way: `passed`, `failed`, or `skipped: ` and the reason.
"""

import asyncio
import json
import os
import re
import shutil
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from relight.clients.slurm import Slurm
from relight.domain.slurm import JobRecord, JobState
from relight.lab import packages
from relight.lab.cluster import Cluster, ClusterSpec, Profile
from relight.lab.errors import WayMissingError
from relight.lab.node_wrapper import install_wrapper, remove_wrapper
from relight.lab.processes import wait_until
from relight.lab.users import USERS
from relight.lab.ways import Way, open_way

EPILOG_S = 1.5
"""Long enough for a job to be seen COMPLETING, short enough for some fifty jobs."""
PATIENCE_S = 90.0
"""A job cancelled while it is launched misses its SIGTERM, and its node is free only after KillWait, 30 s here."""
RESULTS = "RELIGHT_CONTRACT_RESULTS"

_version = pytest.StashKey[str]()
_outcomes = pytest.StashKey[dict[str, dict[str, str]]]()


@pytest.fixture(scope="session")
def cluster(request: pytest.FixtureRequest) -> Iterator[Cluster]:
    """A production-like cluster of four nodes with `relight-node` and its leave by sudo, ended afterwards."""
    if os.geteuid() != 0 or packages.missing(accounting=True, production=True):
        pytest.skip("needs root and the Slurm packages (relight.lab.packages.ensure)")
    folder = Path(tempfile.mkdtemp(prefix="relight-contract-", dir="/tmp"))
    folder.chmod(0o755)
    cluster = Cluster(ClusterSpec(folder=folder, nodes=4, profile=Profile.PRODUCTION, epilog_s=EPILOG_S))
    cluster.start()
    install_wrapper(cluster)
    _restart_cleanly(cluster)  # writes what 26.05 wants to find after a crash
    told = re.search(r"SLURM_VERSION\s*=\s*(\S+)", cluster.run("scontrol", "show", "config").stdout)
    request.config.stash[_version] = told[1] if told else ""
    try:
        yield cluster
    finally:
        remove_wrapper(cluster)
        cluster.stop()
        shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture(scope="session", params=(Way.COMMANDS, Way.SSH, Way.PYSLURM), ids=str)
def way(request: pytest.FixtureRequest) -> Way:
    """The way under test."""
    return Way(request.param)


@pytest.fixture(scope="session")
async def slurm(way: Way, cluster: Cluster) -> AsyncIterator[Slurm]:
    """The client as Relight's service has it: an ordinary user with Slurm's Operator level."""
    try:
        async with open_way(way, cluster) as client:
            yield client
    except WayMissingError as error:
        pytest.skip(str(error))


def _restart_cleanly(cluster: Cluster) -> None:
    if process := cluster._daemons.known("slurmctld"):
        process.end()
    cluster.start_controller()
    # On 24.11 a node is UNKNOWN until it has registered again, and cannot be resumed.
    wait_until(lambda: "unknown" not in (cluster.node_states() or {"": "unknown"}).values(), 60, "nodes to register")


@pytest.fixture(scope="session")
def restart_cleanly() -> Callable[[Cluster], None]:
    """Restarts slurmctld, as an upgrade does; it reads its settings anew."""
    return _restart_cleanly


class Site:
    """The cluster as its people use it; what a test submitted is cancelled after it."""

    def __init__(self, cluster: Cluster, slurm: Slurm) -> None:
        self.cluster = cluster
        self.slurm = slurm
        self._jobs: list[int] = []

    def submit(self, script: str, *options: str) -> int:
        """Queue a small batch job of the owner's."""
        job_id = self.cluster.submit(f"#!/bin/sh\n{script}\n", "--mem=100", *options, user=USERS.owner)
        self._jobs.append(job_id)
        return job_id

    async def running(self, *options: str, script: str = "sleep 600") -> JobRecord:
        """A job of the owner's that runs."""
        return await self.reached(self.submit(script, *options), JobState.RUNNING)

    async def reached(self, job_id: int, *states: JobState, seconds: float = PATIENCE_S) -> JobRecord:
        """The record once it is in one of the states and completes no longer."""
        seen: list[JobRecord] = []

        async def ready() -> bool:
            seen.append(await self.slurm.job(job_id))
            return seen[-1].state in states and not seen[-1].completing

        await self.until(ready, seconds, lambda: seen[-1])
        return seen[-1]

    async def until(
        self,
        ready: Callable[[], Awaitable[bool]],
        seconds: float = PATIENCE_S,
        last: Callable[[], object] | None = None,
    ) -> None:
        """Wait until `ready`; a failure tells what was seen last."""
        end = time.monotonic() + seconds
        while not await ready():
            assert time.monotonic() < end, f"not in time: {last() if last else ''}"
            await asyncio.sleep(0.1)

    def clean(self) -> None:
        """Cancel what was submitted."""
        if self._jobs:
            self.cluster.run("scancel", "--quiet", *map(str, self._jobs), check=False)


@pytest.fixture
def site(cluster: Cluster, slurm: Slurm) -> Iterator[Site]:
    """See `Site`."""
    site = Site(cluster, slurm)
    yield site
    site.clean()


def pytest_configure(config: pytest.Config) -> None:
    """Make the marker known."""
    config.addinivalue_line("markers", "operation(*names): the operations of the contract that the test proves")
    config.stash[_outcomes] = {}


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Any:
    """Note what became of each operation; one failure outweighs every success, one success every skip."""
    report: pytest.TestReport = yield
    way = getattr(item, "callspec", None) and item.callspec.params.get("way")  # type: ignore[attr-defined]
    if way is None or (report.passed and report.when != "call"):
        return report
    told = "failed" if report.failed else "passed" if report.passed else f"skipped: {_reason(report)}"
    known = item.config.stash[_outcomes].setdefault(str(way), {})
    for mark in item.iter_markers("operation"):
        for name in mark.args:
            known[name] = max(known.get(name, told), told, key=_weight)
    return report


def _reason(report: pytest.TestReport) -> str:
    where = report.longrepr
    return str(where[2]).removeprefix("Skipped: ") if isinstance(where, tuple) else str(where)


def _weight(told: str) -> int:
    return {"failed": 2, "passed": 1}.get(told, 0)


def pytest_sessionfinish(session: pytest.Session) -> None:
    """Write the results where they are wanted."""
    if (file := os.environ.get(RESULTS)) and session.config.stash[_outcomes]:
        found = {"slurm": session.config.stash.get(_version, ""), "ways": session.config.stash[_outcomes]}
        Path(file).write_text(json.dumps(found, indent=2) + "\n")
