"""The command `relight checkpoints`."""

from pathlib import Path

import click

from relight.console.cli import with_config, with_output
from relight.console.errors import plainly


@click.command()
@with_config
@with_output
@click.argument("target", metavar="DIR|JOBID")
@click.option("--deep", is_flag=True, help="Read every byte of the newest, too; it may take hours.")
@plainly
def checkpoints(config: Path | None, output: str, target: str, *, deep: bool) -> None:
    """Show checkpoints: which are whole, which are not and why, and which one a restart would take.

    DIR is a folder of this machine, or a checkpoint in it. JOBID is a Slurm job id that Relight has seen: its
    checkpoints are found by its comment, its output, its script and its work dir. Nothing is loaded or unpickled.

    Ends with 1 when what a restart would take is damaged, and with 4 when there is none.
    """
    from relight.console import checkpoints as listing
    from relight.console.context import now, run, settings_from
    from relight.console.lookup import parse_job
    from relight.console.output import print_json, screen

    job = None if Path(target).exists() else parse_job(target)
    if job is not None:
        survey = run(listing.of_job(settings_from(config), job, deep=deep))
    else:
        survey = run(listing.of_folder(Path(target).absolute(), deep=deep))
    listing.check_found(survey, f"job {job}" if job else target)
    if output == "json":
        print_json(listing.as_json(survey))
    else:
        listing.tell(screen(), survey, now())
    if not listing.is_safe(survey):
        raise click.exceptions.Exit(1)
