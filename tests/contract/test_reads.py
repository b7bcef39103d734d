"""What each way reads of jobs, nodes, steps, accounting and settings."""

import re
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from relight.clients.slurm import JobNotFoundError, NodeNotFoundError, Slurm, SlurmUnavailableError
from relight.clients.slurm_commands import SlurmCommands
from relight.clients.slurm_process import LocalRunner
from relight.domain.slurm import JobState, NodeState
from relight.lab.cluster import Cluster
from relight.lab.database import Database
from relight.lab.errors import SlurmCommandError
from relight.lab.node_wrapper import CPU_TIME_AS
from relight.lab.processes import wait_until
from relight.lab.users import USERS
from relight.lab.ways import Way, open_way, service_prefix

pytestmark = pytest.mark.system

COMMENT = '{"relight": {"mode": "auto"}}\nJobId=1 UserId=root(0) "quoted" \\ ü'
NAME = "-x \"q\" 's'\nJobId=7 JobState=FAILED|1|2 ü"
LONGEST_COMMENT = 1024
UNKNOWN = 999_999


async def _is_file(path: str) -> bool:
    return Path(path).is_file()  # noqa: ASYNC240


@pytest.mark.operation("facts")
async def test_facts(cluster: Cluster, slurm: Slurm) -> None:
    """Version and settings are the cluster's."""
    facts = await slurm.facts()
    told = cluster.run("scontrol", "show", "config").stdout
    assert re.search(rf"^SLURM_VERSION\s*= {re.escape(facts.version)}$", told, re.MULTILINE)
    assert facts.cluster == "lab"
    assert facts.min_job_age == timedelta(seconds=300)
    assert facts.kill_wait == timedelta(seconds=30)
    assert facts.slurm_user == "slurm"
    assert facts.accounting_storage == "accounting_storage/slurmdbd"
    assert "job_comment" in facts.accounting_store_flags
    assert facts.job_requeue


@pytest.mark.operation("jobs", "job", "batch_script", "executions")
async def test_a_job_from_submission_to_its_end(site: Any, slurm: Slurm) -> None:
    """All that Relight reads of a job while it runs, when it has failed, and from accounting."""
    go = site.cluster.work_folder(USERS.owner) / "go-on"
    go.unlink(missing_ok=True)
    script = f"until [ -e {go} ]; do sleep 0.1; done; exit 3"
    job = await site.running(
        "-J", "a b", "-N2", "--gres=gpu:2", "--comment", COMMENT, "-x", "n4", "-o", "%x-%j-%5j.out", "-t", "10",
        script=script,
    )  # fmt: skip
    assert job.running
    assert (job.name, job.comment, job.user, job.partition) == ("a b", COMMENT, USERS.owner, "main")
    assert (len(job.nodes), job.node_count, job.batch_host) == (2, 2, job.nodes[0])
    assert (job.excluded_nodes, job.gres_per_node, job.requeue) == (("n4",), "gpu:2", True)
    assert job.time_limit == timedelta(minutes=10)
    assert job.work_dir == str(site.cluster.work_folder(USERS.owner))
    assert Path(job.stdout).name == f"a b-{job.job_id}-{job.job_id:05}.out"
    await site.until(lambda: _is_file(job.stdout))
    assert job.end_time is None
    assert job.start_time is not None
    assert job in await slurm.jobs()
    assert script in await slurm.batch_script(job.job_id)
    go.touch()
    ended = await site.reached(job.job_id, JobState.FAILED)
    assert (ended.exit_code, ended.exit_signal, ended.submit_time) == (3, 0, job.submit_time)
    assert ended.end_time is not None
    assert ended.end_time >= job.start_time

    async def accounted() -> bool:
        rows = await slurm.executions(job.job_id)
        return [row.state for row in rows] == [JobState.FAILED]

    await site.until(accounted)
    (row,) = await slurm.executions(job.job_id)
    assert row.exit_code == 3
    # Once, on 22.05, accounting had only the node that completed last.
    assert {*row.nodes} <= {*job.nodes}
    assert (row.submit_time, row.start_time, row.end_time) == (job.submit_time, ended.start_time, ended.end_time)


@pytest.mark.operation("jobs", "job")
async def test_hostile_names_and_long_comments_are_text(site: Any, slurm: Slurm) -> None:
    """Quotes, newlines, a leading dash and `JobState=FAILED` change no field; the longest comment arrives whole.

    Slurm itself refuses more than 1024 bytes, when a job is submitted and when it is changed (all three versions).
    """
    comment = ("\nJobState=FAILED " + "x" * LONGEST_COMMENT)[:LONGEST_COMMENT]
    with pytest.raises(SlurmCommandError, match="too long"):
        site.submit("true", f"--comment={'x' * 60_000}")
    job_id = site.submit("sleep 600", "-H", f"--job-name={NAME}", f"--comment={comment}", "--no-requeue")
    job = await slurm.job(job_id)
    assert (job.name, job.comment) == (NAME, comment)
    assert (job.state, job.reason, job.user, job.requeue) == (JobState.PENDING, "JobHeldUser", USERS.owner, False)
    assert job in await slurm.jobs()


