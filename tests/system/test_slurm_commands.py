"""The Slurm client against a real cluster with separate people: a job's owner, Relight's own user (Operator), root."""

import asyncio
import os
import shutil
import signal
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from datetime import timedelta
from pathlib import Path

import pytest

from relight.clients import relight_node
from relight.clients.node_wrapper import NodeWrapper
from relight.clients.slurm import (
    AmbiguousWriteError,
    JobNotFoundError,
    NodeNotFoundError,
    NotPermittedError,
    RefusedError,
    SlurmUnavailableError,
)
from relight.clients.slurm_commands import SlurmCommands
from relight.domain.slurm import JobRecord, JobState, NodeFlag, NodeState
from relight.lab import packages
from relight.lab.cluster import Cluster, ClusterSpec, Profile
from relight.lab.users import USERS

pytestmark = pytest.mark.system

COMMENT = '{"relight": {"mode": "auto"}}\nJobId=1 UserId=root(0) "quoted" \\ ü'
MARK = "relight:recover/lab/7/20261130T092712Z:gpu_fault: Xid 79"


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    """A production-like cluster of four nodes, ended afterwards."""
    if os.geteuid() != 0 or packages.missing(accounting=True, production=True):
        pytest.skip("needs root and the Slurm packages (relight.lab.packages.ensure)")
    folder = Path(tempfile.mkdtemp(prefix="relight-slurm-", dir="/tmp"))
    folder.chmod(0o755)
    cluster = Cluster(ClusterSpec(folder=folder, nodes=4, profile=Profile.PRODUCTION))
    cluster.start()
    try:
        yield cluster
    finally:
        cluster.stop()
        shutil.rmtree(folder, ignore_errors=True)


def as_user(name: str) -> tuple[str, ...]:
    """The prefix that runs a command as that user, in our environment."""
    return ("setpriv", f"--reuid={name}", f"--regid={name}", "--clear-groups")


@pytest.fixture
def slurm(cluster: Cluster) -> SlurmCommands:
    """The client as Relight's service has it."""
    return SlurmCommands(slurm_conf=str(cluster.slurm_conf), run_as=as_user(USERS.service))


@pytest.fixture
async def submit(cluster: Cluster, slurm: SlurmCommands) -> AsyncIterator[Callable[..., int]]:
    """Submits jobs of the owner, and removes them afterwards."""

    def run(script: str, *options: str) -> int:
        return cluster.submit(f"#!/bin/sh\n{script}\n", *options, user=USERS.owner)

    yield run
    cluster.run("scancel", "--user", USERS.owner, check=False)
    await until(lambda: settled(slurm), 60)


async def settled(slurm: SlurmCommands) -> bool:
    """True when nothing runs, waits or completes."""
    live = (JobState.PENDING, JobState.RUNNING, JobState.SUSPENDED)
    return not [job for job in await slurm.jobs() if job.state in live or job.completing]


async def until(ready: Callable[[], Awaitable[bool]], seconds: float = 20) -> None:
    """Wait until `ready`."""
    end = time.monotonic() + seconds
    while not await ready():
        assert time.monotonic() < end, "not in time"
        await asyncio.sleep(0.1)


async def reached(slurm: SlurmCommands, job_id: int, *states: JobState, seconds: float = 20) -> JobRecord:
    """The record once it is in one of the states and completes no longer."""

    async def ready() -> bool:
        job = await slurm.job(job_id)
        return job.state in states and not job.completing

    await until(ready, seconds)
    return await slurm.job(job_id)


async def test_facts(cluster: Cluster, slurm: SlurmCommands) -> None:
    """Version and settings are the cluster's."""
    facts = await slurm.facts()
    assert facts.version.split(".")[0].isdecimal()
    assert facts.min_job_age == timedelta(seconds=300)
    assert facts.slurm_user == "slurm"
    assert facts.accounting_storage


