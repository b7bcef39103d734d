"""What another checkpoint interval would save, and how well that is known."""

from datetime import timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from relight.domain.goodput import Account
from relight.domain.goodput_interval import LEAST, daly, interval, poisson

HOUR = timedelta(hours=1)


def measured(**more):
    """A hundred hours of training: ten interruptions, two hundred saves of a minute each."""
    told = {"training": 100 * HOUR, "saves": 200, "timed_saves": 200, "saving": 200 * timedelta(minutes=1)}
    return Account(**{**told, "interruptions": 10, **more})


@given(st.floats(1, 3600), st.floats(600, 1e6))
def test_the_best_interval_is_the_best(cost, between):
    """No interval loses clearly less; Young's first-order formula is near it where saving is cheap."""

    def loss(every):
        return cost / every + every / (2 * between)

    best = daly(cost, between)
    assert all(loss(best) <= loss(best * factor) * 1.3 for factor in (0.1, 0.5, 2, 10) if cost < between / 10)
    if cost < between / 1000:
        assert best == pytest.approx((2 * cost * between) ** 0.5, rel=0.05)


def test_what_another_interval_would_save():
    """A minute each half hour, an interruption each ten hours: Daly's 34 minutes are hardly better."""
    found = interval(measured())
    assert found.save_cost == timedelta(minutes=1)
    assert found.now == timedelta(minutes=30)
    assert found.mean_time_between == 10 * HOUR
    assert 33 < found.best / timedelta(minutes=1) < 36
    assert 0 <= found.saved_share < 0.01
    often = interval(measured(saves=2000, timed_saves=2000, saving=2000 * timedelta(minutes=1)))
    assert often.saved_share > 0.2
    assert often.saved_range[0] <= often.saved_share <= often.saved_range[1]


def test_it_says_how_well_it_is_known():
    """Ten interruptions stand for five to eighteen; a hundred for a narrower range."""
    few, many = interval(measured()), interval(measured(interruptions=100))
    assert few.between[0] < few.mean_time_between < few.between[1]
    assert few.best_range[0] < few.best < few.best_range[1]
    assert few.between[1] / few.between[0] > many.between[1] / many.between[0]
    assert poisson(10) == pytest.approx((4.8, 18.4), abs=0.1), "exact: 4.80 to 18.39"


@pytest.mark.parametrize(
    "missing",
    [
        {"interruptions": LEAST - 1},
        {"timed_saves": LEAST - 1},
        {"saving": timedelta(0)},
        {"training": timedelta(0)},
        {"interruptions": 0, "saves": 0, "timed_saves": 0},
    ],
    ids=str,
)
def test_nothing_is_said_of_what_was_hardly_measured(missing):
    """Four interruptions are no rate."""
    assert interval(measured(**missing)) is None
