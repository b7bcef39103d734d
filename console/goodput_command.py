"""The command `relight goodput`."""

from datetime import timedelta
from pathlib import Path
from typing import Any

import click

from relight.console.cli import JOB, with_config, with_output
from relight.console.errors import Stop, plainly

_KINDS = (".svg", ".html")


class Since(click.ParamType[timedelta]):
    """How far back, such as `7d`."""

    name = "since"

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> timedelta:
        """Read it; at most ten years, so that it names a time."""
        from relight.domain.human import ACCEPTED_DURATIONS, duration

        try:
            found = duration(value)
        except ValueError:
            self.fail(f"{str(value)[:60]!r} is no length of time; accepted: {ACCEPTED_DURATIONS}", param, ctx)
        if not timedelta(0) < found <= timedelta(days=3650):
            self.fail(f"{str(value)[:60]!r} is too long or nothing; accepted: more than 0s, up to 3650d", param, ctx)
        return found


SINCE = Since()


@click.command()
@with_config
@with_output
@click.argument("job", type=JOB, metavar="[JOB]", required=False)
@click.option("--partition", default="", metavar="NAME", help="All jobs of this partition.")
@click.option("--account", default="", metavar="NAME", help="All jobs of this account.")
@click.option("--cluster", is_flag=True, help="All jobs; so it is where nothing else is named.")
@click.option("--since", type=SINCE, metavar="7d", help="Only what ran so long ago or later; 7d, of a job all of it.")
@click.option("--json", "as_json", is_flag=True, help="As --output json.")
@click.option("--chart", type=click.Path(path_type=Path, dir_okay=False), help="Also draw it: FILE.svg or FILE.html.")
@plainly
def goodput(
    config: Path | None,
    output: str,
    *,
    job: Any,
    partition: str,
    account: str,
    cluster: bool,
    since: timedelta | None,
    as_json: bool,
    chart: Path | None,
) -> None:
    """Say where time went: training that counts, and what was lost to which cause.

    JOB is a Slurm job id: 123, 123_4 (array task) or 123+1 (component); its attempts are told one by one.
    """
    from relight.console import goodput as reading
    from relight.console.accounting import accounting_of
    from relight.console.context import now, opened, run, settings_from
    from relight.console.goodput_chart import chart as drawn
    from relight.console.goodput_chart import page
    from relight.console.goodput_json import as_json as plain
    from relight.console.goodput_text import tell
    from relight.console.output import print_json, screen
    from relight.domain.goodput_report import Report

    if job is not None and (partition or account or cluster):
        raise click.UsageError("JOB names one job: leave out --partition, --account and --cluster")
    if cluster and (partition or account):
        raise click.UsageError("--cluster means all jobs: leave out --partition and --account")
    if chart is not None and chart.suffix.lower() not in _KINDS:
        raise click.UsageError(f"--chart {chart.name}: accepted are names that end with {' or '.join(_KINDS)}")
    wanted = reading.Wanted(job=job, partition=partition, account=account, since=since)

    async def work() -> Report:
        settings = settings_from(config)
        async with opened(settings) as ledger, accounting_of(settings) as accounting:
            return await reading.account(ledger, settings, wanted, now(), accounting)

    told = run(work())
    if chart is not None:
        text = page(told) if chart.suffix.lower() == ".html" else drawn(told)
        try:
            chart.write_text(text, encoding="utf-8")
        except OSError as error:
            raise Stop(f"{chart}: {error.strerror}") from error
    if as_json or output == "json":
        print_json(plain(told))
    else:
        tell(screen(), told)
