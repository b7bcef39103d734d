"""One pass over a log: which lines any signature recognises, in bounded memory."""

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from datetime import datetime
from functools import cached_property, partial
from itertools import accumulate
from typing import BinaryIO, NamedTuple

from relight.attribution import progress
from relight.attribution.automaton import Automaton, build
from relight.attribution.blocks import Block, blocks, printable
from relight.attribution.catalogue import Catalogue
from relight.attribution.hyperscan_automaton import Hit, hits_in
from relight.attribution.keywords import as_written

DETAILED = 20_000
"""Lines of one signature in one log that are yielded; the next ones are only counted."""
TELLING = 16
"""Characters of a text that alone tells a line of a signature: shorter ones are in other lines, too."""
LINE_LIMIT = 4096
"""Bytes of a line that are looked at for what it names."""

PLACEMENT, ADDRESS, STARTUP = "@placement", "@address", "@startup"
_REMEMBERED = 4096
"""Sets of patterns on one line whose meaning is remembered."""


class Match(NamedTuple):
    """A line that a signature (or a mark, whose name begins with `@`) recognises."""

    signature: str
    line_no: int
    text: str
    """The line, safe to show, at most 4096 bytes of it."""
    fields: dict[str, str]
    """What the line names: the patterns' named groups."""
    block: int
    offset: int
    """Where the line begins in its block: (block, offset) orders the matches of one log."""
    at: datetime | None = None
    """When it happened, where that is known beside the line."""


class _Line(NamedTuple):
    """A line that is hit."""

    start: int
    end: int
    """Where the first hit in it ends."""
    patterns: tuple[int, ...]
    """Each once, in order."""


