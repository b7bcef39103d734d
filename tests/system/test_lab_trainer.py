"""The training job and the faults, on a real Slurm cluster with real users."""

import os
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path

import pytest

from relight.lab import faults
from relight.lab.cluster import Cluster, ClusterSpec, Profile
from relight.lab.engines import torch_is_installed
from relight.lab.faults import inject
from relight.lab.job import Engine, JobSpec, OpenMode, render
from relight.lab.processes import wait_until
from relight.lab.users import USERS

pytestmark = [
    pytest.mark.system,
    pytest.mark.skipif(os.geteuid() != 0, reason="separate users, and mount namespaces, need root"),
]

TIMEOUT_S = 120


@contextmanager
def started(profile: Profile) -> Iterator[Cluster]:
    """A cluster of three nodes, in a folder that all users reach."""
    folder = Path(tempfile.mkdtemp(prefix="lab-test-"))
    folder.chmod(0o755)
    cluster = Cluster(ClusterSpec(folder=folder, nodes=3, profile=profile, epilog_s=1))
    try:
        cluster.start()
        yield cluster
    finally:
        cluster.stop()
        shutil.rmtree(folder)


@pytest.fixture(scope="module")
def production() -> Iterator[Cluster]:
    """A production-like cluster for several tests."""
    with started(Profile.PRODUCTION) as cluster:
        yield cluster


@pytest.fixture
def fast() -> Iterator[Cluster]:
    """A fast cluster for one test."""
    with started(Profile.FAST) as cluster:
        yield cluster


class Training:
    """A training job and its output."""

    def __init__(self, cluster: Cluster, user: str | None = None, engine: Engine = Engine.NUMPY) -> None:
        self.cluster = cluster
        self.user = user
        spec = JobSpec(
            run=cluster.make_run_folder("train", user),
            engine=engine,
            step_time=timedelta(seconds=0.05),
            checkpoint_every=10,
            open_mode=OpenMode.APPEND,
            runtime=cluster.runtime,
            comment='{"note": "as submitted"}',
        )
        self.id = cluster.submit(render(spec), user=user)
        self.output_file = spec.run / f"slurm-{self.id}.out"

    @property
    def output(self) -> str:
        """What the job has written so far."""
        return self.output_file.read_text() if self.output_file.exists() else ""

    @property
    def state(self) -> str | None:
        """Slurm's word for it."""
        return self.cluster.job_field(self.id, "JobState")

    def until(self, condition: Callable[[], bool], what: str) -> None:
        """Wait; a failure shows the output."""
        wait_until(condition, TIMEOUT_S, f"{what}; state {self.state}, output:\n{self.output[-3000:]}")

    def until_written(self, text: str) -> None:
        """Wait for a piece of output."""
        self.until(lambda: text in self.output, f"{text!r}")

    def until_state(self, *states: str) -> None:
        """Wait for one of these states."""
        self.until(lambda: self.state in states, " or ".join(states))

    def restart(self) -> None:
        """Requeue, and start as soon as Slurm allows: after COMPLETING, and not within 2 s of the requeue."""
        self.cluster.run("scontrol", "requeue", str(self.id), user=self.user)
        safe = time.monotonic() + 2
        self.until(lambda: self.state == "PENDING" and time.monotonic() > safe, "PENDING")
        self.cluster.run("scontrol", "update", f"JobId={self.id}", "StartTime=now", user=self.user)

    def cancel(self) -> None:
        """End it."""
        self.cluster.run("scancel", str(self.id))
        self.until_state("CANCELLED", "FAILED")


def test_training_on_two_nodes_dies_and_resumes_from_its_checkpoint(production: Cluster) -> None:
    """As an ordinary user: a rank is killed, the job fails, and after a requeue it goes on where it was."""
    job = Training(production, USERS.owner)
    job.until_written("step 12/")
    assert "world size 4 | engine NumpyModel | attempt 0" in job.output
    assert "rank 3 -> node n2 local_rank 1 gpu 1" in job.output
    assert 'Comment={"note": "as submitted"}' in production.run("scontrol", "show", "job", str(job.id)).stdout
    assert job.output_file.owner() == USERS.owner

    injection = inject(production, job.id, faults.crash(rank=3))
    assert (injection.node, injection.rank) == ("n2", 3)
    job.until_state("FAILED")

    job.restart()
    job.until_written("attempt 1")
    job.until_written("resumed from checkpoint step 10 (")
    job.until_written("step 25/")
    job.cancel()


