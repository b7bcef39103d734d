"""`relight audit` and `relight ledger`: the audit trail and the database it lies in."""

import itertools
import sys
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from relight.console.cli import with_config, with_output
from relight.console.errors import Stop, plainly

if TYPE_CHECKING:
    from relight.config.settings import Settings
    from relight.console.audit import Filters

F = TypeVar("F", bound=Callable[..., Any])
_ANY = click.Path(path_type=Path)


class _Moment(click.ParamType[datetime]):
    """A time, or how long ago."""

    name = "time"

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> datetime:
        from relight.console.context import now
        from relight.domain.human import duration

        if isinstance(value, datetime):
            return value
        text = str(value)
        try:
            at = datetime.fromisoformat(text)
        except ValueError:
            try:
                length: timedelta = duration(text)
                return now() - length
            except (ValueError, OverflowError):
                self.fail(
                    f"{text!r} is no time; accepted: 2026-11-30, 2026-11-30T09:27, 2026-11-30T09:27Z, or how long ago: "
                    "30m, 2h, 7d",
                    param,
                    ctx,
                )
        return (at if at.tzinfo else at.astimezone()).astimezone(UTC)


def _filtered(function: F) -> F:
    """Add what `log` and `export` filter by."""
    from relight.domain.ledger import RowKind

    kinds = click.Choice([kind.value for kind in RowKind])
    function = click.option("--until", type=_Moment(), metavar="TIME", help="Only what was written before.")(function)
    function = click.option("--since", type=_Moment(), metavar="TIME", help="Only from then on: a time, 2h, 7d.")(
        function
    )
    function = click.option("--kind", "kinds", type=kinds, multiple=True, metavar="KIND", help="Only of this kind.")(
        function
    )
    function = click.option("--who", default="", metavar="NAME", help="Only what this person said or did.")(function)
    function = click.option("--node", default="", metavar="NAME", help="Only about this node.")(function)
    function = click.option("--job", default="", metavar="ID", help="Only about this job: 123, 123_4, 123+1.")(function)
    return click.option("--incident", default="", metavar="ID", help="Only of this incident.")(function)


@click.group()
def audit() -> None:
    """Check, list or export the audit trail."""


@audit.command()
@with_config
@click.option("--anchors", type=_ANY, multiple=True, metavar="PATH", help="A file, log or repository with anchors.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
@plainly
def verify(config: Path | None, anchors: tuple[Path, ...], *, as_json: bool) -> None:
    """Prove that nothing was changed, and that nothing was done without leave.

    Checks every row's hash and place, the end by the anchors (those that the settings name and are read here, and those
    given), and each incident's life cycle, people's signatures included. Ends with 1 when something is wrong, with 2
    when it could not be checked.
    """
    from relight.console import audit as trail
    from relight.console.context import settings_from
    from relight.console.output import print_json, screen

    def say(checked: int) -> None:
        if not as_json and sys.stderr.isatty():
            click.echo(f"\r{checked} rows", nl=False, err=True)

    report = trail.verify(settings_from(config), anchors, say)
    if as_json:
        print_json(trail.as_json(report))
    else:
        trail.tell(screen(), report)
    if not report.ok:
        raise click.exceptions.Exit(1)


@audit.command()
@with_config
@with_output
@_filtered
@click.option(
    "-n", "--limit", type=click.IntRange(1, 10_000), default=50, show_default=True, help="The newest so many."
)
@plainly
def log(config: Path | None, output: str, *, limit: int, **filters: Any) -> None:
    """List rows of the audit trail, the newest last."""
    from relight.console import audit as trail
    from relight.console.context import now, settings_from
    from relight.console.output import print_json, screen
    from relight.domain.audit_events import as_row

    settings = settings_from(config)
    found = list(itertools.islice(trail.rows(settings, _filters(settings, filters), backwards=True), limit))[::-1]
    if output == "json":
        print_json([as_row(row) for row in found])
    elif found:
        trail.print_rows(screen(), found, now())
    else:
        click.echo("relight: no row fits", err=True)


@audit.command()
@with_config
@_filtered
@click.option(
    "--format", "form", type=click.Choice(["jsonl", "cloudevents"]), default="jsonl", show_default=True, help="As what."
)
@plainly
def export(config: Path | None, form: str, **filters: Any) -> None:
    """Print rows as JSON, one a line, the oldest first: whole rows, or events of CloudEvents 1.0."""
    from relight.console import audit as trail
    from relight.console.context import settings_from

    settings = settings_from(config)
    for row in trail.rows(settings, _filters(settings, filters)):
        click.echo(trail.line_of(row, cloudevents=form == "cloudevents"))


def _filters(settings: "Settings", given: dict[str, Any]) -> "Filters":
    from relight.clients.ledger_audit import Wanted
    from relight.console.audit import Filters, named
    from relight.console.context import run
    from relight.domain.ledger import RowKind

    incident, attempts = run(named(settings, given["incident"], given["job"]))
    wanted = Wanted(
        incident=incident,
        attempts=attempts,
        node=given["node"],
        kinds=tuple(RowKind(kind) for kind in given["kinds"]),
        since=given["since"],
        until=given["until"],
    )
    return Filters(wanted, given["who"])


@click.group()
def ledger() -> None:
    """Bring the ledger's database up to date, and say who may do what in it."""


@ledger.command()
@with_config
@click.option("--url", default="", metavar="URL", help="The ledger's address as the role that owns its tables.")
@plainly
def upgrade(config: Path | None, url: str) -> None:
    """Make the ledger's tables, or bring them to what this version works with; harmless where they are.

    An SQLite ledger is brought up to date by the worker that opens it. One in PostgreSQL is by this command, run as the
    role that owns the tables: --url postgresql+psycopg://owner@db/relight.
    """
    from relight.clients.ledger_versions import upgrade_at
    from relight.console.context import settings_from

    before, after = upgrade_at(url or settings_from(config).ledger_url)
    if before == after:
        click.echo(f"the ledger has schema {after}: nothing to do")
    else:
        click.echo(f"the ledger has schema {after} now" + (f", it had {before}" if before else ", made anew"))


@ledger.command()
@click.argument("role")
@click.option("--read-only", is_flag=True, help="For the console or an auditor.")
@plainly
def grants(role: str, *, read_only: bool) -> None:
    """Print the SQL that lets a PostgreSQL ROLE work with the ledger.

    It can add rows to the audit trail, and neither change nor remove any.

    Run it as the role that owns the tables: relight ledger grants relight_worker | psql relight
    """
    from relight.clients.ledger_grants import sql

    try:
        click.echo(sql(role, read_only=read_only))
    except ValueError as error:
        raise Stop(str(error)) from error
