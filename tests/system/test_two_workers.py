"""Two controller workers on one task queue and one PostgreSQL ledger: one is killed midway, nothing is doubled."""

import asyncio
import os
import shutil
import tempfile
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
from temporalio.api.enums.v1 import PendingActivityState
from temporalio.client import Client

from relight.activities import contracts as c
from relight.domain.ledger import RowKind
from relight.lab import faults, packages
from relight.lab.chaos_record import What, read_log
from relight.lab.chaos_stack import ChaosStack
from relight.lab.postgres import Postgres
from relight.lab.processes import Process, spawn, wait_until

from .conftest import Lab, check_recovered

pytestmark = [pytest.mark.system, pytest.mark.slow]

JOBS, WATCHERS = 4, 8
AFTER_OUTAGE_S = 240
"""An activity that died with its worker is tried again only when its time is up, after 30 to 120 s."""


@pytest.fixture(scope="module")
def stack() -> Iterator[ChaosStack]:
    """With the ledger in PostgreSQL; several jobs at once are no common cause here."""
    if os.geteuid() != 0 or packages.missing(accounting=True, production=True):
        pytest.skip("needs root and the Slurm packages (relight.lab.packages.ensure)")
    if why := Postgres.lacking():
        pytest.skip(why)
    folder = Path(tempfile.mkdtemp(prefix="relight-sys-", dir="/tmp"))
    folder.chmod(0o755)
    policy = {"breaker": {"nodes": 1000, "jobs": 1000, "failed_restarts": 100, "reversals": 100}}
    stack = ChaosStack(folder, nodes=2 * JOBS, agents_on=0, postgres=True, policy=policy)
    try:
        stack.start()
        yield stack
    finally:
        stack.stop()
        shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture
def second(stack: ChaosStack) -> Iterator[Process]:
    """A second worker, as another service on another machine would be: the same settings, the same ledger."""
    log = stack.folder / "worker-2.log"
    process = spawn(stack._command(), log, stack._environment())
    wait_until(lambda: "watching cluster" in log.read_text() or not process.alive, 60, "the second worker to be ready")
    assert process.alive, log.read_text()
    yield process
    process.kill()


def watchers(lab: Lab) -> dict[str, str]:
    """By name, which worker each of the cluster's watchers runs in now; each is there once."""
    settings = lab.view.settings

    async def ask() -> dict[str, str]:
        client = await Client.connect(settings.temporal.address)
        about = await client.get_workflow_handle(c.watch_id(settings.cluster)).describe()
        pending = about.raw_description.pending_activities
        running = [each for each in pending if each.state == PendingActivityState.PENDING_ACTIVITY_STATE_STARTED]
        names = Counter(each.activity_type.name for each in pending)
        assert set(names.values()) == {1}, names
        return {each.activity_type.name: each.last_worker_identity for each in running}

    return asyncio.run(ask())


def of(process: Process, watching: dict[str, str]) -> list[str]:
    """The watchers that run in that process; Temporal names a worker `PID@host`."""
    return [name for name, identity in watching.items() if identity.partition("@")[0] == str(process.pid)]


def test_one_of_two_workers_is_killed_in_the_middle(lab: Lab, stack: ChaosStack, second: Process) -> None:
    """Each job is requeued once, each watcher runs once, and all of them in the worker that is left."""
    first = stack.worker()
    assert first
    everyone = watchers(lab)
    assert len(everyone) == len(of(first, everyone)) + len(of(second, everyone)) == WATCHERS
    jobs = [lab.train() for _ in range(JOBS)]
    for job in jobs:
        lab.until_step(job)
    for rank, job in enumerate(jobs):
        lab.inject(job, faults.crash(rank=rank % 2))
    lab.until(lambda: any(lab.effects(job) for job in jobs), "the first requeue")
    first.kill()
    assert second.alive
    lab.until(lambda: len(of(second, watchers(lab))) == WATCHERS, "the other worker to watch alone")
    for job in jobs:
        check_recovered(lab, job, lab.outcome(job, AFTER_OUTAGE_S))
        assert len(lab.view.incidents(job)) == 1
        assert len(lab.rows(job, RowKind.DETECTED)) == 1
        assert lab.intents(job).count("requeue") == lab.effects(job).count("requeue") == lab.restarts(job) == 1
    with (stack.cluster.folder / "log/slurmctld.log").open() as log:
        requeued = Counter(deed.job for deed in read_log(log) if deed.what is What.REQUEUE)
    assert requeued == dict.fromkeys(jobs, 1)
