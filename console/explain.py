"""`relight why`: what Relight knows of a job, what it did about it, and why, or why nothing."""

from collections.abc import Sequence
from datetime import datetime
from typing import Any, NamedTuple

from rich.console import Console
from rich.text import Text

from relight.clients.ledger import Ledger
from relight.config.settings import Settings
from relight.console import explain_budget, parts
from relight.console.errors import NotFoundStop
from relight.console.incidents import Listed
from relight.console.incidents import as_json as incident_as_json
from relight.console.lookup import JobName, attempts_of, incidents_of
from relight.console.output import Part, grid, joined, state_style, words
from relight.console.standing import deeds, standing
from relight.console.text import ago, clean, count, local, nodes, span
from relight.domain.attempts import AttemptState, Progress, progress_cursor
from relight.domain.incidents import Incident, Outcome
from relight.domain.ledger import Row, RowKind
from relight.domain.plan import Mode
from relight.domain.policy_rules import in_force
from relight.domain.slurm import ENDED_BADLY, JobState
from relight.domain.wishes import wishes

_NOBODY = ", queued again by nobody"
_UNTOUCHED = frozenset(Outcome) - {
    Outcome.RECOVERED,
    Outcome.ADOPTED,
    Outcome.RESTARTED_NO_PROGRESS,
    Outcome.RESTARTED_UNVERIFIED,
    Outcome.FAILED,
}
"""Outcomes that say that nothing was written to Slurm, where no intent says otherwise."""


class Case(NamedTuple):
    """An incident with its rows."""

    listed: Listed
    rows: tuple[Row, ...]

    @property
    def incident(self) -> Incident:
        """The incident itself."""
        return self.listed.incident


class Try(NamedTuple):
    """One attempt of the job with everything known of it."""

    state: AttemptState | None
    """None: Relight never saw it running."""
    progress: Progress
    rows: tuple[Row, ...]
    cases: tuple[Case, ...]

    @property
    def how(self) -> str:
        """How it ended, in Slurm's words; empty while it runs or where nobody saw."""
        ended = next((row for row in reversed(self.rows) if row.kind is RowKind.ATTEMPT_ENDED), None)
        return str(ended.body.get("how", "")).replace(_NOBODY, "") if ended else ""

    @property
    def end_state(self) -> JobState | None:
        """The state it ended in, None where that is not known."""
        ended = next((row for row in reversed(self.rows) if row.kind is RowKind.ATTEMPT_ENDED), None)
        word = ((ended.body.get("record") or {}).get("state") or self.how.split(" ")[0]) if ended else ""
        return JobState(word) if word in JobState.__members__ else None


class Life(NamedTuple):
    """A job, as far as Relight knows it."""

    job: JobName
    tries: tuple[Try, ...]
    """Oldest first."""
    account: explain_budget.Account
    others: int
    """Attempts under the same Slurm id that belong to another job: the id was used again."""


async def collect(ledger: Ledger, settings: Settings, job: JobName) -> Life:
    """Read everything about the job.

    Raises:
        NotFoundStop: when Relight never heard of it.
    """
    states = await attempts_of(ledger, settings.cluster, job)
    incidents = await incidents_of(ledger, settings.cluster, job, states)
    if not states and not incidents:
        raise NotFoundStop(_unknown(settings, job))
    lineage = states[0].attempt.lineage if states else ""
    mine = [state for state in states if state.attempt.lineage == lineage]
    tries = [await _try(ledger, state, incidents) for state in reversed(mine)]
    seen = {state.attempt.key for state in states}
    stray = tuple([await _case(ledger, i, str(job)) for i in incidents if i.attempt not in seen])
    if stray:
        tries.append(Try(None, Progress(), (), stray))
    of_job = [i for i in incidents if i.lineage == lineage]
    last = next((each.state for each in reversed(tries) if each.state), None)
    policy = in_force(settings.policy, settings.cluster, last.attempt.record).policy if last else settings.policy
    known = await explain_budget.account(ledger, policy, [state.attempt for state in mine], of_job)
    return Life(job, tuple(tries), known, len(states) - len(mine))


