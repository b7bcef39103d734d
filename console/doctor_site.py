"""Checks of what lies in files: the ledger, the keys, the logs."""

import asyncio
import shutil
import stat
from collections.abc import Sequence
from pathlib import Path

from relight.clients.files import Files
from relight.clients.kernel_logs import KernelLogFiles
from relight.clients.ledger import LedgerError
from relight.clients.log_files import LogFiles
from relight.clients.logs import LogError
from relight.clients.signing_keys import KeyFileError, read_key
from relight.clients.slurm import Slurm, SlurmError
from relight.config.settings import Settings
from relight.console.context import ledger_file, opened, user_name
from relight.console.doctor_checks import Check, brief, fail, ok, warn
from relight.console.errors import Stop
from relight.console.text import count
from relight.domain.plan import Mode

LITTLE_SPACE, HARDLY_ANY_SPACE = 2 << 30, 200 << 20
"""Free bytes on the ledger's disk below which to warn and to fail."""
LOOKED_AT = 5


async def check_ledger(settings: Settings) -> Sequence[Check]:
    """It opens, its chain verifies, its key is private, its disk has room."""
    checks = [await asyncio.to_thread(_space, settings)]
    try:
        async with opened(settings) as ledger:
            report = await ledger.verify()
    except Stop as error:
        return (fail("ledger", *_two(error.message)), *checks)
    except LedgerError as error:
        return (
            fail("ledger", str(error), "Nothing is changed in Slurm before this is right: no ledger, no mutation."),
            *checks,
        )
    if report.ok:
        found = f"{count(report.rows, 'row')}, chain verified, head {report.head[:12] or 'none'}"
        return (ok("ledger", found), *checks)
    found = f"the chain is broken at row {report.broken_at}: {report.problem}"
    advice = "Rows were changed from outside. Keep a copy, and compare with an anchored head before going on."
    return (fail("ledger", found, advice), *checks)


def _two(message: str) -> tuple[str, str]:
    first, _, rest = message.partition("\n")
    return first, rest


def _space(settings: Settings) -> Check:
    file = ledger_file(settings)
    folder = (file.parent if file else settings.folder).absolute()
    while not _is_folder(folder) and folder != folder.parent:
        folder = folder.parent
    try:
        free = shutil.disk_usage(folder).free
    except OSError as error:
        return warn("disk", f"{folder}: {error.strerror}", "Make sure that the disk of the data folder has room.")
    found = f"{free / (1 << 30):.1f} GiB free at {folder}"
    if free < HARDLY_ANY_SPACE:
        return fail("disk", found, "Make room: without it neither ledger nor kept outputs can be written.")
    return (
        warn("disk", found, "Make room soon: kept outputs take up to 17 MiB a file.")
        if free < LITTLE_SPACE
        else ok("disk", found)
    )


def _is_folder(path: Path) -> bool:
    try:
        return path.is_dir()
    except OSError:
        return False


async def check_approval_key(settings: Settings) -> Sequence[Check]:
    """It exists, and only those who may approve can read it."""
    people = {each.name for each in settings.approvals.people}
    if people:
        return (ok("approval key", f"not used: {count(len(people), 'approver')} listed, who sign themselves"),)
    return (await asyncio.to_thread(_approval_key, settings),)


def _approval_key(settings: Settings) -> Check:
    path, name = settings.approval_key, "approval key"
    try:
        found = path.stat()
        read_key(path)
    except FileNotFoundError:
        advice = "The controller worker makes it on its first start: relight worker controller."
        return (
            warn(name, f"{path} does not exist", advice)
            if settings.policy.ceiling is Mode.MONITOR
            else fail(name, f"{path} does not exist: nobody can approve", advice)
        )
    except OSError as error:
        return warn(
            name, f"{path}: {error.strerror}", f"You ({user_name()}) cannot approve from here; run as its owner."
        )
    except KeyFileError as error:
        return fail(name, str(error), "Put it right, or remove it: the controller worker makes a new one on its start.")
    mode = stat.S_IMODE(found.st_mode)
    if mode & stat.S_IRWXO or mode & stat.S_IWGRP:
        return fail(name, f"{path} has mode {mode:04o}", f"Whoever reads it may approve: chmod 600 {path}")
    if mode & stat.S_IRGRP:
        return ok(name, f"{path}, mode {mode:04o}: owner and group may approve")
    return ok(name, f"{path}, mode {mode:04o}: only its owner may approve")


async def check_job_logs(slurm: Slurm, files: Files | None = None) -> Sequence[Check]:
    """The outputs of a few running jobs can be read from here."""
    name = "job logs"
    try:
        running = [job for job in await slurm.jobs() if job.running and job.stdout]
    except SlurmError as error:
        return (warn(name, f"not known, Slurm does not say: {brief(error)}", "See the check of Slurm."),)
    if not running:
        return (warn(name, "no job is running: nothing to try it on", "Run doctor again while jobs run."),)
    logs = LogFiles(files=files)
    sample = running[:LOOKED_AT]
    problems = [p for p in await asyncio.gather(*(_unreadable(logs, job.stdout) for job in sample)) if p]
    found = f"{len(sample) - len(problems)} of {count(len(sample), 'running job')} readable"
    if not problems:
        return (ok(name, found),)
    reader = f"Relight's user ({user_name()} here) must be able to read jobs' outputs"
    advice = f"For example {problems[0]}. {reader}: without them there is no cause and no progress."
    return ((fail if len(problems) == len(sample) else warn)(name, found, advice),)


async def _unreadable(logs: LogFiles, path: str) -> str:
    try:
        await logs.size(path)
    except LogError as error:
        return str(error)
    return ""


async def check_kernel_logs(settings: Settings, slurm: Slurm, files: Files | None = None) -> Sequence[Check]:
    """The kernel logs of a few nodes can be read from here."""
    name = "kernel logs"
    if not settings.logs.kernel:
        advice = "Set logs.kernel (central syslog, say): without Xids no node is drained for a bad GPU."
        return (warn(name, "none configured", advice),)
    try:
        nodes = [node.name for node in await slurm.nodes()][:LOOKED_AT]
    except SlurmError as error:
        return (warn(name, f"not known, Slurm does not say: {brief(error)}", "See the check of Slurm."),)
    logs = KernelLogFiles(settings.logs.kernel, files)
    problems = [p for p in await asyncio.gather(*(_no_kernel_log(logs, node) for node in nodes)) if p]
    found = f"{len(nodes) - len(problems)} of {count(len(nodes), 'node')} readable"
    if not problems:
        return (ok(name, found),)
    return ((fail if len(problems) == len(nodes) else warn)(name, found, f"For example {problems[0]}."),)


async def _no_kernel_log(logs: KernelLogFiles, node: str) -> str:
    try:
        await logs.tail(node)
    except LogError as error:
        return str(error)
    return ""
