"""From the lines that pyslurm's process answers to the domain's records."""

import json
from collections.abc import Callable
from datetime import timedelta
from typing import Any, Generic, TypeVar

from relight.clients.slurm_parse import GarbledError, epoch, expand_hosts
from relight.clients.slurm_parse_jobs import parse_jobs
from relight.clients.slurm_parse_text import exit_codes
from relight.domain.slurm import JobRecord, SlurmFacts, StepRecord

R = TypeVar("R")


class Records(Generic[R]):
    """Parses lines, each a record. A line as it was in the last read is not parsed again: most jobs wait unchanged.

    Args:
        key: what the list is called in the document that `parse` reads.
        parse: the commands' parser of that document.
    """

    def __init__(self, key: str, parse: Callable[[str], tuple[R, ...]]) -> None:
        self._key = key
        self._parse = parse
        self._last: dict[str, R] = {}

    def __call__(self, text: str) -> tuple[R, ...]:
        """The records of an answer, in its order."""
        last, lines = self._last, text.split("\n") if text else []
        new = [line for line in lines if line not in last]
        records = self._parse(f'{{"{self._key}":[{",".join(new)}]}}')
        if len(records) != len(new):
            raise GarbledError(f"{len(new)} lines and {len(records)} records")
        known = dict(zip(new, records, strict=True))
        self._last = {line: known[line] if line in known else last[line] for line in lines}
        return tuple(self._last.values())


def parse_steps(text: str) -> tuple[JobRecord, tuple[StepRecord, ...]] | None:
    """A job and its steps; None where there is no such job."""
    if not text:
        return None
    first, *rest = text.split("\n")
    (job,) = parse_jobs(f'{{"jobs":[{first}]}}')
    # Steps of a heterogeneous job's component are named after its own number (seen on 26.05).
    name = str(job.job_id) if job.array_job_id is None else job.display_id
    return job, tuple(_step(json.loads(line), name) for line in rest)


def _step(entry: dict[str, Any], name: str) -> StepRecord:
    return StepRecord(
        step_id=f"{name}.{entry['id']}",
        nodes=expand_hosts(entry["nodes"]),
        task_count=entry["tasks"] or 0,
        start_time=epoch(entry["start_time"]),
    )


def parse_facts(text: str) -> SlurmFacts:
    """The settings that decide how to act."""
    config = json.loads(text)
    storage = config["accounting_storage_type"] or ""
    return SlurmFacts(
        version=config["version"],
        cluster=config["cluster_name"] or "",
        min_job_age=timedelta(seconds=config["min_job_age"] or 0),
        kill_wait=timedelta(seconds=config["kill_wait_time"] or 0),
        unkillable_step_timeout=timedelta(seconds=config["unkillable_step_timeout"] or 0),
        slurmd_timeout=timedelta(seconds=config["slurmd_timeout"] or 0),
        accounting_storage="" if storage == "accounting_storage/none" else storage,
        accounting_store_flags=frozenset(flag.lower() for flag in config["accounting_store_flags"]),
        job_requeue=config["job_requeue"],
        requeue_exit=_codes(config.get("requeue_exit")) | _codes(config.get("requeue_exit_hold")),
        slurm_user=config["slurm_user_name"] or "",
    )


def _codes(value: object) -> frozenset[int]:
    return exit_codes(",".join(map(str, value)) if isinstance(value, list) else str(value))


def parse_script(text: str) -> str:
    """A batch script."""
    script = json.loads(text)["script"]
    if not isinstance(script, str) or not script.strip():
        raise GarbledError("an empty script")
    return script


def parse_job_id(text: str) -> int:
    """The id of a job that was submitted."""
    return int(json.loads(text)["job_id"])
