"""Everything known of an interruption, side by side: lines of all logs with speaker, time and trust."""

from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from functools import cached_property
from typing import Any, TypeVar

from relight.attribution import tracebacks
from relight.attribution.catalogue import Catalogue
from relight.attribution.elastic import Exit, Reader, exits
from relight.attribution.found import Found, Reporter
from relight.attribution.line import Line, same_fault
from relight.attribution.origin import Speaker, Stamp, speaker, stamp_of
from relight.attribution.progress import StepMark
from relight.attribution.reading import LogScan
from relight.attribution.scanner import Match
from relight.attribution.seating import seated
from relight.attribution.signature import Role
from relight.attribution.sources import Context, Recorded, Seat
from relight.attribution.stall import Stall, find_stall
from relight.attribution.tasks import Tasks, read_tasks
from relight.attribution.timeline import Timeline
from relight.attribution.whose import Owner, owners
from relight.domain.evidence import PLATFORM_WINDOW
from relight.domain.slurm import ENDED_BADLY

Answer = TypeVar("Answer")
AFTER_INTERRUPTION = timedelta(seconds=10)
BEFORE_HANG = timedelta(seconds=60)
MOST_LINES = 2048
"""Lines of one kind that are looked at, over all logs, and at least one of each log."""
LEAST_OF_ROOT = 3
"""So many of each log where the kind may be the cause: of a chain of exceptions the last counts."""
MOST_SHARED = 16
"""Logs that several ranks write whose step lines are read for who wrote them."""
GPU_NAMED = "NVRM_GPU_NAMED"
GPU_NAMED_WITHIN = 3
"""Lines after the one that names a GPU in a driver's message over several lines."""


