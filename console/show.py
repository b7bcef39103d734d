"""`relight show`: one incident's story."""

from datetime import datetime
from typing import Any, NamedTuple

from rich.console import Console
from rich.table import Table
from rich.text import Text

from relight.clients.ledger import Ledger
from relight.config.settings import Settings
from relight.console import parts
from relight.console.context import web_link
from relight.console.output import Part, grid, joined, state_style, words
from relight.console.pending import Now, ask, sentences
from relight.console.standing import Standing, standing, timeline
from relight.console.text import after, ago, local, nodes, span, zone
from relight.domain.attempts import AttemptState
from relight.domain.incidents import Incident, Phase
from relight.domain.ledger import Row


class Story(NamedTuple):
    """All that is told of an incident."""

    incident: Incident
    rows: tuple[Row, ...]
    attempt: AttemptState | None
    standing: Standing
    link: str
    now: Now = Now()
    """What is being tried, for an open incident."""


async def collect(ledger: Ledger, settings: Settings, incident: Incident) -> Story:
    """Read what the story needs: all from the ledger, and for an open incident what is being tried right now."""
    rows = await ledger.rows(incident=incident.id)
    attempt = await ledger.attempt(incident.attempt)
    now = await ask(settings, incident) if incident.open else Now()
    return Story(incident, rows, attempt, standing(incident, rows), web_link(settings, incident), now)


def as_json(story: Story) -> dict[str, Any]:
    """The incident and its rows for other programs."""
    return {
        "incident": story.incident.model_dump(mode="json"),
        "standing": {
            "phase": str(story.standing.phase),
            "decide_until": story.standing.until.isoformat() if story.standing.until else None,
            "approvals": story.standing.score or None,
        },
        "digest": story.incident.plan.digest if story.incident.plan else None,
        "rows": [row.model_dump(mode="json") for row in story.rows],
        "trying": [each._asdict() for each in story.now.trying],
        "trying_unknown": story.now.unknown or None,
        "web_ui": story.link or None,
    }


def tell(console: Console, story: Story, now: datetime) -> None:
    """Print the story; what a person has to do comes last, where the eye is."""
    console.print(headline(story, now))
    console.print()
    console.print(grid(_facts(story, now)))
    console.print()
    console.print(words("Timeline, from the detection on", "dim"))
    console.print(_timeline(story))
    if story.link:
        console.print()
        console.print(Text(story.link, style="blue", no_wrap=True, overflow="ignore"), soft_wrap=True)
    told = sentences(story.now)
    if told:
        console.print()
    for text, bad in told:
        console.print(words(text, "yellow" if bad else "dim", 400))
    if story.standing.phase is Phase.WAITING:
        console.print()
        _print_waiting(console, story, now)


def headline(story: Story, now: datetime) -> Text:
    """Id, state, and how it ended or how long it has been going on."""
    incident = story.incident
    state = str(incident.outcome or story.standing.phase)
    length = span((incident.closed_at or now) - incident.detected_at)
    pieces = [
        (f"Incident {incident.id}", "bold"),
        (state.replace("_", " ").upper(), state_style(state)),
        (f"{'took' if incident.closed_at else 'open for'} {length}", "dim"),
    ]
    return joined(pieces)


def _facts(story: Story, now: datetime) -> list[Part]:
    incident, rows = story.incident, story.rows
    facts = [Part("Job", _job(story)), Part("When", (_when(incident, now),))]
    if incident.outcome:
        facts.append(Part("Outcome", (words(incident.outcome_reason or str(incident.outcome), "", 400),)))
    facts += parts.cause(incident)
    facts += parts.plan(incident, rows)
    facts += [*parts.said(rows, now), *parts.leaves(rows, now)]
    facts += [*parts.actions(rows, now), *parts.verified(rows, now), *parts.escalated(rows)]
    return facts


def _job(story: Story) -> tuple[Text, ...]:
    incident, state = story.incident, story.attempt
    record = state.attempt.record if state else None
    who = [
        (record.display_id if record else str(incident.attempt.job_id), "bold"),
        (incident.job_name, "bold"),
        (f"of {incident.user}" if incident.user else "", ""),
        (f"on cluster {incident.attempt.cluster}", "dim"),
    ]
    lines = [joined(who, " ")]
    if record:
        ran = f"ran on {nodes(record.nodes)}" if record.nodes else ""
        part = f"partition {record.partition}" if record.partition else ""
        lines.append(
            joined([(ran, ""), (part, ""), (f"restart {record.restarts}" if record.restarts else "", "")], ", ")
        )
    return tuple(lines)


def _when(incident: Incident, now: datetime) -> Text:
    told = f"{incident.kind} detected {local(incident.detected_at, now)} {zone(now)}, {ago(incident.detected_at, now)}"
    if incident.occurred_at and incident.occurred_at < incident.detected_at:
        told += f"; {span(incident.detected_at - incident.occurred_at)} after it happened"
    return words(told)


def _timeline(story: Story) -> Table:
    table = Table.grid(padding=(0, 2, 0, 0))
    table.add_column(justify="right", no_wrap=True, style="dim", min_width=9)
    table.add_column(no_wrap=True)
    table.add_column(overflow="fold")
    steps = timeline(story.incident, story.rows)
    for step in steps:
        since = after(step.at - story.incident.detected_at)
        table.add_row(since, words(step.name, state_style(step.name) if step is steps[-1] else ""), words(step.text))
    return table


def _print_waiting(console: Console, story: Story, now: datetime) -> None:
    until = story.standing.until
    incident, plan = story.incident.id, story.incident.plan
    digest = f" --digest {plan.digest[:8]}" if plan else ""
    if until is None or until > now:
        left = f" until {local(until, now)} ({span(until - now)} left)" if until else ""
        score = f": {story.standing.score}" if story.standing.score else ""
        console.print(words(f"Waiting for people{left}{score}. Without an answer nothing is done.", "bold yellow"))
        console.print(words(f"  relight approve {incident}{digest}"))
        console.print(words(f'  relight reject  {incident}{digest} --reason "..."'))
        if plan and plan.requeue_until and plan.fresh:
            known = f"Slurm can requeue the attempt until {local(plan.requeue_until, now)}; after that only a fresh"
            console.print(words(f"{known} submission remains, as {story.incident.user or 'its user'}:", "dim"))
            console.print(words(f"  {plan.fresh}", "dim"))
        elif plan and plan.fresh:
            console.print(words(f"  By hand: {plan.fresh}", "dim"))
        return
    text = f"It should have expired {ago(until, now)}, and nobody has closed it: does the worker run? relight doctor"
    console.print(words(text, "bold red"))
