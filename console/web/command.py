"""`relight console`: serve the web console; make and take away the tokens that people sign in with."""

from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING

import click

from relight.config.console import Role
from relight.console.cli import with_config, with_output
from relight.console.errors import NotFoundStop, Stop, plainly

if TYPE_CHECKING:
    from relight.config.settings import Settings


@click.group(invoke_without_command=True)
@with_config
@click.option("--dev", is_flag=True, help="Let everybody in, as admin; on loopback only.")
@click.option("--listen", metavar="HOST:PORT", help="Instead of console.listen.")
@click.pass_context
@plainly
def console(ctx: click.Context, config: Path | None, *, dev: bool, listen: str | None) -> None:
    """Serve the web console and its HTTP API, or manage who signs in to it.

    Without a command it serves, until Ctrl-C.
    """
    from relight.console.context import settings_from

    settings = settings_from(config)
    ctx.obj = settings
    if ctx.invoked_subcommand:
        return
    try:
        from relight.console.web.app import serve
    except ModuleNotFoundError as error:
        raise Stop(f"the web console needs {error.name}: pip install 'relight[console]'") from error
    if listen:
        from pydantic import ValidationError

        from relight.config.console import ConsoleSettings

        try:
            changed = ConsoleSettings.model_validate({**settings.console.model_dump(), "listen": listen})
        except ValidationError as error:
            raise Stop(f"--listen {listen}: {error.errors(include_url=False)[0]['msg']}") from error
        settings = settings.model_copy(update={"console": changed})
    serve(settings, dev=dev, config=config)


@console.group("token")
def token() -> None:
    """Tokens that people sign in with. Their hashes are kept, they themselves are shown once."""


def _expiry(_ctx: click.Context, _param: click.Parameter, value: str | None) -> timedelta | None:
    from relight.domain.human import duration

    try:
        return duration(value) if value else None
    except ValueError as error:
        raise click.BadParameter(str(error)) from error


@token.command("add")
@click.argument("name")
@click.option("--role", type=click.Choice([str(role) for role in Role]), required=True, help="What they may.")
@click.option("--expires", callback=_expiry, metavar="SPAN", help="How long it is good: 30d, 12h. Left out: for ever.")
@click.pass_obj
@plainly
def add(settings: "Settings", name: str, role: str, expires: timedelta | None) -> None:
    """Make a token for NAME, the person's user name on the cluster, and print it."""
    from pydantic import ValidationError

    from relight.clients.console_tokens import Tokens, TokensFileError
    from relight.console.context import now

    tokens, at = Tokens(settings.console_tokens), now()
    try:
        made = tokens.add(name, Role(role), at, at + expires if expires else None)
    except ValidationError as error:
        raise Stop(f"{name!r} is no user name: letters, digits and . _ @ -, at most 64") from error
    except TokensFileError as error:
        raise Stop(str(error)) from error
    click.echo(made)
    click.echo(f"For {name} ({role}). It is shown this once; only its hash is kept in {tokens.path}.", err=True)


@token.command("list")
@with_output
@click.pass_obj
@plainly
def listed(settings: "Settings", output: str) -> None:
    """List them: whose, what they may, until when. They themselves are kept nowhere."""
    from rich.table import Table

    from relight.clients.console_tokens import Tokens, TokensFileError
    from relight.console.context import now
    from relight.console.output import print_json, screen, words
    from relight.console.text import local

    try:
        known = Tokens(settings.console_tokens).all()
    except TokensFileError as error:
        raise Stop(str(error)) from error
    if output == "json":
        print_json([each.model_dump(mode="json", exclude={"hash"}) for each in known])
        return
    at = now()
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="dim", pad_edge=False)
    for title in ("TOKEN", "NAME", "ROLE", "MADE", "UNTIL"):
        table.add_column(title, no_wrap=True)
    for each in known:
        until = local(each.expires_at, at) if each.expires_at else "for ever"
        style = "" if each.good(at) else "red"
        table.add_row(
            words(each.id), words(each.name), words(each.role), words(local(each.created_at, at)), words(until, style)
        )
    screen().print(table if known else words("No tokens: relight console token add NAME --role ROLE"))


@token.command("revoke")
@click.argument("which", metavar="TOKEN|NAME")
@click.pass_obj
@plainly
def revoke(settings: "Settings", which: str) -> None:
    """Take a token away by its id, or all of a person; sessions begun with it end at once."""
    from relight.clients.console_tokens import Tokens, TokensFileError
    from relight.console.text import count

    try:
        gone = Tokens(settings.console_tokens).remove(which)
    except TokensFileError as error:
        raise Stop(str(error)) from error
    if not gone:
        raise NotFoundStop(f"no token {which}, and nobody of that name has one\nrelight console token list")
    click.echo(f"{count(len(gone), 'token')} revoked: {', '.join(f'{each.id} of {each.name}' for each in gone)}")


@console.command("key")
@click.pass_obj
@plainly
def key(settings: "Settings") -> None:
    """Print the console's public key, for approvals.approvers; make the key where there is none."""
    from relight.clients.signing_keys import KeyFileError, make_key, public_half, read_key

    path = settings.console_key
    try:
        if not path.exists():
            make_key(path)
        public = public_half(read_key(path, private_to_owner=True))
    except KeyFileError as error:
        raise Stop(str(error)) from error
    click.echo(public)
    click.echo(
        "List it where the controller worker reads its settings:\n"
        "approvals:\n  approvers:\n"
        f'    - {{name: console, key: "{public}", may: [restart], vouches_for: [NAME, ...], owner_may: [restart]}}',
        err=True,
    )
