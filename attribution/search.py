"""Root before cascade: which of the recognised kinds is the cause, and in which order the others follow.

The order of search: what the platform says, then root lines (the heavier first, the earlier first where stamps
say so), then cascades and wrappers, then context.
"""

from datetime import datetime, timedelta
from typing import NamedTuple

from relight.attribution.catalogue import Catalogue, Role, Signature
from relight.attribution.facts import Facts, Line

LATER = timedelta(seconds=60)
"""A root line this much after another is more likely its consequence."""
LATER_COSTS = 0.3
ECHO_WEIGHT = 0.1
SURVIVED_WEIGHT = 0.2
KILLED, KILLS_AFTER = "EXIT_SIGKILL", ("SLURM_TASK_FAIL", "EXIT_SIGABRT", "EXIT_SIGSEGV", "SLURM_CANCELLED")
"""A kill after one of these is the launcher's teardown. Source: srun(1), --kill-on-bad-exit."""

_TIERS = {Role.ROOT: 2, Role.CASCADE: 1, Role.WRAPPER: 1, Role.CONTEXT: 0}


class Candidate(NamedTuple):
    """A kind of failure whose lines are there."""

    signature: Signature
    lines: list[Line]
    tier: int
    weight: float


def ranked(facts: Facts, catalogue: Catalogue) -> list[Candidate]:
    """The kinds that the logs show, the most likely cause first."""
    first_root = _first_root_time(facts, catalogue)
    explained = _explained(facts, catalogue)
    result = []
    for identity, lines in facts.lines.items():
        signature = catalogue[identity]
        tier, weight = _TIERS[signature.role], signature.weight
        if identity in explained or (identity == KILLED and _torn_down(lines[0], facts)):
            tier, weight = min(tier, 1), ECHO_WEIGHT / 2
        elif lines[0].survived:
            tier, weight = min(tier, 1), min(weight, SURVIVED_WEIGHT)
        elif tier == _TIERS[Role.ROOT] and first_root and lines[0].at and lines[0].at - first_root > LATER:
            weight = max(weight - LATER_COSTS, ECHO_WEIGHT)
        result.append(Candidate(signature, lines, tier, weight))
    return sorted(result, key=lambda one: (-one.tier, -one.weight, one.lines[0].order))


def _first_root_time(facts: Facts, catalogue: Catalogue) -> datetime | None:
    roots = [
        lines[0].at
        for identity, lines in facts.lines.items()
        if catalogue[identity].role is Role.ROOT and lines[0].at and not lines[0].survived
    ]
    return min(roots, default=None)


def _explained(facts: Facts, catalogue: Catalogue) -> set[str]:
    """Kinds whose first line comes after that of a kind which explains them."""
    result = set()
    for identity, lines in facts.lines.items():
        explains = catalogue[identity].explains
        if not explains or lines[0].survived:
            continue
        others = [other for other in facts.lines if other != identity and (other in explains or "*" in explains)]
        result |= {other for other in others if lines[0].before(facts.lines[other][0])}
    return result


def _torn_down(kill: Line, facts: Facts) -> bool:
    return any(line.before(kill) for identity in KILLS_AFTER for line in facts.lines.get(identity, [])[:1])
