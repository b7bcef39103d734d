"""The commands `relight nodes`, `relight release` and `relight keep`."""

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from relight.console.cli import with_config, with_output
from relight.console.errors import Stop, plainly
from relight.console.watching import shown, with_watch

if TYPE_CHECKING:
    from rich.console import Console

F = TypeVar("F", bound=Callable[..., Any])
_PATH = click.Path(path_type=Path, dir_okay=False)


def _complete_nodes(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[str]:
    """Nodes in care, for the shell; nothing at all where the ledger cannot be read."""
    from relight.clients.node_history import in_care
    from relight.console.context import now, opened, run, settings_from

    del param

    async def names() -> list[str]:
        settings = settings_from(ctx.params.get("config"))
        async with opened(settings) as ledger:
            known = await in_care(ledger, settings.cluster, now())
        return [each.node for each in known if each.open and each.node.startswith(incomplete)]

    try:
        return run(names())
    except Exception:  # noqa: BLE001 - completion must never disturb the prompt
        return []


@click.command()
@with_config
@with_output
@click.option("--all", "everything", is_flag=True, help="Also those whose care is over.")
@click.argument("names", metavar="[NODE]...", nargs=-1, shell_complete=_complete_nodes)
@with_watch
@plainly
def nodes(config: Path | None, output: str, names: tuple[str, ...], *, everything: bool, watch: bool) -> None:
    """List nodes in quarantine, with their lemon scores; or tell one node's story.

    NODE is a name or a hostlist: gpu-[001-004]. One name tells its story, with the ticket; several make a list.
    """
    from relight.console import nodes as page
    from relight.console.context import now, opened, run, settings_from
    from relight.console.output import print_json

    wanted = page.expand(names)

    async def work() -> None:
        settings = settings_from(config)
        async with opened(settings) as ledger:

            async def draw(console: "Console") -> None:
                if len(wanted) == 1:
                    page.tell(console, await page.story(ledger, settings, wanted[0], now()), now())
                else:
                    found = await page.collect(ledger, settings, wanted, now(), everything=everything)
                    page.print_table(console, found, now())

            if output == "table":
                await shown(draw, watch=watch)
            elif len(wanted) == 1:
                print_json(page.story_as_json(await page.story(ledger, settings, wanted[0], now())))
            else:
                listed = await page.collect(ledger, settings, wanted, now(), everything=everything)
                print_json([page.as_json(each) for each in listed.listed])

    run(work())


def _word(function: F) -> F:
    """What `release` and `keep` share."""
    function = click.option("--reason", required=True, help="Why; goes into the ledger.")(function)
    function = click.argument("node", metavar="NODE", shell_complete=_complete_nodes)(function)
    return with_config(function)


@click.command()
@_word
@click.option("--key", type=_PATH, metavar="PATH", help="Your SSH key (Ed25519, private half); else ~/.ssh/id_ed25519.")
@plainly
def release(config: Path | None, node: str, reason: str, key: Path | None) -> None:
    """Say that NODE is repaired: it is checked again, and returned to service if it is well.

    Signed as `relight approve` is; where the policy asks people about a return, this is your approval.
    """
    from relight.console import nodes_word
    from relight.console.context import connected, now, run, settings_from

    said = _said(reason)

    async def work() -> str:
        settings = settings_from(config)
        client = await connected(settings)
        status = await nodes_word.status_of(client, settings, node)
        return await nodes_word.release(client, settings, status, reason=said, key=key, at=now())

    click.echo(run(work()))


@click.command()
@_word
@plainly
def keep(config: Path | None, node: str, reason: str) -> None:
    """Leave NODE in quarantine, whatever its checks say, until it is released."""
    from relight.console import nodes_word
    from relight.console.context import connected, run, settings_from

    said = _said(reason)

    async def work() -> str:
        settings = settings_from(config)
        client = await connected(settings)
        return await nodes_word.keep(client, await nodes_word.status_of(client, settings, node), said)

    click.echo(run(work()))


def _said(reason: str) -> str:
    if not reason.strip():
        raise click.UsageError("--reason must say why")
    if len(reason) > 2000:  # noqa: PLR2004 - a reason, not a report
        raise Stop(f"a reason of {len(reason)} characters; accepted: at most 2000")
    return reason.strip()
