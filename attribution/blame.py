"""Whom the lines of a signature implicate: ranks, nodes, GPUs."""

from collections import Counter
from collections.abc import Iterable, Iterator
from typing import NamedTuple

from relight.attribution.catalogue import Blame, Signature
from relight.attribution.collectives import suspects
from relight.attribution.elastic import first_exit
from relight.attribution.facts import Facts, Line
from relight.attribution.sources import Seat
from relight.domain.diagnosis import Implicated

MOST = 32
"""More names than this help nobody."""
MANY_PEERS = 3
"""One node that cannot reach this many others is itself the suspect."""
EVERY_NODE_AT_LEAST = 3
"""So many nodes with the same failure, of an allocation of unknown size, are no single node's fault."""


class Place(NamedTuple):
    """One thing that a line points at."""

    rank: int | None = None
    node: str | None = None
    gpu: str | None = None


def implicated(signature: Signature, lines: list[Line], facts: Facts) -> Implicated:
    """Whom the lines implicate, as far as they and the start-up lines name anyone."""
    places = list(_places(signature, lines, facts))
    if not any(place.rank is not None or place.node for place in places):
        places += _from_elastic(signature, facts)
    ranks = {place.rank for place in places if place.rank is not None}
    nodes = dict.fromkeys(place.node for place in places if place.node)
    known = frozenset(facts.context.nodes)
    inside = [node for node in nodes if not known or node in known]  # a log may name anything
    gpus = dict.fromkeys(place.gpu for place in places if place.gpu)
    return Implicated(ranks=tuple(sorted(ranks)[:MOST]), nodes=tuple(inside[:MOST]), gpus=tuple(gpus)[:MOST])


def on_every_node(nodes: tuple[str, ...], facts: Facts) -> bool:
    """True when this is no single node's fault: most of the allocation shows it."""
    if not facts.nodes:
        return len(nodes) >= EVERY_NODE_AT_LEAST
    return len(nodes) > 1 and 2 * len(nodes) > len(facts.nodes)


def _places(signature: Signature, lines: list[Line], facts: Facts) -> Iterable[Place]:
    blame = signature.blame
    if blame is Blame.NOBODY:
        return ()
    if blame is Blame.PEER:
        return _peer(lines, facts)
    if blame is Blame.SILENT:
        return _of_ranks(suspects(signature.id, lines, facts).ranks, facts)
    if blame is Blame.NAMED:
        texts = [line.match.fields.get("ranks") or line.match.fields.get("rank", "") for line in lines]
        named = [int(part) for text in texts for part in text.split(",") if part.strip()]
        return _of_ranks(named[:MOST], facts)
    return [place for line in _guilty(blame, lines) for place in _of_line(line, facts)]


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
    elif "task" in fields:
        for task in _expand(fields["task"]):
            seat = facts.seats.get(task)
            if seat is None or seat.node == node:  # else one task is a whole node's agent, not a rank
                yield task
    else:
        local = fields.get("local_rank") or (str(who.local_rank) if who.local_rank is not None else None)
        if local is not None and (rank := _of_local(local, node, facts)) is not None:
            yield rank


def _of_local(local: str, node: str | None, facts: Facts) -> int | None:
    """The global rank behind a local one: by the seats, else the same where there is one node only."""
    if facts.seats:
        fits = [rank for rank, seat in facts.seats.items() if seat.gpu == local and node in {None, seat.node}]
        return fits[0] if len(fits) == 1 else None
    return int(local) if len(facts.nodes) <= 1 else None


def _expand(tasks: str) -> Iterator[int]:
    """Slurm's `0-2,5` as numbers, no more than `MOST`."""
    count = 0
    for part in tasks.split(","):
        low, _, high = part.partition("-")
        if not low.isdigit():
            continue
        for number in range(int(low), int(high if high.isdigit() else low) + 1):
            yield number
            count += 1
            if count >= MOST:
                return


def _of_ranks(ranks: Iterable[int], facts: Facts) -> list[Place]:
    """Ranks, and a node where all of its ranks are among them."""
    wanted = set(ranks)
    places = [Place(rank=rank) for rank in wanted]
    by_node: dict[str, set[int]] = {}
    for rank, seat in facts.seats.items():
        by_node.setdefault(seat.node, set()).add(rank)
    places += [Place(node=node) for node, seated in by_node.items() if seated <= wanted]
    if len(wanted) == 1:
        (rank,) = wanted
        if seat_of := facts.seats.get(rank):
            places.append(Place(rank, seat_of.node, seat_of.gpu))
    return places


def _peer(lines: list[Line], facts: Facts) -> list[Place]:
    """The other end most named; a node that complains of many peers is itself the suspect."""
    said: dict[str, set[str]] = {}
    for line in lines:
        if peer := line.match.fields.get("peer"):
            said.setdefault(line.speaker.node or "", set()).add(facts.node_name(peer))
    votes = Counter(peer for peers in said.values() for peer in peers)
    if not votes:
        return []
    if len(said) == 1 and len(votes) >= MANY_PEERS:
        (reporter,) = said
        return [Place(node=facts.node_name(reporter))] if reporter else []
    top = max(votes.values())
    return [Place(node=peer) for peer, count in votes.items() if count == top][:2]


def _from_elastic(signature: Signature, facts: Facts) -> list[Place]:
    """Torchelastic's report of who ended first, for a message without a rank."""
    if signature.blame not in {Blame.ALL, Blame.FIRST, Blame.SAME_CODE}:
        return []
    who = first_exit(facts)
    return [Place(who.rank, who.node)] if who else []
