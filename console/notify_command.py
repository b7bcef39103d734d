"""`relight notify`: try the channels by which people are told."""

from pathlib import Path

import click

from relight.console.cli import with_config, with_output
from relight.console.errors import plainly


@click.group()
def notify() -> None:
    """Try the channels by which people are told; how they stand is in `relight status`."""


@notify.command()
@with_config
@with_output
@click.argument("channel", required=False, default="")
@plainly
def test(config: Path | None, output: str, channel: str) -> None:
    """Send a message that says it is a test, by CHANNEL or by all, and say what came back.

    Where each user gets the own notices, you are the user. Ends with 1 when one does not get through.
    """
    from relight.console.context import now, run, settings_from, user_name
    from relight.console.notify import try_channels
    from relight.console.output import print_json, screen, words

    tried = run(try_channels(settings_from(config), channel, user_name(), now()))
    if output == "json":
        print_json([each._asdict() for each in tried])
    else:
        for each in tried:
            how, style = ("sent", "green") if each.good else ("not sent", "bold red")
            screen().print(words(f"{each.channel}: {how}: {each.text}", style, 400))
    if not all(each.good for each in tried):
        raise click.exceptions.Exit(1)
