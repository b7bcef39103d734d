"""What checkpoints mean for a restart: which it takes, whether that is whole, what else there is."""

from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from relight.domain.checkpoints import (
    CLOCKS_APART,
    RULES,
    TRACKER_NAMES,
    Checkpoint,
    Format,
    HowNamed,
    Rule,
    Series,
    Space,
    Survey,
    Tracker,
    age,
    choose,
    gaps,
    has_room,
    is_new_durable,
    newest_whole,
)
from relight.domain.evidence import Answer

YES, NO, UNKNOWN = Answer.YES, Answer.NO, Answer.UNKNOWN
NOW = datetime(2026, 12, 1, tzinfo=UTC)


def checkpoint(step: int | None, whole: Answer = YES, **more: object) -> Checkpoint:
    told = {
        "path": f"/run/{'last' if step is None else f'step-{step}'}",
        "step": step,
        "format": Format.TORCHTITAN,
        "modified_at": NOW - timedelta(hours=1) + timedelta(seconds=step or 0),
        "size": 100,
        "whole": whole,
        "reasons": () if whole is YES else ("cut short",),
    }
    return Checkpoint.model_validate(told | more)


def series(*checkpoints: Checkpoint, kind: Format = Format.TORCHTITAN, tracker: Tracker | None = None) -> Series:
    return Series(folder="/run", format=kind, how=HowNamed.LOG, checkpoints=checkpoints, tracker=tracker)


def survey(*found: Series, problems: tuple[str, ...] = ()) -> Survey:
    return Survey(series=found, problems=problems, read_at=NOW)


def told(found: Series) -> tuple[int | None, Answer, int | None]:
    """Step that a restart takes, whether that is whole, step to fall back to."""
    choice = choose(found)
    return (
        choice.taken.step if choice.taken else None,
        choice.safe,
        choice.fall_back.step if choice.fall_back else None,
    )


def test_every_format_has_a_rule():
    """And those that follow a tracker know its name."""
    assert {*RULES} == {*Format}
    assert {kind for kind, rule in RULES.items() if rule is Rule.TRACKER} == {*TRACKER_NAMES}


@pytest.mark.parametrize(
    ("whole", "expected"),
    [
        ((YES, YES), (20, YES, None)),
        ((NO, YES), (20, NO, 10)),
        ((NO, NO), (20, NO, None)),
        ((NO, UNKNOWN), (20, NO, None)),
        ((UNKNOWN, YES), (20, UNKNOWN, None)),
    ],
)
def test_the_highest_number(whole: tuple[Answer, Answer], expected: tuple[int, Answer, int | None]):
    """Taken whatever is in it; fallen back from only when it is known to be damaged, and only to a whole one."""
    assert told(series(checkpoint(20, whole[0]), checkpoint(10, whole[1]))) == expected


def test_what_its_trainer_would_not_take_is_not_taken():
    """A half-renamed one is passed over by the trainer itself."""
    half = checkpoint(30, NO, published=False)
    assert told(series(half, checkpoint(20))) == (20, YES, None)
    assert choose(series(half, checkpoint(20))).newest == half


@pytest.mark.parametrize("kind", TRACKER_NAMES)
def test_the_tracker(kind: Format):
    """It decides; what is newer is said; where it cannot be read or leads nowhere, a restart is not safe."""
    both = checkpoint(20), checkpoint(10)
    tracker = Tracker(path="/run/latest", says="10", target="/run/step-10", step=10)
    choice = choose(series(*both, kind=kind, tracker=tracker))
    assert choice.taken == both[1]
    assert (choice.safe, choice.tracker_agrees) == (YES, NO)
    assert choice.sentence == "a restart goes on from step 10, which is whole; step 20 is newer, and not published"
    broken = Tracker(path="/run/latest", problem="is empty: half written")
    choice = choose(series(*both, kind=kind, tracker=broken))
    assert (choice.taken, choice.safe, choice.fall_back) == (None, NO, both[0])
    assert choice.sentence == "latest is empty: half written; step 20 is whole"
    assert choose(series(*both, kind=kind)).safe is UNKNOWN


def test_the_last_one():
    """The one that is called the last, the newest of several; without any, the one written last."""
    last = checkpoint(15, NO, last=True)
    assert told(series(checkpoint(20), last, kind=Format.LIGHTNING)) == (15, NO, 20)
    assert told(series(checkpoint(20), checkpoint(10), kind=Format.NEMO)) == (20, YES, None)


def test_a_trainer_that_checks_passes_over_the_damaged():
    """The lab's own goes on from the newest that is sound."""
    assert told(series(checkpoint(20, NO), checkpoint(10), kind=Format.LAB)) == (10, YES, None)


def test_a_script_decides_among_several_files():
    """Of one file it is known, of several it is not: then nothing is safe, and nothing is damaged."""
    assert told(series(checkpoint(None), kind=Format.FILE)) == (None, YES, None)
    choice = choose(series(checkpoint(20, NO), checkpoint(10), kind=Format.FILE))
    assert (choice.taken, choice.safe, choice.fall_back) == (None, UNKNOWN, None)
    assert "whole: step 10; damaged: step 20" in choice.sentence


