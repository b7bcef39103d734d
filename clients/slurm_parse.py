"""What all parsers of Slurm's output share: the JSON envelope, numbers, times and host lists.

Pure. The JSON of 22.05 (v0.0.38) has plain numbers and null; from 23.02 on a number is
`{"set": true, "infinite": false, "number": 7}`, or with `+complex` again a plain one, null or "Infinity". All are read
by the same functions.
"""

import functools
import json
import math
import re
from collections.abc import Callable
from collections.abc import Set as AbstractSet
from datetime import UTC, datetime
from typing import Any, TypeVar

from ClusterShell.NodeSet import RESOLVER_NOGROUP, NodeSet

R = TypeVar("R")
MAX_NODES = 200_000
NO_TIME = 0xFFFFFFF0
"""Slurm's NO_VAL and INFINITE are just above. A requeued job that is COMPLETING shows an EndTime in the year 2163
(seen on 22.05): also no time."""

REMEMBERED_LISTS = 4096
REMEMBERED_HOSTS = 64
"""Host lists of up to so many hosts are expanded once and remembered: expanding them took half of the time of reading
1,000 jobs, and they are the same at each read. The largest possible memory is 4096 x 64 short strings."""

_HOST = re.compile(r"[A-Za-z0-9_.-]+")
_HOSTS = re.compile(r"[A-Za-z0-9_.,\[\]-]*")
_TASK = re.compile(r"(\d+)(?:%\d+)?")
_RANGE = re.compile(r"(\d+)(?:-(\d+))?")
_NOTHING = frozenset({"", "(null)", "None", "None assigned", "N/A", "Unknown"})


class GarbledError(Exception):
    """The text is not what Slurm prints: incomplete, or of an unknown shape."""


class ReportedError(Exception):
    """Slurm's JSON itself reports an error."""


def json_list(text: str, key: str, marks: AbstractSet[str], read: Callable[[dict[str, Any]], R]) -> tuple[R, ...]:
    """The list under `key` of one of Slurm's JSON documents, each entry as `read` makes it.

    22.05 answers exit status 0, `"jobs": []` and an entry in `errors` when slurmctld is down (seen): an empty list is
    believed only where no error is reported.

    An entry is known by its keys `marks`, which no object inside it has, and read as soon as it is whole: of 10,000
    jobs the JSON of one is in memory at a time, not 100 MiB.

    Raises:
        GarbledError: when it is no complete document, or the list is missing; whatever `read` raises.
        ReportedError: when the document reports errors.
    """

    def whole(entry: dict[str, Any]) -> dict[str, Any] | R:
        return read(entry) if marks <= entry.keys() else entry

    try:
        document = json.loads(text, strict=False, object_hook=whole)
    except (ValueError, RecursionError) as error:
        raise GarbledError(f"not a JSON document: {error}") from error
    if not isinstance(document, dict) or not isinstance(document.get(key), list):
        raise GarbledError(f"a JSON document without a list {key!r}")
    if errors := document.get("errors"):
        raise ReportedError("; ".join(_error_text(error) for error in errors))
    if any(isinstance(entry, dict | list | str | float | int | None) for entry in document[key]):
        raise GarbledError(f"{key!r} holds something without {' and '.join(sorted(marks))}")
    return tuple(document[key])


def _error_text(error: object) -> str:
    if not isinstance(error, dict):
        return str(error)
    parts = (error.get("source"), error.get("description"), error.get("error"))
    return ": ".join(str(part) for part in parts if part)


def json_version(text: str) -> str:
    """The release that wrote a JSON document, such as `22.05.8`, or an empty string."""
    found = re.search(r'"release"\s*:\s*"([^"]*)"', text)
    return found[1] if found else ""


def number(value: Any) -> int | None:
    """A number in either shape; None where it is null, not set or infinite."""
    if type(value) is int:  # nearly always, and 14 times a job
        return value
    if isinstance(value, dict):
        if value.get("infinite") or not value.get("set", True):
            return None
        value = value.get("number")
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        return None
    return int(value)


def epoch(value: Any) -> datetime | None:
    """A time given in seconds; None for 0 and for Slurm's "no value"."""
    seconds = number(value)
    if seconds is None or not 0 < seconds < NO_TIME:
        return None
    return datetime.fromtimestamp(seconds, UTC)


def iso_time(text: str) -> datetime | None:
    """A time as text, printed under TZ=UTC and SLURM_TIME_FORMAT=standard."""
    if text.strip() in _NOTHING:
        return None
    try:
        return datetime.fromisoformat(text.strip()).replace(tzinfo=UTC)
    except ValueError as error:
        raise GarbledError(f"not a time: {text!r}") from error


def word(value: Any) -> str:
    """A text field; empty for null and for the words that Slurm prints for nothing."""
    text = value if isinstance(value, str) else ""
    return "" if text in _NOTHING else text


def single_task(text: str) -> int | None:
    """The one array task of `3` or, with the array's limit of running tasks, `3%2`; None for several."""
    found = _TASK.fullmatch(text)
    return int(found[1]) if found else None


def expand_hosts(text: str | None) -> tuple[str, ...]:
    """Expand `n[1-3,7],gpu09` in the order in which Slurm wrote it.

    No group is looked up (`@name` would run an external command), and the size is checked before anything is
    expanded.

    Raises:
        GarbledError: when it is no host list, or one of more than `MAX_NODES` hosts.
    """
    if text is None or text.strip() in _NOTHING:
        return ()
    if _HOST.fullmatch(text):
        return (text,)
    if not _HOSTS.fullmatch(text):
        raise GarbledError(f"not a host list: {text[:200]!r}")
    size = sum(_size(part) for part in _top_level(text))
    if size > MAX_NODES:
        raise GarbledError(f"a host list of more than {MAX_NODES} hosts: {text[:200]!r}")
    return _expand_short(text) if size <= REMEMBERED_HOSTS else _expand(text)


def _expand(text: str) -> tuple[str, ...]:
    try:
        hosts = [host for part in _top_level(text) for host in NodeSet(part, resolver=RESOLVER_NOGROUP)]
    except Exception as error:  # ClusterShell's parse errors have no common public root
        raise GarbledError(f"not a host list: {text[:200]!r}") from error
    return tuple(dict.fromkeys(hosts))


_expand_short = functools.lru_cache(REMEMBERED_LISTS)(_expand)


def _top_level(text: str) -> list[str]:
    """Split at the commas that are outside of brackets."""
    return [part for part in re.split(r",(?![^\[]*\])", text) if part]


def _size(part: str) -> int:
    size = 1
    for bracket in re.findall(r"\[([^\]]*)\]", part):
        ranges = (_RANGE.fullmatch(piece) for piece in bracket.split(","))
        size *= sum(abs(int(r[2] or r[1]) - int(r[1])) + 1 for r in ranges if r) or 1
    return size
