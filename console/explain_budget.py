"""The part of `relight why` on a job's restarts: what each was for, what is left, when it goes on, what is kept out.

Judged by the ledger alone and by the policy of this shell's settings; what the worker decides it judges anew.
"""

from collections.abc import Sequence
from datetime import datetime
from typing import Any, NamedTuple

from rich.console import Console
from rich.table import Table
from rich.text import Text

from relight.clients import lineages
from relight.clients.ledger import Ledger
from relight.console.output import Part, grid, joined, state_style, words
from relight.console.text import ago, count, local, local_short
from relight.domain.attempts import Attempt
from relight.domain.budget import Budget, budget, charged_to, restarted
from relight.domain.exclusions import Exclusion, standing
from relight.domain.human import spoken
from relight.domain.incidents import Incident
from relight.domain.ledger import RowKind
from relight.domain.permits import Policy

SHOWN = 12
"""Incidents in the table; JSON has all."""


class Used(NamedTuple):
    """One incident, as the budget sees it."""

    incident: Incident
    attempt: int | None
    """The number of the attempt that it is about, from 1."""
    name: str
    """Whose budget its restart counts against; empty where there was none."""
    counts: bool
    """Whether it still counts."""


class Account(NamedTuple):
    """What a job has used, what is left, and what is kept out of its retries."""

    budget: Budget
    used: tuple[Used, ...]
    """Oldest first."""
    exclusions: tuple[Exclusion, ...]
    begins: datetime | None
    """When Slurm starts the job by itself, while it backs off."""


async def account(
    ledger: Ledger, policy: Policy, attempts: Sequence[Attempt], incidents: Sequence[Incident]
) -> Account:
    """Read it.

    Args:
        ledger: where from.
        policy: in force for the job.
        attempts: of the job, newest first.
        incidents: of the job, newest first, open ones too.
    """
    marks = await lineages.marks(ledger, attempts)
    closed = [incident for incident in incidents if not incident.open]
    spent = budget(closed, marks, policy)
    own = await lineages.own_exclusions(ledger, attempts[0]) if attempts else {}
    job_id = attempts[0].key.job_id if attempts else 0
    kept_out = standing(own, incidents, own.keys(), job_id, policy.exclusions_expire)
    numbers = {attempt.key: number for number, attempt in enumerate(reversed(attempts), 1)}
    counted = {charge.incident for charge in spent.charges}
    used = tuple(
        Used(i, numbers.get(i.attempt), _name(i) if restarted(i) else "", i.id in counted) for i in reversed(incidents)
    )
    last = [i for i in incidents if numbers.get(i.attempt) == len(attempts)]
    begins = [await _begins(ledger, incident) for incident in last[:1]]
    return Account(spent, used, kept_out, begins[0] if begins else None)


async def _begins(ledger: Ledger, incident: Incident) -> datetime | None:
    """The start time that was set in this incident, where it was put off."""
    meant = await ledger.rows(incident=incident.id, kind=RowKind.INTENT)
    times = [row.body.get("not_before") for row in meant if row.body.get("what") == "start"]
    return datetime.fromisoformat(str(times[-1])) if times and times[-1] else None


def _name(incident: Incident) -> str:
    cause = incident.diagnosis.verdict if incident.diagnosis else None
    return charged_to(cause, incident.plan.restart if incident.plan else None)


def as_json(known: Account, now: datetime) -> dict[str, Any]:
    """The same for other programs."""
    spent = known.budget
    return {
        "restarts": [
            {
                "incident": used.incident.id,
                "attempt": used.attempt,
                "outcome": used.incident.outcome,
                "cause": _cause(used.incident) or None,
                "charged_to": used.name or None,
                "counts": used.counts,
            }
            for used in known.used
        ],
        "without_progress": {"used": spent.fruitless, "allowed": spent.most_fruitless},
        "by_cause": {
            name: {"used": spent.used(name), "allowed": allowed, "left": spent.left(name)}
            for name, allowed in spent.retries.items()
        },
        "given_back": spent.since or None,
        "given_back_by": "new durable checkpoint" if spent.by_saves else "passing the failed step",
        "next_wait_seconds": spent.wait.total_seconds(),
        "begins": known.begins.isoformat() if known.begins and known.begins > now else None,
        "exclusions": [each.model_dump(mode="json") for each in known.exclusions],
        "stops": stops(spent),
    }


