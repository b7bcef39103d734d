"""The commands of `relight` that people use. Everything heavy is imported when a command runs."""

import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from relight.console.errors import NotFoundStop, plainly
from relight.console.text import clean
from relight.console.watching import shown, with_watch

if TYPE_CHECKING:
    from rich.console import Console

    from relight.console.show import Story

F = TypeVar("F", bound=Callable[..., Any])
_ANY = click.Path(path_type=Path)


def with_config(function: F) -> F:
    """Add `--config`."""
    option = click.option("--config", type=_ANY, metavar="PATH", help="Settings file (YAML); else RELIGHT_CONFIG.")
    return option(function)


def with_output(function: F) -> F:
    """Add `--output`."""
    choice = click.Choice(["table", "json"])
    return click.option("-o", "--output", type=choice, default="table", help="For people, or for programs.")(function)


def complete_open(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[str]:
    """Ids of open incidents for the shell."""
    return _complete(ctx, param, incomplete, open_only=True)


def _complete(ctx: click.Context, param: click.Parameter, incomplete: str, *, open_only: bool = False) -> list[str]:
    """Incident ids for the shell; nothing at all where the ledger cannot be read."""
    from relight.console.context import opened, run, settings_from

    del param

    async def ids() -> list[str]:
        settings = settings_from(ctx.params.get("config"))
        async with opened(settings) as ledger:
            known = await ledger.incidents(cluster=settings.cluster, open_only=open_only, limit=50)
        return [incident.id for incident in known if incident.id.startswith(incomplete)]

    try:
        return run(ids())
    except Exception:  # noqa: BLE001 - completion must never disturb the prompt
        return []


class _Job(click.ParamType[Any]):
    """A Slurm job id; reading it is left to `lookup`, which is imported only when there is one."""

    name = "job"

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> object:
        from relight.console.lookup import JobName, parse_job

        if isinstance(value, JobName):
            return value
        job = parse_job(str(value))
        if job is None:
            accepted = "accepted: 123, 123_4 (array task), 123+1 (component)"
            self.fail(f"{str(value)!r} is no Slurm job id; {accepted}", param, ctx)
        return job


JOB = _Job()


@click.command()
@with_config
@with_output
@click.option("--all", "everything", is_flag=True, help="Also those that were not confirmed.")
@click.option("--open", "open_only", is_flag=True, help="Only those that have no outcome yet.")
@click.option("-n", "--limit", type=click.IntRange(1, 1000), default=20, show_default=True, help="How many at most.")
@click.option("--job", type=JOB, metavar="ID", help="Only those of this job: 123, 123_4, 123+1.")
@with_watch
@plainly
def incidents(
    config: Path | None, output: str, *, everything: bool, open_only: bool, limit: int, job: Any, watch: bool
) -> None:
    """List incidents, newest first."""
    from relight.console import incidents as listing
    from relight.console.context import now, opened, run, settings_from
    from relight.console.output import print_json

    async def work() -> None:
        settings = settings_from(config)
        async with opened(settings) as ledger:

            async def collect() -> listing.Found:
                return await listing.collect(
                    ledger, settings, everything=everything, open_only=open_only, limit=limit, job=job
                )

            async def draw(console: "Console") -> None:
                found = await collect()
                if found.listed:
                    listing.print_table(console, found, now())
                else:
                    await listing.print_empty(console, ledger, settings, found, now())

            if output == "json":
                print_json([listing.as_json(each) for each in (await collect()).listed])
            else:
                await shown(draw, watch=watch)

    run(work())


@click.command()
@with_config
@with_output
@click.argument("id_", metavar="ID", shell_complete=_complete)
@click.option("--script", is_flag=True, help="Print the job's batch script instead, as it was kept.")
@with_watch
@plainly
def show(config: Path | None, output: str, id_: str, *, script: bool, watch: bool) -> None:
    """Tell one incident's story.

    ID is an incident's id, the beginning of one, or a Slurm job id (its newest incident).
    """
    from relight.console import show as story
    from relight.console.context import now, opened, run, settings_from
    from relight.console.lookup import find_incident
    from relight.console.output import print_json

    async def work() -> None:
        settings = settings_from(config)
        async with opened(settings) as ledger:
            incident = await find_incident(ledger, settings, id_)

            async def draw(console: "Console") -> None:
                story.tell(console, await story.collect(ledger, settings, incident), now())

            told = await story.collect(ledger, settings, incident)
            if script:
                _print_script(told)
            elif output == "json":
                print_json(story.as_json(told))
            else:
                await shown(draw, watch=watch)

    run(work())


def _print_script(told: "Story") -> None:
    if told.attempt is None or told.attempt.attempt.script is None:
        raise NotFoundStop(f"no batch script of job {told.incident.attempt.job_id} could be read when it ran")
    kept, seen = told.attempt.attempt.script, sys.stdout.isatty()
    click.echo("\n".join(map(clean, kept.splitlines())) if seen else kept, nl=seen)


@click.command()
@with_config
@with_output
@click.argument("job", type=JOB, metavar="JOBID")
@with_watch
@plainly
def why(config: Path | None, output: str, job: Any, *, watch: bool) -> None:
    """Explain what Relight did, or did not do, about a job.

    JOBID is a Slurm job id: 123, 123_4 (array task) or 123+1 (component).
    """
    from relight.console import explain
    from relight.console.context import now, opened, run, settings_from
    from relight.console.output import print_json

    async def work() -> None:
        settings = settings_from(config)
        async with opened(settings) as ledger:

            async def draw(console: "Console") -> None:
                explain.tell(console, await explain.collect(ledger, settings, job), now())

            if output == "json":
                print_json(explain.as_json(await explain.collect(ledger, settings, job), now()))
            else:
                await shown(draw, watch=watch)

    run(work())


@click.command()
@with_config
@with_output
@plainly
def doctor(config: Path | None, output: str) -> None:
    """Check everything Relight needs here, and say what to do.

    Run it as the user that Relight runs as. Ends with 1 when a check fails.
    """
    from relight.console import doctor as checks
    from relight.console.context import run
    from relight.console.doctor_checks import Health
    from relight.console.output import print_json, screen

    found = run(checks.examine(config))
    if output == "json":
        print_json([check.model_dump(mode="json") for check in found])
    else:
        checks.tell(screen(), found)
    if any(check.status is Health.FAIL for check in found):
        raise click.exceptions.Exit(1)


@click.command()
@with_config
@with_output
@with_watch
@plainly
def status(config: Path | None, output: str, *, watch: bool) -> None:
    """Say who watches, what each detector last saw, and what waits.

    Reads the ledger alone: right also while Temporal is down. Ends with 1 when a detector is blind or overdue, a
    detection is not delivered, no worker works, a changed policy is refused, the breaker is open or the kill switch is
    on; an output that cannot be read blinds its own job only, and is said.
    """
    from relight.console import status as page
    from relight.console.context import now, opened, run
    from relight.console.output import print_json

    async def work() -> bool:
        settings, wrong = page.settings_of(config)
        async with opened(settings) as ledger:

            async def draw(console: "Console") -> bool:
                found = await page.collect(ledger, settings, now(), wrong)
                page.tell(console, found)
                return found.well

            if output == "table":
                return await shown(draw, watch=watch)
            found = await page.collect(ledger, settings, now(), wrong)
            print_json(page.as_json(found))
            return found.well

    if not run(work()):
        raise click.exceptions.Exit(1)
