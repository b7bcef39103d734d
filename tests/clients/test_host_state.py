"""The host: space, mounts that do not answer, fabric ports, and the processes of a job."""

import errno
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from relight.clients.host_state import PathWatch, Space, boot_id, fabric_ports, job_processes, network_mounts

GIB = 1 << 30


@pytest.mark.parametrize(
    ("free", "size", "full"),
    [
        (0, 100 * GIB, True),
        (GIB - 1, 1000 * GIB, True),
        (GIB * 3 // 2, 1000 * GIB, None),
        (2 * GIB, 1000 * GIB, False),
        (100 * 1024 * GIB, 10 * 1024 * 1024 * GIB, False),  # 1 % of 10 PiB is plenty
        (60 << 10, 64 << 10, False),
        (500, 64 << 10, True),
        (None, None, None),
    ],
)
def test_full_is_less_than_one_percent_and_than_one_gib(free: int | None, size: int | None, full: bool | None) -> None:
    """Between full and twice that much it is left as it was, so that it is not told in turns."""
    assert Space("/", free=free, size=size).full is full


def test_no_files_left_is_full_too() -> None:
    """Bytes are of no use without an inode."""
    assert Space("/", free=GIB * 50, size=GIB * 100, files_free=3, files=1_000_000).full is True


@given(size=st.integers(1, 1 << 60), first=st.floats(0, 1), second=st.floats(0, 1))
def test_more_free_space_is_never_fuller(size: int, first: float, second: float) -> None:
    """Full, undecided, not full: in this order as space grows."""
    order = {True: 0, None: 1, False: 2}
    low, high = sorted((first, second))
    assert (
        order[Space("/", free=int(low * size), size=size).full]
        <= order[Space("/", free=int(high * size), size=size).full]
    )


def look(watch: PathWatch) -> Space:
    """One look at a path."""
    watch.ask()
    return watch.answer()


def test_a_real_file_system_is_read(tmp_path: Path) -> None:
    """It answers, and has space."""
    space = look(PathWatch(str(tmp_path)))
    assert space.stale is False
    assert space.free is not None
    assert space.size is not None
    assert 0 < space.free <= space.size


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 256 KiB."""
    folder = tmp_path / "small"
    folder.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", "size=256k", "tmpfs", str(folder)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        pytest.skip(f"cannot mount a small file system here: {done.stderr.strip()}")
    yield folder
    subprocess.run(["umount", str(folder)], check=True)


def test_a_real_disk_that_fills_up_is_full_and_then_is_not(small_disk: Path) -> None:
    """By the file system's own word."""
    watch = PathWatch(str(small_disk))
    assert look(watch).full is False
    with pytest.raises(OSError, match="No space left"):
        (small_disk / "file").write_bytes(b"x" * (1 << 20))
    assert look(watch).full is True
    (small_disk / "file").unlink()
    assert look(watch).full is False


class DeadMount:
    """Answers when it is let go, not before."""

    def __init__(self) -> None:
        self.alive, self.entered = threading.Event(), threading.Event()
        self.calls = 0

    def __call__(self, path: str) -> os.statvfs_result:
        self.calls += 1
        self.entered.set()
        self.alive.wait()
        return os.statvfs("/")


def test_a_mount_that_does_not_answer_is_given_up_and_asked_once() -> None:
    """There is never a second thread in it; when it answers again, that is seen."""
    now, mount = [0.0], DeadMount()
    watch = PathWatch("/scratch", mount, lambda: now[0])
    watch.ask()
    assert mount.entered.wait(10)
    now[0] = 6.0
    assert watch.answer() == Space("/scratch", stale=True, problem="/scratch has not answered for 6 s")
    now[0] = 60.0
    space = look(watch)
    assert (space.stale, space.full, mount.calls) == (True, None, 1)
    mount.alive.set()
    watch._answered.wait(10)
    assert watch.answer().stale is False


@pytest.mark.parametrize(
    ("code", "stale"), [(errno.ESTALE, True), (errno.EIO, True), (errno.ENOENT, None), (errno.EACCES, None)]
)
def test_an_error_is_stale_only_where_it_says_so(code: int, stale: bool | None) -> None:
    """A path that does not exist tells nothing of a mount."""

    def fail(path: str) -> os.statvfs_result:
        raise OSError(code, os.strerror(code), path)

    space = look(PathWatch("/scratch", fail))
    assert (space.stale, space.full) == (stale, None)
    assert space.problem == f"/scratch: {os.strerror(code)}"


def test_network_mounts_are_found_by_their_type(tmp_path: Path) -> None:
    """Names with blanks are written as octal numbers."""
    table = tmp_path / "mounts"
    table.write_text(
        "/dev/sda1 / ext4 rw 0 0\n"
        "server:/home /home nfs4 rw 0 0\n"
        "10.0.0.1@o2ib:/fs /lus/my\\040data lustre rw 0 0\n"
        "tmpfs /dev/shm tmpfs rw 0 0\n"
    )
    assert network_mounts(str(table)) == ["/home", "/lus/my data"]
    assert network_mounts(str(tmp_path / "none")) == []


def test_fabric_ports_are_active_or_not(tmp_path: Path) -> None:
    """As in /sys/class/infiniband/<device>/ports/<port>/state."""
    for device, state in (("mlx5_0", "4: ACTIVE\n"), ("mlx5_1", "1: DOWN\n")):
        folder = tmp_path / device / "ports" / "1"
        folder.mkdir(parents=True)
        (folder / "state").write_text(state)
    assert fabric_ports(str(tmp_path)) == {"mlx5_0/1": True, "mlx5_1/1": False}


def test_the_boot_has_an_id() -> None:
    """36 signs: a UUID."""
    assert len(boot_id()) == 36


def sleeper(**environment: str) -> subprocess.Popen[bytes]:
    """A Python process that says when it is up."""
    code = "print(flush=True); import time; time.sleep(600)"
    process = subprocess.Popen([sys.executable, "-c", code], env=environment, stdout=subprocess.PIPE)
    assert process.stdout is not None
    process.stdout.readline()
    return process


@pytest.fixture
def job() -> Iterator[tuple[int, int, int]]:
    """PIDs of two ranks of job 424242, and of one of another job."""
    own = [sleeper(SLURM_JOB_ID="424242", RANK="3", SLURM_PROCID="1"), sleeper(SLURM_JOB_ID="424242", RANK="2")]
    processes = [*own, sleeper(SLURM_JOB_ID="4242", RANK="0")]
    yield processes[0].pid, processes[1].pid, processes[2].pid
    for process in processes:
        process.kill()
        process.communicate()


def test_processes_of_a_job_are_found_with_their_ranks(job: tuple[int, int, int]) -> None:
    """By SLURM_JOB_ID where Slurm made no cgroup; RANK wins over SLURM_PROCID."""
    found = {process.pid: process for process in job_processes(424242)}
    assert found.keys() == set(job[:2])
    assert (found[job[0]].rank, found[job[1]].rank) == (3, 2)
    assert found[job[0]].parent == os.getpid()


@pytest.fixture
def proc(tmp_path: Path) -> Path:
    """A process table: PID 7 is in the cgroup of job 5 and claims to be of job 6; 8 is no Python; 9 has odd ranks."""
    table = {
        7: (
            "0::/system.slice/slurmstepd.scope/job_5/step_0/user/task_0\n",
            "SLURM_JOB_ID=6\0SLURM_PROCID=4\0",
            "python3.11",
        ),
        8: ("0::/system.slice/slurmstepd.scope/job_5/step_0\n", "SLURM_PROCID=0\0", "bash"),
        9: ("0::/user.slice\n", "SLURM_JOB_ID=6\0SLURM_PROCID=-1\0", "python"),
    }
    for pid, (cgroup, environment, program) in table.items():
        folder = tmp_path / str(pid)
        folder.mkdir()
        (folder / "cgroup").write_text(cgroup)
        (folder / "environ").write_text(environment)
        (folder / "exe").symlink_to(f"/usr/bin/{program}")
        (folder / "stat").write_text(f"{pid} (a) ( b) S 1 7 7 0")
    (tmp_path / "self").mkdir()
    return tmp_path


def test_the_cgroup_decides_which_job_a_process_is_of(proc: Path) -> None:
    """A program can set its environment, and so put itself among another job's ranks; its cgroup it cannot leave."""
    assert [(process.pid, process.rank) for process in job_processes(5, str(proc))] == [(7, 4)]
    assert [(process.pid, process.rank) for process in job_processes(6, str(proc))] == [(9, None)]
