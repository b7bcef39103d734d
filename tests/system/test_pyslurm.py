"""PySlurm against real clusters: tells what the commands tell, changes one job alone, and says what it cannot know."""

import asyncio
import os
import shutil
import signal
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path

import pytest
from pydantic import BaseModel

from relight.clients.slurm import (
    AmbiguousWriteError,
    JobNotFoundError,
    NodeNotFoundError,
    NotPermittedError,
    RefusedError,
    SlurmUnavailableError,
)
from relight.clients.slurm_commands import SlurmCommands
from relight.clients.slurm_process import LocalRunner
from relight.clients.slurm_pyslurm import PySlurm, why_missing
from relight.domain.slurm import JobFlag, JobRecord, JobState
from relight.lab import packages, state
from relight.lab.cluster import Cluster, ClusterSpec, Profile
from relight.lab.users import USERS
from relight.lab.way_pyslurm import open_pyslurm, pyslurm_python
from relight.lab.ways import as_user, service_prefix

pytestmark = pytest.mark.system

COMMENT = '{"relight": {"mode": "auto"}}\nJobId=1 UserId=root(0) "quoted" \\ ü'
SLEEP = "#!/bin/sh\nsleep 600\n"
Submit = Callable[..., int]


@contextmanager
def running(profile: Profile) -> Iterator[Cluster]:
    """A cluster of four nodes, ended afterwards; skipped with the reason where there cannot be one."""
    if why := why_missing(pyslurm_python()):
        pytest.skip(why)
    production = profile is Profile.PRODUCTION
    if lacking := packages.missing(accounting=production, production=production):
        pytest.skip(f"these packages are missing: {' '.join(lacking)} (relight.lab.packages.ensure)")
    if production and os.geteuid() != 0:
        pytest.skip("needs root: separate users")
    folder = Path(tempfile.mkdtemp(prefix="relight-pyslurm-", dir="/tmp"))
    folder.chmod(0o755)
    cluster = Cluster(ClusterSpec(folder=folder, nodes=4, profile=profile))
    cluster.start()
    try:
        yield cluster
    finally:
        cluster.stop()
        shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    """A production-like cluster."""
    with running(Profile.PRODUCTION) as cluster:
        yield cluster


@pytest.fixture
async def slurm(cluster: Cluster) -> AsyncIterator[PySlurm]:
    """The client as Relight's service has it."""
    async with open_pyslurm(cluster) as slurm:
        assert isinstance(slurm, PySlurm)
        yield slurm


@pytest.fixture
def commands(cluster: Cluster) -> SlurmCommands:
    """The commands of the same principal."""
    return SlurmCommands(LocalRunner(slurm_conf=str(cluster.slurm_conf)), run_as=service_prefix(cluster))


@pytest.fixture
async def other(cluster: Cluster) -> AsyncIterator[PySlurm]:
    """The client of a second researcher."""
    conf, prefix = str(cluster.slurm_conf), as_user(USERS.other)
    own = SlurmCommands(LocalRunner(slurm_conf=conf), run_as=prefix)
    slurm = PySlurm(own, python=pyslurm_python(), slurm_conf=conf, run_as=prefix)
    yield slurm
    await slurm.close()


@pytest.fixture
async def submit(cluster: Cluster, slurm: PySlurm) -> AsyncIterator[Submit]:
    """Submits jobs of the owner, and removes them afterwards."""

    def run(*options: str, script: str = SLEEP) -> int:
        return cluster.submit(script, *options, user=USERS.owner)

    yield run
    cluster.run("scancel", "--user", USERS.owner, check=False)

    async def settled() -> bool:
        ended = [job for job in await slurm.jobs() if job.state is not JobState.PENDING and not job.nodes]
        return all(job in ended or (job.end_time and not job.completing) for job in await slurm.jobs())

    await until(settled, 60)


async def until(ready: Callable[[], Awaitable[bool]], seconds: float = 20) -> None:
    """Wait until `ready`."""
    end = time.monotonic() + seconds
    while not await ready():
        assert time.monotonic() < end, "not in time"
        await asyncio.sleep(0.1)


