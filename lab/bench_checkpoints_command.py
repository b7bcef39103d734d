"""`relight lab bench checkpoints`."""

import json
from pathlib import Path
from typing import Any

import click
from rich.table import Table

from relight.console.output import screen
from relight.lab import bench_checkpoint_trials, bench_checkpoints


@click.command()
@click.option("--files", type=click.IntRange(200), default=100_000, show_default=True, help="In the tree.")
@click.option("--shards", type=click.IntRange(1), default=10_000, show_default=True, help="Of the large checkpoint.")
@click.option("--size", type=click.IntRange(1), default=1000, show_default=True, help="GB of it; sparse files.")
@click.option("--repeat", type=click.IntRange(1), default=5, show_default=True, help="Looks after a first one.")
@click.option("--trials", type=click.IntRange(0), default=50, show_default=True, help="Writers that are killed.")
@click.option("--seed", type=int, default=1, show_default=True, help="Draws the moments.")
@click.option("--folder", type=click.Path(path_type=Path, file_okay=False, exists=True), help="Where to write them.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def checkpoints(
    *, files: int, shards: int, size: int, repeat: int, trials: int, seed: int, folder: Path | None, as_json: bool
) -> None:
    """How long it takes to find and judge checkpoints, and what comes of writers killed at random moments.

    \b
    The keys of --json:
      discovery_s, discovery_first_s   a tree of many files, half of them
                                       checkpoints: median, and the first look
      guard_s, guard_first_s           one large checkpoint, without deep check
      discovery, guard                 what was found
      trials                           writers killed, in four layouts, half of
                                       them with a file cut short after that
      restarts_from_damaged            of those, went on from what is damaged
      false_recovered                  said to have moved, and had not
      killed                           what came of the trials
      repeat, goals, machine
    """  # noqa: D301 -- click's \b keeps the lines of a paragraph
    order = bench_checkpoints.Order(files, shards, size * 10**9, repeat)
    result = bench_checkpoints.measure(order, lambda line: click.echo(line, err=True), folder)
    result |= bench_checkpoint_trials.measure(trials, seed, lambda line: click.echo(line, err=True), folder)
    if as_json:
        click.echo(json.dumps(result))
    else:
        screen().print(_table(result))
        told = result["killed"]
        click.echo(
            f"{result['trials']} writers killed: {told['would_take_damaged']} would have gone on from a damaged one, "
            f"{result['restarts_from_damaged']} did; {told['went_back']} went back, {told['stopped']} were stopped; "
            f"{told['recovered']} said to have moved, {result['false_recovered']} wrongly"
        )


def _table(result: dict[str, Any]) -> Table:
    table = Table("what", "median", "first", "goal", box=None)
    tree, large, goals = result["discovery"], result["guard"], result["goals"]
    for what, key in (
        (f"a tree of {tree['files']} files, {tree['steps']} checkpoints", "discovery"),
        (f"a checkpoint of {large['shards']} shards, {large['bytes'] / 1e12:g} TB: {large['whole']}", "guard"),
    ):
        goal = f"{goals[f'{key}_s']} s" if f"{key}_s" in goals else ""
        table.add_row(what, f"{result[f'{key}_s']} s", f"{result[f'{key}_first_s']} s", goal)
    return table
