"""How logs kept in a store are read in pages: which lines are asked for, which of them are new. Pure.

A store orders lines by time only: several may share a nanosecond, their order may change from one answer to the next
(VictoriaLogs issue 525), and a line may arrive after younger ones. So a reader asks again for the last few seconds,
and knows the lines it has taken by hashes. What is guaranteed stands with `HttpLogs`.
"""

import hashlib
import json
import re
from base64 import urlsafe_b64encode
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple
from urllib.parse import quote

from relight.clients.logs import Cursor, LogNotFoundError, LogUnreadableError
from relight.domain.log_labels import filled, named, needed

PAGE_BYTES = 4 << 20
"""An answer is read up to here."""
_FORMAT = "ns1:"
_HASH = 8
"""Characters of a line's hash, 48 bits."""
_META = re.compile(r"[\\.+*?()|\[\]{}^$]")
_LONGEST_QUERY = 6000
"""Bytes of values in one query as they stand in an address: proxies take addresses up to 8 KiB."""


class Row(NamedTuple):
    """A line as a store holds it."""

    at: int
    """Nanoseconds since 1970, by the clock of whoever stamped it."""
    stream: str
    """What the store calls the stream it came in."""
    text: str
    of: str = ""
    """Its value of the label that was asked for by several values."""


class Page(NamedTuple):
    """An answer: lines in the order of time."""

    rows: tuple[Row, ...]
    full: bool
    """Cut at a bound: there may be more."""


class Question(NamedTuple):
    """What a store is asked for: lines stamped from `low` on and before `end`."""

    labels: Mapping[str, str]
    low: int
    end: int | None = None
    by: str = ""
    """A label that may have any of `values` instead; each row says which."""
    values: tuple[str, ...] = ()
    skip: int = 0
    """How many of the first are left out (stores that can)."""
    newest: bool = False
    """The newest `limit` of them instead of the oldest."""
    limit: int = 5000
    most: int = PAGE_BYTES
    """Bytes after which the answer is cut, but not before one line."""


class Place(NamedTuple):
    """Where a reader stands; what a `Cursor` of such a log holds."""

    low: int
    """Older lines are never asked for again."""
    newest: int
    """Stamp of the newest line taken."""
    skip: int = 0
    """Lines stamped `low` that were taken already, when one moment has more of them than a page holds."""
    taken: frozenset[str] = frozenset()
    """Hashes of the lines taken since `low`."""


class Log(NamedTuple):
    """Which lines of a store are a log."""

    labels: Mapping[str, str]
    since: int = 0
    """Older lines are of an earlier job; nanoseconds."""
    beside: Mapping[str, str] | None = None
    """What selects the job's other output."""

    def __str__(self) -> str:
        """As a selector, which a person can ask the store for."""
        return "{" + ", ".join(f"{label}={quoted(value)}" for label, value in self.labels.items()) + "}"


class Bounds(NamedTuple):
    """How far back a reader looks again."""

    late: int = 0
    """Nanoseconds."""
    lines: int = 0
    size: int = 0
    """Characters in all of them."""


def place_at(low: int) -> Place:
    """Before the first line stamped `low` or later."""
    return Place(low=low, newest=low - 1)


def to_cursor(place: Place) -> Cursor:
    """The place as a cursor: `offset` is a time in nanoseconds, from which `Logs.open` can read on."""
    mark = f"{_FORMAT}{place.skip}:{''.join(sorted(place.taken))}"
    return Cursor(inode=place.low, offset=place.newest + 1, mark=mark)


def from_cursor(cursor: Cursor) -> Place | None:
    """The place, or None where the cursor is of another kind of log (the site has changed its source)."""
    skip, _, hashes = cursor.mark.removeprefix(_FORMAT).partition(":")
    if not cursor.mark.startswith(_FORMAT) or not skip.isdecimal():
        return None
    taken = frozenset(hashes[at : at + _HASH] for at in range(0, len(hashes), _HASH))
    return Place(low=cursor.inode, newest=cursor.offset - 1, skip=int(skip), taken=taken)


def advance(
    place: Place, page: Page, bounds: Bounds, *, can_skip: bool, end: int | None = None
) -> tuple[list[Row], Place]:
    """The page's new lines, and where to ask next.

    `end`: the page is what one log has of an answer for several that was cut there.

    A full page's last moment may go on behind its end, so that moment is left for the next page, and lines of one
    moment are always seen together: identical ones can be counted. Each full page moves the place.
    """
    rows, full = page
    shared = end is not None
    if full and not shared:
        end = rows[-1].at
        if rows[0].at == end:
            return _crowded(place, page, can_skip=can_skip)
    if end is not None:
        rows = tuple(row for row in rows if row.at < end)
    keys = _keys(rows)
    new = [row for row, key in zip(rows, keys, strict=True) if key not in place.taken]
    if shared and not new:
        return [], place
    newest = max(place.newest, rows[-1].at) if rows else place.newest
    # Those not seen again stand behind a full page's end; else the store takes them back, perhaps not for long.
    unseen = place.taken.difference(keys) if end is not None or newest == place.newest else frozenset()
    low = max(place.low + bool(place.skip), newest - bounds.late)
    if end is not None:
        low = min(low, end) if new else end
    low, kept = _remember(rows, keys, low, bounds._replace(lines=bounds.lines - len(unseen)))
    return new, Place(low=low, newest=newest, taken=unseen | kept)


