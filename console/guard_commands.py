"""`relight pause`, `relight resume` and `relight breaker`: a person's word to the guard."""

from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from relight.console.cli import with_config, with_output
from relight.console.errors import plainly

if TYPE_CHECKING:
    from relight.domain.base import Value

F = TypeVar("F", bound=Callable[..., Any])


class _Length(click.ParamType[timedelta]):
    """A length of time with its unit."""

    name = "duration"

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> timedelta:
        from relight.domain.human import duration

        try:
            return duration(value)
        except ValueError as error:
            self.fail(f"{str(value)!r} {error}", param, ctx)


def _scoped(function: F) -> F:
    """What `pause` and `resume` share."""
    function = click.option("--node", default="", metavar="NAME", help="Only this node.")(function)
    function = click.option("--partition", default="", metavar="NAME", help="Only this partition.")(function)
    return with_config(function)


@click.command()
@_scoped
@click.option("--for", "lasts", type=_Length(), required=True, metavar="LENGTH", help="How long: 30m, 2h, 7d.")
@click.option("--reason", required=True, help="Why; goes into the ledger.")
@plainly
def pause(config: Path | None, lasts: timedelta, reason: str, partition: str, node: str) -> None:
    """Only observe for a while: nothing is done, asked or unasked, and no node is drained.

    For the cluster, one partition (its jobs and its nodes) or one node (which is then not drained). It ends by itself.
    What is half done is finished; exclusions, drains and holds of Relight's own may still be taken back.
    """
    from relight.activities.contracts import PauseInput
    from relight.console.signer import person

    word = PauseInput(by=person(), reason=reason, lasts=lasts, partition=partition, node=node)
    _say(config, "pause", word)


@click.command()
@_scoped
@plainly
def resume(config: Path | None, partition: str, node: str) -> None:
    """End the pause of the cluster, or of that partition or node."""
    from relight.activities.contracts import ResumeInput
    from relight.console.signer import person

    _say(config, "resume", ResumeInput(by=person(), partition=partition, node=node))


@click.group(invoke_without_command=True)
@with_config
@with_output
@click.pass_context
@plainly
def breaker(ctx: click.Context, config: Path | None, output: str) -> None:
    """Show whether the breaker is open, who has paused what, and how much of the limits is used.

    Ends with 1 while the breaker is open or the kill switch is on.
    """
    if ctx.invoked_subcommand is None:
        _show(config, output)


@breaker.command()
@with_config
@click.option("--reason", required=True, help="What was found and done; goes into the ledger.")
@plainly
def reset(config: Path | None, reason: str) -> None:
    """Close the breaker: Relight acts again on what begins from now on.

    What began before is not carried out later: not a plan that waits for approval, nor a node that leave was asked for.
    """
    from relight.activities.contracts import ResetInput
    from relight.console.signer import person

    _say(config, "reset_breaker", ResetInput(by=person(), reason=reason))


def _say(config: Path | None, update: str, word: "Value") -> None:
    from relight.console import guard
    from relight.console.context import connected, run, settings_from

    async def work() -> str:
        settings = settings_from(config)
        return await guard.say(await connected(settings), settings.cluster, update, word)

    click.echo(run(work()))


def _show(config: Path | None, output: str) -> None:
    from relight.console import guard
    from relight.console.context import now, opened, run, settings_from
    from relight.console.output import Part, grid, print_json, screen, words

    async def work() -> guard.Guarded:
        settings = settings_from(config)
        async with opened(settings) as ledger:
            return await guard.collect(ledger, settings, now())

    found = run(work())
    if output == "json":
        print_json(guard.as_json(found))
    else:
        state = "open" if found.standing.trip else "unknown" if found.standing.unknown else "closed"
        reset_ = found.standing.reset
        last = f"; last reset by {reset_.by}: {reset_.reason}" if reset_ else ""
        parts = [Part("Breaker", (words(f"{state}{last}", "bold red" if state != "closed" else "green", 400),))]
        screen().print(grid([*parts, Part("Guard", guard.lines(found))]))
    if found.stopped:
        raise click.exceptions.Exit(1)
