"""Lines of which nobody knows when they came tell where a job stands, and nothing of how its lines arrive."""

from hypothesis import given
from hypothesis import strategies as st

from relight.domain.rhythm import Phase, Rhythm, Sign, caught_up, with_signs

STEPS = st.tuples(st.integers(0, 1000), st.none() | st.integers(0, 1000), st.floats(0.1, 10)).map(lambda it: Sign(*it))
PHASES = st.tuples(st.sampled_from(Phase), st.booleans()).map(lambda it: Sign(phase=it[0], begins=it[1]))


def learnt():
    """A rhythm with some gaps."""
    rhythm = Rhythm()
    for step in range(40):
        rhythm = with_signs(rhythm, 1.0, [Sign(step=step, seconds=1.0)])
    return rhythm


@given(st.lists(STEPS | PHASES, max_size=8))
def test_no_gap_is_learnt(signs):
    """Whatever the lines say; the newest step and the phase that is on are known."""
    before = learnt()
    after = caught_up(before, signs)
    gaps = {"peak", "in_block", "peaks", "phases", "long", "reach"}
    assert after.model_dump(include=gaps) == before.model_dump(include=gaps)
    steps = [sign for sign in signs if sign.step is not None]
    assert after.step == (steps[-1].step if steps else before.step)
    last = signs[-1] if signs else None
    if last is not None:
        assert after.opened is (last.phase if last.begins and last.phase else None)


def test_lines_that_say_nothing_change_nothing():
    """The very same rhythm."""
    before = learnt()
    assert caught_up(before, []) is before


def test_the_warm_up_may_lie_before():
    """The first gap that is seen of a job that has stepped for long is not its start-up."""
    after = caught_up(Rhythm(), [Sign(step=step, seconds=1.0) for step in range(100, 110)])
    after = with_signs(after, 1.0, [Sign(step=110, seconds=1.0)])
    assert (after.phases, after.since, after.stride, after.step_seconds, after.peak) == ({}, 100, 1.0, 1.0, 1.0)


def test_a_job_that_began_again_warms_up_again():
    """Its step fell while nobody looked."""
    assert caught_up(learnt(), [Sign(step=3)]).arrivals == 0
