"""`relight incidents`: the list."""

import asyncio
from datetime import datetime, timedelta
from typing import Any, NamedTuple

from rich.console import Console
from rich.table import Table
from rich.text import Text

from relight.clients.ledger import Ledger
from relight.config.settings import Settings
from relight.console.errors import NotFoundStop
from relight.console.lookup import JobName, attempts_of, incidents_of
from relight.console.output import joined, state_style, words
from relight.console.standing import Standing, standing
from relight.console.text import ago, count, local, local_short, nodes, span
from relight.domain.incidents import Incident, Outcome, Phase
from relight.domain.plan import Mode, Plan, Restart

_FETCHED = 1000
_WIDE = 104
"""Columns from which the plan has a column of its own."""
Cell = tuple[Text, ...]


class Listed(NamedTuple):
    """One incident of the list, with what its rows and its attempt add."""

    incident: Incident
    standing: Standing
    display_id: str

    @property
    def state(self) -> str:
        """Its outcome, or else its phase."""
        return str(self.incident.outcome or self.standing.phase)

    def took(self, now: datetime) -> str:
        """How long it took, or has been open."""
        length = (self.incident.closed_at or now) - self.incident.detected_at
        return f"in {span(length)}" if self.incident.closed_at else f"for {span(length)}"


class Found(NamedTuple):
    """The list, and what it leaves out."""

    listed: tuple[Listed, ...]
    hidden: int = 0
    """Not confirmed ones."""
    older: int = 0
    """Those beyond the limit."""
    asked: str = "incidents"
    """What was asked for, for the case that there is none."""


async def collect(
    ledger: Ledger, settings: Settings, *, everything: bool, open_only: bool, limit: int, job: JobName | None
) -> Found:
    """The incidents asked for, newest first."""
    cluster = settings.cluster
    if job is None:
        all_of_them = await ledger.incidents(cluster=cluster, open_only=open_only, limit=_FETCHED)
    else:
        states = await attempts_of(ledger, cluster, job)
        all_of_them = await incidents_of(ledger, cluster, job, states)
        if not states and not all_of_them:
            raise NotFoundStop(f"Relight never saw job {job} on cluster {cluster}\nMore: relight why {job}")
    wanted = [i for i in all_of_them if i.open or not open_only]
    shown = [i for i in wanted if everything or i.outcome is not Outcome.NOT_CONFIRMED]
    listed = await asyncio.gather(*(look(ledger, incident) for incident in shown[:limit]))
    asked = f"{'open ' if open_only else ''}incidents{f' of job {job}' if job else ''}"
    return Found(tuple(listed), len(wanted) - len(shown), len(shown) - len(listed), asked)


async def look(ledger: Ledger, incident: Incident) -> Listed:
    """One incident with where it stands and its job's id as Slurm prints it."""
    rows = await ledger.rows(incident=incident.id) if incident.open else ()
    state = await ledger.attempt(incident.attempt)
    display_id = state.attempt.record.display_id if state else str(incident.attempt.job_id)
    return Listed(incident, standing(incident, rows), display_id)


def as_json(each: Listed) -> dict[str, Any]:
    """One incident for other programs; keys are only ever added."""
    incident = each.incident
    verdict = incident.diagnosis.verdict if incident.diagnosis else None
    plan = incident.plan
    return {
        "id": incident.id,
        "cluster": incident.attempt.cluster,
        "job_id": incident.attempt.job_id,
        "job": each.display_id,
        "job_name": incident.job_name,
        "user": incident.user,
        "kind": str(incident.kind),
        "cause": verdict.signature if verdict else None,
        "category": str(verdict.category) if verdict else None,
        "confidence": verdict.confidence if verdict else None,
        "nodes": list(verdict.implicated.nodes) if verdict else [],
        "plan": plan.describe() if plan else None,
        "digest": plan.digest if plan else None,
        "mode": str(incident.mode),
        "phase": str(each.standing.phase),
        "decide_until": _iso(each.standing.until),
        "approvals": each.standing.score or None,
        "outcome": str(incident.outcome) if incident.outcome else None,
        "outcome_reason": incident.outcome_reason,
        "occurred_at": _iso(incident.occurred_at),
        "detected_at": _iso(incident.detected_at),
        "opened_at": _iso(incident.opened_at),
        "closed_at": _iso(incident.closed_at),
        "workflow_id": incident.workflow_id,
        "run_id": incident.run_id,
    }


