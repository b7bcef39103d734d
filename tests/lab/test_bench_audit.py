"""The benchmark of the audit trail, on a small scale: its numbers are there, and it finds what it makes."""

import json

from click.testing import CliRunner

from relight.lab.audit_edits import KINDS
from relight.workers.cli import main


def test_the_benchmark_checks_a_ledger_and_finds_every_edit():
    """On 300 rows and 14 edits."""
    done = CliRunner().invoke(main, ["lab", "bench", "audit", "--rows", "300", "--edits", "14", "--json"])
    assert done.exit_code == 0, done.output
    found = json.loads(done.stdout)
    assert found["audit_rows"] == 300
    assert found["audit_verify_s"] > 0
    assert (found["audit_edits_tried"], found["audit_edits_found"]) == (14, 14)
    assert set(found["audit_edits_by_kind"]) == set(KINDS)