def test_a_gpu_error_is_in_the_kernel_log_and_in_the_jobs_output(production: Cluster) -> None:
    """Right away, on the node of that rank only, and not again after a restart."""
    job = Training(production, USERS.owner)
    job.until_written("step 12/")
    before = production.kernel_log("n1").read_text()
    injection = inject(production, job.id, faults.gpu(rank=2, xid=95))
    job.until_state("FAILED")
    assert "[rank2]: RuntimeError: CUDA error: uncorrectable ECC error encountered" in job.output
    lines = production.kernel_log("n2").read_text().splitlines()
    assert f"n2 kernel: NVRM: Xid (PCI:0000:1b:00): 95, pid={injection.pid}, name=python, Uncontained" in lines[-1]
    assert production.kernel_log("n1").read_text() == before
    job.restart()
    job.until_written("step 20/")
    job.cancel()


def test_a_hung_rank_stops_the_steps_but_not_the_job(production: Cluster) -> None:
    """The job stays RUNNING and writes nothing any more."""
    job = Training(production, USERS.owner)
    job.until_written("step 12/")
    inject(production, job.id, faults.hang(rank=1))
    seen = [job.output]
    quiet_since = [time.monotonic()]

    def quiet() -> bool:
        if job.output != seen[0]:
            seen[0], quiet_since[0] = job.output, time.monotonic()
        return time.monotonic() - quiet_since[0] > 1.5  # thirty steps

    job.until(quiet, "silence")
    assert job.state == "RUNNING"
    job.cancel()


def test_a_lost_batch_host_is_requeued_by_slurm(fast: Cluster) -> None:
    """Slurm itself restarts the job after the node is DOWN, on other nodes."""
    job = Training(fast)
    job.until_written("step 12/")
    assert inject(fast, job.id, faults.node()).node == "n1"
    job.until(lambda: fast.job_field(job.id, "Restarts") == "1", "the requeue")
    job.until_written("resumed from checkpoint step ")
    assert "rank 0 -> node n2" in job.output, job.output


def test_a_bug_comes_back_in_each_attempt(fast: Cluster) -> None:
    """The same exception, at the same step."""
    job = Training(fast)
    job.until_written("step 3/")
    inject(fast, job.id, faults.bug(step=35, rank=1))
    job.until_state("FAILED")
    job.restart()
    job.until(lambda: job.output.count("[rank1]: KeyError: 'zebra'") == 2, "the second exception")
    assert "step 34/" in job.output
    assert "step 35/" not in job.output


@pytest.mark.skipif(not torch_is_installed(), reason="PyTorch is not installed")
def test_pytorch_behaves_as_numpy_does(fast: Cluster) -> None:
    """Same lines, same failure, same resume."""
    job = Training(fast, engine=Engine.TORCH)
    job.until_written("step 12/")
    assert "world size 4 | engine TorchModel | attempt 0" in job.output
    assert "rank 3 -> node n2 local_rank 1 gpu 1" in job.output
    inject(fast, job.id, faults.crash(rank=3))
    job.until_state("FAILED")
    assert "n2: task 3: Killed" in job.output
    job.restart()
    job.until_written("resumed from checkpoint step 10 (")
    job.until_written("step 15/")


def test_faults_do_not_reach_the_same_job_of_another_cluster(fast: Cluster) -> None:
    """Two clusters have a job 1 each; the ranks found are those of the one named."""
    with started(Profile.FAST) as other:
        jobs = [Training(fast), Training(other)]
        assert jobs[0].id == jobs[1].id
        for job in jobs:
            job.until_written("step 3/")
        found = [{rank.process.pid for rank in faults.ranks(job.cluster, job.id)} for job in jobs]
        assert len(found[0]) == len(found[1]) == 4
        assert not found[0] & found[1]


def test_what_cannot_be_hit_is_told(fast: Cluster) -> None:
    """A job that does not exist or does not run, and a rank that is not there."""
    with pytest.raises(faults.JobNotFoundError, match="no job 99"):
        inject(fast, 99, faults.node())
    held = fast.submit("#!/bin/sh\ntrue\n", "--hold")
    with pytest.raises(faults.JobNotFoundError, match="PENDING"):
        inject(fast, held, faults.node())
    job = Training(fast)
    job.until_written("step 3/")
    with pytest.raises(faults.RankNotFoundError, match="running: 0, 1, 2, 3"):
        inject(fast, job.id, faults.crash(rank=4))
