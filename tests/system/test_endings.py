"""Every end of a job that a real Slurm can be made to show, as the watcher writes it down."""

import os
import shutil
import tempfile
from collections.abc import AsyncIterator, Iterator
from contextlib import chdir
from pathlib import Path

import pytest

from relight.activities.watch import Watch
from relight.domain.endings import End
from relight.domain.evidence import Interruption
from relight.domain.ledger import RowKind
from relight.lab import packages
from relight.lab.cluster import Cluster, ClusterSpec, Profile

from .bare import Bare, bare_site

pytestmark = [
    pytest.mark.system,
    pytest.mark.skipif(os.geteuid() != 0, reason="separate users need root"),
    pytest.mark.skipif(bool(packages.missing(accounting=True, production=True)), reason="needs the Slurm packages"),
]

# The job is RUNNING meanwhile, so that the watcher can see it.
PROLOG = """\
#!/bin/bash
[ ! -e {folder}/bad-$SLURMD_NODENAME ] || { sleep 3; exit 1; }
"""


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    """A production-like cluster whose prolog can be made to fail."""
    folder = Path(tempfile.mkdtemp(prefix="relight-ends-", dir="/tmp"))
    folder.chmod(0o755)
    cluster = Cluster(ClusterSpec(folder=folder, nodes=4, profile=Profile.PRODUCTION, epilog_s=1))
    try:
        # 22.05's slurmstepd dumps its core where it was started from when it finds no room for its job (seen).
        with chdir(folder):
            cluster.start()
        prolog = folder / "etc/prolog.sh"
        prolog.write_text(PROLOG.replace("{folder}", str(folder)))
        prolog.chmod(0o755)
        with cluster.slurm_conf.open("a") as conf:
            conf.write(f"Prolog={prolog}\n")
        cluster.run("scontrol", "reconfigure")
        yield cluster
    finally:
        cluster.stop()
        shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture(scope="module")
async def time_limited(cluster: Cluster) -> AsyncIterator[tuple[Bare, int]]:
    """A job with a limit of a minute, which passes while the other tests run, and the watcher that has seen it."""
    with bare_site(cluster) as site:
        bare = Bare(cluster, site, Watch(site))
        yield bare, await seen(bare, "sleep 600", "--time=1", "--nodelist=n1", "--job-name=limited")


@pytest.fixture
async def bare(cluster: Cluster, time_limited: tuple[Bare, int]) -> AsyncIterator[Bare]:
    """A watcher that has looked once; jobs and nodes are put in order afterwards."""
    with bare_site(cluster) as site:
        bare = Bare(cluster, site, Watch(site))
        await bare.look()
        yield bare
    cluster.run("scancel", "--name=sbatch", check=False)
    for node in cluster.spec.node_names:
        cluster.run("scontrol", "update", f"NodeName={node}", "State=RESUME", check=False)


async def seen(bare: Bare, body: str, *options: str) -> int:
    """A job that runs, and that the watcher has seen running."""
    job = bare.submit(body, "--nodes=1", *options)
    await bare.until_running(job)
    await bare.look()
    return job


async def check(bare: Bare, job: int, end: End, kind: Interruption | None) -> str:
    """How the job's attempt ended, and what was reported of it; told once however often one looks."""
    row = await bare.until_ended(job)
    await bare.look()
    assert row.body["end"] == end.value, row.body
    assert [d.kind for d in await bare.detections(job)] == ([kind] if kind else [])
    return str(row.body["how"])


@pytest.mark.parametrize(
    ("body", "end", "kind"),
    [
        ("sleep 3", End.COMPLETED, None),
        ("sleep 3; exit 3", End.FAILED, Interruption.CRASH),
        ("sleep 3; kill -9 $$", End.FAILED, Interruption.CRASH),
    ],
)
async def test_a_job_that_ends_by_itself(bare: Bare, body: str, end: End, kind: Interruption | None) -> None:
    """Killed by a signal, Slurm gives JobLaunchFailure as reason: it was launched all the same."""
    await check(bare, await seen(bare, body), end, kind)


async def test_a_step_that_fails_is_not_the_jobs_end(bare: Bare) -> None:
    """The batch script goes on, and ends well."""
    job = await seen(bare, "srun false; srun sleep 2; exit 0")
    await check(bare, job, End.COMPLETED, None)


