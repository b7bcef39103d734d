"""The simulated demo: labelled on every line, ended rightly, and offered where Slurm cannot be installed."""

import asyncio
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from datetime import timedelta
from pathlib import Path

import pytest
from click.testing import CliRunner

from relight.domain.slurm import JobState
from relight.lab import fault_rules, packages, simulated, simulated_worker
from relight.lab.cli import lab
from relight.lab.fault_rules import Deed, FaultRule
from relight.lab.faults import RankNotFoundError, bug, crash, gpu, hang, node
from relight.lab.job import JobSpec, render
from relight.lab.processes import environ, pids
from relight.lab.simulated import LABEL, SimulatedCluster
from relight.lab.simulated_worker import World, read_options
from relight.lab.spec import ClusterSpec

NODES = ("n1", "n2", "n3", "n4")
STEP = timedelta(milliseconds=10)


@pytest.fixture(autouse=True)
def quick(monkeypatch):
    """Nothing takes the time that it takes on a cluster."""
    monkeypatch.setattr(simulated_worker, "START_S", 0)
    monkeypatch.setattr(simulated_worker, "TICK_S", 0.01)
    monkeypatch.setattr(simulated_worker, "NODE_MISSED_AFTER_S", 0.05)


@pytest.fixture
async def cluster(tmp_path):
    """A simulated cluster with a job of three nodes, as the demo starts it: (cluster, world, job id, run folder)."""
    cluster = SimulatedCluster(ClusterSpec(folder=tmp_path / "slurm"))
    cluster.start()
    world = World(NODES)
    run = cluster.make_run_folder("train")
    spec = JobSpec(run=run, nodes=3, step_time=STEP, checkpoint_every=5, busy=1)
    server = await asyncio.start_unix_server(world.answer, cluster.folder / simulated.SOCKET)
    turning = asyncio.create_task(world.turn())
    job = await asyncio.to_thread(cluster.submit, render(spec))
    yield cluster, world, job, run
    turning.cancel()
    server.close()
    await asyncio.gather(turning, return_exceptions=True)


async def until(condition, what: str) -> None:
    """Wait for something that is about to happen."""
    for _ in range(1000):
        if condition():
            return
        await asyncio.sleep(0.01)
    pytest.fail(f"waited in vain for {what}")


async def stepping(output: Path, step: int = 12) -> None:
    """Wait until training has passed a step."""
    await until(lambda: output.exists() and f"step {step}/" in output.read_text(), f"step {step}")


def test_the_options_of_a_batch_script_are_read(tmp_path):
    """Of sbatch, srun and the trainer alike."""
    options = read_options(render(JobSpec(run=tmp_path, nodes=3, busy=0.2)))
    assert (options["nodes"], options["busy"], options["checkpoint-every"]) == ("3", "0.2", "20")
    assert options["output"] == f"{tmp_path}/slurm-%j.out"


async def test_a_killed_rank_ends_the_attempt_and_the_next_one_resumes(cluster):
    """What srun says of the rank stands in the output; the retry goes on from the newest checkpoint."""
    slurm, world, job, run = cluster
    output = run / f"slurm-{job}.out"
    await stepping(output)
    hit = await asyncio.to_thread(simulated.inject, slurm, job, crash(rank=3))
    assert (hit.node, hit.rank, hit.pid) == ("n2", 3, None)
    await until(lambda: world.slurm.job_records[job].state is JobState.FAILED, "the job's end")
    assert "srun: error: n2: task 3: Killed\n" in output.read_text()
    await world.slurm.requeue(job)
    await until(lambda: not world.slurm.job_records[job].completing, "the epilog")
    await asyncio.sleep(1)  # SubmitTime counts whole seconds
    await world.slurm.start_now(job)
    await until(lambda: "| attempt 1" in output.read_text(), "the next attempt")
    await until(lambda: "resumed from checkpoint step" in output.read_text(), "the checkpoint")
    assert "Killed" not in output.read_text()


async def test_a_bug_raises_the_trainers_own_exception(cluster):
    """At the step that the rule names, with the rank before each line."""
    slurm, world, job, run = cluster
    output = run / f"slurm-{job}.out"
    await stepping(output)
    await asyncio.to_thread(simulated.inject, slurm, job, bug())
    await until(lambda: world.slurm.job_records[job].state is JobState.FAILED, "the job's end")
    assert "[rank0]: KeyError: 'zebra'\n" in output.read_text()
    assert world.slurm.job_records[job].exit_code == 1


async def test_a_broken_gpu_shows_in_the_kernel_log_and_in_the_output(cluster):
    """As with a real one, on the rank's own node."""
    slurm, world, job, run = cluster
    await stepping(run / f"slurm-{job}.out")
    await asyncio.to_thread(simulated.inject, slurm, job, gpu(rank=3))
    await until(lambda: world.slurm.job_records[job].state is JobState.FAILED, "the job's end")
    assert "NVRM: Xid (PCI:0000:43:00): 48" in slurm.kernel_log("n2").read_text()
    assert "[rank3]: RuntimeError: CUDA error: uncorrectable ECC" in (run / f"slurm-{job}.out").read_text()


