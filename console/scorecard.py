"""What Relight decided, held against what happened: read for `relight scorecard` and the web console.

Read a page at a time: incidents, the rows of the kinds that tell of nodes, and the attempts of that time. Of each only
what is judged by is kept.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta

from relight.clients import ledger_reports as reports
from relight.clients.ledger_sql import SqlLedger
from relight.config.settings import Settings
from relight.console.accounting import Accounting, Executions
from relight.domain import scorecard_reading as made
from relight.domain.attempts import AttemptKey
from relight.domain.incidents import Outcome
from relight.domain.ledger import RowKind
from relight.domain.scorecard import Decided, NodeSign, Sign, Try, Work, judge
from relight.domain.scorecard_card import Card, Missed
from relight.domain.scorecard_card import card as made_up
from relight.domain.scorecard_reading import Attempted

USUALLY = timedelta(days=30)
ABOUT_NODES = (RowKind.SET_ASIDE, RowKind.REVERSED, RowKind.CARE, RowKind.FAULT)
MOST_SIGNS = 200
"""Of one node's history that are kept: the first ones after a decision judge it."""


@dataclass
class _Read:
    """What is kept of what was read."""

    cases: list[Decided] = field(default_factory=list)
    causes: dict[AttemptKey, str] = field(default_factory=dict)
    confirmed: set[AttemptKey] = field(default_factory=set)
    signs: dict[str, list[NodeSign]] = field(default_factory=dict)
    attempts: dict[AttemptKey, Attempted] = field(default_factory=dict)
    """Of the jobs that a decision was about."""
    of_job: dict[str, list[Attempted]] = field(default_factory=dict)
    work: dict[str, list[Work]] = field(default_factory=dict)
    """On the nodes that a decision names."""
    known: set[AttemptKey] = field(default_factory=set)
    missed: list[Missed] = field(default_factory=list)

    def add(self, sign: NodeSign) -> None:
        """Keep a sign of a node."""
        mine = self.signs.setdefault(sign.node, [])
        if len(mine) < MOST_SIGNS:
            mine.append(sign)


async def card(
    ledger: SqlLedger, settings: Settings, since: datetime, now: datetime, accounting: Accounting | None = None
) -> Card:
    """The score card.

    Args:
        ledger: where from.
        settings: whose cluster and policy count.
        since: decisions made from then on.
        now: until when.
        accounting: Slurm's, which shows executions that Relight never saw; None: it cannot be asked.
    """
    read = _Read()
    lineages = await _incidents(ledger, settings.cluster, since, read)
    named = {node for case in read.cases for _, nodes in case.acts for node in nodes}
    for kind in ABOUT_NODES:
        async for row in reports.rows_of(ledger, settings.cluster, kind, since):
            if kind is not RowKind.FAULT or row.node in named:
                for sign in made.signs_of(row):
                    read.add(sign)
    more = await _attempts(ledger, settings.cluster, since, now, lineages, named, read)
    slurm = Executions(accounting)
    jobs = {str(number): (number,) for number in sorted({key.job_id for key in read.known})}
    for rows in (await slurm.of_jobs(jobs)).values():
        read.missed += made.never_seen(rows, settings.cluster, frozenset(read.known), since)
    notes = [*slurm.notes(len(jobs)), "jobs that began and ended while nobody watched are in no ledger"]
    if more:
        notes.append(f"more than {reports.MOST_ATTEMPTS} attempts: the newest are left out (--since)")
    return _judged(settings, read, since, now, notes)


async def _incidents(ledger: SqlLedger, cluster: str, since: datetime, read: _Read) -> set[str]:
    """Take the incidents; returns the jobs that a decision was about."""
    lineages = set()
    async for incident in reports.incidents_since(ledger, cluster, since):
        if incident.outcome is Outcome.NOT_CONFIRMED:
            continue
        read.confirmed.add(incident.attempt)
        if incident.diagnosis:
            read.causes[incident.attempt] = incident.diagnosis.verdict.signature
        for sign in made.implicated(incident):
            read.add(sign)
        if case := made.decided(incident):
            read.cases.append(case)
            lineages.add(incident.lineage)
    return lineages


async def _attempts(  # noqa: PLR0917 - what is looked for, and where it goes
    ledger: SqlLedger, cluster: str, since: datetime, now: datetime, lineages: set[str], named: set[str], read: _Read
) -> bool:
    """Take the attempts; returns whether there are more."""
    ends, more = await reports.ends_since(ledger, cluster, since)
    keys = tuple(dict.fromkeys((*ends, *await reports.running_keys(ledger, cluster))))
    confirmed = frozenset(read.confirmed)
    async for seen in reports.seen(ledger, keys, ends):
        each = made.attempted(seen, now)
        read.known.add(each.attempt)
        if missed := made.without_incident(each, seen.state, confirmed, now):
            read.missed.append(missed)
        for node in named.intersection(each.nodes):
            work = Work(node, each.attempt, each.started_at, each.ended_at, well=not each.badly)
            read.work.setdefault(node, []).append(work)
        if each.lineage in lineages:
            read.attempts[each.attempt] = each
            read.of_job.setdefault(each.lineage, []).append(each)
    return more


def _judged(settings: Settings, read: _Read, since: datetime, now: datetime, notes: list[str]) -> Card:
    cases = [made.with_aftermath(case, read.attempts.get(case.attempt)) for case in read.cases]
    judged = [each for case in cases for each in judge(case, *_aftermath(case, read), now)]
    set_aside = [sign for signs in read.signs.values() for sign in signs if sign.sign is Sign.SET_ASIDE]
    missed = [
        *read.missed,
        *made.left_wrongly(judged, {case.incident: case.attempt for case in cases}),
        *made.not_taken_out(cases, set_aside),
    ]
    return made_up(settings.cluster, judged, missed, settings.policy, since=since, until=now, notes=notes)


def _aftermath(case: Decided, read: _Read) -> tuple[tuple[Try, ...], list[NodeSign], list[Work]]:
    own = read.attempts.get(case.attempt)
    of_job = read.of_job.get(own.lineage, []) if own else []
    nodes = {node for _, named in case.acts for node in named}
    signs = [sign for node in nodes for sign in read.signs.get(node, ())]
    work = [each for node in nodes for each in read.work.get(node, ())]
    return made.tries_after(case, of_job, read.causes), sorted(signs, key=lambda sign: sign.at), work


def as_json(told: Card) -> Mapping[str, object]:
    """The card for other programs (docs/goodput.md); keys are only ever added."""
    return told.model_dump(mode="json")
