"""Losses that have gone wrong are told from losses that are merely lively."""

import math
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from relight.domain.numerics import (
    EXPLODED_LINES,
    GRADIENT_LINES,
    GRADIENT_LINES_AT_START,
    NEVER_BACK_LINES,
    NOT_FINITE_LINES,
    Numbers,
    NumericsKind,
    with_losses,
)


def losses(seed, count, *, level=2.0, noise=0.05):
    rng = Random(seed)  # noqa: S311
    return [level + rng.gauss(0, noise) for _ in range(count)]


def take(values, *, numbers=None, first=1, gradients=None):
    """What is known after lines with these losses."""
    norms = gradients or [None] * len(values)
    return with_losses(
        numbers or Numbers(), [(first + n, *pair) for n, pair in enumerate(zip(values, norms, strict=True))]
    )


def ever(values, *, numbers=None, first=1, gradients=None):
    """The first finding within these lines; None when there never was one."""
    numbers = numbers or Numbers()
    for n, loss in enumerate(values):
        numbers = with_losses(numbers, [(first + n, loss, gradients[n] if gradients else None)])
        if numbers.finding:
            return numbers.finding
    return None


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("before", [0, 300])
def test_a_loss_that_is_not_finite_is_told(bad, before):
    """From the first line of the attempt on, after three in a row, at the first of them."""
    numbers = take([*losses(1, before), *[bad] * (NOT_FINITE_LINES - 1)])
    assert numbers.finding is None
    found = take([bad], numbers=numbers, first=before + NOT_FINITE_LINES).finding
    assert (found.kind, found.step) == (NumericsKind.LOSS_NOT_FINITE, before + 1)


def test_a_skipped_step_is_ordinary():
    """One or two lines that are not finite, now and then."""
    values = [math.nan if n % 50 < 2 else loss for n, loss in enumerate(losses(2, 1000))]
    assert ever(values) is None


def test_the_finding_stays_as_it_was_made_and_ends():
    """It is one finding however long it lasts, and none when the loss is a number again."""
    numbers = take([*losses(3, 100), *[math.nan] * 5])
    longer = take([math.nan] * 50, numbers=numbers, first=106)
    assert longer.finding == numbers.finding
    assert take([2.0], numbers=longer, first=156).finding is None


def test_a_gradient_norm_that_is_not_finite_is_told():
    """Some trainers print a loss of 0 for one that is not a number."""
    numbers = take(losses(4, 200), gradients=[1.0] * 200)
    found = take([0.0] * GRADIENT_LINES, numbers=numbers, first=201, gradients=[math.nan] * GRADIENT_LINES).finding
    assert (found.kind, found.step) == (NumericsKind.GRADIENT_NOT_FINITE, 201)


def test_overflows_at_the_start_are_the_loss_scale_being_found():
    """Twenty in a row; more are not."""
    count = GRADIENT_LINES_AT_START
    assert ever([11.0] * 20 + [10.0] * 50, gradients=[math.inf] * 20 + [1.0] * 50) is None
    assert take([11.0] * count, gradients=[math.inf] * count).finding.kind is NumericsKind.GRADIENT_NOT_FINITE


@given(st.integers(0, 10**6), st.sampled_from([2.0, 0.01, 0.0, -3.0]), st.sampled_from([0.0, 0.05, 0.5]))
def test_noise_is_ordinary(seed, level, noise):
    """Also of losses about zero or below it."""
    assert ever(losses(seed, 800, level=level, noise=noise)) is None


@pytest.mark.parametrize("offset", [0.0, -20.0])
def test_a_falling_loss_is_ordinary(offset):
    """As all training begins; some losses fall below zero."""
    falling = [8 * math.exp(-n / 300) + loss + offset for n, loss in enumerate(losses(5, 3000))]
    assert ever(falling) is None


@pytest.mark.parametrize(("level", "exploded"), [(2.0, 7.0), (2.0, 1e9), (-3.0, 10.0), (0.0, 5.0)])
def test_an_explosion_is_told(level, exploded):
    """A loss that is far above what it was, and stays there."""
    numbers = take(losses(6, 400, level=level))
    exploding = losses(7, EXPLODED_LINES, level=exploded)
    assert take(exploding[:-1], numbers=numbers, first=401).finding is None
    found = take(exploding, numbers=numbers, first=401).finding
    assert (found.kind, found.step) == (NumericsKind.LOSS_EXPLODED, 401)
    assert f"{exploded:.4g}"[:1] in found.text


def test_a_loss_half_as_high_again_is_no_explosion():
    """Another mixture of data, after a loss that was very quiet."""
    quiet = take(losses(15, 400, noise=0.001))
    assert ever(losses(14, 800, level=2.9, noise=0.001), numbers=quiet, first=401) is None


@pytest.mark.parametrize("fall", [5, 30, 60, 100])
def test_a_spike_that_comes_back_is_ordinary(fall):
    """In pre-training that takes up to a hundred steps."""
    spike = [loss + 9 * math.exp(-n / fall) for n, loss in enumerate(losses(8, 600))]
    assert ever(spike, numbers=take(losses(9, 400)), first=401) is None


def test_a_spike_that_never_comes_back_all_the_way_is_told():
    """It sinks a little, stays twice as high, and that for hundreds of lines."""
    spike = [loss + 2 + 4 * math.exp(-n / 50) for n, loss in enumerate(losses(10, NEVER_BACK_LINES))]
    numbers = take(spike, numbers=take(losses(11, 400)), first=401)
    assert numbers.finding.kind is NumericsKind.LOSS_EXPLODED


def test_a_restart_has_a_loss_of_its_own():
    """Fine-tuning that begins again, at another loss than where it stood."""
    assert ever(losses(12, 400, level=9.0), numbers=take(losses(13, 400))) is None


@given(
    st.lists(st.tuples(st.integers(0, 300), st.none() | st.floats(), st.none() | st.floats()), max_size=200),
)
def test_memory_is_bounded_and_batches_do_not_matter(lines):
    """Lines one by one, or all at once: the same, in a few kilobytes."""
    numbers = Numbers()
    for line in lines:
        numbers = with_losses(numbers, [line])
    assert numbers == with_losses(Numbers(), lines)
    assert len(numbers.model_dump_json()) < 6000


@pytest.mark.parametrize("seed", range(20))
def test_a_loss_that_wanders_about_zero_is_ordinary(seed):
    """As that of a policy does, whose level means nothing."""
    rng, level, values = Random(seed), 0.0, []  # noqa: S311
    for _ in range(3000):
        level = 0.99 * level + rng.gauss(0, 0.1)
        values.append(level + rng.gauss(0, 0.005))
    assert ever(values) is None
