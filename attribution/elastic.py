"""torchelastic's reports: which worker of an agent ended first.

An agent names the earliest failure of its own host, and one that was merely torn down (-15, -9, -6 after another's
exit) may come first in its list. Source: PyTorch torch/distributed/elastic/multiprocessing/errors/__init__.py.
"""

from typing import NamedTuple

from relight.attribution.facts import Facts, Line
from relight.attribution.origin import Speaker

_BLOCK = "ELASTIC_BLOCK"
_TORN_DOWN = frozenset({-15, -9, -6})
_LINES_OF_ENTRY = 8


class Exit(NamedTuple):
    """A worker's end as its agent reports it."""

    rank: int
    local_rank: int
    node: str | None
    code: int | None


def exits(facts: Facts) -> list[Exit]:
    """All workers' ends that the logs report, in their order."""
    found: list[Exit] = []
    node: tuple[Line, str] | None = None
    for line in sorted(facts.lines.get(_BLOCK, []), key=lambda one: (one.scan.source.name, one.order)):
        fields = line.match.fields
        if "local_rank" in fields and "rank" in fields:
            host = node[1] if node and _close(node[0], line) else None
            found.append(Exit(int(fields["rank"]), int(fields["local_rank"]), host, None))
            last = line
        elif "node" in fields:
            node = line, fields["node"]
        elif "exit" in fields and found and found[-1].code is None and _close(last, line):
            found[-1] = found[-1]._replace(code=int(fields["exit"]))
    return list(dict.fromkeys(found))


def first_exit(facts: Facts) -> Speaker | None:
    """The one worker that ended by itself, when the reports name exactly one."""
    ended = [one for one in exits(facts) if one.code not in _TORN_DOWN]
    if len({one.rank for one in ended}) != 1:
        return None
    one = ended[0]
    return Speaker(rank=one.rank, node=facts.node_name(one.node) if one.node else None)


def _close(earlier: Line, later: Line) -> bool:
    return earlier.scan is later.scan and 0 <= later.match.line_no - earlier.match.line_no <= _LINES_OF_ENTRY
