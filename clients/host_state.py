"""The state of this host: free space, mounts that no longer answer, InfiniBand ports, and who runs what.

A call on a dead mount blocks for ever, and nothing can end it. So each path has one thread of its own that asks, and
whoever waits gives it up; there are never two of them in the same dead mount. Plain tuples, no pydantic: the node
agent's memory is counted.
"""

import errno
import os
import re
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from datetime import timedelta
from pathlib import Path
from typing import NamedTuple

GIVEN_UP_AFTER = timedelta(seconds=5)
MAX_PATHS = 64
NETWORK = frozenset(
    {"nfs", "nfs4", "lustre", "gpfs", "beegfs", "ceph", "cifs", "smb3", "wekafs", "panfs", "fuse.sshfs", "fuse.juicefs"}
)
"""File systems whose server may stop answering (mount types as in /proc/self/mounts)."""

_STALE = frozenset({errno.ESTALE, errno.EIO, errno.ENOTCONN, errno.ETIMEDOUT, errno.EHOSTDOWN, errno.ESHUTDOWN})
_GIB = 1 << 30
_FEW_FILES = 1000
_JOB = re.compile(r"/job_(\d+)(?:/|$)")


class Space(NamedTuple):
    """What one path's file system says."""

    path: str
    free: int | None = None
    """Bytes that an ordinary user can still write; None: it does not say."""
    size: int | None = None
    files_free: int | None = None
    """Inodes; None also where the file system does not count them."""
    files: int | None = None
    stale: bool | None = None
    """True: it does not answer, or says that it is no longer there. None: not known."""
    problem: str = ""

    @property
    def full(self) -> bool | None:
        """Less than 1 % and less than 1 GiB left, or as few files; None between that and twice as much, or unknown.

        Of a large file system 1 % is plenty. The gap keeps it from being full and not full in turns.
        """
        if self.free is None or self.size is None:
            return None
        shares = [self.free / max(1.0, min(self.size / 100, _GIB))]
        if self.files_free is not None and self.files is not None:
            shares.append(self.files_free / max(1.0, min(self.files / 100, _FEW_FILES)))
        if min(shares) < 1:
            return True
        return False if min(shares) >= 2 else None  # noqa: PLR2004 - twice as much


