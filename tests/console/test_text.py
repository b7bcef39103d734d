"""Words for people are short, and safe on a terminal."""

from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from relight.console.output import STYLES
from relight.console.text import after, ago, clean, local, nodes, span
from relight.domain.incidents import Outcome, Phase

NOW = datetime(2026, 11, 30, 12, 0, tzinfo=UTC)


@given(st.text())
def test_nothing_that_moves_a_cursor_is_left(text: str):
    """Whatever a program printed, the result is one printable line."""
    assert clean(text).isprintable()


@pytest.mark.parametrize(
    ("printed", "shown"),
    [
        ("\x1b[31mred\x1b[0m", "red"),
        ("\x1b]52;c;ZXZpbA==\x07copied", "copied"),
        ("\x1b]8;;http://evil\x1b\\link", "link"),
        ("one\ttwo\nthree", "one two three"),
        ("a\x08b\x9bm", "a�b�m"),
        ("left\u202eright", "left�right"),
        ("step ✓ größer 訓練", "step ✓ größer 訓練"),
    ],
)
def test_sequences_go_and_words_stay(printed: str, shown: str):
    """Escape sequences vanish, lone controls become a mark, and every script stays readable."""
    assert clean(printed) == shown


@pytest.mark.parametrize(
    ("seconds", "shown"),
    [
        (0.04, "0.0 s"),
        (9.9, "9.9 s"),
        (48, "48 s"),
        (153, "153 s"),
        (720, "12 min"),
        (5400, "1.5 h"),
        (108000, "30 h"),
        (400000, "5 d"),
    ],
)
def test_a_span_has_the_unit_one_would_say(seconds: float, shown: str):
    """Seconds, minutes, hours, days: never more digits than matter."""
    assert span(timedelta(seconds=seconds)) == shown


def test_times_near_now_leave_out_the_date():
    """Today's times are clock times; older ones carry their date, the year only where it differs."""
    here = NOW.astimezone()
    assert local(NOW, NOW) == f"{here:%H:%M:%S}"
    assert local(NOW - timedelta(days=3), NOW).startswith("27 Nov ")
    assert local(NOW - timedelta(days=400), NOW).startswith("2025-")


def test_before_and_after_are_told_apart():
    """What lies ahead is said as such, and the timeline carries signs."""
    assert (ago(NOW - timedelta(minutes=12), NOW), ago(NOW + timedelta(minutes=3), NOW)) == ("12 min ago", "in 3 min")
    assert (after(timedelta(seconds=2.14)), after(timedelta(seconds=-1.8))) == ("+2.1 s", "-1.8 s")


def test_nodes_are_written_as_slurm_writes_them():
    """Names fold; hostile ones neither fold nor break anything."""
    assert nodes([f"gpu-{n:03}" for n in range(1, 5)]) == "gpu-[001-004]"
    assert nodes(["n1"]) == "n1"
    assert nodes([]) == ""
    assert "\x1b" not in nodes(["\x1b[2Jx[", "y]["])


def test_every_outcome_has_a_look():
    """No outcome is shown as if work were still in progress."""
    assert set(Outcome) | {Phase.WAITING} == set(STYLES)
