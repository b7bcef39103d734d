"""Faults as rules and as words."""

import os
from datetime import UTC, datetime
from pathlib import Path

import pytest

from relight.lab import fault_rules, faults
from relight.lab.fault_rules import Deed, FaultFile, FaultRule, due, slowness
from relight.lab.processes import Process
from relight.lab.xids import XIDS

BUG = FaultRule(rank=5, step=40, do=Deed.RAISE)
FIRST_ONLY = FaultRule(rank=5, step=40, do=Deed.RAISE, attempts=(0,))
NOW = FaultRule(rank=3, do=Deed.ECC, attempts=(1,))


@pytest.mark.parametrize(
    ("rule", "rank", "step", "attempt", "applies"),
    [
        (BUG, 5, 40, 0, True),
        (BUG, 5, 40, 7, True),
        (BUG, 5, 41, 0, False),
        (BUG, 4, 40, 0, False),
        (FIRST_ONLY, 5, 40, 0, True),
        (FIRST_ONLY, 5, 40, 1, False),
        (NOW, 3, 1234, 1, True),
        (NOW, 3, 1234, 2, False),
    ],
)
def test_a_rule_applies_to_its_rank_step_and_attempt(
    rule: FaultRule, rank: int, step: int, attempt: int, applies: bool
) -> None:
    """A rule without a step applies at once; one for all attempts in each."""
    assert (due([rule], rank, step, attempt) is rule) is applies


def test_rules_added_while_running_are_seen(tmp_path: Path) -> None:
    """A rank reads the file again when it changes."""
    file = FaultFile(tmp_path)
    assert file.rules() == ()
    fault_rules.add(tmp_path, BUG)
    assert file.rules() == (BUG,)
    fault_rules.add(tmp_path, NOW)
    os.utime(tmp_path / fault_rules.FILE, ns=(1, 1))  # as a clock of coarse ticks might leave it
    assert file.rules() == (BUG, NOW)


def test_only_a_slow_rank_takes_longer() -> None:
    """By as many times as its rule says."""
    slow = FaultRule(rank=3, do=Deed.SLOW, times=1.2)
    assert [slowness(rule) for rule in (None, BUG, slow)] == [1.0, 1.0, 1.2]


def test_a_rule_may_be_written_by_hand(tmp_path: Path) -> None:
    """The documented JSON is read."""
    (tmp_path / "faults.json").write_text('[{"rank": 5, "step": 40, "attempts": [0], "do": "raise", "text": "zebra"}]')
    assert FaultFile(tmp_path).rules() == (FIRST_ONLY.model_copy(update={"text": "zebra"}),)


@pytest.mark.parametrize(
    "fault",
    [
        faults.crash(rank=5),
        faults.hang(rank=2),
        faults.gpu(rank=3, xid=79),
        faults.node(),
        faults.node("n2"),
        faults.bug(step=120),
        faults.bug(),
        faults.slow(rank=3),
        faults.slow(rank=3, percent=20),
        faults.nan(rank=0),
    ],
    ids=str,
)
def test_a_fault_is_read_as_it_is_written(fault: faults.Fault) -> None:
    """The text of a fault names the same fault."""
    assert faults.parse(str(fault)) == fault


@pytest.mark.parametrize("text", ["", "explode", "crash", "crash:rank=x", "crash:rang=1", "gpu:rank=1,xid=7"])
def test_an_unknown_fault_is_refused(text: str) -> None:
    """Also one that lacks a value, or has a wrong one."""
    with pytest.raises(faults.UnknownFaultError):
        faults.parse(text)


@pytest.mark.parametrize("xid", XIDS)
def test_kernel_lines_name_node_gpu_and_xid(xid: int) -> None:
    """Each line is one that rsyslog could have written, and the Xid asked for is among them."""
    victim = faults.Rank(rank=3, node="n2", local_rank=1, gpu=1, process=Process(pid=77, started=1))
    at = datetime(2026, 11, 30, 9, 55, 1, 123456, UTC)
    lines = list(faults.kernel_lines(victim, xid, at))
    head = "2026-11-30T09:55:01.123456+00:00 n2 kernel: NVRM: Xid (PCI:0000:43:00): "
    assert all(line.startswith(head) and line.endswith("\n") for line in lines)
    assert any(line.removeprefix(head).startswith(f"{xid}, ") for line in lines)