@pytest.mark.operation("jobs", "job", "steps")
async def test_array_tasks(site: Any, slurm: Slurm) -> None:
    """Each task is a job of its own, one of them with the array's id; each has its own steps."""
    array_id = site.submit("srun sleep 600", "-a", "1-2")

    async def started() -> bool:
        tasks = [job for job in await slurm.jobs() if job.array_job_id == array_id]
        return len(tasks) == 2 and all([len(await slurm.steps(task.job_id)) == 2 for task in tasks])

    await site.until(started)
    for task in [job for job in await slurm.jobs() if job.array_job_id == array_id]:
        assert task == await slurm.job(task.job_id)
        assert task.display_id == f"{array_id}_{task.array_task_id}"
        assert {step.step_id for step in await slurm.steps(task.job_id)} == {
            f"{task.display_id}.0", f"{task.display_id}.batch"
        }  # fmt: skip
    held = await slurm.job(site.submit("true", "-a", "1-3", "-H"))
    assert (held.array_job_id, held.array_task_id) == (held.job_id, None)
    assert await slurm.steps(held.job_id) == ()


@pytest.mark.operation("jobs", "job", "steps")
async def test_components_of_a_heterogeneous_job(site: Any, slurm: Slurm) -> None:
    """Each component is a job that names its leader."""
    leader_id = site.submit("sleep 600", "-n1", ":", "-n1", "--mem=100")
    leader = await site.reached(leader_id, JobState.RUNNING)
    parts = [job for job in await slurm.jobs() if job.het_job_id == leader_id]
    assert leader in parts
    assert sorted(job.display_id for job in parts) == [f"{leader_id}+0", f"{leader_id}+1"]
    assert [step.step_id for step in await slurm.steps(leader_id)] == [f"{leader_id}.batch"]


@pytest.mark.operation("steps")
async def test_steps(site: Any, slurm: Slurm) -> None:
    """The batch script and what srun started, with nodes and tasks; nothing once the job is over."""
    job = await site.running("-N2", "-n3", "-J", "s\n1.0|n1", script="srun -J 'x|\n9.0|n9|1|x' sleep 600")

    async def both() -> bool:
        return len(await slurm.steps(job.job_id)) == 2

    await site.until(both)
    by_id = {step.step_id: step for step in await slurm.steps(job.job_id)}
    tasks, batch = by_id[f"{job.job_id}.0"], by_id[f"{job.job_id}.batch"]
    assert (tasks.nodes, tasks.task_count) == (job.nodes, 3)
    assert (batch.nodes, batch.task_count) == ((job.batch_host,), 1)
    assert tasks.start_time is not None
    assert job.start_time is not None
    assert tasks.start_time >= job.start_time
    await slurm.cancel(job.job_id)
    await site.reached(job.job_id, JobState.CANCELLED)
    assert await slurm.steps(job.job_id) == ()


@pytest.mark.operation("job")
async def test_a_dependency(site: Any, slurm: Slurm) -> None:
    """It is shown with the job that it waits for."""
    first = site.submit("sleep 600", "-H")
    second = await slurm.job(site.submit("true", f"--dependency=afterok:{first}"))
    assert (second.state, second.reason) == (JobState.PENDING, "Dependency")
    assert second.dependency.startswith(f"afterok:{first}")


@pytest.mark.operation("nodes", "node")
async def test_nodes(site: Any, slurm: Slurm) -> None:
    """All nodes, and one alone, with partitions, GPUs and times."""
    await site.running("-w", "n2")
    nodes = {node.name: node for node in await slurm.nodes()}
    assert sorted(nodes) == ["n1", "n2", "n3", "n4"]
    assert all(node.eligible and not node.lost and not node.draining for node in nodes.values())
    busy = await slurm.node("n2")
    assert busy.state in {NodeState.MIXED, NodeState.ALLOCATED}
    assert set(busy.partitions) == {"main", "scavenger", "scavenger-requeue"}
    assert (busy.gres, busy.reason) == ("gpu:8", "")
    assert busy.boot_time is not None
    assert busy.slurmd_start_time is not None


