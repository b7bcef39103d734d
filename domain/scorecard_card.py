"""How often decisions were right, by detector and action, and what a site may therefore allow. Pure.

*Precision*: of the decisions that can be judged, how many were right. *Recall*: of what should have been decided, how
much was. Both with Wilson's 95 % interval (E. B. Wilson, J. Am. Stat. Assoc. 22, 1927), which is honest for few.

The gate: at least `LEAST` judged decisions, at least `PRECISION` of them right, and no node drained that was well.
"""

from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from itertools import product
from math import sqrt

from relight.domain.attempts import AttemptKey
from relight.domain.base import Value
from relight.domain.evidence import Interruption
from relight.domain.permits import Act, Permit, Policy
from relight.domain.scorecard import Action, Judged, Verdict

LEAST = 20
PRECISION = 0.95
MOST_TOLD = 1000
"""Decisions, and missed interruptions, that a card names; the numbers hold all of them."""
_Z = 1.959964


class Rate(Value):
    """A share with its 95 % interval."""

    hits: int
    of: int
    value: float
    low: float
    high: float


class Gate(Value):
    """Whether a site may trust `auto`."""

    may: bool
    why: str
    """In words: `yes`, `not yet: 7 of 20 decisions`, `no: precision 80 %, 95 % are needed`."""
    now: Permit
    """What the policy says today, rules for single jobs apart."""
    policy: str = ""
    """The entry of `policy.modes` to write; empty: there is nothing to change."""


class CardRow(Value):
    """One action after one detector."""

    kind: Interruption
    action: Action
    decisions: int
    right: int
    wrong: int
    not_yet: int
    unknown: int
    missed: int | None
    """What should have been decided and was not; None: nothing shows that."""
    precision: Rate | None
    recall: Rate | None
    gate: Gate | None
    """None: nothing that a policy allows."""


class Missed(Value):
    """What should have been decided, and was not."""

    kind: Interruption
    action: Action
    at: datetime
    attempt: AttemptKey
    node: str = ""
    why: str


class Card(Value):
    """The score card."""

    cluster: str
    since: datetime
    until: datetime
    rows: tuple[CardRow, ...]
    judged: tuple[Judged, ...]
    """The newest first."""
    missed: tuple[Missed, ...]
    """The newest first."""
    judged_in_all: int
    missed_in_all: int
    policy: tuple[str, ...]
    """The lines that would let to auto what may go there, and take back what may not stay."""
    notes: tuple[str, ...]


def wilson(hits: int, of: int) -> Rate | None:
    """A share of so many; None of none."""
    if of <= 0:
        return None
    share, z2 = hits / of, _Z * _Z
    middle = (share + z2 / (2 * of)) / (1 + z2 / of)
    reach = _Z * sqrt(share * (1 - share) / of + z2 / (4 * of * of)) / (1 + z2 / of)
    low, high = max(0.0, middle - reach), min(1.0, middle + reach)
    return Rate(hits=hits, of=of, value=share, low=min(low, share), high=max(high, share))


def card(
    cluster: str,
    judged: Sequence[Judged],
    missed: Sequence[Missed],
    policy: Policy,
    *,
    since: datetime,
    until: datetime,
    notes: Iterable[str] = (),
) -> Card:
    """The card of all that was decided, and missed, in that time."""
    by_row: dict[tuple[Interruption, Action], list[Judged]] = {}
    for each in judged:
        by_row.setdefault((each.kind, each.action), []).append(each)
    lost: dict[tuple[Interruption, Action], int] = {}
    for one in missed:
        lost[one.kind, one.action] = lost.get((one.kind, one.action), 0) + 1
    named = [pair for pair in product(Interruption, Action) if pair in by_row or pair in lost]
    rows = tuple(_row(pair, by_row.get(pair, []), lost.get(pair, 0), policy) for pair in named)
    return Card(
        cluster=cluster,
        since=since,
        until=until,
        rows=rows,
        judged=tuple(sorted(judged, key=lambda each: each.at, reverse=True)[:MOST_TOLD]),
        missed=tuple(sorted(missed, key=lambda each: each.at, reverse=True)[:MOST_TOLD]),
        judged_in_all=len(judged),
        missed_in_all=len(missed),
        policy=lines(rows),
        notes=tuple(notes),
    )


MEASURED = frozenset({Action.RESTART, Action.EXCLUDE, Action.DRAIN})
"""Actions of which can be seen that they should have been decided."""


def _row(pair: tuple[Interruption, Action], judged: Sequence[Judged], missed: int, policy: Policy) -> CardRow:
    kind, action = pair
    count = {verdict: sum(each.verdict is verdict for each in judged) for verdict in Verdict}
    right, wrong = count[Verdict.RIGHT], count[Verdict.WRONG]
    precision = wilson(right, right + wrong)
    known = action in MEASURED
    return CardRow(
        kind=kind,
        action=action,
        decisions=len(judged),
        right=right,
        wrong=wrong,
        not_yet=count[Verdict.NOT_YET],
        unknown=count[Verdict.UNKNOWN],
        missed=missed if known else None,
        precision=precision,
        recall=wilson(right, right + missed) if known else None,
        gate=_gate(kind, action, judged, precision, policy),
    )


def _gate(
    kind: Interruption, action: Action, judged: Sequence[Judged], precision: Rate | None, policy: Policy
) -> Gate | None:
    if action is Action.LEAVE:
        return None
    now = policy.permit(kind, Act(action))
    why = _why_not(action, judged, precision)
    if not why:
        entry = "" if now is Permit.AUTO else f"{kind}.{action}: auto"
        return Gate(may=True, why="yes", now=now, policy=entry)
    back = f"{kind}.{action}: approve" if now is Permit.AUTO and why.startswith("no:") else ""
    return Gate(may=False, why=why, now=now, policy=back)


def _why_not(action: Action, judged: Sequence[Judged], precision: Rate | None) -> str:
    """Why the action may not go to auto; empty: it may. What already speaks against it comes before what lacks."""
    well = [each.node for each in judged if each.verdict is Verdict.WRONG]
    if action is Action.DRAIN and well:
        return f"no: {well[0]} was well, and would have been drained" + (
            f", and {len(well) - 1} more" if well[1:] else ""
        )
    told = precision.of if precision else 0
    if told < LEAST:
        return f"not yet: {told} of {LEAST} decisions"
    if precision and precision.value < PRECISION:
        return f"no: precision {precision.value:.0%} ({precision.hits} of {precision.of}), {PRECISION:.0%} are needed"
    return ""


def lines(rows: Iterable[CardRow]) -> tuple[str, ...]:
    """The policy to write, as YAML; empty: there is nothing to change."""
    entries = [row.gate.policy for row in rows if row.gate and row.gate.policy]
    return ("policy:", "  modes:", *(f"    {entry}" for entry in entries)) if entries else ()


def counted(rows: Iterable[CardRow]) -> Mapping[str, int]:
    """The sums over all rows."""
    rows = tuple(rows)
    names = ("decisions", "right", "wrong", "not_yet", "unknown")
    return {name: sum(getattr(row, name) for row in rows) for name in names}
