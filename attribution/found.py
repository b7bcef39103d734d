"""The lines of one kind in one log, in bounded memory: the first, the last, and what all of them name."""

import re
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

from relight.attribution.origin import Speaker, speaker
from relight.attribution.scanner import Match

KEEP_FIRST, KEEP_LAST = 64, 16
KEEP_MORE = {"ELASTIC_BLOCK": 8192}
"""Kinds whose lines only mean something together: five to a worker, and an agent a node."""
MOST_NAMED = 8192
"""Different things named, or different ranks, that are told apart in one log."""
MOST_REPORTERS = 64
_TALLIED = ("peer", "arrived", "missing")
_CHILD = re.compile(r"[Pp]rocess \d+ terminated with |\(exitcode:? ")
"""What torch.multiprocessing and torchelastic print of a process that they started."""

_GROUP = re.compile(r"\[PG (?:ID )?(\d+(?: PG GUID [^\] ]+)?)[^\]]* Rank (\d+)\]")
_WORK = re.compile(r"SeqNum=(\d+), OpType=(\w+)(?:, NumelIn=(\d+))?")

Reporter = tuple[str, str | int]
"""Who printed a line: `("node", "n3")` where its prefix names one, else `("rank", 5)`, else `("task", 1)`."""
NOBODY: Reporter = ("node", "")


class Work(NamedTuple):
    """Where one rank stands in one process group, as its watchdog printed it; None where it did not say."""

    group_rank: int | None = None
    seq: int | None = None
    """Number of the collective that timed out."""
    what: str = ""
    """Its kind and size: `ALLREDUCE 1024`."""
    enqueued: int | None = None
    completed: int | None = None


@dataclass
class Found:
    """The lines of one signature in one log."""

    first: list[Match] = field(default_factory=list)
    last: deque[Match] = field(default_factory=lambda: deque(maxlen=KEEP_LAST))
    ranks: set[int] = field(default_factory=set)
    """All ranks that printed it, not only those of the kept lines."""
    tasks: set[int] = field(default_factory=set)
    """All tasks (`srun --label`) that printed it without naming a rank."""
    parents: bool = False
    """A task speaks for ranks that it has started."""
    reports: dict[str, str] = field(default_factory=dict)
    """Tasks as srun's lines list them (`0-2,5`), and their node."""
    named: dict[tuple[str, str], set[Reporter]] = field(default_factory=dict)
    """By field and value (`peer`, `n3`), who named it: from all lines."""
    work: dict[tuple[str, int], Work] = field(default_factory=dict)
    """By process group (empty where none is printed) and global rank, from all lines."""

    def add(self, match: Match) -> None:
        """Take a line in; keep it if it is among the first or the last."""
        who = speaker(match.text)
        if who.rank is not None and len(self.ranks) < MOST_NAMED:
            self.ranks.add(who.rank)
        elif who.task is not None and len(self.tasks) < MOST_NAMED:
            self.tasks.add(who.task)
        if who.task is not None and not self.parents:
            self.parents = who.rank not in {None, who.task} or _CHILD.search(match.text) is not None
        if "task" in match.fields and "node" in match.fields and len(self.reports) < MOST_NAMED:
            self.reports.setdefault(match.fields["task"], match.fields["node"])
        for name in _TALLIED:
            if name in match.fields:
                self._name(name, match.fields[name], _reporter(who))
        if who.rank is not None and ("completed" in match.fields or "seq" in match.fields):
            self._stand(who.rank, match)
        if len(self.first) < KEEP_MORE.get(match.signature, KEEP_FIRST):
            self.first.append(match)
        else:
            self.last.append(match)

    def kept(self) -> Iterator[Match]:
        """The lines kept, in order."""
        yield from self.first
        yield from self.last

    def _name(self, name: str, value: str, reporter: Reporter) -> None:
        if (name, value) in self.named or len(self.named) < MOST_NAMED:
            reporters = self.named.setdefault((name, value), set())
            if len(reporters) < MOST_REPORTERS:
                reporters.add(reporter)

    def _stand(self, rank: int, match: Match) -> None:
        group = _GROUP.search(match.text)
        key = (group[1] if group else "", rank)
        if key not in self.work and len(self.work) >= MOST_NAMED:
            return
        fields, done = match.fields, self.work.get(key, Work())
        if (stuck := _WORK.search(match.text)) and done.seq is None:
            done = done._replace(seq=int(stuck[1]), what=f"{stuck[2]} {stuck[3] or ''}".strip())
        if group and done.group_rank is None:
            done = done._replace(group_rank=int(group[2]))
        if "completed" in fields and done.completed is None:
            enqueued = int(fields["enqueued"]) if "enqueued" in fields else None
            done = done._replace(enqueued=enqueued, completed=int(fields["completed"]))
        self.work[key] = done


def _reporter(who: Speaker) -> Reporter:
    if who.node:
        return "node", who.node
    if who.rank is not None:
        return "rank", who.rank
    return ("task", who.task) if who.task is not None else NOBODY
