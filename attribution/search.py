"""Root before cascade: which of the recognised kinds is the cause, and in which order the others follow.

The order of search: what the platform says, then root lines (the heavier first, the earlier first where stamps
say so), then cascades and wrappers, then context.
"""

from collections.abc import Iterable, Mapping
from datetime import timedelta
from typing import NamedTuple

from relight.attribution.absent import RUNNING, complained
from relight.attribution.catalogue import Catalogue, Role, Signature
from relight.attribution.collectives import MISMATCH, mismatched
from relight.attribution.elastic import killed_after
from relight.attribution.facts import GPU_NAMED, Facts
from relight.attribution.line import Line
from relight.attribution.signature import Blame
from relight.attribution.stall import WATCHDOG, hung_until
from relight.attribution.timeline import Moment
from relight.attribution.tracebacks import CHAINED, IGNORED
from relight.domain.evidence import Interruption

LATER = timedelta(seconds=60)
"""A root line this much after another is more likely its consequence."""
LATER_COSTS = 0.3
ECHO_WEIGHT = 0.1
SURVIVED_WEIGHT = 0.2
MISMATCH_WEIGHT = 0.7
KILLED, EXITED, CANCELLED = "EXIT_SIGKILL", ("SLURM_TASK_FAIL", "EXIT_SIGABRT", "EXIT_SIGSEGV"), "SLURM_CANCELLED"
"""A kill after one of these is the launcher's teardown. Source: srun(1), --kill-on-bad-exit."""
TIME_LIMIT = "SLURM_TIME_LIMIT"
_AIDS = frozenset({GPU_NAMED, CHAINED, IGNORED})
"""Lines that help to read others and are no failure themselves."""

ROOT_TIER = 2
_TIERS = {Role.ROOT: ROOT_TIER, Role.CASCADE: 1, Role.WRAPPER: 1, Role.CONTEXT: 0}


class Candidate(NamedTuple):
    """A kind of failure whose lines are there."""

    signature: Signature
    lines: list[Line]
    tier: int
    weight: float


def ranked(facts: Facts, catalogue: Catalogue) -> list[Candidate]:
    """The kinds that the logs show, the most likely cause first."""
    kinds = {identity: lines for identity, lines in facts.lines.items() if identity not in _AIDS}
    roots = _first_of_roots(kinds, catalogue)
    explained = _explained(kinds, catalogue, facts)
    result = [*_mismatch(facts, catalogue)]
    for identity, lines in kinds.items():
        signature = catalogue[identity]
        tier, weight = _TIERS[signature.role], signature.weight
        if identity in explained or (identity == KILLED and _torn_down(facts)):
            tier, weight = min(tier, 1), ECHO_WEIGHT / 2
        elif lines[0].survived:
            tier, weight = min(tier, 1), min(weight, SURVIVED_WEIGHT)
        elif identity == TIME_LIMIT and hung(facts):
            tier, weight = 1, ECHO_WEIGHT
        elif tier == ROOT_TIER and _follows(lines[0], roots):
            weight = max(weight - LATER_COSTS, ECHO_WEIGHT)
        result.append(Candidate(signature, lines, tier, weight))
    return sorted(result, key=lambda one: (-one.tier, -one.weight, one.lines[0].order))


def hung(facts: Facts) -> bool:
    """True when it stood still before it ended: as a watcher saw it, or by a long gap before the time limit."""
    limits = facts.lines.get(TIME_LIMIT, [])
    if facts.context.interruption is Interruption.HANG:
        return True
    return any(line.moment and hung_until(line.moment, facts.stall) for line in limits[:1])


def _first_of_roots(kinds: Mapping[str, list[Line]], catalogue: Catalogue) -> list[Moment]:
    firsts = [lines[0] for identity, lines in kinds.items() if catalogue[identity].role is Role.ROOT]
    return [line.moment for line in firsts if line.moment and not line.survived]


def _follows(line: Line, roots: Iterable[Moment]) -> bool:
    """True when another root line is known to come well before it."""
    return line.moment is not None and any(root.before(line.moment, LATER) for root in roots)


def _explained(kinds: Mapping[str, list[Line]], catalogue: Catalogue, facts: Facts) -> set[str]:
    """Kinds whose first line comes after that of a kind which explains them."""
    firsts = {identity: _first_in_logs(lines) for identity, lines in kinds.items()}
    result = set()
    for identity, lines in kinds.items():
        explains = catalogue[identity].explains
        if not explains or lines[0].survived or (identity == TIME_LIMIT and hung(facts)):
            continue
        others = [other for other in kinds if other != identity and (other in explains or "*" in explains)]
        result |= {other for other in others if _precedes(identity, other, kinds, firsts)}
    return result


def _first_in_logs(lines: Iterable[Line]) -> dict[int, Line]:
    found: dict[int, Line] = {}
    for line in lines:
        log = id(line.scan)
        if not line.survived and (log not in found or line.order < found[log].order):
            found[log] = line
    return found


def _precedes(
    cause: str,
    echo: str,
    kinds: Mapping[str, list[Line]],
    firsts: Mapping[str, Mapping[int, Line]],
) -> bool:
    """Order within a log is trusted: the cause comes first in each log that has both; else by the clocks."""
    both = firsts[cause].keys() & firsts[echo].keys()
    if both:
        return all(firsts[cause][log].before(firsts[echo][log]) for log in both)
    return kinds[cause][0].before(kinds[echo][0])


def _torn_down(facts: Facts) -> bool:
    """True when the kills are the launcher's: after another's exit, or more than exited by themselves.

    srun prints its lines as nodes report, not in the order of time; but what one task began, it ends for all others.
    """
    kills = facts.lines[KILLED]
    firsts = [lines[0] for identity in (*EXITED, CANCELLED, RUNNING) if (lines := facts.lines.get(identity))]
    exits = [line for identity in EXITED for line in facts.lines.get(identity, []) if not line.survived]
    if any(line.before(kills[0]) for line in firsts) or _tasks(kills) > _tasks(exits) > 0:
        return True
    told = [line.match.fields for line in kills]
    seen_first = any("local_rank" in fields for fields in told)
    return not any("task" in fields for fields in told) and killed_after(
        facts.exits, complained(facts), seen_first=seen_first
    )


def _tasks(lines: Iterable[Line]) -> int:
    """How many tasks lines name: `0-3,7` is five."""
    count = 0
    for line in lines:
        for part in line.match.fields.get("task", "").split(","):
            low, _, high = part.partition("-")
            count += int(high) - int(low) + 1 if low.isdigit() and high.isdigit() else bool(part)
    return count


def _mismatch(facts: Facts, catalogue: Catalogue) -> Iterable[Candidate]:
    """Ranks of one group that wait for different collectives: the program called them in different orders."""
    lines = facts.lines.get(WATCHDOG, [])
    if MISMATCH in catalogue and MISMATCH not in facts.lines and mismatched(facts):
        update = {
            "blame": Blame.SILENT,
            "summary": "Ranks called different collectives: an error in the program. {missing}",
        }
        yield Candidate(catalogue[MISMATCH].model_copy(update=update), lines, ROOT_TIER, MISMATCH_WEIGHT)
