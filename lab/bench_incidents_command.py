"""The command `relight lab bench incidents`."""

import json
import sys

import click

from relight.console.output import screen
from relight.lab import bench_incidents, packages
from relight.lab.errors import ClusterError
from relight.lab.ports import NoFreePortsError
from relight.lab.processes import DaemonStartError, WaitTimeoutError
from relight.lab.stack import StackError
from relight.lab.temporal import TemporalError

FAILED = 1
CANNOT = (
    ClusterError,
    StackError,
    TemporalError,
    packages.SlurmNotInstallableError,
    WaitTimeoutError,
    DaemonStartError,
    NoFreePortsError,
    OSError,
)


@click.command()
@click.option("--incidents", "number", type=click.IntRange(1, 400), default=200, show_default=True)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def incidents(*, number: int, as_json: bool) -> None:
    """Time from detection to decision, restart and recovery, with many jobs failing within two seconds."""
    try:
        packages.ensure(accounting=False, production=False, say=_say)
        told = bench_incidents.measure(bench_incidents.Order(incidents=number), _say)
    except CANNOT as error:
        raise click.ClickException(str(error)) from None
    if as_json:
        click.echo(json.dumps(told))
    else:
        screen().print(bench_incidents.report(told))
    if not bench_incidents.good(told):
        sys.exit(FAILED)


def _say(text: str) -> None:
    click.echo(text, err=True)
