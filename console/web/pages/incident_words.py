"""What an incident comes to, in sentences that need no explanation. Pure."""

from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import NamedTuple

from relight.console.text import nodes, span
from relight.console.web.read_incident_values import Step
from relight.console.web.read_values import IncidentLine
from relight.domain.incidents import Outcome, Phase
from relight.domain.plan import Mode

_HAPPENED = {
    "crash": "crashed",
    "hang": "hung",
    "straggler": "slowed down",
    "node_lost": "lost a node",
    "gpu_fault": "met a GPU fault",
    "numerics": "stopped learning",
}
_ENDED = {
    Outcome.RECOVERED: "Recovered",
    Outcome.RESTARTED_NO_PROGRESS: "Restarted, but training got no further",
    Outcome.RESTARTED_UNVERIFIED: "Restarted; whether training moves is not known",
    Outcome.STOPPED: "Left stopped, because a retry would not help",
    Outcome.ADOPTED: "Slurm's own restart was taken over, and training moves again",
    Outcome.SUCCEEDED_BY: "Another job goes on with the work",
    Outcome.SUPERSEDED: "A newer incident of the job took over",
    Outcome.OVERRIDDEN: "A person or another tool acted first; theirs wins",
    Outcome.EXPIRED: "Nobody decided in time, so nothing was done",
    Outcome.REJECTED: "A person said no, so nothing was done",
    Outcome.NOT_CONFIRMED: "Not confirmed: it was no interruption",
    Outcome.OBSERVED: "Only observed: nothing was touched",
    Outcome.FAILED: "Relight could not carry out its plan",
}
_DOING = {
    Phase.CONFIRMING: "Relight checks whether it is really interrupted.",
    Phase.DIAGNOSING: "Relight reads logs and machines to find the cause.",
    Phase.PLANNING: "Relight works out what to do.",
    Phase.VERIFYING: "It has been restarted; Relight waits for training to move past the point where it failed.",
}


def happened(line: IncidentLine) -> str:
    """The first sentence: which job, what, where."""
    if line.kind == "node_lost" and line.nodes:
        return f"Job {f'{line.job} {line.job_name}'.strip()} lost node {nodes(line.nodes)}"
    where = f" on {nodes(line.nodes)}" if line.nodes else ""
    return f"Job {f'{line.job} {line.job_name}'.strip()} {_HAPPENED.get(line.kind, line.kind)}{where}"


def doing(line: IncidentLine) -> str:
    """What Relight does about it now, or did."""
    if line.outcome:
        ended = _ENDED.get(Outcome(line.outcome), line.outcome) if line.outcome in set(Outcome) else line.outcome
        took = (
            f" in {span(line.closed_at - line.detected_at)}" if line.closed_at and line.outcome == "recovered" else ""
        )
        why = f": {line.outcome_reason}" if line.outcome_reason else ""
        return f"{ended}{took}{why}."
    if line.waiting:
        return f"Relight proposes: {line.plan}."
    if line.phase == Phase.ACTING:
        return f"Relight carries it out: {line.plan}."
    if line.mode == Mode.MONITOR and line.plan:
        return f"Monitor mode, nothing is touched. Relight would: {line.plan}."
    return _DOING.get(Phase(line.phase), "") if line.phase in set(Phase) else str(line.phase)


class Leg(NamedTuple):
    """One leg of the way from the failure to training again."""

    name: str
    state: str
    """`done`, `now`, `failed`, or nothing: not reached."""
    took: timedelta | None = None
    since: datetime | None = None
    """While it goes on."""


_WAY = (
    ("Noticed", frozenset({"detected"})),
    ("Diagnosed", frozenset({"diagnosed"})),
    ("Decided", frozenset({"approved", "rejected", "expired"})),
    ("Restarted", frozenset({"running", "verified"})),
    ("Verified", frozenset({"progress", "no progress", "recovered", "adopted", "restarted_no_progress"})),
)
_BAD_ENDS = frozenset({"failed", "restarted_no_progress", "expired"})


def way(line: IncidentLine, steps: Sequence[Step]) -> tuple[Leg, ...]:
    """From the first evidence to verified progress, with how long each leg took."""
    reached: dict[str, datetime] = {}
    for name, names in _WAY:
        found = next((step.at for step in steps if step.name in names), None)
        if found is None and name == "Decided" and line.mode != Mode.APPROVE:
            found = next((step.at for step in steps if step.name == "planned"), None)
        if found:
            reached[name] = found
    legs: list[Leg] = []
    before = line.occurred_at or line.detected_at
    going = line.open
    for name, _ in _WAY:
        at = reached.get(name)
        later = any(other in reached for other, _ in _WAY[len(legs) + 1 :])
        if at is not None:
            legs.append(Leg(name, "done", max(at - before, timedelta())))
            before = max(at, before)
        elif later or not (line.open or _failed_here(line, legs)):
            legs.append(Leg(name, ""))
        else:
            state = "failed" if not line.open else "now" if going else ""
            legs.append(Leg(name, state, None, before if state == "now" else None))
            going = False
    if line.outcome in _BAD_ENDS:
        last = max((n for n, leg in enumerate(legs) if leg.state == "done"), default=None)
        if last is not None and not any(leg.state == "failed" for leg in legs):
            legs[last] = legs[last]._replace(state="failed")
    return tuple(legs)


def _failed_here(line: IncidentLine, legs: Sequence[Leg]) -> bool:
    return line.outcome == Outcome.FAILED and not any(leg.state == "failed" for leg in legs)


_TONES = {
    "good": frozenset({"approved", "running", "progress", "recovered", "adopted", "drained", "verified"}),
    "bad": frozenset({"failed", "no progress", "drain failed", "restarted_no_progress", "decision not counted"}),
    "warn": frozenset(
        {"waiting", "rejected", "expired", "drain refused", "not drained", "escalated", "stuck", "overtaken"}
    ),
}


def tone_of(step: str) -> str:
    """How a step of the timeline looks."""
    return next((tone for tone, names in _TONES.items() if step in names), "")
