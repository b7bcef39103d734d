"""A line of a shape seen before is read by what is remembered of that shape, and says what it says to a new reader."""

from pathlib import Path

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from relight.attribution import progress
from relight.attribution.progress import Reader
from relight.attribution.progress_formats import load
from relight.attribution.progress_numbers import shaped

LINES = [row["line"] for row in yaml.safe_load((Path(__file__).parent / "progress_lines.yaml").read_text())]


@pytest.fixture(scope="module")
def used():
    """A reader that remembers the shapes of all recorded lines."""
    reader = Reader(load())
    for line in LINES:
        reader.read(line)
    return reader


@given(st.sampled_from(LINES), st.randoms(use_true_random=False))
def test_lines_that_differ_in_digits_only(used, line, random):
    """Each by any other: from what the first of them taught, the others are read as if they were the first."""
    other = "".join(random.choice("0123456789") if "0" <= letter <= "9" else letter for letter in line)
    assert repr(used.read(other)) == repr(Reader(load()).read(other))


@pytest.mark.parametrize(
    "line", ["step 5/10 | loss 0.5\r", "\x1b[1mstep 5/10\x1b[0m | loss 0.5", "step \uff15/\uff11\uff10"]
)
def test_lines_that_are_cleaned_first(line):
    """Escapes, carriage returns, digits of other scripts."""
    reader = Reader(load())
    first, second, third = (reader.read(text) for text in (line, line.replace("5", "7"), line))
    assert first == third
    assert second == Reader(load()).read(line.replace("5", "7"))


def test_what_is_remembered_is_bounded(monkeypatch):
    """However many shapes a job prints."""
    monkeypatch.setattr(progress, "SHAPES", 10)
    reader = Reader(load())
    for number in range(100):
        assert reader.read(f"{'x' * number} step {number}/1000 | loss 0.5")
    assert len(reader._plans) <= 10


@pytest.mark.parametrize(
    ("pattern", "alike"),
    [(r"step \d+/\d{1,6}", True), (r"(?P<step>\d+)x{2,}", True), (r"v2 step \d+", False), (r"[0-5]+", False)],
)
def test_patterns_that_name_a_digit_are_tried_each_time(pattern, alike):
    """What they find differs between lines of one shape."""
    assert shaped(pattern) is alike


def test_a_site_s_pattern_may_name_a_digit(tmp_path):
    """Lines of one shape of which one alone has that digit."""
    file = tmp_path / "formats.yaml"
    file.write_text("steps:\n  - name: ours\n    needs: 'schritt'\n    pattern: 'Lauf 7 Schritt <step>'\n")
    reader = Reader(load([file]))
    assert reader.read("Lauf 6 Schritt 12") == ()
    (mark,) = reader.read("Lauf 7 Schritt 13")
    assert mark.step == 13
    assert reader.read("Lauf 8 Schritt 14") == ()
