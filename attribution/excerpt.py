"""The lines around the one that shows the cause, read again from its log."""

import re
from collections.abc import Sequence

from relight.attribution.blocks import blocks, printable
from relight.attribution.reading import LogScan
from relight.attribution.scanner import Match
from relight.attribution.sources import LogSource
from relight.domain.base import clip
from relight.domain.diagnosis import Hypothesis, Nearby

BEFORE, AFTER = 5, 3
"""Lines shown: what led to it tells more than what followed."""
FARTHEST = 1024
"""Blocks from the beginning of a log that are read once more for it: 256 MiB."""
JOINED = 1 << 14
"""Bytes of the blocks before and behind that are looked at: a line may stand at the edge of its own."""
SHOWN = 300
_MARKERS = re.compile(r"[\s\d:]*(?:\[\w+\]:?)?[\s~^]+")
"""A traceback's underlining: nothing to read."""


def around(verdict: Hypothesis, sources: Sequence[LogSource], scans: Sequence[LogScan]) -> tuple[Nearby, ...]:
    """The lines around the first that the verdict rests on; none where that is in no log, or too far into it."""
    first = next((one for one in verdict.evidence if one.file and one.line), None)
    for source, scan in zip(sources, scans, strict=False):
        if first and source.name == first.file and (found := scan.found.get(first.signature or "")):
            match = next((one for one in found.kept() if one.line_no == first.line), None)
            return _read(source, match) if match and match.block <= FARTHEST else ()
    return ()


def _read(source: LogSource, match: Match) -> tuple[Nearby, ...]:
    raw, tail = b"", b""
    offset = first_line = 0
    try:
        with source.open() as stream:
            for block in blocks(stream):
                if block.number > match.block:
                    raw += block.raw[:JOINED]
                    break
                if block.number == match.block:
                    raw, offset = tail + block.raw, len(tail) + match.offset
                    first_line = block.first_line - tail.count(b"\n")
                tail = block.raw[-JOINED:]
    except (OSError, ValueError):  # it could be read a moment ago
        return ()
    return _lines(raw, offset, first_line, match.line_no)


def _lines(raw: bytes, offset: int, first_line: int, shown: int) -> tuple[Nearby, ...]:
    """Lines as an editor counts them: what a progress bar overwrote is one line, of which its end is shown."""
    start = end = offset
    for _ in range(BEFORE + 1):
        start = raw.rfind(b"\n", 0, max(start - 1, 0)) + 1
    for _ in range(AFTER + 1):
        end = raw.find(b"\n", end) + 1 or len(raw)
    number = first_line + raw.count(b"\n", 0, start)
    texts = [text.rstrip(b"\r").rpartition(b"\r")[2] for text in raw[start:end].rstrip(b"\n").split(b"\n")]
    near = [(number + index, clip(printable(text[: 4 * SHOWN]), SHOWN)) for index, text in enumerate(texts)]
    wanted = range(shown - BEFORE, shown + AFTER + 1)
    return tuple(Nearby(line=line, text=text) for line, text in near if line in wanted and not _MARKERS.fullmatch(text))