@pytest.mark.parametrize(
    ("who", "end"),
    [
        ("owner", End.CANCELLED_BY_OWNER),
        ("service", End.CANCELLED_BY_OTHER),
        ("admin", End.CANCELLED_BY_OTHER),
        ("root", End.CANCELLED_BY_ROOT),
    ],
)
async def test_who_cancelled_it(bare: Bare, who: str, end: End) -> None:
    """Accounting knows the user id."""
    job = await seen(bare, "sleep 600")
    user = None if who == "root" else getattr(bare.cluster.users, who)
    bare.cluster.run("scancel", str(job), user=user)
    assert "CANCELLED (cancelled by" in await check(bare, job, end, None)


@pytest.mark.parametrize(
    ("command", "end"),
    [
        (("requeue",), End.REQUEUED),
        (("requeuehold",), End.HELD),
        (("requeuehold", "State=SpecialExit"), End.SPECIAL_EXIT),
    ],
)
async def test_a_person_queues_it_again(bare: Bare, command: tuple[str, ...], end: End) -> None:
    """Theirs."""
    job = await seen(bare, "sleep 600", "--requeue")
    bare.cluster.run("scontrol", *command, str(job))
    # While COMPLETING 22.05 does not show the flag of a special exit yet.
    await bare.until_state(job, "PENDING", "SPECIAL_EXIT")
    assert (await check(bare, job, end, None)).endswith("queued again by unknown")


@pytest.mark.parametrize("partition", ["scavenger", "scavenger-requeue"])
async def test_preemption(bare: Bare, partition: str) -> None:
    """Cancelled or queued again: accounting tells both apart from a person's doing."""
    job = await seen(bare, "sleep 600", f"--partition={partition}", "--exclusive", "--nodelist=n3", "--requeue")
    bare.submit("sleep 2", "--nodes=1", "--partition=main", "--exclusive", "--nodelist=n3")
    await check(bare, job, End.PREEMPTED, None)


async def test_a_failed_prolog(bare: Bare) -> None:
    """Slurm drains the node, queues the job again and holds it: the node is lost to the job."""
    (bare.cluster.folder / "bad-n4").touch()
    job = await seen(bare, "sleep 600", "--nodelist=n4", "--requeue")
    how = await check(bare, job, End.PROLOG_FAILED, Interruption.NODE_LOST)
    assert how.endswith("queued again by slurm")
    (bare.cluster.folder / "bad-n4").unlink()
    (detection,) = await bare.detections(job)
    assert "n4" in {evidence.node for evidence in detection.evidence}
    assert bare.field(job, "Reason") == "launch_failed_requeued_held"


async def test_a_failed_prolog_of_a_job_that_may_not_be_queued_again(bare: Bare) -> None:
    """Slurm cancels it, as root."""
    (bare.cluster.folder / "bad-n4").touch()
    job = await seen(bare, "sleep 600", "--nodelist=n4", "--no-requeue")
    await check(bare, job, End.CANCELLED_BY_ROOT, None)
    (bare.cluster.folder / "bad-n4").unlink()


async def test_a_failed_launch(bare: Bare) -> None:
    """slurmd finds no room in its spool: Slurm queues the job again and holds it, and drains nothing."""
    job = bare.submit("sleep 600", "--nodes=1", "--nodelist=n4", "--requeue", "--hold")
    room = bare.cluster.folder / f"nodes/n4/spool/job{job:05}"
    room.touch()
    try:
        bare.cluster.run("scontrol", "release", str(job))
        how = await check(bare, job, End.LAUNCH_FAILED, Interruption.CRASH)
    finally:
        room.unlink(missing_ok=True)
    assert how.endswith("queued again by slurm")
    assert bare.field(job, "Reason") == "launch_failed_requeued_held"
    (detection,) = await bare.detections(job)
    assert "launch failed requeued held" in detection.evidence[0].text


async def test_nodes_that_are_lost_at_once(bare: Bare) -> None:
    """Each of them is in the evidence."""
    job = await seen(bare, "sleep 600", "--nodes=2", "--nodelist=n2,n3", "--requeue")
    for node in ("n2", "n3"):
        bare.cluster.run("scontrol", "update", f"NodeName={node}", "State=DOWN", "Reason=test")
    await check(bare, job, End.NODE_FAIL, Interruption.NODE_LOST)
    (detection,) = await bare.detections(job)
    assert {evidence.node for evidence in detection.evidence} == {None, "n2", "n3"}


@pytest.mark.parametrize("option", ["--requeue", "--no-requeue"])
async def test_a_node_that_is_set_down(bare: Bare, option: str) -> None:
    """Its job fails with it, or is queued again by Slurm itself."""
    job = await seen(bare, "sleep 600", "--nodelist=n2", option)
    bare.cluster.run("scontrol", "update", "NodeName=n2", "State=DOWN", "Reason=test")
    how = await check(bare, job, End.NODE_FAIL, Interruption.NODE_LOST)
    assert how.endswith("by slurm") is (option == "--requeue")


