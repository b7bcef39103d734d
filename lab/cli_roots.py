"""`relight lab root`: Slurm of other Debian releases, each in a root of its own."""

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import click
from pydantic import BaseModel

from relight.lab.roots import SUITES, Root, RootError
from relight.lab.roots_project import Project

FAILED = 1
SUITE = click.argument("suite", type=click.Choice([*SUITES]))


class Listed(BaseModel):
    """A root as `list` tells it."""

    suite: str
    slurm: str | None
    """Such as 24.11.5; None when it is not whole."""
    bytes: int | None
    path: Path
    lacking: str | None
    """Why it cannot be used as it is."""


@click.group()
def root() -> None:
    """Make and use Debian roots with other Slurm versions."""


@root.command()
@click.argument("suites", metavar="SUITE...", type=click.Choice([*SUITES]), nargs=-1, required=True)
def make(suites: tuple[str, ...]) -> None:
    """Make the roots, with the project's Python environment in them; what is there already is kept."""
    with _told_errors():
        for suite in suites:
            made = Root.named(suite)
            made.make(_say)
            if reason := Project(made).prepare(_say):
                _say(f"{suite} is without pyslurm: {reason}")


@root.command("list")
@click.option("-o", "--output", type=click.Choice(["text", "json"]), default="text", show_default=True)
def list_(output: str) -> None:
    """Show each suite: its Slurm, size, place, and whether it is whole."""
    for suite in SUITES:
        listed = _listed(Root.named(suite))
        if output == "json":
            click.echo(listed.model_dump_json())
            continue
        size = f"{listed.bytes / 1e9:.1f} GB" if listed.bytes else "-"
        click.echo(f"{suite:9} {listed.slurm or '-':8} {size:>7}  {listed.lacking or 'whole':9}  {listed.path}")


@root.command(context_settings={"ignore_unknown_options": True})
@SUITE
@click.option("--bind", "binds", type=click.Path(path_type=Path, exists=True), multiple=True, help="At the same path.")
@click.argument("command", nargs=-1, required=True, type=click.UNPROCESSED)
def run(suite: str, binds: tuple[Path, ...], command: tuple[str, ...]) -> None:
    """Run COMMAND in the project's copy inside the root; what it starts may outlive it.

    For example: relight lab root run forky -- make demo
    """
    with _told_errors():
        project = Project(Root.named(suite))
        if reason := project.prepare(_say):
            _say(f"{suite} is without pyslurm: {reason}")
        line = project.command(command, binds)
        environment = project.root.environment()
    # The command takes this process's place: signals reach it, and its exit status is ours.
    sys.stdout.flush()
    os.execvpe(line[0], line, environment)  # noqa: S606


@root.command()
@SUITE
def remove(suite: str) -> None:
    """Remove a root; refused while something runs in it."""
    with _told_errors():
        Root.named(suite).remove()


def _listed(known: Root) -> Listed:
    lacking = known.lacking
    size = _size(known.path) if known.path.exists() and lacking is None else None
    return Listed(suite=known.suite.name, slurm=known.slurm_version, bytes=size, path=known.path, lacking=lacking)


def _size(folder: Path) -> int:
    total = 0
    for parent, _, files in os.walk(folder):
        for name in files:
            with suppress(FileNotFoundError):  # something may be running in there
                total += Path(parent, name).lstat().st_blocks * 512
    return total


def _say(text: str) -> None:
    click.echo(text, err=True)


@contextmanager
def _told_errors() -> Iterator[None]:
    try:
        yield
    except (RootError, OSError) as error:
        click.echo(f"Error: {error}", err=True)
        sys.exit(FAILED)
