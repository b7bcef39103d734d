"""Jobs that wait for another one's success, and how they can wait for its next attempt. Pure.

Seen on Slurm 22.05.8: once a job has failed, what waits for its success is marked `afterok:7(failed)` for ever:
the job's requeue does not undo that, nor does its success afterwards. Written anew (`Dependency=afterok:7`), it is
judged anew, also for a child that is an array or a heterogeneous job. Two things cannot be mended so: a child that
Slurm has cancelled for it (`kill_invalid_depend`, `--kill-on-invalid-dep=yes`), and one that waits for all tasks of an
array (`afterok:5_*`), because Slurm keeps the worst exit code that the array ever had. `aftercorr:5_*` goes by task,
and can. A job that Slurm itself requeues, after a lost node say, has not failed: its children wait on.
"""

import re
from collections.abc import Iterable, Mapping
from typing import NamedTuple

from relight.domain.attempts import Attempt
from relight.domain.slurm import JobRecord, JobState

ON_SUCCESS = frozenset({"afterok", "aftercorr"})
_NEVER = "DependencyNeverSatisfied"
_KIND = re.compile(r"([a-z]+)(?:\((\w+)\))?")
_JOB = re.compile(r"(\d+(?:_(?:\d+|\*))?)(\+\d+)?(?:\((\w+)\))?")


class Term(NamedTuple):
    """One condition of a dependency."""

    kind: str
    """As sbatch(1) names it: `afterok`, `singleton`, ..."""
    job: str
    """`7`, `6_2` for an array task, `6_*` for a whole array; empty for `singleton`."""
    delay: str
    """`+10`: minutes after its start, for `after` alone."""
    failed: bool

    def __str__(self) -> str:
        """As it is submitted."""
        return f"{self.kind}:{self.job}{self.delay}" if self.job else self.kind


class Dependant(NamedTuple):
    """A job whose dependency can be written anew."""

    job: JobRecord
    dependency: str
    """The same conditions, none of them judged."""


class Dependants(NamedTuple):
    """What has become of the jobs that waited for an attempt's success."""

    waiting: tuple[Dependant, ...] = ()
    beyond_help: tuple[str, ...] = ()
    """Why others will not start, one sentence each."""


def terms(dependency: str) -> tuple[Term, ...]:
    """The conditions of a dependency as Slurm shows it, one for each job, in order; what cannot be read is none."""
    return tuple(each for each in _read(dependency) if each is not None)


def _read(dependency: str) -> list[Term | None]:
    found: list[Term | None] = []
    for part in re.split("[,?]", dependency):
        word, *jobs = part.strip().split(":")
        kind = _KIND.fullmatch(word)
        if kind is None or not jobs:
            found.append(kind and Term(kind[1], "", "", failed=kind[2] == "failed"))
            continue
        named = map(_JOB.fullmatch, jobs)
        found += [each and Term(kind[1], each[1], each[2] or "", failed=each[3] == "failed") for each in named]
    return found


def names_of(job: JobRecord) -> frozenset[str]:
    """How a dependency may name the job: by its own id, or for an array task by the array's."""
    names = {str(job.job_id), job.display_id}
    if job.array_job_id:
        names |= {f"{job.array_job_id}_*", str(job.array_job_id)}
    return frozenset(names)


def need_success(parent: JobRecord, jobs: Iterable[JobRecord]) -> frozenset[int]:
    """Ids of the pending jobs that cannot start before the parent has succeeded: its children, theirs, and so on."""
    waiting = [job for job in jobs if job.state is JobState.PENDING and job.dependency and "?" not in job.dependency]
    wanted: dict[str, frozenset[str] | None] = dict.fromkeys(names_of(parent), ON_SUCCESS)
    found = set[int]()
    while new := [job for job in waiting if job.job_id not in found and _needs(job, wanted)]:
        found |= {job.job_id for job in new}
        wanted |= {name: None for job in new for name in names_of(job)}
    return frozenset(found)


def _needs(job: JobRecord, wanted: Mapping[str, frozenset[str] | None]) -> bool:
    """Whether one of the job's conditions is on one of those, and of these kinds; None: of any kind."""
    named = ((each, wanted[each.job]) for each in terms(job.dependency) if each.job in wanted)
    return any(kinds is None or each.kind in kinds for each, kinds in named)


def dependants(attempt: Attempt, jobs: Iterable[JobRecord], fresh: str = "") -> Dependants:
    """The jobs that cannot start because the attempt failed.

    Only its owner's are touched, and only those in whose way nothing else stands.

    Args:
        attempt: what failed.
        jobs: all jobs.
        fresh: the job for whose success they wait from now on; empty: for that of the same job.
    """
    waiting, beyond = [], []
    for job in jobs:
        conditions = terms(job.dependency)
        failed = tuple(each for each in conditions if each.failed)
        ours = [each for each in failed if each.kind in ON_SUCCESS and each.job in names_of(attempt.record)]
        any_of_them = "?" in job.dependency
        if not ours or (any_of_them and len(failed) < len(conditions)):
            continue
        if job.state is JobState.CANCELLED and job.reason == _NEVER:
            beyond.append(f"job {job.display_id} was cancelled by Slurm: its dependency could not be satisfied")
        elif job.state is JobState.PENDING:
            if why := _why_not(attempt.record, job, conditions, ours):
                beyond.append(f"job {job.display_id} will not start: {why}")
            else:
                anew = [each._replace(job=fresh) if fresh and each in ours else each for each in conditions]
                joined = ("?" if any_of_them else ",").join(str(each) for each in anew)
                waiting.append(Dependant(job, joined))
    return Dependants(tuple(waiting), tuple(beyond))


def _why_not(parent: JobRecord, job: JobRecord, conditions: tuple[Term, ...], ours: list[Term]) -> str:
    if job.user != parent.user:
        return "it is another user's"
    if None in _read(job.dependency):
        return f"its dependency cannot be read: {job.dependency[:100]}"
    others = [str(each) for each in conditions if each.failed and each not in ours]
    if others:
        return f"it also waits for {', '.join(others[:3])}, which failed"
    if any(each.kind == "afterok" and each.job.endswith("_*") for each in ours):
        task = parent.display_id
        return (
            f"Slurm keeps the worst exit code of array {parent.array_job_id}; once the other tasks are done,"
            f" `scontrol update JobId={job.job_id} Dependency=afterok:{task}` lets it wait for the task alone"
        )
    return ""
