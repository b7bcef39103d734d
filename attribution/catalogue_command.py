"""`relight catalogue`: what is known of failures, and whether a site's own entries are right."""

import io
import json
import os
import sys
from collections.abc import Callable, Sequence
from difflib import get_close_matches
from pathlib import Path
from typing import Any, NoReturn

import click
from rich.console import Console, RenderableType

from relight.attribution import catalogue_text as text
from relight.attribution.blocks import printable
from relight.attribution.catalogue import Catalogue, CatalogueError, CatalogueFile, Role, Signature, load
from relight.attribution.catalogue_check import check
from relight.attribution.nvlink5 import decode
from relight.attribution.scanner import Scanner
from relight.attribution.xids import names_xid, sxids, xids
from relight.domain.diagnosis import Category

FAILED, NOT_FOUND = 1, 4
PIPE_WIDTH = 200
"""Columns where the output is no terminal and COLUMNS does not say."""
SHOWN_CHOICES = 4

_catalogues = click.option(
    "--catalogue",
    "catalogues",
    multiple=True,
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="A site's own signatures (YAML), over the shipped ones.",
)
_machine = click.option("--json", "machine", is_flag=True, help="Print JSON.")


@click.group("catalogue")
def catalogue() -> None:
    """Show the failures that Relight knows; check a site's own entries.

    Exit codes: 0 done, 1 failed or not valid, 2 usage, 4 not found.
    """


@catalogue.command("list")
@click.option("--group", "groups", multiple=True, metavar="NAME", help="Only this group (gpu, network, ...).")
@click.option("--role", type=click.Choice([role.value for role in Role]), help="Only entries with this role.")
@click.option("--category", type=click.Choice([one.value for one in Category], case_sensitive=False), metavar="NAME")
@_catalogues
@_machine
def list_entries(
    groups: tuple[str, ...], role: str | None, category: str | None, catalogues: tuple[Path, ...], machine: bool
) -> None:
    """List entries, group by group."""
    known = _load(catalogues).signatures.values()
    names = list(dict.fromkeys(one.group for one in known))
    for group in groups:
        if group not in names:
            _fail(f"no group {printable(group.encode())!r}; groups are {', '.join(names)}", NOT_FOUND)
    found = [
        one
        for one in known
        if (not groups or one.group in groups)
        and role in {None, one.role.value}
        and category in {None, one.category.value}
    ]
    if machine:
        _print_json([text.as_json(one) for one in found])
    else:
        _print(lambda width: text.table(found, width))


@catalogue.command("show")
@click.argument("name")
@_catalogues
@_machine
def show(name: str, catalogues: tuple[Path, ...], machine: bool) -> None:
    """Explain an entry's id, an Xid (`xid:79`), an SXid (`sxid:12028`) or a line of a log."""
    known = _load(catalogues)
    kind, colon, number = name.partition(":")
    if colon and kind.lower() in {"xid", "sxid"}:
        shown, data = _number(kind.lower(), number.strip(), known)
    elif name.upper() in known:
        signature = known[name.upper()]
        shown, data = text.entry(signature), text.as_json(signature)
    elif len(name.split()) > 1:
        shown, data = _line(name, known)
    else:
        _unknown(name, known)
    if machine:
        _print_json(data)
    else:
        _print(lambda _: shown)


@catalogue.command("test")
@click.argument("file", type=click.Path(path_type=Path))
@_catalogues
def test(file: Path, catalogues: tuple[Path, ...]) -> None:
    """Check a site's FILE of signatures, and run the examples in it."""
    if not file.exists():
        _fail(f"{_safe(file)}: no such file", NOT_FOUND)
    try:
        report = check(file, catalogues)
    except CatalogueError as error:
        _fail(str(error), FAILED)
    for problem in report.problems:
        click.echo(printable(problem.encode()))
    if report.problems:
        count = len(report.problems)
        _fail(f"{_safe(file)}: {count} problem{'s' * (count > 1)}", FAILED)
    for note in report.notes:
        click.echo(printable(note.encode()))
    click.echo(f"{_safe(file)}: {report.summary}")


@catalogue.command("schema")
def schema() -> None:
    """Print the JSON schema of a file of signatures, for editors."""
    _print_json({"$schema": "https://json-schema.org/draft/2020-12/schema", **CatalogueFile.model_json_schema()})


def _load(paths: Sequence[Path]) -> Catalogue:
    for path in paths:
        if not path.exists():
            _fail(f"{_safe(path)}: no such file", NOT_FOUND)
    try:
        return load(paths)
    except CatalogueError as error:
        _fail(str(error), FAILED)


def _number(kind: str, number: str, known: Catalogue) -> tuple[RenderableType, dict[str, Any]]:
    table = xids() if kind == "xid" else sxids()
    if not number.isascii() or not number.isdigit():
        raise click.BadParameter(f"{kind}:{number!r} is no number, for example {kind}:{min(table)}", param_hint="NAME")
    if int(number) not in table:
        near = sorted(table, key=lambda one: abs(one - int(number)))[:SHOWN_CHOICES]
        choices = ", ".join(str(one) for one in sorted(near))
        _fail(f"no {text.NAMES[kind]} {int(number)} is known; the nearest are {choices}", NOT_FOUND)
    if kind == "sxid":
        switch = sxids()[int(number)]
        return text.sxid(switch), dict(switch._asdict())
    code = xids()[int(number)]
    entries = [one for one in known.signatures.values() if names_xid(one, code.number)]
    return text.xid(code, entries), {**code._asdict(), "entries": [text.as_json(one) for one in entries]}


def _line(line: str, known: Catalogue) -> tuple[RenderableType, dict[str, Any]]:
    found = _recognised(line, known)
    decoded = decode(line)
    if not found and decoded is None:
        _fail("no entry recognises this line", NOT_FOUND)
    data = {
        "entries": [text.as_json(one) for one in found],
        "nvlink5": dict(decoded._asdict()) if decoded else None,
    }
    return text.line(found, decoded), data


def _recognised(line: str, known: Catalogue) -> list[Signature]:
    found = {match.signature for match in Scanner(known, lazy=True).scan(io.BytesIO(line.encode(errors="replace")))}
    return [one for one in known.signatures.values() if one.id in found]


def _unknown(name: str, known: Catalogue) -> NoReturn:
    wanted = name.upper()
    near = get_close_matches(wanted, known.signatures, SHOWN_CHOICES, 0.6)
    near += [one for one in known.signatures if wanted in one and one not in near]
    choices = f"; the nearest are {', '.join(near[:SHOWN_CHOICES])}" if near else ""
    _fail(f"no entry {printable(name.encode())!r}{choices} (all: relight catalogue list)", NOT_FOUND)


def _safe(path: Path) -> str:
    return printable(str(path).encode(errors="replace"))


def _print(shown: Callable[[int], RenderableType]) -> None:
    wide = None if sys.stdout.isatty() or os.environ.get("COLUMNS") else PIPE_WIDTH
    console = Console(file=sys.stdout, width=wide, markup=False, emoji=False, highlight=False)
    try:
        console.print(shown(console.width))
    except BrokenPipeError:  # `| head` has seen enough
        sys.stderr.close()


def _print_json(data: object) -> None:
    click.echo(json.dumps(data, indent=2))


def _fail(message: str, code: int) -> NoReturn:
    click.echo(f"relight: {message}", err=True)
    raise SystemExit(code)