@pytest.mark.operation("cpu_time")
async def test_cpu_time(site: Any, slurm: Slurm, way: Way) -> None:
    """A sample that grows where the principal may ask slurmd, and else None: never a number that is too small."""
    job = await site.running("-n2", script="srun sh -c 'while :; do :; done'")
    asked = slurm
    if way is Way.COMMANDS:  # SlurmUser may, by sudo for sstat alone
        prefix = service_prefix(site.cluster)
        runner = LocalRunner(slurm_conf=str(site.cluster.slurm_conf))
        asked = SlurmCommands(runner, run_as=prefix, cpu_time_as=(*prefix, *CPU_TIME_AS))
        assert await slurm.cpu_time(job.job_id) is None

        async def answered() -> bool:
            return bool(await asked.cpu_time(job.job_id))

        await site.until(answered)
    first = await asked.cpu_time(job.job_id)
    if first is None:
        assert way is not Way.COMMANDS
        return

    async def grown() -> bool:
        return (await asked.cpu_time(job.job_id) or timedelta()) > first

    await site.until(grown)


@pytest.mark.operation("job", "node", "steps", "batch_script", "executions")
async def test_unknown_jobs_and_nodes(slurm: Slurm) -> None:
    """Each read says that there is no such thing, in accounting there is just nothing."""
    for read in (slurm.job(UNKNOWN), slurm.steps(UNKNOWN), slurm.batch_script(UNKNOWN)):
        with pytest.raises(JobNotFoundError):
            await read
    for name in ("n77", "n1,n2", "n[1-2]", "-a", ""):
        with pytest.raises(NodeNotFoundError):
            await slurm.node(name)
    assert await slurm.executions(UNKNOWN) == ()


@pytest.mark.operation("jobs", "job", "executions")
async def test_another_language_and_time_zone(
    site: Any, way: Way, slurm: Slurm, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The same records whatever the service's own environment says."""
    job_id = site.submit("exit 1")
    job = await site.reached(job_id, JobState.FAILED)

    async def accounted() -> bool:
        return [row.state for row in await slurm.executions(job_id)] == [JobState.FAILED]

    await site.until(accounted)
    rows = await slurm.executions(job_id)
    odd = {"TZ": "Asia/Kathmandu", "LC_ALL": "de_DE.UTF-8", "LANGUAGE": "de", "SLURM_TIME_FORMAT": "relative"}
    for key, value in (odd | {"SQUEUE_STATES": "PENDING", "SQUEUE_FORMAT": "%j", "SACCT_FORMAT": "jobid"}).items():
        monkeypatch.setenv(key, value)
    async with open_way(way, site.cluster) as other:
        assert await other.job(job_id) == job
        assert job in await other.jobs()
        assert await other.executions(job_id) == rows


@pytest.fixture(scope="session")
def purged_job(cluster: Cluster, restart_cleanly: Callable[[Cluster], None]) -> int:
    """An ended job that slurmctld has forgotten: it looks for such jobs once a minute, so this takes a while."""
    conf = cluster.slurm_conf
    kept = conf.read_text()
    job_id = cluster.submit("#!/bin/sh\nexit 4\n", "--mem=100", user=USERS.owner)
    wait_until(lambda: cluster.job_field(job_id, "JobState") == "FAILED", 30, "the job to fail", 0.2)
    conf.write_text(kept.replace("MinJobAge=300", "MinJobAge=2"))
    try:
        restart_cleanly(cluster)
        wait_until(lambda: cluster.job_field(job_id, "JobState") is None, 120, "the job to be purged", 0.5)
    finally:
        conf.write_text(kept)
        restart_cleanly(cluster)
    return job_id


@pytest.mark.operation("job", "steps", "executions", "requeue", "cancel")
async def test_a_purged_job(purged_job: int, slurm: Slurm) -> None:
    """After MinJobAge it is unknown for reads and writes, and accounting still has it."""
    for call in (slurm.job(purged_job), slurm.steps(purged_job), slurm.requeue(purged_job), slurm.cancel(purged_job)):
        with pytest.raises(JobNotFoundError):
            await call
    assert [row.exit_code for row in await slurm.executions(purged_job)] == [4]


@pytest.mark.operation("executions")
async def test_accounting_that_is_down(cluster: Cluster, slurm: Slurm) -> None:
    """No answer from slurmdbd is not a job without history."""
    daemons = cluster._daemons
    daemons.kill("slurmdbd")
    try:
        with pytest.raises(SlurmUnavailableError):
            await slurm.executions(1)
    finally:
        socket = Database(cluster.folder, "slurm").socket
        daemons.spawn("slurmdbd", ["slurmdbd", "-D"], {"MYSQL_UNIX_PORT": str(socket)})
        daemons.wait_for("slurmdbd", lambda: cluster.run("sacct", check=False).returncode == 0)
    assert await slurm.executions(1) is not None


@pytest.mark.operation("topology")
async def test_a_cluster_without_topology_has_no_failure_domains(slurm: Slurm) -> None:
    """An empty answer, and no error."""
    assert (await slurm.topology()).domains == ()
