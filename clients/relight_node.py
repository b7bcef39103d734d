#!/usr/bin/python3 -I
"""relight-node: drain, undrain or down one Slurm node, or hand it to its platform's repair, within narrow limits.

Relight's service runs with Slurm's Operator level, which cannot change nodes. An administrator installs this
one file, owned by root, as /usr/local/sbin/relight-node (mode 0755). It imports nothing but the standard library
and trusts nothing that its caller says.

  relight-node drain NODE REASON     REASON is `relight:<incident>:<class>: text`, printable, at most 200 signs
  relight-node undrain NODE          only where the node's reason begins with `relight:`
  relight-node down NODE REASON      only while the node is completing, not responding, or drained by Relight
  relight-node action NODE WORD      WORD is Reboot or Replace: only a node that Relight drained, with nothing on it,
                                     gets State=FAIL and the reason Action:WORD; actions_per_hour must allow it

Exit status: 0 done or already so, 1 failed, 2 usage, 3 refused, 4 no such node, 5 perhaps done: look first.

sudoers (visudo -f /etc/sudoers.d/relight):
  relight ALL=(root) NOPASSWD: /usr/local/sbin/relight-node

SSH forced command (one line in the authorized_keys of root, or of SlurmUser together with a state folder of its own):
  restrict,command="/usr/local/sbin/relight-node" ssh-ed25519 AAAA... relight

Settings, for this file as PREFIX/sbin/NAME: PREFIX/etc/NAME.conf where that exists, else /etc/NAME.conf; owned by root,
`key = value` lines, all of them optional:
  scontrol = /usr/bin/scontrol
  slurm_conf = /etc/slurm/slurm.conf
  drains_per_hour = 1
  downs_per_hour = 4
  actions_per_hour = 0
  state = /var/lib/relight-node/NAME.json
  timeout = 20
"""

import contextlib
import fcntl
import json
import os
import re
import shlex
import signal
import stat
import subprocess
import sys
import syslog
import time
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple, NoReturn

OK, FAILED, USAGE, REFUSED, NOT_FOUND, AMBIGUOUS = range(6)

NODE = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,62}")
REASON = re.compile(r"relight:([A-Za-z0-9][A-Za-z0-9._/+@-]{0,119}):([A-Za-z][A-Za-z0-9._-]{0,39}): .+")
LONGEST_REASON = 200
OURS = "relight:"
NOT_RESPONDING = "Not responding"
BUSY = frozenset({"ALLOCATED", "MIXED", "COMPLETING"})
WORDS = ("Reboot", "Replace")
"""What a platform such as SageMaker HyperPod can be asked for."""
HOUR = 3600.0
DEFAULTS = {
    "scontrol": "/usr/bin/scontrol",
    "slurm_conf": "",
    "drains_per_hour": "1",
    "downs_per_hour": "4",
    "actions_per_hour": "0",
    "state": "",
    "timeout": "20",
}


class Stop(Exception):  # noqa: N818 - it ends the program, with this status and this line
    """The end, with an exit status and one line for a person."""

    def __init__(self, status: int, text: str) -> None:
        super().__init__(text)
        self.status = status


class Request(NamedTuple):
    """What the caller asks for."""

    action: str
    node: str
    reason: str


class Node(NamedTuple):
    """What slurmctld says of the node right now."""

    states: frozenset[str]
    responding: bool
    reason: str

    @property
    def drained(self) -> bool:
        """True with the drain flag, whether or not work still runs there."""
        return "DRAIN" in self.states

    @property
    def ours(self) -> bool:
        """True when the mark is Relight's."""
        return self.reason.startswith(OURS)

    @property
    def foreign(self) -> bool:
        """True when somebody else has set it aside, or given a reason of their own.

        "Not responding" is slurmctld's own remark on a lost node and nobody's decision.
        """
        if self.ours:
            return False
        return self.drained or self.reason not in ("", NOT_RESPONDING)


