"""`relight worker`: the commands that run processes."""

import asyncio
import logging
import sys
from pathlib import Path

import click

from relight.clients.ledger import LedgerError
from relight.config.settings import ConfigError, Settings, load, unknown_variables


@click.group()
def worker() -> None:
    """Run a worker."""


@worker.command()
@click.option("--config", type=click.Path(path_type=Path, dir_okay=False), help="Settings file (YAML).")
@click.option("-v", "--verbose", is_flag=True, help="Log more.")
def controller(config: Path | None, *, verbose: bool) -> None:
    """Watch one cluster and recover its jobs: beside the Slurm controller, or anywhere that reaches it."""
    import os

    logging.basicConfig(
        level=logging.INFO if verbose else logging.WARNING,
        format="%(asctime)s %(levelname)s %(name)s: %(message)s",
        stream=sys.stderr,
    )
    try:
        settings = load(config)
    except ConfigError as error:
        raise click.ClickException(str(error)) from error
    for name in unknown_variables(os.environ):
        click.echo(f"relight: {name} names no setting and is ignored", err=True)
    try:
        asyncio.run(_run(settings))
    except (RuntimeError, LedgerError, OSError) as error:
        raise click.ClickException(_explain(settings, error)) from error


async def _run(settings: Settings) -> None:
    from relight.workers import controller as process

    async def ready() -> None:
        mode = settings.policy.mode
        click.echo(
            f"relight: watching cluster {settings.cluster} in mode {mode}; Temporal UI {settings.web_ui}", err=True
        )

    await process.run(settings, ready=ready)


def _explain(settings: Settings, error: Exception) -> str:
    if isinstance(error, LedgerError):
        return f"ledger: {error}"
    text = str(error)
    if "onnect" in text:
        address = settings.temporal.address
        return f"Temporal at {address} cannot be reached: {text[:200]}\nStart one with: temporal server start-dev"
    return text
