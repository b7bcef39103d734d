"""What silence of a node's agent means, and what an incident that rests on it waits for."""

from datetime import timedelta

import pytest

from relight.domain.evidence import Evidence, Interruption, Source, Trust
from relight.domain.silence import (
    Lost,
    common_cause,
    lost_before_slurm,
    node_booted,
    node_silent,
    silent_after,
    waits_for_slurm,
)
from relight.domain.slurm import NodeState
from relight.domain.watching import nodes_down

SECOND = timedelta(seconds=1)
WITNESS = Evidence(source=Source.SLURMD, text="slurmd of n2 at 10.0.0.2:6818 does not answer", node="n2")


@pytest.fixture
def lost(now):
    """n2, last heard of 9 s ago; Slurm may take 300 s."""

    def make(within=300, ago=9):
        return Lost("n2", now - ago * SECOND, within * SECOND, now)

    return make


@pytest.mark.parametrize(("beat", "seconds"), [(5, 7), (30, 42), (1, 3), (0.1, 2.1)])
def test_an_agent_is_silent_some_time_after_its_next_beat_was_due(beat, seconds):
    """By its own period; a short one needs the same 2 s for the way."""
    assert silent_after(timedelta(seconds=beat)) == timedelta(seconds=seconds)


@pytest.mark.parametrize(("silent", "beating", "common"), [(1, 3, False), (2, 2, False), (3, 2, True), (1, 0, True)])
def test_most_agents_at_once_is_a_common_cause(silent, beating, common):
    """A single agent that falls silent is all of them: then nothing is known either."""
    assert common_cause(silent, beating) is common


def test_slurms_later_word_is_the_same_finding(attempt, node, lost, now):
    """Whoever is first: one detection of a node lost to an attempt."""
    running = attempt()
    found = node_silent(running, lost(), 5 * SECOND, WITNESS)
    assert found.id == nodes_down(running, [node("n2", NodeState.DOWN)], now).id
    assert (found.kind, found.occurred_at, found.detected_at) == (Interruption.NODE_LOST, now - 9 * SECOND, now)
    assert {e.trust for e in found.evidence} == {Trust.PLATFORM}
    assert found.evidence[0].text == "n2 is silent: its agent, which beats every 5 s, was last heard of 9 s ago"


def test_a_boot_under_an_attempt_is_a_loss(attempt, lost, now):
    """Not one before the attempt was seen to run: Slurm may have had the node booted for it."""
    found = node_booted(attempt(), lost(ago=-1))
    assert found is not None
    assert lost_before_slurm(found) == "n2"
    assert node_booted(attempt(), lost(ago=1)) is None


def test_what_is_waited_for_is_said(attempt, lost, detection):
    """In words for whoever is on call; nothing where Slurm has decided already."""
    running = attempt()
    silent = node_silent(running, lost(), 5 * SECOND, WITNESS)
    assert waits_for_slurm(silent) == "n2 is silent; waiting for Slurm to declare it down (up to 300 s)"
    never = node_silent(running, lost(within=0), 5 * SECOND, WITNESS)
    assert "SlurmdTimeout=0" in waits_for_slurm(never)
    booted = node_booted(running, lost(ago=-1))
    assert waits_for_slurm(booted).startswith("n2 has been booted anew; waiting")
    assert waits_for_slurm(detection()) == ""
