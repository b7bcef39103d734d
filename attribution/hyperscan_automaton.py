"""Finds many patterns in one pass with hyperscan (Vectorscan).

Hyperscan slows down with the number of its patterns: a thousand go at 0.3 GB/s, two hundred short texts at ten times
that. So a log is first searched for a few texts of which every match holds one, and only lines with one for patterns.
"""

import hashlib
import importlib
import platform
import re
from bisect import bisect_right
from collections.abc import Callable, Collection, Sequence
from contextlib import suppress
from functools import cached_property
from itertools import accumulate
from threading import Lock
from typing import Any, NamedTuple

from relight.attribution import compiled
from relight.attribution.keywords import keywords
from relight.attribution.patterns import detector, one_line

hyperscan: Any
try:
    hyperscan = importlib.import_module("hyperscan")
except ImportError:  # the extra `scan` is not installed
    hyperscan = None

CHOSEN = "keywords 4"
"""Counted up when keywords are chosen in another way: those in users' caches are for the old one."""
FEW = 256
"""Bytes for each keyword: where they are closer, it is quicker to search all the data for the patterns."""


class PatternError(ValueError):
    """A pattern that hyperscan cannot search for; the message has it, and why."""


Hit = tuple[int, int]
"""A pattern found: the offset in the data just behind it, and its place in the list given."""


def hits_in(lines: Sequence[tuple[int, int]], data: bytes, search: Callable[[bytes], Sequence[Hit]]) -> Sequence[Hit]:
    """The hits in these lines, looked for in all of them together; a line is where it begins and ends."""
    if not lines:
        return ()
    starts = list(accumulate((end - start + 1 for start, end in lines), initial=0))
    found: list[Hit] = []
    for end, pattern in search(b"\n".join([data[start:end] for start, end in lines])):
        line = bisect_right(starts, max(end - 1, 0)) - 1
        found.append((end - starts[line] + lines[line][0], pattern))
    return found