async def _try(ledger: Ledger, state: AttemptState, incidents: Sequence[Incident]) -> Try:
    key = state.attempt.key
    known = await ledger.cursor(progress_cursor(key))
    mine = [i for i in incidents if i.attempt == key]
    cases = tuple([await _case(ledger, i, state.attempt.record.display_id) for i in reversed(mine)])
    progress = Progress.model_validate(known) if known else Progress()
    return Try(state, progress, await ledger.rows(attempt=str(key)), cases)


async def _case(ledger: Ledger, incident: Incident, display_id: str) -> Case:
    rows = await ledger.rows(incident=incident.id)
    return Case(Listed(incident, standing(incident, rows), display_id), rows)


def _unknown(settings: Settings, job: JobName) -> str:
    only = settings.policy.partitions
    limits = f" Only jobs of {', '.join(only)} are looked after." if only else ""
    return (
        f"Relight never saw job {job} running on cluster {settings.cluster}.{limits}\n"
        "It may still be pending, have ended before Relight watched, or run on another cluster (--config)."
    )


def as_json(life: Life, now: datetime) -> dict[str, Any]:
    """The same for other programs."""
    last = next((t.state for t in reversed(life.tries) if t.state), None)
    record = last.attempt.record if last else None
    return {
        "job": str(life.job),
        "name": record.name if record else None,
        "user": record.user if record else None,
        "lineage": last.attempt.lineage if last else None,
        "retries_without_progress": life.account.budget.fruitless,
        "retries_allowed": life.account.budget.most_fruitless,
        "budget": explain_budget.as_json(life.account, now),
        "comment_asks": list(asked(last)),
        "attempts": [_try_as_json(each) for each in life.tries],
    }


def _try_as_json(each: Try) -> dict[str, Any]:
    state = each.state
    return {
        "attempt": str(state.attempt.key) if state else None,
        "job_id": state.attempt.key.job_id if state else None,
        "restarts": state.attempt.record.restarts if state else None,
        "nodes": list(state.attempt.record.nodes) if state else [],
        "seen_at": state.attempt.seen_at.isoformat() if state else None,
        "running": state.running if state else False,
        "ended_at": state.ended_at.isoformat() if state and state.ended_at else None,
        "ended": each.how or None,
        "last_step": each.progress.last_step,
        "why_nothing": None if each.cases else clean(why_nothing(each)),
        "incidents": [
            {**incident_as_json(case.listed), "rows": [row.model_dump(mode="json") for row in case.rows]}
            for case in each.cases
        ],
    }


def tell(console: Console, life: Life, now: datetime) -> None:
    """Print it: the job, then each attempt with its incidents, the newest last."""
    console.print(_head(life))
    if life.others:
        console.print(words(f"{count(life.others, 'attempt')} under this id belong to an older job, left out", "dim"))
    for number, each in enumerate(life.tries, 1):
        console.print()
        console.print(_attempt(number, each, now))
        if not each.cases:
            console.print(grid([Part("", (words(why_nothing(each)),))], indent=2))
        for line in _blind(each, now):
            console.print(grid([Part("Blind", (line,))], indent=2))
        for case in each.cases:
            _tell_case(console, case, now)
    console.print()
    if wanted := asked(next((t.state for t in reversed(life.tries) if t.state), None)):
        console.print(words(f"Its comment asks: {'; '.join(wanted)}", "dim"))
    spent = life.account.budget
    style = "bold red" if spent.fruitless >= spent.most_fruitless else "dim"
    console.print(words(f"Retries without progress: {spent.fruitless} of {spent.most_fruitless} used", style))
    explain_budget.tell(console, life.account, now)


def asked(state: AttemptState | None) -> tuple[str, ...]:
    """What the job's comment asks of Relight, in its own keys or Mission Control's; and what of it is ignored."""
    wish = wishes(state.attempt.record.comment) if state else wishes("")
    told = (
        f"mode {wish.mode} at most" if wish.mode else "",
        "no requeue, its chain goes on (singleton_dependency)" if wish.chained else "",
        f"at most {count(wish.most_requeues, 'requeue')}" if wish.most_requeues is not None else "",
    )
    return (*filter(None, told), *wish.remarks)