@dataclass
class Facts:
    """What the root-cause search works on."""

    context: Context
    scans: Sequence[LogScan]
    seats: dict[int, Seat]
    nodes: tuple[str, ...]
    """Nodes of the allocation, as far as known."""
    world: int
    """Ranks of the job; 0 where unknown."""
    owners: Sequence[Owner]
    """Whose each log is."""
    tasks: Tasks
    """What the numbers of `srun --label` and of srun's reports are."""
    catalogue: Catalogue
    timeline: Timeline
    stall: Stall
    recorded: Sequence[Recorded] = ()
    lines: dict[str, list[Line]] = field(default_factory=dict)
    """By signature, earliest known first; those that training survived last."""
    counts: Counter[str] = field(default_factory=Counter)
    addresses: dict[str, str] = field(default_factory=dict)
    _answers: dict[Callable[["Facts"], Any], Any] = field(default_factory=dict)
    _printed: dict[str, frozenset[int]] = field(default_factory=dict)

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
    def ended_badly(self) -> bool:
        """True when a watcher or Slurm has seen that something went wrong: then that is what has to be explained."""
        return self.context.interruption is not None or self.context.state in ENDED_BADLY

    @property
    def ran_before(self) -> bool:
        """True when the job has trained in this or an earlier attempt."""
        earlier = any(prior.failed_step is not None for prior in self.context.history)
        return self.last_step is not None or earlier

    @property
    def at_start(self) -> bool:
        """True when the log shows the start of a job that has never trained."""
        return not self.ran_before and any(scan.startup or scan.seats for scan in self.scans)

    @cached_property
    def node_set(self) -> frozenset[str]:
        """The allocation's nodes, for looking up."""
        return frozenset(self.nodes)

    @cached_property
    def on_node(self) -> Mapping[str, set[int]]:
        """The ranks that run on a node."""
        found: dict[str, set[int]] = defaultdict(set)
        for rank, seat in self.seats.items():
            found[seat.node].add(rank)
        return found

    @cached_property
    def exits(self) -> Sequence[Exit]:
        """How torchelastic's agents say that workers ended."""
        reader = Reader(self.timeline, self.tasks, self.node_set, self.context.interrupted_at)
        told = exits(self.scans, reader)
        return [one._replace(node=self.node_name(one.node)) if one.node else one for one in told]

    @cached_property
    def steps_of_ranks(self) -> Mapping[int, int]:
        """The last step of each rank whose steps are told apart: by a log of its own, or by labels."""
        steps: dict[int, int] = {}
        shared = 0
        for scan, who in zip(self.scans, self.owners, strict=True):
            if who.rank is not None:
                steps.update((who.rank, line.mark.step) for line in scan.steps[-1:])
            elif scan.steps and (shared := shared + 1) <= MOST_SHARED:
                ranks = [(self.tasks.place(speaker(line.text)).rank, line.mark.step) for line in scan.steps]
                steps |= {rank: step for rank, step in ranks if rank is not None}
        return steps

    def node_name(self, text: str) -> str:
        """The node behind an address or a full name, or the text itself."""
        text = self.addresses.get(text, text)
        short = text.split(".")[0]
        return short if short in self.node_set and text not in self.node_set else text

    def once(self, ask: Callable[["Facts"], Answer]) -> Answer:
        """What the question makes of these facts; asked again, the same answer."""
        if ask not in self._answers:
            self._answers[ask] = ask(self)
        answer: Answer = self._answers[ask]
        return answer

    def printed(self, signature: str) -> frozenset[int]:
        """All ranks that printed a line of this kind."""
        if signature not in self._printed:
            self._printed[signature] = frozenset(self._who_printed(signature))
        return self._printed[signature]

    def _who_printed(self, signature: str) -> set[int]:
        ranks: set[int] = set()
        for scan, who in zip(self.scans, self.owners, strict=True):
            if found := scan.found.get(signature):
                told = found.ranks | found.tasks if self.tasks.are_ranks else found.ranks
                ranks |= told or ({who.rank} if who.rank is not None else set())
        return ranks

    def named(self, signature: str, what: str) -> dict[str, set[str]]:
        """What lines of this kind name in a field, and the nodes that say so (`rank 5` where the node is unknown)."""
        result: dict[str, set[str]] = defaultdict(set)
        for scan, who in zip(self.scans, self.owners, strict=True):
            found = scan.found.get(signature)
            for (name, value), reporters in found.named.items() if found else ():
                if name == what:
                    result[value] |= {self._reporter(reporter, who) for reporter in reporters}
        return result

    def _reporter(self, reporter: Reporter, owner: Owner) -> str:
        kind, value = reporter
        if kind == "node" and value:
            return self.node_name(str(value))
        if kind == "task" and not self.tasks.are_ranks:
            return self.tasks.node_of.get(int(value), f"task {value}")
        rank = owner.rank if kind == "node" else int(value)
        if rank is not None:
            seat = self.seats.get(rank)
            return seat.node if seat else f"rank {rank}"
        return owner.node or ""