async def test_a_job_from_submission_to_its_end(slurm: SlurmCommands, submit: Callable[..., int]) -> None:
    """All that Relight reads of a job while it runs, when it has failed, and from accounting."""
    job_id = submit(
        "srun sleep 2; exit 3", "-J", "a b", "-N2", "--gres=gpu:2", "--comment", COMMENT, "-x", "n4",
        "-o", "%x-%j-%5j.out", "-t", "10",
    )  # fmt: skip
    job = await reached(slurm, job_id, JobState.RUNNING)
    assert job.running
    assert (job.name, job.comment, job.user) == ("a b", COMMENT, USERS.owner)
    assert len(job.nodes) == 2
    assert job.batch_host == job.nodes[0]
    assert (job.excluded_nodes, job.gres_per_node) == (("n4",), "gpu:2")
    assert job.time_limit == timedelta(minutes=10)
    assert Path(job.stdout).name == f"a b-{job_id}-{job_id:05}.out"
    assert os.path.exists(job.stdout)  # noqa: ASYNC240, PTH110
    assert job in await slurm.jobs()
    assert "srun sleep 2; exit 3" in await slurm.batch_script(job_id)
    job = await reached(slurm, job_id, JobState.FAILED)
    assert (job.exit_code, job.exit_signal) == (3, 0)
    assert job.end_time is not None

    async def accounted() -> bool:
        rows = await slurm.executions(job_id)
        return [row.state for row in rows] == [JobState.FAILED]

    await until(accounted)
    (row,) = await slurm.executions(job_id)
    assert (row.exit_code, row.nodes, row.submit_time) == (3, job.nodes, job.submit_time)


async def test_requeue_exclude_start(slurm: SlurmCommands, submit: Callable[..., int]) -> None:
    """The order of a restart: requeue, exclude while COMPLETING, start when that is over."""
    job_id = submit("sleep 600", "-w", "n1")
    before = await reached(slurm, job_id, JobState.RUNNING)
    with pytest.raises(RefusedError):
        await slurm.exclude(job_id, ("n1",))
    with pytest.raises(RefusedError):
        await slurm.start_now(job_id)
    await slurm.requeue(job_id)
    job = await slurm.job(job_id)
    assert job.completing
    assert (job.restarts, job.submit_time) == (1, before.submit_time)
    assert job.end_time is None
    await slurm.exclude(job_id, ("n3", "n2"))
    job = await reached(slurm, job_id, JobState.PENDING)
    assert (job.reason, job.excluded_nodes) == ("BeginTime", ("n3", "n2"))
    assert job.submit_time > before.submit_time
    with pytest.raises(RefusedError):
        await slurm.requeue(job_id)
    await slurm.exclude(job_id, ())
    assert (await slurm.job(job_id)).excluded_nodes == ()
    with pytest.raises(NodeNotFoundError):
        await slurm.exclude(job_id, ("n77",))
    await asyncio.sleep(2)
    await slurm.start_now(job_id)
    assert (await reached(slurm, job_id, JobState.RUNNING)).restarts == 1


async def test_cancel(slurm: SlurmCommands, submit: Callable[..., int]) -> None:
    """A cancelled job is CANCELLED; cancelling it again changes nothing."""
    job_id = submit("sleep 600")
    await reached(slurm, job_id, JobState.RUNNING)
    await slurm.cancel(job_id)
    await reached(slurm, job_id, JobState.CANCELLED)
    await slurm.cancel(job_id)


async def test_a_task_is_not_its_array(slurm: SlurmCommands, submit: Callable[..., int]) -> None:
    """Requeueing and cancelling the task whose record has the array's own id leaves the others alone."""
    array_id = submit("sleep 600", "-a", "1-3")

    async def running() -> bool:
        tasks = [job for job in await slurm.jobs() if job.array_job_id == array_id]
        return len(tasks) == 3 and all(task.running for task in tasks)

    await until(running)
    tasks = {job.array_task_id: job for job in await slurm.jobs() if job.array_job_id == array_id}
    last = next(task for task in tasks.values() if task.job_id == array_id)
    first = next(task for task in tasks.values() if task.job_id != array_id)
    await slurm.requeue(array_id)
    await reached(slurm, array_id, JobState.PENDING)
    now = {job.array_task_id: job for job in await slurm.jobs() if job.array_job_id == array_id}
    assert {task: job.restarts for task, job in now.items()} == {
        task: int(task == last.array_task_id) for task in tasks
    }
    await slurm.exclude(array_id, ("n1",))
    await slurm.requeue(first.job_id)
    again = await reached(slurm, first.job_id, JobState.PENDING)
    assert (again.array_task_id, again.job_id, again.restarts) == (first.array_task_id, first.job_id, 1)
    assert again.excluded_nodes == ()
    await slurm.cancel(array_id)
    await reached(slurm, array_id, JobState.CANCELLED)
    assert (await slurm.job(first.job_id)).state is JobState.PENDING


async def test_several_pending_tasks_are_refused(slurm: SlurmCommands, submit: Callable[..., int]) -> None:
    """A record that stands for several tasks is not acted on."""
    array_id = submit("sleep 600", "-a", "1-3", "-H")
    with pytest.raises(RefusedError):
        await slurm.cancel(array_id)
    assert (await slurm.job(array_id)).state is JobState.PENDING


