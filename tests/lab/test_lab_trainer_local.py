"""The trainer with the numpy engine, as plain processes: no Slurm."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from relight.lab import fault_rules
from relight.lab.fault_rules import Deed, FaultRule
from relight.lab.processes import wait_until

WORLD = 3
TIMEOUT_S = 60


class Job:
    """Ranks that run as srun would have started them."""

    def __init__(self, run: Path, attempt: int, *options: str) -> None:
        self.run = run
        self.attempt = attempt
        self.ranks = [self._start(rank, options) for rank in range(WORLD)]

    def _start(self, rank: int, options: tuple[str, ...]) -> subprocess.Popen[bytes]:
        slurm = {"PROCID": rank, "NTASKS": WORLD, "LOCALID": rank, "JOB_ID": 7, "RESTART_COUNT": self.attempt}
        variables = {f"SLURM_{name}": str(value) for name, value in slurm.items()} | {"SLURMD_NODENAME": f"n{rank + 1}"}
        command = [sys.executable, "-m", "relight.lab.trainer", f"--run={self.run}", "--engine=numpy", *options]
        with self.file(rank).open("wb") as output:
            return subprocess.Popen(command, env=os.environ | variables, stdout=output, stderr=subprocess.STDOUT)

    def file(self, rank: int) -> Path:
        """Where a rank writes."""
        return self.run / f"out-{self.attempt}-{rank}"

    def output(self, rank: int) -> str:
        """What a rank has written so far."""
        return self.file(rank).read_text()

    def wait(self) -> list[int]:
        """Every rank's exit code."""
        return [rank.wait(TIMEOUT_S) for rank in self.ranks]


@contextmanager
def job(run: Path, *options: str, attempt: int = 0) -> Iterator[Job]:
    """Run the ranks, and leave none behind."""
    running = Job(run, attempt, *options)
    try:
        yield running
    finally:
        for rank in running.ranks:
            rank.kill()
            rank.wait(TIMEOUT_S)


def train(run: Path, *options: str, attempt: int = 0) -> Job:
    """Run the ranks to their end."""
    with job(run, "--step-time=0", *options, attempt=attempt) as running:
        running.wait()
    return running


def test_ranks_train_together_and_report(tmp_path: Path) -> None:
    """Rank 0 tells where each rank runs and how each step went; the loss falls; the others are silent."""
    running = train(tmp_path, "--steps=40", f"--progress-file={tmp_path}/progress.jsonl")
    assert running.wait() == [0] * WORLD
    lines = running.output(0).splitlines()
    assert lines[0] == "world size 3 | engine NumpyModel | attempt 0"
    assert lines[3] == "rank 2 -> node n3 local_rank 2 gpu 2"
    assert lines[4].startswith("step 1/40 | loss ")
    assert lines[-1] == "training finished after step 40"
    assert running.output(1) == ""
    steps = [json.loads(line) for line in (tmp_path / "progress.jsonl").read_text().splitlines()]
    assert [step["step"] for step in steps] == list(range(1, 41))
    assert steps[-1]["loss"] < steps[0]["loss"] / 2


def test_resuming_gives_the_same_losses_as_never_stopping(tmp_path: Path) -> None:
    """A checkpoint holds everything that matters, momentum included."""
    for name in ("whole", "broken"):
        (tmp_path / name).mkdir()
    whole = train(tmp_path / "whole", "--steps=30", "--checkpoint-every=10")
    train(tmp_path / "broken", "--steps=25", "--checkpoint-every=10")
    resumed = train(tmp_path / "broken", "--steps=30", "--checkpoint-every=10", attempt=1)
    checkpoint = tmp_path / "broken/checkpoints/step_000020.npz"
    assert f"resumed from checkpoint step 20 ({checkpoint})" in resumed.output(0)

    def losses(output: str) -> list[str]:
        return [line.split(" | ")[1] for line in output.splitlines() if line.startswith("step ")]

    assert losses(resumed.output(0)) == losses(whole.output(0))[20:]


