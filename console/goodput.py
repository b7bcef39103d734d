"""Where the time of a job, a partition, an account or the cluster went: read for `relight goodput` and the web console.

Times are Slurm's own, from accounting where it can be asked, else as the records showed them. What attempts did in
their time is from their progress in the ledger.
"""

import difflib
from collections.abc import Iterable, Sequence
from datetime import datetime, timedelta
from typing import NamedTuple

from relight.clients import ledger_reports as reports
from relight.clients.ledger_sql import SqlLedger
from relight.config.settings import Settings
from relight.console.accounting import Accounting, Executions
from relight.console.errors import NotFoundStop
from relight.console.lookup import JobName, attempts_of
from relight.domain.attempts import Attempt, AttemptKey
from relight.domain.base import clip
from relight.domain.goodput import Run
from relight.domain.goodput_costs import decisive
from relight.domain.goodput_report import JobAccount, JobFacts, Report, job_account, report
from relight.domain.goodput_runs import Seen, exact, run_of, unseen
from relight.domain.incidents import Incident
from relight.domain.slurm import AccountingRow

USUALLY = timedelta(days=7)
EARLIER = timedelta(days=1)
"""So long before the time in question incidents are looked for: an attempt may end a while after its incident."""


class Wanted(NamedTuple):
    """What is asked for; nothing named: the whole cluster."""

    job: JobName | None = None
    partition: str = ""
    account: str = ""
    since: timedelta | None = None
    """None: of a job all of it, else `USUALLY`."""


class _Part(NamedTuple):
    """An attempt without what is large about it."""

    attempt: Attempt
    run: Run


async def account(
    ledger: SqlLedger, settings: Settings, wanted: Wanted, now: datetime, accounting: Accounting | None = None
) -> Report:
    """Read it.

    Args:
        ledger: where from.
        settings: whose cluster and prices count.
        wanted: of what.
        now: until when.
        accounting: Slurm's; None: it cannot be asked, and the report says so.

    Raises:
        NotFoundStop: there is no such job, partition or account in that time; it says which come near.
    """
    if wanted.job is not None:
        return await _of_job(ledger, settings, wanted, now, accounting)
    since = now - (wanted.since or USUALLY)
    ends, more = await reports.ends_since(ledger, settings.cluster, since)
    keys = tuple(dict.fromkeys((*ends, *await reports.running_keys(ledger, settings.cluster))))
    incidents = await _incidents(ledger, settings.cluster, since - EARLIER)
    slurm = Executions(accounting)
    jobs: dict[str, list[_Part]] = {}
    named: set[str] = set()
    async for seen in reports.seen(ledger, keys, ends):
        record = seen.state.attempt.record
        named.add(record.partition if wanted.partition else record.account)
        if _fits(wanted, seen):
            run = run_of(seen, incidents.get(seen.state.attempt.key), now)
            jobs.setdefault(seen.state.attempt.lineage, []).append(_Part(_small(seen.state.attempt), run))
    if not jobs and (wanted.partition or wanted.account):
        raise NotFoundStop(_none(wanted, named))
    executions = await slurm.of_jobs({lineage: _ids(parts) for lineage, parts in jobs.items()})
    notes = [*slurm.notes(len(jobs)), *_left_out(more)]
    made = [_job(settings, parts, incidents, since, executions.get(lineage, ())) for lineage, parts in jobs.items()]
    found = [job for job in made if job is not None]
    currency = settings.prices.currency
    scope = _scope(settings, wanted)
    return report(scope, settings.cluster, found, since=since, until=now, currency=currency, notes=notes)


