"""Pauses, the breaker and the kill switch: what they stop, what they do not, and what a person's word makes of them."""

from datetime import timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from relight.domain import guard_changes as changes
from relight.domain.breaker import Trip
from relight.domain.guard_standing import LONGEST_PAUSE, MOST_PAUSES, Pause, Reset, Standing
from relight.domain.permits import Act, Permit
from relight.domain.plan import Mode
from relight.domain.policy import Policy, decide

HOUR = timedelta(hours=1)
AUTO = Policy(mode=Mode.AUTO)
SAID = {"by": "ada", "reason": "power work in row 3", "lasts": 2 * HOUR}


@pytest.fixture
def open_(now):
    """A standing with the breaker open for an hour."""
    return Standing(trip=Trip(at=now - HOUR, why="3 nodes found broken within 10m"))


def paused(now, **scope):
    return changes.pause(Standing(), **SAID, now=now, **scope).standing


@pytest.mark.parametrize(
    ("scope", "plans", "nodes"),
    [
        ({}, {"gpu", "cpu"}, {"n1", "n2"}),
        ({"partition": "gpu"}, {"gpu"}, {"n1"}),
        ({"node": "n2"}, set(), {"n2"}),
    ],
    ids=["cluster", "partition", "node"],
)
def test_a_pause_covers_its_scope_until_it_ends(now, scope, plans, nodes):
    """n1 is of partition gpu, n2 of cpu. It ends by itself, to the second."""
    standing = paused(now, **scope)
    of = {"n1": ("gpu",), "n2": ("cpu",)}
    last, over = now + 2 * HOUR - timedelta(seconds=1), now + 2 * HOUR
    assert {p for p in ("gpu", "cpu") if standing.stops(last, last, p)} == plans
    assert {n for n, p in of.items() if standing.stops_node(last, last, n, p)} == nodes
    assert not any(standing.stops(over, over, p) for p in ("gpu", "cpu"))
    assert not any(standing.stops_node(over, over, n, p) for n, p in of.items())
    assert "paused by ada until 2026-11-30 11:00 UTC: power work in row 3" in str(standing.pauses[0])


def test_a_pause_of_the_same_scope_is_replaced_and_a_resume_ends_only_its_own(now):
    """Cluster, partition and node are paused side by side."""
    standing = paused(now)
    standing = changes.pause(standing, **{**SAID, "reason": "longer"}, now=now).standing
    standing = changes.pause(standing, **SAID, now=now, partition="gpu").standing
    assert [pause.where for pause in standing.pauses] == ["the cluster", "partition gpu"]
    resumed = changes.resume(standing, by="bob", now=now)
    assert [pause.where for pause in resumed.standing.pauses] == ["partition gpu"]
    assert resumed.text == "the cluster is resumed by bob; it was paused by ada: longer"
    refused = changes.resume(resumed.standing, by="bob", now=now)
    assert refused.problem == "the cluster is not paused; paused: partition gpu"
    assert refused.standing == resumed.standing


@pytest.mark.parametrize(
    ("wrong", "problem"),
    [
        ({"by": " "}, "say who you are"),
        ({"reason": ""}, "say why"),
        ({"lasts": timedelta(0)}, "from 1m to 30d"),
        ({"lasts": -HOUR}, "from 1m to 30d"),
        ({"lasts": LONGEST_PAUSE + HOUR}, "from 1m to 30d"),
        ({"node": "n[1-4]"}, "not one plain node name"),
        ({"node": "all"}, "not one plain node name"),
        ({"partition": "--all"}, "not one plain partition name"),
        ({"partition": "gpu", "node": "n1"}, "not both"),
    ],
)
def test_a_pause_that_makes_no_sense_is_refused(now, wrong, problem):
    """Nothing is changed, and the answer says what is wrong."""
    change = changes.pause(Standing(), **{**SAID, **wrong}, now=now)
    assert problem in change.problem
    assert change.standing == Standing()


