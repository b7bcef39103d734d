"""What the agent is told: options, a settings file, and the token that lets it speak for its node.

AgentSettingsError    one line says what is wrong and what to do
"""

import os
import re
import socket
import stat
from collections.abc import Mapping
from typing import Any, NamedTuple, get_args
from urllib.parse import urlsplit

from relight.workers.agent_faults import Kind
from relight.workers.agent_kernel import Rule, rule

NODE = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,62}")
SHORTEST_BEAT, LONGEST_BEAT = 0.1, 30.0
_LOOPBACK = frozenset({"127.0.0.1", "::1", "localhost"})
_TOKEN = re.compile(r"[\x21-\x7e]{16,512}")


class AgentSettingsError(Exception):
    """The agent cannot start so."""


LONGEST_SCRIPT = 600.0


class Care(NamedTuple):
    """How the node is checked before it is returned to service."""

    check: str = ""
    """The site's own script, such as LBNL NHC's. Run as the agent's user; exit status 0: healthy. Empty: none."""
    timeout: float = 120.0
    """Seconds after which the script is ended and says nothing."""
    python: str = ""
    """A Python that has PyTorch or CuPy, for the exercise of the GPUs; default: our own."""


class AgentFile(NamedTuple):
    """The settings file: YAML with these keys, all of them optional."""

    beat: float = 5.0
    """Seconds between two beats, and between two readings of the GPUs; the host is looked at every third time."""
    paths: tuple[str, ...] = ("/", "/tmp", "/dev/shm")  # noqa: S108 - looked at, never written to
    """Must answer and have space left."""
    mounts: bool = True
    """Whether every network mount must answer and have space left, too."""
    nvml: bool = True
    """False on a node without GPUs: not seeing any is then no blindness."""
    state: str = ""
    """File that says what was told and read; default: see `state_path`."""
    py_spy: str = ""
    """Program; default: beside our own Python, else on PATH."""
    plain_http: bool = False
    """Send the token unencrypted to another machine, where whoever listens can speak for this node afterwards."""
    care: Care = Care()
    """`{check: /etc/relight/node-check, timeout: 120, python: /opt/torch/bin/python}`, all optional."""
    rules: tuple[Rule, ...] = ()
    """Kernel messages of the site's own: `{kind: fabric, pattern: 'ice .*: Device recovery failed'}` each."""


def read_file(path: str) -> AgentFile:
    """Read the settings file.

    Raises:
        AgentSettingsError: when it cannot be read, or a key does not exist or has a value of another kind.
    """
    import yaml  # its memory is spent only where there is a file

    try:
        with open(path, encoding="utf-8") as file:  # noqa: PTH123 - plain
            content = yaml.safe_load(file) or {}
    except OSError as error:
        raise AgentSettingsError(f"{path}: {error.strerror}") from None
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise AgentSettingsError(f"{path}: not YAML: {' '.join(str(error).split())[:200]}") from None
    if not isinstance(content, dict):
        raise AgentSettingsError(f"{path}: must be `key: value` lines")
    return AgentFile(**{key: _value(path, key, value) for key, value in content.items()})


def _value(path: str, key: object, value: object) -> Any:
    if key not in AgentFile._fields:
        raise AgentSettingsError(f"{path}: no setting {key!r}; there are {', '.join(AgentFile._fields)}")
    match key, value:
        case "rules", list():
            return tuple(_rule(path, each) for each in value)
        case "care", dict():
            return Care(**{str(name): _care(path, name, each) for name, each in value.items()})
        case "paths", list() if all(isinstance(each, str) and each.startswith("/") for each in value):
            return tuple(value)
        case "beat", int() | float() if not isinstance(value, bool) and SHORTEST_BEAT <= value <= LONGEST_BEAT:
            return float(value)
        case ("mounts" | "nvml" | "plain_http", bool()) | ("state" | "py_spy", str()):
            return value
    wanted = {
        "beat": f"seconds from {SHORTEST_BEAT} to {LONGEST_BEAT}",
        "rules": "a list",
        "paths": "a list of absolute paths",
        "care": "a mapping with check, timeout, python",
        "state": "a path",
        "py_spy": "a path",
    }
    raise AgentSettingsError(f"{path}: {key} must be {wanted.get(str(key), 'true or false')}")