async def _of_job(
    ledger: SqlLedger, settings: Settings, wanted: Wanted, now: datetime, accounting: Accounting | None
) -> Report:
    job = wanted.job
    states = await attempts_of(ledger, settings.cluster, job) if job else ()
    if job is None or not states:
        raise NotFoundStop(
            f"Relight never saw job {job} running on cluster {settings.cluster}\nMore: relight why {job}"
        )
    lineage = states[0].attempt.lineage
    incidents = decisive(await ledger.incidents(cluster=settings.cluster, lineage=lineage, limit=reports.PAGE))
    keys, ends = await reports.keys_of_lineage(ledger, lineage), await reports.ends_of(ledger, lineage)
    parts = [
        _Part(_small(seen.state.attempt), run_of(seen, incidents.get(seen.state.attempt.key), now))
        async for seen in reports.seen(ledger, keys, ends)
    ]
    since = now - wanted.since if wanted.since else None
    slurm = Executions(accounting)
    executions = await slurm.of_jobs({lineage: _ids(parts)})
    made = _job(settings, parts, incidents, since, executions.get(lineage, ()))
    if made is None:
        raise NotFoundStop(f"job {job} did not run in that time\nAll of it: relight goodput {job}")
    others = {state.attempt.lineage for state in states} - {lineage}
    notes = slurm.notes(1)
    if others:
        notes.append(f"Slurm has given the id {job} to other jobs before: this is the newest")
    currency = settings.prices.currency
    return report(f"job {job}", settings.cluster, [made], since=since, until=now, currency=currency, notes=notes)


def _ids(parts: Sequence[_Part]) -> tuple[int, ...]:
    return tuple(dict.fromkeys(part.run.attempt.job_id for part in parts))


def _small(attempt: Attempt) -> Attempt:
    return attempt.model_copy(update={"script": None})


async def _incidents(ledger: SqlLedger, cluster: str, since: datetime) -> dict[AttemptKey, Incident]:
    """The incident about each attempt's end, without its evidence."""
    return decisive([_without_evidence(each) async for each in reports.incidents_since(ledger, cluster, since)])


def _without_evidence(incident: Incident) -> Incident:
    if incident.diagnosis is None:
        return incident
    verdict = incident.diagnosis.verdict.model_copy(update={"evidence": ()})
    bare = type(incident.diagnosis)(hypotheses=(verdict,))
    return incident.model_copy(update={"diagnosis": bare, "plan": None})


def _fits(wanted: Wanted, seen: Seen) -> bool:
    record = seen.state.attempt.record
    return (not wanted.partition or record.partition == wanted.partition) and (
        not wanted.account or record.account == wanted.account
    )


def _none(wanted: Wanted, named: Iterable[str]) -> str:
    kind, name = ("partition", wanted.partition) if wanted.partition else ("account", wanted.account)
    known = sorted(filter(None, named))
    near = difflib.get_close_matches(name, known, n=1, cutoff=0.6)
    hint = f"did you mean {near[0]}?" if near else f"there were: {', '.join(known[:8]) or 'none'}"
    return f"no attempt of {kind} {clip(name, 64)} ended in that time or runs; {hint}"


def _scope(settings: Settings, wanted: Wanted) -> str:
    if wanted.partition and wanted.account:
        return f"partition {wanted.partition}, account {wanted.account}"
    if wanted.partition or wanted.account:
        return f"partition {wanted.partition}" if wanted.partition else f"account {wanted.account}"
    return f"cluster {settings.cluster}"


def _left_out(more: bool) -> list[str]:
    return [f"more than {reports.MOST_ATTEMPTS} attempts: the newest are left out (--since)"] if more else []


def _job(
    settings: Settings,
    parts: Sequence[_Part],
    incidents: dict[AttemptKey, Incident],
    since: datetime | None,
    executions: Sequence[AccountingRow],
) -> JobAccount | None:
    newest = max((part.attempt for part in parts), key=lambda attempt: attempt.key.submit_time)
    record = newest.record
    facts = JobFacts(
        lineage=newest.lineage,
        job=record.display_id,
        name=record.name,
        user=record.user,
        account=record.account,
        partition=record.partition,
    )
    first = min((part.attempt for part in parts), key=lambda attempt: attempt.key.submit_time)
    runs = [exact(part.run, executions) for part in parts]
    runs += unseen(first, executions, [part.attempt.key for part in parts])
    return job_account(facts, runs, incidents, settings.prices.of(record.partition), since)
