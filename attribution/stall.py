"""When a stall began: watchdogs print what they have waited for by then."""

from collections.abc import Iterator, Sequence
from datetime import UTC, datetime, time, timedelta
from typing import NamedTuple

from relight.attribution.origin import speaker, stamp_of
from relight.attribution.reading import LogScan
from relight.attribution.scanner import Match
from relight.attribution.sources import Context
from relight.attribution.timeline import Moment, Timeline
from relight.attribution.whose import Owner

ANY_YEAR = datetime(2000, 1, 1, tzinfo=UTC)
WATCHDOG = "NCCL_WATCHDOG_TIMEOUT"
LOOKED_AT = 1024
"""Watchdog lines that are dated, over all logs; at least two of each log."""
MOST_WAITED = timedelta(days=1)
"""A time-out longer than this is no time-out."""
TOGETHER = timedelta(minutes=1)
"""Ranks that wait for each other began to wait within this."""
A_FEW = 0.1
"""The part of all dated lines that must agree on a start: one clock that is wrong does not date the stall."""
OFF = timedelta(minutes=15)
"""So far the job's clocks may be from the platform's and still be compared with them."""
GAP = timedelta(minutes=30)
"""So long without a step, then the time limit: it hung."""
GAP_STEPS = 20
"""And as long as so many steps usually take."""


class Stall(NamedTuple):
    """The stall as far as the logs date it."""

    began: datetime | None = None
    """By the job's clocks."""
    time_of_day: time | None = None
    """The same for people to read, also where no line names a year: it dates nothing."""
    by_platform: datetime | None = None
    """The same where the job's clocks and the platform's agree well enough to look into kernel logs by it."""
    last_step: Moment | None = None
    """When the newest step was printed."""
    step_takes: timedelta | None = None


def find_stall(scans: Sequence[LogScan], owners: Sequence[Owner], timeline: Timeline, context: Context) -> Stall:
    """Date the stall by the first watchdog line less what it had waited, and by the newest step."""
    waits = list(_waits(scans))
    dated = sorted(
        (printed - waited, printed)
        for log, text, waited in waits
        if (printed := _printed(log, text, owners, timeline, context))
    )
    began, by_platform = None, None
    of_day = next((stamp.at - waited for _, text, waited in waits if (stamp := stamp_of(text, ANY_YEAR))), None)
    if dated:
        began, printed = _first_agreed(dated)
        end = context.interrupted_at
        # A hang is seen at its start, and its watchdogs print later; a crash is what they print at.
        if end is not None and printed >= end - OFF and began <= end + OFF:
            by_platform = began
    last, takes = _steps(scans, timeline, context)
    clock = began or of_day
    return Stall(began, clock.time() if clock else None, by_platform, last, takes)


def hung_until(limit: Moment, stall: Stall) -> bool:
    """True when steps are known to have stopped long before the time limit ended the job."""
    gap = max(GAP, GAP_STEPS * (stall.step_takes or timedelta(0)))
    return stall.last_step is not None and stall.last_step.before(limit, gap) is True


def _waits(scans: Sequence[LogScan]) -> Iterator[tuple[int, str, timedelta]]:
    """Watchdogs' lines, each with the place of its log and how long it had waited."""
    logs = [number for number, scan in enumerate(scans) if WATCHDOG in scan.found]
    each = max(2, LOOKED_AT // max(len(logs), 1))
    for number in logs:
        told = [(match.text, waited) for match in scans[number].found[WATCHDOG].first if (waited := _waited(match))]
        yield from ((number, text, waited) for text, waited in told[:each])


def _waited(match: Match) -> timedelta | None:
    told = match.fields.get("ran_ms") or match.fields.get("timeout_ms")
    if told is None or len(told) > 9:  # noqa: PLR2004 - a day has 8 digits
        return None
    length = timedelta(milliseconds=int(told))
    return length if length <= MOST_WAITED else None


def _printed(
    log: int,
    text: str,
    owners: Sequence[Owner],
    timeline: Timeline,
    context: Context,
) -> datetime | None:
    """When the line was printed, by the common clock."""
    stamp = stamp_of(text, context.interrupted_at)
    if stamp is None:
        return None
    said = speaker(text)
    who = said if said.rank is not None else said._replace(rank=owners[log].rank)
    return timeline.moment(log, stamp, who).at


def _first_agreed(dated: Sequence[tuple[datetime, datetime]]) -> tuple[datetime, datetime]:
    needed, end = A_FEW * len(dated), 0
    for start, pair in enumerate(dated):
        while end < len(dated) and dated[end][0] - pair[0] <= TOGETHER:
            end += 1
        if end - start >= needed:
            return pair
    return dated[0]


def _steps(scans: Sequence[LogScan], timeline: Timeline, context: Context) -> tuple[Moment | None, timedelta | None]:
    """When the newest step was printed, and how long steps take on average, in the log that has the newest."""
    newest, log, told = -1, 0, dict[int, str]()
    for number, scan in enumerate(scans):
        steps = {int(event.split()[1]): text for (event, _), text in scan.anchors.items() if event.startswith("step ")}
        if steps and max(steps) > newest:
            newest, log, told = max(steps), number, steps
    stamps = [(step, stamp_of(told[step], context.interrupted_at)) for step in sorted(told)]
    marks = [(step, timeline.moment(log, stamp, speaker(told[step]))) for step, stamp in stamps if stamp]
    if not marks or stamps[-1][1] is None:
        return None, None  # when the newest was printed is not known
    (first, began), (last, ended) = marks[0], marks[-1]
    return ended, (ended.own - began.own) / (last - first) if last > first else None
