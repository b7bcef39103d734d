"""relight-hook, run by a real slurmctld: the end of a job is found at its word, although the next look is far away."""

import asyncio
import os
import shutil
import tempfile
from collections.abc import AsyncIterator, Iterator
from contextlib import suppress
from pathlib import Path

import pytest
from temporalio.testing import ActivityEnvironment

from relight.activities import contracts as c
from relight.activities.ingest import Ingest
from relight.activities.watch import Watch
from relight.clients import relight_hook
from relight.config.settings import IngestSettings
from relight.domain.evidence import Interruption
from relight.domain.reports import agent_token
from relight.lab import packages
from relight.lab.cluster import Cluster, ClusterSpec, Profile
from relight.lab.processes import wait_until
from relight.workers.ingest import HOOK, open_key, serving

from .bare import FAR_AWAY, PATIENCE_S, Bare, bare_site

pytestmark = [
    pytest.mark.system,
    pytest.mark.skipif(os.geteuid() != 0, reason="slurmctld runs as a user of its own, which needs root"),
    pytest.mark.skipif(bool(packages.missing(accounting=True, production=True)), reason="needs the Slurm packages"),
]


@pytest.fixture(scope="module")
def folder() -> Iterator[Path]:
    """Reached by SlurmUser too."""
    path = Path(tempfile.mkdtemp(prefix="relight-hook-", dir="/tmp"))
    path.chmod(0o755)
    yield path
    shutil.rmtree(path, ignore_errors=True)


@pytest.fixture(scope="module")
def cluster(folder: Path) -> Iterator[Cluster]:
    """A production-like cluster whose slurmctld runs the hook."""
    cluster = Cluster(ClusterSpec(folder=folder / "lab", nodes=2, profile=Profile.PRODUCTION, epilog_s=2))
    try:
        cluster.start()
        install(cluster, folder)
        yield cluster
    finally:
        cluster.stop()


def install(cluster: Cluster, folder: Path) -> None:
    """As the hook's own text says; slurmctld takes up an EpilogSlurmctld when it is restarted."""
    for name in ("sbin", "etc"):
        (folder / name).mkdir()
    program = folder / "sbin/relight-hook"
    shutil.copy(relight_hook.__file__, program)
    program.chmod(0o755)
    with cluster.slurm_conf.open("a") as conf:
        conf.write(f"EpilogSlurmctld={program}\n")
    cluster.kill_controller()
    cluster.start_controller()


@pytest.fixture
async def bare(cluster: Cluster, folder: Path) -> AsyncIterator[Bare]:
    """The watcher, whose next look by itself is an hour away, and the endpoint that the hook tells."""
    with bare_site(cluster) as site:
        watch = Watch(site, period=FAR_AWAY)
        ingest = Ingest(site, watch.nudge)
        key = folder / "ingest.key"
        async with serving(IngestSettings(listen="127.0.0.1:0"), key, ingest) as bound:
            assert bound is not None
            token = folder / "etc/relight-hook.token"
            token.write_text(agent_token(open_key(key), HOOK))
            token.chmod(0o600)
            shutil.chown(token, "slurm")
            (folder / "etc/relight-hook.conf").write_text(f"url = http://127.0.0.1:{bound[1]}\ntoken_file = {token}\n")
            yield Bare(cluster, site, watch)


async def test_the_end_of_a_job_is_found_at_the_hooks_word(bare: Bare) -> None:
    """At that time it is still COMPLETING, and on 22.05 its state is hidden: accounting knows it."""
    job = bare.submit("sleep 3; exit 3")
    await bare.until_running(job)
    task = asyncio.create_task(ActivityEnvironment().run(bare.watch.watch_jobs, c.WatchInput(cluster="lab")))
    try:
        await bare.until_attempt(job)
        detection = await bare.until_detected(job)
    finally:
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task
    assert detection.kind is Interruption.CRASH
    # Found before Slurm was done with the job: its epilog takes two seconds.
    assert "COMPLETING" in (await bare.ended(job)).body["record"]["flags"]


async def test_a_dead_endpoint_holds_up_nothing(cluster: Cluster, folder: Path) -> None:
    """The hook ends by itself, and the job with it."""
    token = folder / "etc/relight-hook.token"
    token.write_text("0123456789abcdef" * 4)
    token.chmod(0o600)
    shutil.chown(token, "slurm")
    (folder / "etc/relight-hook.conf").write_text(f"url = http://127.0.0.1:1\ntoken_file = {token}\n")
    job = cluster.submit("#!/bin/sh\ntrue\n", "--output=/dev/null", user=cluster.users.owner)
    done = {"COMPLETED"}
    await asyncio.to_thread(
        wait_until, lambda: cluster.job_field(job, "JobState") in done, PATIENCE_S, f"job {job} to be COMPLETED"
    )
