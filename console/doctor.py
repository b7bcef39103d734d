"""`relight doctor`: runs the checks side by side, each with a time limit, and says what to do."""

import asyncio
import os
import socket
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from rich.console import Console
from rich.table import Table
from rich.text import Text

from relight.config.log_store import StoreKind
from relight.config.settings import CONFIG_VARIABLE, ConfigError, Settings, load, unknown_variables
from relight.console.context import user_name
from relight.console.doctor_checks import Check, Health, fail, nearest, ok, warn
from relight.console.output import joined, words
from relight.console.text import count

if TYPE_CHECKING:
    from relight.clients.ways import Access

_STYLES = {Health.OK: "green", Health.WARN: "bold yellow", Health.FAIL: "bold red"}


class Probe(NamedTuple):
    """Something to look at, which may yield several checks."""

    name: str
    look: Callable[[], Awaitable[Sequence[Check]]]
    seconds: float = 15.0
    """How long it may take before it counts as failed."""


async def examine(path: Path | None) -> tuple[Check, ...]:
    """All checks, in the order they are shown."""
    found = [*check_variables(os.environ)]
    try:
        settings = await asyncio.to_thread(load, path)
    except ConfigError as error:
        return (fail("settings", str(error), "Nothing else can be checked before this is right."), *found)
    found.insert(0, _settings_found(path, settings))
    from relight.clients.ways import WayError, open_access

    try:
        async with open_access(settings) as access:
            return (*found, *await look((*probes(settings), *probes_of_slurm(settings, access))))
    except WayError as error:
        missing = fail("Slurm", str(error), "Until then nothing is seen of Slurm; the other checks follow.")
        return (*found, missing, *await look(probes(settings)))


def probes(settings: Settings) -> tuple[Probe, ...]:
    """What is looked at beside Slurm."""
    from relight.console import doctor_policy, doctor_site, doctor_temporal, notify

    return (
        Probe("ledger", lambda: doctor_site.check_ledger(settings), 60),
        Probe("policy", lambda: doctor_policy.check_policy(settings)),
        Probe("approval key", lambda: doctor_site.check_approval_key(settings)),
        Probe("Temporal", lambda: doctor_temporal.check_temporal(settings), 20),
        Probe("notices", lambda: notify.check_channels(settings)),
    )


def probes_of_slurm(settings: Settings, access: "Access") -> tuple[Probe, ...]:
    """What is looked at along the way to Slurm."""
    from relight.console import doctor_metrics, doctor_site, doctor_slurm

    slurm, files = access.slurm, access.files
    patience = 3 * settings.slurm.timeout.total_seconds() + 2
    return (
        Probe("Slurm", lambda: doctor_slurm.check_slurm(settings, access), patience),
        Probe("Slurm rights", lambda: doctor_slurm.check_rights(settings, access), patience),
        Probe("node wrapper", lambda: doctor_slurm.check_wrapper(settings, access), patience),
        Probe("fresh jobs", lambda: doctor_slurm.check_submitter(settings, access), patience),
        _job_logs(settings, access, patience + 10),
        Probe("kernel logs", lambda: doctor_site.check_kernel_logs(settings, slurm, files), patience + 10),
        Probe("GPU metrics", lambda: doctor_metrics.check_metrics(settings, slurm), patience + 10),
    )


def _job_logs(settings: Settings, access: "Access", patience: float) -> Probe:
    from relight.console import doctor_logs, doctor_site

    if settings.logs.store.kind is StoreKind.FILES:
        return Probe("job logs", lambda: doctor_site.check_job_logs(access.slurm, access.files), patience)
    return Probe(doctor_logs.NAME, lambda: doctor_logs.check_log_store(settings, access.slurm), patience + 30)


async def look(at: Sequence[Probe]) -> tuple[Check, ...]:
    """Run the probes side by side; one that is late or stumbles is a failed check, and holds up no other."""
    found = await asyncio.gather(*(_one(probe) for probe in at))
    return tuple(check for checks in found for check in checks)


async def _one(probe: Probe) -> Sequence[Check]:
    try:
        async with asyncio.timeout(probe.seconds):
            return await probe.look()
    except TimeoutError:
        return (fail(probe.name, f"no answer within {probe.seconds:g} s", "Something it depends on hangs."),)
    except Exception as error:  # noqa: BLE001 - a check that stumbles says so
        found = f"the check itself stumbled: {type(error).__name__}: {str(error)[:200]}"
        return (fail(probe.name, found, "This is a fault in Relight: please report it."),)


def _settings_found(path: Path | None, settings: Settings) -> Check:
    named = path or os.environ.get(CONFIG_VARIABLE)
    mode = settings.policy.ceiling
    if named is None:
        found = f"defaults only (no --config, no {CONFIG_VARIABLE}); cluster {settings.cluster}, mode {mode}"
        return warn("settings", found, "Give the file that the worker uses, or this checks another site than yours.")
    return ok("settings", f"{named}; cluster {settings.cluster}, mode {mode}")


def check_variables(environment: "os._Environ[str] | dict[str, str]") -> tuple[Check, ...]:
    """RELIGHT_ variables that name no setting."""
    known = [f"RELIGHT_{name}".upper() for name in Settings.model_fields]
    return tuple(
        warn("variable", f"{name} names no setting and is ignored", nearest(name, known) or "Remove it, or correct it.")
        for name in unknown_variables(environment)
    )


def tell(console: Console, checks: Sequence[Check]) -> None:
    """Print the checks, worst news marked, and one line of sum at the end."""
    console.print(joined([("Relight doctor", "bold"), (f"as user {user_name()} on {socket.gethostname()}", "dim")]))
    console.print()
    table = Table.grid(padding=(0, 2, 0, 0))
    table.add_column(no_wrap=True, min_width=4)
    table.add_column(no_wrap=True, min_width=12)
    table.add_column(overflow="fold")
    for check in checks:
        found = words(check.found)
        if check.advice:
            found = Text("\n").join([found, Text("→ ").append(words(check.advice))])
        table.add_row(words(check.status, _STYLES[check.status]), words(check.name), found)
    console.print(table)
    console.print()
    console.print(_sum(checks))


def _sum(checks: Sequence[Check]) -> Text:
    failed = sum(check.status is Health.FAIL for check in checks)
    warned = sum(check.status is Health.WARN for check in checks)
    if failed:
        return words(f"{count(failed, 'check')} failed, {count(warned, 'warning')}.", "bold red")
    if warned:
        return words(f"Nothing failed; {count(warned, 'warning')}.", "yellow")
    return words("All is well.", "green")
