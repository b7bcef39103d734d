"""One recognised line with all that is known of it."""

from datetime import datetime, timedelta
from typing import NamedTuple

from relight.attribution.origin import Speaker
from relight.attribution.reading import LogScan
from relight.attribution.scanner import Match
from relight.attribution.timeline import Moment
from relight.domain.base import clip
from relight.domain.evidence import Evidence

SAME_FAULT = timedelta(seconds=10)
"""A fault that two sources on one node tell so close to each other is one."""


class Line(NamedTuple):
    """A recognised line with all that is known of it."""

    match: Match
    scan: LogScan
    speaker: Speaker
    at: datetime | None
    """By its own clock."""
    moment: Moment | None
    survived: bool
    """Training went on after it."""
    witness: bool
    """Platform evidence that lies within the window in which it may drain a node."""
    chained: bool = False
    """An exception in whose handling, or because of which, the same process raised another one."""

    @property
    def order(self) -> tuple[int, int]:
        """Where it stands in its own log."""
        return self.match.block, self.match.offset

    def before(self, other: "Line") -> bool:
        """True when this line is known to be the earlier one.

        By place for lines of one process; by clock for others, and by place where the clocks do not tell and both stand
        in one log.
        """
        here = self.scan is other.scan
        strangers = self.speaker != other.speaker and any(self.speaker) and any(other.speaker)
        if (not here or strangers) and self.moment and other.moment:
            told = self.moment.before(other.moment)
            if told is not None or not here:
                return bool(told)
        return here and self.order < other.order

    @property
    def place(self) -> tuple[str, str | int] | None:
        """Who printed it, as far as known: for counting different reporters."""
        if self.scan.source.node or self.speaker.node:
            return "node", self.scan.source.node or self.speaker.node or ""
        return ("rank", self.speaker.rank) if self.speaker.rank is not None else None

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


def same_fault(told: Line, other: Line) -> bool:
    """True when two sources on one node tell one fault: close in time, and of the same GPU as far as they say."""
    if told.at is None or other.at is None or abs(told.at - other.at) > SAME_FAULT:
        return False
    gpus = {_short(gpu) for line in (told, other) if (gpu := line.match.fields.get("gpu"))}
    return len(gpus) <= 1


def _short(gpu: str) -> str:
    """Bus and device of a PCI address: the driver and NVML write the domain with more or fewer digits."""
    return gpu.lower().partition(".")[0][-5:]
