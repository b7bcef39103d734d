"""`relight lab bench attribution`."""

import json
import sys
from pathlib import Path

import click

from relight.attribution.context_file import ContextFileError
from relight.console.output import screen
from relight.lab.bench_attribution import measure
from relight.lab.bench_attribution_labels import CorpusError
from relight.lab.bench_attribution_report import report

FAILED = 1


@click.command()
@click.option("--corpus", required=True, metavar="DIR", type=click.Path(path_type=Path), help="Logs and labels.tsv.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def attribution(corpus: Path, *, as_json: bool) -> None:
    """How right diagnoses are, on logs in DIR whose truth is known.

    DIR/labels.tsv has a row for each log, with at least the columns file, category and action; action_if_it_repeats,
    implicated_rank_or_node and signature_id are scored where they are there. file may also name a folder that holds all
    logs of one job. Beside NAME.log may lie NAME.context.json or .yaml (what Slurm knows: nodes, rank_map, state and
    more) and NAME.kernel-NODE.log. A label's `rank 5 on node n2`, `ranks 4,5`, `local_rank 1`, `node01`, `GPU dc:00` or
    `none` is checked; free text is counted.

    \b
    The keys of --json:
      cases, corpus, seconds
      category, action, both, repeats, signature
                        {of, right, share}
      localisation      {checked, exact, partly, silent, wrong, share (exact
                        or partly), nobody, nobody_but_named, free_text}
      healthy_isolated  {cases, nodes: [{file, nodes}]}
      confusion         {category, action: {label: {verdict: count}}}
      calibration       {mean_confidence_right, mean_confidence_wrong, brier,
                        deciles: [{from, to, of, right, share,
                        mean_confidence}]}
      misses            [{file, label, got: {category, action, who},
                        signature, confidence, naming, healthy_isolated}]
      unreadable        logs that could not be read or are empty
    Exit codes: 0 measured, 1 the corpus cannot be used, 2 wrong usage.
    """  # noqa: D301 -- click's \b keeps the lines of a paragraph
    try:
        result = measure(corpus)
    except (CorpusError, ContextFileError) as error:
        click.echo(f"Error: {error}", err=True)
        sys.exit(FAILED)
    if as_json:
        click.echo(json.dumps(result))
    else:
        screen().print(report(result))
