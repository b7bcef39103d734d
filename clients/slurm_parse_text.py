"""What Slurm prints as text: `scontrol show config`, `squeue --format`, `sacct` and `sstat -P`, `--version`."""

import re
from datetime import UTC, datetime, timedelta
from typing import NamedTuple

from relight.clients.slurm_parse import GarbledError, expand_hosts, iso_time, single_task
from relight.domain.slurm import AccountingRow, SlurmFacts, StepRecord, parse_job_state

SACCT_FIELDS = ("JobIDRaw", "State", "ExitCode", "Submit", "Start", "End", "NodeList")
"""None of them holds anything that a user wrote, so `|` separates safely."""
SSTAT_FIELDS = ("JobID", "TRESUsageInTot")
ADDRESS_FORMAT = "%A|%F|%K"
"""Job id, array's job id, array task; `N/A` for the last outside of arrays, such as `1-3` for several pending tasks."""
STEP_FORMAT = "%i|%N|%A|%S"
"""Step id, nodes, tasks, start. A step's name is left out: it is the user's."""

_TASKS = re.compile(r"\d+(?:-\d+(?::\d+)?)?(?:,\d+(?:-\d+(?::\d+)?)?)*")
_ADDRESS = re.compile(r"(\d+)\|(\d+)\|(N/A|[0-9,:%.-]+)")
_SETTING = re.compile(r"^(\S+)\s*=\s?(.*?)\s*$", re.MULTILINE)
_CLOCK = re.compile(r"(?:(\d+)-)?(?:(\d+):)?(\d+):(\d+)(?:\.(\d+))?")
_UNITS = {"sec": 1, "min": 60, "hour": 3600}


def parse_facts(text: str) -> SlurmFacts:
    """Read `scontrol show config`.

    Raises:
        GarbledError: when it has no version, as a cut-off answer.
    """
    settings = {found[1]: found[2] for found in _SETTING.finditer(text)}
    version = settings.get("SLURM_VERSION", "")
    if not version:
        raise GarbledError("a configuration without SLURM_VERSION")
    defaults = SlurmFacts(version=version)
    storage = settings.get("AccountingStorageType", "")
    flags = settings.get("AccountingStoreFlags", "")
    return SlurmFacts(
        version=version,
        cluster=settings.get("ClusterName", ""),
        min_job_age=_seconds(settings.get("MinJobAge"), defaults.min_job_age),
        kill_wait=_seconds(settings.get("KillWait"), defaults.kill_wait),
        unkillable_step_timeout=_seconds(settings.get("UnkillableStepTimeout"), defaults.unkillable_step_timeout),
        slurmd_timeout=_seconds(settings.get("SlurmdTimeout"), defaults.slurmd_timeout),
        accounting_storage="" if storage in {"(null)", "accounting_storage/none"} else storage,
        accounting_store_flags=frozenset(flag for flag in flags.split(",") if flag not in {"", "(null)"}),
        job_requeue=settings.get("JobRequeue", "1") != "0",
        requeue_exit=exit_codes(settings.get("RequeueExit", "")) | exit_codes(settings.get("RequeueExitHold", "")),
        slurm_user=settings.get("SlurmUser", "").split("(")[0],
    )


def exit_codes(text: str) -> frozenset[int]:
    """Exit codes as slurm.conf lists them: `1,3-5`; what is no such list, as `(null)`, is empty."""
    found = (re.fullmatch(r"(\d{1,3})(?:-(\d{1,3}))?", part.strip()) for part in text.split(","))
    return frozenset(code for each in found if each for code in range(int(each[1]), int(each[2] or each[1]) + 1))


def _seconds(text: str | None, default: timedelta) -> timedelta:
    found = re.fullmatch(r"(\d+)(?: (sec|min|hour)s?)?", text or "")
    return timedelta(seconds=int(found[1]) * _UNITS[found[2] or "sec"]) if found else default


class Address(NamedTuple):
    """What names a job in a command."""

    job_id: int
    name: str | None
    """`7`, or `6_2` for an array task; None where the record stands for several pending tasks."""
    pending: str = ""
    """These tasks, such as `6_[1-3]`; empty for one job, and where Slurm does not print all of them."""


