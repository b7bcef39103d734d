"""What each way changes, as a user with Slurm's Operator level, and what Slurm refuses."""

import asyncio
import re
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from relight.clients.slurm import (
    JobNotFoundError,
    NodeNotFoundError,
    NotPermittedError,
    RefusedError,
    Slurm,
)
from relight.domain.hands import held, held_by_another
from relight.domain.slurm import JobState
from relight.lab.cluster import Cluster
from relight.lab.users import USERS

pytestmark = pytest.mark.system

UNKNOWN = 999_999


async def waits_for_its_begin_time(site: Any, job_id: int) -> Any:
    """The record of a requeued job once it shows why it waits: the reason comes with the scheduler's next look."""

    async def waits() -> bool:
        job = await site.slurm.job(job_id)
        return job.state is JobState.PENDING and not job.completing and job.reason == "BeginTime"

    await site.until(waits)
    return await site.slurm.job(job_id)


@pytest.mark.operation("requeue", "exclude", "exclude nothing", "start_now", "job")
async def test_the_order_of_a_restart(site: Any, slurm: Slurm) -> None:
    """Requeue, exclude while COMPLETING, exclude nothing, and start when that is over."""
    before = await site.running("-w", "n1")
    job_id = before.job_id
    for refused in (slurm.exclude(job_id, ("n1",)), slurm.start_now(job_id)):
        with pytest.raises(RefusedError):
            await refused
    await slurm.requeue(job_id)
    job = await slurm.job(job_id)
    assert job.completing
    assert not job.running
    assert (job.restarts, job.submit_time, job.end_time) == (1, before.submit_time, None)
    await slurm.exclude(job_id, ("n3", "n2"))
    job = await waits_for_its_begin_time(site, job_id)
    assert set(job.excluded_nodes) == {"n2", "n3"}
    assert job.submit_time > before.submit_time
    with pytest.raises(RefusedError):
        await slurm.requeue(job_id)
    with pytest.raises(NodeNotFoundError):
        await slurm.exclude(job_id, ("n77",))
    assert set((await slurm.job(job_id)).excluded_nodes) == {"n2", "n3"}
    await slurm.exclude(job_id, ())
    assert (await slurm.job(job_id)).excluded_nodes == ()
    await asyncio.sleep(2)  # within 2 s of a requeue the job may FAIL at its start (seen)
    await slurm.start_now(job_id)
    job = await site.reached(job_id, JobState.RUNNING)
    assert (job.restarts, job.nodes) == (1, ("n1",))

    async def accounted() -> bool:
        return len(await slurm.executions(job_id)) == 2

    await site.until(accounted)


@pytest.mark.operation("start_after", "requeue")
async def test_a_start_is_put_off(site: Any, slurm: Slurm) -> None:
    """Later than Slurm's own delay, and sooner; Slurm shows the time, keeps it over another change, and starts it."""
    job_id = (await site.running("-w", "n1")).job_id
    await slurm.requeue(job_id)
    await waits_for_its_begin_time(site, job_id)
    await asyncio.sleep(2)
    for seconds in (600, 5):
        at = datetime.now(UTC) + timedelta(seconds=seconds)
        await slurm.start_after(job_id, timedelta(seconds=seconds))
        await slurm.exclude(job_id, ("n2",))
        job = await slurm.job(job_id)
        assert job.eligible_time is not None
        assert abs(job.eligible_time - at) <= timedelta(seconds=3)
        assert job.state is JobState.PENDING
    job = await site.reached(job_id, JobState.RUNNING)
    assert job.start_time is not None
    assert job.start_time >= at - timedelta(seconds=2)


@pytest.mark.operation("requeue")
async def test_an_ended_job_is_requeued(site: Any, slurm: Slurm) -> None:
    """A failed job waits again; one that may not be requeued is refused."""
    failed = await site.reached(site.submit("exit 9"), JobState.FAILED)
    await slurm.requeue(failed.job_id)
    job = await site.reached(failed.job_id, JobState.PENDING)
    assert (job.restarts, job.exit_code) == (1, 9)
    assert job.submit_time > failed.submit_time
    fixed = await site.running("--no-requeue")
    with pytest.raises(RefusedError):
        await slurm.requeue(fixed.job_id)
    assert (await slurm.job(fixed.job_id)).running


