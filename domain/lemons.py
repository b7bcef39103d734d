"""How much of a lemon a node is: a node that comes back as good as new and breaks jobs again. Pure.

Meta's study of two research clusters (arXiv 2410.21680) found that few nodes cause many of the failures, and told them
by what had happened on them within 28 days: exclusions by users, Xids, tickets, jobs that failed first there. The signs
here are of that kind, as far as our ledger has them, each weighed by who could have written it.
"""

from collections.abc import Iterable
from datetime import datetime, timedelta
from enum import StrEnum
from typing import NamedTuple

HALF_LIFE = timedelta(days=14)
"""What happened two weeks ago counts half, and after the study's 28 days a quarter: a repaired node is forgiven within
weeks, and one that breaks monthly never gets below what one break weighs."""
FORGOTTEN = timedelta(days=90)
"""After more than six half-lives nothing counts any more."""
LEMON = 3.0
"""From here on a person is asked before the node is returned: for example three drains within a fortnight."""
REPLACE = 6.0
"""From here on the ticket proposes to replace it."""
MOST_BY_JOBS = 1.0
"""All that rests on what jobs say together: no user's program makes a lemon of a node."""


class SignKind(StrEnum):
    """What speaks against a node."""

    WITNESSED = "witnessed"
    """An incident whose verdict names it, with a witness of the platform on it."""
    DRAINED = "drained"
    """Relight drained it or set it down."""
    REPEATED = "repeated"
    """Drained again after it had been returned with good checks: what was wrong is still there."""
    FAULT = "fault"
    """A GPU fault that its agent or kernel told, one of a kind a day."""
    FAILED_FIRST = "failed first"
    """A job failed, and the verdict names this node alone, without a witness of the platform."""


WEIGHTS = {
    SignKind.WITNESSED: 0.5,
    SignKind.DRAINED: 1.0,
    SignKind.REPEATED: 2.0,
    SignKind.FAULT: 0.25,
    SignKind.FAILED_FIRST: 0.5,
}
"""A drain comes with its incident and its fault: one broken GPU weighs almost 2 on its day, and its repeat almost 4."""
MOST_FAULTS = 1.0
"""What all faults together may weigh: one bad cable tells hundreds."""


class Sign(NamedTuple):
    """One thing that speaks against a node."""

    kind: SignKind
    at: datetime
    about: str = ""
    """Equal for what is the same thing told twice: an incident, or the kind of a fault."""


class Score(NamedTuple):
    """How much of a lemon a node is, and what makes it one."""

    value: float = 0.0
    why: tuple[str, ...] = ()
    """The heaviest first, such as `2 x drained (1.6)`."""

    @property
    def lemon(self) -> bool:
        """Whether a person is asked before the node is returned."""
        return self.value >= LEMON


def score(signs: Iterable[Sign], now: datetime) -> Score:
    """The sum of the weights, halved every `HALF_LIFE`; what is told twice counts once."""
    seen: set[tuple[SignKind, str, str]] = set()
    sums = dict.fromkeys(SignKind, 0.0)
    counts = dict.fromkeys(SignKind, 0)
    for sign in signs:
        age = max(now - sign.at, timedelta(0))
        # Faults are told again and again: one of a kind a day. Without a name everything is its own.
        day = f"{sign.at:%Y-%m-%d}" if sign.kind is SignKind.FAULT else ""
        key = (sign.kind, sign.about or sign.at.isoformat(), day)
        if age > FORGOTTEN or key in seen:
            continue
        seen.add(key)
        sums[sign.kind] += WEIGHTS[sign.kind] * 0.5 ** (age / HALF_LIFE)
        counts[sign.kind] += 1
    sums[SignKind.FAILED_FIRST] = min(sums[SignKind.FAILED_FIRST], MOST_BY_JOBS)
    sums[SignKind.FAULT] = min(sums[SignKind.FAULT], MOST_FAULTS)
    heaviest = sorted((kind for kind in SignKind if counts[kind]), key=lambda kind: -sums[kind])
    why = tuple(f"{counts[kind]} x {kind} ({sums[kind]:.1f})" for kind in heaviest)
    return Score(sum(sums.values()), why)
