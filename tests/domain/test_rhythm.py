"""How long silence may last is learnt from the job's own rhythm."""

from datetime import timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from relight.domain.attempts import Progress
from relight.domain.evidence import Interruption, Source
from relight.domain.progress import (
    CPU_FELL,
    MAX_GAPS,
    MIN_GAPS,
    CpuSample,
    HangPolicy,
    Rhythm,
    cpu_fell,
    cpu_rate,
    hang_detection,
    passed,
    percentile,
    silence_limit,
    stride,
    with_arrival,
)

POLICY = HangPolicy()
SECONDS = st.floats(0, 1e5)


def s(seconds):
    return timedelta(seconds=seconds)


def test_before_the_first_step_the_start_up_limit_holds():
    """Loading and compiling take long and print no steps, whatever is known from earlier."""
    assert silence_limit(Rhythm(gaps=(1.0,) * 50, step_seconds=1), POLICY, stepped=False) == POLICY.startup


@pytest.mark.parametrize("known", [0, MIN_GAPS - 1])
def test_too_few_gaps_teach_nothing(known):
    """Until the rhythm is known a fixed limit holds."""
    assert silence_limit(Rhythm(gaps=(1.0,) * known, step_seconds=1), POLICY, stepped=True) == POLICY.unlearned


@pytest.mark.parametrize(
    ("gap", "step", "limit"),
    [(0.1, 0.1, 30), (20.0, 20.0, 100), (60.0, 1.0, 180), (1.0, None, 30)],
    ids=["floor", "steps", "gaps of buffered output", "no step time"],
)
def test_the_limit_is_the_largest_of_three(gap, step, limit):
    """The floor, five step times, three times the 99th percentile of the file's own gaps."""
    rhythm = Rhythm(gaps=(gap,) * MIN_GAPS, step_seconds=step)
    assert silence_limit(rhythm, POLICY, stepped=True) == s(limit)


@given(st.lists(SECONDS, max_size=30), st.none() | SECONDS, st.booleans())
def test_the_limit_is_never_below_the_floor(gaps, step, stepped):
    """Whatever was learnt, no job counts as hanging within the floor."""
    assert silence_limit(Rhythm(gaps=tuple(gaps), step_seconds=step), POLICY, stepped=stepped) >= POLICY.floor


def test_arrivals_are_counted_as_steps():
    """Ten steps that arrive together after 5 s took half a second each; what is printed wins; then it is smoothed."""
    first = with_arrival(Rhythm(), 5.0, 10, None)
    assert first == Rhythm(gaps=(5.0,), step_seconds=0.5)
    assert with_arrival(Rhythm(), 5.0, 10, 0.4).step_seconds == 0.4
    assert with_arrival(first, 15.0, 10, None).step_seconds == pytest.approx(0.7)


def test_a_step_back_says_nothing_of_the_step_time():
    """After a roll-back to a checkpoint the step number falls: the gap counts, the step time stays."""
    old = Rhythm(gaps=(1.0,), step_seconds=0.5)
    assert with_arrival(old, 2.0, -100, None) == Rhythm(gaps=(1.0, 2.0), step_seconds=0.5)
    assert with_arrival(Rhythm(), 2.0, 0, None).step_seconds is None


@given(st.lists(SECONDS, min_size=1, max_size=MAX_GAPS + 50))
def test_memory_is_bounded(gaps):
    """Only the newest gaps are kept, in order."""
    rhythm = Rhythm()
    for gap in gaps:
        rhythm = with_arrival(rhythm, gap, 1, None)
    assert rhythm.gaps == tuple(gaps[-MAX_GAPS:])


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
