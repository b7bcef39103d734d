"""`relight relay`: one process per rack, so that the controller hears of many agents at once."""

import asyncio
import logging
import sys
from typing import Any, NamedTuple

import click

from relight.config.settings import ConfigError
from relight.console.errors import plainly


class Options(NamedTuple):
    """What the command line says."""

    listen: str
    controller: str
    token_file: str
    ca: str | None = None
    tls_cert: str = ""
    tls_key: str = ""
    insecure: bool = False


@click.command()
@click.option("--listen", required=True, metavar="HOST:PORT", help="Where agents reach it.")
@click.option("--controller", required=True, metavar="URL", help="The controller's endpoint for agents.")
@click.option("--token-file", required=True, metavar="FILE", help="Holds what `relight agent-token relay` prints.")
@click.option("--ca", metavar="FILE", help="Trust these certificates of the controller instead of the system's.")
@click.option("--tls-cert", default="", metavar="FILE", help="PEM file of the certificate that agents are shown.")
@click.option("--tls-key", default="", metavar="FILE", help="Its key.")
@click.option("--insecure", is_flag=True, help="Plain HTTP beyond this machine: who listens in can speak for nodes.")
@click.option("-v", "--verbose", is_flag=True, help="Log more.")
@plainly
def relay(*, verbose: bool, **options: Any) -> None:
    """Forward the reports of many node agents to the controller, together."""
    logging.basicConfig(
        level=logging.INFO if verbose else logging.WARNING,
        format="%(asctime)s %(levelname)s %(name)s: %(message)s",
        stream=sys.stderr,
    )
    try:
        from relight.workers.relay_server import run
    except ModuleNotFoundError as error:
        raise ConfigError(f"{error.name} is not installed: pip install 'relight[http]'") from error
    asyncio.run(run(Options(**options)))