async def reached(slurm: PySlurm, job_id: int, *states: JobState, seconds: float = 20) -> JobRecord:
    """The record once it is in one of the states and completes no longer."""

    async def ready() -> bool:
        job = await slurm.job(job_id)
        return job.state in states and not job.completing

    await until(ready, seconds)
    return await slurm.job(job_id)


def differences(own: Sequence[BaseModel], theirs: Sequence[BaseModel]) -> list[tuple[object, ...]]:
    """Job id, field, and what each of two lists of records has there, where they differ."""
    assert len(own) == len(theirs)
    pairs = [(mine.model_dump(), their.model_dump()) for mine, their in zip(own, theirs, strict=True)]
    return [
        (mine["job_id"], field, mine[field], their[field])
        for mine, their in pairs
        for field in mine
        if mine[field] != their[field]
    ]


async def array_of(slurm: PySlurm, array_id: int) -> dict[int | None, JobRecord]:
    """Array task to its record."""
    return {job.array_task_id: job for job in await slurm.jobs() if job.array_job_id == array_id}


async def test_records_equal_those_of_the_commands(
    cluster: Cluster, slurm: PySlurm, commands: SlurmCommands, submit: Submit
) -> None:
    """Jobs of every kind, as one list and one by one; nodes; facts; scripts; steps."""
    first = submit("-J", "None", "-N2", "--gres=gpu:2", "-o", "%x-%j-%5j.out", "-t", "10", "--comment", COMMENT)
    await reached(slurm, first, JobState.RUNNING)
    jobs = [
        first,
        submit("-J", "None", "-d", f"singleton,afterok:{first}"),
        submit("-d", f"afterany:{first}?afternotok:{first}", "-x", "n4,n1"),
        submit("-J", "--all", "-w", "n3,n2", "-N2", "-H", "--no-requeue"),
        submit("-a", "0-2%1", "-e", "%A_%a.err"),
        submit("-a", "0", "-H"),
        submit("-J", 'x" JobState=FAILED\n$(id)', "--begin=now+1hour"),
        submit("-o", r"R_\%j.o", "-n3", "-H"),
        submit("-J", os.fsdecode(b"x\xff\xfey"), "-H"),
    ]
    for options in (("-a", "0-3", "-n1"), ("-N3", "-n6"), ("-a", "0", "-n2")):
        cluster.run("scancel", str(submit(*options, "-H")))
    het = submit("-n1", ":", "-n1", "-w", "n3")
    jobs += [het, het + 1, submit("-o", "f.out", script="#!/bin/sh\nexit 3\n")]
    await reached(slurm, jobs[-1], JobState.FAILED)
    await reached(slurm, het + 1, JobState.RUNNING)

    assert differences(await slurm.jobs(), await commands.jobs()) == []
    for job_id in jobs:
        assert await slurm.job(job_id) == await commands.job(job_id)
        assert await slurm.batch_script(job_id) == await commands.batch_script(job_id)
        assert await slurm.steps(job_id) == await commands.steps(job_id)
    told = await slurm.job(first)
    assert (told.name, told.comment, told.user) == ("None", COMMENT, USERS.owner)
    cluster.run("scontrol", "update", "NodeName=n4", "State=DRAIN", 'Reason=it, "says": ü')
    try:
        assert await slurm.nodes() == await commands.nodes()
        assert await slurm.node("n4") == await commands.node("n4")
    finally:
        cluster.run("scontrol", "update", "NodeName=n4", "State=RESUME")
    assert await slurm.facts() == await commands.facts()


async def test_steps_of_a_job_that_runs(slurm: PySlurm, commands: SlurmCommands, submit: Submit) -> None:
    """The batch script and each srun, under the names that the commands print."""
    script = "#!/bin/sh\nsrun -N2 sleep 600 &\nsrun -N1 -n1 --overlap sleep 600\n"
    for job_id in (submit("-N2", script=script), submit("-N2", "-a", "3", script=script)):

        async def begun(job_id: int = job_id) -> bool:
            return len(await slurm.steps(job_id)) == 3

        await until(begun)
        steps = await slurm.steps(job_id)
        assert sorted(steps, key=str) == sorted(await commands.steps(job_id), key=str)
        name = (await slurm.job(job_id)).display_id
        assert {step.step_id for step in steps} == {f"{name}.batch", f"{name}.0", f"{name}.1"}


