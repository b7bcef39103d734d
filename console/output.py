"""Printing: one rich console for tables and stories, one way to print JSON."""

import json
import os
import sys
from collections.abc import Iterable
from typing import IO, Any, NamedTuple

import click
from rich.console import Console, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from relight.console.text import clean
from relight.domain.incidents import Outcome, Phase

PIPE_WIDTH = 200
"""Columns where the output is no terminal and COLUMNS does not say."""

STYLES: dict[str, str] = {
    Outcome.RECOVERED: "green",
    Outcome.ADOPTED: "green",
    Outcome.SUCCEEDED_BY: "green",
    Outcome.OBSERVED: "cyan",
    Outcome.RESTARTED_UNVERIFIED: "yellow",
    Outcome.STOPPED: "yellow",
    Outcome.EXPIRED: "yellow",
    Outcome.REJECTED: "yellow",
    Outcome.FAILED: "bold red",
    Outcome.RESTARTED_NO_PROGRESS: "bold red",
    Outcome.OVERRIDDEN: "dim",
    Outcome.SUPERSEDED: "dim",
    Outcome.NOT_CONFIRMED: "dim",
    Phase.WAITING: "bold yellow",
}
"""How outcomes and phases look; every other phase is work in progress."""


class Part(NamedTuple):
    """One labelled part of a story."""

    label: str
    lines: tuple[Text, ...]


def screen() -> Console:
    """The console on standard output. Markup, emoji and highlighting are off: text from logs is shown as it is."""
    wide = None if sys.stdout.isatty() or os.environ.get("COLUMNS") else PIPE_WIDTH
    return Console(file=sys.stdout, width=wide, markup=False, emoji=False, highlight=False, soft_wrap=False)


def paper(console: Console, file: IO[str]) -> Console:
    """A console that writes into `file` what it would print on the other one."""
    return Console(
        file=file,
        width=console.width,
        force_terminal=console.is_terminal,
        color_system=console.color_system,  # type: ignore[arg-type]
        markup=False,
        emoji=False,
        highlight=False,
    )


def state_style(state: str) -> str:
    """The style of an outcome or phase."""
    return STYLES.get(state, "blue")


def words(text: str, style: str = "", limit: int = 0) -> Text:
    """Text that is safe on a terminal, in a style."""
    return Text(clean(text, limit), style=style)


def joined(parts: Iterable[tuple[str, str]], between: str = "  ") -> Text:
    """Pieces with a style each, empty ones left out."""
    line = Text()
    for text, style in parts:
        if text:
            line.append(between if line else "").append(clean(text), style=style)
    return line


def grid(parts: Iterable[Part], indent: int = 0) -> RenderableType:
    """The parts one below the other, labels in a column of their own."""
    table = Table.grid(padding=(0, 2, 0, 0))
    table.add_column(style="dim", no_wrap=True, min_width=8)
    table.add_column(overflow="fold")
    for part in parts:
        for number, line in enumerate(part.lines):
            table.add_row(part.label if number == 0 else "", line)
    return Padding(table, (0, 0, 0, indent)) if indent else table


def print_json(value: Any) -> None:
    """Print JSON in pure ASCII: what a log line holds is escaped, and lost nowhere."""
    click.echo(json.dumps(value, indent=2, ensure_ascii=True))
