"""`relight worker`: the commands that run processes."""

import asyncio
import logging
import os
import sys
from pathlib import Path

import click

from relight.config.settings import Settings, load, named_file, unknown_variables
from relight.console.errors import plainly


@click.group()
def worker() -> None:
    """Run a worker."""


@worker.command()
@click.option("--config", type=click.Path(path_type=Path, dir_okay=False), help="Settings file (YAML).")
@click.option("-v", "--verbose", is_flag=True, help="Log more.")
@plainly
def controller(config: Path | None, *, verbose: bool) -> None:
    """Watch one cluster and recover its jobs: beside the Slurm controller, or anywhere that reaches it."""
    logging.basicConfig(
        level=logging.INFO if verbose else logging.WARNING,
        format="%(asctime)s %(levelname)s %(name)s: %(message)s",
        stream=sys.stderr,
    )
    settings = load(config)
    for name in unknown_variables(os.environ):
        click.echo(f"relight: {name} names no setting and is ignored", err=True)
    asyncio.run(_run(settings, named_file(config)))


async def _run(settings: Settings, file: Path | None) -> None:
    from relight.workers import controller as process

    async def ready() -> None:
        mode = settings.policy.ceiling
        click.echo(
            f"relight: watching cluster {settings.cluster} in mode {mode}; Temporal UI {settings.web_ui}", err=True
        )

    await process.run(settings, ready=ready, file=file)


@worker.command()
@click.option("--config", type=click.Path(path_type=Path, dir_okay=False), help="Settings file (YAML).")
@plainly
def replay(config: Path | None) -> None:
    """Say whether this version can go on with every incident that is open now: before an upgrade.

    Replays their histories; changes nothing. Ends with 1 when one of them would stand still (docs/upgrading.md).
    """
    if asyncio.run(_replay(load(config))):
        raise click.exceptions.Exit(1)


async def _replay(settings: Settings) -> int:
    from relight.console.context import connected
    from relight.workers.replay_open import replay_open

    open_ = stuck = 0
    async for each in replay_open(await connected(settings), settings.task_queue):
        open_ += 1
        if each.problem:
            stuck += 1
            click.echo(
                f"would stand still: {each.workflow_id} (run {each.run_id}, {each.events} events): {each.problem}"
            )
    click.echo(f"open workflows on {settings.task_queue}: {open_}; this version goes on with {open_ - stuck} of them")
    return stuck


@click.command("agent-token")
@click.argument("node")
@click.option("--config", type=click.Path(path_type=Path, dir_okay=False), help="Settings file (YAML).")
@plainly
def agent_token(node: str, config: Path | None) -> None:
    """Print the token with which NODE's agent speaks for that node alone.

    That of `slurmctld` is the hook's; that of `relay` is for relays, and speaks for no node. Put it into a file that
    only the agent (or SlurmUser, or the relay) can read.
    """
    from relight.domain.reports import agent_token as token_of
    from relight.workers.ingest import open_key

    click.echo(token_of(open_key(load(config).ingest_key), node))
