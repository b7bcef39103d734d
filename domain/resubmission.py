"""A fresh job in place of one that Slurm cannot queue again: when, what is submitted, how it is known again. Pure.

docs/decisions/0022-fresh-job.md says why it is so.
"""

import json
import re
import shlex
from datetime import datetime, timedelta
from pathlib import PurePosixPath

from relight.domain.attempts import Attempt
from relight.domain.base import Value, canonical_json, short_hash
from relight.domain.hands import Hand
from relight.domain.situation import Situation
from relight.domain.slurm import ENDED, ENDED_BADLY, JobRecord, SlurmFacts

KEEPS_ENVIRONMENT = "job_env"
"""slurm.conf's `AccountingStoreFlags` by which accounting keeps what environment a job was submitted with."""
LARGEST_SCRIPT = 4 << 20
"""Slurm's own limit of a script (`max_script_size`)."""
_SECOND = timedelta(seconds=1)
_OUTPUT = re.compile(r"^#SBATCH\b.*\s(?:--output\b|-o)", re.MULTILINE)
_ERROR = re.compile(r"^#SBATCH\b.*\s(?:--error\b|-e)", re.MULTILINE)
"""Options of the script itself, which count again."""
_MARK = re.compile(r"relight-fresh:[0-9a-f]{12}")


class FreshJob(Value):
    """A job that Relight has submitted in place of an attempt."""

    job_id: int
    submit_time: datetime
    """When Slurm took it; it moves when the job is queued again, as any job's."""
    mark: str
    """In its comment: what it is known by, whatever number it has."""
    command: str = ""
    """As Slurm shows it."""


class Submission(Value):
    """What is submitted, held, as the job's own user."""

    user: str
    script: str
    name: str
    """The script's file name, without a folder."""
    arguments: tuple[str, ...] = ()
    """Given to the script."""
    options: tuple[str, ...] = ()
    """sbatch's, each `--name=value`."""
    environment_of: int
    """The job whose environment it gets, as accounting has it."""
    started: datetime | None
    """When the attempt started: by this accounting is known to speak of the same job."""


# --- whether ---


def why_not(attempt: Attempt, facts: SlurmFacts, *, may_submit: bool) -> str:
    """Why Relight cannot submit the attempt anew; empty where it can. What is not known counts as a reason."""
    record = attempt.record
    if not may_submit:
        return "Relight may not submit as users here (slurm.submit_wrapper)"
    if record.het_job_id is not None or record.array_job_id is not None:
        return "it is a part of an array or of a heterogeneous job"
    if not attempt.script or len(attempt.script) > LARGEST_SCRIPT:
        return "no batch script is on record"
    if not record.tres:
        return "what it asked for is not on record in full"
    if KEEPS_ENVIRONMENT not in facts.accounting_store_flags:
        return f"the environment it was submitted with is not on record (AccountingStoreFlags={KEEPS_ENVIRONMENT})"
    return ""


def as_if_it_could(situation: Situation) -> Situation | None:
    """The situation as it were if Slurm could queue the job again; None where it can, or where that is not known.

    Slurm cannot where the job says so (`Requeue=0`; also one that was begun without a batch script), and where it has
    forgotten the job, or soon may have. One that is COMPLETING has ended, and is waited for. A job that slurmctld does
    not know has ended only where accounting says so.
    """
    record = situation.record
    facts = situation.facts.model_copy(update={"requeue_exit": frozenset()})
    update: dict[str, object] = {"ended_at": None, "facts": facts}
    if situation.hand is not Hand.NOBODY:
        return None
    if record is None:
        row = situation.execution
        if row is None or row.state not in ENDED_BADLY or row.end_time is None:
            return None
        ended = {"state": row.state, "exit_code": row.exit_code, "exit_signal": row.exit_signal}
        own = situation.attempt.record
        ended |= {"flags": frozenset(), "reason": "", "reason_text": "", "end_time": row.end_time, "requeue": True}
        return situation.model_copy(update={**update, "record": own.model_copy(update=ended)})
    late = situation.deadline is not None and situation.now > situation.deadline
    if record.state not in ENDED_BADLY or (record.requeue and not late):
        return None
    return situation.model_copy(update={**update, "record": record.model_copy(update={"requeue": True})})


# --- what ---


def mark_for(entry: str) -> str:
    """The mark of a submission, from what names it in the ledger."""
    return f"relight-fresh:{short_hash(entry, 12)}"


def marked(comment: str, mark: str) -> str:
    """The comment with the mark instead of an earlier one; JSON stays JSON, for the other tools that read it."""
    try:
        found = json.loads(comment)
    except (ValueError, RecursionError):
        found = None
    ours = found.get("relight", {}) if isinstance(found, dict) else None
    if isinstance(found, dict) and isinstance(ours, dict):
        return json.dumps({**found, "relight": {**ours, "fresh": mark}}, ensure_ascii=False)
    return " ".join((*_MARK.sub("", comment).split(), mark))


def is_ours(record: JobRecord, user: str, mark: str) -> bool:
    """True for the job that was submitted with this mark, for this user: a user can forge a job of his own at most."""
    return record.user == user and mark in record.comment


