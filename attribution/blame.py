"""Whom the lines of a signature implicate: ranks, nodes, GPUs."""

import re
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from typing import NamedTuple

from relight.attribution.absent import agents_running, ended_first, never_came, unheard
from relight.attribution.catalogue import Blame, Signature
from relight.attribution.collectives import stalled, suspects
from relight.attribution.elastic import first_exit
from relight.attribution.facts import Facts
from relight.attribution.line import Line
from relight.attribution.signature import Role, Tell
from relight.attribution.sources import Seat
from relight.attribution.tasks import expand
from relight.domain.diagnosis import Implicated

MOST = 32
"""More names than this help nobody."""
MANY_PEERS = 3
"""One node that cannot reach this many others is itself the suspect."""
RENDEZVOUS, REPORT = "RDZV_TIMEOUT", "LAUNCHER_REPORT"
_SIGNALS = {"EXIT_SIGABRT": -6, "EXIT_SIGSEGV": -11, "EXIT_SIGKILL": -9, "EXIT_SIGILL": -4, "HOST_SIGBUS": -7}
"""Kinds that are one signal's, and the exit code that torchelastic reports of it."""
EVERY_NODE_AT_LEAST = 3
"""So many nodes with the same failure, of an allocation of unknown size, are no single node's fault."""


_DIFFER = re.compile(r"Rank (\d+) is running .{0,800}?but Rank (\d+) is running ")
_ADDRESS = re.compile(r"[\d.:]+")


class Place(NamedTuple):
    """One thing that a line points at."""

    rank: int | None = None
    node: str | None = None
    gpu: str | None = None


def implicated(signature: Signature, lines: list[Line], facts: Facts) -> Implicated:
    """Whom the lines implicate, as far as they and the start-up lines name anyone."""
    known = frozenset(facts.context.nodes)
    places = list(_places(signature, lines, facts))
    if not any(place.rank is not None or _is_node(place.node, known) for place in places):
        places = _from_elastic(signature, facts) or _from_others(signature, facts) or places
    places += _ended_there(places, facts)
    ranks = {place.rank for place in places if place.rank is not None}
    nodes = dict.fromkeys(place.node for place in places if place.node)
    inside = [node for node in nodes if not known or node in known]  # a log may name anything
    gpus = dict.fromkeys(place.gpu for place in places if place.gpu)
    return Implicated(ranks=tuple(sorted(ranks)[:MOST]), nodes=tuple(inside[:MOST]), gpus=tuple(gpus)[:MOST])


def _is_node(node: str | None, known: frozenset[str]) -> bool:
    """True for one of the allocation, where that is known, else for what is no bare address."""
    return bool(node) and (node in known if known else not _ADDRESS.fullmatch(node or ""))


def on_every_node(nodes: tuple[str, ...], facts: Facts) -> bool:
    """True when this is no single node's fault: most of the allocation shows it."""
    if not facts.nodes:
        return len(nodes) >= EVERY_NODE_AT_LEAST
    return len(nodes) > 1 and 2 * len(nodes) > len(facts.nodes)


def _places(signature: Signature, lines: list[Line], facts: Facts) -> Iterable[Place]:
    blame = signature.blame
    if blame is Blame.NOBODY or (blame is Blame.FIRST and _all_ended_so(lines, facts)):
        return ()
    if blame is Blame.PEER:
        return _peer(signature.id, facts)
    if blame is Blame.SILENT:
        return of_ranks(suspects(signature.id, facts).ranks, facts)
    if blame is Blame.NAMED:
        return of_ranks(_accused(lines) or _named(lines), facts)
    return [place for line in _guilty(blame, lines) for place in _of_line(line, facts)]


def _named(lines: Iterable[Line]) -> list[int]:
    texts = [line.match.fields.get("ranks") or line.match.fields.get("rank", "") for line in lines]
    return [int(part) for text in texts for part in text.split(",") if part.strip()][:MOST]


def _guilty(blame: Blame, lines: list[Line]) -> list[Line]:
    first = lines[0]
    if blame is Blame.FIRST:
        return [first]
    if blame is Blame.SAME_CODE:
        code = _code(first)
        lines = [line for line in lines if _code(line) == code]
    return [line for line in lines if line.survived == first.survived]


def _code(line: Line) -> str | None:
    return line.match.fields.get("code") or line.match.fields.get("exc")


def _of_line(line: Line, facts: Facts) -> Iterator[Place]:
    fields, who = line.match.fields, line.speaker
    gpu = fields.get("gpu") or who.gpu
    if line.scan.source.node:
        yield Place(node=line.scan.source.node, gpu=gpu)
        return
    node = fields.get("node") or who.node
    node = facts.node_name(node) if node else None
    ranks: list[int | None] = [*_ranks(line, node, facts)] or [None]
    for rank in ranks:
        seat = facts.seats.get(rank) if rank is not None else None
        seat = seat if seat and (node is None or seat.node == node) else Seat(node=node or "", gpu=None)
        yield Place(rank, node or seat.node or None, gpu or seat.gpu)


def _ranks(line: Line, node: str | None, facts: Facts) -> Iterator[int]:
    fields, who = line.match.fields, line.speaker
    if "rank" in fields:
        yield int(fields["rank"])
    elif who.rank is not None:
        yield who.rank
    elif "task" in fields and facts.tasks.are_ranks:
        yield from islice(expand([fields["task"]]), MOST)
    else:
        local = fields.get("local_rank") or (str(who.local_rank) if who.local_rank is not None else None)
        if local is not None and (rank := _of_local(local, node, facts)) is not None:
            yield rank