def test_sentences_say_why():
    """The reason stands in it."""
    assert choose(series(checkpoint(20, NO), checkpoint(10))).sentence == (
        "a restart would go on from step 20, which is damaged (cut short); step 10 before it is whole"
    )
    assert choose(series()).sentence == "no checkpoint in /run"


def test_is_new_durable():
    """Only a further step is progress: the same one written again is none, and unknown is never yes."""
    was, now = checkpoint(10), survey(series(checkpoint(30, NO), checkpoint(20), checkpoint(10)))
    assert is_new_durable(was, now) is YES
    assert is_new_durable(None, now) is YES
    assert is_new_durable(checkpoint(20), now) is NO
    rewritten = checkpoint(20, modified_at=NOW)
    assert is_new_durable(checkpoint(20), survey(series(rewritten))) is NO
    assert is_new_durable(checkpoint(20), survey(series(rewritten), problems=("time was up",))) is UNKNOWN
    assert is_new_durable(was, survey()) is NO
    assert is_new_durable(was, survey(problems=("no such folder",))) is UNKNOWN
    assert is_new_durable(was, survey(series(checkpoint(20, UNKNOWN)))) is UNKNOWN
    # One file without a step, written over and over: times of the same file server.
    one = checkpoint(None, modified_at=NOW - timedelta(seconds=5))
    assert is_new_durable(one, survey(series(checkpoint(None, modified_at=NOW)))) is YES
    assert is_new_durable(one, survey(series(one))) is NO


@pytest.mark.parametrize(
    ("written", "answer"),
    [
        (timedelta(minutes=30), YES),
        (timedelta(minutes=-30), NO),
        (timedelta(seconds=30), UNKNOWN),
        (timedelta(seconds=-30), UNKNOWN),
        (timedelta(hours=3), UNKNOWN),  # in the future
    ],
)
def test_where_nobody_looked_before_the_clocks_decide_if_they_can(written: timedelta, answer: Answer):
    """A time on a file server near the attempt's beginning, or in the future, decides nothing."""
    began = NOW - timedelta(hours=1)
    now = survey(series(checkpoint(20, modified_at=began + written)))
    assert is_new_durable(None, now, known_before=False, began_at=began) is answer
    assert is_new_durable(None, now, known_before=False) is UNKNOWN


def test_age():
    """A file server whose clock is ahead leaves it unknown; a little is taken for now."""
    assert age(checkpoint(1, modified_at=NOW - timedelta(hours=1)), NOW) == timedelta(hours=1)
    assert age(checkpoint(1, modified_at=NOW + CLOCKS_APART / 2), NOW) == timedelta(0)
    assert age(checkpoint(1, modified_at=NOW + CLOCKS_APART * 2), NOW) is None


def test_gaps():
    """Missing ones between others; too few steps tell nothing."""
    assert gaps([100, 200, 300, 600, 700]) == ((300, 600),)
    assert gaps([100, 400]) == ()
    assert gaps([]) == ()


def test_room():
    """For one as large as the largest of the newest; damaged ones tell no size."""
    some = series(checkpoint(30, NO, size=10**9), checkpoint(20, size=100), checkpoint(10, size=90))
    assert has_room(some, Space(free=101, total=200)) is YES
    assert has_room(some, Space(free=100, total=200)) is NO
    assert has_room(some, Space(free=101, total=200, free_files=0)) is NO
    assert has_room(some, None) is UNKNOWN
    assert has_room(series(), Space(free=101, total=200)) is UNKNOWN


@given(
    st.lists(st.tuples(st.integers(0, 50), st.sampled_from(Answer), st.booleans(), st.booleans()), max_size=6),
    st.sampled_from(Format),
    st.none() | st.integers(0, 50) | st.just(""),
)
def test_never_from_a_damaged_one(found, kind, tracked):
    """Whatever there is: *safe* says what the taken one is, and what is fallen back to is whole and another."""
    made = [
        checkpoint(step, whole, published=taken, last=last)
        for step, whole, taken, last in {f[0]: f for f in found}.values()
    ]
    ordered = sorted(made, key=lambda each: each.step or 0, reverse=True)
    tracker = None
    if tracked == "":
        tracker = Tracker(path="/run/latest", problem="is empty")
    elif tracked is not None:
        tracker = Tracker(path="/run/latest", target=f"/run/step-{tracked}", step=tracked)
    choice = choose(series(*ordered, kind=kind, tracker=tracker))
    if choice.taken:
        assert choice.safe is choice.taken.whole
    if choice.fall_back:
        assert choice.safe is NO
        assert choice.fall_back.whole is YES
        assert choice.fall_back != choice.taken
    assert choice.sentence
    best = newest_whole(survey(series(*ordered, kind=kind, tracker=tracker)))
    assert best is None or best.whole is YES
