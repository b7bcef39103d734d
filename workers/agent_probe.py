"""Answers what the controller asks: Python stacks of a job's processes on this node, by py-spy, and what all have used.

Bounded in processes, time and output. `--nonblocking`: a process is not stopped while it is looked at.
"""

import json
import os
import resource
import subprocess
import time
from collections import deque
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from queue import SimpleQueue
from typing import Any

from relight.clients.host_state import JobProcess, job_processes
from relight.clients.job_usage import process_cpu_s, usage
from relight.workers.agent_faults import printable
from relight.workers.agent_watch import Post, Watcher

MAX_STACKS = 64
MAX_FRAMES = 64
MAX_ANSWER = 100_000
"""Bytes of all frames of one answer; later processes are left out, and that is said. The endpoint takes 256 KiB."""
EACH = 5.0
"""Seconds for one process."""
ALL = 20.0
"""Seconds for one probe."""
_STATES = {"T": "stopped", "t": "stopped", "D": "uninterruptible"}
"""Of proc(5): stopped by a signal or a debugger; waiting for a device or a file system that does not answer."""
_OUTPUT = 4 << 20
_FRAME = 200
_PROBLEM = 300
_KEPT = 64


class Probe(Watcher):
    """Takes stacks, one probe after the other.

    Args:
        post: gets each answer, in the form of a `ProbeAnswer`.
        program: py-spy.
    """

    def __init__(self, post: Post, program: str) -> None:
        """Not started."""
        super().__init__("probe", post)
        self._program = program
        self._asked: SimpleQueue[tuple[str, str, int, frozenset[int]]] = SimpleQueue()
        self._known: deque[str] = deque(maxlen=_KEPT)
        self.problem = ""

    def ask(self, identity: str, kind: str, job_id: int, gpu_pids: frozenset[int]) -> None:
        """Take a question in; the same one asked again, before its answer has arrived, is answered once."""
        if identity not in self._known:
            self._known.append(identity)
            self._asked.put((identity, kind, job_id, gpu_pids))

    def run(self) -> None:
        """Answer for ever."""
        while True:
            identity, kind, job_id, gpu_pids = self._asked.get()
            answer: dict[str, Any] = {"id": identity, "stacks": [], "problem": ""}
            if kind == "stacks":
                try:
                    answer |= stacks(job_processes(job_id), gpu_pids, self._program)
                    used = usage(job_id, {stack["pid"] for stack in answer["stacks"]})
                    answer["usage"] = used and used._asdict()
                except OSError as error:
                    answer["problem"] = printable(f"{error.filename}: {error.strerror}", _PROBLEM)
            else:
                answer["problem"] = printable(f"this agent knows no probe {kind!r}", _PROBLEM)
            self._post(Answer(answer | {"at": datetime.now(UTC).isoformat()}))


class Answer(dict[str, Any]):
    """A `ProbeAnswer`, as it is sent."""


def stacks(
    processes: list[JobProcess],
    gpu_pids: frozenset[int],
    program: str,
    clock: Callable[[], float] = time.monotonic,
) -> dict[str, Any]:
    """`stacks` and `problem` of an answer.

    Args:
        processes: of the job.
        gpu_pids: processes with a compute context: they are asked first.
        program: py-spy.
        clock: seconds that only grow.
    """
    chosen = choose(processes, gpu_pids)
    end, found, left = clock() + ALL, [], MAX_ANSWER
    for process in chosen[:MAX_STACKS]:
        frames: list[str] = []
        if clock() >= end:
            problem = f"not taken: {ALL:.0f} s were over"
        elif left <= 0:
            problem = "not taken: the answer is full"
        else:
            frames, problem = dump(process.pid, program, min(EACH, end - clock()))
        left -= sum(len(frame.encode()) for frame in frames)
        taken: dict[str, Any] = {"pid": process.pid, "rank": process.rank, "frames": frames, "problem": problem}
        found.append(taken | {"state": state(process.pid), "cpu_s": process_cpu_s(process.pid)})
    missing = len(chosen) - len(found)
    problem = f"{missing} processes more were not looked at" if missing > 0 else ""
    return {"stacks": found, "problem": problem if found else "no Python process of the job on this node"}


def choose(processes: list[JobProcess], gpu_pids: frozenset[int]) -> list[JobProcess]:
    """The processes worth asking, those with a GPU first, then by rank.

    A child of the same rank is a helper, such as a data loader's worker: it waits whatever its rank does.
    """
    ranks = {process.pid: process.rank for process in processes}
    mains = [p for p in processes if p.rank is None or ranks.get(p.parent) != p.rank or p.pid in gpu_pids]
    return sorted(mains, key=lambda p: (p.pid not in gpu_pids, p.rank is None, p.rank or 0, p.pid))


def state(pid: int) -> str:
    """What a process that does not run is held by, in the kernel's words; empty where it runs or sleeps."""
    try:
        with open(f"/proc/{pid}/stat", encoding="ascii", errors="replace") as file:  # noqa: PTH123 - plain
            # The command's name in parentheses may hold anything: fields count from the last one.
            return _STATES.get(file.read().rpartition(")")[2].split()[0], "")
    except (OSError, IndexError):
        return ""


def dump(pid: int, program: str, timeout_s: float) -> tuple[list[str], str]:
    """The main thread's frames, innermost first; or none, and why."""
    command = [program, "dump", "--nonblocking", "--json", "--pid", str(pid)]
    # Into memory of a limited size: what a program calls its functions is not ours to trust.
    out = os.memfd_create("stack")
    try:
        process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=out, stderr=subprocess.PIPE, env={"PATH": "/usr/bin:/bin"}
        )
        with process:
            try:
                resource.prlimit(process.pid, resource.RLIMIT_FSIZE, (_OUTPUT, _OUTPUT))
                _, said = process.communicate(timeout=timeout_s)
            except subprocess.TimeoutExpired:
                process.kill()
                return [], f"py-spy took longer than {timeout_s:.0f} s"
            except ProcessLookupError:
                _, said = process.communicate()
        if process.returncode:
            return [], printable(said.decode(errors="replace"), _PROBLEM) or f"py-spy ended with {process.returncode}"
        return frames(json.loads(os.pread(out, _OUTPUT, 0))), ""
    except OSError as error:
        return [], printable(f"{program}: {error.strerror}", _PROBLEM)
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        return [], printable(f"py-spy's answer cannot be read: {error}", _PROBLEM)
    finally:
        os.close(out)


def frames(threads: list[Mapping[str, Any]]) -> list[str]:
    """Frames `function (file:line)` of the main thread, or of the first one where none is called so."""
    main = next(
        (thread for thread in threads if thread["thread_name"] == "MainThread"), threads[0] if threads else None
    )
    if main is None:
        return []
    lines = (
        f"{f['name']} ({f.get('short_filename') or f['filename']}:{f['line']})" for f in main["frames"][:MAX_FRAMES]
    )
    return [printable(line, _FRAME) for line in lines]