class Scanner:
    """All signatures of a catalogue, ready to be searched for. Holds no state between logs; threads may share it.

    Raises:
        PatternError: when a pattern cannot be searched for.
    """

    def __init__(self, catalogue: Catalogue, *, fast: bool | None = None, lazy: bool = False) -> None:
        """Prepare to search: `fast` and `lazy` as in `automaton.build`."""
        self.catalogue = catalogue
        marks = catalogue.marks
        rows = [(one.id, pattern) for one in catalogue.signatures.values() for pattern in one.expressions]
        rows += [(PLACEMENT, pattern) for pattern in marks.placement]
        rows += [(ADDRESS, pattern) for pattern in marks.address]
        rows += [(STARTUP, pattern) for pattern in marks.startup]
        self._names = [name for name, _ in rows]
        self.patterns = [pattern for _, pattern in rows]
        """All that is searched for, signatures' and marks'."""
        self._numbers: dict[str, list[int]] = {}
        for number, name in enumerate(self._names):
            self._numbers.setdefault(name, []).append(number)
        self._generic = {one.id for one in catalogue.signatures.values() if one.generic}
        self._automaton = build(self.patterns, self._numbers.get(STARTUP, ()), fast=fast, lazy=lazy)
        self._fast, self._lazy = fast, lazy
        self._regexes: dict[int, re.Pattern[bytes]] = {}
        self._meanings: dict[tuple[int, ...], tuple[tuple[str, tuple[int, ...]], ...]] = {}

    @cached_property
    def _progress(self) -> Automaton:
        return build(
            [_beginning(form.pattern.pattern) for form in progress.formats()],
            rare=False,
            fast=self._fast,
            lazy=self._lazy,
        )

    def prepare(self) -> None:
        """Compile and read now what else is when it is first needed: before a fork, say."""
        self._automaton.prepare()
        self._progress.prepare()
        progress.parse_step("")

    def scan(self, stream: BinaryIO) -> Iterator[Match]:
        """Every recognised line of the stream in order; the ones beyond `DETAILED` a signature are left out."""
        counts: Counter[str] = Counter()
        for block in blocks(stream):
            yield from self.matches(block, counts)

    def matches(self, block: Block, counts: Counter[str], most: int = DETAILED) -> Iterator[Match]:
        """The recognised lines of a block in order, at most `most` a signature; `counts` grows by all of them.

        Once a signature has that many, lines that hold a text of it are counted and not looked at any more.
        """
        number, counted = block.first_line, 0
        for line in _lines(block, self._hits(block, counts, most)):
            number, counted = number + block.newlines(counted, line.start), line.start
            raw, text = b"", ""
            for name, patterns in self._meaning(line.patterns):
                counts[name] += 1
                if counts[name] > most:
                    continue
                if not raw:
                    raw = block.line(line.start, line.end, LINE_LIMIT)
                    text = printable(raw)
                yield Match(name, number, text, self._named(patterns, raw), block.number, line.start)

    def _hits(self, block: Block, counts: Counter[str], most: int) -> Sequence[Hit]:
        loud = [(name, text) for name, count in counts.items() if count >= most for text in self._texts(name)]
        search = partial(self._automaton.hits, once=not counts[STARTUP])
        if not loud:
            return search(block.data)
        # Calling back for each of a million echoes would cost ten times as much as taking their lines out.
        lines = block.data.split(b"\n")
        left = [number for number, line in enumerate(lines) if line]
        for name, text in loud:
            quiet = [number for number in left if text not in lines[number]]
            counts[name] += len(left) - len(quiet)
            left = quiet
        starts = list(accumulate((len(line) + 1 for line in lines), initial=0)) if left else []
        others = [(starts[number], starts[number] + len(lines[number])) for number in left]
        return hits_in(others, block.data, search)

    def _texts(self, name: str) -> list[bytes]:
        """Texts that tell a line of this signature from all others."""
        if name in self._generic:
            return []
        texts = [as_written(self.patterns[number]) for number in self._numbers[name]]
        return [text for text in texts if len(text) >= TELLING]

    def step_places(self, data: bytes) -> Iterator[int]:
        """Offsets in the lines of the data that may tell a step of training, in order, several in one line maybe."""
        return (end - 1 for end, _ in self._progress.hits(data))

    def first_step_place(self, data: bytes) -> int | None:
        """The first of them."""
        end = self._progress.first(data)
        return None if end is None else end - 1

    def fields(self, name: str, line: bytes) -> dict[str, str]:
        """What the line names, by the patterns of that signature."""
        return self._named(self._numbers[name], line)

    def _meaning(self, patterns: tuple[int, ...]) -> tuple[tuple[str, tuple[int, ...]], ...]:
        """The names behind the patterns of one line, each with its patterns; a generic one only by itself."""
        known = self._meanings.get(patterns)
        if known is None:
            by_name: dict[str, list[int]] = {}
            for number in patterns:
                by_name.setdefault(self._names[number], []).append(number)
            if any(not name.startswith("@") and name not in self._generic for name in by_name):
                by_name = {name: numbers for name, numbers in by_name.items() if name not in self._generic}
            known = tuple((name, tuple(by_name[name])) for name in sorted(by_name))
            if len(self._meanings) >= _REMEMBERED:
                self._meanings.clear()
            self._meanings[patterns] = known
        return known

    def _named(self, patterns: Iterable[int], line: bytes) -> dict[str, str]:
        fields: dict[str, str] = {}
        for number in patterns:
            regex = self._regexes.get(number)
            if regex is None:
                regex = self._regexes[number] = re.compile(self.patterns[number].encode())
            if regex.groupindex and (found := regex.search(line)):
                named = found.groupdict()
                fields |= {key: printable(value) for key, value in named.items() if value and key not in fields}
        return fields


def _lines(block: Block, hits: Iterable[Hit]) -> Iterator[_Line]:
    """The hits by line, in order."""
    start, first, stop, patterns = 0, 0, -1, set[int]()
    for end, pattern in hits:
        at = max(end - 1, 0)
        if at > stop:
            if patterns:
                yield _Line(start, first, tuple(sorted(patterns)))
            start, first, patterns = block.line_start(at), end, set()
            stop = block.line_end(start, at)
        patterns.add(pattern)
    if patterns:
        yield _Line(start, first, tuple(sorted(patterns)))


def _beginning(pattern: str) -> str:
    """A step line is found by its shape up to the step number; the rest is read from the line."""
    return re.split(r"\(\?P<step>\\d\+\)", pattern)[0] + r"\d"