async def test_unknown_jobs_and_nodes(slurm: SlurmCommands) -> None:
    """Each call says that there is no such thing."""
    calls: list[Awaitable[object]] = [
        slurm.job(999_999), slurm.requeue(999_999), slurm.exclude(999_999, ("n1",)), slurm.start_now(999_999),
        slurm.cancel(999_999), slurm.batch_script(999_999),
    ]  # fmt: skip
    for call in calls:
        with pytest.raises(JobNotFoundError):
            await call
    with pytest.raises(NodeNotFoundError):
        await slurm.node("n77")
    assert await slurm.executions(999_999) == ()


async def test_rights(cluster: Cluster, slurm: SlurmCommands, submit: Callable[..., int]) -> None:
    """A second researcher may do nothing to the job; Relight's Operator may neither drain nor write AdminComment."""
    job_id = submit("sleep 600")
    await reached(slurm, job_id, JobState.RUNNING)
    other = SlurmCommands(slurm_conf=str(cluster.slurm_conf), run_as=as_user(USERS.other))
    for call in (other.requeue(job_id), other.cancel(job_id), other.batch_script(job_id)):
        with pytest.raises(NotPermittedError):
            await call
    await slurm.requeue(job_id)
    await reached(slurm, job_id, JobState.PENDING)
    for call in (other.exclude(job_id, ("n1",)), other.start_now(job_id)):
        with pytest.raises(NotPermittedError):
            await call
    for change in (("NodeName=n1", "State=DRAIN", "Reason=x"), (f"JobId={job_id}", "AdminComment=x")):
        with pytest.raises(NotPermittedError):
            await slurm._write("scontrol", "update", *change)


async def test_cpu_time(cluster: Cluster, slurm: SlurmCommands, submit: Callable[..., int]) -> None:
    """SlurmUser gets a fresh sample that grows; an Operator is refused and gets None."""
    job_id = submit("srun sh -c 'while :; do :; done'", "-n2")
    await reached(slurm, job_id, JobState.RUNNING)
    assert await slurm.cpu_time(job_id) is None
    with_right = SlurmCommands(slurm_conf=str(cluster.slurm_conf), cpu_time_as=as_user("slurm"))

    async def answered() -> bool:
        return bool(await with_right.cpu_time(job_id))

    await until(answered)
    first = await with_right.cpu_time(job_id)
    await asyncio.sleep(3)
    second = await with_right.cpu_time(job_id)
    assert first is not None
    assert second is not None
    assert second - first >= timedelta(seconds=1)


async def test_a_lost_node(cluster: Cluster, slurm: SlurmCommands, submit: Callable[..., int]) -> None:
    """A killed node is DOWN and not responding, its job requeued by Slurm itself, NODE_FAIL in accounting."""
    job_id = submit("sleep 600", "-w", "n4", "--requeue")
    await reached(slurm, job_id, JobState.RUNNING)
    cluster.kill_node("n4")

    async def lost() -> bool:
        return (await slurm.node("n4")).state is NodeState.DOWN

    await until(lost, 60)
    node = await slurm.node("n4")
    assert node.lost
    assert (node.reason, node.reason_user) == ("Not responding", "slurm")
    job = await reached(slurm, job_id, JobState.PENDING, seconds=60)
    assert job.restarts == 1

    async def accounted() -> bool:
        return JobState.NODE_FAIL in {row.state for row in await slurm.executions(job_id)}

    await until(accounted)
    cluster.start_node("n4")


@pytest.fixture
def wrapper(cluster: Cluster) -> Iterator[NodeWrapper]:
    """The program installed for this cluster, callable by the service's user through sudo and nothing else."""
    program = cluster.folder / "sbin/relight-node"
    program.parent.mkdir(exist_ok=True, mode=0o755)
    shutil.copyfile(relight_node.__file__, program)
    program.chmod(0o755)
    state = cluster.folder / "state-of-wrapper"
    shutil.rmtree(state, ignore_errors=True)
    (cluster.folder / "etc/relight-node.conf").write_text(
        f"slurm_conf = {cluster.slurm_conf}\nstate = {state}/relight-node.json\ndrains_per_hour = 2\n"
    )
    sudoers = Path("/etc/sudoers.d", cluster.folder.name)
    sudoers.write_text(f"{USERS.service} ALL=(root) NOPASSWD: {program}\n")
    sudoers.chmod(0o440)
    try:
        yield NodeWrapper((*as_user(USERS.service), "sudo", "-n", str(program)))
    finally:
        sudoers.unlink()


