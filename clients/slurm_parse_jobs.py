"""Jobs from `squeue --json`, in the shapes of 22.05 (v0.0.38) to 26.05 (v0.0.45)."""

from datetime import datetime, timedelta
from functools import partial
from typing import Any, NamedTuple

from relight.clients.slurm_parse import (
    GarbledError,
    epoch,
    expand_hosts,
    json_list,
    json_version,
    number,
    single_task,
    word,
)
from relight.clients.slurm_parse_paths import OutputOf, default_pattern, resolve_output
from relight.domain.slurm import JobRecord, JobState, ParsedState, parse_job_state

JOB = frozenset({"job_id", "job_state"})
"""What only a job has among the objects of such a document."""
RAW_PATHS = ("22.", "21.", "20.")
"""Releases whose JSON has output paths as the user wrote them."""
SIGNAL_MASK = 0x7F
OPEN_END = frozenset({JobState.PENDING, JobState.RUNNING, JobState.SUSPENDED})
"""States in which Slurm's EndTime is a forecast."""
NO_LIMIT = timedelta(days=365)
"""What slurmctld reckons with for a job without a time limit."""


def parse_jobs(text: str) -> tuple[JobRecord, ...]:
    """All jobs of a `squeue --json` document.

    Raises:
        GarbledError: when any record lacks what makes it one: a reader must not mistake half a queue for the queue.
        ReportedError: when the document reports errors.
    """
    expanded = not json_version(text).startswith(RAW_PATHS)
    return json_list(text, "jobs", JOB, partial(_job, expanded))


def _job(expanded: bool, entry: dict[str, Any]) -> JobRecord:
    # 26.05 prints the path twice: as the user wrote it, and expanded under another key.
    expanded = expanded and "stdout_expanded" not in entry
    job_id, submitted = number(entry.get("job_id")), epoch(entry.get("submit_time"))
    if not job_id or submitted is None:
        raise GarbledError(f"a job without id or submit time: {entry.get('job_id')!r}")
    state = _state(entry["job_state"])
    array_job_id = number(entry.get("array_job_id")) or None
    task_id = _task_id(entry) if array_job_id else None
    het_job_id = number(entry.get("het_job_id")) or None
    exit_code = read_exit_code(entry.get("exit_code"))
    minutes = number(entry.get("time_limit"))
    user = word(entry.get("user_name")) or str(number(entry.get("user_id")) or "")
    owner = OutputOf(
        job_id=job_id,
        array_job_id=array_job_id,
        array_task_id=task_id,
        name=_text(entry, "name"),
        user=user,
        batch_host=word(entry.get("batch_host")),
        work_dir=_text(entry, "current_working_directory"),
    )
    outputs = _outputs(entry, owner, expanded)
    return JobRecord(
        job_id=job_id,
        array_job_id=array_job_id,
        array_task_id=task_id,
        het_job_id=het_job_id,
        het_offset=number(entry.get("het_job_offset")) if het_job_id else None,
        name=owner.name,
        user=user,
        account=word(entry.get("account")),
        partition=word(entry.get("partition")),
        state=state.state,
        flags=state.flags,
        reason=word(entry.get("state_reason")),
        reason_text=word(entry.get("state_description")),
        exit_code=exit_code.code,
        exit_signal=exit_code.signal,
        restarts=number(entry.get("restart_cnt")) or 0,
        submit_time=submitted,
        eligible_time=epoch(entry.get("eligible_time")),
        start_time=epoch(entry.get("start_time")),
        end_time=_end_time(entry, state),
        nodes=expand_hosts(entry.get("nodes")),
        batch_host=owner.batch_host,
        node_count=number(entry.get("node_count")) or 0,
        task_count=number(entry.get("tasks")) or 0,
        gres_per_node=_gres(word(entry.get("tres_per_node"))),
        # A job without a batch script (salloc, srun) cannot be requeued whatever its flag says.
        requeue=bool(entry.get("requeue")) and _has_script(entry),
        excluded_nodes=expand_hosts(entry.get("excluded_nodes")),
        required_nodes=expand_hosts(entry.get("required_nodes")),
        dependency=word(entry.get("dependency")),
        comment=_text(entry, "comment"),
        work_dir=owner.work_dir,
        stdout=outputs[0],
        stderr=outputs[1],
        command=word(entry.get("command")),
        time_limit=timedelta(minutes=minutes) if minutes is not None else None,
        qos=word(entry.get("qos")),
        features=word(entry.get("features")),
        reservation=word(entry.get("resv_name")),
        tres=word(entry.get("tres_req_str")),
    )