def parse_request(arguments: list[str]) -> Request:
    """Check the caller's words; nothing of them reaches Slurm otherwise."""
    action = arguments[0] if arguments else ""
    wanted = {"drain": 3, "undrain": 2, "down": 3, "action": 3}.get(action)
    if wanted is None or len(arguments) != wanted:
        usage = "drain NODE REASON | undrain NODE | down NODE REASON | action NODE Reboot|Replace"
        raise Stop(USAGE, f"usage: relight-node {usage}")
    node, reason = arguments[1], arguments[2] if wanted == 3 else ""  # noqa: PLR2004
    if not NODE.fullmatch(node):
        raise Stop(USAGE, "not one plain node name")
    if action == "action":
        if reason not in WORDS:
            raise Stop(USAGE, "the word must be Reboot or Replace")
        return Request(action, node, f"Action:{reason}")
    good = len(reason) <= LONGEST_REASON and reason.isprintable() and REASON.fullmatch(reason)
    if wanted == 3 and not good:  # noqa: PLR2004
        raise Stop(USAGE, "the reason must read `relight:<incident>:<class>: text`, printable, at most 200 signs")
    return Request(action, node, reason)


def words_of_caller(arguments: list[str], environment: dict[str, str]) -> list[str]:
    """The arguments, or as an SSH forced command what the client asked for."""
    original = environment.get("SSH_ORIGINAL_COMMAND", "")
    if arguments or not original:
        return arguments
    try:
        words = shlex.split(original)
    except ValueError:
        raise Stop(USAGE, "unbalanced quotes") from None
    return words[1:] if words and os.path.basename(words[0]) == "relight-node" else words  # noqa: PTH119


def settings_file(program: Path) -> Path:
    """Where the settings are: decided by where root has put the program, never by the caller."""
    name = program.name.removesuffix(".py").replace("_", "-")
    beside = program.parent.parent / "etc" / f"{name}.conf"
    return beside if beside.exists() else Path("/etc", f"{name}.conf")


def read_settings(path: Path) -> dict[str, str]:
    """The settings file, believed only where nobody but root (or ourselves) can write it."""
    settings = dict(DEFAULTS, state=f"/var/lib/relight-node/{path.stem}.json")
    try:
        file = path.open(encoding="utf-8")
    except FileNotFoundError:
        return settings
    except OSError as error:
        raise Stop(FAILED, f"cannot read {path}: {error.strerror}") from None
    with file:
        about = os.fstat(file.fileno())
        if about.st_uid not in (0, os.geteuid()) or about.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
            raise Stop(FAILED, f"{path} is not root's alone")
        lines = file.read().splitlines()
    for line in lines:
        key, sign, value = line.partition("=")
        if line.strip() and not line.lstrip().startswith("#"):
            if not sign or key.strip() not in settings:
                raise Stop(FAILED, f"{path}: not a setting: {line.strip()!r}")
            settings[key.strip()] = value.strip()
    if not settings["scontrol"].startswith("/"):
        raise Stop(FAILED, "scontrol must be an absolute path")
    return settings


class Scontrol:
    """Runs scontrol with an empty environment."""

    def __init__(self, settings: dict[str, str]) -> None:
        self.program = settings["scontrol"]
        self.timeout = float(settings["timeout"])
        self.environment = {"PATH": "/usr/bin:/bin", "LC_ALL": "C", "TZ": "UTC", "SLURM_TIME_FORMAT": "standard"}
        if settings["slurm_conf"]:
            self.environment["SLURM_CONF"] = settings["slurm_conf"]

    def __call__(self, *arguments: str) -> "subprocess.CompletedProcess[str]":
        """Run it to its end."""
        try:
            return subprocess.run(
                [self.program, *arguments],
                env=self.environment,
                stdin=subprocess.DEVNULL,
                capture_output=True,
                encoding="utf-8",
                errors="replace",
                timeout=self.timeout,
                check=False,
            )
        except OSError as error:
            raise Stop(FAILED, f"cannot run {self.program}: {error.strerror}") from None

    def node(self, name: str) -> Node:
        """Read one node now."""
        try:
            done = self("-o", "show", "node", name)
        except subprocess.TimeoutExpired:
            raise Stop(FAILED, "slurmctld does not answer") from None
        if re.search(r"^Node \S+ not found", done.stdout + done.stderr, re.MULTILINE):
            raise Stop(NOT_FOUND, f"no node {name}")
        return parse_node(name, done.stdout, done.stderr)

    def update(self, name: str, *changes: str) -> None:
        """Change one node. Status 1 where it is certain that nothing happened, else 5."""
        try:
            done = self("update", f"NodeName={name}", *changes)
        except subprocess.TimeoutExpired:
            raise Stop(AMBIGUOUS, "slurmctld did not answer the change") from None
        said = (done.stderr or done.stdout).strip()
        if done.returncode == 0:
            return
        if re.search(
            r"timed out|unexpected message|zero bytes|unable to contact(?!.*connect failure)", said, re.IGNORECASE
        ):
            raise Stop(AMBIGUOUS, said)
        raise Stop(FAILED, said or f"scontrol ended with {done.returncode}")


