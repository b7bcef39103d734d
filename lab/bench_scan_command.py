"""`relight lab bench scan`."""

import json
from typing import Any

import click
from rich.table import Table

from relight.console.output import screen
from relight.lab import bench_scan


@click.command()
@click.option("--size", type=click.IntRange(1), default=1000, show_default=True, help="MB of one log, beside rg -j1.")
@click.option(
    "--files", type=click.IntRange(0), default=2048, show_default=True, help="Logs of as many ranks; 0: none."
)
@click.option("--files-size", type=click.IntRange(1), default=2000, show_default=True, help="MB in all of them.")
@click.option(
    "--stream", type=click.IntRange(0), default=10_000, show_default=True, help="MB, for the memory; 0: none."
)
@click.option("--storm", type=click.IntRange(0), default=2000, show_default=True, help="MB of echoes; 0: none.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def scan(*, size: int, files: int, files_size: int, stream: int, storm: int, as_json: bool) -> None:
    """How fast logs are scanned for all signatures, and in how much memory.

    \b
    The keys of --json:
      start   {first_s, again_s}   `relight diagnose` on a log of one line,
              with nothing compiled before, and again
      one     {bytes, patterns, prepared_s, seconds, gb_per_s, lines_found,
              rg: {...} or why not, ratio_to_rg}
      many    {files, bytes, cores, read_s, diagnosed_s, verdict, ranks,
              peak_mib}
      stream  {bytes, seconds, gb_per_s, found, peak_mib}
      storm   the same, of a watchdog's echoes
      goals, order, machine
    """  # noqa: D301 -- click's \b keeps the lines of a paragraph
    order = bench_scan.Order(size=size, files=files, files_size=files_size, stream=stream, storm=storm)
    result = bench_scan.measure(order, lambda line: click.echo(line, err=True))
    if as_json:
        click.echo(json.dumps(result))
    else:
        screen().print(_table(result))


def _table(result: dict[str, Any]) -> Table:
    table = Table("what", "measured", "goal", box=None)
    one, start = result["one"], result["start"]
    table.add_row("relight diagnose, small log, twice", f"{start['first_s']} s, {start['again_s']} s", "")
    table.add_row(f"{one['bytes'] / 1e9:g} GB, {one['patterns']} patterns", f"{one['gb_per_s']} GB/s", "")
    rg, goals = one["rg"], result["goals"]
    if isinstance(rg, str):
        table.add_row("rg -j1", rg, "")
    else:
        table.add_row("rg -j1, the same", f"{rg['gb_per_s']} GB/s", "")
        table.add_row("times as fast as rg -j1", str(one["ratio_to_rg"]), str(goals["ratio_to_rg"]))
    if many := result.get("many"):
        text = f"read in {many['read_s']} s, read and diagnosed in {many['diagnosed_s']} s: {many['verdict']}"
        table.add_row(
            f"{many['files']} logs, {many['bytes'] / 1e9:.2g} GB, {many['cores']} cores", text, f"{goals['many_s']} s"
        )
    for name in ("stream", "storm"):
        if part := result.get(name):
            text = f"{part['gb_per_s']} GB/s, {part['peak_mib']} MiB"
            table.add_row(f"{name} of {part['bytes'] / 1e9:g} GB", text, f"{goals['stream_peak_mib']} MiB")
    return table