def _task_id(entry: dict[str, Any]) -> int | None:
    """None for a record of several pending tasks. One that stands for a single one shows it as text only (seen)."""
    task_id = number(entry.get("array_task_id"))
    return single_task(word(entry.get("array_task_string"))) if task_id is None else task_id


def _text(entry: dict[str, Any], key: str) -> str:
    """What a user wrote, untouched: a job may well be named `None`."""
    value = entry.get(key)
    return value if isinstance(value, str) else ""


def _state(value: Any) -> ParsedState:
    """22.05 prints one word and, while COMPLETING, hides the base state behind it; newer ones print a list."""
    words = value if isinstance(value, str) else [str(part) for part in value or ()]
    return parse_job_state(words)


class ExitCode(NamedTuple):
    """How a batch script or a job's execution ended."""

    code: int
    signal: int


def read_exit_code(value: Any) -> ExitCode:
    """Read a wait status (22.05) or an object with `return_code` and `signal` (newer)."""
    if isinstance(value, dict) and ("return_code" in value or "signal" in value):
        signal = value.get("signal")
        name_and_id = signal if isinstance(signal, dict) else {}
        raised = number(name_and_id.get("id", name_and_id.get("signal_id")))
        return ExitCode(number(value.get("return_code")) or 0, raised or 0)
    status = number(value) or 0
    signal_number = status & SIGNAL_MASK
    return ExitCode(0 if signal_number else (status >> 8) & 0xFF, signal_number)


def _end_time(entry: dict[str, Any], state: ParsedState) -> datetime | None:
    """When the job ended; None where Slurm's EndTime is a forecast.

    It is one also for a requeued job that 22.05 shows as a mere COMPLETING, whose StartTime moves with the clock: end
    minus start is the time limit then, or a year where there is none (seen).
    """
    start, end = epoch(entry.get("start_time")), epoch(entry.get("end_time"))
    if state.state in OPEN_END or end is None:
        return None
    if state.state is JobState.UNKNOWN and start is not None:
        limit = timedelta(minutes=number(entry.get("time_limit")) or NO_LIMIT.total_seconds() / 60)
        return end if end - start < limit else None
    return end


def _gres(tres: str) -> str:
    """`gpu:8` from `gres:gpu:8` (22.05) or `gres/gpu:8` (newer)."""
    return ",".join(part.removeprefix("gres:").removeprefix("gres/") for part in tres.split(",") if part)


def _has_script(entry: dict[str, Any]) -> bool:
    """Whether it is a batch job.

    slurmctld counts its BatchFlag up when it requeues a job that went missing from its node, and 22.05 prints whether
    the flag is 1 exactly (seen). Only a batch job has a standard input of its own.
    """
    return entry.get("batch_flag") is not False or bool(_text(entry, "standard_input"))


def _outputs(entry: dict[str, Any], job: OutputOf, expanded: bool) -> tuple[str, str]:
    """Standard output and error; the error goes to the output unless it has a file of its own."""
    if not _has_script(entry):
        return "", ""
    if job.array_job_id and job.array_task_id is None:
        return "", ""  # several pending tasks in one record: each will have its own
    out = resolve_output(_text(entry, "standard_output") or default_pattern(job), job, expanded=expanded)
    error = _text(entry, "standard_error")
    return out, resolve_output(error, job, expanded=expanded) if error else out
