"""What the Python stacks of an attempt's ranks tell, taken twice: whether they stand still, and who stands elsewhere.

Stacks come by the platform's own channel, but a program can call its functions anything: their evidence has a job's
trust. A stack that changes proves life of that rank alone; two that are equal prove that this rank did not move.
"""

import re
from collections import Counter
from collections.abc import Iterable, Sequence
from datetime import datetime, timedelta
from typing import NamedTuple

from relight.domain.base import clip
from relight.domain.evidence import Evidence, Source
from relight.domain.reports import ProbeAnswer

STACKS_IDENTICAL = "STACKS_IDENTICAL"
"""Signature of the evidence that no rank moved between two looks."""
STACKS_MOVE = "STACKS_MOVE"
"""That ranks moved: no witness of a hang, and no proof of health either."""
STACKS_AT_WORK = "STACKS_AT_WORK"
"""That none moved, but one is within what may take long: writing, compiling, evaluating."""
ODD_RANK = "ODD_RANK"
"""That a rank stands elsewhere than the others, who wait."""

LEAST_APART = timedelta(seconds=4.5)
"""Between two looks, by the agent's clock: a beat of five seconds, less its jitter."""
CROWD = 0.75
"""More than this share of the ranks at one place are the crowd; the others are odd."""
LEAST_CROWD = 4
"""With fewer ranks there is no crowd."""
MOST_NAMED = 4
"""So many odd ranks are named at most."""

_FRAME = re.compile(r"(.*) \((.*):(\d+)\)")
_INNERMOST = 10
"""Frames in which a rank's waiting or working shows."""
_OUTER = 16
"""Frames by which places are told apart."""
_COLLECTIVE = re.compile(r"(monitored_)?barrier|all_?(reduce|gather|to_?all)\w*|reduce_scatter\w*")
_COLLECTIVE_FILES = (
    "torch/distributed/distributed_c10d.py",
    "torch/distributed/c10d_logger.py",
    "torch/distributed/_functional_collectives.py",
    "pipeline_parallel/p2p_communication.py",
    "collectives.py",
)
_COLLECTIVE_PACKAGES = ("deepspeed/comm/", "horovod/", "mpi4py/")
_SAVES_TOGETHER = "torch/distributed/checkpoint/"
"""Its own `all_reduce` and the like do their work inside (`_DistWrapper` of torch 2.13): who writes is no waiter."""
_WAITS = frozenset({"engine_run_backward", "synchronize"})
"""A backward pass ends in collectives (seen with DDP), and what a GPU is waited for may be one."""
_AT_WORK = re.compile(
    r"save\w*|load_(checkpoint|state_dict|model)\w*|evaluat\w*|validat\w*|compile(_fx\w*|_inner)?|download\w*|export\w*"
)


class RankStack(NamedTuple):
    """One rank's main thread."""

    rank: int
    node: str
    pid: int
    frames: tuple[str, ...]
    """`function (file:line)`, innermost first; never empty."""
    held: str = ""
    """`stopped` or `uninterruptible`, where the kernel holds it."""


class Place(NamedTuple):
    """Where a rank stands."""

    waits: int
    """2 in a collective, 1 in what ends in one, 0 elsewhere."""
    frames: tuple[str, ...]
    """From the outermost frame of the waiting on; the whole stack where it does not wait."""


class Pair(NamedTuple):
    """What one node's agent answered twice."""

    node: str
    first: ProbeAnswer
    second: ProbeAnswer


def judge(pairs: Sequence[Pair], asked: int, now: datetime) -> tuple[Evidence, ...]:
    """What the stacks tell; nothing where they tell nothing. A rank that was not seen twice is unknown.

    Args:
        pairs: of the nodes that have answered twice.
        asked: how many nodes the attempt has.
        now: when this is judged.
    """
    apart = [pair for pair in pairs if pair.second.at - pair.first.at >= LEAST_APART]
    first = _by_rank((pair.node, pair.first) for pair in apart)
    second = _by_rank((pair.node, pair.second) for pair in apart)
    ranks = sorted(first.keys() & second.keys())
    if not ranks:
        return ()
    before, after = [first[rank] for rank in ranks], [second[rank] for rank in ranks]
    seconds = min(pair.second.at - pair.first.at for pair in apart).total_seconds()
    unseen = len(_named(apart)) - len(ranks)
    signature, text = _movement(before, after, f"within {seconds:.0f} s", asked=asked, unseen=unseen)
    found = Evidence(source=Source.ACTIVITY, text=clip(text, 600), signature=signature, at=now)
    return (found, *_odd_ones(before, after, now))


def _movement(
    before: Sequence[RankStack], after: Sequence[RankStack], within: str, *, asked: int, unseen: int
) -> tuple[str | None, str]:
    nodes = len({stack.node for stack in after})
    seen = f"{_count(len(after), 'rank')} on {_count(nodes, 'node')}"
    pairs = zip(before, after, strict=True)
    moved = [str(new.rank) for old, new in pairs if (old.pid, old.frames) != (new.pid, new.frames)]
    if moved:
        who = f"rank{'s' * (len(moved) > 1)} {', '.join(moved[:8])}{' and more' * (len(moved) > 8)}"  # noqa: PLR2004
        return STACKS_MOVE, f"of {seen}, the Python stacks of {len(moved)} changed {within}: {who}"
    still = f"no Python stack of {seen} changed {within}"
    if 2 * nodes <= asked:
        return None, f"{still}, but the job has {asked} nodes"
    if unseen >= len(after):
        return None, f"{still}, but {_count(unseen, 'rank')} could not be looked at"
    for stack in after:
        if place(stack.frames).waits == 0 and any(_AT_WORK.fullmatch(_name(f)) for f in stack.frames[:_INNERMOST]):
            return STACKS_AT_WORK, f"{still}, but rank {stack.rank} may be at work: {_brief(stack.frames)}"
    return STACKS_IDENTICAL, f"{still}; rank {after[0].rank} is in {_brief(place(after[0].frames).frames)}"


