"""What is found of an attempt that trains on, slowly or for nothing: how it is judged and what is done about it."""

from datetime import timedelta

import pytest

from relight.domain.attempts import Progress
from relight.domain.confirmation import judge
from relight.domain.diagnosis import Action, Category
from relight.domain.evidence import Evidence, Interruption, Source
from relight.domain.findings import (
    SLOWER_STEPS,
    SLOWER_THAN_ITSELF,
    Learnt,
    numerics_detection,
    slow_detection,
)
from relight.domain.incidents import Outcome
from relight.domain.numerics import NumericsFinding, NumericsKind
from relight.domain.plan import Mode, Restart
from relight.domain.policy import Policy, decide
from relight.domain.rhythm import Phase, PhaseGaps, Rhythm
from relight.domain.slurm import JobState
from relight.domain.straggler import Pace, Slowdown

KINDS = [Interruption.STRAGGLER, Interruption.NUMERICS]
STILL = Progress(last_step=90, slow_since=51, wrong_since=51)
AUTO = Policy(mode=Mode.AUTO)


@pytest.fixture
def judged(attempt, detection, record):
    """Judges a finding about job 7, which runs and is still slow or wrong where not said."""

    def call(kind, *, look="running", progress=STILL, earlier=()):
        shown = record() if look == "running" else look
        found = detection(kind=kind)
        return judge(attempt(), found, shown, progress=progress, node_still_lost=False, earlier=earlier)

    return call


@pytest.mark.parametrize("kind", KINDS)
def test_what_still_stands_is_confirmed(judged, kind):
    """Nothing else is asked: the follower says it."""
    assert judged(kind).outcome is None


@pytest.mark.parametrize(("kind", "word"), [(KINDS[0], "fast"), (KINDS[1], "in order")])
def test_what_has_passed_is_not(judged, kind, word):
    """The pace, or the loss, has recovered before anybody looked."""
    found = judged(kind, progress=Progress(last_step=90))
    assert found.outcome is Outcome.NOT_CONFIRMED
    assert word in found.reason


@pytest.mark.parametrize("kind", KINDS)
def test_the_end_is_judged_on_its_own(judged, record, kind):
    """An attempt that has ended is slow no more; whether its state can be read is waited for."""
    assert judged(kind, look=record(state=JobState.FAILED)).outcome is Outcome.NOT_CONFIRMED
    assert judged(kind, look=None).outcome is Outcome.NOT_CONFIRMED
    assert judged(kind, look=record(state=JobState.UNKNOWN)) is None


@pytest.mark.parametrize("kind", KINDS)
def test_a_crash_after_what_was_left_alone_is_handled(judged, incident, record, now, kind):
    """It is no echo of the slow-down."""
    left = incident(kind=kind, outcome=Outcome.OBSERVED, closed_at=now + timedelta(minutes=1))
    assert judged(Interruption.CRASH, look=record(state=JobState.FAILED), earlier=(left,)).outcome is None


@pytest.mark.parametrize("kind", KINDS)
def test_the_same_slow_down_is_not_told_twice(judged, incident, now, kind):
    """One that was found before the incident closed is answered."""
    left = incident(kind=kind, outcome=Outcome.OBSERVED, closed_at=now + timedelta(minutes=1))
    assert judged(kind, earlier=(left,)).outcome is Outcome.NOT_CONFIRMED


def told(text="steps take 20% longer"):
    return Evidence(source=Source.PROGRESS, text=text)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("action", list(Action))
def test_an_attempt_that_trains_is_left_running(situation, diagnosis, record, kind, action):
    """Whatever the catalogue would do: observed, nothing changed, with the reason."""
    here = situation(kind=kind, record=record())
    verdict = decide(here, diagnosis(action=action, nodes=("n1",), evidence=(told(),)), AUTO)
    assert (verdict.outcome, verdict.plan.restart) == (Outcome.OBSERVED, Restart.NONE)
    assert not verdict.plan.acts
    assert verdict.plan.reason == "left running: steps take 20% longer"
    assert verdict.mode is Mode.APPROVE


def test_a_node_that_the_platform_names_may_be_left_if_a_person_says_so(situation, diagnosis, record):
    """A slow node with a witness: restart elsewhere, in mode approve at most."""
    here = situation(kind=Interruption.STRAGGLER, record=record())
    cause = diagnosis(action=Action.RESTART_EXCLUDING_NODE, nodes=("n1",), drain_nodes=("n1",))
    verdict = decide(here, cause, AUTO)
    assert (verdict.outcome, verdict.plan.restart) == (None, Restart.REQUEUE)
    assert (verdict.plan.exclude, verdict.plan.drain, verdict.mode) == (("n1",), ("n1",), Mode.APPROVE)
    assert decide(here, cause, Policy()).mode is Mode.MONITOR
    other = diagnosis(action=Action.RESTART_EXCLUDING_NODE, nodes=("n1",), drain_nodes=("n9",))
    assert decide(here, other, AUTO).outcome is Outcome.OBSERVED


def test_numbers_that_are_wrong_move_no_node(situation, diagnosis, record):
    """Not even a platform witness makes a NaN a node's fault."""
    here = situation(kind=Interruption.NUMERICS, record=record())
    verdict = decide(here, diagnosis(category=Category.GPU, nodes=("n1",), drain_nodes=("n1",)), AUTO)
    assert verdict.outcome is Outcome.OBSERVED


@pytest.mark.parametrize("kind", KINDS)
def test_what_ended_meanwhile_is_anothers(situation, diagnosis, kind):
    """Its end opens an incident of its own: this one changes nothing."""
    verdict = decide(situation(kind=kind), diagnosis(evidence=(told(),)), AUTO)
    assert (verdict.outcome, verdict.plan.acts) == (Outcome.OVERRIDDEN, False)


@pytest.mark.parametrize(("by_work", "signature"), [(True, SLOWER_THAN_ITSELF), (False, SLOWER_STEPS)])
def test_a_slow_down_says_what_is_known_of_it(attempt, now, by_work, signature):
    """Ratio, both times, since when; and where the work of a step is unknown, that it is."""
    slow = Slowdown(since_step=51, ratio=1.25, baseline_seconds=2.0, recent_seconds=2.5, steps=20, by_work=by_work)
    found = slow_detection(attempt(), slow, now)
    (evidence,) = found.evidence
    assert found.id == f"{attempt().key}/straggler/51"
    assert "25% longer since step 51: 2.5 s instead of 2 s" in evidence.text
    assert ("not printed" in evidence.text) is not by_work
    assert evidence.signature == signature


def test_wrong_numbers_say_since_when(attempt, now):
    """One detection for each first wrong step."""
    finding = NumericsFinding(kind=NumericsKind.LOSS_NOT_FINITE, step=31, text="loss nan in 3 lines in a row")
    found = numerics_detection(attempt(), finding, now)
    assert (found.id, found.kind) == (f"{attempt().key}/numerics/31", Interruption.NUMERICS)
    assert found.evidence[0].text == "loss nan in 3 lines in a row, since step 31"


def test_the_next_attempt_learns_from_the_last():
    """Its rhythm; its pace only on as many nodes; of its numbers nothing."""
    startup = {Phase.STARTUP: PhaseGaps(1, 90.0)}
    learnt = Learnt(rhythm=Rhythm(step=90, phases=startup), pace=Pace(odd=0.3), source="/out")
    same, other = (learnt.next_attempt(same_size=size) for size in (True, False))
    assert same.rhythm == other.rhythm == Rhythm(phases=startup)
    assert (same.pace.odd, other.pace) == (0.3, Pace())
    assert (same.source, same.numbers) == ("", Learnt().numbers)
