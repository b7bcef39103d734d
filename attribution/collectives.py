"""Which ranks a stall points at: those that dumps name, the silent, those that are behind, those that never arrived."""

from collections import Counter, defaultdict
from collections.abc import Mapping

from relight.attribution.absent import (
    NAMED_AT_MOST,
    Suspects,
    ended_alone,
    ended_first,
    running,
    silent,
    unheard,
)
from relight.attribution.facts import Facts
from relight.attribution.found import Work
from relight.attribution.origin import ranks_named
from relight.attribution.stall import WATCHDOG
from relight.attribution.tasks import MOST_TASKS

RAS, STORE_BARRIER, MISMATCH = "NCCL_RAS", "STORE_BARRIER", "COLLECTIVE_MISMATCH"
ENOUGH_RANKS = 3
"""Of fewer ranks, one that differs is no minority."""
_SAME_SIZE = frozenset({"ALLREDUCE", "BROADCAST", "REDUCE", "_ALLGATHER_BASE", "_REDUCE_SCATTER_BASE"})
"""What all ranks of a group must call with one size. Source: NCCL user guide, collective operations."""
_PAIRED = frozenset({"SEND", "RECV", "COALESCED", "UNKNOWN"})
"""What does not involve the whole group."""

Groups = Mapping[str, Mapping[int, Work]]


def suspects(signature: str, facts: Facts) -> Suspects:
    """The ranks that did not do their part; none when nothing says which."""
    if signature == STORE_BARRIER:
        return _missing(facts)
    if signature == MISMATCH:
        return mismatched(facts) or Suspects()
    return stalled(facts) or Suspects(sentence="No rank stands out in the logs." if signature == WATCHDOG else "")


def stalled(facts: Facts) -> Suspects | None:
    """Whom a stall points at: the surest source that tells."""
    return facts.once(_stalled)


def _stalled(facts: Facts) -> Suspects | None:
    groups = _groups(facts)
    return (
        _recorded(facts)
        or running(facts)
        or silent(facts.printed(WATCHDOG), facts)
        or _behind(groups)
        or _ras(facts)
        or ended_alone(facts)
        or _quiet(facts)
        or _late(facts)
        or _hint(groups)
    )


def _quiet(facts: Facts) -> Suspects | None:
    """The ranks that printed no failure; of several of them the one that is known to have ended first."""
    quiet, first = unheard(facts), ended_first(facts)
    return first if quiet and first and len(quiet.ranks) > 1 and first.ranks[0] in quiet.ranks else quiet


def mismatched(facts: Facts) -> Suspects | None:
    """Ranks that wait for another collective than the rest of their group, at the same number."""
    return facts.once(_mismatched)


def _mismatched(facts: Facts) -> Suspects | None:
    recorded = next((one for one in facts.recorded if one.mismatch), None)
    if recorded:
        return Suspects(recorded.ranks[:NAMED_AT_MOST], recorded.sentence, recorded=True)
    for name, works in _groups(facts).items():
        by_number: dict[int, dict[str, list[int]]] = defaultdict(lambda: defaultdict(list))
        for rank, work in works.items():
            kind, _, size = work.what.partition(" ")
            if work.seq is not None and kind and kind not in _PAIRED:
                by_number[work.seq][f"{kind} of {size}" if kind in _SAME_SIZE and size else kind].append(rank)
        for number, calls in by_number.items():
            # Where no group is printed, other kinds may be other groups'; one kind with two sizes is not by chance.
            if len(calls) > 1 and (name or len({call.partition(" ")[0] for call in calls}) == 1):
                return _odd(number, calls)
    return None


def _odd(number: int, calls: Mapping[str, list[int]]) -> Suspects:
    usual = max(calls, key=lambda call: len(calls[call]))
    odd = tuple(sorted(rank for call, ranks in calls.items() if call != usual for rank in ranks))
    many = 2 * len(odd) >= sum(map(len, calls.values()))
    what = ", ".join(sorted(call for call in calls if call != usual)[:3])
    sentence = f"{ranks_named(odd)} called {what} where others called {usual} (number {number})."
    return Suspects(() if many else odd[:NAMED_AT_MOST], sentence)


def _recorded(facts: Facts) -> Suspects | None:
    told = next(iter(facts.recorded), None)
    return Suspects(told.ranks[:NAMED_AT_MOST], told.sentence, recorded=True) if told else None


def _groups(facts: Facts) -> Groups:
    """Where ranks stand, by process group; `""` is for formats that print no group.

    Old releases number groups in each process anew, so that different groups have one name: such a name is left out.
    It shows in two ranks with one number in the group.
    """
    groups: dict[str, dict[int, Work]] = defaultdict(dict)
    for scan in facts.scans:
        if found := scan.found.get(WATCHDOG):
            for (name, rank), work in found.work.items():
                groups[name].setdefault(rank, work)
    return {name: works for name, works in groups.items() if _is_one(works)}


def _is_one(works: Mapping[int, Work]) -> bool:
    inside = [work.group_rank for work in works.values() if work.group_rank is not None]
    return len(set(inside)) == len(inside)


def _behind(groups: Groups) -> Suspects | None:
    for name, works in groups.items():
        if name and (found := _lowest(works)):
            late, sentence = found
            return Suspects(late[:NAMED_AT_MOST], sentence)
    return None


