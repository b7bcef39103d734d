"""Jobs, as lines of a list and as a page of their own. Reads the ledger alone."""

from datetime import datetime

from rich.text import Text

from relight.clients.ledger_pages import Counted
from relight.console import explain, explain_budget
from relight.console.explain import Life, Try, why_nothing
from relight.console.web.read_incident_values import (
    AttemptLine,
    BudgetView,
    CauseBudget,
    CheckpointMark,
    ExclusionLine,
    JobPage,
    Point,
)
from relight.console.web.read_lines import line
from relight.console.web.read_values import JobLine, Told
from relight.domain.attempts import AttemptState, Progress

_TONES = (("red", "bad"), ("yellow", "warn"), ("dim", "quiet"), ("green", "good"))


def told(text: Text) -> Told:
    """A line of the CLI with how it is meant."""
    styles = " ".join(str(style) for style in (text.style, *(span.style for span in text.spans)))
    return Told(text=text.plain, tone=next((tone for word, tone in _TONES if word in styles), ""))


def job_line(state: AttemptState, progress: Progress | None, counted: Counted) -> JobLine:
    """A job in a list, by its newest attempt."""
    record = state.attempt.record
    return JobLine(
        job=record.display_id,
        job_id=record.job_id,
        lineage=state.attempt.lineage,
        name=record.name,
        user=record.user,
        partition=record.partition,
        running=state.running,
        attempts=counted.attempts,
        restarts=record.restarts,
        nodes=record.nodes,
        last_step=progress.last_step if progress else None,
        last_step_at=progress.last_step_at if progress else None,
        started_at=record.start_time or state.attempt.seen_at,
        ended_at=state.ended_at,
        incidents=counted.incidents,
        open_incident=counted.open_incident,
    )


def job_page(life: Life, counted: Counted, now: datetime) -> JobPage | None:
    """All that is told of a job; None where no attempt of it was seen running."""
    newest = next((each for each in reversed(life.tries) if each.state), None)
    if newest is None or newest.state is None:
        return None
    attempts = tuple(_attempt(number, each) for number, each in enumerate(life.tries, 1))
    return JobPage(
        line=job_line(newest.state, newest.progress, counted),
        attempts=attempts,
        budget=_budget(life.account, now),
        curve=tuple(point for number, each in enumerate(life.tries, 1) for point in _points(number, each)),
        checkpoints=tuple(
            CheckpointMark(attempt=each.number, step=each.saved_step, at=each.saved_at)
            for each in attempts
            if each.saved_step is not None
        ),
        asks=explain.asked(newest.state),
        others=life.others,
    )


def _attempt(number: int, each: Try) -> AttemptLine:
    state, progress = each.state, each.progress
    record = state.attempt.record if state else None
    return AttemptLine(
        number=number,
        attempt=str(state.attempt.key) if state else "",
        running=state.running if state else False,
        nodes=record.nodes if record else (),
        restarts=record.restarts if record else None,
        started_at=(record.start_time or state.attempt.seen_at) if state and record else None,
        ended_at=state.ended_at if state else None,
        how=each.how,
        last_step=progress.last_step,
        last_step_at=progress.last_step_at,
        step_seconds=progress.step_seconds,
        saved_step=progress.saved_step,
        saved_at=progress.saved_at,
        why_nothing="" if each.cases else why_nothing(each),
        incidents=tuple(line(case.incident, case.rows, case.listed.display_id) for case in each.cases),
    )


def _points(number: int, each: Try) -> list[Point]:
    """Where its first step, its newest checkpoint and its last step were seen, in the order of time."""
    known, ended = each.progress, each.state.ended_at if each.state else None
    seen = [
        (known.first_step_at, known.first_step),
        (known.saved_at, known.saved_step),
        (known.last_step_at or ended, known.last_step),
    ]
    points = {(at, step) for at, step in seen if at is not None and step is not None}
    return [Point(at=at, step=step, attempt=number) for at, step in sorted(points)]


def _budget(known: explain_budget.Account, now: datetime) -> BudgetView:
    spent = known.budget
    causes = tuple(
        CauseBudget(name=name, used=spent.used(name), allowed=allowed, left=spent.left(name))
        for name, allowed in spent.retries.items()
    )
    return BudgetView(
        fruitless=spent.fruitless,
        most_fruitless=spent.most_fruitless,
        by_cause=causes,
        exclusions=tuple(ExclusionLine(node=each.node, until=each.until) for each in known.exclusions),
        begins=known.begins,
        lines=tuple(
            told(Text(f"{part.label}: ").append_text(text))
            for part in explain_budget.left(known, now)
            for text in part.lines
        ),
    )
