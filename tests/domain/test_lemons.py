"""The lemon score: what counts, for how long, and what no job can bring about."""

from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from relight.domain.lemons import (
    FORGOTTEN,
    HALF_LIFE,
    LEMON,
    MOST_BY_JOBS,
    MOST_FAULTS,
    WEIGHTS,
    Sign,
    SignKind,
    score,
)

NOW = datetime(2026, 11, 30, 9, 0, tzinfo=UTC)
SIGNS = st.lists(
    st.builds(
        Sign,
        kind=st.sampled_from(SignKind),
        at=st.integers(-10, 200 * 24).map(lambda hours: NOW - timedelta(hours=hours)),
        about=st.sampled_from(["", "i1", "i2", "xid/79"]),
    ),
    max_size=20,
)


def days(count: float) -> datetime:
    return NOW - timedelta(days=count)


def test_a_half_life():
    """What weighs 1 today weighed 2 a fortnight ago; after three months it is forgotten."""
    one = Sign(SignKind.DRAINED, NOW, "i1")
    assert score([one], NOW).value == WEIGHTS[SignKind.DRAINED]
    assert score([one], NOW + HALF_LIFE).value == pytest.approx(WEIGHTS[SignKind.DRAINED] / 2)
    assert score([one], NOW + FORGOTTEN + timedelta(seconds=1)).value == 0


def test_three_drains_within_a_fortnight_make_a_lemon_and_one_does_not():
    """One drain with its incident and its fault is bad luck."""

    def drain(name, at):
        return [
            Sign(SignKind.DRAINED, at, name),
            Sign(SignKind.WITNESSED, at, name),
            Sign(SignKind.FAULT, at, "xid/79"),
        ]

    assert not score(drain("i1", NOW), NOW).lemon
    assert score([*drain("i1", days(10)), *drain("i2", days(5)), *drain("i3", NOW)], NOW).lemon
    assert not score([*drain("i1", days(80)), *drain("i2", days(70)), *drain("i3", days(60))], NOW).lemon


def test_a_repeat_after_a_good_check_weighs_most():
    """What was wrong is still there: twice is enough."""
    assert score([Sign(SignKind.DRAINED, days(3), "i1"), Sign(SignKind.REPEATED, NOW, "i2")], NOW).value > LEMON - 0.2


@given(SIGNS)
def test_what_jobs_say_makes_no_lemon(signs):
    """However many jobs fail, or print, they add no more than `MOST_BY_JOBS`; nor do faults more than theirs."""
    without = score([sign for sign in signs if sign.kind is not SignKind.FAILED_FIRST], NOW)
    assert score(signs, NOW).value <= without.value + MOST_BY_JOBS + 1e-9
    storm = [Sign(SignKind.FAULT, days(n), f"xid/{n}") for n in range(50)]
    assert score(storm, NOW).value <= MOST_FAULTS


@given(SIGNS, SIGNS)
def test_more_against_it_is_never_less(some, more):
    """And what is told twice counts once."""
    both = score([*some, *more], NOW)
    assert both.value >= score(some, NOW).value - 1e-9
    assert score([*some, *some], NOW) == score(some, NOW)


def test_it_says_why():
    """The heaviest first."""
    signs = [Sign(SignKind.FAULT, NOW, "xid/79"), Sign(SignKind.REPEATED, NOW, "i2"), Sign(SignKind.DRAINED, NOW, "i1")]
    assert score(signs, NOW).why == ("1 x repeated (2.0)", "1 x drained (1.0)", "1 x fault (0.2)")
    assert score([], NOW) == (0.0, ())
