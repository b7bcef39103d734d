"""Finding what a person names: an incident by (the beginning of) its id, a job by its Slurm id."""

import difflib
import re
from typing import NamedTuple

from relight.clients.ledger import Ledger
from relight.config.settings import Settings
from relight.console.errors import NotFoundStop
from relight.domain.attempts import AttemptState
from relight.domain.base import few
from relight.domain.incidents import Incident
from relight.domain.ledger import RowKind
from relight.domain.slurm import JobRecord

_STEP = r"(?:\.(?:\d{1,9}|batch|extern|interactive))?"
"""A step's id, as srun and sacct print it, means its job."""
_JOB = re.compile(rf"(?P<id>[1-9]\d{{0,17}})(?:_(?P<task>\d{{1,9}})|\+(?P<offset>\d{{1,9}}))?{_STEP}")
_INCIDENT = re.compile(r"i[0-9a-f]{0,10}")
_PAGE = 200
_RECENT = 1000


class JobName(NamedTuple):
    """A job as Slurm's commands print it: `123`, `123_4` (array task), `123+1` (component)."""

    number: int
    task: int | None = None
    offset: int | None = None

    def __str__(self) -> str:
        """As it was given."""
        if self.task is not None:
            return f"{self.number}_{self.task}"
        return f"{self.number}+{self.offset}" if self.offset is not None else str(self.number)

    @property
    def plain(self) -> bool:
        """True for a bare number."""
        return self.task is None and self.offset is None

    def fits(self, record: JobRecord) -> bool:
        """True when the record is of this very job."""
        if self.task is not None:
            return (record.array_job_id, record.array_task_id) == (self.number, self.task)
        if self.offset is not None:
            return (record.het_job_id, record.het_offset) == (self.number, self.offset)
        return record.job_id == self.number


def parse_job(text: str) -> JobName | None:
    """The job that the text names; None when it names none."""
    found = _JOB.fullmatch(text.strip())
    if not found:
        return None
    task, offset = found["task"], found["offset"]
    return JobName(int(found["id"]), int(task) if task else None, int(offset) if offset else None)


async def attempts_of(ledger: Ledger, cluster: str, job: JobName) -> tuple[AttemptState, ...]:
    """The attempts of that job, newest first; empty when none was ever seen running."""
    states = await ledger.attempts_of_job(cluster, job.number)
    if job.plain:
        return states
    found = next((s for s in states if job.fits(s.attempt.record)), None)
    if found is None:
        running = await ledger.running_attempts(cluster)
        found = next((s for s in running if job.fits(s.attempt.record)), None)
    number = found.attempt.key.job_id if found else await _number_of(ledger, cluster, job)
    return await ledger.attempts_of_job(cluster, number) if number else ()


async def _number_of(ledger: Ledger, cluster: str, job: JobName) -> int | None:
    """The record's own id of a task or component that ended: the ledger is read for it, a page at a time."""
    after, number = 0, None
    while rows := await ledger.rows(kind=RowKind.ATTEMPT_SEEN, after=after, limit=_PAGE):
        for row in rows:
            record = row.body.get("record", {})
            task = (record.get("array_job_id"), record.get("array_task_id")) == (job.number, job.task)
            part = (record.get("het_job_id"), record.get("het_offset")) == (job.number, job.offset)
            if row.cluster == cluster and (task if job.task is not None else part):
                number = int(record["job_id"])
        after = rows[-1].seq
    return number


async def incidents_of(
    ledger: Ledger, cluster: str, job: JobName, states: tuple[AttemptState, ...], limit: int = _RECENT
) -> tuple[Incident, ...]:
    """The job's incidents, newest first, of every lineage its attempts belong to."""
    numbers = {state.attempt.key.job_id for state in states} or ({job.number} if job.plain else set())
    found: dict[str, Incident] = {}
    for lineage in dict.fromkeys(state.attempt.lineage for state in states):
        found |= {i.id: i for i in await ledger.incidents(cluster=cluster, lineage=lineage, limit=limit)}
    if not found:  # an attempt that was never seen running has no lineage, but may have an incident
        recent = await ledger.incidents(cluster=cluster, limit=_RECENT)
        found = {i.id: i for i in recent if i.attempt.job_id in numbers}
    return tuple(sorted(found.values(), key=lambda i: i.opened_at, reverse=True)[:limit])


async def find_incident(ledger: Ledger, settings: Settings, text: str) -> Incident:
    """The incident of that id or beginning of an id, or the newest of the job of that id.

    Raises:
        NotFoundStop: when there is none, or more than one; it says which come near.
    """
    job = parse_job(text)
    if job is not None:
        found = await incidents_of(ledger, settings.cluster, job, await attempts_of(ledger, settings.cluster, job))
        if not found:
            raise NotFoundStop(f"no incident of job {job}\nWhat Relight knows of the job: relight why {job}")
        return found[0]
    wanted = text.strip().lower()
    if not _INCIDENT.fullmatch(wanted):
        raise NotFoundStop(
            f"{text!r} is no incident: ids look like i3fa9c1d2e4 (the beginning will do); a job id will do too\n"
            "All of them: relight incidents --all",
        )
    incident = await ledger.incident(wanted)
    if incident is not None:
        return incident
    known = [i.id for i in await ledger.incidents(limit=_RECENT)]
    raise NotFoundStop(_none(wanted, known))


def _none(wanted: str, known: list[str]) -> str:
    several = [name for name in known if name.startswith(wanted)]
    if len(several) > 1:
        listed = few(several, 5)  # they fit a line
        return f"{wanted} is the beginning of {len(several)} incidents: {listed}\nGive more of the id."
    near = difflib.get_close_matches(wanted, known, n=1, cutoff=0.6)
    hint = f"Did you mean {near[0]}?" if near else "All of them: relight incidents --all"
    return f"no incident {wanted}\n{hint}"