def _care(path: str, key: object, value: object) -> Any:
    if key not in Care._fields:
        raise AgentSettingsError(f"{path}: no setting care.{key}; there are {', '.join(Care._fields)}")
    match key, value:
        case "timeout", int() | float() if not isinstance(value, bool) and 1 <= value <= LONGEST_SCRIPT:
            return float(value)
        case ("check" | "python", str()) if not value or value.startswith("/"):
            return value
    wanted = f"seconds from 1 to {LONGEST_SCRIPT:.0f}" if key == "timeout" else "an absolute path"
    raise AgentSettingsError(f"{path}: care.{key} must be {wanted}")


def _rule(path: str, value: object) -> Rule:
    match value:
        case {"kind": kind, "pattern": str(pattern), **more} if kind in get_args(Kind) and not more:
            try:
                return rule(kind, pattern)
            except re.error as error:
                raise AgentSettingsError(f"{path}: rules: {pattern!r} is no regular expression: {error}") from None
    kinds = ", ".join(get_args(Kind))
    raise AgentSettingsError(f"{path}: rules must be a list of {{kind: ..., pattern: ...}}; kinds are {kinds}")


class Controller(NamedTuple):
    """Where reports go."""

    tls: bool
    host: str
    port: int
    path: str


def controller(url: str, *, plain_http: bool = False) -> Controller:
    """Read the controller's address.

    Raises:
        AgentSettingsError: when it is none, or would send the token unencrypted.
    """
    try:
        parts = urlsplit(url)
        host, port = parts.hostname, parts.port
    except ValueError as error:
        raise AgentSettingsError(f"--controller {url!r}: {error}") from None
    if parts.scheme not in ("https", "http") or not host or parts.query or parts.fragment or parts.username:
        raise AgentSettingsError(f"--controller {url!r} is no address such as https://controller.example:8443")
    tls = parts.scheme == "https"
    if not tls and host not in _LOOPBACK and not plain_http:
        raise AgentSettingsError(
            f"--controller {url!r} would send the token unencrypted: use https, or set plain_http: true in --config"
        )
    return Controller(tls, host, port or (443 if tls else 80), f"{parts.path.rstrip('/')}/v1/report")


def read_token(path: str) -> str:
    """Read the token. Who else can read it can speak for this node; so only its owner, and perhaps a group, may.

    Raises:
        AgentSettingsError: when it cannot be read, is not kept safe, or is no token.
    """
    try:
        with open(path, encoding="ascii") as file:  # noqa: PTH123 - plain
            about = os.fstat(file.fileno())
            text = file.read(4096).strip()
    except OSError as error:
        raise AgentSettingsError(f"token file {path}: {error.strerror}") from None
    except UnicodeDecodeError:
        text, about = "", None
    if about is not None:
        if not stat.S_ISREG(about.st_mode):
            raise AgentSettingsError(f"token file {path}: is no plain file")
        if about.st_mode & 0o027:
            raise AgentSettingsError(f"token file {path}: others can read or change it; chmod 0600 {path}")
        if about.st_uid not in (0, os.geteuid()):
            raise AgentSettingsError(f"token file {path}: belongs to neither root nor this user")
    if not _TOKEN.fullmatch(text):
        raise AgentSettingsError(f"token file {path}: holds no token (one word of 16 to 512 signs)")
    return text


def node_name(given: str | None, environment: Mapping[str, str]) -> str:
    """The node's name in Slurm: as given, as slurmd says it, or the short host name.

    Raises:
        AgentSettingsError: when it is no node name.
    """
    name = given or environment.get("SLURMD_NODENAME") or socket.gethostname().partition(".")[0]
    if not NODE.fullmatch(name):
        raise AgentSettingsError(f"--node {name!r} is no node name")
    return name
