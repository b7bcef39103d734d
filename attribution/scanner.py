"""One pass over a log: which lines any signature recognises, in bounded memory."""

import re
from collections import Counter
from collections.abc import Iterator
from datetime import datetime
from typing import BinaryIO, NamedTuple

from relight.attribution import progress
from relight.attribution.automaton import build, detector
from relight.attribution.blocks import Block, blocks, printable
from relight.attribution.catalogue import Catalogue

DETAILED = 20_000
"""Matches of one signature that are yielded; after these they are only counted."""
LINE_LIMIT = 4096
"""Bytes of a line that are looked at for what it names."""

PLACEMENT, ADDRESS, STARTUP, PROGRESS = "@placement", "@address", "@startup", "@progress"


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


class Scanner:
    """All signatures of a catalogue, ready to be searched for. Holds no state between logs; threads may share it."""

    def __init__(self, catalogue: Catalogue, *, fast: bool | None = None) -> None:
        self.catalogue = catalogue
        rows: list[tuple[str, str]] = [
            (signature.id, pattern) for signature in catalogue.signatures.values() for pattern in signature.expressions
        ]
        marks = catalogue.marks
        rows += [(PLACEMENT, pattern) for pattern in marks.placement]
        rows += [(ADDRESS, pattern) for pattern in marks.address]
        rows += [(STARTUP, pattern) for pattern in marks.startup]
        rows += [(PROGRESS, form.pattern.pattern) for form in progress.formats()]
        self._names = [name for name, _ in rows]
        self._generic = {one.id for one in catalogue.signatures.values() if one.generic}
        self._patterns: dict[str, list[re.Pattern[bytes]]] = {}
        for name, pattern in rows:
            self._patterns.setdefault(name, []).append(re.compile(pattern.encode()))
        once = [name in {STARTUP, PROGRESS} for name in self._names]
        shortened = [_detector(name, pattern) for name, pattern in rows]
        self._automaton = build(shortened, once, fast=fast)

    def scan(self, stream: BinaryIO) -> Iterator[Match]:
        """Every recognised line of the stream in order; the ones beyond `DETAILED` a signature are left out."""
        counts: Counter[str] = Counter()
        for block in blocks(stream):
            yield from self.matches(block, counts)

    def matches(self, block: Block, counts: Counter[str]) -> Iterator[Match]:
        """The recognised lines of a block in order; `counts` grows by all of them."""
        lines: dict[int, set[str]] = {}
        places: dict[int, int] = {}
        for pattern, end in self._automaton.hits(block.data):
            start = block.line_start(max(end - 1, 0))
            lines.setdefault(start, set()).add(self._names[pattern])
            places.setdefault(start, end)
        number, counted = block.first_line, 0
        for start in sorted(lines):
            number, counted = number + block.newlines(counted, start), start
            names = lines[start]
            if any(not name.startswith("@") for name in names - self._generic):
                names = names - self._generic
            counts.update(names)
            if kept := [name for name in sorted(names) if counts[name] <= DETAILED]:
                yield from self._match(block, (number, start, places[start]), kept)

    def _match(self, block: Block, where: tuple[int, int, int], names: list[str]) -> Iterator[Match]:
        number, start, hit = where
        raw = block.line(start, hit, LINE_LIMIT)
        text = printable(raw)
        for name in names:
            yield Match(name, number, text, self.fields(name, raw), block.number, start)

    def fields(self, name: str, line: bytes) -> dict[str, str]:
        """What the line names, by the patterns of that signature."""
        fields: dict[str, str] = {}
        for pattern in self._patterns[name]:
            if found := pattern.search(line):
                named = found.groupdict()
                fields |= {key: printable(value) for key, value in named.items() if value and key not in fields}
        return fields


def _detector(name: str, pattern: str) -> str:
    """Progress is found by its shape up to the step number; the rest is read from the line."""
    if name != PROGRESS:
        return pattern
    return detector(re.split(r"\(\?P<step>\\d\+\)", pattern)[0] + r"\d")