async def test_a_stopped_rank_silences_the_job_which_still_runs(cluster):
    """No step, no CPU, and RUNNING."""
    slurm, world, job, run = cluster
    output = run / f"slurm-{job}.out"
    await stepping(output, 40)
    assert world.slurm.cpu[job] >= timedelta(seconds=1)
    await asyncio.to_thread(simulated.inject, slurm, job, hang(rank=3))
    await asyncio.sleep(0.1)
    before = output.read_text(), world.slurm.cpu[job]
    await asyncio.sleep(0.3)
    assert (output.read_text(), world.slurm.cpu[job]) == before
    assert await asyncio.to_thread(slurm.job_field, job, "JobState") == "RUNNING"


async def test_a_lost_node_is_missed_after_a_while_and_its_job_queued_again(cluster):
    """The output ends at once and without a word."""
    slurm, world, job, run = cluster
    await stepping(run / f"slurm-{job}.out")
    hit = await asyncio.to_thread(simulated.inject, slurm, job, node())
    assert hit.node == "n1"
    await until(lambda: world.slurm.job_records[job].restarts == 1, "Slurm's own requeue")
    assert (await asyncio.to_thread(slurm.node_states))["n1"].startswith("DOWN")
    assert "srun: error" not in (run / f"slurm-{job}.out").read_text()


async def test_a_rank_that_the_job_does_not_have_is_refused(cluster):
    """And nothing is hit."""
    slurm, _world, job, run = cluster
    await stepping(run / f"slurm-{job}.out", 1)
    with pytest.raises(RankNotFoundError, match="no rank 99"):
        await asyncio.to_thread(simulated.inject, slurm, job, crash(rank=99))


async def test_an_error_in_the_simulation_is_not_hidden(cluster):
    """The world stops turning: a fault that it cannot play must not look like a healthy job."""
    _slurm, world, job, run = cluster
    await stepping(run / f"slurm-{job}.out", 1)
    fault_rules.add(run, FaultRule(rank=0, do=Deed.NAN))  # touches the model, which there is none of
    with pytest.raises(AttributeError):
        await asyncio.wait_for(world.turn(), 5)


def test_where_slurm_cannot_be_installed_the_simulated_demo_is_offered(monkeypatch):
    """With the very command, and exit code 1."""

    def refuse(**_options) -> None:
        raise packages.SlurmNotInstallableError("this is not Debian")

    monkeypatch.setattr(packages, "ensure", refuse)
    done = CliRunner().invoke(lab, ["demo", "--fault", "gpu", "--exit"])
    assert done.exit_code == 1
    assert "this is not Debian" in done.output
    assert "cannot be installed here" in done.output
    assert '  make demo FAULT=gpu ARGS="--simulated --exit"\n' in done.output


@pytest.fixture
def bare(monkeypatch):
    """A short folder for temporary files, and a PATH with two programs: there is no Slurm."""
    folder = Path(tempfile.mkdtemp(prefix="rl-"))
    (folder / "bin").mkdir()
    for name in ("sh", "setsid"):
        (folder / "bin" / name).symlink_to(shutil.which(name) or name)
    monkeypatch.setenv("PATH", str(folder / "bin"))
    monkeypatch.setenv("TMPDIR", str(folder))
    yield folder
    shutil.rmtree(folder)


def demo(fault: str, *options: str) -> subprocess.Popen[str]:
    """Start the simulated demo as a user does."""
    command = [sys.executable, "-m", "relight.workers.cli", "lab", "demo", "--simulated", "--fault", fault, *options]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)


def left_of(folder: Path) -> list[str]:
    """What a demo in this folder has left: files, and processes that were told of it."""
    processes = [
        pid for pid in pids() if any(b"/relight-demo-" in e and os.fsencode(folder) in e for e in environ(pid))
    ]
    return [*(path.name for path in folder.glob("relight-demo-*")), *map(str, processes)]


@pytest.mark.system
@pytest.mark.parametrize(
    ("fault", "ending"),
    [
        ("crash", "crash: recovered in "),
        ("gpu", "gpu: recovered in "),
        ("node", "node: adopted in "),
        ("bug", "bug: stopped in "),
    ],
)
def test_the_demo_ends_right_and_says_on_each_line_that_it_is_simulated(bare, fault, ending):
    """By a real Temporal server and Relight's real worker; nothing is left."""
    with demo(fault, "--exit") as process:
        said, _ = process.communicate(timeout=300)
    lines = [line for line in said.splitlines() if line]
    assert process.returncode == 0, said
    assert [line for line in lines if not line.startswith(LABEL)] == []
    assert "SIMULATED Slurm cluster and training job: nothing here is a real Slurm" in lines[0]
    assert lines[-1].startswith(LABEL + ending)
    assert left_of(bare) == []


@pytest.mark.system
@pytest.mark.parametrize(
    ("number", "moment"), [(signal.SIGTERM, "started a real Temporal"), (signal.SIGINT, "training runs on")]
)
def test_an_interrupted_demo_leaves_nothing_behind(bare, number, moment):
    """Neither process nor file, while it starts and while it runs."""
    with demo("crash") as process:
        assert process.stdout
        said = ""
        while moment not in said:
            line = process.stdout.readline()
            assert line, said
            said += line
        process.send_signal(number)
        said += process.communicate(timeout=60)[0]
    assert process.returncode == 130, said
    assert "everything is cleaned up" in said
    assert left_of(bare) == []
