"""Durations as people write them; a guess is never made."""

from datetime import timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import TypeAdapter, ValidationError

from relight.domain.human import Duration, spoken

DURATION = TypeAdapter(Duration)


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("30s", 30),
        ("30m", 1800),
        ("2h", 7200),
        ("1h30m", 5400),
        ("1h 30m", 5400),
        (" 7d ", 604800),
        ("1w", 604800),
        ("0.5h", 1800),
        ("PT30M", 1800),
        ("P1DT2H", 93600),
        ("PT0.5S", 0.5),
        ("00:30:00", 1800),
        (timedelta(seconds=3), 3),
    ],
)
def test_durations(text, seconds):
    """With their unit, or as ISO 8601 has them."""
    assert DURATION.validate_python(text) == timedelta(seconds=seconds)


@pytest.mark.parametrize(
    "text",
    [
        *(30, 30.0, True, None, "", " ", "30", "soon", "m30", "30 minutes", "30M", "30m2h", "-5m", "1e9s", "٣m", "NaN"),
        *("-PT5M", "P", "PT", "P1", "P5H", "00:99:00", "9999999999s", "999999999w", "P999999999Y"),
    ],
)
def test_what_is_no_duration(text):
    """Said with what is accepted; a bare number too, as it says nothing about its unit."""
    with pytest.raises(ValidationError, match="must be a duration with its unit, like 30s, 30m"):
        DURATION.validate_python(text)


@given(st.timedeltas(timedelta(0), timedelta(days=10_000)).map(lambda d: timedelta(seconds=int(d.total_seconds()))))
def test_what_is_shown_can_be_written(length):
    """The text for a duration is read as that duration."""
    assert DURATION.validate_python(spoken(length)) == length


@given(st.timedeltas(timedelta(0), timedelta(days=10_000)))
def test_what_travels_comes_back(length):
    """As JSON."""
    assert DURATION.validate_json(DURATION.dump_json(length)) == length