def test_a_damaged_checkpoint_is_skipped_with_a_warning(tmp_path: Path) -> None:
    """All ranks go on from the one before."""
    train(tmp_path, "--steps=20", "--checkpoint-every=10")
    damaged = tmp_path / "checkpoints/step_000020.npz"
    damaged.write_bytes(damaged.read_bytes()[:100])
    resumed = train(tmp_path, "--steps=22", attempt=1)
    assert resumed.wait() == [0] * WORLD
    assert f"warning: skipping damaged checkpoint {damaged}: its checksum does not match" in resumed.output(0)
    assert "resumed from checkpoint step 10" in resumed.output(0)
    assert "step 11/22" in resumed.output(0)


def test_a_killed_rank_fails_the_others_in_their_collective(tmp_path: Path) -> None:
    """The survivors raise what a real library raises, and name the peer's address."""
    with job(tmp_path, "--step-time=0.02") as running:
        wait_until(lambda: "step 3/" in running.output(0), TIMEOUT_S, "three steps")
        running.ranks[1].kill()
        codes = running.wait()
    assert codes == [1, -signal.SIGKILL, 1]
    assert "[rank0]: RuntimeError: [rank 0] allreduce failed: Connection closed by peer [127.0.1.2]:" in running.output(
        0
    )
    assert "[rank2]: RuntimeError: [rank 2] allreduce failed: Connection closed by peer [127.0.1.1]:" in running.output(
        2
    )


def test_a_stopped_rank_stops_all_until_the_time_out(tmp_path: Path) -> None:
    """Nobody takes another step, and the collective's time-out ends it."""
    with job(tmp_path, "--step-time=0.02", "--collective-timeout=2") as running:
        wait_until(lambda: "step 3/" in running.output(0), TIMEOUT_S, "three steps")
        running.ranks[2].send_signal(signal.SIGSTOP)
        assert running.ranks[0].wait(TIMEOUT_S) == 1
    assert "allreduce failed: Timed out waiting for peer [127.0.1.3]:" in running.output(0)


def test_sigterm_ends_a_rank_even_within_a_collective(tmp_path: Path) -> None:
    """Slurm's polite request is honoured at once."""
    with job(tmp_path, "--step-time=0.02") as running:
        wait_until(lambda: "step 3/" in running.output(0), TIMEOUT_S, "three steps")
        running.ranks[2].send_signal(signal.SIGSTOP)
        running.ranks[1].terminate()
        assert running.ranks[1].wait(TIMEOUT_S) == -signal.SIGTERM


def test_a_bug_raises_at_its_step_in_each_attempt(tmp_path: Path) -> None:
    """The traceback is of the user's code, and a restart meets it again."""
    fault_rules.add(tmp_path, FaultRule(rank=1, step=15, do=Deed.RAISE))
    for attempt in (0, 1):
        running = train(tmp_path, "--steps=40", "--checkpoint-every=10", attempt=attempt)
        assert running.wait()[1] == 1
        assert "in encode_labels" in running.output(1)
        assert "[rank1]: KeyError: 'zebra'" in running.output(1)
        assert "step 14/40" in running.output(0)
        assert "step 15/40" not in running.output(0)


def test_a_gpu_error_can_be_asked_for_while_it_runs(tmp_path: Path) -> None:
    """A rule without a step is followed at once, in the attempt it names only."""
    with job(tmp_path, "--step-time=0.02") as running:
        wait_until(lambda: "step 3/" in running.output(0), TIMEOUT_S, "three steps")
        fault_rules.add(tmp_path, FaultRule(rank=2, do=Deed.ECC, attempts=(0,)))
        running.wait()
    assert "[rank2]: RuntimeError: CUDA error: uncorrectable ECC error encountered" in running.output(2)
    assert train(tmp_path, "--steps=30", attempt=1).wait() == [0] * WORLD


@pytest.mark.parametrize(("deed", "seen"), [(Deed.NAN, "loss nan"), (Deed.EXIT, "Connection closed by peer")])
def test_other_deeds(tmp_path: Path, deed: Deed, seen: str) -> None:
    """NaN spreads to the mean loss and the job runs on; a silent exit is seen by the others only."""
    fault_rules.add(tmp_path, FaultRule(rank=1, step=5, do=deed, code=3))
    running = train(tmp_path, "--steps=10")
    assert seen in running.output(0)
    assert running.output(1) == ""
    assert running.wait()[1] == (0 if deed is Deed.NAN else 3)
