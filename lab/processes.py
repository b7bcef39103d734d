"""Daemons that outlive their starter, and signals that reach only them.

A process is remembered by its PID *and* its start time, so a recycled PID is never taken for it, and it is
signalled through a pidfd, so it cannot be recycled between the check and the signal.
"""

import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

from pydantic import BaseModel, ConfigDict

MARK = "RELIGHT_LAB_CLUSTER"
"""Environment variable of each daemon: the folder of its cluster."""


class WaitTimeoutError(Exception):
    """Something that was waited for did not happen in time."""


class DaemonStartError(Exception):
    """A daemon could not be started, or ended at once."""


class Process(BaseModel):
    """One process of this machine, this and no later one with the same PID."""

    model_config = ConfigDict(frozen=True)

    pid: int
    started: int
    """Start time in clock ticks since boot, field 22 of /proc/PID/stat."""

    @classmethod
    def of(cls, pid: int) -> "Process | None":
        """Return the live process with that PID, or None when there is none (a zombie is none)."""
        try:
            # The command name in parentheses may hold spaces: split after the last one.
            fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        except OSError:
            return None
        return None if fields[0] in "ZX" else cls(pid=pid, started=int(fields[19]))

    @property
    def alive(self) -> bool:
        """Whether it still runs. A zombie is dead: PID 1 may be late in reaping it."""
        return Process.of(self.pid) == self

    def signal(self, number: signal.Signals) -> bool:
        """Send a signal; return False when the process is gone."""
        try:
            handle = os.pidfd_open(self.pid)
        except ProcessLookupError:
            return False
        try:
            if not self.alive:
                return False
            signal.pidfd_send_signal(handle, number)
        except ProcessLookupError:
            return False
        finally:
            os.close(handle)
        return True

    def end(self, patience_s: float = 8.0) -> None:
        """Send SIGTERM, and SIGKILL when it is still there after `patience_s`; return when it is gone."""
        if self.signal(signal.SIGTERM):
            try:
                wait_until(lambda: not self.alive, patience_s, f"process {self.pid} to end")
            except WaitTimeoutError:
                self.kill()

    def kill(self) -> None:
        """Send SIGKILL and return when it is gone."""
        kill_all([self])


def kill_all(processes: Sequence[Process]) -> None:
    """Send SIGKILL to all of them, then return when all are gone."""
    for process in processes:
        process.signal(signal.SIGKILL)
    wait_until(lambda: not any(process.alive for process in processes), 10, "processes to be gone after SIGKILL")


def spawn(command: Sequence[str], log: Path, environment: Mapping[str, str]) -> Process:
    """Start a daemon in a session of its own, its output appended to `log`.

    It is not our child (setsid forks), so it survives us and leaves no zombie with us.
    """
    # The inner shell tells its PID, which the daemon inherits by exec.
    inner = 'echo $$; log=$0; exec "$@" >>"$log" 2>&1 </dev/null'
    # What a shell starts in the background ignores interrupts, and so would the daemon and every task of every job.
    line = ["/usr/bin/env", "--default-signal=INT,QUIT", "setsid", "--fork", "sh", "-c", inner, str(log), *command]
    done = subprocess.run(line, env=dict(environment), stdout=subprocess.PIPE, text=True, check=True)
    process = Process.of(int(done.stdout))
    if process is None:
        raise DaemonStartError(f"{command[0]} ended at once; see {log}")
    return process


def marked(folder: Path) -> Iterator[Process]:
    """Yield the live processes that carry the mark of the cluster in `folder`."""
    wanted = f"{MARK}={folder}".encode()
    for pid in pids():
        if wanted in environ(pid) and (process := Process.of(pid)):
            yield process


def pids() -> Iterator[int]:
    """Yield the PID of every process that this PID namespace shows."""
    yield from (int(entry.name) for entry in Path("/proc").iterdir() if entry.name.isdigit())


def environ(pid: int) -> list[bytes]:
    """Return the `NAME=value` entries a process was started with; empty when it may not be read or is gone."""
    try:
        return Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
    except OSError:
        return []


def children(pid: int) -> list[int]:
    """Return the PIDs of the direct children of a process."""
    try:
        return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    except OSError:
        return []


def descendants(pid: int) -> list[int]:
    """Return the PIDs of all that a process has started and that have not been re-parented."""
    found: list[int] = []
    for child in children(pid):
        found += [child, *descendants(child)]
    return found


def wait_until(condition: Callable[[], bool], timeout_s: float, what: str, every_s: float = 0.03) -> None:
    """Poll until `condition` holds; raise `WaitTimeoutError` naming `what` after `timeout_s`."""
    deadline = time.monotonic() + timeout_s
    while not condition():
        if time.monotonic() > deadline:
            raise WaitTimeoutError(f"waited {timeout_s:g} s for {what}")
        time.sleep(every_s)
