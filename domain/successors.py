"""Which jobs go on with another's work: docs/decisions/0008-successors.md."""

from collections.abc import Collection, Iterable

from relight.domain.attempts import Attempt
from relight.domain.dependants import names_of, need_success, terms
from relight.domain.slurm import JobRecord, JobState

_GOES_ON_AFTER_FAILURE = frozenset({"after", "afterany", "afterburstbuffer", "afternotok"})


def successors(attempt: Attempt, jobs: Iterable[JobRecord], waited: Collection[int] = ()) -> tuple[JobRecord, ...]:
    """Jobs that will go on with this one's work, so that a requeue would put two writers on one checkpoint.

    Of the same owner, waiting or running, submitted as another job, and: depending on it in a way that a
    failure satisfies; or of its name under `singleton`; or of its name and working directory. A job that
    waits for its success is none, whatever its name: it cannot start after a failure, and needs the retry
    (see `dependants`). Nor is one that waits for such a job.

    Args:
        attempt: whose work it is.
        jobs: all jobs.
        waited: ids of jobs that are known to have waited for it (see `AttemptState.successors`).
    """
    jobs = tuple(jobs)
    need_it = need_success(attempt.record, jobs)
    return tuple(job for job in jobs if job.job_id not in need_it and _goes_on(attempt.record, job, waited))


def _goes_on(old: JobRecord, job: JobRecord, waited: Collection[int]) -> bool:
    if job.user != old.user or job.job_id == old.job_id or job.state not in {JobState.PENDING, JobState.RUNNING}:
        return False
    if job.array_job_id and job.array_job_id == old.array_job_id:
        return False
    if job.het_job_id and job.het_job_id == old.het_job_id:
        return False
    # A task of an array that waited as one record has an id of its own once it runs.
    if job.job_id in waited or job.array_job_id in waited or _depends_on(old, job.dependency):
        return True
    if job.name != old.name:
        return False
    return "singleton" in job.dependency or (bool(job.work_dir) and job.work_dir == old.work_dir)


def _depends_on(old: JobRecord, dependency: str) -> bool:
    return any(each.kind in _GOES_ON_AFTER_FAILURE and each.job in names_of(old) for each in terms(dependency))
