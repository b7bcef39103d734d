"""torchelastic's reports: which worker ended first, over the agents of all nodes.

An agent names the earliest failure of its own host, and one that was merely torn down (-15, -9, -6 after another's
exit) may come first in its list. Without an error file (`@record`) the time is when the agent looked, in whole seconds.
Source: PyTorch torch/distributed/elastic/multiprocessing/errors/__init__.py.
"""

from collections import defaultdict
from collections.abc import Collection, Iterator, Sequence
from datetime import datetime
from typing import NamedTuple

from relight.attribution.origin import Speaker, speaker, stamp_of
from relight.attribution.reading import LogScan
from relight.attribution.scanner import Match
from relight.attribution.tasks import Tasks
from relight.attribution.timeline import Moment, Timeline

_BLOCK = "ELASTIC_BLOCK"
_TERMINATED, _TORN_DOWN = -15, frozenset({-9, -6})
_ANY_EXCEPTION = 1
_LINES_OF_ENTRY = 8


class Exit(NamedTuple):
    """A worker's end as its agent reports it."""

    rank: int
    local_rank: int
    node: str | None
    code: int | None = None
    moment: Moment | None = None
    told_itself: bool = False
    """It left an error file: its time is its own."""


class Reader(NamedTuple):
    """What turns the reports into facts."""

    timeline: Timeline
    tasks: Tasks
    nodes: frozenset[str]
    near: datetime | None
    """Gives zone and year to stamps that lack them."""

    def moment(self, at: Match | None, node: str | None, log: int) -> Moment | None:
        """When an entry says that it ended."""
        stamp = stamp_of(at.fields["time"], self.near) if at else None
        return self.timeline.moment(log, stamp, Speaker(node=node)) if stamp else None


def exits(scans: Sequence[LogScan], reader: Reader) -> list[Exit]:
    """All workers' ends that the logs report, each once, in their order."""
    found: dict[int, Exit] = {}
    for number, scan in enumerate(scans):
        if _BLOCK not in scan.found:
            continue
        by_agent: dict[Speaker, list[Match]] = defaultdict(list)  # agents' lines are mixed in one log, line by line
        for match in scan.found[_BLOCK].kept():
            by_agent[reader.tasks.place(speaker(match.text, reader.nodes))].append(match)
        for matches in by_agent.values():
            for one in _entries(matches, number, reader):
                if one.rank not in found or (one.told_itself and not found[one.rank].told_itself):
                    found[one.rank] = one
    return list(found.values())


def first_exit(every: Sequence[Exit]) -> Exit | None:
    """The one worker that ended by itself, when the reports tell which."""
    own = [one for one in every if one.code != _TERMINATED and one.code not in _TORN_DOWN]
    # Killed or aborted, and nobody ended otherwise: then that was the end itself.
    ended = own or [one for one in every if one.code != _TERMINATED]
    ended = [one for one in ended if one.told_itself] or ended
    first = [one for one in ended if _first(one, ended)] if len(ended) > 1 else ended
    return first[0] if len({one.rank for one in first}) == 1 else None


def unexplained(every: Sequence[Exit], complained: Collection[int]) -> Exit | None:
    """The one worker whose end no other's explains: neither torn down, nor of a rank that complained of another's end.

    Code 1 is that of any Python exception. Old releases print no rank before it: it tells nothing by itself then.
    """
    apart = [one for one in every if one.code != _TERMINATED and one.rank not in complained]
    own = [one for one in apart if one.code not in _TORN_DOWN]
    if not own:
        return apart[0] if len(apart) == 1 else None
    if len(own) == 1 and any(one.rank in complained for one in every):
        return own[0]
    return first_exit([one for one in own if one.code not in {None, _ANY_EXCEPTION}])


def killed_after(every: Sequence[Exit], complained: Collection[int], *, seen_first: bool) -> bool:
    """True when kills in these reports are an agent's teardown: another worker had ended by itself.

    Who only complained of another's end came after it: then a kill that its agent saw first is the cause.
    """
    own = [one for one in every if one.code not in {_TERMINATED, *_TORN_DOWN}]
    return any(one.rank not in complained for one in own) or (bool(own) and not seen_first)


def _first(one: Exit, ended: Sequence[Exit]) -> bool:
    """Known to be earlier than all others; in whole seconds there are ties."""
    return all(other is one or (one.moment and other.moment and one.moment.before(other.moment)) for other in ended)


def _entries(matches: Sequence[Match], log: int, reader: Reader) -> Iterator[Exit]:
    """The entries of one agent: `time`, `host`, `rank`, `exitcode`, `error_file`, one line each, in this order."""
    at = node = entry = None
    started = 0
    for match in matches:
        fields = match.fields
        if entry and ("time" in fields or "node" in fields or "rank" in fields):
            yield entry
            entry = None
        if match.line_no - started > _LINES_OF_ENTRY or "time" in fields:
            at = node = None
        if "time" in fields:
            at, started = match, match.line_no
        elif "node" in fields:
            node = fields["node"]
            started = started if at else match.line_no
        elif "local_rank" in fields and "rank" in fields:
            entry = Exit(int(fields["rank"]), int(fields["local_rank"]), node, None, reader.moment(at, node, log))
            started = match.line_no
        elif entry and "exit" in fields:
            entry = entry._replace(code=int(fields["exit"]))
        elif entry and "error_file" in fields:
            entry = entry._replace(told_itself=True)
    if entry:
        yield entry
