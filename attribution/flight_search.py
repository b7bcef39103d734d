"""Which ranks a stall is put down to by flight-recorder dumps: those that others wait for, and that wait for nobody.

A group stands still where some members wait in a collective that others never began. A rank that others wait for may
itself wait in another group: the origin is where somebody waits for nobody (tensor parallel before pipeline before
data parallel, whatever the groups are called). Members that call different things at one number of one group never
agree: that is the program's fault.
"""

from collections import Counter
from collections.abc import Collection, Sequence
from typing import NamedTuple

from relight.attribution.flight import Call, Dump
from relight.attribution.origin import ranks_named
from relight.attribution.sources import Recorded

_DEFAULT = ("default_pg", "0", "")
_SAME_SHAPE = frozenset({"all_reduce", "allreduce", "broadcast", "reduce"})
"""Collectives whose members must pass inputs of one size. Source: NCCL user guide, collective operations."""


class _Stalled(NamedTuple):
    """A group that stands still."""

    group: str
    seq: int
    """The collective that not everybody has finished; 0 for a send or receive between two."""
    waiting: frozenset[int]
    """Members that have begun it and not finished it."""
    missing: frozenset[int]
    """Members that have not begun it, or left no dump."""


def recorded(dumps: Sequence[Dump], ranks: Collection[int] = ()) -> Recorded | None:
    """What the dumps of a job say; None where they show no stall.

    `ranks` are those that the job is known to have: one that left no dump may have died before it could.
    """
    members = {group: _members(group, dumps, ranks) for group in _groups(dumps)}
    stalled = [each for group in members if (each := _stall(group, dumps, frozenset(members[group])))]
    stalled += [
        _Stalled(group, 0, frozenset({dump.rank}), frozenset({members[group][place]}))
        for dump in dumps
        for group, place in sorted(dump.waits_for)
        if place < len(members.get(group, ()))
    ]
    return _mismatch(stalled, dumps) or _origin(stalled, dumps)


def _groups(dumps: Sequence[Dump]) -> list[str]:
    waits = (group for dump in dumps for group, _ in dump.waits_for)
    return list(dict.fromkeys([*(group for dump in dumps for group in dump.enqueued), *waits]))


def _members(group: str, dumps: Sequence[Dump], ranks: Collection[int]) -> tuple[int, ...]:
    """Global ranks by their place in the group: as the dumps list them, all in the default group, else who used it."""
    listed = next((dump.members[group] for dump in dumps if group in dump.members), ())
    if listed:
        return listed
    used = {dump.rank for dump in dumps if group in dump.enqueued}
    if any(dump.names.get(group, group) in _DEFAULT for dump in dumps if group in dump.enqueued):
        used |= {*ranks, *(dump.rank for dump in dumps)}
    return tuple(sorted(used))


def _stall(group: str, dumps: Sequence[Dump], members: frozenset[int]) -> _Stalled | None:
    begun = {dump.rank: dump.enqueued.get(group, 0) for dump in dumps if dump.rank in members}
    done = {dump.rank: dump.completed.get(group, 0) for dump in dumps if dump.rank in members}
    unfinished = [done[rank] + 1 for rank in begun if done[rank] < begun[rank]]
    if not unfinished:
        return None
    seq = min(unfinished)
    waiting = frozenset(rank for rank in begun if done[rank] < seq <= begun[rank])
    return _Stalled(group, seq, waiting, members - frozenset(rank for rank in begun if begun[rank] >= seq))


def _mismatch(stalled: Sequence[_Stalled], dumps: Sequence[Dump]) -> Recorded | None:
    """Members that called different things where they should have called one, the first time that they did.

    It may have ended without an error, on memory that held something else: what stands still came later.
    """
    calls: dict[tuple[str, int], dict[int, Call]] = {}
    for dump in dumps:
        for number, call in dump.calls.items():
            calls.setdefault(number, {})[dump.rank] = call
    still = {each.group for each in stalled}
    for group, seq in sorted(calls, key=lambda number: (number[0] not in still, number[1])):
        made = calls[group, seq]
        (usual, most), *others = Counter(_agreed(call) for call in made.values()).most_common()
        if not others:
            continue
        odd = tuple(rank for rank, call in sorted(made.items()) if _agreed(call) != usual)
        first = min(set(made).difference(odd))
        other = f"rank {first} called {_said(made[first])}, as number {seq} of {_name(group, dumps)}"
        sentence = f"{ranks_named(odd)} called {_said(made[odd[0]])} where {other}."
        return Recorded(odd if most > len(odd) else (), sentence, mismatch=True)
    return None


def _agreed(call: Call) -> tuple[str, str]:
    """What members of a group must have in common."""
    return call.op, call.shapes if call.op in _SAME_SHAPE else ""


def _origin(stalled: Sequence[_Stalled], dumps: Sequence[Dump]) -> Recorded | None:
    there = {dump.rank for dump in dumps}
    blocked = {rank for each in stalled for rank in each.waiting}
    culprits: dict[int, _Stalled] = {}
    for each in stalled:
        for rank in sorted(each.missing - blocked):
            culprits.setdefault(rank, each)
    if culprits:
        silent = tuple(sorted(rank for rank in culprits if rank not in there))
        behind = tuple(sorted(rank for rank in culprits if rank in there))
        each = culprits[(silent or behind)[0]]
        what = "left no flight-recorder dump" if silent else f"never began {_call(each, dumps)}"
        waiting = f"{ranks_named(tuple(sorted(each.waiting)))} wait{'s' * (len(each.waiting) == 1)} in "
        tail = f"{_call(each, dumps)}." if silent else "it."
        return Recorded(silent or behind, f"{ranks_named(silent or behind)} {what}; {waiting.lower()}{tail}")
    if any(each.missing for each in stalled):
        first, *others = [each for each in stalled if each.missing]
        names = " and ".join(_name(each.group, dumps) for each in (first, *others[:1]))
        sentence = f"Ranks wait for one another in {names}: they call them in different orders."
        return Recorded((), sentence, mismatch=bool(others))
    if stalled:
        each = stalled[0]
        return Recorded((), f"All members have begun {_call(each, dumps)} and it does not end: the fabric, or a GPU.")
    return None


def _call(each: _Stalled, dumps: Sequence[Dump]) -> str:
    """`all_reduce number 4 of group default_pg (train.py:40)`, as far as known."""
    if not each.seq:
        return f"a send or receive in {_name(each.group, dumps)}"
    call = next((found for dump in dumps if (found := dump.calls.get((each.group, each.seq)))), None)
    where = f" ({call.where})" if call and call.where else ""
    return f"{call.op if call and call.op else 'collective'} number {each.seq} of {_name(each.group, dumps)}{where}"


def _said(call: Call) -> str:
    return f"{call.op}{f' of {call.shapes}' if call.shapes else ''}{f' ({call.where})' if call.where else ''}"


def _name(group: str, dumps: Sequence[Dump]) -> str:
    named = next((name for dump in dumps if (name := dump.names.get(group)) and name != "undefined"), group)
    return f"group {named}" if named else "a group"