def _iso(at: datetime | None) -> str | None:
    return at.isoformat() if at else None


def short_plan(plan: Plan, *, monitor: bool) -> str:
    """The plan without the job's id, which stands beside it."""
    parts = []
    without = f" without {nodes(plan.exclude)}" if plan.exclude else ""
    if plan.restart is not Restart.NONE:
        parts.append(f"{plan.restart}{without}")
    if plan.fall_back:
        parts.append(f"from {plan.fall_back.label}")
    if plan.cancel:
        parts.append("cancel")
    if plan.drain:
        parts.append(f"drain {nodes(plan.drain)}")
    told = ", ".join(parts) or "leave as it is"
    return f"would {told}" if monitor and parts else told


def print_table(console: Console, found: Found, now: datetime) -> None:
    """Two lines an incident on a terminal, three on a narrow one; one line each in a pipe."""
    piped = not console.is_terminal
    narrow = not piped and console.width < _WIDE
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="dim", pad_edge=False)
    for title in ("INCIDENT", "JOB", "CAUSE", "STATE") if narrow else ("INCIDENT", "JOB", "CAUSE", "PLAN", "STATE"):
        table.add_column(title, overflow="fold", no_wrap=piped or title == "INCIDENT")
    between = Text("  " if piped else "\n")
    for each in found.listed:
        incident, job, cause, plan, state = _cells(each, now)
        cells = (incident, job, (*cause, *plan), state) if narrow else (incident, job, cause, plan, state)
        table.add_row(*(between.join(line for line in cell if line) for cell in cells))
    console.print(table)
    waiting = [each for each in found.listed if each.standing.phase is Phase.WAITING]
    if waiting:
        first = waiting[0].incident.id
        console.print()
        console.print(words(f"{count(len(waiting), 'incident')} waiting for you: relight show {first}", "bold yellow"))
    print_hidden(console, found)


def print_hidden(console: Console, found: Found) -> None:
    """Say what the list leaves out."""
    if found.older:
        console.print(words(f"{found.older} older, not shown (--limit)", "dim"))
    if found.hidden:
        console.print(words(f"{found.hidden} not confirmed, not shown (--all)", "dim"))


def _cells(each: Listed, now: datetime) -> tuple[Cell, Cell, Cell, Cell, Cell]:
    incident = each.incident
    verdict = incident.diagnosis.verdict if incident.diagnosis else None
    opened = local_short(incident.opened_at, now)
    age = f", {ago(incident.opened_at, now)}" if now - incident.opened_at < timedelta(days=1) else ""
    cause = [(str(incident.kind), ""), (verdict.signature if verdict else "", "bold")]
    behind = nodes(verdict.implicated.nodes) if verdict else ""
    where = [(str(verdict.category) if verdict else "", ""), (f"on {behind}" if behind else "", "")]
    plan = short_plan(incident.plan, monitor=incident.mode is Mode.MONITOR) if incident.plan else ""
    return (
        (words(incident.id, "bold"), words(f"{opened}{age}", "dim")),
        (joined([(each.display_id, "bold"), (incident.job_name, "")], " "), words(incident.user, "dim")),
        (joined(cause, " "), joined(where, " ")),
        (joined([(incident.mode, "dim"), (plan, "")], ": "),),
        (
            words(each.state.replace("_", " "), state_style(each.state)),
            words(each.standing.short_score, "yellow"),
            words(each.took(now), "dim"),
        ),
    )


async def print_empty(console: Console, ledger: Ledger, settings: Settings, found: Found, now: datetime) -> None:
    """No incident: say since when nothing happened, so that silence is not mistaken for blindness."""
    first = await ledger.rows(limit=1)
    running = await ledger.running_attempts(settings.cluster)
    console.print(words(f"No {found.asked}.", "bold"))
    if first:
        since = local(first[0].at, now)
        console.print(words(f"Watching {settings.cluster} since {since}; {count(len(running), 'job')} running now."))
    else:
        console.print(
            words(f"The ledger of {settings.cluster} is empty: no job has been seen yet. relight doctor", "yellow")
        )
    print_hidden(console, found)