def with_mark(jobs: tuple[JobRecord, ...], user: str, mark: str) -> tuple[JobRecord, ...]:
    """Those of the jobs that are ours: what lives before what has ended, then the first submitted first."""
    found = [job for job in jobs if is_ours(job, user, mark)]
    return tuple(sorted(found, key=lambda job: (job.state in ENDED, job.submit_time, job.job_id)))


def submission(attempt: Attempt, mark: str, *, without: tuple[str, ...] = ()) -> Submission:
    """The attempt's script with all that its record shows of how it was submitted.

    Args:
        attempt: what is submitted anew.
        mark: goes into its comment.
        without: nodes of its list that are allowed again.
    """
    record = attempt.record
    path, *arguments = _words(record.command)
    listed = [node for node in record.excluded_nodes if node not in without]
    script, default = attempt.script or "", f"{record.work_dir}/slurm-{record.job_id}.out"
    minutes = max(1, round(record.time_limit.total_seconds() / 60)) if record.time_limit else 0
    given = {
        "job-name": record.name,
        "chdir": record.work_dir,
        "partition": record.partition,
        "account": record.account,
        "qos": record.qos,
        "constraint": record.features,
        "reservation": record.reservation,
        "nodes": str(record.node_count or ""),
        "ntasks": str(record.task_count or ""),
        "gres": record.gres_per_node,
        "time": str(minutes or ""),
        "output": "" if _OUTPUT.search(script) or record.stdout == default else _pattern(record.stdout, record),
        "error": "" if _ERROR.search(script) or record.stderr == record.stdout else _pattern(record.stderr, record),
        "nodelist": ",".join(record.required_nodes),
        "exclude": ",".join(listed),
        "comment": marked(record.comment, mark),
    }
    options = [f"--{name}={value}" for name, value in given.items() if value]
    return Submission(
        user=record.user,
        script=script,
        name=PurePosixPath(path).name or "job.sh",
        arguments=tuple(arguments),
        options=(*options, "--requeue" if record.requeue else "--no-requeue"),
        environment_of=record.job_id,
        started=record.start_time,
    )


def _words(command: str) -> list[str]:
    """Script and arguments; Slurm shows them without the quotes that held them together."""
    try:
        return shlex.split(command) or [""]
    except ValueError:
        return command.split() or [""]


def _pattern(path: str, record: JobRecord) -> str:
    """The path as sbatch takes it: where the old job's number stands in the file's name, the new one's will."""
    folder, _, name = path.replace("%", "%%").rpartition("/")
    return f"{folder}/{_without_id(name, record)}" if path.startswith("/") else ""


def _without_id(text: str, record: JobRecord) -> str:
    return re.sub(rf"(?<![0-9]){record.job_id}(?![0-9])", "%j", text)


def digest_of(sent: Submission) -> str:
    """Stands for all that is submitted, in the plan that people approve."""
    body = sent.model_dump(mode="json", exclude={"started"})
    return short_hash(canonical_json(body), 16)


# --- how it is known again ---

_SAME = (
    "name",
    "account",
    "partition",
    "qos",
    "features",
    "reservation",
    "work_dir",
    "required_nodes",
    "node_count",
    "task_count",
    "gres_per_node",
    "time_limit",
    "requeue",
    "tres",
)


def differs(old: JobRecord, new: JobRecord) -> tuple[str, ...]:
    """In what the fresh job is another than the old one: `tres` (cpu=2,node=2 instead of cpu=8,node=2).

    Options that were given to sbatch by hand are not on record as such: what they changed shows here.
    """
    pairs = [(name, getattr(old, name), getattr(new, name)) for name in _SAME]
    told = [f"{name} ({now} instead of {then})" for name, then, now in pairs if then != now]
    for name in ("stdout", "stderr"):
        then, now = getattr(old, name), getattr(new, name)
        # Its number may stand in the file's name alone, or in those of folders too.
        same = _pattern(then, old) == _pattern(now, new) or _without_id(then, old) == _without_id(now, new)
        told += [] if same else [f"{name} ({now} instead of {then})"]
    return tuple(told)


def stand_in(attempt: Attempt, fresh: FreshJob) -> Attempt:
    """The fresh job before it ever ran, as what the next attempt is waited for in place of."""
    before = {
        "job_id": fresh.job_id,
        "submit_time": fresh.submit_time,
        "restarts": 0,
        "command": fresh.command,
        "nodes": (),
    }
    key = attempt.key.model_copy(update={"job_id": fresh.job_id, "submit_time": _before(fresh.submit_time)})
    return attempt.model_copy(update={"key": key, "record": attempt.record.model_copy(update=before)})


def _before(at: datetime) -> datetime:
    """Slurm tells whole seconds."""
    return at.replace(microsecond=0) - _SECOND


# --- the job's lineage ---


class Link(Value):
    """That a job goes on with another's lineage; kept under the cursor `link_cursor`."""

    lineage: str
    user: str
    mark: str
    before: tuple[int, ...] = ()
    """Job ids that the lineage has had, the newest first."""

    def holds(self, record: JobRecord) -> bool:
        """False for another job that got the id."""
        return is_ours(record, self.user, self.mark)


def link_cursor(cluster: str, job_id: int) -> str:
    """Name of the ledger cursor that tells whose lineage a job goes on with."""
    return f"fresh/{cluster}/{job_id}"
