"""Daemons, ports and the state file."""

import os
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from relight.lab import ports, state
from relight.lab.processes import MARK, Process, WaitTimeoutError, marked, spawn, wait_until
from relight.lab.spec import ClusterSpec
from relight.lab.state import ClusterNotFoundError, State


@pytest.fixture
def daemon(tmp_path: Path) -> Iterator[Process]:
    """A daemon that sleeps."""
    process = spawn(["sleep", "600"], tmp_path / "log", os.environ | {MARK: str(tmp_path)})
    yield process
    process.kill()


def test_a_daemon_is_not_our_child(daemon: Process) -> None:
    """It lives in a session of its own, so neither our end nor our terminal's reaches it."""
    assert daemon.alive
    assert os.getsid(daemon.pid) == daemon.pid
    assert int(Path(f"/proc/{daemon.pid}/stat").read_text().rpartition(")")[2].split()[1]) != os.getpid()


def test_a_daemon_answers_to_sigint(daemon: Process) -> None:
    """It does not inherit a shell's deafness, which every task of every job would have."""
    daemon.signal(signal.SIGINT)
    wait_until(lambda: not daemon.alive, 10, "the daemon to end")


def test_a_daemon_is_found_by_its_mark(daemon: Process, tmp_path: Path) -> None:
    """Only by its own folder's."""
    wait_until(lambda: list(marked(tmp_path)) == [daemon], 10, "the mark")
    assert list(marked(tmp_path.parent)) == []


def test_a_recycled_pid_is_not_signalled(daemon: Process) -> None:
    """A process with another start time is another process."""
    former = Process(pid=daemon.pid, started=daemon.started - 1)
    assert not former.alive
    assert not former.signal(signal.SIGKILL)
    former.end()
    assert daemon.alive


def test_a_deaf_daemon_is_killed(tmp_path: Path) -> None:
    """SIGTERM first, SIGKILL when it is ignored."""
    ready = tmp_path / "ready"
    command = ["sh", "-c", 'trap "" TERM; touch "$0"; while :; do sleep 0.1; done', str(ready)]
    process = spawn(command, tmp_path / "log", os.environ)
    wait_until(ready.exists, 10, "the trap")
    process.end(patience_s=0.3)
    assert not process.alive


def test_a_zombie_is_dead() -> None:
    """A process that nobody has waited for yet does not count as alive."""
    child = subprocess.Popen(["sleep", "600"])
    process = Process.of(child.pid)
    assert process is not None
    child.kill()
    wait_until(lambda: not process.alive, 10, "the child to die")
    child.wait()


def test_waiting_ends_with_an_error_that_names_what_for() -> None:
    """A wait is bounded."""
    with pytest.raises(WaitTimeoutError, match="for Godot"):
        wait_until(lambda: False, 0.05, "Godot")


def test_two_claims_never_meet() -> None:
    """Ports that are claimed but not yet used are not given away again."""
    with ports.claimed_ports(10) as first, ports.claimed_ports(10) as second:
        assert abs(first - second) >= ports.BLOCK


def test_the_state_survives_its_writer(tmp_path: Path) -> None:
    """Another process reads what was noted, process by process."""
    written = State(spec=ClusterSpec(folder=tmp_path), port=12345)
    state.write(written)
    process = Process(pid=7, started=8)
    state.remember(tmp_path, "munged", process)
    state.remember(tmp_path, "n1", process)
    state.remember(tmp_path, "n1", None)
    assert state.read(tmp_path) == written.model_copy(update={"processes": {"munged": process}})


def test_a_folder_without_a_cluster_is_told(tmp_path: Path) -> None:
    """The error says which folder."""
    with pytest.raises(ClusterNotFoundError, match=str(tmp_path)):
        state.read(tmp_path)