def _of_local(local: str, node: str | None, facts: Facts) -> int | None:
    """The global rank behind a local one: by the seats, else the same where there is one node only."""
    by_agent = [one.rank for one in facts.exits if str(one.local_rank) == local and one.node in {None, node}]
    if len(set(by_agent)) == 1:
        return by_agent[0]
    if facts.seats:
        near = facts.on_node.get(node, set()) if node else facts.seats if len(facts.on_node) == 1 else ()
        fits = [rank for rank in near if facts.seats[rank].gpu == local]
        if not fits and local.isdigit() and int(local) < len(near):
            fits = sorted(near)[int(local) : int(local) + 1]  # local ranks are numbered in the order of the ranks
        return fits[0] if len(fits) == 1 else None
    return int(local) if len(facts.nodes) <= 1 else None


def of_ranks(ranks: Iterable[int], facts: Facts) -> list[Place]:
    """Ranks, and a node where all of them run there or where all of its ranks are among them."""
    wanted = set(ranks)
    places = [Place(rank=rank) for rank in wanted]
    seats = [facts.seats[rank] for rank in wanted if rank in facts.seats]
    nodes = {seat.node for seat in seats}
    one = len(nodes) == 1 and len(seats) == len(wanted)
    places += [Place(node=node) for node in sorted(nodes) if one or facts.on_node[node] <= wanted]
    if len(wanted) == 1 and seats:
        places.append(Place(node=seats[0].node, gpu=seats[0].gpu))
    return places


def _peer(identity: str, facts: Facts) -> list[Place]:
    """The other end most named; a node that complains of many peers is itself the suspect."""
    votes: dict[str, set[str]] = {}
    for peer, reporters in facts.named(identity, "peer").items():
        votes.setdefault(facts.node_name(peer), set()).update(reporters)
    if not votes:
        return []
    complain = {reporter for reporters in votes.values() for reporter in reporters}
    if len(complain) == 1 and len(votes) >= MANY_PEERS:
        (reporter,) = complain
        return [Place(node=reporter)] if reporter and not reporter.startswith("rank ") else []
    top = max(len(reporters) for reporters in votes.values())
    return [Place(node=peer) for peer, reporters in votes.items() if len(reporters) == top][:2]


def _from_elastic(signature: Signature, facts: Facts) -> list[Place]:
    """Torchelastic's report of who ended first, for a message without a rank; of a signal, who died of it."""
    if signature.blame not in {Blame.ALL, Blame.FIRST, Blame.SAME_CODE}:
        return []
    alike = [one for one in facts.exits if one.code == _SIGNALS.get(signature.id, 0)]
    who = first_exit(alike or facts.exits)
    return [Place(who.rank, who.node)] if who else []


def _all_ended_so(lines: list[Line], facts: Facts) -> bool:
    """True when srun reports the same end of most ranks: then the first in its list is no different from the rest."""
    tasks = set(expand(line.match.fields.get("task", "") for line in lines if not line.survived))
    return facts.tasks.are_ranks and facts.world > 1 and 2 * len(tasks) > facts.world


def _ended_there(places: Sequence[Place], facts: Facts) -> list[Place]:
    """Of a node without a rank: the rank on it that is known to have ended first."""
    nodes = {place.node for place in places if place.node}
    if not nodes or any(place.rank is not None for place in places):
        return []
    first = ended_first(facts)
    seat = facts.seats.get(first.ranks[0]) if first else None
    return [Place(rank=first.ranks[0])] if first and seat and seat.node in nodes else []


def on_some_nodes(lines: Sequence[Line], facts: Facts) -> bool:
    """True when the lines are of few nodes' ranks, and of several of each: those nodes differ from the others.

    One rank alone may only have been the first to get there.
    """
    ranks: dict[str, set[int | str]] = {}
    for line in lines:
        for place in _of_line(line, facts):
            if place.node is None:
                return False
            ranks.setdefault(place.node, set()).add("agent" if place.rank is None else place.rank)
    few = 0 < 2 * len(ranks) <= len(facts.nodes)
    return few and all(len(each) > 1 or len(facts.on_node.get(node, ())) == 1 for node, each in ranks.items())


def _accused(lines: Iterable[Line]) -> list[int]:
    """The rank that all others say calls something else; what it says of another is its own view of the same.

    `Rank 7 is running … but Rank 2 is running …`. Source: PyTorch torch/csrc/distributed/c10d/ProcessGroupWrapper.cpp.
    """
    pairs = {(int(found[1]), int(found[2])) for line in lines if (found := _DIFFER.search(line.match.text))}
    fits = [
        rank
        for rank in {accused for _, accused in pairs}
        if all(accused == rank for reporter, accused in pairs if reporter != rank)
    ]
    return fits if len(fits) == 1 else []


def _from_others(signature: Signature, facts: Facts) -> list[Place]:
    """For what only echoes another's end: who was silent while all others complained, else who ended first."""
    if signature.id == RENDEZVOUS:
        told = unheard(facts) or never_came(facts)
    elif signature.role in {Role.CASCADE, Role.WRAPPER} and not (
        signature.blame is Blame.NOBODY and signature.tell is Tell.NOBODY
    ):
        told = stalled(facts) or ended_first(facts)
        if told is None and (died := _children(facts)):
            return died
        told = told or agents_running(facts)
    else:
        return []
    return [*of_ranks(told.ranks, facts), *(Place(node=node) for node in told.nodes)] if told else []


def _children(facts: Facts) -> list[Place]:
    """The one child whose parent reports a signal or an exit code; many die of their watchdogs."""
    lines = [line for kind in _SIGNALS for line in facts.lines.get(kind, []) if "local_rank" in line.match.fields]
    lines += [line for line in facts.lines.get(REPORT, []) if {"local_rank", "exit"} <= line.match.fields.keys()]
    places = {place for line in lines if not line.survived for place in _of_line(line, facts)}
    return list(places) if len(places) == 1 else []
