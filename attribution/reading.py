"""Reads one log into a bounded summary: what was found, by whom, where ranks run, how far training came."""

from collections import Counter, deque
from collections.abc import Iterable
from dataclasses import dataclass, field
from io import BytesIO
from typing import NamedTuple

from relight.attribution.blocks import Block, blocks
from relight.attribution.found import KEEP_FIRST, KEEP_LAST, KEEP_MORE, Found
from relight.attribution.progress import StepMark
from relight.attribution.scanner import ADDRESS, DETAILED, PLACEMENT, STARTUP, Match, Scanner
from relight.attribution.sources import LogSource, Seat, Told
from relight.attribution.steps import StepLine, Steps
from relight.domain.evidence import Source

MOST_ANCHORS = 1024
ANCHOR_TEXT = 200
"""Characters of an anchor's line: its stamp and its speaker stand at the beginning."""


class Keep(NamedTuple):
    """How much of one log is kept."""

    detailed: int = DETAILED
    """Lines of one signature that are read for whom they name."""
    first: int = KEEP_FIRST
    last: int = KEEP_LAST
    steps: int = 256


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
    went_on: tuple[int, int] | None = None
    """The place before which a line is followed by a few different steps; None: no line is."""
    anchors: dict[tuple[str, str], str] = field(default_factory=dict)
    """Lines by which the clocks of logs are compared, by event (`seat 16`, `startup`, `step 120`) and node, if any."""
    empty: bool = True
    error: str | None = None
    """Why it could not be read, or not to its end."""

    def survived(self, match: Match) -> bool:
        """True when training went on after this line: whatever it says did not end it."""
        return self.went_on is not None and (match.block, match.offset) < self.went_on

    def anchor(self, event: str, node: str, text: str) -> None:
        """Keep the line if it is the first of its kind."""
        if len(self.anchors) < MOST_ANCHORS:
            self.anchors.setdefault((event, node), text[:ANCHOR_TEXT])


def read_log(source: LogSource, scanner: Scanner, keep: Keep | None = None) -> LogScan:
    """Read a log once. Never fails: what cannot be read is told in `error`."""
    keep = keep or Keep()
    scan, steps = LogScan(source), Steps(scanner)
    try:
        with source.open() as stream:
            for block in blocks(stream):
                scan.empty = scan.empty and not block.data.strip()
                _read_block(block, scanner, scan, keep.detailed)
                steps.add(block)
    except (OSError, ValueError) as error:
        scan.error = getattr(error, "strerror", None) or str(error)
    scan.steps = steps.newest(keep.steps)
    scan.first_step = steps.first.mark if steps.first else None
    scan.went_on = steps.went_on
    for step in filter(None, (steps.first, *scan.steps[-1:])):
        scan.anchor(f"step {step.mark.step}", "", step.text)
    _thin(scan, keep)
    return scan


def _thin(scan: LogScan, keep: Keep) -> None:
    """Of many logs fewer lines are kept of each, so that together they stay in bounds."""
    for name, found in scan.found.items():
        if name not in KEEP_MORE and len(found.first) > keep.first:
            last = deque([*found.first[keep.first :], *found.last][-keep.last :], maxlen=KEEP_LAST)
            found.first, found.last = found.first[: keep.first], last


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


def _read_block(block: Block, scanner: Scanner, scan: LogScan, most: int) -> None:
    for match in scanner.matches(block, scan.counts, most):
        if match.signature == STARTUP:
            scan.startup = True
            scan.anchor("startup", "", match.text)
        elif match.signature == PLACEMENT:
            scan.anchor(f"seat {match.fields.get('nranks', 0)}", match.fields["node"], match.text)
            _seat(match.fields, scan)
        elif match.signature == ADDRESS:
            scan.addresses.setdefault(match.fields["address"], match.fields["node"])
        else:
            scan.found.setdefault(match.signature, Found()).add(match)


def _seat(fields: dict[str, str], scan: LogScan) -> None:
    """Take a placement in; NCCL numbers ranks anew in each group, so only its largest group counts."""
    size = int(fields.get("nranks", 0))
    if 0 < size < scan.nranks:
        return
    if size > scan.nranks:
        scan.nranks = size
        scan.seats.clear()
    scan.seats.setdefault(int(fields["rank"]), Seat(node=fields["node"], gpu=fields.get("gpu")))