async def test_a_comment_of_60_kb(cluster: Cluster, slurm: PySlurm, commands: SlurmCommands, submit: Submit) -> None:
    """Where Slurm takes it, both tell all of it; where it does not, the other jobs are told as ever."""
    job_id = submit("-H")
    cluster.run("scontrol", "update", f"JobId={job_id}", f"Comment={'ü' * 30_000}", user=USERS.owner, check=False)
    job = await slurm.job(job_id)
    assert job == await commands.job(job_id)
    assert job.comment in {"", "ü" * 30_000}


async def test_the_order_of_a_restart(slurm: PySlurm, submit: Submit) -> None:
    """Requeue, exclude while COMPLETING, start when that is over; each refused where Slurm refuses it."""
    job_id = submit("-w", "n1")
    before = await reached(slurm, job_id, JobState.RUNNING)
    with pytest.raises(RefusedError):
        await slurm.exclude(job_id, ("n1",))
    with pytest.raises(RefusedError):
        await slurm.start_now(job_id)
    await slurm.requeue(job_id)
    job = await slurm.job(job_id)
    assert job.completing
    assert (job.state, job.restarts, job.submit_time) == (JobState.UNKNOWN, 1, before.submit_time)
    assert job.end_time is None
    await slurm.exclude(job_id, ("n3", "n2"))
    job = await reached(slurm, job_id, JobState.PENDING)
    assert (job.reason, set(job.excluded_nodes)) == ("BeginTime", {"n2", "n3"})
    assert job.submit_time > before.submit_time
    with pytest.raises(RefusedError):
        await slurm.requeue(job_id)
    await slurm.hold(job_id)
    assert (await slurm.job(job_id)).reason == "JobHeldAdmin"
    await slurm.release(job_id)
    await slurm.exclude(job_id, ())
    assert (await slurm.job(job_id)).excluded_nodes == ()
    with pytest.raises(NodeNotFoundError):
        await slurm.exclude(job_id, ("n77",))
    await asyncio.sleep(2)  # Slurm's own rule: started in the second of its requeue, a job fails
    await slurm.start_now(job_id)
    assert (await reached(slurm, job_id, JobState.RUNNING)).restarts == 1
    await slurm.cancel(job_id)
    await reached(slurm, job_id, JobState.CANCELLED)
    await slurm.cancel(job_id)
    rows = await slurm.executions(job_id)
    assert len(rows) == 2


async def test_a_task_is_not_its_array(slurm: PySlurm, submit: Submit) -> None:
    """Every change to the task whose record has the array's own id leaves the others alone."""
    array_id = submit("-a", "0-2")

    async def all_run() -> bool:
        tasks = await array_of(slurm, array_id)
        return set(tasks) == {0, 1, 2} and all(task.running for task in tasks.values())

    await until(all_run)
    tasks = await array_of(slurm, array_id)
    assert tasks[2].job_id == array_id
    await slurm.requeue(array_id)
    await reached(slurm, array_id, JobState.PENDING)
    await slurm.exclude(array_id, ("n1",))
    await slurm.hold(array_id)
    now = await array_of(slurm, array_id)
    assert [now[task].restarts for task in (0, 1, 2)] == [0, 0, 1]
    assert [now[task].excluded_nodes for task in (0, 1, 2)] == [(), (), ("n1",)]
    assert [now[task].reason == "JobHeldAdmin" for task in (0, 1, 2)] == [False, False, True]
    await slurm.release(array_id)
    await slurm.cancel(array_id)
    await reached(slurm, array_id, JobState.CANCELLED)
    now = await array_of(slurm, array_id)
    assert [now[task].running for task in (0, 1)] == [True, True]
    await slurm.cancel(tasks[0].job_id)
    await reached(slurm, tasks[0].job_id, JobState.CANCELLED)
    assert (await slurm.job(tasks[1].job_id)).running


