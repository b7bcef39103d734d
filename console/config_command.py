"""`relight config`: is a file of settings right, what is in force and why, and the schema for editors."""

import os
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import click

from relight.console.cli import with_config, with_output
from relight.console.errors import NotFoundStop, Stop, plainly

if TYPE_CHECKING:
    from relight.config.origins import Note, Setting
    from relight.config.problems import Source
    from relight.config.settings import Settings

_FILE = click.Path(path_type=Path)
SCHEMA = "https://json-schema.org/draft/2020-12/schema"


@click.group("config")
def config() -> None:
    """Check settings, and show those in force.

    Exit codes: 0 done, 1 failed or not valid, 2 usage, 4 not found.
    """


@config.command("check")
@click.argument("file", type=_FILE, required=False)
@click.option("--live", is_flag=True, help="Also ask Slurm whether it has the partitions that the policy names.")
@plainly
def check(file: Path | None, *, live: bool) -> None:
    """Check a FILE of settings (else the one that RELIGHT_CONFIG names), without RELIGHT_* variables.

    Each problem is told with file, line and field, what was found and what is accepted.
    """
    from relight.config.problems import Source
    from relight.config.reading import ConfigError, field_name, read
    from relight.config.settings import named_file, read_settings, unknown_variables
    from relight.console.text import clean, count
    from relight.domain.policy_rules import version_of

    named = named_file(file)
    if named is None:
        raise click.UsageError("name a FILE, or set RELIGHT_CONFIG")
    if not named.expanduser().exists():
        raise NotFoundStop(f"{named}: no such file")
    try:
        document = read(named)
        settings = read_settings(named, document, variables=False)
    except ConfigError as error:
        problems = str(error).splitlines()
        for line in problems:
            click.echo(clean(line))
        raise Stop(f"{named}: {count(len(problems), 'problem')}") from error
    source = Source(named, document, {})
    for note in _notes(settings, live=live):
        click.echo(clean(f"{source.where(note.place)}: {field_name(note.place)}: warning: {note.text}"))
    for name in _winning(source, os.environ):
        click.echo(clean(f"{name}: warning: is set here, and wins over the file where the worker has it too"))
    for name in unknown_variables(os.environ):
        click.echo(clean(f"{name}: warning: names no setting"))
    policy = settings.policy
    rules = f", {count(len(policy.rules), 'rule')}" if policy.rules else ""
    click.echo(
        clean(f"{named}: valid; cluster {settings.cluster}, policy {version_of(policy)}, mode {policy.mode}{rules}")
    )


def _winning(source: "Source", environment: "os._Environ[str]") -> list[str]:
    """Variables that set something which the file sets too."""
    with_variables = source._replace(variables=environment)
    return sorted({name for place in source.document.lines if (name := with_variables.variable(place))})


def _notes(settings: "Settings", *, live: bool) -> "Iterator[Note]":
    from relight.config.origins import Note, notes, unknown_partitions

    yield from notes(settings)
    if not live:
        return
    known = _partitions(settings)
    if isinstance(known, str) or not known:
        yield Note(("slurm",), f"Slurm could not be asked for its partitions: {known or 'it shows no nodes'}")
    else:
        yield from unknown_partitions(settings, known)


def _partitions(settings: "Settings") -> frozenset[str] | str:
    """Those that have nodes; or why Slurm does not say."""
    from relight.clients.slurm import SlurmError
    from relight.clients.ways import WayError, open_access
    from relight.console.context import run
    from relight.console.doctor_checks import brief

    async def ask() -> frozenset[str]:
        async with open_access(settings) as access:
            return frozenset(name for node in await access.slurm.nodes() for name in node.partitions)

    try:
        return run(ask())
    except (SlurmError, WayError) as error:
        return brief(error)


@config.command("show")
@with_config
@with_output
@click.option("--changed", is_flag=True, help="Only what differs from the defaults in where it comes from.")
@plainly
def show(config: Path | None, output: str, *, changed: bool) -> None:
    """Show the settings in force, each with where it comes from: a default, the file, or a variable.

    Passwords in addresses are hidden.
    """
    from relight.config.origins import DEFAULT, settings_in_force
    from relight.config.problems import Source
    from relight.config.reading import Document, read
    from relight.config.settings import named_file, read_settings
    from relight.console.output import print_json
    from relight.domain.policy_rules import version_of

    file = named_file(config)
    document = read(file) if file else Document()
    settings = read_settings(file, document)
    found = settings_in_force(settings, Source(file, document, os.environ))
    shown = [each for each in found if not changed or each.origin != DEFAULT]
    version = version_of(settings.policy)
    if output == "json":
        print_json({"policy_version": version, "settings": [each._asdict() for each in shown]})
    else:
        _print(shown, version)


def _print(shown: "list[Setting]", version: str) -> None:
    from rich.table import Table

    from relight.config.origins import DEFAULT
    from relight.console.output import screen, words

    table = Table(box=None, padding=(0, 2, 0, 0), header_style="dim", pad_edge=False)
    table.add_column("SETTING", no_wrap=True)
    table.add_column("VALUE", overflow="fold")
    table.add_column("FROM", overflow="fold")
    for each in shown:
        table.add_row(words(each.field), words(each.value), words(each.origin, "dim" if each.origin == DEFAULT else ""))
    console = screen()
    console.print(table)
    console.print()
    console.print(words(f"Policy version {version}", "bold"))


@config.command("schema")
def schema() -> None:
    """Print the JSON schema of a file of settings, for editors."""
    from relight.config.settings import Settings
    from relight.console.output import print_json

    print_json({"$schema": SCHEMA, **Settings.model_json_schema()})
