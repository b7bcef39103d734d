r"""The path of a job's output file: sbatch's filename pattern, resolved as slurmstepd resolves it.

Seen on 22.05.8 and 24.11.5: a backslash anywhere switches all of it off and is itself removed.
"""

import posixpath
from typing import NamedTuple

from relight.domain.filename_pattern import NO_TASK, filled, placeholders

_STEP_SIDE = frozenset("Nnst")
"""What the commands of 23.02 and newer leave alone (with `J`): it is known on the node only."""


class OutputOf(NamedTuple):
    """Whose output file it is."""

    job_id: int
    array_job_id: int | None
    array_task_id: int | None
    name: str
    user: str
    batch_host: str
    work_dir: str


def default_pattern(job: OutputOf) -> str:
    """The pattern of a batch job that named none."""
    return "slurm-%A_%a.out" if job.array_job_id else "slurm-%j.out"


def resolve_output(pattern: str, job: OutputOf, *, expanded: bool) -> str:
    r"""The file's absolute path.

    Args:
        pattern: what Slurm shows.
        job: whose it is.
        expanded: whether Slurm has resolved all but the node's part already (23.02 and newer). What it made of a
            pattern with a backslash is wrong (`R_\14.o` for the file `R_%j.o`: seen on 24.11): the answer is empty.

    A pattern with `%N` needs the batch host and is empty before there is one. (The node's *host name* is meant, which
    differs from its node name where several slurmd share a machine.)
    """
    if "\\" in pattern:
        return "" if expanded else posixpath.join(job.work_dir, pattern.replace("\\", ""))
    if expanded and job.array_task_id is not None:
        # Slurm has filled in "no task" for a record that still waits for its one task (seen on 26.05).
        pattern = pattern.replace(str(NO_TASK), str(job.array_task_id))
    if "N" in placeholders(pattern) and not job.batch_host:
        return ""
    values = _values(job)
    if expanded:
        values = {key: text for key, text in values.items() if key in _STEP_SIDE | {"J"}}
    return posixpath.join(job.work_dir, filled(pattern, values))


def _values(job: OutputOf) -> dict[str, str]:
    task = NO_TASK if job.array_task_id is None else job.array_task_id
    return {
        "A": str(job.array_job_id or job.job_id),
        "a": str(task),
        "b": str(task % 10),
        "J": str(job.job_id),
        "j": str(job.job_id),
        "N": job.batch_host,
        "n": "0",
        "s": "batch",
        "t": "0",
        "u": job.user,
        "x": job.name,
        "%": "%",
    }
