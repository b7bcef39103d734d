"""The step lines of one log: the first, and the newest stretch with any. In bounded memory and time."""

from collections import deque
from collections.abc import Iterator
from typing import NamedTuple

from relight.attribution.blocks import Block, printable
from relight.attribution.progress import StepMark, parse_step
from relight.attribution.scanner import LINE_LIMIT, Scanner

FEW_STEPS = 3
"""This many different steps after a failure line say that training went on."""
GLANCE = 16_384
"""Bytes at either end of a block that tell whether it has steps: where there are any, there are many."""
SURVEYED = 65_536
"""Bytes at either end of the newest blocks with steps that are read for them."""
BLOCKS_OF_STEPS = 2
"""Newest blocks with step lines that are read for them: the last may be a single line that no line end follows."""
WAITING = 8
"""Blocks that are kept before they are looked at."""
LAST_FEW = 8192
"""Bytes at the end that are tried before those: mostly they hold enough."""


class StepLine(NamedTuple):
    """A step, and where its line stands."""

    block: int
    offset: int
    mark: StepMark
    text: str
    """The beginning of the line."""


class Steps:
    """Finds the first step of a log and its newest ones, looking at as little of it as it can."""

    def __init__(self, scanner: Scanner) -> None:
        self.first: StepLine | None = None
        self.went_on: tuple[int, int] | None = None
        """Once the newest are known: the place before which a line is followed by `FEW_STEPS` different steps."""
        self._scanner = scanner
        self._bare: deque[Block] = deque(maxlen=BLOCKS_OF_STEPS)
        self._waiting: list[Block] = []
        self._newest: deque[Block] = deque(maxlen=BLOCKS_OF_STEPS)

    def add(self, block: Block) -> None:
        """Take the next block in."""
        if self.first is not None:
            self._waiting.append(block)
            if len(self._waiting) == WAITING:
                self._look()
        else:
            self.first = first_step(block, self._scanner, GLANCE)
            (self._bare if self.first is None else self._newest).append(block)

    def newest(self, most: int) -> list[StepLine]:
        """Step lines of the newest stretch with any, in order, at most `most`. After it nothing may be added."""
        self._look()
        if self.first is None:
            for block in self._bare:
                if line := first_step(block, self._scanner, len(block.data)):
                    self.first = self.first or line
                    self._newest.append(block)
        lines: list[StepLine] = []
        seen: set[int] = set()
        for line in self._newest_first():
            lines.append(line)
            seen.add(line.mark.step)
            if len(seen) == FEW_STEPS and self.went_on is None:
                self.went_on = line.block, line.offset
            if len(lines) >= most and self.went_on is not None:
                break
        return lines[:most][::-1]

    def _newest_first(self) -> Iterator[StepLine]:
        for block in reversed(self._newest):
            yield from newest_first(block, self._scanner)

    def _look(self) -> None:
        """Of the blocks that wait only the newest ones with steps matter."""
        found: list[Block] = []
        for block in reversed(self._waiting):
            if len(found) < BLOCKS_OF_STEPS and first_step(block, self._scanner, GLANCE):
                found.append(block)
        self._newest.extend(reversed(found))
        self._waiting.clear()


def first_step(block: Block, scanner: Scanner, size: int) -> StepLine | None:
    """The first step line in so many bytes at either end of the block."""
    for start, stop in _ends(block.data, size):
        at = start
        while at < stop and (found := scanner.first_step_place(block.data[at:stop])) is not None:
            begin, end = _line(block.data, at + found, at, stop)
            if line := _read(block, begin, end):
                return line
            at = end + 1
    return None


def newest_first(block: Block, scanner: Scanner) -> Iterator[StepLine]:
    """The step lines at either end of the block, the last one first."""
    data, stop = block.data, len(block.data)
    for size in (LAST_FEW, SURVEYED):
        start = data.rfind(b"\n", 0, max(len(data) - size, 0)) + 1
        yield from _last_first(block, start, stop, scanner)
        stop = start
    yield from _last_first(block, 0, min(stop, _head(data, SURVEYED)), scanner)


def _last_first(block: Block, start: int, stop: int, scanner: Scanner) -> Iterator[StepLine]:
    for begin, end in reversed(list(_candidates(block.data, start, stop, scanner))):
        if line := _read(block, begin, end):
            yield line


def _candidates(data: bytes, start: int, stop: int, scanner: Scanner) -> Iterator[tuple[int, int]]:
    after = start
    for place in scanner.step_places(data[start:stop]):
        if start + place >= after:
            begin, end = _line(data, start + place, start, stop)
            yield begin, end
            after = end + 1


def _line(data: bytes, at: int, low: int, high: int) -> tuple[int, int]:
    end = data.find(b"\n", at, high)
    return data.rfind(b"\n", low, at) + 1 or low, high if end < 0 else end


def _read(block: Block, begin: int, end: int) -> StepLine | None:
    text = printable(block.data[begin : min(end, begin + LINE_LIMIT)])
    mark = parse_step(text)
    return StepLine(block.number, begin, mark, text[:200]) if mark else None


def _ends(data: bytes, size: int) -> list[tuple[int, int]]:
    """Whole lines at the beginning and at the end of the data, or all of it."""
    if len(data) <= 2 * size:
        return [(0, len(data))]
    return [(0, _head(data, size)), (data.rfind(b"\n", 0, len(data) - size) + 1, len(data))]


def _head(data: bytes, size: int) -> int:
    """Where the whole lines in the first bytes end: half a number would be another step."""
    return data.rfind(b"\n", 0, size) + 1 or size
