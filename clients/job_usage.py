"""What a job's processes on this node have used, as the kernel counts it (proc(5)): CPU time, bytes, waits for files.

Plain tuples, no pydantic: the node agent's memory is counted. The agent must be allowed to look at other users'
processes, as it must be for their stacks.
"""

import os
import platform
from collections.abc import Container, Iterator
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from relight.clients.host_state import members

MAX_THREADS = 8192
"""Of a job with more, it is not known how many wait."""
_TICKS = os.sysconf("SC_CLK_TCK")
_COUNTED = frozenset({"rchar", "wchar", "read_bytes", "write_bytes"})
_GENERIC_OPEN = frozenset({32, 46, 47, 61, *range(63, 72), 76, 82, 83, 84, 267, 285, 286, 287})
_ON_OPEN_FILES = {
    "x86_64": frozenset({0, 1, 17, 18, 19, 20, 40, 73, 74, 75, 77, 217, 275, 277, 285, 295, 296, 306, 326, 327, 328}),
    "aarch64": _GENERIC_OPEN,
}
"""Numbers of calls that move or sync what their first argument is open on; idle threads sit in them on pipes only.

read, write, sendfile, splice, copy_file_range and their kin, flock, fsync, fdatasync, sync_file_range, syncfs,
ftruncate, fallocate, getdents64 (asm/unistd_64.h, asm-generic/unistd.h).
"""
_ON_FILES = {
    "x86_64": frozenset({2, 3, 4, 6, 21, 26, 76, 82, 83, 84, 85, 87, 137, 162, 208, 257, 258, 262, 263, 264, 316, 332}),
    "aarch64": frozenset({4, 34, 35, 38, 43, 45, 48, 56, 57, 81, 227, 276, 291}),
}
"""Of calls in which no thread is idle: open, close, stat, access, rename, unlink, mkdir, truncate, sync, msync, AIO."""


class Usage(NamedTuple):
    """As `relight.domain.reports.Usage`."""

    processes: int
    others_cpu_s: float
    moved_bytes: int
    in_files: int


def usage(
    job_id: int, apart: Container[int] = (), proc: str = "/proc", machine: str = platform.machine()
) -> Usage | None:
    """What all of a job's processes on this node have used; None where it has none, or something cannot be read.

    Args:
        job_id: whose.
        apart: those whose CPU time is told apart.
        proc: where the kernel tells.
        machine: whose numbers of calls hold.
    """
    if machine not in _ON_FILES or not Path(proc, "self/syscall").exists():
        return None
    processes, cpu, moved, threads, in_files = 0, 0.0, 0, 0, 0
    for folder, _ in members(job_id, Path(proc)):
        try:
            used = 0.0 if int(folder.name) in apart else _cpu_s(folder)
            cpu, moved, states = cpu + used, moved + _moved(folder), [*_waits(folder, machine)]
        except (FileNotFoundError, ProcessLookupError):
            continue  # it has just ended
        except (OSError, ValueError, IndexError):
            return None
        processes, threads, in_files = processes + 1, threads + len(states), in_files + sum(states)
        if threads > MAX_THREADS:
            return None
    return Usage(processes, round(cpu, 2), moved, in_files) if processes else None


def process_cpu_s(pid: int) -> float | None:
    """CPU seconds that a process has used, all its threads; None where that cannot be read."""
    try:
        return round(_cpu_s(Path("/proc", str(pid))), 2)
    except (OSError, ValueError, IndexError):
        return None


def _cpu_s(folder: Path) -> float:
    user, system = _fields(folder)[11:13]
    return (int(user) + int(system)) / _TICKS


def _moved(folder: Path) -> int:
    pairs = (line.partition(":")[::2] for line in (folder / "io").read_text().splitlines())
    return sum(int(number) for name, number in pairs if name in _COUNTED)


def _waits(folder: Path, machine: str) -> Iterator[bool]:
    """Of each thread, whether it waits for a file system or a device."""
    for thread in (folder / "task").iterdir():
        with suppress(FileNotFoundError, ProcessLookupError):
            yield _fields(thread)[0] == "D" or _is_in_file((thread / "syscall").read_text(), folder, machine)


def _is_in_file(syscall: str, folder: Path, machine: str) -> bool:
    """Whether a thread is within a call on a file: `1 0x3 ...`, `running`, or `-1 ...` outside of any call."""
    number, _, arguments = syscall.partition(" ")
    if not number.strip().isdigit():
        return False
    if int(number) in _ON_FILES[machine]:
        return True
    if int(number) not in _ON_OPEN_FILES[machine]:
        return False
    opened = (folder / "fd" / str(int(arguments.split()[0], 16))).readlink()
    # Pipes, sockets and the like have no path; a GPU or an InfiniBand port is waited for by who waits for its peers.
    return opened.is_absolute() and not opened.is_relative_to("/dev")


def _fields(folder: Path) -> list[str]:
    """From the state on; the command's name in parentheses before it may hold anything."""
    return (folder / "stat").read_text().rpartition(")")[2].split()