async def test_several_pending_tasks_are_refused(slurm: PySlurm, submit: Submit) -> None:
    """A record that stands for several tasks is not acted on."""
    array_id = submit("-a", "1-3", "-H")
    for call in (slurm.cancel(array_id), slurm.release(array_id), slurm.exclude(array_id, ("n1",))):
        with pytest.raises(RefusedError):
            await call
    assert (await slurm.job(array_id)).state is JobState.PENDING


async def test_a_heterogeneous_job_is_changed_as_by_the_commands(slurm: PySlurm, submit: Submit) -> None:
    """By its leader's id as a whole; another component's requeue is refused."""
    leader = submit("-H", "-n1", ":", "-n1")
    await slurm.exclude(leader, ("n1",))
    await slurm.hold(leader)
    parts = [await slurm.job(leader), await slurm.job(leader + 1)]
    assert [(part.excluded_nodes, part.reason) for part in parts] == [(("n1",), "JobHeldAdmin")] * 2
    await slurm.release(leader)
    await reached(slurm, leader + 1, JobState.RUNNING)
    with pytest.raises(RefusedError):
        await slurm.requeue(leader + 1)
    await slurm.requeue(leader)
    for part in (leader, leader + 1):
        assert (await reached(slurm, part, JobState.PENDING)).restarts == 1
    await slurm.cancel(leader)
    for part in (leader, leader + 1):
        await reached(slurm, part, JobState.CANCELLED)


async def test_unknown_jobs_and_nodes(slurm: PySlurm) -> None:
    """Each call says that there is no such thing."""
    calls: list[Awaitable[object]] = [
        slurm.job(999_999), slurm.steps(999_999), slurm.requeue(999_999), slurm.exclude(999_999, ("n1",)),
        slurm.exclude(999_999, ()), slurm.start_now(999_999), slurm.hold(999_999), slurm.release(999_999),
        slurm.cancel(999_999), slurm.batch_script(999_999),
    ]  # fmt: skip
    for call in calls:
        with pytest.raises(JobNotFoundError):
            await call
    with pytest.raises(NodeNotFoundError):
        await slurm.node("n77")


async def test_rights(slurm: PySlurm, other: PySlurm, submit: Submit) -> None:
    """A second researcher may do nothing to the job, and still everything to his own, the refusals notwithstanding."""
    job_id = submit()
    await reached(slurm, job_id, JobState.RUNNING)
    own = await other.submit_batch(SLEEP, "/tmp", held=True)
    for call in (other.requeue(job_id), other.batch_script(job_id), other.cancel(job_id)):
        with pytest.raises(NotPermittedError):
            await call
    await slurm.requeue(job_id)
    await reached(slurm, job_id, JobState.PENDING)
    for call in (other.exclude(job_id, ("n1",)), other.start_now(job_id), other.hold(job_id), other.cancel(job_id)):
        with pytest.raises(NotPermittedError):
            await call
    await other.cancel(own)
    assert (await slurm.job(own)).state is JobState.CANCELLED
    mine = await other.submit_batch(SLEEP, "/tmp", held=True)
    await slurm.hold(mine)
    with pytest.raises(NotPermittedError):
        await other.release(mine)
    await slurm.cancel(mine)


async def test_submission(cluster: Cluster, slurm: PySlurm) -> None:
    """As the principal itself, in its folder, with the environment; options in the script count."""
    folder = str(cluster.work_folder(USERS.service))
    plain = await slurm.submit_batch("#!/bin/sh\nenv; pwd; umask; ulimit -n\n", folder)
    job = await reached(slurm, plain, JobState.COMPLETED)
    assert (job.user, job.name, job.work_dir) == (USERS.service, "sbatch", folder)
    with_options = await slurm.submit_batch("#!/bin/sh\n#SBATCH -J named --comment='a b'\nexit\n", folder, held=True)
    job = await slurm.job(with_options)
    assert (job.name, job.comment, job.state, job.reason) == ("named", "a b", JobState.PENDING, "JobHeldUser")
    await slurm.cancel(with_options)
    printed = Path(folder, f"slurm-{plain}.out").read_text().splitlines()  # noqa: ASYNC240
    assert {f"SLURM_SUBMIT_DIR={folder}", folder} <= set(printed)
    assert not [line for line in printed if line.startswith("SLURM_PROFILE=Energy")]
    with pytest.raises(RefusedError):
        await slurm.submit_batch("no interpreter\n", folder)


