"""Finds many patterns in one pass: hyperscan where it is installed, else `re` behind literal searches.

Both engines report the same lines (a test holds them to it); hyperscan is many times faster.
"""

import importlib
import re
from collections.abc import Iterator, Sequence
from threading import Lock
from typing import Any, NamedTuple, Protocol

hyperscan: Any
try:
    hyperscan = importlib.import_module("hyperscan")
except ImportError:  # the extra `scan` is not installed
    hyperscan = None

_TAIL = re.compile(r"\(\?P<\w+>\.\{0,\d+\}\)$|\.\{0,\d+\}$")
_TAIL_ONE = re.compile(r"\(\?P<\w+>\.\{1,\d+\}\)$|\.\{1,\d+\}$")
SHORTEST_LITERAL = 2
"""Shorter texts are everywhere: looking for them saves nothing."""
FAR = 4096
"""How far around its literal a pattern is tried by the slow engine: a giant line must not cost the square of it."""


class Hit(NamedTuple):
    """A pattern found."""

    pattern: int
    """Its place in the list given."""
    end: int
    """Offset in the data just behind it."""


class Automaton(Protocol):
    """Searches data for all patterns at once."""

    def hits(self, data: bytes) -> Iterator[Hit] | Sequence[Hit]:
        """Every line that a pattern matches is hit at least once (or, for `once` patterns, some line)."""


def detector(pattern: str) -> str:
    """The pattern without what it only captures at its end: hyperscan reports every possible end."""
    return _TAIL_ONE.sub(".", _TAIL.sub("", pattern))


class HyperscanAutomaton:
    """All patterns compiled into one automaton."""

    def __init__(self, patterns: Sequence[str], once: Sequence[bool]) -> None:
        multiline, single = hyperscan.HS_FLAG_MULTILINE, hyperscan.HS_FLAG_SINGLEMATCH
        self._lock = Lock()  # the database's scratch space serves one scan at a time
        self._database = hyperscan.Database(mode=hyperscan.HS_MODE_BLOCK)
        self._database.compile(
            expressions=[detector(pattern).encode() for pattern in patterns],
            ids=list(range(len(patterns))),
            elements=len(patterns),
            flags=[multiline | (single if only else 0) for only in once],
        )

    def hits(self, data: bytes) -> Sequence[Hit]:
        """Where the patterns end in the data."""
        found: list[Hit] = []

        def on_match(pattern: int, _start: int, end: int, _flags: int, _context: Any) -> None:
            found.append(Hit(pattern, end))

        with self._lock:
            self._database.scan(data, match_event_handler=on_match)
        return found


class ReAutomaton:
    """The standard library's way: look for a literal of the pattern, then match the line around it."""

    def __init__(self, patterns: Sequence[str], once: Sequence[bool]) -> None:
        self._rows = [
            (number, literal(pattern), re.compile(pattern.encode(), re.MULTILINE), only)
            for number, (pattern, only) in enumerate(zip(patterns, once, strict=True))
        ]

    def hits(self, data: bytes) -> Iterator[Hit]:
        """Where the patterns end in the data."""
        lowered = data.lower()
        for number, needed, pattern, only in self._rows:
            ends = _near(data, lowered, needed, pattern) if needed else (m.end() for m in pattern.finditer(data))
            for end in ends:
                yield Hit(number, end)
                if only:
                    break


def _near(data: bytes, lowered: bytes, needed: bytes, pattern: re.Pattern[bytes]) -> Iterator[int]:
    at = lowered.find(needed)
    while at >= 0:
        start = data.rfind(b"\n", 0, at) + 1
        end = data.find(b"\n", at)
        end = len(data) if end < 0 else end
        if found := pattern.search(data, max(start, at - FAR), min(end, at + FAR)):
            yield found.end()
        at = lowered.find(needed, end)


_TOKEN = re.compile(
    r"""
    ( \(\?P<\w+> | \(\?i?: | \(\?i\) | \( )    # opens a group
    | ( \) )
    | ( [*?] | \{0?,\d*\} | \{0\} )              # what stands before may be missing
    | ( \+ | \{\d[\d,]*\} )                      # it may be repeated
    | ( \| )
    | ( \[(?:\\.|[^\]\\])+\] | \\[A-Za-z0-9] | [.^$] )
    | \\?(.)                                     # stands for itself
    """,
    re.VERBOSE,
)
_BREAK = "\0"


def literal(pattern: str) -> bytes:
    """The longest text, in lower case, that every match of the pattern holds; empty when there is none."""
    frames: list[list[str]] = [[]]
    for opens, closes, optional, repeated, either, unknown, plain in _TOKEN.findall(pattern):
        if opens:
            frames += [[]] if opens != "(?i)" else []
        elif closes:
            inside = frames.pop()
            frames[-1].append(_BREAK if "|" in inside else "".join(inside))
        elif optional:
            frames[-1][-1] = _BREAK
        elif repeated:
            frames[-1].append(_BREAK)
        else:
            frames[-1].append(either or (_BREAK if unknown or plain == "|" else plain.lower()))
    runs = [] if "|" in frames[0] else "".join(frames[0]).split(_BREAK)
    best = max(runs, key=len, default="")
    return best.encode() if len(best) >= SHORTEST_LITERAL else b""


def build(patterns: Sequence[str], once: Sequence[bool], *, fast: bool | None = None) -> Automaton:
    """An automaton for these patterns.

    `once[i]` asks for one hit of pattern i in each block of data, not for all. `fast` picks the engine: True for
    hyperscan, False for `re`, None for the best that is installed.
    """
    use = hyperscan is not None if fast is None else fast
    return HyperscanAutomaton(patterns, once) if use else ReAutomaton(patterns, once)
