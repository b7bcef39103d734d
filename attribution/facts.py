"""Everything known of an interruption, side by side: lines of all logs with speaker, time and trust."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import NamedTuple

from relight.attribution.origin import Speaker, speaker, time_of
from relight.attribution.progress import StepMark
from relight.attribution.reading import LogScan
from relight.attribution.scanner import Match
from relight.attribution.sources import Context, Seat
from relight.domain.base import clip
from relight.domain.evidence import PLATFORM_WINDOW, Evidence

AFTER_INTERRUPTION = timedelta(seconds=10)
BEFORE_HANG = timedelta(seconds=60)
SAME_FAULT = timedelta(seconds=10)
"""A fault that two sources on one node tell so close to each other is one."""
WATCHDOG = "NCCL_WATCHDOG_TIMEOUT"
GPU_NAMED = "NVRM_GPU_NAMED"
GPU_NAMED_WITHIN = 3
"""Lines after the one that names a GPU in a driver's message over several lines."""


class Line(NamedTuple):
    """A recognised line with all that is known of it."""

    match: Match
    scan: LogScan
    speaker: Speaker
    at: datetime | None
    survived: bool
    witness: bool
    """Platform evidence that lies within the window in which it may drain a node."""

    @property
    def order(self) -> tuple[int, int]:
        """Where it stands in its own log."""
        return self.match.block, self.match.offset

    def before(self, other: "Line") -> bool:
        """True when this line is known to be the earlier one: by place in one log, by time between logs."""
        if self.scan is other.scan:
            return self.order < other.order
        return self.at is not None and other.at is not None and self.at < other.at

    def evidence(self) -> Evidence:
        """The line as evidence."""
        source = self.scan.source
        return Evidence(
            source=source.kind,
            text=clip(self.match.text, 600),
            signature=self.match.signature,
            node=source.node or self.speaker.node,
            rank=self.speaker.rank,
            gpu=self.match.fields.get("gpu") or self.speaker.gpu,
            at=self.at,
            file=source.name if self.match.line_no else None,
            line=self.match.line_no or None,
        )


@dataclass
class Facts:
    """What the root-cause search works on."""

    context: Context
    scans: Sequence[LogScan]
    lines: dict[str, list[Line]] = field(default_factory=dict)
    """By signature, earliest known first."""
    counts: Counter[str] = field(default_factory=Counter)
    seats: dict[int, Seat] = field(default_factory=dict)
    addresses: dict[str, str] = field(default_factory=dict)
    hang_began: datetime | None = None

    @property
    def nodes(self) -> tuple[str, ...]:
        """Nodes of the allocation, as far as known."""
        return self.context.nodes or tuple(dict.fromkeys(seat.node for seat in self.seats.values()))

    @property
    def last(self) -> StepMark | None:
        """The furthest step that any log shows."""
        marks = [line.mark for scan in self.scans for line in scan.steps[-1:]]
        return max(marks, key=lambda mark: mark.step, default=None)

    @property
    def last_step(self) -> int | None:
        """The last step before the interruption: from the logs, else as the watcher saw it."""
        return self.last.step if self.last else self.context.last_step

    @property
    def ran_before(self) -> bool:
        """True when the job has trained in this or an earlier attempt."""
        earlier = any(prior.failed_step is not None for prior in self.context.history)
        return self.last_step is not None or earlier

    @property
    def at_start(self) -> bool:
        """True when the log shows the start of a job that has never trained."""
        return not self.ran_before and any(scan.startup or scan.seats for scan in self.scans)

    def node_name(self, text: str) -> str:
        """The node behind an address or a full name, or the text itself."""
        text = self.addresses.get(text, text)
        short = text.split(".")[0]
        return short if short in self.nodes and text not in self.nodes else text


def gather(scans: Sequence[LogScan], context: Context) -> Facts:
    """Put the logs side by side."""
    facts = Facts(context=context, scans=scans)
    for scan in scans:
        facts.seats |= scan.seats
        facts.addresses |= scan.addresses
        facts.counts.update(scan.counts)
    facts.seats |= context.rank_map
    facts.hang_began = _hang_start(scans, context)
    for scan in scans:
        for found in scan.found.values():
            for match in found.kept():
                _add(facts, scan, match)
    for lines in facts.lines.values():
        if all(line.at for line in lines):
            lines.sort(key=_time)
        lines.sort(key=lambda line: line.survived)  # stable: those that did not stop anything come last
    return facts


def _time(line: Line) -> float:
    return line.at.timestamp() if line.at else 0.0


def _add(facts: Facts, scan: LogScan, match: Match) -> None:
    at = match.at or time_of(match.text, facts.context.interrupted_at)
    witness = False
    if scan.source.node:
        if not _near(at, facts.context, facts.hang_began):
            return
        trusted = scan.source.platform and at is not None
        witness = trusted and facts.context.interrupted_at is not None and _near(at, facts.context, None)
    who = speaker(match.text, frozenset(facts.nodes))
    line = Line(_with_gpu(match, scan), scan, who, at, scan.survived(match), witness)
    lines = facts.lines.setdefault(match.signature, [])
    if match.at is None or not any(_same(line, other) for other in lines):
        lines.append(line)


def _same(told: Line, other: Line) -> bool:
    """True when the node's own kernel log has what its agent tells: one fault, seen on two ways."""
    if other.scan.source.node != told.scan.source.node:
        return False
    if told.at is None or other.at is None or abs(told.at - other.at) > SAME_FAULT:
        return False
    gpus = {_short(gpu) for line in (told, other) if (gpu := line.match.fields.get("gpu"))}
    return len(gpus) <= 1


def _short(gpu: str) -> str:
    """Bus and device of a PCI address: the driver and NVML write the domain with more or fewer digits."""
    return gpu.lower().partition(".")[0][-5:]


def _near(at: datetime | None, context: Context, hang_began: datetime | None) -> bool:
    """True unless the time is known to lie outside the window around the interruption."""
    end = context.interrupted_at
    if at is None or end is None:
        return True
    start = end - PLATFORM_WINDOW
    if hang_began is not None:
        start = min(start, hang_began - BEFORE_HANG)
    return start <= at <= end + AFTER_INTERRUPTION


def _hang_start(scans: Sequence[LogScan], context: Context) -> datetime | None:
    """Print time of the first watchdog line, less what it had waited by then."""
    starts = []
    for scan in scans:
        found = scan.found.get(WATCHDOG)
        for match in found.first if found else ():
            waited = match.fields.get("ran_ms") or match.fields.get("timeout_ms")
            at = time_of(match.text, context.interrupted_at)
            if at is not None and waited is not None and len(waited) < 10:  # noqa: PLR2004 - a day has 8 digits
                starts.append(at - timedelta(milliseconds=int(waited)))
    return min(starts, default=None)


def _with_gpu(match: Match, scan: LogScan) -> Match:
    """The driver's message about a lost GPU goes over several lines; the first names the GPU."""
    if match.signature != "XID_79" or "gpu" in match.fields or GPU_NAMED not in scan.found:
        return match
    for named in scan.found[GPU_NAMED].kept():
        if 0 <= match.line_no - named.line_no <= GPU_NAMED_WITHIN and "gpu" in named.fields:
            return match._replace(fields=match.fields | {"gpu": named.fields["gpu"]})
    return match
