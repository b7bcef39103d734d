"""`relight nodes`: who is in care and why, from the ledger alone: Temporal does not answer in these tests."""

import json
from collections.abc import Callable
from datetime import datetime
from pathlib import Path

import pytest
from click.testing import Result

from relight.domain.ledger import RowKind

from .conftest import HOSTILE, Night, ago, waiting

Relight = Callable[..., Result]
CHECKS = [
    {"name": "nvml", "result": "failed", "text": "0000:3b:00: GPU recovery action 0x2 (Node Reboot Required)"},
    {"name": "disk", "result": "passed", "text": "written and read back in /tmp"},
]
TICKET = "gpu-003 (main): reboot the node\n\nWhy now:    nvml failed\n  relight release gpu-003 --reason ...\n"


class Ward:
    """Writes quarantines as the activities do."""

    def __init__(self, night: Night) -> None:
        self.night = night
        self.attempt = night.attempt(4711, ago(hours=6))
        self.number = 0

    def row(self, node: str, kind: RowKind, at: datetime, *, incident: str = "", **body: object) -> None:
        """One row on a node."""
        self.number += 1
        name = f"node/main/{node}/r1/{self.number}"
        entry = self.night.entry(name, kind, at, body, self.attempt, incident=incident or f"n{node[-1]}a", node=node)
        self.night.commit(entries=(entry,))

    def care(self, node: str, at: datetime, step: str, phase: str, text: str = "", **body: object) -> None:
        """One step of a quarantine."""
        self.row(node, RowKind.CARE, at, step=step, phase=phase, text=text, incident=f"n{node[-1]}a", **body)

    def kept(self, node: str, ticket: Path) -> None:
        """Drained two hours ago, checked, and kept for a person."""
        leave = {"granted": True, "action": "drain", "reason": "drain 1 of 1 in this hour"}
        self.row(node, RowKind.LEAVE, ago(hours=2.1), incident="i1", leave=leave, evidence=[])
        done = {"text": f"{node} has the drain flag", "at": ago(hours=2).isoformat(), "outcome": None}
        self.row(node, RowKind.EFFECT, ago(hours=2.05), incident="i1", step=f"drain-{node}", done=done)
        self.care(node, ago(hours=2), "1-begun", "draining", "XID_79: fell off", cls="XID_79")
        self.care(node, ago(hours=1), "2-drained", "draining", "drained: no job, no step, nothing completing")
        judged = {"next": "hand over", "remedy": "reboot", "checks": CHECKS, "ticket": str(ticket)}
        self.care(node, ago(minutes=50), "judged-1", "checking", "hand over: nvml failed", **judged)
        self.care(node, ago(minutes=49), "3-kept", "kept", f"hand over: {HOSTILE}")


@pytest.fixture
def ward(night: Night, tmp_path: Path) -> Ward:
    """One node kept, one that waits for approval, and one that is back."""
    made = Ward(night)
    ticket = tmp_path / "ticket.txt"
    ticket.write_text(TICKET)
    made.kept("gpu-003", ticket)
    made.care("gpu-004", ago(hours=3), "1-begun", "draining", "XID_94_95: memory", cls="XID_94_95")
    made.care("gpu-004", ago(minutes=5), "2-asked", "waiting", "return gpu-004 to service: 1 must approve")
    made.care("gpu-001", ago(days=3), "1-begun", "draining", "XID_48: DBE", cls="XID_48")
    made.care("gpu-001", ago(days=2), "9-closed", "closed", "back in service", outcome="returned")
    return made


@pytest.mark.usefixtures("ward")
def test_who_is_in_care(relight: Relight):
    """With state, since when, cause and lemon score; those that have left only on demand."""
    out = relight("nodes").output
    lines = {line.split()[0]: line for line in out.splitlines() if line.startswith("gpu-")}
    assert set(lines) == {"gpu-003", "gpu-004"}
    assert "kept" in lines["gpu-003"]
    assert "XID_79" in lines["gpu-003"]
    assert "2.0 h" in lines["gpu-003"]
    assert "1.0" in lines["gpu-003"]
    assert "waiting" in lines["gpu-004"]
    assert "in care: gpu-[003-004]" in out
    assert "1 node left care: relight nodes --all" in out
    assert "\x1b" not in out
    every = relight("nodes", "--all").output
    assert "returned" in every
    assert "left care" not in every


@pytest.mark.usefixtures("ward")
def test_hostlists_in_and_out(relight: Relight):
    """As Slurm writes them; a node without any care is listed as such."""
    out = json.loads(relight("nodes", "-o", "json", "gpu-[001-004]").output)
    assert [(each["node"], each["in_care"]) for each in out] == [
        ("gpu-001", False),
        ("gpu-002", False),
        ("gpu-003", True),
        ("gpu-004", True),
    ]
    assert out[2]["lemon_why"] == ["1 x drained (1.0)"]
    assert out[1]["care"] is None
    broken = relight("nodes", "gpu-[001-")
    assert broken.exit_code == 1
    assert "hostlist" in broken.stderr


@pytest.mark.usefixtures("ward")
def test_one_nodes_story(relight: Relight):
    """Why, since when, what was done in order, and the ticket with what to do last."""
    out = relight("nodes", "gpu-003").output
    assert out.startswith("Node gpu-003  KEPT  for 2.0 h")
    assert "hand over; asked for: reboot" in out
    for earlier, later in (
        ("leave granted", "drained: no job"),
        ("drained: no job", "nvml failed"),
        ("judged", "Ticket"),
    ):
        assert out.index(earlier) < out.index(later)
    assert out.rstrip().endswith("relight release gpu-003 --reason ...")
    assert "\x1b" not in out
    assert "\u202e" not in out
    told = json.loads(relight("nodes", "gpu-003", "-o", "json").output)
    assert told["ticket"] == TICKET
    assert len(told["rows"]) == 6


@pytest.mark.usefixtures("ward")
def test_a_node_that_waits_for_people(relight: Relight):
    """It says by what name it is approved."""
    assert "relight approve node/gpu-004" in relight("nodes", "gpu-004").output


@pytest.mark.usefixtures("ward")
def test_a_node_that_nobody_knows(relight: Relight):
    """And names that could be anything else."""
    for name in ("gpu-777", "--", "@all", "../etc"):
        found = relight("nodes", "--", name)
        assert found.exit_code == 4, found.output
        assert "knows nothing" in found.stderr


def test_nobody_in_care(night: Night, relight: Relight):
    """Said, and no table."""
    waiting(night)
    assert relight("nodes").output == "No node is in Relight's care.\n"


@pytest.mark.parametrize("command", ["release", "keep"])
def test_a_word_needs_a_reason(relight: Relight, command: str):
    """It goes into the ledger."""
    assert relight(command, "gpu-003").exit_code == 2
    assert relight(command, "gpu-003", "--reason", "  ").exit_code == 2
    assert "at most 2000" in relight(command, "gpu-003", "--reason", "x" * 3000).stderr
