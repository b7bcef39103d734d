"""Reads one log into a bounded summary: what was found, by whom, where ranks run, how far training came."""

from collections import Counter, deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from io import BytesIO
from typing import NamedTuple

from relight.attribution.blocks import Block, blocks, printable
from relight.attribution.origin import speaker
from relight.attribution.progress import StepMark, parse_step
from relight.attribution.scanner import ADDRESS, PLACEMENT, PROGRESS, STARTUP, Match, Scanner
from relight.attribution.sources import LogSource, Seat, Told
from relight.domain.evidence import Source

KEEP_FIRST, KEEP_LAST = 64, 16
FEW_STEPS = 3
"""This many different steps after a failure line say that training went on."""
SURVEYED = 65_536
"""Bytes at either end of the newest block with progress that are read for step lines."""


class StepLine(NamedTuple):
    """A step, and where its line stands."""

    block: int
    offset: int
    mark: StepMark


@dataclass
class Found:
    """The lines of one signature in one log: the first, the last, and how many there were."""

    first: list[Match] = field(default_factory=list)
    last: deque[Match] = field(default_factory=lambda: deque(maxlen=KEEP_LAST))
    ranks: set[int] = field(default_factory=set)
    """All ranks that printed it, not only those of the kept lines."""

    def add(self, match: Match) -> None:
        """Keep the line if it is among the first or the last."""
        if (rank := speaker(match.text).rank) is not None:
            self.ranks.add(rank)
        if len(self.first) < KEEP_FIRST:
            self.first.append(match)
        else:
            self.last.append(match)

    def kept(self) -> Iterator[Match]:
        """The lines kept, in order."""
        yield from self.first
        yield from self.last


@dataclass
class LogScan:
    """What one log says."""

    source: LogSource
    found: dict[str, Found] = field(default_factory=dict)
    counts: Counter[str] = field(default_factory=Counter)
    """Lines of each signature, the ones not kept as well."""
    seats: dict[int, Seat] = field(default_factory=dict)
    nranks: int = 0
    """Size of the group that NCCL's placements are of; 0 when they are the launcher's."""
    addresses: dict[str, str] = field(default_factory=dict)
    """Node of an address."""
    startup: bool = False
    first_step: StepMark | None = None
    steps: list[StepLine] = field(default_factory=list)
    """Step lines of the newest stretch with any, in order."""
    empty: bool = True
    error: str | None = None
    """Why it could not be read, or not to its end."""

    def survived(self, match: Match) -> bool:
        """True when training went on after this line: whatever it says did not end it."""
        after = {line.mark.step for line in self.steps if (line.block, line.offset) > (match.block, match.offset)}
        return len(after) >= FEW_STEPS


def read_log(source: LogSource, scanner: Scanner) -> LogScan:
    """Read a log once. Never fails: what cannot be read is told in `error`."""
    scan = LogScan(source)
    newest: Block | None = None
    try:
        with source.open() as stream:
            for block in blocks(stream):
                scan.empty = scan.empty and not block.data.strip()
                # The scanner sees how a step line may begin; a bar that maps a dataset begins like one too.
                if _read_block(block, scanner, scan) and (step := next(_steps(block), None)):
                    scan.first_step = scan.first_step or step.mark
                    newest = block
    except (OSError, ValueError) as error:
        scan.error = getattr(error, "strerror", None) or str(error)
    if newest is not None:
        scan.steps = list(_steps(newest))
    return scan


def told_by_agents(told: Iterable[Told], scanner: Scanner) -> list[LogScan]:
    """What agents told, as if it had been read: one log for each node and source."""
    scans: dict[tuple[str, Source], LogScan] = {}
    for number, fault in enumerate(told):
        source = LogSource(f"agent of {fault.node}", fault.kind, fault.node, BytesIO)
        scan = scans.setdefault((fault.node, fault.kind), LogScan(source, empty=False))
        fields = scanner.fields(fault.signature, fault.text.encode(errors="replace"))
        fields |= {"gpu": fault.gpu} if fault.gpu else {}
        scan.counts[fault.signature] += 1
        match = Match(fault.signature, 0, fault.text, fields, 0, number, fault.at)
        scan.found.setdefault(fault.signature, Found()).add(match)
    return list(scans.values())


def _read_block(block: Block, scanner: Scanner, scan: LogScan) -> bool:
    """Take the block's matches in; true when it holds a step line."""
    progressed = False
    for match in scanner.matches(block, scan.counts):
        if match.signature == PROGRESS:
            progressed = True
        elif match.signature == STARTUP:
            scan.startup = True
        elif match.signature == PLACEMENT:
            _seat(match.fields, scan)
        elif match.signature == ADDRESS:
            scan.addresses.setdefault(match.fields["address"], match.fields["node"])
        else:
            scan.found.setdefault(match.signature, Found()).add(match)
    return progressed


def _seat(fields: dict[str, str], scan: LogScan) -> None:
    """Take a placement in; NCCL numbers ranks anew in each group, so only its largest group counts."""
    size = int(fields.get("nranks", 0))
    if 0 < size < scan.nranks:
        return
    if size > scan.nranks:
        scan.nranks = size
        scan.seats.clear()
    scan.seats.setdefault(int(fields["rank"]), Seat(node=fields["node"], gpu=fields.get("gpu")))


def _steps(block: Block) -> Iterator[StepLine]:
    data, start = block.data, 0
    if len(data) > 2 * SURVEYED:
        yield from _steps_between(block, 0, SURVEYED)
        start = data.rfind(b"\n", 0, len(data) - SURVEYED) + 1
    yield from _steps_between(block, start, len(data))


def _steps_between(block: Block, start: int, stop: int) -> Iterator[StepLine]:
    while start < stop:
        end = block.data.find(b"\n", start, stop)
        end = stop if end < 0 else end
        if mark := parse_step(printable(block.data[start : min(end, start + 4096)])):
            yield StepLine(block.number, start, mark)
        start = end + 1
