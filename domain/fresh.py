"""What remains once Slurm has forgotten an attempt: a person submits it anew from what was kept of it. Pure."""

import shlex
from collections.abc import Iterable
from datetime import datetime

from relight.domain.attempts import Attempt
from relight.domain.base import few
from relight.domain.plan import Plan, Restart

_SHOWN_NODES = 32
_LONGEST = 1000


def fresh_submission(incident: str, attempt: Attempt, exclude: Iterable[str] = ()) -> str:
    """The shell command that submits the attempt anew, as the job's own user; in words where there is none.

    The script is the one kept when the attempt began (`relight show ID --script`). Options that were given to `sbatch`
    by hand are not on record as such; those that the job's record shows are given again. The environment is not kept:
    it is the one that the command is run in.
    """
    record = attempt.record
    if record.het_job_id is not None:
        return f"submit the whole heterogeneous job {record.het_job_id} anew: Relight keeps its parts one by one"
    path, arguments = _split(record.command)
    if attempt.script is None and not path.startswith("/"):
        return "no batch script is on record: only the job's user can submit it anew"
    options = {
        "job-name": record.name,
        "chdir": record.work_dir,
        "partition": record.partition,
        "account": record.account,
        "nodes": str(record.node_count or ""),
        "ntasks": str(record.task_count or ""),
        "gres": record.gres_per_node.removeprefix("gres:").removeprefix("gres/"),
        "array": "" if record.array_task_id is None else str(record.array_task_id),
        "exclude": ",".join(dict.fromkeys((*record.excluded_nodes, *exclude))),
    }
    given = [f"--{name}={shlex.quote(value)}" for name, value in options.items() if value]
    script = shlex.quote(path) if attempt.script is None else "job.sh"
    submit = " ".join(("sbatch", *given, script, *(shlex.quote(each) for each in arguments)))
    if len(submit) > _LONGEST:
        return f"sbatch job.sh, with what `relight show {incident} --script` prints and the options of its record"
    return submit if attempt.script is None else f"relight show {incident} --script > job.sh && {submit}"


def _split(command: str) -> tuple[str, list[str]]:
    try:
        path, *arguments = shlex.split(command) or [""]
    except ValueError:
        return command, []
    return path, arguments


def by_hand(plan: Plan, user: str, now: datetime) -> tuple[str, ...]:
    """What a person must do next where the plan was not carried out, a sentence each."""
    return tuple(filter(None, (_restart(plan, user, now), _cancel(plan), _drain(plan))))


def _restart(plan: Plan, user: str, now: datetime) -> str:
    job = plan.attempt.job_id
    if plan.restart is Restart.NONE and (plan.cancel or not plan.fresh):
        return ""
    if plan.restart is Restart.ADOPT:
        held = f" once somebody has run: scontrol release {job}" if plan.release else " by itself"
        return f"Slurm has queued job {job} again and starts it{held}."
    whose = f", as {user}" if user else ""
    anew = f"submit it anew{whose}: {plan.fresh}" if plan.fresh else f"its user has to submit it anew{whose}"
    if plan.restart in {Restart.SUBMIT, Restart.NONE}:
        return f"Slurm cannot queue job {job} again; {anew}"
    if plan.requeue_until is None:
        return f"Job {job} may still hold its nodes: scontrol requeue {job} restarts it, scancel {job} ends it."
    if now < plan.requeue_until:
        return f"Until {plan.requeue_until:%H:%M:%S} UTC: scontrol requeue {job}. After that {anew}"
    return f"Slurm forgets job {job}; {anew}"


def _cancel(plan: Plan) -> str:
    job = plan.attempt.job_id
    return f"Job {job} may still hold its nodes although a retry is useless: scancel {job}." if plan.cancel else ""


def _drain(plan: Plan) -> str:
    if not plan.drain:
        return ""
    names = few(plan.drain, _SHOWN_NODES)
    return f"Still in service: {names}. Look at it, or drain it: scontrol update State=DRAIN Reason=... NodeName=..."
