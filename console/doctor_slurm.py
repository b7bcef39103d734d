"""Checks of Slurm: that it answers, its settings that decide how Relight acts, and our rights."""

import os
import re
import time
from collections.abc import Sequence
from pathlib import Path

from relight.clients.slurm import SlurmError
from relight.clients.slurm_process import Done, LocalRunner, NotFinishedError, NotStartedError
from relight.clients.ways import FORCED, Access
from relight.config.settings import Settings, Way
from relight.console.doctor_checks import Check, brief, fail, ok, warn
from relight.console.text import span
from relight.domain.base import clip
from relight.domain.plan import MIN_JOB_AGE_MARGIN, Mode
from relight.domain.slurm import SlurmFacts

MAY_ACT = frozenset({"operator", "administrator", "super user"})
_USAGE = 2
_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,63}")


async def check_slurm(settings: Settings, access: Access) -> Sequence[Check]:
    """It answers, by which way and why that, and its settings let Relight do its work."""
    begun = time.monotonic()
    try:
        facts = await access.slurm.facts()
    except SlurmError as error:
        # Over SSH the error itself says what to do, down to the command.
        told = clip(str(error), 600) if access.way is Way.SSH else brief(error)
        return (fail("Slurm", f"{_way(settings, access)}: {told}", _ADVICE[access.way]), _reason(access))
    took = time.monotonic() - begun
    name = facts.cluster or "unnamed"
    told = f"{_way(settings, access)}: {facts.version}, ClusterName {name}, answered in {took:.2f} s"
    return (ok("Slurm", told), _reason(access), *check_facts(facts, settings))


_ADVICE = {
    Way.PYSLURM: "Check slurm.conf and slurm.pyslurm_python in the settings, and that slurmctld runs.",
    Way.COMMANDS: "Check slurm.conf, .bin and .run_as in the settings, and that slurmctld runs (`scontrol ping`).",
    Way.SSH: "Check slurm.ssh in the settings, the account and its forced command there, and that slurmctld runs.",
}


def _way(settings: Settings, access: Access) -> str:
    ssh = settings.slurm.ssh
    words = {
        Way.PYSLURM: "by pyslurm",
        Way.COMMANDS: "by commands",
        Way.SSH: f"by commands over SSH, {ssh.user + '@' if ssh.user else ''}{ssh.host}:{ssh.port}",
    }
    prefix = " ".join(settings.slurm.run_as) or ("directly" if access.way is not Way.SSH else "as that user")
    return f"{words[access.way]}, {prefix}"


def _reason(access: Access) -> Check:
    """Why this way, and what it leaves to another."""
    left = ", ".join(access.delegated)
    return ok("way", f"{access.why}{f'; left to the commands: {left}' if left else ''}")


def check_facts(facts: SlurmFacts, settings: Settings) -> tuple[Check, ...]:
    """What of slurm.conf decides how Relight acts. Pure."""
    return (_accounting(facts), _store_flags(facts), _min_job_age(facts, settings), _job_requeue(facts))


def _accounting(facts: SlurmFacts) -> Check:
    if facts.accounting_storage:
        return ok("accounting", facts.accounting_storage)
    advice = "Set AccountingStorageType=accounting_storage/slurmdbd: without it, ends that Relight missed stay unknown."
    return warn("accounting", "off", advice)


def _store_flags(facts: SlurmFacts) -> Check:
    missing = sorted({"job_comment", "job_script"} - facts.accounting_store_flags)
    kept = ",".join(sorted(facts.accounting_store_flags)) or "none"
    if not missing:
        return ok("store flags", kept)
    advice = f"Add {','.join(missing)} to AccountingStoreFlags: a purged job's comment and script are lost otherwise."
    return warn("store flags", f"AccountingStoreFlags: {kept}", advice)


def _min_job_age(facts: SlurmFacts, settings: Settings) -> Check:
    expires, age = settings.policy.approval_expires, facts.min_job_age
    usable = age - MIN_JOB_AGE_MARGIN
    found = f"MinJobAge {span(age)}, approvals expire after {span(expires)}"
    if expires < usable:
        return ok("MinJobAge", found)
    advice = (
        f"An ended job can be requeued for {span(usable)} only, and approvals are cut short to that. "
        f"Set MinJobAge={int((expires + MIN_JOB_AGE_MARGIN).total_seconds()) + 1} or more."
    )
    return warn("MinJobAge", found, advice)


def _job_requeue(facts: SlurmFacts) -> Check:
    if facts.job_requeue:
        return ok("JobRequeue", "1: jobs may be requeued unless they say no")
    return warn("JobRequeue", "0", "Only jobs submitted with --requeue can be restarted; set JobRequeue=1.")


MAY_NOT = "may not: drain nodes (relight-node does), write AdminComment"
"""What Slurm refuses to an Operator on every version (seen)."""