def gather(
    scans: Sequence[LogScan],
    context: Context,
    catalogue: Catalogue,
    recorded: Sequence[Recorded] = (),
) -> Facts:
    """Put the logs side by side."""
    seats, world = seated(scans, context)
    nodes = context.nodes or tuple(dict.fromkeys(seat.node for seat in seats.values()))
    tasks = read_tasks(scans, seats, nodes, world)
    nodes = nodes or tuple(dict.fromkeys(tasks.node_of[task] for task in sorted(tasks.node_of)))
    if tasks.are_ranks:
        seats = {task: Seat(node=node) for task, node in tasks.node_of.items()} | seats
        world = world or (len(seats) if seats.keys() == set(range(len(seats))) else 0)
    whose = owners([scan.source for scan in scans], nodes, world)
    node_of = {rank: seat.node for rank, seat in seats.items()}
    timeline = Timeline(scans, context.interrupted_at, whose, node_of, tasks)
    stall = find_stall(scans, whose, timeline, context)
    facts = Facts(context, scans, seats, nodes, world, whose, tasks, catalogue, timeline, stall, recorded)
    for scan in scans:
        facts.addresses |= scan.addresses
        facts.counts.update(scan.counts)
    logs_with = Counter(signature for scan in scans for signature in scan.found)
    told: dict[tuple[str, str], list[Line]] = defaultdict(list)
    for number, scan in enumerate(scans):
        lines = []
        for signature, found in scan.found.items():
            least = LEAST_OF_ROOT if signature in catalogue and catalogue[signature].role is Role.ROOT else 1
            each = max(least, MOST_LINES // logs_with[signature])
            lines += [line for match in _ends(found, each) if (line := _line(facts, number, match))]
        for line in tracebacks.sorted_out(lines):
            if not _told_already(line, told):
                facts.lines.setdefault(line.match.signature, []).append(line)
    for lines in facts.lines.values():
        if all(line.moment for line in lines):
            lines.sort(key=_time)
        lines.sort(key=lambda line: (line.survived, line.chained))  # stable: those that did not end anything come last
    return facts


def _ends(found: Found, most: int) -> Sequence[Match]:
    """The first and, of more than are looked at, some of the last."""
    if len(found.first) + len(found.last) <= most:
        return [*found.first, *found.last]
    last = min(most // 4, len(found.last))
    return found.first[: most - last] + list(found.last)[len(found.last) - last :]


def _time(line: Line) -> float:
    return line.moment.at.timestamp() if line.moment else 0.0


def _line(facts: Facts, number: int, match: Match) -> Line | None:
    """The line with what is known of it; None for a platform's that has nothing to do with the interruption."""
    scan, owner, end = facts.scans[number], facts.owners[number], facts.context.interrupted_at
    stamp = stamp_of(match.text, end) if match.at is None else None
    at = match.at or (stamp.at if stamp else None)
    who = _who(match.text, owner, facts)
    moment = facts.timeline.moment(number, stamp or Stamp(at, zoned=True), who) if at else None
    witness = False
    if scan.source.node:
        # What the job prints moves no clock here, nor the window: it would drain nodes.
        if scan.source.platform and at is not None and end is not None:
            witness = _in_window(at, end, end - PLATFORM_WINDOW)
        ahead = facts.timeline.ahead_of_others.get(scan.source.node, timedelta(0))
        if not witness and not _near(at - ahead if at else None, facts):
            return None
    return Line(_with_gpu(match, scan), scan, who, at, moment, scan.survived(match), witness)


def _who(text: str, owner: Owner, facts: Facts) -> Speaker:
    who = facts.tasks.place(speaker(text, facts.node_set))
    if owner.rank is not None and who.node and owner.rank not in facts.seats:
        facts.seats[owner.rank] = Seat(node=who.node, gpu=who.gpu)
    rank = owner.rank if who.rank is None else who.rank
    node = who.node or owner.node
    return who if (rank, node) == (who.rank, who.node) else Speaker(rank, who.local_rank, node, who.gpu, who.task)


def _told_already(line: Line, told: dict[tuple[str, str], list[Line]]) -> bool:
    """True when the node's own kernel log has what its agent tells: one fault, seen in two ways."""
    if not line.scan.source.node:
        return False
    key = line.match.signature, line.scan.source.node
    if line.match.at is not None and any(same_fault(line, other) for other in told[key]):
        return True
    told[key].append(line)
    return False


def _near(at: datetime | None, facts: Facts) -> bool:
    """True unless the time is known to lie outside the window around the interruption."""
    end, began = facts.context.interrupted_at, facts.stall.by_platform
    if at is None or end is None:
        return True
    start = end - PLATFORM_WINDOW
    return _in_window(at, end, min(start, began - BEFORE_HANG) if began else start)


def _in_window(at: datetime, end: datetime, start: datetime) -> bool:
    return start <= at <= end + AFTER_INTERRUPTION


def _with_gpu(match: Match, scan: LogScan) -> Match:
    """The driver's message about a lost GPU goes over several lines; the first names the GPU."""
    if match.signature != "XID_79" or "gpu" in match.fields or GPU_NAMED not in scan.found:
        return match
    for named in scan.found[GPU_NAMED].kept():
        if 0 <= match.line_no - named.line_no <= GPU_NAMED_WITHIN and "gpu" in named.fields:
            return match._replace(fields=match.fields | {"gpu": named.fields["gpu"]})
    return match
