"""Who did not say what all others said: the rank behind a stall or a broken connection seldom prints anything."""

from collections import Counter
from collections.abc import Collection, Iterator
from itertools import islice
from typing import NamedTuple

from relight.attribution.elastic import unexplained
from relight.attribution.facts import Facts
from relight.attribution.line import Line
from relight.attribution.origin import ranks_named
from relight.attribution.signature import Role
from relight.attribution.tasks import MOST_TASKS, expand

RUNNING, TERMINATED = "SLURM_TASK_RUNNING", "EXIT_SIGTERM"
NAMED_AT_MOST = 16
_TORN_DOWN = frozenset({"137", "143"})
"""Exit codes of processes that were killed or terminated."""


class Suspects(NamedTuple):
    """Ranks, or nodes where ranks cannot be told, and the sentence that says why."""

    ranks: tuple[int, ...] = ()
    sentence: str = ""
    nodes: tuple[str, ...] = ()
    recorded: bool = False
    """True when flight-recorder dumps say so."""


def unheard(facts: Facts) -> Suspects | None:
    """The ranks that printed no failure at all, where most printed one."""
    printed: set[int] = set()
    for signature, lines in facts.lines.items():
        if facts.catalogue[signature].role is not Role.CONTEXT and not lines[0].survived:
            printed |= facts.printed(signature)
    return silent(printed, facts)


def silent(printed: Collection[int], facts: Facts) -> Suspects | None:
    """The ranks that are not among those that printed it."""
    everyone = set(range(facts.world))
    unread = {who.rank for scan, who in zip(facts.scans, facts.owners, strict=True) if scan.error}
    quiet = tuple(sorted(everyone.difference(printed, unread)))
    # The death of rank 0 or of an agent silences others as well: of most ranks silence tells nothing.
    if not printed or not quiet or 2 * len(quiet) > len(everyone):
        return None
    return Suspects(quiet[:NAMED_AT_MOST], f"{ranks_named(quiet)} said nothing while the others waited.")


def running(facts: Facts) -> Suspects | None:
    """What still ran when the first task had long ended: the others waited for it. Source: srun(1), --wait."""
    lines = facts.lines.get(RUNNING, [])
    still = set(expand(line.match.fields.get("task", "") for line in lines))
    tasks = sorted(still - complained(facts))  # some that have said their part are still on their way out
    if not tasks or not facts.tasks.are_ranks or (facts.world and 2 * len(tasks) > facts.world):
        return None
    return Suspects(tuple(tasks[:NAMED_AT_MOST]), f"{ranks_named(tuple(tasks))} still ran when the others had ended.")


def agents_running(facts: Facts) -> Suspects | None:
    """The same where a task is a node's one agent: the nodes of agents that still waited for a rank of theirs."""
    if facts.tasks.are_ranks:
        return None
    still = expand(line.match.fields.get("task", "") for line in facts.lines.get(RUNNING, []))
    nodes = tuple(dict.fromkeys(facts.tasks.node_of[task] for task in still if task in facts.tasks.node_of))
    if not nodes or 2 * len(nodes) > len(facts.nodes):
        return None
    return Suspects(nodes=nodes[:NAMED_AT_MOST], sentence=f"{', '.join(nodes[:8])} still ran when others had ended.")


def ended_alone(facts: Facts) -> Suspects | None:
    """The worker whose end, as torchelastic's agents report it, is not explained by another's."""
    who = unexplained(facts.exits, complained(facts))
    return Suspects((who.rank,), f"Rank {who.rank} ended first.") if who else None


def ended_first(facts: Facts) -> Suspects | None:
    """The process that srun reports to have ended otherwise than all others, or else first; not one that complained."""
    return facts.once(_ended_first)


def _ended_first(facts: Facts) -> Suspects | None:
    reports = [*islice(_reports(facts), MOST_TASKS)]
    ends = Counter(end for _, _, end in reports)
    told = [task for _, task, end in reports if len(ends) > 1 and ends[end] == 1]
    if len(told) != 1:
        told = [task for line, task, _ in reports if line is reports[0][0]]
    if len(told) != 1 or not facts.tasks.are_ranks or told[0] in complained(facts):
        return None
    return Suspects((told[0],), f"Rank {told[0]} ended first.")


def never_came(facts: Facts) -> Suspects | None:
    """The nodes whose processes were terminated while they waited, where the others gave up by themselves."""
    reports = islice(_reports(facts), MOST_TASKS)
    gave_up = {facts.node_name(line.match.fields["node"]) for line, _, _ in reports}
    missing = tuple(node for node in facts.nodes if node not in gave_up)
    if not gave_up or not missing or 2 * len(missing) > len(facts.nodes):
        return None
    return Suspects(nodes=missing[:NAMED_AT_MOST], sentence=f"Nothing came from {', '.join(missing[:8])}.")


def _reports(facts: Facts) -> Iterator[tuple[Line, int, str]]:
    """Srun's lines about tasks that ended by themselves, in the order of the log: line, task, and how it ended."""
    ended = {
        (line.scan.source.name, line.order): line
        for signature, lines in facts.lines.items()
        for line in lines
        if signature not in {TERMINATED, RUNNING} and {"task", "node"} <= line.match.fields.keys()
    }
    for _, line in sorted(ended.items(), key=lambda item: item[0]):
        end = line.match.fields.get("exit", line.match.signature)
        if end not in _TORN_DOWN:
            yield from ((line, task, end) for task in expand([line.match.fields["task"]]))


def complained(facts: Facts) -> set[int]:
    """Ranks that printed what comes of another's end."""
    return facts.once(_printed_echoes)


def _printed_echoes(facts: Facts) -> set[int]:
    cascades = [name for name in facts.lines if facts.catalogue[name].role is Role.CASCADE]
    return {rank for name in cascades for rank in facts.printed(name)}
