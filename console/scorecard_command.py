"""The command `relight scorecard`."""

from datetime import timedelta
from pathlib import Path

import click

from relight.console.cli import with_config, with_output
from relight.console.errors import plainly
from relight.console.goodput_command import SINCE


@click.command()
@with_config
@with_output
@click.option(
    "--since", type=SINCE, default="30d", show_default=True, metavar="30d", help="Decisions no older than this."
)
@click.option("--json", "as_json", is_flag=True, help="As --output json.")
@plainly
def scorecard(config: Path | None, output: str, *, since: timedelta, as_json: bool) -> None:
    """Hold what Relight decided, done or only observed, against what happened; say what may go to auto.

    A decision is right or wrong by what its job's next attempt did and by its node's later fate. What nothing tells of
    is neither.
    """
    from relight.console import scorecard as reading
    from relight.console.accounting import accounting_of
    from relight.console.context import now, opened, run, settings_from
    from relight.console.output import print_json, screen
    from relight.console.scorecard_text import tell
    from relight.domain.scorecard_card import Card

    async def work() -> Card:
        settings, at = settings_from(config), now()
        async with opened(settings) as ledger, accounting_of(settings) as accounting:
            return await reading.card(ledger, settings, at - since, at, accounting)

    told = run(work())
    if as_json or output == "json":
        print_json(reading.as_json(told))
    else:
        tell(screen(), told)
