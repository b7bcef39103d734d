"""The agent's checks of its node, made when the controller asks: each a process of its own, bounded in time and output.

One after the other in a thread of their own, so that stacks can be asked for meanwhile. What takes too long is ended
and is *unknown*; what cannot be ended, because it waits for a device that does not answer, is left behind.
"""

import json
import os
import signal
import stat
import subprocess
import sys
import tempfile
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from queue import SimpleQueue
from typing import Any, NamedTuple

from relight.workers.agent_faults import printable
from relight.workers.agent_probe import Answer
from relight.workers.agent_settings import Care
from relight.workers.agent_watch import Post, Watcher

PASSED, FAILED, UNKNOWN, NOT_POSSIBLE = "passed", "failed", "unknown", "not possible"
LIMITS = {"nvml": 30.0, "exercise": 90.0, "disk": 30.0, "network": 30.0}
"""Seconds for each; the script's own limit is a setting."""
MAX_TEXT = 600
MAX_OUTPUT = 16_000
_FILE = 1 << 20
_KEPT = 16
_NO_LIBRARY = 3
"""The exit status of `agent_exercise` where there is nothing to make it with."""


class Asked(NamedTuple):
    """A question of the controller's."""

    id: str
    gpus: int
    reach: tuple[str, ...]


class Ended(NamedTuple):
    """How a child process ended. `status` is None where it had to be ended, or could not be started."""

    status: int | None
    out: bytes
    why: str = ""


class Checks(Watcher):
    """Checks this node, one question after the other.

    Args:
        post: gets each answer, in the form of a `ProbeAnswer`.
        node: this node's name, for the site's script.
        controller: `host:port` of the controller.
        care: the site's script and the Python that has a GPU library.
        nvml: False on a node without GPUs.
        folders: whose file systems must have space; a file is written into the system's folder for temporary files.
    """

    def __init__(
        self, post: Post, *, node: str, controller: str, care: Care, nvml: bool, folders: Sequence[str]
    ) -> None:
        """Not started."""
        super().__init__("checks", post)
        self._node = node
        self._controller = controller
        self._care = care
        self._nvml = nvml
        self._folders = folders
        self._asked: SimpleQueue[Asked] = SimpleQueue()
        self._known: deque[str] = deque(maxlen=_KEPT)
        self.problem = ""

    def ask(self, asked: Asked) -> None:
        """Take a question in; the same one asked again, before its answer has arrived, is answered once."""
        if asked.id not in self._known:
            self._known.append(asked.id)
            self._asked.put(asked)

    def run(self) -> None:
        """Answer for ever."""
        while True:
            asked = self._asked.get()
            checks = [
                self.check("nvml", partial(self._gpus, asked.gpus)),
                self.check("exercise", self._exercise),
                self.check("disk", partial(_ours, "disk", [tempfile.gettempdir(), *self._folders])),
                self.check("network", partial(_ours, "network", [self._controller, *asked.reach])),
                self.check("script", self._script),
            ]
            cards: list[Any] = next((check.pop("cards") for check in checks if "cards" in check), [])
            self._post(Answer({"id": asked.id, "at": datetime.now(UTC).isoformat(), "checks": checks, "cards": cards}))

    def check(self, name: str, make: Callable[[], dict[str, Any]]) -> dict[str, Any]:
        """One check as a `NodeCheck`, whatever happens in it."""
        began = time.monotonic()
        try:
            found = make()
        except OSError as error:
            found = {"result": UNKNOWN, "text": f"{error.filename or ''}: {error.strerror}".strip(": ")}
        took = {"name": name, "seconds": round(time.monotonic() - began, 1)}
        return {**found, **took, "text": printable(str(found.get("text", "")), MAX_TEXT)}

    def _gpus(self, expected: int) -> dict[str, Any]:
        if not self._nvml:
            return {"result": NOT_POSSIBLE, "text": "this agent is told that the node has no GPUs (nvml: false)"}
        return _ours("nvml", [str(expected)])

    def _exercise(self) -> dict[str, Any]:
        if not self._nvml:
            return {"result": NOT_POSSIBLE, "text": "no GPUs (nvml: false)"}
        program = Path(__file__).with_name("agent_exercise.py")
        ended = run([self._care.python or sys.executable, str(program)], LIMITS["exercise"])
        return exercised(ended)

    def _script(self) -> dict[str, Any]:
        script = self._care.check
        if not script:
            return {"result": NOT_POSSIBLE, "text": "no script is set (care.check)"}
        if why := unsafe(script):
            return {"result": UNKNOWN, "text": f"{script} is not run: {why}"}
        ended = run([script], self._care.timeout, {"SLURMD_NODENAME": self._node, "RELIGHT_NODE": self._node})
        output = ended.out.decode(errors="replace")
        return {**scripted(script, ended), "output": _shown(output[-MAX_OUTPUT:])}