async def test_a_frozen_controller(cluster: Cluster, slurm: PySlurm, submit: Submit) -> None:
    """Nothing is known, other tasks go on meanwhile, and afterwards all is as before."""
    job_id = submit("-H")
    known = await slurm.job(job_id)
    ticks = 0

    async def tick() -> None:
        nonlocal ticks
        while True:
            await asyncio.sleep(0.05)
            ticks += 1

    ticking = asyncio.create_task(tick())
    cluster.freeze_controller()
    try:
        with pytest.raises(SlurmUnavailableError):
            await slurm.jobs()
        with pytest.raises(SlurmUnavailableError):
            await slurm.cancel(job_id)
        with pytest.raises(AmbiguousWriteError):
            await slurm._write("start_now", job_id)
    finally:
        cluster.thaw_controller()
        ticking.cancel()
    assert ticks > 20
    assert (await slurm.job(job_id)).reason == known.reason


async def test_killed_in_a_write(cluster: Cluster, slurm: PySlurm, submit: Submit) -> None:
    """What was sent takes effect, though no answer came: it must be looked up."""
    job_id = submit("--begin=now+1hour")
    assert (await slurm.job(job_id)).reason == "BeginTime"
    process = slurm._process._process
    assert process is not None
    cluster.freeze_controller()
    try:
        writing = asyncio.create_task(slurm._write("hold", job_id))

        async def sent() -> bool:
            return request_waits(state.read(cluster.folder).port)

        await until(sent)
        os.kill(process.pid, signal.SIGKILL)
        with pytest.raises(AmbiguousWriteError):
            await writing
    finally:
        cluster.thaw_controller()

    async def held() -> bool:
        return (await slurm.job(job_id)).reason == "JobHeldAdmin"

    await until(held)
    assert slurm._process._process is not process


def request_waits(port: int) -> bool:
    """Whether a connection to that local port holds what its daemon has not read yet."""
    lines = [line.split() for name in ("tcp", "tcp6") for line in Path("/proc/net", name).read_text().splitlines()[1:]]
    return any(line[1].endswith(f":{port:04X}") and int(line[4].split(":")[1], 16) for line in lines if line[3] != "0A")


async def test_a_slurm_conf_that_cannot_be_read(commands: SlurmCommands, cluster: Cluster) -> None:
    """libslurm ends the process, or looks for the file for a minute: the reason is told, and nothing is ambiguous."""
    empty = cluster.folder / "empty.conf"
    empty.touch()
    for conf, said in ((empty, "fatal"), (cluster.folder / "gone.conf", r"gone\.conf")):
        slurm = PySlurm(commands, python=pyslurm_python(), slurm_conf=str(conf), timeout=timedelta(seconds=3))
        for call in (slurm.jobs(), slurm.submit_batch("#!/bin/sh\n", "/tmp")):
            with pytest.raises(SlurmUnavailableError, match=said):
                await call
        await slurm.close()


async def test_one_user_and_a_dead_controller() -> None:
    """The fast profile: the same as oneself; a dead controller is unavailable, also for a write, until it is back."""
    with running(Profile.FAST) as cluster:
        async with open_pyslurm(cluster) as slurm:
            assert isinstance(slurm, PySlurm)
            job_id = await slurm.submit_batch(SLEEP, str(cluster.work_folder()))
            await reached(slurm, job_id, JobState.RUNNING)
            await slurm.requeue(job_id)
            assert (await reached(slurm, job_id, JobState.PENDING)).restarts == 1
            cluster.kill_controller()
            for call in (
                slurm.jobs(),
                slurm.hold(job_id),
                slurm._write("hold", job_id),
                slurm.submit_batch(SLEEP, "/"),
            ):
                with pytest.raises(SlurmUnavailableError):
                    await call
            cluster.start_controller()
            assert JobFlag.COMPLETING not in (await slurm.job(job_id)).flags
            await slurm.cancel(job_id)
            await reached(slurm, job_id, JobState.CANCELLED)
