"""PyTorch's flight-recorder dumps: what each rank had begun and finished in each process group when it stopped.

Format: PyTorch torch/csrc/distributed/c10d/FlightRecorder.hpp, versions 1.x to 2.10 (a bare list of entries before
that), as pickle or JSON. Seen with real dumps of PyTorch 2.13's gloo; those of NCCL add `pg_config`.
"""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from relight.attribution.blocks import printable
from relight.attribution.plain_pickle import NotPlainError, plain

LARGEST = 8 << 20
"""Bytes of a dump that are read: 2,000 entries, PyTorch's own limit, are 0.3 to 3 MB."""
MOST_ENTRIES = 20_000
MOST_RANKS = 100_000
_RANK_AT_END = re.compile(r"(\d{1,6})(?:\.(?:json|pkl|pickle))?$")
_NUMBERS = re.compile(r"\d{1,6}")
_PEER = re.compile(r":(?:send|recv) +\d+(?:->|<-)(\d+)")


class FlightError(ValueError):
    """Not a dump that can be read; the message says why, without naming the file."""


class Call(NamedTuple):
    """One collective, as one rank saw it."""

    op: str
    """Such as `all_reduce`."""
    shapes: str
    """Sizes and types of its inputs, as text."""
    where: str
    """The user's line that made the call, such as `train.py:40`; empty where the dump has no stacks."""


@dataclass
class Dump:
    """What one rank's dump says; groups go by their number as text."""

    rank: int
    enqueued: dict[str, int] = field(default_factory=dict)
    """Number of the last collective begun, by group; equal numbers on all members are one collective."""
    completed: dict[str, int] = field(default_factory=dict)
    calls: dict[tuple[str, int], Call] = field(default_factory=dict)
    """By group and number."""
    waits_for: set[tuple[str, int]] = field(default_factory=set)
    """Group, and place in it, at the other end of a send or receive that has not ended."""
    members: dict[str, tuple[int, ...]] = field(default_factory=dict)
    """Global ranks of a group, where the dump lists them."""
    names: dict[str, str] = field(default_factory=dict)
    """What people call a group, such as `default_pg`."""
    newest: float = 0.0
    """When its last call was made, in seconds since 1970; 0 where no call says so."""


class Folder(NamedTuple):
    """All dumps of a folder, by rank in order."""

    dumps: tuple[Dump, ...]
    refused: tuple[str, ...]
    """Files named like a dump that are none, each with the reason."""


def read_folder(folder: Path) -> Folder:
    """Read all dumps in a folder: the files whose names end with a rank, as in `nccl_trace_rank_12`.

    Raises:
        OSError: when the folder cannot be listed.
    """
    dumps: dict[int, Dump] = {}
    refused = []
    for path in sorted(folder.iterdir()):
        ends = _RANK_AT_END.search(path.name)
        if ends is None or not path.is_file():
            continue
        try:
            with path.open("rb") as stream:
                dumps[int(ends[1])] = read_dump(stream.read(LARGEST + 1), int(ends[1]))
        except OSError as error:
            refused.append(f"{path.name}: {error.strerror or error}")
        except FlightError as error:
            refused.append(f"{path.name}: not a flight-recorder dump: {error}")
    return Folder(tuple(dumps[rank] for rank in sorted(dumps)), tuple(refused))


def read_dump(data: bytes, rank: int) -> Dump:
    """The dump of a rank. Whatever the bytes are, nothing in them is run, and memory and time stay bounded.

    Raises:
        FlightError: when it is no dump, or a larger one than `LARGEST`.
    """
    if not data:
        raise FlightError("it is empty")
    if len(data) > LARGEST:
        raise FlightError(f"it is larger than {LARGEST >> 20} MiB")
    try:
        content = plain(data)
    except NotPlainError as error:
        raise FlightError(str(error)) from error
    content = {"entries": content} if isinstance(content, list) else content
    if not isinstance(content, dict) or not isinstance(content.get("entries"), list):
        raise FlightError("it holds no list of entries")
    return _dump(content, rank)


def _dump(content: Mapping[str, Any], rank: int) -> Dump:
    dump = Dump(rank)
    for entry in content["entries"][-MOST_ENTRIES:]:
        if isinstance(entry, dict):
            _take(entry, dump)
    for group, status in _objects(content.get("pg_status")):
        _raise_to(dump.enqueued, group, status.get("last_enqueued_collective"))
        _raise_to(dump.completed, group, status.get("last_completed_collective"))
    for key, config in _objects(content.get("pg_config")):
        listed = config.get("ranks")
        texts = [_text(each) for each in listed[:MOST_RANKS]] if isinstance(listed, list) else [_text(listed)]
        if ranks := tuple(int(number) for text in texts for number in _NUMBERS.findall(text))[:MOST_RANKS]:
            dump.members[_text(config.get("name")) or key] = ranks
    return dump


def _take(entry: Mapping[str, Any], dump: Dump) -> None:
    named = entry.get("process_group")
    parts = [_text(part) for part in named[:2]] if isinstance(named, list | tuple) else [_text(entry.get("pg_id"))]
    group = parts[0] if parts else ""
    if len(parts) > 1:
        dump.names.setdefault(group, _shown(parts[1]))
    dump.newest = max(dump.newest, (_number(entry.get("time_created_ns")) or 0) / 1e9)
    done = entry.get("state") == "completed" or entry.get("retired") is True
    name = _shown(_text(entry.get("profiling_name")))
    if entry.get("is_p2p") is True:
        if not done and (peer := _PEER.search(name)):
            dump.waits_for.add((group, int(peer[1])))
        return
    seq = _number(entry.get("collective_seq_id", entry.get("seq_id")))
    if seq is None:
        return
    _raise_to(dump.enqueued, group, seq)
    if done:
        _raise_to(dump.completed, group, seq)
    shapes = f"{_sizes(entry.get('input_sizes'))} {_sizes(entry.get('input_dtypes'))}".strip()
    dump.calls[group, seq] = Call(name.rpartition(":")[2], shapes, _where(entry.get("frames")))


def _objects(value: Any) -> Iterable[tuple[str, Mapping[str, Any]]]:
    pairs = value.items() if isinstance(value, dict) else ()
    return [(_text(key), each) for key, each in pairs if isinstance(each, dict)]


def _text(value: Any) -> str:
    """A text or a number as text; nothing else, which may be of any depth."""
    return str(value) if isinstance(value, str | int) else ""


def _shown(text: str) -> str:
    return printable(text[:80].encode(errors="replace"))


def _number(value: Any) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 1 << 62 else None


def _raise_to(highest: dict[str, int], group: str, value: Any) -> None:
    if (number := _number(value)) is not None:
        highest[group] = max(number, highest.get(group, 0))


def _sizes(value: Any) -> str:
    """`[4,8] [2]` for a list of lists, `Float` for a list of words; the first few."""
    rows = value[:8] if isinstance(value, list) else []
    shown = [f"[{','.join(_text(n) for n in row[:8])}]" if isinstance(row, list) else _text(row) for row in rows]
    return _shown(" ".join(shown))


def _where(frames: Any) -> str:
    """The innermost frame outside PyTorch: the call in the user's program."""
    for frame in frames[:200] if isinstance(frames, list) else ():
        file = _text(frame.get("filename")) if isinstance(frame, dict) else ""
        if file and "/torch/" not in file:
            return _shown(f"{file.rpartition('/')[2]}:{_text(frame.get('line'))}")
    return ""