def _head(life: Life) -> Text:
    last = next((t.state for t in reversed(life.tries) if t.state), None)
    incidents = sum(len(t.cases) for t in life.tries)
    known = sum(t.state is not None for t in life.tries)
    if last is None:
        return joined(
            [(f"Job {life.job}", "bold"), ("never seen running", "yellow"), (count(incidents, "incident"), "dim")]
        )
    record = last.attempt.record
    name = f"Job {record.display_id} {record.name}"
    what = f"{count(known, 'attempt')}, {count(incidents, 'incident')}"
    return joined([(name, "bold"), (f"of {record.user}, partition {record.partition}", ""), (what, "dim")])


def _attempt(number: int, each: Try, now: datetime) -> Text:
    state = each.state
    if state is None:
        return joined([("Attempt unknown", "bold"), ("Relight never saw it running", "yellow")])
    record = state.attempt.record
    begun = record.start_time or state.attempt.seen_at
    ended = state.ended_at
    times = (
        f"{local(begun, now)} to {local(ended, now)} ({span(ended - begun)})" if ended else f"since {local(begun, now)}"
    )
    how = "running" if state.running else each.how or "ended, nobody saw how"
    style = "green" if state.running else "red" if each.end_state in ENDED_BADLY else "yellow"
    step = each.progress.last_step
    pieces = [
        (f"Attempt {number}", "bold"),
        (how, style),
        (times, ""),
        (f"on {nodes(record.nodes)}" if record.nodes else "", ""),
        (f"last step {step}" if step is not None else "", ""),
    ]
    return joined(pieces)


def why_nothing(each: Try) -> str:
    """Why an attempt has no incident."""
    state = each.state
    detected = any(row.kind is RowKind.DETECTED for row in each.rows)
    if detected:
        return (
            "An interruption was detected, but no incident was opened: does Temporal and the worker run? relight doctor"
        )
    if state is not None and state.running:
        return "It runs, and no interruption has been seen."
    if each.end_state in {
        JobState.COMPLETED,
        JobState.CANCELLED,
        JobState.PREEMPTED,
        JobState.TIMEOUT,
        JobState.DEADLINE,
    }:
        return f"Nothing was done: {each.end_state} is no interruption, and not Relight's to undo."
    if "by unknown" in each.how:
        return "Nothing was done: somebody else (the user, their tool, an administrator) queued it again; theirs wins."
    if "by relight" in each.how:
        return "It ended by Relight's own requeue."
    return f"Nothing was done: how it ended could not be seen ({each.how or 'no record left'})."


def _blind(each: Try, now: datetime) -> list[Text]:
    """What could not be seen of the attempt: a detector that was blind explains a silence."""
    found = [row for row in each.rows if row.kind is RowKind.BLIND]
    return [words(f"{local(r.at, now)}: {r.body.get('what')}: {r.body.get('why')}", "yellow", 300) for r in found[-3:]]


def _tell_case(console: Console, case: Case, now: datetime) -> None:
    incident, listed = case.incident, case.listed
    ended = listed.state.replace("_", " ")
    head = [
        (f"Incident {incident.id}", "bold"),
        (ended, state_style(listed.state)),
        (listed.took(now), "dim"),
        (f"{incident.kind} detected {local(incident.detected_at, now)}, {ago(incident.detected_at, now)}", ""),
    ]
    console.print(Text("  ") + joined(head))
    told = [*parts.cause(incident), *parts.plan(incident, case.rows), *parts.said(case.rows, now)]
    told += [*parts.leaves(case.rows, now), *parts.actions(case.rows, now), *parts.verified(case.rows, now)]
    told.append(Part("So", (words(conclusion(case), state_style(listed.state)),)))
    console.print(grid(told, indent=4))


def conclusion(case: Case) -> str:
    """The end of the decision path in one sentence."""
    incident = case.incident
    if incident.open:
        return f"It is {case.listed.standing.phase}: relight show {incident.id}"
    outcome = str(incident.outcome).replace("_", " ")
    reason = incident.outcome_reason or outcome
    touched = any(deed.intent for deed in deeds(case.rows))
    if touched or incident.outcome not in _UNTOUCHED:
        return f"{outcome}: {reason}"
    if incident.outcome is Outcome.OBSERVED and incident.mode is Mode.MONITOR:
        return f"Nothing was touched, the mode is monitor: {reason}"
    return f"Nothing was touched, {outcome}: {reason}"