@pytest.mark.operation("depend")
async def test_a_dependency_that_counts_as_failed_is_judged_anew(site: Any, slurm: Slurm) -> None:
    """That of one job, and of an array's pending tasks in one record; a job that runs has none any more."""
    parent = (await site.reached(site.submit("exit 9"), JobState.FAILED)).job_id
    children = [site.submit("true", f"--dependency=afterok:{parent}", *more) for more in ((), ("--array=0-2%1",))]

    async def given_up() -> bool:
        return {(await slurm.job(child)).reason for child in children} == {"DependencyNeverSatisfied"}

    await site.until(given_up)
    await slurm.requeue(parent)
    await site.reached(parent, JobState.PENDING)
    for child in children:
        assert (await slurm.job(child)).dependency == f"afterok:{parent}(failed)"
        await slurm.depend(child, f"afterok:{parent}")
        assert (await slurm.job(child)).dependency == f"afterok:{parent}(unfulfilled)"
    running = (await site.running()).job_id
    with pytest.raises(RefusedError):
        await slurm.depend(running, f"afterok:{parent}")


@pytest.mark.operation("hold", "release")
async def test_hold_and_release(site: Any, slurm: Slurm) -> None:
    """A held job does not start, also when told to; its owner cannot release it; released, it runs."""
    job_id = site.submit("sleep 600", "--begin=now+1hour")
    await slurm.hold(job_id)
    job = await slurm.job(job_id)
    assert (job.state, job.reason) == (JobState.PENDING, "JobHeldAdmin")
    by_owner = site.cluster.run("scontrol", "release", str(job_id), user=USERS.owner, check=False)
    assert by_owner.returncode != 0
    await slurm.start_now(job_id)
    assert (await slurm.job(job_id)).reason == "JobHeldAdmin"
    await slurm.hold(job_id)  # twice is once
    await slurm.release(job_id)
    await site.reached(job_id, JobState.RUNNING)


@pytest.mark.operation("hold", "release")
async def test_a_hold_of_a_job_that_is_not_pending(site: Any, slurm: Slurm) -> None:
    """A running job runs on and waits once it is queued again; one that has ended is refused."""
    job_id = (await site.running()).job_id
    await slurm.hold(job_id)
    assert (await slurm.job(job_id)).running
    await slurm.requeue(job_id)
    assert (await site.reached(job_id, JobState.PENDING)).reason == "JobHeldAdmin"
    await slurm.cancel(job_id)
    await site.reached(job_id, JobState.CANCELLED)
    for call in (slurm.hold(job_id), slurm.release(job_id)):
        with pytest.raises(RefusedError):
            await call


@pytest.mark.operation("job", "release")
async def test_a_hold_of_its_owners_is_told_from_slurms(site: Any, slurm: Slurm) -> None:
    """The code for the reason is the same; the words beside it tell that somebody asked for it."""
    job_id = (await site.running()).job_id
    site.cluster.run("scontrol", "requeuehold", str(job_id), user=USERS.owner)
    job = await site.reached(job_id, JobState.PENDING)
    assert job.why == "job requeued in held state"
    assert held_by_another(job)
    await slurm.release(job_id)
    assert not held(await slurm.job(job_id))


@pytest.mark.operation("hold", "release", "requeue", "start_now")
async def test_a_requeued_job_is_held(site: Any, slurm: Slurm) -> None:
    """A hold while COMPLETING lasts; after the release the begin time still counts, until told otherwise."""
    job_id = (await site.running()).job_id
    await slurm.requeue(job_id)
    await slurm.hold(job_id)
    job = await site.reached(job_id, JobState.PENDING)
    assert job.reason.startswith("JobHeld")
    await slurm.release(job_id)
    await waits_for_its_begin_time(site, job_id)
    await asyncio.sleep(2)  # see above
    await slurm.start_now(job_id)
    await site.reached(job_id, JobState.RUNNING)


@pytest.mark.operation("cancel")
async def test_cancel(site: Any, slurm: Slurm) -> None:
    """Running, pending and already ended jobs."""
    running, pending = await site.running(), site.submit("true", "-H")
    await slurm.cancel(running.job_id)
    await slurm.cancel(pending)
    assert (await site.reached(running.job_id, JobState.CANCELLED)).end_time is not None
    await site.reached(pending, JobState.CANCELLED)
    await slurm.cancel(running.job_id)
    assert (await slurm.job(running.job_id)).state is JobState.CANCELLED


