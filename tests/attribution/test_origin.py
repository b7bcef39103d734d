"""Who printed a line, and when."""

from datetime import UTC, datetime, timedelta, timezone

import pytest
from hypothesis import given
from hypothesis import strategies as st

from relight.attribution.origin import Speaker, speaker, stamp_of

NEAR = datetime(2026, 1, 2, 8, 0, tzinfo=timezone(timedelta(hours=2)))


@pytest.mark.parametrize(
    ("line", "who"),
    [
        ("[rank5]: RuntimeError: x", Speaker(rank=5)),
        ("[rank: 3] Received SIGTERM: 15", Speaker(rank=3)),
        ("[default4]:[rank12]: boom", Speaker(rank=12, local_rank=4)),
        ("17: something", Speaker(task=17)),
        ("3: n2: something", Speaker(task=3, node="n2")),
        ("n2: something", Speaker(node="n2")),
        ("error: something", Speaker()),
        ("n7:100:200 [6] NCCL WARN x", Speaker(node="n7", gpu="6")),
        ("[n7:100:0:200] Caught signal 7", Speaker(node="n7")),
        ("Nov 30 09:00:00 n9 kernel: NVRM: x", Speaker(node="n9")),
        ("[Rank 3] Watchdog caught", Speaker(rank=3)),
        ("[rank218]:[E108 16:19:09.6 P.cpp:6] [PG ID 6 PG GUID 6(TP) Rank 13] x", Speaker(rank=218)),
        ("[PG ID 6 PG GUID 6(TP) Rank 13] x", Speaker()),
        ("[PG ID 0 PG GUID 0(default_pg) Rank 2] x", Speaker(rank=2)),
    ],
)
def test_prefixes(line, who):
    """Prefixes name ranks, nodes and GPUs; a rank of a process group that is not the whole world is not taken."""
    assert speaker(line, frozenset({"n2"})) == who


@pytest.mark.parametrize(
    ("line", "at"),
    [
        ("2026-01-02T07:59:00Z x", datetime(2026, 1, 2, 7, 59, tzinfo=UTC)),
        ("2026-01-02 07:59:00,250 x", datetime(2026, 1, 2, 7, 59, 0, 250_000, tzinfo=NEAR.tzinfo)),
        ("[E102 07:59:00.5 x.cpp:1] x", datetime(2026, 1, 2, 7, 59, 0, 500_000, tzinfo=NEAR.tzinfo)),
        ("Dec 31 23:00:00 n1 kernel: x", datetime(2025, 12, 31, 23, 0, tzinfo=NEAR.tzinfo)),
        ("[Fri Jan  2 07:59:00 2026] NVRM: x", datetime(2026, 1, 2, 7, 59, tzinfo=NEAR.tzinfo)),
        ("2026-99-99 07:59:00 x", None),
        ("[   12.345] NVRM: x", None),
    ],
)
def test_time_stamps(line, at):
    """Stamps of Python, glog, syslog and dmesg; what lacks zone or year takes it from the interruption."""
    found = stamp_of(line, NEAR)
    assert (found.at if found else None) == at


def test_no_year_to_be_had():
    """A stamp without a year has no time when nothing tells the year."""
    assert stamp_of("Dec 31 23:00:00 n1 kernel: x") is None


@given(st.text())
def test_never_fails(line):
    """Any text is answered."""
    speaker(line)
    stamp_of(f"2026-01-{line} 07:59:00 {line}", NEAR)