class HyperscanAutomaton:
    """All patterns in one automaton, and before it, where they are rare, one of keywords."""

    def __init__(self, patterns: Sequence[str], once: Collection[int] = (), *, rare: bool = True) -> None:
        self._patterns, self._once = patterns, frozenset(once)
        texts = [one_line(detector(pattern)).encode() for pattern in patterns]
        multiline, single = hyperscan.HS_FLAG_MULTILINE, hyperscan.HS_FLAG_SINGLEMATCH
        every = [_Expression(text, multiline | (single if n in self._once else 0)) for n, text in enumerate(texts)]
        self._every = _Database("patterns", texts, lambda: every, tuple(one.flags for one in every))
        # With keywords go the `once` patterns themselves, until they are found: what they look for is in many lines.
        self._keywords = _Database(CHOSEN, texts, lambda: self._words + self._once_expressions, sorted(once))
        self._words_only = _Database(f"{CHOSEN}, only", texts, lambda: self._words, sorted(once))
        self._databases = [self._every, self._keywords, self._words_only] if rare else [self._every]
        self._rare = rare

    @property
    def ready(self) -> bool:
        """Whether all that is needed at first is compiled already."""
        return all(database.kept for database in self._databases)

    def prepare(self) -> None:
        """Compile it, which takes seconds unless it is in the user's cache.

        Raises:
            PatternError: when a pattern cannot be searched for.
        """
        for database in self._databases:
            database.open()

    def hits(self, data: bytes, *, once: bool = True) -> Sequence[Hit]:
        """Where the patterns end in the data."""
        first = self._keywords if once else self._words_only
        lines = first.lines(data, len(data) // FEW) if self._rare else None
        return self._every.hits(data) if lines is None else hits_in(lines, data, self._every.hits)

    def first(self, data: bytes) -> int | None:
        """Where the first match ends."""
        return self._every.first(data)

    @cached_property
    def _words(self) -> "list[_Expression]":
        texts, without = keywords(pattern for n, pattern in enumerate(self._patterns) if n not in self._once)
        words = [_Expression(re.escape(text).encode(), hyperscan.HS_FLAG_CASELESS) for text in texts]
        multiline = hyperscan.HS_FLAG_MULTILINE
        return words + [_Expression(one_line(detector(pattern)).encode(), multiline) for pattern in without]

    @property
    def _once_expressions(self) -> "list[_Expression]":
        flags = hyperscan.HS_FLAG_MULTILINE | hyperscan.HS_FLAG_SINGLEMATCH
        return [_Expression(one_line(detector(self._patterns[n])).encode(), flags) for n in sorted(self._once)]


class _Expression(NamedTuple):
    text: bytes
    flags: int


class _Database:
    """A compiled database, and the scratch spaces that scans of it need: one for each thread that is in one."""

    def __init__(
        self, kind: str, texts: Sequence[bytes], expressions: Callable[[], list[_Expression]], flags: Sequence[int] = ()
    ) -> None:
        self._key = _key(kind, texts, flags)
        self._expressions = expressions
        self._lock = Lock()
        self._database = _kept(self._key)
        self._free: list[Any] = []

    @property
    def kept(self) -> bool:
        """Whether it is compiled."""
        return self._database is not None

    def open(self) -> Any:
        """The database, compiled at the latest now."""
        with self._lock:
            if self._database is None:
                self._database = _compiled(self._expressions())
                compiled.write(self._key, hyperscan.dumpb(self._database))
            return self._database

    def hits(self, data: bytes) -> list[Hit]:
        found: list[Hit] = []
        add = found.append

        def on_match(pattern: int, _start: int, end: int, _flags: int, _context: Any) -> None:
            add((end, pattern))

        self._scan(data, on_match)
        found.sort()
        return found

    def first(self, data: bytes) -> int | None:
        ends: list[int] = []

        def on_match(_pattern: int, _start: int, end: int, _flags: int, _context: Any) -> bool:
            ends.append(end)
            return True

        with suppress(hyperscan.ScanTerminated):
            self._scan(data, on_match)
        return ends[0] if ends else None

    def lines(self, data: bytes, most: int) -> list[tuple[int, int]] | None:
        """Where the lines with hits begin and end; None when there are more than `most` hits."""
        ends: list[int] = []
        add = ends.append

        def on_match(_pattern: int, _start: int, end: int, _flags: int, _context: Any) -> bool:
            add(end)
            return len(ends) > most

        try:
            self._scan(data, on_match)
        except hyperscan.ScanTerminated:
            return None
        lines: list[tuple[int, int]] = []
        stop = 0
        for end in sorted(ends):
            if end > stop:
                start = data.rfind(b"\n", stop, end - 1) + 1 or stop
                stop = data.find(b"\n", end - 1)
                stop = len(data) if stop < 0 else stop
                lines.append((start, stop))
        return lines

    def _scan(self, data: bytes, on_match: Callable[[int, int, int, int, Any], bool | None]) -> None:
        database = self._database or self.open()
        try:
            scratch = self._free.pop()
        except IndexError:
            scratch = database.scratch.clone()  # which is never in use itself
        try:
            database.scan(data, match_event_handler=on_match, scratch=scratch)
        finally:
            self._free.append(scratch)


def _key(kind: str, texts: Sequence[bytes], flags: Sequence[int]) -> str:
    parts = (kind, hyperscan.__version__, platform.machine(), *map(repr, texts), *map(str, flags))
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()


def _kept(key: str) -> Any:
    """The database as it was compiled before, or None."""
    content = compiled.read(key)
    if content is None:
        return None
    try:
        database = hyperscan.loadb(content, mode=hyperscan.HS_MODE_BLOCK)
        database.scratch = hyperscan.Scratch(database)
    except (hyperscan.error, hyperscan.HyperscanError):  # of another processor, say: home folders are shared
        return None
    return database


def _compiled(expressions: Sequence[_Expression]) -> Any:
    database = hyperscan.Database(mode=hyperscan.HS_MODE_BLOCK)
    texts, flags = [one.text for one in expressions], [one.flags for one in expressions]
    try:
        database.compile(expressions=texts, ids=range(len(texts)), flags=flags)
    except hyperscan.error as error:
        raise _told(error, texts) from error
    return database


def _told(error: Exception, texts: Sequence[bytes]) -> PatternError:
    """The first pattern that cannot be compiled by itself; hyperscan does not say which one it is."""
    for text in texts:
        try:
            hyperscan.Database(mode=hyperscan.HS_MODE_BLOCK).compile(expressions=[text], ids=[0], flags=[0])
        except hyperscan.error as alone:
            return PatternError(f"{text.decode()!r} cannot be searched for: {alone}")
    return PatternError(f"the patterns cannot be searched for together: {error}")