def _crowded(place: Place, page: Page, *, can_skip: bool) -> tuple[list[Row], Place]:
    """A whole page of one moment."""
    rows, at = page.rows, page.rows[0].at
    keys = _keys(rows)
    new = [row for row, key in zip(rows, keys, strict=True) if key not in place.taken]
    newest, taken = max(place.newest, at), place.taken.difference(keys)
    if can_skip:
        done = place.skip if at == place.low else 0
        return new, Place(low=at, newest=newest, skip=done + len(rows), taken=taken)
    new.append(Row(at, "", f"[relight: {len(rows)} lines of one moment; if there are more, they are left out here]"))
    return new, Place(low=at + 1, newest=newest, taken=taken)


def _keys(rows: Iterable[Row]) -> list[str]:
    """A hash for each; identical lines of one moment differ in their number."""
    counted: Counter[Row] = Counter()
    keys = []
    for row in rows:
        counted[row] += 1
        whole = f"{row.at} {counted[row]} {row.stream}\n{row.text}".encode("utf-8", "surrogatepass")
        digest = hashlib.blake2b(whole, digest_size=_HASH * 3 // 4).digest()
        keys.append(urlsafe_b64encode(digest).decode())
    return keys


def _remember(rows: tuple[Row, ...], keys: list[str], low: int, bounds: Bounds) -> tuple[int, frozenset[str]]:
    """Hashes of the newest lines since `low` that the bounds have room for; and from when on these are all."""
    size = 0
    kept: list[tuple[int, str]] = []
    for row, key in zip(reversed(rows), reversed(keys), strict=True):
        if row.at < low:
            break
        size += len(row.text)
        if len(kept) >= bounds.lines or size > bounds.size:
            low = row.at + 1
            break
        kept.append((row.at, key))
    return low, frozenset(key for at, key in kept if at >= low)


def backwards(page: Page) -> tuple[tuple[Row, ...], int]:
    """Of a page with the newest lines before some time: those to take, and the end (exclusive) of the page before."""
    rows = page.rows
    if not page.full:
        return rows, 0
    first = rows[0].at
    rest = tuple(row for row in rows if row.at > first)
    return (rest, first + 1) if rest else (rows, first)


def selected(templates: Mapping[str, str], path: str) -> Log:
    """The log that a reference, or an output's path, names.

    Args:
        templates: value of each label, with the fields of `domain.log_labels` in it.
        path: an output's path, or a `reference`.

    Raises:
        LogNotFoundError: a value that no store can hold.
        LogUnreadableError: the labels need what the path does not tell.
    """
    told = named(path)
    since = int(told.since.timestamp()) * 1_000_000_000 if told.since else 0
    beside = _labels(templates, path, told.beside) if told.beside else None
    return Log(_labels(templates, path, told.fields), since, beside)


def _labels(templates: Mapping[str, str], path: str, fields: Mapping[str, str]) -> dict[str, str]:
    values = {}
    for label, template in templates.items():
        # Without a value a matcher would select what lacks the label: other jobs' lines.
        missing = [name for name in needed(template) if not fields.get(name)]
        if missing:
            raise LogUnreadableError(f"{path}: label {label} needs {{{missing[0]}}}, which is not known of this log")
        values[label] = filled(template, fields)
    try:
        "".join(values.values()).encode()
    except UnicodeEncodeError:
        raise LogNotFoundError(f"{path!r}: not UTF-8, so no log store has it") from None
    return values


def batches(wanted: Sequence[tuple[Place, str]], most: int, apart: int) -> list[list[int]]:
    """Which readers may ask together, by their numbers: who stands no more than `apart` nanoseconds behind another.

    One who stands far behind would have the others' lines sent again. At most `most` of them ask together, and their
    values (the texts) stay short enough for an address.
    """
    found: list[list[int]] = []
    first = size = 0
    for number in sorted(range(len(wanted)), key=lambda number: wanted[number][0].low):
        place, value = wanted[number]
        length = len(quote(quoted(value)))
        if not found or place.low - first > apart or len(found[-1]) >= most or size + length > _LONGEST_QUERY:
            found.append([])
            first, size = place.low, 0
        found[-1].append(number)
        size += length
    return found


def one_of(values: Iterable[str]) -> str:
    """An expression of RE2 that matches these values and, anchored as it is in selectors, no others."""
    return "|".join(_META.sub(lambda found: f"\\{found[0]}", value) for value in dict.fromkeys(values))


def quoted(text: str) -> str:
    """As a string of LogsQL and LogQL: both read Go's double-quoted strings, whose escapes JSON's are a part of."""
    return json.dumps(text, ensure_ascii=False)