@pytest.mark.operation("requeue", "exclude", "cancel", "hold")
async def test_a_task_is_not_its_array(site: Any, slurm: Slurm) -> None:
    """Writes to the task whose record has the array's own id, and to another, leave the others alone."""
    array_id = site.submit("sleep 600", "-a", "1-3")

    async def tasks() -> dict[int | None, Any]:
        return {job.array_task_id: job for job in await slurm.jobs() if job.array_job_id == array_id}

    async def all_run() -> bool:
        return [job.running for job in (await tasks()).values()] == [True] * 3

    await site.until(all_run)
    last = await slurm.job(array_id)
    first = next(task for task in (await tasks()).values() if task.job_id != array_id)
    await slurm.requeue(array_id)
    await site.reached(array_id, JobState.PENDING)
    assert {task: job.restarts for task, job in (await tasks()).items()} == {
        task: int(task == last.array_task_id) for task in (1, 2, 3)
    }
    await slurm.exclude(array_id, ("n1",))
    await slurm.hold(array_id)
    await slurm.requeue(first.job_id)
    again = await waits_for_its_begin_time(site, first.job_id)
    assert (again.array_task_id, again.restarts, again.excluded_nodes) == (first.array_task_id, 1, ())
    await slurm.cancel(array_id)
    await site.reached(array_id, JobState.CANCELLED)
    assert (await slurm.job(first.job_id)).state is JobState.PENDING


@pytest.mark.operation("requeue", "exclude", "start_now", "hold", "release", "cancel")
async def test_several_pending_tasks_are_refused(site: Any, slurm: Slurm) -> None:
    """A record that stands for several tasks is not acted on."""
    array_id = site.submit("sleep 600", "-a", "1-3", "-H")
    for call in (
        slurm.requeue(array_id), slurm.exclude(array_id, ("n1",)), slurm.start_now(array_id), slurm.hold(array_id),
        slurm.release(array_id), slurm.cancel(array_id),
    ):  # fmt: skip
        with pytest.raises(RefusedError):
            await call
    job = await slurm.job(array_id)
    assert (job.state, job.reason, job.excluded_nodes) == (JobState.PENDING, "JobHeldUser", ())


@pytest.mark.operation("exclude", "cancel")
async def test_the_only_pending_task_is_a_job(site: Any, slurm: Slurm) -> None:
    """A record that stands for one task alone is that task."""
    array_id = site.submit("sleep 600", "-a", "5", "-H")
    job = await slurm.job(array_id)
    assert (job.array_task_id, job.display_id) == (5, f"{array_id}_5")
    await slurm.exclude(array_id, ("n1",))
    assert (await slurm.job(array_id)).excluded_nodes == ("n1",)
    await slurm.cancel(array_id)
    await site.reached(array_id, JobState.CANCELLED)


@pytest.mark.operation("requeue", "cancel")
async def test_a_heterogeneous_job_is_requeued_by_its_leader(site: Any, slurm: Slurm) -> None:
    """As a whole by its leader; another component alone is refused."""
    leader = await site.running("-n1", ":", "-n1", "--mem=100")
    other = next(j for j in await slurm.jobs() if j.het_job_id == leader.job_id and j.job_id != leader.job_id)
    with pytest.raises(RefusedError):
        await slurm.requeue(other.job_id)
    await slurm.requeue(leader.job_id)
    for part in (leader, other):
        assert (await site.reached(part.job_id, JobState.PENDING)).restarts == 1
    await slurm.cancel(leader.job_id)
    for part in (leader, other):
        await site.reached(part.job_id, JobState.CANCELLED)


@pytest.mark.operation("submit_batch")
async def test_submit_batch(site: Any, slurm: Slurm) -> None:
    """The script's own options count; it runs as the service in the folder given, held where asked."""
    folder = str(site.cluster.work_folder(USERS.service))
    script = "#!/bin/sh\n#SBATCH --job-name=ours\n#SBATCH --mem=100\npwd; id -un; exit 5\n"
    job = await site.reached(await slurm.submit_batch(script, folder), JobState.FAILED)
    assert (job.name, job.user, job.work_dir, job.exit_code) == ("ours", USERS.service, folder, 5)
    assert Path(job.stdout).read_text().split() == [folder, USERS.service]  # noqa: ASYNC240
    assert await slurm.batch_script(job.job_id) == script
    held = await slurm.submit_batch(script, folder, held=True)
    assert (await slurm.job(held)).reason == "JobHeldUser"
    await slurm.release(held)
    await site.reached(held, JobState.FAILED)
    with pytest.raises(RefusedError):
        await slurm.submit_batch("#!/bin/sh\n#SBATCH --partition=nowhere\ntrue\n", folder)


@pytest.mark.operation("requeue", "exclude", "exclude nothing", "start_now", "hold", "release", "cancel")
async def test_unknown_jobs(slurm: Slurm) -> None:
    """Each write says that there is no such job."""
    for call in (
        slurm.requeue(UNKNOWN), slurm.exclude(UNKNOWN, ("n1",)), slurm.exclude(UNKNOWN, ()),
        slurm.start_now(UNKNOWN), slurm.hold(UNKNOWN), slurm.release(UNKNOWN), slurm.cancel(UNKNOWN),
    ):  # fmt: skip
        with pytest.raises(JobNotFoundError):
            await call


