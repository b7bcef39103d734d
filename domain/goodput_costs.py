"""What interruptions cost, one by one and by cause. Pure."""

from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime, timedelta

from relight.domain.attempts import AttemptKey
from relight.domain.base import Value
from relight.domain.goodput import Account, Badput, Run
from relight.domain.goodput_parts import ZERO, Part
from relight.domain.incidents import Incident, Outcome

DONE_AGAIN = "done again"
START_UP = "start-up"
NOT_RELIGHTS = "no incident"
"""The cause of an interruption of which Relight has none."""


class Cost(Value):
    """What one interruption cost: from the last step before it until training went on, and the steps done again."""

    attempt: AttemptKey
    at: datetime
    """When the attempt ended."""
    incident: str = ""
    """Empty: Relight has none of it."""
    cause: str = NOT_RELIGHTS
    """The catalogue's signature."""
    category: str = ""
    outcome: str = ""
    parts: Mapping[str, timedelta] = {}
    """By `Part`, `start-up` and `done again`; only what is known."""
    unknown: tuple[str, ...] = ()
    """Parts of which is not known how long they were."""
    ongoing: bool = False
    """Whether no later attempt has shown a step yet: it goes on costing."""
    gpus: int = 0
    nodes: int = 0
    price: float | None = None
    """Of a GPU hour; None: not known."""

    @property
    def time(self) -> timedelta:
        """All of it that is known."""
        return sum(self.parts.values(), ZERO)

    @property
    def gpu_hours(self) -> float:
        """GPUs times hours."""
        return self.gpus * self.time.total_seconds() / 3600

    @property
    def node_hours(self) -> float:
        """Nodes times hours."""
        return self.nodes * self.time.total_seconds() / 3600

    @property
    def money(self) -> float | None:
        """What the GPU hours were worth; None: no price is known, or no GPUs."""
        return None if self.price is None or not self.gpus else self.price * self.gpu_hours


class CauseCost(Value):
    """What all interruptions of one cause cost."""

    cause: str
    category: str
    count: int
    time: timedelta
    gpu_hours: float
    node_hours: float
    money: float | None
    """Of those whose price is known; None: of none."""
    unknown: int
    """How many of them have a part of which is not known how long it was."""


def decisive(incidents: Iterable[Incident]) -> dict[AttemptKey, Incident]:
    """For each attempt the incident about its end: the newest that was neither unconfirmed nor overtaken."""
    moot = {Outcome.NOT_CONFIRMED, Outcome.SUPERSEDED}
    found: dict[AttemptKey, Incident] = {}
    for incident in sorted(incidents, key=lambda i: (i.outcome not in moot, i.opened_at)):
        found[incident.attempt] = incident
    return found


def costs(
    runs: Sequence[Run], accounts: Sequence[Account], incidents: Mapping[AttemptKey, Incident]
) -> tuple[Cost, ...]:
    """What each interruption of one job cost.

    Args:
        runs: its attempts, oldest first.
        accounts: theirs (`of_job`).
        incidents: about their ends.
    """
    found = []
    for index, (run, account) in enumerate(zip(runs, accounts, strict=True)):
        incident = incidents.get(run.attempt)
        if run.running or not (run.ended_badly or incident):
            continue
        later = index + 1 < len(runs)
        cost = _cost(run, account, accounts[index + 1] if later else None, incident)
        if run.ended_badly or cost.time:
            found.append(cost)
    return tuple(found)


def _cost(run: Run, account: Account, later: Account | None, incident: Incident | None) -> Cost:
    parts: dict[str, timedelta] = {str(part): time for part, time in _until_end(account, later).items()}
    unknown = []
    wasted = account.lost.get(Badput.WASTED, ZERO)
    if wasted:
        parts[DONE_AGAIN] = wasted
    elif Badput.UNKNOWN in account.lost:
        unknown.append(DONE_AGAIN)
    startup = later.lost.get(Badput.STARTUP, ZERO) if later else ZERO
    if startup:
        parts[START_UP] = startup
    elif later is not None and Badput.UNKNOWN in later.lost:
        unknown.append(START_UP)
    verdict = incident.diagnosis.verdict if incident and incident.diagnosis else None
    named = {"cause": verdict.signature, "category": str(verdict.category)} if verdict else {}
    if incident and not verdict:
        named = {"cause": "not diagnosed"}
    return Cost(
        attempt=run.attempt,
        at=run.ended_at,
        incident=incident.id if incident else "",
        outcome=str(incident.outcome or "open") if incident else "",
        parts=parts,
        unknown=tuple(unknown),
        ongoing=later is None,
        gpus=run.gpus,
        nodes=run.nodes,
        **named,
    )


def _until_end(account: Account, later: Account | None) -> dict[Part, timedelta]:
    """The stall at the attempt's end and the gap after it, divided; the gap stands in the later attempt's account."""
    tail, gap = account.tail_parts, later.gap_parts if later else {}
    return {part: tail.get(part, ZERO) + gap.get(part, ZERO) for part in Part if part in tail or part in gap}


def by_cause(found: Iterable[Cost]) -> tuple[CauseCost, ...]:
    """The same by cause, the dearest first."""
    groups: dict[tuple[str, str], list[Cost]] = {}
    for cost in found:
        groups.setdefault((cost.cause, cost.category), []).append(cost)
    summed = [
        CauseCost(
            cause=cause,
            category=category,
            count=len(group),
            time=sum((cost.time for cost in group), ZERO),
            gpu_hours=sum(cost.gpu_hours for cost in group),
            node_hours=sum(cost.node_hours for cost in group),
            money=_money(group),
            unknown=sum(bool(cost.unknown) for cost in group),
        )
        for (cause, category), group in groups.items()
    ]
    return tuple(sorted(summed, key=lambda each: (-each.gpu_hours, -each.node_hours, -each.time, each.cause)))


def _money(group: Iterable[Cost]) -> float | None:
    known = [cost.money for cost in group if cost.money is not None]
    return sum(known) if known else None
