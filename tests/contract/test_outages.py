"""Slurm that does not answer: every read is unavailable and never empty, and all is right again afterwards."""

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

import pytest

from relight.clients.slurm import AmbiguousWriteError, Slurm, SlurmUnavailableError
from relight.clients.slurm_commands import SlurmCommands
from relight.clients.slurm_process import LocalRunner
from relight.domain.slurm import JobRecord, JobState, NodeFlag, NodeState
from relight.lab.cluster import Cluster
from relight.lab.ways import Way, service_prefix

pytestmark = pytest.mark.system

READS = ("jobs", "job", "nodes", "node", "facts")


@contextmanager
def outage(begin: Callable[[], None], end: Callable[[], None]) -> Iterator[None]:
    """Something that is undone whatever happens in between."""
    begin()
    try:
        yield
    finally:
        end()


async def nothing_answers(slurm: Slurm, job: JobRecord) -> bool:
    """Check that no read answers, and try to requeue; True where the client cannot know whether that had an effect."""
    reads: list[Awaitable[object]] = [
        slurm.jobs(), slurm.job(job.job_id), slurm.nodes(), slurm.node("n1"), slurm.facts(), slurm.steps(job.job_id),
        slurm.batch_script(job.job_id),
    ]  # fmt: skip
    *told, write = await asyncio.gather(*reads, slurm.requeue(job.job_id), return_exceptions=True)
    assert [error for error in told if not isinstance(error, SlurmUnavailableError)] == []
    assert isinstance(write, SlurmUnavailableError | AmbiguousWriteError)
    return isinstance(write, AmbiguousWriteError)


async def answers_again(site: Any, slurm: Slurm, job: JobRecord, *, ambiguous: bool) -> None:
    """All reads answer, and what certainly was not written has not happened."""

    async def answers() -> bool:
        try:
            known = {node.state for node in await slurm.nodes()} <= {NodeState.IDLE, NodeState.MIXED}
            return known and job.job_id in {found.job_id for found in await slurm.jobs()}
        except SlurmUnavailableError:
            return False

    await site.until(answers, 60)
    now = await slurm.job(job.job_id)
    if not ambiguous:
        assert (now.restarts, now.submit_time) == (job.restarts, job.submit_time)
        assert now.running
    assert (await slurm.facts()).cluster == "lab"


@pytest.mark.operation(*READS, "steps", "batch_script", "requeue")
async def test_slurmctld_restarts(site: Any, slurm: Slurm, cluster: Cluster) -> None:
    """A crashed slurmctld is unavailable; started again it shows the same job, still running."""
    job = await site.running()
    # slurmctld writes its state down every few seconds, if anything has changed since it did so last.
    cluster.run("scontrol", "update", f"JobId={job.job_id}", "Comment=to be remembered")
    changed, saved = time.time(), cluster.folder / "state/job_state"

    async def remembered() -> bool:
        return saved.exists() and saved.stat().st_mtime > changed

    await site.until(remembered)
    with outage(cluster.kill_controller, cluster.start_controller):
        ambiguous = await nothing_answers(slurm, job)
    await answers_again(site, slurm, job, ambiguous=ambiguous)


@pytest.mark.operation(*READS, "steps", "batch_script", "requeue")
async def test_slurmctld_stands_still(site: Any, slurm: Slurm, cluster: Cluster) -> None:
    """Connections are taken and nothing is answered, as on a machine that swaps."""
    job = await site.running()
    with outage(cluster.freeze_controller, cluster.thaw_controller):
        ambiguous = await nothing_answers(slurm, job)
    await answers_again(site, slurm, job, ambiguous=ambiguous)


@pytest.mark.operation("requeue", "cancel")
async def test_a_command_sent_into_silence_is_ambiguous(site: Any, slurm: Slurm, way: Way, cluster: Cluster) -> None:
    """slurmctld stops between address and write: whether Slurm's command gives up first or we do, nobody knows."""
    if way is not Way.COMMANDS:
        pytest.skip("needs a command without the read before it")
    job = await site.running()
    runner, prefix = LocalRunner(slurm_conf=str(cluster.slurm_conf)), service_prefix(cluster)
    hasty = SlurmCommands(runner, run_as=prefix, timeout=timedelta(seconds=1))
    writes = (("scontrol", "requeue", str(job.job_id)), ("scancel", str(job.job_id)))
    with outage(cluster.freeze_controller, cluster.thaw_controller):
        patient = SlurmCommands(runner, run_as=prefix)
        told = await asyncio.gather(
            *(client._write(*write) for client in (hasty, patient) for write in writes), return_exceptions=True
        )
    assert [type(error) for error in told] == [AmbiguousWriteError] * 4
    await answers_again(site, slurm, job, ambiguous=True)


@pytest.mark.operation(*READS, "steps", "batch_script", "requeue")
async def test_munge_is_down(site: Any, slurm: Slurm, cluster: Cluster) -> None:
    """Nobody can say who he is: unavailable, and not forbidden."""
    job = await site.running()
    with outage(cluster.kill_munge, cluster.start_munge):
        ambiguous = await nothing_answers(slurm, job)
    await answers_again(site, slurm, job, ambiguous=ambiguous)


@pytest.mark.operation("node", "nodes", "job", "executions")
async def test_a_lost_node(site: Any, slurm: Slurm, cluster: Cluster) -> None:
    """A killed node is DOWN and not responding, its job requeued by Slurm itself, NODE_FAIL in accounting."""
    job = await site.running("-w", "n4", "--requeue")
    with outage(lambda: cluster.kill_node("n4"), lambda: cluster.start_node("n4")):

        async def lost() -> bool:
            return (await slurm.node("n4")).state is NodeState.DOWN

        await site.until(lost, 60)
        node = await slurm.node("n4")
        assert node.lost
        assert NodeFlag.NOT_RESPONDING in node.flags
        assert (node.reason, node.reason_user) == ("Not responding", "slurm")
        assert node in await slurm.nodes()
        assert (await site.reached(job.job_id, JobState.PENDING)).restarts == 1

        async def accounted() -> bool:
            return JobState.NODE_FAIL in {row.state for row in await slurm.executions(job.job_id)}

        await site.until(accounted)