def _hint(groups: Groups) -> Suspects | None:
    """Numbers without a group may be of different groups: said, but nobody is blamed for it."""
    found = _lowest(groups.get("", {}))
    return Suspects((), f"{found[1]} The log prints no process group: only a hint.") if found else None


def _lowest(works: Mapping[int, Work]) -> tuple[tuple[int, ...], str] | None:
    """The minority that is behind: that enqueued less, else completed less, else waits for an earlier collective."""
    enqueued = {rank: work.enqueued for rank, work in works.items() if work.enqueued is not None}
    completed = {rank: work.completed for rank, work in works.items() if work.completed is not None}
    waits_for = {rank: work.seq for rank, work in works.items() if work.seq is not None}
    for numbers, did in (
        (enqueued, "enqueued less than the others: it never called what they wait for"),
        (completed, "completed less than the others"),
        (waits_for, "waits for an earlier collective than the others"),
    ):
        if late := _minority(numbers):
            plural = did.replace("it never", "they never").replace("waits for", "wait for") if len(late) > 1 else did
            return late, f"{ranks_named(late)} {plural}."
    return None


def _minority(numbers: Mapping[int, int]) -> tuple[int, ...]:
    """Those with the lowest number, where they are fewer than half."""
    lowest = min(numbers.values(), default=0)
    late = tuple(sorted(rank for rank, number in numbers.items() if number == lowest))
    return late if len(numbers) >= ENOUGH_RANKS and 2 * len(late) < len(numbers) else ()


def _ras(facts: Facts) -> Suspects | None:
    """NCCL's RAS lists the ranks of the minority, which may be ahead: the count that fits them tells.

    Source: NCCL user guide, RAS, "Communicator ranks have different collective operation counts".
    """
    fields = [line.match.fields for line in facts.lines.get(RAS, [])]
    counts = {int(each["operation"]): int(each["count"]) for each in fields if "count" in each}
    listed = tuple(sorted({int(each["rank"]) for each in fields if "rank" in each}))
    if len(counts) < 2 or not listed:  # noqa: PLR2004 - a minority needs a majority
        return None
    behind, ahead = counts[min(counts)], sum(counts.values()) - counts[min(counts)]
    if len(listed) == behind and behind < ahead:
        return Suspects(listed[:NAMED_AT_MOST], f"{ranks_named(listed)} launched less than the others (NCCL RAS).")
    if len(listed) == ahead:
        return Suspects((), f"{ranks_named(listed)} ran ahead of the others, of which one is stuck (NCCL RAS).")
    return None


def _late(facts: Facts) -> Suspects | None:
    late = _minority(facts.steps_of_ranks)
    if not late:
        return None
    step = facts.steps_of_ranks[late[0]]
    return Suspects(late[:NAMED_AT_MOST], f"{ranks_named(late)} came only to step {step}.")


def _missing(facts: Facts) -> Suspects:
    lines = facts.lines.get(STORE_BARRIER, [])
    fields = [line.match.fields for line in lines if "world" in line.match.fields]
    if not fields:
        return _waited_for(facts)
    last = max(fields, key=lambda each: int(each["workers"]))
    world, workers = int(last["world"]), int(last["workers"])
    if world > MOST_TASKS:
        return Suspects()
    if workers > world:
        return Suspects(sentence=f"{workers} workers joined a world of {world}: two launches, or an old store.")
    arrived = {int(rank) for rank in facts.named(STORE_BARRIER, "arrived") if rank.isdigit()}
    count = world - workers
    if len(arrived) < workers:  # who printed a failure was there to wait; the numbers must agree
        arrived |= {rank for signature in facts.lines for rank in facts.printed(signature) if rank < world}
    absent = tuple(sorted(set(range(world)) - arrived)) if world <= facts.world or len(arrived) == workers else ()
    named = absent if len(absent) == count else ()
    who = f": {ranks_named(named).lower()}" if named else ""
    return Suspects(named[:NAMED_AT_MOST], f"{count} of {world} ranks never arrived{_as_nodes(count, facts)}{who}.")


def _waited_for(facts: Facts) -> Suspects:
    """The one rank whose address the others did not get from the store. Source: gloo gloo/transport/context.cc.

    Each looks up the others in the order of their ranks: the key ends in the first that is not there. Rank 0 may be
    there and itself wait for the rest to join: its key names nobody.
    """
    named = {int(rank) for rank in facts.named(STORE_BARRIER, "missing")} - facts.printed(STORE_BARRIER)
    if len(named) != 1:
        return Suspects()
    who = (*named,)
    return Suspects(who, f"{ranks_named(who)} never came: the others waited for its address.")


def _as_nodes(count: int, facts: Facts) -> str:
    """` (32 nodes of 8)` where the number of missing ranks is that of whole nodes."""
    sizes = Counter(len(ranks) for ranks in facts.on_node.values())
    each = max(sizes, key=lambda size: sizes[size], default=0)
    if each < 2 or count % each:  # noqa: PLR2004 - with one rank a node the numbers are the same
        return ""
    nodes = count // each
    return f" ({nodes} node{'s' * (nodes > 1)} of {each})"