def parse_node(name: str, text: str, error: str = "") -> Node:
    """Read one line of `scontrol -o show node`. State stands before any text that a person can write."""
    state = re.search(r"\sState=(\S+)", text)
    if not text.startswith(f"NodeName={name} ") or not state:
        raise Stop(FAILED, (error or "no usable answer of scontrol").strip())
    reason = re.search(r"\sReason=(.*) \[[^\s\[\]@]+@\d{4}-\d\d-\d\dT[\d:]+\]", text, re.DOTALL)
    words = state[1].split("+")
    return Node(
        states=frozenset(word.rstrip("*~#!%$@^-") for word in words),
        responding=not any("*" in word or word in ("NOT_RESPONDING", "NO_RESPOND") for word in words),
        reason=reason[1].strip() if reason else "",
    )


def incident(reason: str) -> str:
    """`relight:<incident>:`: what two marks of one incident share."""
    found = REASON.match(reason)
    return found[1] if found else ""


class Budget:
    """How often an action was done within the last hour, in a file of root's."""

    def __init__(self, path: Path, limits: dict[str, int]) -> None:
        self.path = path
        self.limits = limits

    @contextlib.contextmanager
    def locked(self) -> Iterator[None]:
        """Hold off other calls: two at once must not both be the first."""
        self.path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        handle = os.open(self.path.with_suffix(".lock"), os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(handle, fcntl.LOCK_EX)
            yield
        finally:
            os.close(handle)

    def take(self, action: str, now: float) -> None:
        """Count one, before it is done: an action whose answer is lost has counted."""
        past = self._read()
        recent = [at for at in past.get(action, []) if now - HOUR < at <= now + HOUR]
        if len(recent) >= self.limits[action]:
            raise Stop(REFUSED, f"{len(recent)} {action}s within the last hour, and no more are allowed")
        self._write({**past, action: [*recent, now]})

    def give_back(self, action: str, at: float) -> None:
        """Take back what certainly did not happen."""
        past = self._read()
        self._write({**past, action: [other for other in past.get(action, []) if other != at]})

    def _read(self) -> dict[str, list[float]]:
        try:
            past = json.loads(self.path.read_text(encoding="utf-8"))
            return {str(key): [float(at) for at in value] for key, value in past.items()}
        except FileNotFoundError:
            return {}
        except (OSError, ValueError, TypeError, AttributeError):
            # Without its memory it cannot tell how many there were.
            raise Stop(FAILED, f"{self.path} is not readable: remove it") from None

    def _write(self, past: dict[str, list[float]]) -> None:
        fresh = self.path.with_suffix(".new")
        with fresh.open("w", encoding="utf-8") as file:
            json.dump(past, file)
            file.flush()
            os.fsync(file.fileno())
        fresh.replace(self.path)


class Wrapper:
    """What can be done to a node."""

    def __init__(self, scontrol: Scontrol, budget: Budget) -> None:
        self.scontrol = scontrol
        self.budget = budget

    def act(self, request: Request) -> str:
        """Do it, and return what was done."""
        with self.budget.locked():
            node = self.scontrol.node(request.node)
            actions = {"drain": self._drain, "undrain": self._undrain, "down": self._down, "action": self._action}
            return actions[request.action](request, node)

    def _drain(self, request: Request, node: Node) -> str:
        if node.foreign:
            raise Stop(REFUSED, f"set aside by somebody else: {node.reason or 'drained without a reason'}")
        if node.drained and incident(node.reason) == incident(request.reason):
            return "drained already"
        self._change(request, "State=DRAIN", counts=not node.drained)
        return "drained"

    def _undrain(self, request: Request, node: Node) -> str:
        if node.foreign:
            raise Stop(REFUSED, f"not Relight's: {node.reason or 'drained without a reason'}")
        if not node.ours:
            return "not drained"
        # RESUME also for one that does not answer: it is IDLE+NOT_RESPONDING then, gets no job, and is back once it
        # answers. UNDRAIN would leave it DOWN with our reason, and ReturnToService=1 takes back only a node whose
        # reason is Slurm's own (seen on 22.05).
        self.scontrol.update(request.node, "State=RESUME")
        if self.scontrol.node(request.node).drained:
            raise Stop(AMBIGUOUS, "still drained")
        return "returned to service"

    def _down(self, request: Request, node: Node) -> str:
        if node.foreign:
            raise Stop(REFUSED, f"set aside by somebody else: {node.reason or 'drained without a reason'}")
        if "DOWN" in node.states and incident(node.reason) == incident(request.reason):
            return "down already"
        if not (node.ours or "COMPLETING" in node.states or not node.responding):
            raise Stop(REFUSED, "it answers, has nothing left to end, and is not drained by Relight")
        self._change(request, "State=DOWN", counts=not node.ours)
        return "down"

    def _action(self, request: Request, node: Node) -> str:
        if node.reason.startswith(request.reason):
            return "asked for already"
        if not (node.ours and node.drained):
            raise Stop(REFUSED, f"not drained by Relight: {node.reason or 'no reason'}")
        if node.states & BUSY:
            raise Stop(REFUSED, "something is still on it")
        self._change(request, "State=FAIL", counts=True)
        return f"its platform is asked: {request.reason}"

    def _change(self, request: Request, state: str, *, counts: bool) -> None:
        now = time.time()
        if counts:
            self.budget.take(request.action, now)
        try:
            self.scontrol.update(request.node, state, f"Reason={request.reason}")
        except Stop as stop:
            if counts and stop.status == FAILED:
                self.budget.give_back(request.action, now)
            raise
        # slurmctld appends " : Not responding" to the reason of a node that it loses (seen on 22.05 and 24.11).
        if not self.scontrol.node(request.node).reason.startswith(request.reason):
            raise Stop(AMBIGUOUS, "the node's reason is not the one that was set")


def _late(_number: int, _frame: object) -> NoReturn:
    raise Stop(AMBIGUOUS, "not done in time")


def main() -> int:
    """Run as a program."""
    program = Path(__file__).resolve()
    name = program.name.removesuffix(".py").replace("_", "-")
    if sys.argv[1:] in (["--help"], ["-h"]):
        print(__doc__)  # noqa: T201
        return OK
    caller = os.environ.get("SUDO_USER") or str(os.getuid())
    words: list[str] = []
    try:
        words = words_of_caller(sys.argv[1:], dict(os.environ))
        os.environ.clear()
        os.umask(0o077)
        request = parse_request(words)
        settings = read_settings(settings_file(program))
        signal.signal(signal.SIGALRM, _late)
        signal.alarm(int(float(settings["timeout"]) * 3) + 1)
        limits = {action: int(settings[f"{action}s_per_hour"]) for action in ("drain", "down", "action")}
        status, text = OK, Wrapper(Scontrol(settings), Budget(Path(settings["state"]), limits)).act(request)
    except Stop as stop:
        status, text = stop.status, str(stop)
    except (OSError, ValueError) as error:
        status, text = FAILED, str(error)
    line = ascii(f"{' '.join(words)[:300]}: {text}")[1:-1]  # whatever the locale and however hostile
    syslog.openlog(name, syslog.LOG_PID, syslog.LOG_AUTH)
    syslog.syslog(syslog.LOG_NOTICE if status == OK else syslog.LOG_WARNING, f"{caller}: {line} ({status})")
    print(f"{name}: {line}", file=sys.stdout if status == OK else sys.stderr)
    return status


if __name__ == "__main__":
    sys.exit(main())