def parse_address(text: str, job_id: int) -> Address | None:
    """One job's line of `squeue --jobs=ID --format=ADDRESS_FORMAT`; None where it has none.

    An array's own id also yields the lines of its other tasks, a heterogeneous job's leader those of its components.

    Raises:
        GarbledError: when a line is no such line.
    """
    for line in text.splitlines():
        found = _ADDRESS.fullmatch(line.strip())
        if not found:
            raise GarbledError(f"not a job's address: {line[:200]!r}")
        own, array, task = found.groups()
        if int(own) == job_id:
            if task == "N/A":
                return Address(job_id, own)
            only = single_task(task)
            if only is not None:
                return Address(job_id, f"{array}_{only}")
            tasks = task.partition("%")[0]
            return Address(job_id, None, f"{array}_[{tasks}]" if _TASKS.fullmatch(tasks) else "")
    return None


def parse_steps(text: str, name: str) -> tuple[StepRecord, ...]:
    """The steps of the job of that name in `squeue --steps --format=STEP_FORMAT`; those of other tasks are left out.

    Raises:
        GarbledError: when a line is no such line.
    """
    fields = [line.strip().split("|") for line in text.splitlines() if line.strip()]
    if any(len(line) != STEP_FORMAT.count("|") + 1 or not line[2].isdecimal() for line in fields):
        raise GarbledError(f"not a list of steps: {text[:200]!r}")
    return tuple(
        StepRecord(step_id=step, nodes=expand_hosts(nodes), task_count=int(tasks), start_time=iso_time(start))
        for step, nodes, tasks, start in fields
        if step.startswith(f"{name}.")
    )


def parse_accounting(text: str, job_id: int) -> tuple[AccountingRow, ...]:
    """The executions of one job in `sacct -D -X -n -P -o JobIDRaw,...`, oldest first.

    An array's own id also yields the rows of its other tasks: they are left out.

    Raises:
        GarbledError: when a line is no such row.
    """
    rows = [_row(line) for line in text.splitlines() if line.strip()]
    start_of_time = datetime.min.replace(tzinfo=UTC)
    own = [row for row in rows if row is not None and row.job_id == job_id]
    return tuple(sorted(own, key=lambda row: row.submit_time or start_of_time))


def _row(line: str) -> AccountingRow | None:
    fields = line.split("|")
    if len(fields) != len(SACCT_FIELDS):
        raise GarbledError(f"not an accounting row: {line[:200]!r}")
    raw_id, state, exit_code, submit, start, end, nodes = fields
    if not raw_id.isdecimal():
        return None  # a pending array's `2_[3-5]` stands for no execution
    code, signal = _exit_code(exit_code)
    by = re.fullmatch(r"CANCELLED by (\S+)", state)
    return AccountingRow(
        job_id=int(raw_id),
        state=parse_job_state(state).state,
        cancelled_by=by[1] if by else "",
        exit_code=code,
        exit_signal=signal,
        submit_time=iso_time(submit),
        start_time=iso_time(start),
        end_time=iso_time(end),
        nodes=expand_hosts(nodes),
    )


def _exit_code(text: str) -> tuple[int, int]:
    found = re.fullmatch(r"(\d+):(\d+)", text)
    return (int(found[1]), int(found[2])) if found else (0, 0)


def parse_cpu_time(text: str) -> timedelta | None:
    """The CPU time of all tasks of all steps in `sstat -n -P -o JobID,TRESUsageInTot`; None when no step says it."""
    total: timedelta | None = None
    for line in text.splitlines():
        found = re.search(r"(?:\||,)cpu=([^,]+)", line)
        if found and (used := parse_clock(found[1])) is not None:
            total = (total or timedelta()) + used
    return total


def parse_clock(text: str) -> timedelta | None:
    """A duration such as `00:02:09`, `1-00:00:05` or `02:09.500`."""
    found = _CLOCK.fullmatch(text)
    if not found:
        return None
    days, hours, minutes, seconds = (int(part or 0) for part in found.groups()[:4])
    fraction = float(f"0.{found[5]}") if found[5] else 0.0
    return timedelta(days=days, hours=hours, minutes=minutes, seconds=seconds + fraction)


def parse_version(text: str) -> tuple[int, int]:
    """`(22, 5)` from `slurm-wlm 22.05.8`.

    Raises:
        GarbledError: when there is no version in it.
    """
    found = re.search(r"\b(\d+)\.(\d+)", text)
    if not found:
        raise GarbledError(f"not a version: {text[:200]!r}")
    return int(found[1]), int(found[2])
