"""Percentiles, the second witness of a hang, what a hang carries, and when training has passed its failure."""

from datetime import timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from relight.domain.attempts import Progress
from relight.domain.evidence import Interruption, Source
from relight.domain.progress import (
    CPU_FELL,
    CpuSample,
    cpu_fell,
    cpu_rate,
    hang_detection,
    passed,
    percentile,
    stride,
)


def s(seconds):
    return timedelta(seconds=seconds)


@given(st.lists(st.floats(-1e6, 1e6), min_size=1, max_size=50), st.integers(1, 99))
def test_a_percentile_lies_among_the_values(values, percent):
    """Between the least and the largest, also of a single value."""
    slack = 1e-6
    assert min(values) - slack <= percentile(values, percent) <= max(values) + slack


def test_known_percentiles():
    """Of 0 to 100 each percentile is itself."""
    values = list(range(101))
    assert [percentile(values, p) for p in (1, 50, 99)] == [1, 50, 99]


@pytest.mark.parametrize(
    ("baseline", "recent", "fell"),
    [
        (None, 1.0, None),
        (8.0, None, None),
        (0.0, 0.0, None),
        (8.0, 0.0, True),
        (8.0, 0.79, True),
        (8.0, 0.8, False),
        (8.0, 8.0, False),
    ],
)
def test_cpu_use_that_fell_away(baseline, recent, fell):
    """Below a tenth of the job's own baseline; an unknown rate on either side says nothing."""
    assert cpu_fell(baseline, recent) is fell


def test_cpu_rates(now):
    """CPU seconds a second; never negative; None unless the samples are apart in time."""
    first = CpuSample(at=now, used=s(100))
    assert cpu_rate(first, CpuSample(at=now + s(10), used=s(180))) == 8
    assert cpu_rate(first, CpuSample(at=now + s(10), used=s(50))) == 0
    assert cpu_rate(first, first) is None
    assert cpu_rate(None, first) is cpu_rate(first, None) is None


def test_a_hang_is_found_once_a_step(attempt, now):
    """The same silence found again has the same id; a hang at a later step is another."""
    old = attempt()

    def found(step, at):
        return hang_detection(old, step, s(40), s(30), baseline=None, recent=None, now=at)

    first = found(5, now)
    assert (first.kind, first.occurred_at, first.id) == (Interruption.HANG, now - s(40), f"{old.key}/hang/5")
    assert found(5, now + s(9)).id == first.id
    assert len({first.id, found(6, now).id, found(None, now).id, found(0, now).id}) == 4
    assert first.evidence[0].text == "no step for 40 s since step 5 (limit 30 s)"


def test_a_hang_carries_its_second_witness(attempt, now):
    """CPU use that fell away is platform evidence; CPU use that did not, or is unknown, adds none."""

    def evidence(baseline, recent):
        return hang_detection(attempt(), 5, s(40), s(30), baseline=baseline, recent=recent, now=now).evidence

    assert [(e.source, e.signature) for e in evidence(8.0, 0.0)] == [
        (Source.PROGRESS, None),
        (Source.SLURMCTLD, CPU_FELL),
    ]
    assert len(evidence(8.0, 7.0)) == len(evidence(None, 0.0)) == 1


@pytest.mark.parametrize(
    ("last_step", "failed_step", "each", "answer"),
    [
        (None, None, 1, False),
        (3, None, 1, True),
        (29, 28, 1, False),
        (30, 28, 1, True),
        (130, 120, 10, False),
        (140, 120, 10, True),
    ],
)
def test_only_two_step_lines_beyond_the_last_one_seen_are_past_the_failure(last_step, failed_step, each, answer):
    """One line may have been lost with the process; a trainer may print every tenth step."""
    assert passed(Progress(last_step=last_step, stride=each), failed_step) is answer


@pytest.mark.parametrize(("steps", "answer"), [([120, 130], 10), ([130], 7), ([130, 130], 7), ([50, 1, 2], 1)])
def test_the_stride_is_the_newest_step_forward(steps, answer):
    """Going back to a checkpoint is none."""
    assert stride(steps, 7) == answer