def test_pauses_are_bounded(now):
    """The standing travels with every decision."""
    standing = Standing()
    for number in range(MOST_PAUSES):
        standing = changes.pause(standing, **SAID, now=now, node=f"n{number}").standing
    assert f"{MOST_PAUSES} pauses already" in changes.pause(standing, **SAID, now=now).problem
    assert not changes.pause(standing, **SAID, now=now, node="n1").problem
    assert len(changes.pause(standing, **SAID, now=now + 3 * HOUR).standing.pauses) == 1


def test_an_open_breaker_stops_all(now, open_):
    """Every partition and node, whenever it began."""
    assert "the breaker is open since 2026-11-30 08:00 UTC" in open_.stops(now, now, "gpu")
    assert open_.stops_node(now, now, "n1", ("gpu",))


def test_a_reset_needs_a_name_and_a_reason_and_does_not_replay(now, open_):
    """What began before it is not carried out later; what begins after it is free."""
    assert changes.reset(open_, by="", reason="x", now=now).problem == "say who you are"
    assert "say why" in changes.reset(open_, by="ada", reason=" ", now=now).problem
    assert changes.reset(Standing(), by="ada", reason="x", now=now).problem == "the breaker is not open"
    change = changes.reset(open_, by="ada", reason="switch replaced", now=now)
    assert change.standing.trip is None
    assert change.text == (
        "reset by ada: switch replaced; it was open since 2026-11-30 08:00 UTC: 3 nodes found broken within 10m"
    )
    later = now + HOUR
    assert "before ada reset the breaker" in change.standing.stops(later, now, "gpu")
    assert change.standing.stops_node(later, now - HOUR, "n1", ())
    assert not change.standing.stops(later, now + timedelta(seconds=1), "gpu")


def test_the_kill_switch_stops_all(now):
    """With the words of the file."""
    standing = Standing(killed="/KILL is there: fire drill")
    assert standing.stops(now, now, "gpu") == "the kill switch is on: /KILL is there: fire drill"
    assert standing.stops_node(now, now, "n1", ())


STANDINGS = st.sampled_from(["open", "cluster", "gpu", "killed", "reset"])


@given(kind=STANDINGS, permit=st.sampled_from([Permit.APPROVE, Permit.AUTO]))
def test_a_plan_is_only_observed_while_it_is_stopped(situation, diagnosis, now, kind, permit):
    """Whatever the policy allows, with the reason; the plan itself is told as it would have been."""
    later = now + timedelta(minutes=10)
    standing = {
        "open": Standing(trip=Trip(at=now, why="x")),
        "cluster": Standing(pauses=(Pause(by="a", reason="b", since=now, until=later + HOUR),)),
        "gpu": Standing(pauses=(Pause(by="a", reason="b", since=now, until=later + HOUR, partition="gpu"),)),
        "killed": Standing(killed="it is there"),
        "reset": Standing(reset=Reset(at=later, by="ada", reason="x")),
    }[kind]
    policy = Policy(mode=Mode(permit), modes={Act.DRAIN: permit})
    free = decide(situation(began=now), diagnosis(), policy)
    verdict = decide(situation(began=now, guard=standing), diagnosis(), policy)
    assert free.mode is Mode(permit)
    assert verdict.mode is Mode.MONITOR
    assert verdict.mode_reason == standing.stops(later, now, "gpu")
    assert verdict.plan == free.plan


def test_an_unreadable_standing_is_never_acted_on_unasked(situation, diagnosis):
    """Unknown is neither open nor closed: a person decides; what is only observed stays so."""
    unknown = situation(guard=Standing(unknown="what the guard wrote cannot be read"))
    verdict = decide(unknown, diagnosis(), AUTO)
    assert (verdict.mode, verdict.mode_reason) == (Mode.APPROVE, "what the guard wrote cannot be read")
    assert decide(unknown, diagnosis(), Policy()).mode is Mode.MONITOR


def test_a_pause_of_a_node_or_of_another_partition_leaves_the_job_alone(situation, diagnosis, now):
    """The job of partition gpu is restarted as the policy says."""
    for scope in ({"node": "n1"}, {"partition": "cpu"}):
        assert decide(situation(guard=paused(now, **scope)), diagnosis(), AUTO).mode is Mode.AUTO
