"""What the ledger says of all attempts of one job: which they are, how far each saved, which exclusions stand."""

from collections.abc import Sequence

from relight.clients.ledger import Ledger
from relight.domain.attempts import Attempt, Progress, progress_cursor
from relight.domain.budget import Mark, mark_of
from relight.domain.exclusions import Look, Marked, ours
from relight.domain.ledger import RowKind
from relight.domain.resubmission import Link, link_cursor
from relight.domain.slurm import JobRecord

MOST_ATTEMPTS = 1000
"""Attempts of one Slurm job id that are looked through."""
MOST_MARKS = 60
"""Newest attempts whose saves are looked at: more than any number of restarts that a policy allows."""
MOST_INCIDENTS = 100
"""Newest incidents of a job that its budget is counted from."""


async def attempts_of(ledger: Ledger, attempt: Attempt) -> tuple[Attempt, ...]:
    """The attempts of the same job, newest first; those under the ids too that it had before a fresh job took over."""
    key, found = attempt.key, list[Attempt]()
    known = await ledger.cursor(link_cursor(key.cluster, key.job_id))
    before = Link.model_validate(known).before if known else ()
    for job_id in (key.job_id, *before):
        states = await ledger.attempts_of_job(key.cluster, job_id, limit=MOST_ATTEMPTS)
        found += [state.attempt for state in states if state.attempt.lineage == attempt.lineage]
    return tuple(found)


async def linked(ledger: Ledger, cluster: str, record: JobRecord) -> str:
    """The lineage that a job goes on with which Relight has submitted in place of another; empty: it is none such."""
    known = await ledger.cursor(link_cursor(cluster, record.job_id))
    link = Link.model_validate(known) if known else None
    return link.lineage if link and link.holds(record) else ""


async def marks(ledger: Ledger, attempts: Sequence[Attempt]) -> tuple[Mark, ...]:
    """How far each attempt is known to have saved; of the newest `MOST_MARKS`."""
    found = []
    for attempt in attempts[:MOST_MARKS]:
        known = await ledger.cursor(progress_cursor(attempt.key))
        found.append(mark_of(attempt.key, Progress.model_validate(known) if known else Progress()))
    return tuple(found)


async def own_exclusions(ledger: Ledger, attempt: Attempt) -> dict[str, Marked]:
    """Nodes that Relight itself put into this job's list and has not taken back; never the user's own."""
    of_job = await attempts_of(ledger, attempt) or (attempt,)
    looks = [Look(each.seen_at, each.key.job_id, each.record.excluded_nodes) for each in of_job]
    meant = await ledger.rows(lineage=attempt.lineage, kind=RowKind.INTENT)
    done = await ledger.rows(lineage=attempt.lineage, kind=RowKind.EFFECT)
    return ours((*meant, *done), attempt.key.cluster, looks)