async def check_rights(settings: Settings, access: Access) -> Sequence[Check]:
    """The principal may requeue and cancel other people's jobs."""
    name = "rights"
    who = await _say(settings, access, ("id", "-un"))
    user = who.out.strip() if isinstance(who, Done) and who.code == 0 else ""
    if isinstance(who, str) and access.way is Way.SSH:
        return (warn(name, f"not known: {brief(who)}", "See the check of Slurm."),)
    if not _NAME.fullmatch(user):
        why = who if isinstance(who, str) else who.err
        return (
            fail(name, f"slurm.run_as does not work: {why[:200]}", "Correct slurm.run_as, or the sudo rule it needs."),
        )
    try:
        slurm_user = (await access.slurm.facts()).slurm_user
    except SlurmError:
        slurm_user = ""
    if user in {"root", slurm_user}:
        elsewhere = settings.slurm.run_as or access.way is Way.SSH
        other = "" if elsewhere else "; where the worker runs as another user, run doctor as that one"
        return (ok(name, f"{user}: all rights{other}"),)
    asked = await _say(settings, access, ("sacctmgr", "-nP", "show", "user", f"name={user}", "format=adminlevel"))
    return (judge_level(user, asked, settings.policy.ceiling),)


def judge_level(user: str, asked: Done | str, mode: Mode) -> Check:
    """What sacctmgr says of the user's level. Pure."""
    name = "rights"
    advice = f"sacctmgr modify user name={user} set adminlevel=Operator"
    if isinstance(asked, str) or asked.code != 0:
        why = brief(asked if isinstance(asked, str) else asked.err)
        return warn(name, f"{user}: not known ({why})", f"Relight needs the level Operator: {advice}")
    level = asked.out.strip().splitlines()[0].strip() if asked.out.strip() else "None"
    if level.lower() in MAY_ACT:
        return ok(name, f"{user}: {level}; {MAY_NOT}" if level.lower() == "operator" else f"{user}: {level}")
    found = f"{user}: AdminLevel {level}: may not touch other people's jobs"
    return (warn if mode is Mode.MONITOR else fail)(name, found, advice)


async def check_wrapper(settings: Settings, access: Access) -> Sequence[Check]:
    """relight-node is installed, is root's, and can be called. Called without words it only prints its usage."""
    command = access.node_command
    worse = warn if settings.policy.ceiling is Mode.MONITOR or not settings.policy.drains_per_hour else fail
    name = "node wrapper"
    here = isinstance(access.node_runner, LocalRunner)
    local = Path(command[-1]) if here and command and command[-1].startswith("/") else None
    if local is not None and (problem := owned_by_others(local)):
        return (worse(name, problem, f"Install clients/relight_node.py as {local}, owned by root, mode 0755."),)
    if not command:
        return (worse(name, "slurm.node_wrapper is empty", "Nodes cannot be drained; see `slurm.node_wrapper`."),)
    try:
        said = await access.node_runner.run(command, settings.slurm.timeout)
    except (NotStartedError, NotFinishedError) as error:
        return (worse(name, brief(error), "Nodes cannot be drained; see the check of Slurm for the way there."),)
    where = "" if here else " over SSH"
    text = " ".join((said.err or said.out).split())
    if said.code == _USAGE and "relight-node drain" in text:
        return (ok(name, f"{' '.join(command)} answers{where}"),)
    return (
        worse(name, f"{' '.join(command)}{where}: {text[:200] or f'ended with {said.code}'}", _allow(settings, access)),
    )


async def check_submitter(settings: Settings, access: Access) -> Sequence[Check]:
    """relight-submit, where a site has set it up, is root's. It is not called: it works as a user, and submits."""
    command = settings.slurm.submit_wrapper
    if not command:
        return ()
    program = next((Path(word) for word in reversed(command) if word.startswith("/")), None)
    if program is not None and isinstance(access.runner, LocalRunner) and (problem := owned_by_others(program)):
        hint = f"Install clients/relight_submit.py as {program}, owned by root, mode 0755."
        return (warn("fresh jobs", problem, hint),)
    return (ok("fresh jobs", f"submitted by {' '.join(command)}"),)


def _allow(settings: Settings, access: Access) -> str:
    """How the account that calls relight-node gets leave to."""
    if access.node_command == FORCED:
        return "Make relight-node the forced command of the account of slurm.node_ssh (its --help has the line)."
    here = isinstance(access.node_runner, LocalRunner)
    user, where = (_invoker(), "") if here else (settings.slurm.ssh.user or _invoker(), " there")
    return f"Allow it: `{user} ALL=(root) NOPASSWD: {access.node_command[-1]}` in /etc/sudoers.d/relight{where}."


def _invoker() -> str:
    from relight.console.context import user_name

    return user_name()


def owned_by_others(path: Path) -> str:
    """Why this program must not be trusted with root's rights; empty when it may be."""
    try:
        found = path.stat()
    except OSError as error:
        return f"{path}: {error.strerror}"
    if found.st_uid != 0:
        return f"{path} belongs to uid {found.st_uid}, not to root"
    if found.st_mode & 0o022:
        return f"{path} can be written by others than root (mode {found.st_mode & 0o7777:04o})"
    return "" if os.access(path, os.X_OK) else f"{path} is not executable"


async def _say(settings: Settings, access: Access, command: tuple[str, ...]) -> Done | str:
    """What a command prints when run as Slurm's commands are, or why it did not run."""
    try:
        return await access.runner.run((*settings.slurm.run_as, *command), settings.slurm.timeout)
    except (NotStartedError, NotFinishedError) as error:
        return str(error)