async def test_a_suspended_job_is_nothing(bare: Bare) -> None:
    """Nor is its going on; its end is."""
    job = await seen(bare, "sleep 600")
    for command, state in (("suspend", "SUSPENDED"), ("resume", "RUNNING")):
        bare.cluster.run("scontrol", command, str(job))
        await bare.until_state(job, state)
        await bare.look()
    assert await bare.ends(job) == []
    assert len(await bare.states(job)) == 1
    bare.cluster.run("scancel", str(job), user=bare.cluster.users.owner)
    await check(bare, job, End.CANCELLED_BY_OWNER, None)


async def test_tasks_of_an_array(bare: Bare) -> None:
    """Each ends for itself, under an id of its own."""
    array = bare.submit("sleep 3; exit $SLURM_ARRAY_TASK_ID", "--nodes=1", "--array=0-1")
    await bare.until_running(array)

    async def tasks() -> dict[int, int]:
        jobs = await bare.site.slurm.jobs()
        return {job.array_task_id or 0: job.job_id for job in jobs if job.array_job_id == array and job.running}

    async def both() -> bool:
        return len(await tasks()) == 2

    await bare.until(both, "both tasks to run")
    ids = await tasks()
    await bare.look()
    await check(bare, ids[0], End.COMPLETED, None)
    await check(bare, ids[1], End.FAILED, Interruption.CRASH)


async def test_a_heterogeneous_job_fails_once(bare: Bare) -> None:
    """Its leader's batch script failed, and Slurm ended the other component with it."""
    leader = bare.submit("sleep 3; exit 4", "--nodes=1", ":", "--nodes=1")
    for job in (leader, leader + 1):
        await bare.until_running(job)
    await bare.look()
    await check(bare, leader, End.FAILED, Interruption.CRASH)
    await check(bare, leader + 1, End.FAILED, None)


async def test_a_job_that_ran_and_failed_between_two_looks(bare: Bare) -> None:
    """Nobody saw it run."""
    job = bare.submit("exit 5", "--nodes=1")
    await bare.until_state(job, "FAILED")
    await check(bare, job, End.FAILED, Interruption.CRASH)


async def lose(bare: Bare, job: int) -> None:
    """The job's node goes down, and Slurm queues the job again.

    Not in the second in which it was submitted: Slurm's times do not tell the executions apart then.
    """

    async def ran() -> bool:
        return (bare.field(job, "RunTime") or "") >= "00:00:02"

    await bare.until(ran, f"job {job} to run for two seconds")
    node = bare.field(job, "NodeList")
    bare.cluster.run("scontrol", "update", f"NodeName={node}", "State=DOWN", "Reason=test")
    await bare.until_state(job, "PENDING")


async def run_again(bare: Bare, job: int, node: str) -> None:
    """On another node, where nothing of the job's last run is left, and without Slurm's delay of two minutes."""
    bare.cluster.run("scontrol", "update", f"JobId={job}", f"NodeList={node}", "StartTime=now")
    await bare.until_running(job)


async def test_what_came_and_went_during_an_outage(bare: Bare) -> None:
    """Accounting has every execution: each is written down, and the last one, after which the job waits, counts."""
    job = await seen(bare, "sleep 600", "--requeue", "--nodelist=n2")
    await lose(bare, job)
    for node in ("n3", "n4"):
        await run_again(bare, job, node)
        await lose(bare, job)
    bare.watch = Watch(bare.site)
    for _ in range(2):
        await bare.look()
    ends = await bare.ends(job)
    assert [row.body["end"] for row in ends] == [End.NODE_FAIL] * 3
    newest = (await bare.states(job))[0].attempt
    assert newest.record.restarts == 2
    assert [d.attempt for d in await bare.detections(job)] == [newest.key]
    seen_rows = await bare.site.ledger.rows(kind=RowKind.ATTEMPT_SEEN)
    assert [row.body["record"]["restarts"] for row in seen_rows if "afterwards" in row.body] == [1, 2]


async def test_a_time_limit(time_limited: tuple[Bare, int]) -> None:
    """Not a failure; its steps were never seen, so nothing is said of silence. Slurm looks every half minute."""
    bare, job = time_limited
    await bare.until_state(job, "TIMEOUT", "COMPLETING")
    await check(bare, job, End.TIME_LIMIT, None)