async def test_drain_through_the_wrapper(cluster: Cluster, slurm: SlurmCommands, wrapper: NodeWrapper) -> None:
    """Drain twice with one effect, hands off what is an administrator's, cap, and back into service."""
    await wrapper.drain("n1", MARK)
    await wrapper.drain("n1", MARK)
    node = await slurm.node("n1")
    assert node.draining
    assert (node.reason, node.reason_user) == (MARK, "root")
    cluster.run("scontrol", "update", "NodeName=n2", "State=DRAIN", "Reason=admin: mine")
    for call in (wrapper.drain("n2", MARK), wrapper.undrain("n2"), wrapper.down("n2", MARK)):
        with pytest.raises(RefusedError):
            await call
    assert (await slurm.node("n2")).reason == "admin: mine"
    with pytest.raises(RefusedError):
        await wrapper.down("n3", MARK)
    await wrapper.drain("n3", MARK)
    with pytest.raises(RefusedError, match="within the last hour"):
        await wrapper.drain("n4", MARK)
    with pytest.raises(NodeNotFoundError):
        await wrapper.drain("n77", MARK)
    for name in ("n1", "n3", "n1"):
        await wrapper.undrain(name)
    cluster.run("scontrol", "update", "NodeName=n2", "State=RESUME")

    async def all_back() -> bool:
        return all(node.eligible and not node.reason for node in await slurm.nodes())

    await until(all_back)


async def test_down_of_a_node_that_cannot_end_its_job(
    slurm: SlurmCommands, wrapper: NodeWrapper, submit: Callable[..., int]
) -> None:
    """A completing node may be set DOWN, which frees the requeued job at once; undrain brings it back."""
    job_id = submit("sleep 600", "-w", "n3")
    await reached(slurm, job_id, JobState.RUNNING)
    await slurm.requeue(job_id)
    assert NodeFlag.COMPLETING in (await slurm.node("n3")).flags
    await wrapper.down("n3", MARK)
    node = await slurm.node("n3")
    assert (node.state, node.reason) == (NodeState.DOWN, MARK)
    await slurm.cancel(job_id)
    await wrapper.undrain("n3")

    async def back() -> bool:
        return (await slurm.node("n3")).eligible

    await until(back, 30)


async def test_sudo_gives_nothing_else(cluster: Cluster, wrapper: NodeWrapper) -> None:
    """Another user may not use the wrapper, and the service's user may not use another program."""
    program = wrapper._command[-1]
    with pytest.raises(NotPermittedError):
        await NodeWrapper((*as_user(USERS.other), "sudo", "-n", program)).undrain("n1")
    with pytest.raises(NotPermittedError):
        await NodeWrapper((*as_user(USERS.service), "sudo", "-n", "/usr/bin/scontrol")).undrain("n1")


async def test_slurmctld_that_stands_still(
    cluster: Cluster, slurm: SlurmCommands, wrapper: NodeWrapper, submit: Callable[..., int]
) -> None:
    """Every read is unavailable within its time, never empty; a write is ambiguous; all is well afterwards."""
    job_id = submit("sleep 600")
    await reached(slurm, job_id, JobState.RUNNING)
    patient = SlurmCommands(slurm_conf=str(cluster.slurm_conf), run_as=as_user(USERS.service))
    hasty = SlurmCommands(
        slurm_conf=str(cluster.slurm_conf), run_as=as_user(USERS.service), timeout=timedelta(seconds=1)
    )
    hasty._version = await patient._parsed(
        lambda text: (22, 5) if " 22.05" in text else (24, 11), "scontrol", "--version"
    )
    pid = int((cluster.folder / "run/slurmctld.pid").read_text())
    os.kill(pid, signal.SIGSTOP)
    try:
        for client, limit in ((hasty, 2.5), (patient, 15)):
            reads: list[Awaitable[object]] = [
                client.jobs(), client.job(job_id), client.nodes(), client.node("n1"), client.facts(),
                client.batch_script(job_id),
            ]  # fmt: skip
            for read in reads:
                began = time.monotonic()
                with pytest.raises(SlurmUnavailableError):
                    await read
                assert time.monotonic() - began < limit
            for write in (("scontrol", "requeue", str(job_id)), ("scancel", str(job_id))):
                with pytest.raises(AmbiguousWriteError):
                    await client._write(*write)
        with pytest.raises(SlurmUnavailableError):
            await wrapper.drain("n1", MARK)
    finally:
        os.kill(pid, signal.SIGCONT)

    async def answers() -> bool:
        try:
            return job_id in {job.job_id for job in await slurm.jobs()}
        except SlurmUnavailableError:
            return False

    await until(answers)