class PathWatch:
    """Asks one path's file system, in a thread of its own.

    Args:
        path: to be looked at.
        ask: the call that may block.
        clock: seconds that only grow.
    """

    def __init__(
        self,
        path: str,
        ask: Callable[[str], os.statvfs_result] = os.statvfs,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Start the thread; it asks when it is told to."""
        self.path = path
        self._ask = ask
        self._clock = clock
        self._wanted = threading.Semaphore(0)
        self._answered = threading.Event()
        self._answer = Space(path, problem="not asked yet")
        self._asked: float | None = None
        threading.Thread(target=self._run, name=f"statvfs {path}", daemon=True).start()

    def ask(self) -> None:
        """Ask again, unless the last question is still open."""
        if self._asked is None:
            self._asked = self._clock()
            self._answered.clear()
            self._wanted.release()

    def answer(self) -> Space:
        """Wait for what was asked, at most until it is given up."""
        if self._asked is None:
            return self._answer
        left = GIVEN_UP_AFTER.total_seconds() - (self._clock() - self._asked)
        if not self._answered.wait(max(0.0, left)):
            waited = self._clock() - self._asked
            return Space(self.path, stale=True, problem=f"{self.path} has not answered for {waited:.0f} s")
        self._asked = None
        return self._answer

    def _run(self) -> None:
        while True:
            self._wanted.acquire()
            self._answer = _space(self.path, self._ask)
            self._answered.set()


def space(path: str) -> Space:
    """What the path's file system says now; blocks for as long as that takes."""
    return _space(path, os.statvfs)


def _space(path: str, ask: Callable[[str], os.statvfs_result]) -> Space:
    try:
        found = ask(path)
    except OSError as error:
        stale = True if error.errno in _STALE else None
        return Space(path, stale=stale, problem=f"{path}: {error.strerror}")
    # What is read-only has no free space to lose; some file systems count neither blocks nor files.
    sized = found.f_blocks > 0 and not found.f_flag & os.ST_RDONLY
    counted = found.f_files > 0
    return Space(
        path,
        free=found.f_bavail * found.f_frsize if sized else None,
        size=found.f_blocks * found.f_frsize if sized else None,
        files_free=found.f_favail if counted else None,
        files=found.f_files if counted else None,
        stale=False,
    )


def network_mounts(table: str = "/proc/self/mounts") -> list[str]:
    """Where file systems of other machines are mounted; looking into the table blocks on none of them."""
    with suppress(OSError):
        lines = Path(table).read_text(encoding="utf-8", errors="surrogateescape").splitlines()
        fields = [line.split(" ") for line in lines]
        # The table writes spaces and the like as octal numbers.
        return [re.sub(r"\\([0-7]{3})", lambda m: chr(int(m[1], 8)), f[1]) for f in fields if f[2] in NETWORK]
    return []


def fabric_ports(root: str = "/sys/class/infiniband") -> dict[str, bool]:
    """Each InfiniBand or RoCE port, `mlx5_0/1`, and whether it is active."""
    found = {}
    for state in Path(root).glob("*/ports/*/state"):
        with suppress(OSError):
            found[f"{state.parts[-4]}/{state.parts[-2]}"] = state.read_text().strip().endswith("ACTIVE")
    return found


def boot_id() -> str:
    """The kernel's id of this boot; empty where it has none."""
    with suppress(OSError):
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    return ""


class JobProcess(NamedTuple):
    """A Python process of a job."""

    pid: int
    parent: int
    rank: int | None
    """By RANK; where no process of the job here has that, by SLURM_PROCID."""


def job_processes(job_id: int, proc: str = "/proc") -> list[JobProcess]:
    """Return the Python processes of a job on this node, by PID.

    The cgroup tells the job wherever Slurm made one, since a program cannot leave it; else the environment does.
    """
    found = list(_processes(job_id, Path(proc)))
    by_rank = any("RANK" in environment for *_, environment in found)
    name = "RANK" if by_rank else "SLURM_PROCID"
    return [JobProcess(pid, parent, _number(environment.get(name))) for pid, parent, environment in found]


def _processes(job_id: int, proc: Path) -> Iterator[tuple[int, int, dict[str, str]]]:
    for folder, environment in members(job_id, proc):
        with suppress(OSError, ValueError):
            if "python" in (folder / "exe").readlink().name:
                # The command's name in parentheses may hold anything: fields count from the last one.
                parent = int((folder / "stat").read_text().rpartition(")")[2].split()[1])
                yield int(folder.name), parent, environment


def members(job_id: int, proc: Path) -> Iterator[tuple[Path, dict[str, str]]]:
    """All processes of a job on this node, by PID: the folder of each, and what its environment says of the job."""
    for pid in sorted(int(name) for name in os.listdir(proc) if name.isdigit()):  # noqa: PTH208 - names only
        folder = proc / str(pid)
        # Processes end while they are looked at, and some are not ours to look at.
        with suppress(OSError):
            environment = _environment((folder / "environ").read_bytes())
            jobs = _JOB.findall((folder / "cgroup").read_text())
            if str(job_id) == (jobs[-1] if jobs else environment.get("SLURM_JOB_ID")):
                yield folder, environment


def _environment(raw: bytes) -> dict[str, str]:
    wanted = ("RANK", "SLURM_PROCID", "SLURM_JOB_ID")
    pairs: Iterable[tuple[str, str, str]] = (e.decode(errors="replace").partition("=") for e in raw.split(b"\0"))
    return {name: value for name, _, value in pairs if name in wanted}


def _number(text: str | None) -> int | None:
    return int(text) if text and text.isascii() and text.isdigit() and len(text) < 10 else None  # noqa: PLR2004
