"""`relight lab bench console`."""

import json
import sys
from typing import Any

import click
from rich.table import Table

from relight.console.output import screen
from relight.lab import bench_console
from relight.lab.ports import NoFreePortsError
from relight.lab.processes import DaemonStartError, WaitTimeoutError

FAILED = 1


@click.command()
@click.option("--incidents", type=click.IntRange(1), default=10_000, show_default=True)
@click.option("--rows", type=click.IntRange(0), default=1_000_000, show_default=True, help="Of the ledger in all.")
@click.option("--requests", type=click.IntRange(2), default=40, show_default=True, help="For each page.")
@click.option("--opened", type=click.IntRange(0), default=10, show_default=True, help="Before a browser; 0: none.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def console(*, incidents: int, rows: int, requests: int, opened: int, as_json: bool) -> None:
    """How fast the web console's pages are with a large ledger, and how soon a new incident shows.

    \b
    The keys of --json:
      pages_ms            by page: {p50, p95, max} of the server's whole answer
      incident_visible_s  {p50, p95, max} from commit to browser, or why not
      incidents, rows, goals, order, machine
    """  # noqa: D301 -- click's \b keeps the lines of a paragraph
    order = bench_console.Order(incidents=incidents, rows=rows, requests=requests, opened=opened)
    try:
        told = bench_console.measure(order, lambda line: click.echo(line, err=True))
    except (OSError, NoFreePortsError, DaemonStartError, WaitTimeoutError) as error:
        raise click.ClickException(str(error)) from None
    if as_json:
        click.echo(json.dumps(told))
    else:
        screen().print(_table(told))
    if any(each["p95"] > bench_console.GOALS["page_p95_ms"] for each in told["pages_ms"].values()):
        sys.exit(FAILED)


def _table(told: dict[str, Any]) -> Table:
    table = Table("page", "p50", "p95", "goal", box=None)
    for name, each in told["pages_ms"].items():
        table.add_row(name, f"{each['p50']} ms", f"{each['p95']} ms", f"{told['goals']['page_p95_ms']} ms")
    seen = told["incident_visible_s"]
    if isinstance(seen, dict):
        table.add_row("new incident visible", f"{seen['p50']} s", f"{seen['p95']} s", "1 s")
    elif seen:
        table.add_row("new incident visible", seen, "", "")
    return table