def _odd_ones(before: Sequence[RankStack], after: Sequence[RankStack], now: datetime) -> list[Evidence]:
    """Those that were odd in both looks; as one where they are all of a node."""
    then = {stack.rank for stack in odd_ranks(before)}
    odd = [stack for stack in odd_ranks(after) if stack.rank in then]
    if not odd:
        return []
    others = next(stack for stack in after if stack.rank not in {one.rank for one in odd})
    count = len(after) - len(odd)
    who = f"rank {others.rank} is" if count == 1 else f"{count} others, such as rank {others.rank}, are"
    there = f"while {who} in {_brief(place(others.frames).frames)}"
    nodes = {stack.node for stack in odd}
    if len(odd) > 1 and len(nodes) == 1:
        ranks = ", ".join(str(stack.rank) for stack in odd[:8])
        text = f"ranks {ranks} on {odd[0].node} are elsewhere, rank {odd[0].rank} in {_brief(odd[0].frames)}, {there}"
        return [_odd(text, odd[0].node, None, now)]
    if len(odd) > MOST_NAMED:
        return [_odd(f"{len(odd)} ranks on {len(nodes)} nodes are elsewhere, {there}", None, None, now)]
    return [_odd(f"rank {one.rank} on {one.node} is {_where(one)}, {there}", one.node, one.rank, now) for one in odd]


def _odd(text: str, node: str | None, rank: int | None, now: datetime) -> Evidence:
    return Evidence(source=Source.ACTIVITY, text=clip(text, 600), signature=ODD_RANK, node=node, rank=rank, at=now)


def _where(stack: RankStack) -> str:
    return f"{stack.held}{' ' * bool(stack.held)}in {_brief(stack.frames)}"


def place(frames: Sequence[str]) -> Place:
    """Where a stack stands. What is inside of a collective is its own affair."""
    waits, outermost = 0, 0
    for index, frame in enumerate(frames[:_INNERMOST]):
        level = _waits(frame)
        if level and level >= waits:
            waits, outermost = level, index
    return Place(waits, tuple(frames[outermost : outermost + _OUTER]))


def odd_ranks(stacks: Sequence[RankStack]) -> tuple[RankStack, ...]:
    """Whom the kernel holds; else who stands elsewhere than the crowd; without one, who alone does not wait.

    Who waits for others more than the crowd does is not the odd one: the crowd is what it waits for. Places are
    compared by function and file first, and where these are all the same, by line: two collectives in one function.
    """
    held = tuple(stack for stack in stacks if stack.held)
    if held and 2 * len(held) <= len(stacks):
        return held
    places = [place(stack.frames) for stack in stacks]
    for keys in ([tuple(map(_without_line, each.frames)) for each in places], [each.frames for each in places]):
        ((crowd, size),) = Counter(keys).most_common(1)
        if size == len(stacks):
            continue
        if len(stacks) < LEAST_CROWD or size <= CROWD * len(stacks):
            break
        most = places[keys.index(crowd)].waits
        triples = zip(stacks, places, keys, strict=True)
        return tuple(stack for stack, where, key in triples if key != crowd and where.waits <= most)
    least = min(where.waits for where in places)
    behind = [stack for stack, where in zip(stacks, places, strict=True) if where.waits == least]
    return tuple(behind) if len(behind) == 1 < len(stacks) else ()


def _by_rank(answers: Iterable[tuple[str, ProbeAnswer]]) -> dict[int, RankStack]:
    """The ranks that could be looked at. One that two processes claim, such as a launcher and its rank, is unknown."""
    found: dict[int, list[RankStack]] = {}
    for node, answer in answers:
        for each in answer.stacks:
            if each.rank is not None and each.frames and not each.problem:
                found.setdefault(each.rank, []).append(RankStack(each.rank, node, each.pid, each.frames, each.state))
    return {rank: stacks[0] for rank, stacks in found.items() if len(stacks) == 1}


def _named(pairs: Iterable[Pair]) -> frozenset[int]:
    """All ranks that the agents know of."""
    stacks = (each for pair in pairs for each in (*pair.first.stacks, *pair.second.stacks))
    return frozenset(each.rank for each in stacks if each.rank is not None)


def _waits(frame: str) -> int:
    parts = _FRAME.fullmatch(frame)
    name, file = (_name(frame), parts[2]) if parts else (frame, "")
    if _SAVES_TOGETHER in file:
        return 0
    if _COLLECTIVE.fullmatch(name) or file.endswith(_COLLECTIVE_FILES) or any(p in file for p in _COLLECTIVE_PACKAGES):
        return 2
    return int(name in _WAITS)


def _name(frame: str) -> str:
    """The function's own name: `step` of `Model.step (train.py:7)`."""
    return frame.partition(" (")[0].rpartition(".")[2].lstrip("_")


def _without_line(frame: str) -> str:
    return frame.rpartition(":")[0]


def _brief(frames: Sequence[str]) -> str:
    return " < ".join(clip(frame, 90) for frame in frames[:3])


def _count(number: int, what: str) -> str:
    return f"{number} {what}{'s' * (number != 1)}"
