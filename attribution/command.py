"""`relight diagnose`: what ended a job, from its logs alone."""

import errno
import json
import sys
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import BinaryIO, NoReturn

import click
from rich.console import Console

from relight.attribution.blocks import printable
from relight.attribution.catalogue import Catalogue, CatalogueError, load
from relight.attribution.engine import diagnose as find_cause
from relight.attribution.report import as_json, as_text
from relight.attribution.scanner import Scanner
from relight.attribution.sources import LogSource
from relight.domain.diagnosis import Diagnosis
from relight.domain.evidence import Source

FAILED, NOT_FOUND = 1, 4
_STDIN = "-"


@click.command("diagnose")
@click.argument("files", nargs=-1, required=True, metavar="FILE...")
@click.option("--json", "machine", is_flag=True, help="Print one JSON object.")
@click.option("--kernel-log", "kernel_logs", multiple=True, metavar="NODE=FILE", help="A node's kernel log (dmesg).")
@click.option("--catalogue", "catalogues", multiple=True, metavar="FILE", help="A site's own signatures (YAML).")
def diagnose(files: tuple[str, ...], machine: bool, kernel_logs: tuple[str, ...], catalogues: tuple[str, ...]) -> None:
    """Tell what ended a training job, and what to do, from its log FILEs (`-` is standard input).

    Works on any output of Slurm, PyTorch, NCCL and the kernel, plain or gzip. Exit codes: 0 diagnosed, 1 failed,
    2 usage, 4 file not found.
    """
    pairs = [_split(pair) for pair in kernel_logs]
    catalogue = _catalogue(catalogues)
    sources = [_source(file, Source.JOB_LOG, None) for file in files]
    sources += [_source(file, Source.KERNEL_LOG, node) for node, file in pairs]
    diagnosis = find_cause(sources, scanner=Scanner(catalogue) if catalogues else None)
    _show(diagnosis, catalogue, machine=machine)
    failed = [said for said in diagnosis.unreadable if not said.endswith(": empty")]
    if len(failed) == len(sources):
        raise SystemExit(FAILED)


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
        what = "is a directory; name the log files in it" if _is_directory(error) else f"cannot be read: {_why(error)}"
        _fail(f"{_shown(file)}: {what}", FAILED)


def _is_directory(error: Exception) -> bool:
    return getattr(error, "errno", None) == errno.EISDIR


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
    console = Console(highlight=False, soft_wrap=True)
    try:
        console.print(as_text(diagnosis, catalogue))
    except BrokenPipeError:  # `| head` has seen enough
        sys.stderr.close()


def _shown(name: str) -> str:
    return printable(name.encode(errors="replace"))


def _fail(message: str, code: int) -> NoReturn:
    click.echo(f"relight: {message}", err=True)
    raise SystemExit(code)
