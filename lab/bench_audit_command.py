"""`relight lab bench audit`."""

import json

import click

from relight.lab import bench_audit


@click.command()
@click.option(
    "--rows", type=click.IntRange(1), default=bench_audit.ROWS, show_default=True, help="Of the ledger checked."
)
@click.option("--edits", type=click.IntRange(0), default=bench_audit.EDITS, show_default=True, help="Of random rows.")
@click.option("--seed", type=int, default=8, show_default=True, help="Which edits.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def audit(*, rows: int, edits: int, seed: int, as_json: bool) -> None:
    """How long the audit trail takes to check, and whether changes of it are found.

    Ends with 1 when one is not.
    """
    found = bench_audit.audit_bench(rows, edits, lambda line: click.echo(line, err=True), seed=seed)
    if as_json:
        click.echo(json.dumps(found))
    else:
        click.echo(f"{found['audit_rows']} rows checked in {found['audit_verify_s']} s, {found['audit_peak_mib']} MiB")
        click.echo(f"{found['audit_edits_found']} of {found['audit_edits_tried']} edits found")
    if found["audit_edits_found"] < found["audit_edits_tried"]:
        raise click.exceptions.Exit(1)
