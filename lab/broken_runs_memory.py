"""A memory cgroup of our own, and what the kernel logs when it kills in it. Needs root."""

import re
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

_V1, _V2 = Path("/sys/fs/cgroup/memory"), Path("/sys/fs/cgroup")
LIMIT = 640 << 20
"""Bytes: a rank with PyTorch has 300 MiB when it trains."""


class NoCgroupError(Exception):
    """This machine lets us make no memory cgroup; the message says why."""


@contextmanager
def limited_cgroup(name: str) -> Iterator[Path]:
    """A new cgroup whose processes share `LIMIT`; it is removed at the end."""
    first = (_V1 / "cgroup.procs").exists()
    folder = (_V1 if first else _V2) / name
    try:
        folder.mkdir()
    except OSError as error:
        raise NoCgroupError(f"{folder}: {error.strerror}") from error
    try:
        try:
            (folder / ("memory.limit_in_bytes" if first else "memory.max")).write_text(str(LIMIT))
        except OSError as error:
            raise NoCgroupError(f"{folder}: no memory limit can be set: {error.strerror}") from error
        yield folder
    finally:
        with suppress(OSError):  # of a cluster that is about to be stopped a process may still be in it
            folder.rmdir()


def kernel_messages() -> str:
    """The kernel's log, as far back as it reaches."""
    return subprocess.run(["dmesg", "--time-format", "iso"], capture_output=True, text=True, check=False).stdout


def kills(messages: str, cgroup: str, node: str) -> list[str]:
    """What the kernel has logged of kills in a cgroup of that name, as that node's syslog would have it."""
    found: list[str] = []
    report: list[str] = []
    for line in messages.splitlines():
        if "invoked oom-killer" in line:
            report = []
        report.append(line)
        if "Killed process" in line:
            found += report if any(f"/{cgroup}," in each for each in report) else []
            report = []
    # dmesg's ISO stamps have a comma where syslog's have a point.
    return [re.sub(r"^(\S+?),(\d+\S+) ", rf"\1.\2 {node} kernel: ", line) for line in found]
