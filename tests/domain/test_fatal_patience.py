"""How long an attempt may be silent after a line that says that it is lost, and whom such a line convinces."""

from datetime import timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from relight.domain.evidence import Answer, Evidence, Interruption, Source
from relight.domain.progress import (
    CPU_FELL,
    HangPolicy,
    Sign,
    hang_detection,
    limit_after_fatal,
    silence_limit,
    with_signs,
    witness,
)
from relight.domain.rhythm import Phase, Rhythm

POLICY = HangPolicy()
LINE = Evidence(source=Source.JOB_LOG, text="CUDA error", signature="CUDA_ECC")
signs = st.builds(
    Sign,
    step=st.none() | st.integers(0, 300),
    seconds=st.none() | st.floats(0.01, 100),
    phase=st.none() | st.sampled_from(Phase),
    begins=st.booleans(),
)


@given(st.lists(st.tuples(st.floats(0, 500), st.lists(signs, max_size=4)), max_size=30), st.booleans())
def test_a_fatal_line_never_makes_it_longer(arrivals, stepped):
    """Nor shorter than 20 s, nor than the job's own step time; before the first step it changes nothing."""
    rhythm = Rhythm()
    for gap, lines in arrivals:
        rhythm = with_signs(rhythm, gap, lines)
    limit = limit_after_fatal(rhythm, POLICY, stepped=stepped)
    usual = silence_limit(rhythm, POLICY, stepped=stepped)
    assert timedelta(seconds=20) <= limit <= usual
    if stepped:
        assert limit >= min(usual, timedelta(seconds=2.5 * (rhythm.step_seconds or 0.0)))
    else:
        assert limit == usual


def test_after_the_end_of_training_no_silence_is_a_hang():
    """Until a step comes again: another stage of the same job."""
    rhythm = with_signs(Rhythm(), 1.0, [Sign(step=5), Sign(phase=Phase.END)])
    assert silence_limit(rhythm, POLICY, stepped=True) == timedelta.max
    assert silence_limit(with_signs(rhythm, 60.0, [Sign(step=6)]), POLICY, stepped=True) < timedelta(hours=1)


@pytest.mark.parametrize(
    ("step", "fatal", "answer"), [(7, LINE, Answer.YES), (None, LINE, Answer.UNKNOWN), (7, None, Answer.UNKNOWN)]
)
def test_a_fatal_line_is_a_witness_once_training_has_begun(attempt, now, step, fatal, answer):
    """Before, it may be of an earlier attempt; silence alone is none."""
    minute = timedelta(minutes=1)
    found = hang_detection(attempt(), step, minute, minute, baseline=None, recent=None, now=now, fatal=fatal)
    assert witness(found) is answer


def test_cpu_use_that_fell_is_a_witness(attempt, now, detection):
    """As ever, also before the first step."""
    minute = timedelta(minutes=1)
    found = hang_detection(attempt(), None, minute, minute, baseline=8.0, recent=0.1, now=now)
    assert [e.signature for e in found.evidence] == [None, CPU_FELL]
    assert witness(found) is Answer.YES
    assert witness(detection(kind=Interruption.HANG)) is Answer.UNKNOWN
