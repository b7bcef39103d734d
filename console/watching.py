"""`--watch`: what a command prints, again and again, until Ctrl-C."""

import asyncio
import functools
import io
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any, TypeVar

import click

if TYPE_CHECKING:
    from rich.console import Console

F = TypeVar("F", bound=Callable[..., Any])
T = TypeVar("T")

EVERY_S = 2.0


def with_watch(function: F) -> F:
    """Add `--watch` to a command that has `--output`; Ctrl-C then ends it as if all were said."""

    @functools.wraps(function)
    def wrapped(*args: Any, watch: bool, output: str, **kwargs: Any) -> Any:
        if watch and output == "json":
            raise click.UsageError("--watch is for people: leave out --output json")
        try:
            return function(*args, watch=watch, output=output, **kwargs)
        except KeyboardInterrupt:
            if not watch:
                raise
            return None

    option = click.option("--watch", is_flag=True, help="Show it again every two seconds, until Ctrl-C.")
    return option(wrapped)  # type: ignore[return-value]


async def shown(draw: Callable[["Console"], Awaitable[T]], *, watch: bool) -> T:
    """Print it once; or again and again, on a terminal in the same place.

    While the ledger cannot be read the last picture stays, and below it stands since when, and why.

    Args:
        draw: prints on the console it is given.
        watch: whether again and again.
    """
    from rich.live import Live
    from rich.text import Text

    from relight.clients.ledger import LedgerUnavailableError
    from relight.console.context import now
    from relight.console.output import paper, screen, words

    console = screen()
    if not watch:
        return await draw(console)
    last, since = Text(), None
    with Live(console=console, auto_refresh=False, vertical_overflow="crop") as live:
        while True:
            page = io.StringIO()
            try:
                await draw(paper(console, page))
            except LedgerUnavailableError as error:
                if not last:
                    raise
                since = since or now()
                below = Text("\n").append_text(words(f"not read since {since:%H:%M:%S} UTC: {error}", "bold red"))
            else:
                last, since, below = Text.from_ansi(page.getvalue().rstrip("\n")), None, Text()
            picture = Text.assemble(last, below)
            if console.is_terminal:
                live.update(picture, refresh=True)
            else:
                console.print(picture)
            await asyncio.sleep(EVERY_S)
