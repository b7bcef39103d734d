"""Finds many patterns in one pass: hyperscan where it is installed, else `re` behind literal searches.

Both engines report the same lines (a test holds them to it); hyperscan is many times faster. Why these two:
docs/decisions/0014-scanner.md.
"""

import re
from collections.abc import Collection, Iterator, Sequence
from functools import cache
from itertools import islice
from threading import Lock
from typing import NamedTuple, Protocol

from relight.attribution import hyperscan_automaton
from relight.attribution.hyperscan_automaton import Hit, HyperscanAutomaton, PatternError
from relight.attribution.keywords import needed

__all__ = ["Automaton", "Hit", "PatternError", "ReAutomaton", "build"]

FAR = 4096
"""How far around its literal a pattern is tried by the slow engine: a giant line must not cost the square of it."""
SMALL = 4 << 20
"""Bytes that the slow engine has read before it is worth compiling for the fast one, which takes seconds."""


class Automaton(Protocol):
    """Searches data for all patterns at once. Threads may share it."""

    def hits(self, data: bytes, *, once: bool = True) -> Sequence[Hit]:
        """The patterns found, by where they end: each line that a pattern matches is hit at least once.

        Without `once`, those patterns need not be found any more.
        """

    def first(self, data: bytes) -> int | None:
        """Where some pattern ends for the first time, or None."""

    def prepare(self) -> None:
        """Compile now what else is compiled when there is much to read."""


def build(
    patterns: Sequence[str],
    once: Collection[int] = (),
    *,
    rare: bool = True,
    fast: bool | None = None,
    lazy: bool = False,
) -> Automaton:
    """An automaton for these patterns.

    Of the patterns whose places are in `once`, one hit in each block of data is asked for, not all. `rare` patterns
    are expected in few lines. `fast` picks the engine: True for hyperscan, False for `re`, None for the best that is
    installed. A `lazy` one is compiled for hyperscan only when it has been given much to read.

    Raises:
        PatternError: when hyperscan cannot search for one of them.
    """
    if fast is False or (fast is None and hyperscan_automaton.hyperscan is None):
        return ReAutomaton(patterns, once)
    quick = HyperscanAutomaton(patterns, once, rare=rare)
    if lazy and not quick.ready:
        return _Lazy(quick, ReAutomaton(patterns, once))
    quick.prepare()
    return quick


class _Lazy:
    """The slow engine at first, for nothing is quicker with a small log; the fast one from some size on."""

    def __init__(self, quick: HyperscanAutomaton, slow: "ReAutomaton") -> None:
        self._quick, self._slow = quick, slow
        self._lock = Lock()
        self._left = SMALL

    def hits(self, data: bytes, *, once: bool = True) -> Sequence[Hit]:
        return self._engine(data).hits(data, once=once)

    def first(self, data: bytes) -> int | None:
        return self._engine(data).first(data)

    def prepare(self) -> None:
        self._quick.prepare()
        self._left = 0

    def _engine(self, data: bytes) -> Automaton:
        with self._lock:
            self._left -= len(data)
            return self._quick if self._left <= 0 else self._slow


class _Row(NamedTuple):
    """A pattern of the slow engine."""

    number: int
    texts: tuple[bytes, ...]
    """Each match holds one of these, in some case."""
    shapes: tuple[bytes, ...]
    """The texts as they stand in the shape of a line."""
    pattern: str
    once: bool


_DIGITS = bytes.maketrans(b"123456789", b"000000000")


class ReAutomaton:
    """The standard library's way: look for a text that the pattern needs, then match the line around it."""

    def __init__(self, patterns: Sequence[str], once: Collection[int] = ()) -> None:
        self._rows = [_row(number, pattern, number in once) for number, pattern in enumerate(patterns)]

    def hits(self, data: bytes, *, once: bool = True) -> Sequence[Hit]:
        """Where the patterns end in the data."""
        found: list[Hit] = []
        for row, ends in self._found(data):
            if row.once and not once:
                continue
            found += ((end, row.number) for end in (islice(ends, 1) if row.once else ends))
        found.sort()
        return found

    def first(self, data: bytes) -> int | None:
        """Where the first match ends."""
        return min((end for _, ends in self._found(data) for end in islice(ends, 1)), default=None)

    def prepare(self) -> None:
        """Nothing is compiled."""

    def _found(self, data: bytes) -> Iterator[tuple[_Row, Iterator[int]]]:
        lowered = data.lower()
        # Logs say the same with other numbers all the time: what stands in no shape stands in no line.
        shapes = b"\n".join(set(lowered.translate(_DIGITS).split(b"\n")))
        for row in self._rows:
            texts = [text for text, shape in zip(row.texts, row.shapes, strict=True) if shape in shapes]
            if texts:
                yield row, (end for text in texts for end in _ends(row.pattern, text, lowered, data))


def _row(number: int, pattern: str, once: bool) -> _Row:
    texts = needed(pattern) or (b"",)
    return _Row(number, texts, tuple(text.translate(_DIGITS) for text in texts), pattern, once)


def _ends(pattern: str, text: bytes, lowered: bytes, data: bytes) -> Iterator[int]:
    regex = _regex(pattern)
    at = lowered.find(text)
    while at >= 0:
        start = max(data.rfind(b"\n", max(0, at - FAR), at) + 1, at - FAR)
        end = data.find(b"\n", at, at + FAR)
        end = min(len(data), at + FAR) if end < 0 else end
        if found := regex.search(data, start, end):
            yield found.end()
        at = lowered.find(text, max(end, at + 1))


@cache
def _regex(pattern: str) -> re.Pattern[bytes]:
    return re.compile(pattern.encode(), re.MULTILINE)
