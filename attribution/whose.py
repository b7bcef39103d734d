"""Whose log a file is, by its name: the names of the files of one step differ in one number, or hold a node's name.

Source of the patterns: srun(1), filename pattern (`%t` task, `%n` relative node, `%N` node); `torchrun --log-dir`.
"""

import re
from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from typing import NamedTuple

from relight.attribution.sources import LogSource
from relight.domain.evidence import Source

_NUMBER = re.compile(r"\d+")
_WORD = re.compile(r"[A-Za-z0-9-]+")


class Owner(NamedTuple):
    """Who writes a log; both None where many do, or nothing tells."""

    rank: int | None = None
    node: str | None = None


def owners(sources: Sequence[LogSource], nodes: Sequence[str], world: int) -> list[Owner]:
    """The owner of each log.

    Numbers of files that differ in one place only are ranks, when they run from 0; when there are as many as nodes, and
    more ranks (`world`, 0 where unknown), one process a node wrote them.
    """
    numbers = _numbers(sources)
    count = len(set(numbers.values()))
    by_node = count == len(nodes) and world > count
    known = frozenset(nodes)
    return [_owner(source, numbers.get(place), nodes if by_node else (), known) for place, source in enumerate(sources)]


def _owner(source: LogSource, number: int | None, nodes: Sequence[str], known: Collection[str]) -> Owner:
    if source.node or source.rank is not None:
        return Owner(source.rank, source.node)
    named = {word for word in _WORD.findall(source.name) if word in known}
    if len(named) == 1:
        return Owner(node=named.pop())
    if number is None:
        return Owner()
    return Owner(node=nodes[number]) if nodes else Owner(rank=number)


def _numbers(sources: Sequence[LogSource]) -> Mapping[int, int]:
    """By place, the number that tells a file from its siblings. None where two numbers of a name may be it."""
    families: dict[tuple[str, int], dict[int, int]] = defaultdict(dict)
    for place, source in enumerate(sources):
        if source.kind is Source.JOB_LOG and source.node is None and source.rank is None:
            for at, found in enumerate(_NUMBER.finditer(source.name)):
                rest = f"{source.name[: found.start()]}#{source.name[found.end() :]}"
                families[rest, at][place] = int(found[0])
    by_position: dict[int, dict[int, int]] = defaultdict(dict)
    for (_, at), family in families.items():
        if _from_zero(family.values()):
            by_position[at] |= family  # outputs and errors of the same ranks are two families
    return next(iter(by_position.values())) if len(by_position) == 1 else {}


def _from_zero(numbers: Collection[int]) -> bool:
    """Several files, numbered from 0 with few gaps: a file that is missing or empty is no reason to doubt the rest."""
    return len(numbers) > 1 and len(set(numbers)) == len(numbers) and 0 in numbers and max(numbers) < 2 * len(numbers)