def scripted(script: str, ended: Ended) -> dict[str, Any]:
    """The site's script: exit status 0 is healthy, any other is not, and one that has no status tells nothing."""
    lines = [line for line in ended.out.decode(errors="replace").splitlines() if line.strip()]
    last = f": {lines[-1].strip()}" if lines else ""
    if ended.status is None or ended.status < 0:
        return {"result": UNKNOWN, "text": f"{script}: {ended.why or f'ended by signal {-(ended.status or 0)}'}{last}"}
    result = FAILED if ended.status else PASSED
    return {"result": result, "text": f"{script} ended with {ended.status}{last}"}


def exercised(ended: Ended) -> dict[str, Any]:
    """What `agent_exercise` said: one GPU that fails fails all, and what was not made on all is unknown."""
    said = [line for line in map(_object, ended.out.splitlines()) if line]
    gpus = [line for line in said if "gpu" in line]
    if ended.status == _NO_LIBRARY and not gpus:
        return {"result": NOT_POSSIBLE, "text": str(said[-1].get("why", "") if said else "no library")}
    wrong = [f"GPU {line['gpu']}: {line.get('text', '')}" for line in gpus if line.get("ok") is False]
    open_ = [f"GPU {line['gpu']}: {line.get('text', '')}" for line in gpus if line.get("ok") is None]
    if wrong:
        return {"result": FAILED, "text": "; ".join(wrong)}
    if ended.status != 0 or open_ or not gpus:
        return {"result": UNKNOWN, "text": "; ".join([ended.why or f"ended with {ended.status}", *open_])}
    return {"result": PASSED, "text": f"{len(gpus)} GPUs, each {gpus[0].get('text', '')}"}


def _object(line: bytes) -> dict[str, Any]:
    try:
        found = json.loads(line)
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}


def _ours(name: str, arguments: Sequence[str]) -> dict[str, Any]:
    """One of the checks in `agent_check`."""
    ended = run([sys.executable, "-m", "relight.workers.agent_check", name, *arguments], LIMITS[name])
    found = _object(ended.out)
    if ended.status == 0 and found.get("result") in {PASSED, FAILED, UNKNOWN}:
        return {key: found[key] for key in ("result", "text", "cards") if key in found} | {
            "output": str(found.get("output", ""))[:MAX_OUTPUT]
        }
    return {"result": UNKNOWN, "text": ended.why or f"the check itself ended with {ended.status}"}


def run(command: Sequence[str], within: float, more: Mapping[str, str] | None = None) -> Ended:
    """Run a program to its end, or end it: with all that it has started, and into a file of bounded size.

    Args:
        command: is not given a shell.
        within: seconds.
        more: environment beside our own; None: our own. With it, nothing of ours but PATH is passed on.
    """
    bare = {"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "LC_ALL": "C", "HOME": "/"}
    environment = None if more is None else {**bare, **more}
    out = os.memfd_create("check")
    try:
        process = subprocess.Popen(
            list(command),
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=subprocess.STDOUT if more is not None else subprocess.DEVNULL,
            env=environment,
            cwd="/",
            start_new_session=True,
        )
        status = _wait(process, within)
        why = "" if status is not None else f"took longer than {within:.0f} s and was ended"
        # From the end: what a program says last is why it ended.
        size = os.fstat(out).st_size
        return Ended(status, os.pread(out, _FILE, max(0, size - _FILE)), why)
    except OSError as error:
        return Ended(None, b"", f"cannot be run: {error.strerror}")
    finally:
        os.close(out)


def _wait(process: "subprocess.Popen[bytes]", within: float) -> int | None:
    try:
        return process.wait(within)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        # One that waits in the kernel goes when that lets it.
        with suppress(subprocess.TimeoutExpired):
            process.wait(2)
        return None


def unsafe(script: str) -> str:
    """Why a script must not be run with our rights; empty where nobody but root or ourselves can change it."""
    path = Path(script)
    try:
        found = [(path.stat(), path), *((parent.stat(), parent) for parent in path.resolve().parents)]
    except OSError as error:
        return str(error.strerror)
    if not stat.S_ISREG(found[0][0].st_mode):
        return "no plain file"
    for about, place in found:
        sticky = stat.S_ISDIR(about.st_mode) and about.st_mode & stat.S_ISVTX
        if about.st_uid not in (0, os.geteuid()) or (about.st_mode & 0o022 and not sticky):
            return f"others can change {place}"
    return "" if os.access(script, os.X_OK) else "it is not executable"


def _shown(text: str) -> str:
    """Output as it is kept: its lines, and nothing that a terminal obeys."""
    return "".join(sign if sign.isprintable() or sign == "\n" else " " for sign in text)
