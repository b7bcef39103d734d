"""Who printed a line, and when: prefixes of launchers, of PyTorch, of NCCL, of syslog."""

import re
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta, tzinfo
from typing import NamedTuple

from relight.domain.base import few

_RANK = re.compile(r"\[rank[:= ]*(\d+)\]|^\[?Rank (\d+)\]?:", re.IGNORECASE)
_DEFAULT_GROUP = re.compile(r"\[(?:PG ID 0 [^\]]*|PG 0 )?Rank (\d+)\]")
_LOCAL = re.compile(r"\[default(\d+)\]:")
_LABEL = re.compile(r"\s*(\d{1,6}): ")
_NCCL = re.compile(r"(?:^|[\]: ])([A-Za-z][\w.-]*):\d+:\d+ \[(\d+)\]")
_UCX = re.compile(r"\[([A-Za-z][\w.-]*):\d+:\d+:\d+\]")
_KERNEL = re.compile(r"^(?:\w{3} +\d+ [\d:]{8}|\d{4}-\d\d-\d\d[T ]\S+) ([\w.-]+) kernel:")
_NODE = re.compile(r"^(?:\d+: )?\[?([A-Za-z][\w.-]*?)\]?: ")


class Speaker(NamedTuple):
    """Who printed a line, as far as its prefix says; all None when it says nothing."""

    rank: int | None = None
    local_rank: int | None = None
    node: str | None = None
    gpu: str | None = None
    task: int | None = None
    """Of `srun --label`: a rank, or the one agent of a node (`tasks.py`)."""


def speaker(text: str, nodes: frozenset[str] = frozenset()) -> Speaker:
    """Read the prefix of a line.

    Understands `[rank5]:`, `[rank: 5]`, `[default5]:`, `5: ` (srun --label), `[Rank 5]` of the default group,
    NCCL's `node:pid:tid [gpu]`, UCX's `[node:pid:...]`, syslog's host before `kernel:`, and `node: ` or
    `5: node: ` for a name in `nodes`. A rank inside another process group is not taken for the global one.
    """
    head = text[:300]
    node, gpu, local = None, None, None
    # Most lines have few of these marks, and looking for a mark is cheaper than for its pattern.
    if "] " in head and (found := _NCCL.search(head)):
        node, gpu = found[1], found[2]
    elif found := _UCX.search(head) or (_KERNEL.search(head) if " kernel:" in head else None):
        node = found[1]
    elif nodes and (found := _NODE.search(head)):
        node = found[1] if found[1] in nodes else None
    if "[default" in head and (found := _LOCAL.search(head)):
        local = int(found[1])
    label = _LABEL.match(head)
    return Speaker(_rank(head), local, node, gpu, int(label[1]) if label else None)


def _rank(head: str) -> int | None:
    if "ank" not in head and "RANK" not in head:
        return None
    if found := _RANK.search(head):
        return int(found[1] or found[2])
    found = _DEFAULT_GROUP.search(head)
    return int(found[1]) if found else None


_ISO = re.compile(r"((?:19|20)\d\d)-(\d\d)-(\d\d)[T _](\d\d):(\d\d):(\d\d)(?:[.,](\d{1,6})\d*)?\s?(Z|[+-]\d\d:?\d\d)?")
_SLASHED = re.compile(r"((?:19|20)\d\d)/(\d\d)/(\d\d) (\d\d):(\d\d):(\d\d)()()")
_GLOG = re.compile(r"[EWIF](\d{3,4}) (\d\d):(\d\d):(\d\d)(?:\.(\d{1,6}))?")
_MONTHS = ("Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec")
_MONTH_FIRST = re.compile(rf"\b({'|'.join(_MONTHS)}) +(\d{{1,2}}) (\d\d):(\d\d):(\d\d)(?:\.\d+)?(?: ((?:19|20)\d\d))?")
_CLOCK = re.compile(r":\d\d:\d\d")
"""Minutes and seconds: in every stamp."""
_DATE_WITHIN = 24
"""A stamp's date and hour stand within so many characters before them."""
_HALF_YEAR = timedelta(days=183)


def ranks_named(ranks: Sequence[int]) -> str:
    """`Ranks 3, 5`, as a sentence begins; at most eight of them."""
    return f"Rank{'s' if len(ranks) > 1 else ''} {few([str(rank) for rank in ranks])}"


class Stamp(NamedTuple):
    """The time stamp of a line."""

    at: datetime
    zoned: bool
    """True when the line itself names the zone; else the zone is that of whoever asked."""


def stamp_of(text: str, near: datetime | None = None) -> Stamp | None:
    """The time stamp of a line, with a zone; None when it has none or the year is nowhere to be had.

    `near` gives the zone of stamps without one and the year of stamps without one (glog's `E1130 09:31:00`,
    syslog's `Nov 30 09:31:00`). Without `near`, stamps with no zone are read as UTC.
    """
    head = text[:200]
    clock = _CLOCK.search(head)
    if clock is None:  # most lines have none, and no other pattern is as cheap
        return None
    head = head[max(0, clock.start() - _DATE_WITHIN) :]
    try:
        if ("-" in head and (found := _ISO.search(head))) or ("/" in head and (found := _SLASHED.search(head))):
            return Stamp(_iso(found, near), bool(found[8]))
        if found := _MONTH_FIRST.search(head):
            name, day, hour, minute, second, year = found.groups()
            parts = (int(day), int(hour), int(minute), int(second))
            return _unzoned(_dated(int(year) if year else None, _MONTHS.index(name) + 1, parts, near))
        if found := _GLOG.search(head):
            date, hour, minute, second, fraction = found.groups()
            at = _dated(None, int(date[:-2]), (int(date[-2:]), int(hour), int(minute), int(second)), near)
            return _unzoned(at.replace(microsecond=_micros(fraction)) if at else None)
    except (ValueError, OverflowError):  # digits that are no date
        return None
    return None


def _unzoned(at: datetime | None) -> Stamp | None:
    return Stamp(at, zoned=False) if at else None


def _iso(found: re.Match[str], near: datetime | None) -> datetime:
    *parts, fraction, zone = found.groups()
    at = datetime(*(int(part) for part in parts), tzinfo=_zone(near))  # type: ignore[misc, arg-type]
    at = at.replace(microsecond=_micros(fraction))
    return datetime.fromisoformat(at.replace(tzinfo=None).isoformat() + zone) if zone else at


def _micros(fraction: str | None) -> int:
    return int((fraction or "0").ljust(6, "0"))


def _dated(year: int | None, month: int, parts: tuple[int, int, int, int], near: datetime | None) -> datetime | None:
    if year is not None:
        return datetime(year, month, *parts, tzinfo=_zone(near))
    if near is None:
        return None
    at = datetime(near.year, month, *parts, tzinfo=near.tzinfo)
    if at - near > _HALF_YEAR:  # December, read in January
        return at.replace(year=near.year - 1)
    return at


def _zone(near: datetime | None) -> tzinfo:
    return near.tzinfo if near is not None and near.tzinfo else UTC
