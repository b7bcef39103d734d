"""The command `relight lab chaos`."""

import json
import signal
import sys

import click

from relight.console.output import screen
from relight.lab import packages
from relight.lab.errors import ClusterError
from relight.lab.ports import NoFreePortsError
from relight.lab.postgres import Postgres, PostgresError
from relight.lab.processes import DaemonStartError, WaitTimeoutError
from relight.lab.stack import StackError
from relight.lab.temporal import TemporalError

FAILED, INTERRUPTED = 1, 130
CANNOT_START = (
    ClusterError,
    StackError,
    TemporalError,
    PostgresError,
    packages.SlurmNotInstallableError,
    WaitTimeoutError,
    DaemonStartError,
    NoFreePortsError,
    OSError,
)


@click.command()
@click.option("--trials", type=click.IntRange(1), default=200, show_default=True)
@click.option("--seed", type=click.IntRange(0), default=1, show_default=True, help="Of the first; +1 for each next.")
@click.option("--at-once", type=click.IntRange(1, 24), default=8, show_default=True, help="Jobs beside each other.")
@click.option("--ledger", type=click.Choice(["postgresql", "sqlite"]), help="Default: PostgreSQL where there is one.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
@click.option("--keep", is_flag=True, help="Leave the folder with all logs.")
def chaos(*, trials: int, seed: int, at_once: int, ledger: str | None, as_json: bool, keep: bool) -> None:
    """Kill, stop and slow down everything while jobs are recovered, and check that nothing is lost or done twice.

    Needs root. Everything is real: Slurm with accounting, Temporal, worker, agents, database. A trial is played again
    with --trials 1 --seed and its seed.
    """
    try:
        # Only this needs what agents and their endpoint need.
        from relight.lab import chaos as harness  # noqa: PLC0415
        from relight.lab import chaos_report  # noqa: PLC0415
    except ModuleNotFoundError as error:
        raise click.ClickException(f"{error.name} is not installed: pip install 'relight[agent,http,lab]'") from None
    # Ended by SIGTERM, too, it tells what it has.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        packages.ensure(accounting=True, production=True, say=_say)
        order = harness.Order(trials=trials, seed=seed, at_once=at_once, postgres=_in_postgres(ledger), keep=keep)
        told = chaos_report.result(order, harness.run(order, _say))
    except CANNOT_START as error:
        raise click.ClickException(str(error)) from None
    if as_json:
        click.echo(json.dumps(told))
    else:
        screen().print(chaos_report.report(told))
    if not chaos_report.good(told):
        sys.exit(INTERRUPTED if told["interrupted"] else FAILED)


def _in_postgres(ledger: str | None) -> bool:
    why = Postgres.lacking()
    if ledger == "postgresql" and why:
        raise PostgresError(why)
    if ledger is None and why:
        _say(f"{why}: the ledger is in SQLite")
    return ledger == "postgresql" or (ledger is None and not why)


def _say(text: str) -> None:
    click.echo(text, err=True)