@pytest.mark.operation("exclude")
async def test_a_renamed_node_is_not_excluded(site: Any, slurm: Slurm) -> None:
    """A name that slurmctld does not know changes nothing, alone or beside a good one."""
    job_id = site.submit("true", "-H", "-x", "n4")
    for names in (("old-n1",), ("n1", "old-n1"), ("n1,n2",), ("n[1-2]",), ("",)):
        with pytest.raises(NodeNotFoundError):
            await slurm.exclude(job_id, names)
    assert (await slurm.job(job_id)).excluded_nodes == ("n4",)


@pytest.fixture
def without_level(cluster: Cluster, slurm: Slurm) -> Any:
    """The service's user without its Operator level, which an administrator gives back afterwards."""

    def level(name: str) -> None:
        change = ("modify", "user", USERS.service, "set", f"adminlevel={name}")
        cluster.run("sacctmgr", "--immediate", *change)

    level("None")
    yield
    level("Operator")


@pytest.mark.operation("requeue", "exclude", "start_now", "hold", "release", "cancel", "batch_script")
async def test_without_the_level(site: Any, slurm: Slurm, without_level: None) -> None:
    """An ordinary user may do nothing to another's job, and is told so."""
    running, pending = await site.running(), site.submit("true", "-H")

    async def refused() -> bool:  # slurmdbd tells slurmctld in its own time
        try:
            await slurm.batch_script(pending)
        except NotPermittedError:
            return True
        return False

    await site.until(refused)
    for call in (
        slurm.requeue(running.job_id), slurm.cancel(running.job_id), slurm.exclude(pending, ("n1",)),
        slurm.start_now(pending), slurm.hold(pending), slurm.release(pending), slurm.cancel(pending),
    ):  # fmt: skip
        with pytest.raises(NotPermittedError):
            await call
    assert (await slurm.job(running.job_id)).running
    job = await slurm.job(pending)
    assert (job.state, job.reason, job.excluded_nodes) == (JobState.PENDING, "JobHeldUser", ())


@pytest.mark.operation("drain refused")
async def test_an_operator_may_not_drain(site: Any, slurm: Slurm) -> None:
    """Slurm itself refuses the service's user to change a node."""
    for state in ("DRAIN", "DOWN"):
        done = site.cluster.run(
            "scontrol", "update", "NodeName=n1", f"State={state}", "Reason=x", user=USERS.service, check=False
        )
        assert done.returncode != 0
        assert re.search("Invalid user id|permission denied", done.stderr + done.stdout)
    node = await slurm.node("n1")
    assert (node.eligible, node.reason) == (True, "")


@pytest.mark.operation("AdminComment refused")
async def test_an_operator_may_not_write_admin_comments(site: Any, slurm: Slurm) -> None:
    """Slurm refuses AdminComment, and lets the same user requeue the same job."""
    job = await site.running()
    change = ("scontrol", "update", f"JobId={job.job_id}", "AdminComment=x")
    done = site.cluster.run(*change, user=USERS.service, check=False)
    assert done.returncode != 0
    assert "permission denied" in (done.stderr + done.stdout)
    await slurm.requeue(job.job_id)


@pytest.fixture
def admin_level(cluster: Cluster, slurm: Slurm) -> Any:
    """The service's user with Slurm's Admin level, which an administrator takes away afterwards."""

    def level(name: str) -> None:
        cluster.run("sacctmgr", "--immediate", "modify", "user", USERS.service, "set", f"adminlevel={name}")

    level("Admin")
    yield
    level("Operator")


async def test_an_admin_may_write_admin_comments(site: Any, slurm: Slurm, admin_level: None) -> None:
    """The least right that does, and only until the job has ended. Whoever writes last replaces what stood there."""
    job = await site.running()

    def write(text: str) -> Any:
        change = ("scontrol", "update", f"JobId={job.job_id}", f"AdminComment={text}")
        return site.cluster.run(*change, user=USERS.service, check=False)

    async def allowed() -> bool:  # slurmdbd tells slurmctld in its own time
        return write("JS1:H4sIAAAA").returncode == 0

    await site.until(allowed)
    assert write('{"relight": "job 7: recovered"}').returncode == 0
    shown = site.cluster.run("scontrol", "show", "job", str(job.job_id)).stdout
    assert '{"relight": "job 7: recovered"}' in shown
    assert "JS1:" not in shown
    await slurm.cancel(job.job_id)
    await site.reached(job.job_id, JobState.CANCELLED)
    late = write("x")
    assert (late.returncode, "already finished" in late.stderr + late.stdout) == (1, True), late