def stops(spent: Budget) -> str:
    """What would leave the job stopped next, in a sentence."""
    left = spent.most_fruitless - spent.fruitless
    if left <= 0:
        return f"The next failure leaves it stopped: {spent.fruitless} restarts brought no progress."
    empty = [name for name in spent.retries if not spent.left(name)]
    at_once = f", or at once by a failure for {' or '.join(empty)}" if empty else ""
    return f"It is left stopped after {count(left, 'more restart')} without progress{at_once}."


def tell(console: Console, known: Account, now: datetime) -> None:
    """Print it, where there is anything to tell."""
    if known.used:
        console.print(words("Restarts", "bold"))
        console.print(_restarts(known))
        console.print(grid(left(known, now), indent=2))
    if known.exclusions:
        console.print(words("Kept out of its retries", "bold"))
        console.print(_kept_out(known.exclusions, now))
        if any(each.until <= now for each in known.exclusions):
            console.print(words("Expired ones are taken back at its next restart", "dim"))


def _table(*headings: str) -> Table:
    table = Table(box=None, padding=(0, 2, 0, 0), pad_edge=False, header_style="dim")
    for heading in headings:
        table.add_column(heading, overflow="fold")
    return table


def _restarts(known: Account) -> Table:
    table = _table("attempt", "incident", "cause", "counts against", "outcome")
    older = len(known.used) - SHOWN
    if older > 0:
        table.add_row("", words(f"{older} older: -o json", "dim"))
    for used in known.used[-SHOWN:]:
        incident = used.incident
        outcome = "open" if incident.open else str(incident.outcome).removeprefix("restarted_").replace("_", " ")
        table.add_row(
            words(str(used.attempt or "?")),
            words(incident.id),
            words(_cause(incident) or "not diagnosed"),
            _against(used),
            words(outcome, state_style(str(incident.outcome or ""))),
        )
    return table


def _cause(incident: Incident) -> str:
    return incident.diagnosis.verdict.signature if incident.diagnosis else ""


def _against(used: Used) -> Text:
    if not used.name:
        return words("not yet" if used.incident.open else "no restart", "dim")
    return words(used.name, "bold") if used.counts else joined([(used.name, ""), ("given back", "green")], between=", ")


def left(known: Account, now: datetime) -> list[Part]:
    """What is used and what is left, what gives it back, when the job goes on, and what would stop it."""
    spent = known.budget
    touched = [name for name in spent.retries if spent.used(name)]
    used = [
        (f"{name} {spent.used(name)} of {spent.retries[name]}", "" if spent.left(name) else "red") for name in touched
    ]
    rest = ", ".join(f"{name} {most}" for name, most in spent.retries.items() if name not in touched)
    back = (
        "by a new durable checkpoint"
        if spent.by_saves
        else "by passing the failed step: no checkpoint was seen written"
    )
    style = "bold red" if spent.fruitless >= spent.most_fruitless else ""
    told = [
        Part("Used", (joined(used or [("nothing", "dim")], between=", "),)),
        Part("Left", (words(rest, "dim"),)),
        Part("Back", (words(f"{back}; last {spent.since}" if spent.since else back, "dim"),)),
        Part("Stops", (words(stops(spent), style),)),
    ]
    if known.begins and known.begins > now:
        begins = f"backs off: Slurm starts it by itself after {local(known.begins, now)}, {ago(known.begins, now)}"
        return [*told, Part("Waits", (words(begins, "yellow"),))]
    wait = f"its next restart waits {spoken(spent.wait)}" if spent.wait else ""
    return [*told, Part("Waits", (words(wait, "dim"),))] if wait else told


def _kept_out(exclusions: Sequence[Exclusion], now: datetime) -> Table:
    table = _table("node", "since", "until", "by", "proof")
    for each in exclusions:
        until = "expired" if each.until <= now else f"{local_short(each.until, now)}, {ago(each.until, now)}"
        cells = [words(each.node, "bold"), words(local_short(each.since, now), "dim")]
        table.add_row(*cells, words(until), words(each.incident), words(str(each.proof)))
    return table
