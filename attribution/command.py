"""`relight diagnose`: what ended a job, from its logs alone."""

import json
import os
import sys
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import BinaryIO, NoReturn

import click
from rich.console import Console
from rich.text import Text

from relight.attribution.automaton import PatternError
from relight.attribution.blocks import printable
from relight.attribution.catalogue import Catalogue, CatalogueError, load
from relight.attribution.context_file import ContextFileError, read_context
from relight.attribution.engine import diagnose as find_cause
from relight.attribution.flight import read_folder
from relight.attribution.flight_search import recorded
from relight.attribution.report import EMPTY, as_json, as_text
from relight.attribution.report_html import as_html
from relight.attribution.scanner import Scanner
from relight.attribution.sources import Context, LogSource, Recorded
from relight.domain.diagnosis import Diagnosis
from relight.domain.evidence import Source

FAILED, NOT_FOUND = 1, 4
_STDIN = "-"


@click.command("diagnose")
@click.argument("files", nargs=-1, required=True, metavar="FILE...")
@click.option("--json", "machine", is_flag=True, help="Print one JSON object.")
@click.option("--html", "page", metavar="FILE", help="Write one self-contained page, to attach to a ticket.")
@click.option("--kernel-log", "kernel_logs", multiple=True, metavar="NODE=FILE", help="A node's kernel log (dmesg).")
@click.option("--flight-recorder", "dumps", metavar="DIR", help="PyTorch's flight-recorder dumps, one of each rank.")
@click.option("--context", "context_file", metavar="FILE", help="Allocation, end and history of the job (JSON, YAML).")
@click.option("--catalogue", "catalogues", multiple=True, metavar="FILE", help="A site's own signatures (YAML).")
def diagnose(
    *,
    files: tuple[str, ...],
    machine: bool,
    page: str | None,
    kernel_logs: tuple[str, ...],
    dumps: str | None,
    context_file: str | None,
    catalogues: tuple[str, ...],
) -> None:
    """Tell what ended a training job, and what to do, from its log FILEs (`-` is standard input).

    Works on any output of Slurm, PyTorch, NCCL and the kernel, plain or packed by gzip, bzip2 or xz (zstd with Python
    3.14); of a folder all files are read, one of each rank for example. Exit codes: 0 diagnosed, 1 failed, 2 usage,
    4 file not found.
    """
    pairs = [_split(pair) for pair in kernel_logs]
    catalogue = _catalogue(catalogues)
    sources = [_source(file, Source.JOB_LOG, None) for given in files for file in _files(given)]
    sources += [_source(file, Source.KERNEL_LOG, node) for node, file in pairs]
    context = _context(context_file) if context_file else Context()
    told, refused = _recorded(dumps, context) if dumps else ((), ())
    try:
        scanner = Scanner(catalogue, lazy=True) if catalogues else None
        found = find_cause(sources, context, scanner, recorded=told)
    except PatternError as error:
        _fail(str(error), FAILED)
    diagnosis = found.model_copy(update={"unreadable": (*found.unreadable, *refused)})
    if page:
        _write(page, as_html(diagnosis, catalogue))
    _show(diagnosis, catalogue, machine=machine)
    failed = [said for said in found.unreadable if not said.endswith(EMPTY)]
    if len(failed) == len(sources):
        raise SystemExit(FAILED)


def _files(given: str) -> list[str]:
    """The file itself; of a folder the files in it, by name."""
    if given == _STDIN or not os.path.isdir(given):  # noqa: PTH112 - a path with a NUL is no folder, and no error yet
        return [given]
    files = sorted(str(path) for path in Path(given).iterdir() if path.is_file())
    if not files:
        _fail(f"{_shown(given)}: a folder without files", FAILED)
    return files


def _context(file: str) -> Context:
    _check(file)
    try:
        return read_context(Path(file))
    except ContextFileError as error:
        _fail(str(error), FAILED)


def _recorded(folder: str, context: Context) -> tuple[tuple[Recorded, ...], tuple[str, ...]]:
    """What the dumps in a folder say, and which could not be read."""
    try:
        found = read_folder(Path(folder))
    except FileNotFoundError:
        _fail(f"{_shown(folder)}: no such folder", NOT_FOUND)
    except (OSError, ValueError) as error:
        _fail(f"{_shown(folder)}: cannot be read: {_why(error)}", FAILED)
    if not found.dumps and not found.refused:
        _fail(f"{_shown(folder)}: no file in it has a name that ends with a rank, as nccl_trace_rank_0 does", FAILED)
    told = recorded(found.dumps, () if found.refused else context.rank_map)
    return (told,) if told else (), found.refused


def _write(file: str, page: str) -> None:
    try:
        Path(file).write_text(page, "utf-8")
    except (OSError, ValueError) as error:
        _fail(f"{_shown(file)}: cannot be written: {_why(error)}", FAILED)


def _catalogue(paths: Sequence[str]) -> Catalogue:
    for path in paths:
        _check(path)
    try:
        return load([Path(path) for path in paths])
    except CatalogueError as error:
        _fail(str(error), FAILED)


def _source(file: str, kind: Source, node: str | None) -> LogSource:
    if file == _STDIN:
        return LogSource("stdin", kind, node, _stdin)
    _check(file)
    return LogSource(_shown(file), kind, node, partial(_open, file))


def _stdin() -> BinaryIO:
    return sys.stdin.buffer


def _open(file: str) -> BinaryIO:
    return Path(file).open("rb")


def _check(file: str) -> None:
    """Say at once, in one line, why a file cannot be read."""
    try:
        with _open(file):
            return
    except FileNotFoundError:
        _fail(f"{_shown(file)}: no such file", NOT_FOUND)
    except (OSError, ValueError) as error:
        _fail(f"{_shown(file)}: cannot be read: {_why(error)}", FAILED)


def _why(error: Exception) -> str:
    return str(getattr(error, "strerror", None) or error)


def _split(pair: str) -> tuple[str, str]:
    node, equals, file = pair.partition("=")
    if not (node and equals and file):
        raise click.BadParameter(f"{pair!r} is not NODE=FILE, for example n2=dmesg-n2.txt", param_hint="--kernel-log")
    return node, file


def _show(diagnosis: Diagnosis, catalogue: Catalogue, *, machine: bool) -> None:
    if machine:
        click.echo(json.dumps(as_json(diagnosis), indent=2))
        return
    console = Console(highlight=False)
    try:
        for part in as_text(diagnosis, catalogue):
            console.print(part, soft_wrap=isinstance(part, Text))  # words are the terminal's to wrap, tables are ours
    except BrokenPipeError:  # `| head` has seen enough
        sys.stderr.close()


def _shown(name: str) -> str:
    return printable(name.encode(errors="replace"))


def _fail(message: str, code: int) -> NoReturn:
    click.echo(f"relight: {message}", err=True)
    raise SystemExit(code)
