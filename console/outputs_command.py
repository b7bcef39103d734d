"""The command `relight outputs`."""

import sys
from pathlib import Path
from typing import Any

import click

from relight.console.cli import JOB, with_config, with_output
from relight.console.errors import plainly


@click.command()
@with_config
@with_output
@click.argument("job", type=JOB, metavar="JOBID")
@click.option("--attempt", type=click.IntRange(1), metavar="N", help="Only those of the job's Nth attempt.")
@click.option("--path", metavar="PATH", help="Print this one: its path, or its file's name where that names only one.")
@click.option("--tail", type=click.IntRange(1, 10_000_000), metavar="N", help="Of that one only the last N lines.")
@plainly
def outputs(
    config: Path | None, output: str, job: Any, *, attempt: int | None, path: str | None, tail: int | None
) -> None:
    """Show what was kept of a job's failed attempts.

    Of each output of an attempt that Relight restarted its first MiB and last 16 MiB are kept, since a requeue
    truncates them. They expire: outputs.keep_for, outputs.keep_at_most.
    """
    from relight.console import outputs as listing
    from relight.console.context import now, run, settings_from
    from relight.console.output import print_json, screen

    if tail is not None and path is None:
        raise click.UsageError("--tail needs --path: which one?")
    settings = settings_from(config)
    found = run(listing.of_job(settings, job))
    if attempt is not None:
        found = listing.of_attempt(found, attempt)
    if path is not None:
        data = listing.content(settings, listing.named(found, path), tail)
        if sys.stdout.isatty():
            click.echo(listing.safe(data))
        else:
            click.echo(data, nl=False)
    elif output == "json":
        print_json(listing.as_json(found))
    else:
        listing.tell(screen(), found, now())
