"""The guard grants a drain only on platform evidence, of a node that is in service, within the cap."""

from datetime import timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from relight.domain.evidence import Evidence, Source, Trust
from relight.domain.guard import LEAVE_LASTS, WINDOW, Grant, recent, rule
from relight.domain.slurm import NodeFlag, NodeState

WITNESS = Evidence(source=Source.KERNEL_LOG, text="NVRM: Xid 79", node="n1")
SECOND = timedelta(seconds=1)


def grant(node, at):
    return Grant(node=node, incident="i1", at=at)


def test_leave_is_given(node, now):
    """A platform witness on a node in service, and room within the cap."""
    assert rule(node("n1"), [WITNESS], [], 1, now) == (True, "drain 1 of 1 in this hour")
    assert rule(node("n1", NodeState.ALLOCATED), [WITNESS], [grant("n9", now)], 2, now).granted


def test_an_unknown_node_is_refused(now):
    """A node that could not be read is not drained."""
    ruling = rule(None, [WITNESS], [], 1, now)
    assert (ruling.granted, ruling.reason) == (False, "the node's state could not be read")


@pytest.mark.parametrize(
    "evidence",
    [
        [],
        [Evidence(source=Source.JOB_LOG, text="Xid 79", node="n1")],
        [Evidence(source=Source.HISTORY, text="n1 failed before", node="n1")],
        [Evidence(source=Source.KERNEL_LOG, text="Xid 79", node="n2")],
        [Evidence(source=Source.KERNEL_LOG, text="Xid 79")],
    ],
    ids=["none", "job log", "history", "another node", "no node"],
)
def test_without_a_platform_witness_on_the_node_it_is_refused(node, now, evidence):
    """No amount of a job's own words drains a node."""
    ruling = rule(node("n1"), evidence * 50, [], 1, now)
    assert not ruling.granted
    assert "no platform witness" in ruling.reason


def test_a_node_that_is_out_already_is_refused(node, now):
    """Drained by us, by somebody else, or down: there is nothing to grant, and the reason says which."""
    drained = {"flags": {NodeFlag.DRAIN}}
    ours = rule(node("n1", reason="relight:i1:X: y", **drained), [WITNESS], [], 1, now)
    theirs = rule(node("n1", reason="bad fan", **drained), [WITNESS], [], 1, now)
    down = rule(node("n1", NodeState.DOWN), [WITNESS], [], 1, now)
    assert not any(ruling.granted for ruling in (ours, theirs, down))
    assert "by Relight" in ours.reason
    assert "somebody else: bad fan" in theirs.reason
    assert "down already" in down.reason


def test_the_cap_counts_one_hour(node, now):
    """A grant counts for the hour after it was given, to the second."""
    assert not rule(node("n1"), [WITNESS], [grant("n9", now - WINDOW + SECOND)], 1, now).granted
    assert rule(node("n1"), [WITNESS], [grant("n9", now - WINDOW)], 1, now).granted
    assert recent([grant("n9", now - WINDOW), grant("n8", now)], now) == (grant("n8", now),)


def test_a_cap_of_zero_grants_nothing(node, now):
    """A site may forbid draining altogether."""
    assert rule(node("n1"), [WITNESS], [], 0, now) == (False, "0 of 0 drains of this hour are used on this cluster")


def test_two_incidents_do_not_get_leave_for_one_node(node, now):
    """Until the first leave is void, or its drain can be read back, a second one is refused whatever the cap."""
    ruling = rule(node("n1"), [WITNESS], [grant("n1", now - LEAVE_LASTS + SECOND)], 9, now)
    assert not ruling.granted
    assert "has leave for this node already" in ruling.reason
    assert rule(node("n1"), [WITNESS], [grant("n1", now - LEAVE_LASTS)], 9, now).granted


@given(
    seen=st.lists(st.tuples(st.sampled_from(["n1", "n2"]), st.sampled_from(list(Source))), max_size=6),
    given_before=st.lists(st.tuples(st.sampled_from(["n1", "n2", "n3"]), st.integers(0, 7200)), max_size=6),
    per_hour=st.integers(0, 4),
    state=st.sampled_from(list(NodeState)),
    flags=st.frozensets(st.sampled_from(list(NodeFlag)), max_size=2),
)
def test_what_leave_always_means(node, now, *, seen, given_before, per_hour, state, flags):
    """Whenever leave is granted: platform evidence on that node, the node in service, the cap kept."""
    evidence = [Evidence(source=source, text="x", node=name) for name, source in seen]
    grants = [grant(name, now - timedelta(seconds=ago)) for name, ago in given_before]
    found = node("n1", state, flags=flags)
    ruling = rule(found, evidence, grants, per_hour, now)
    assert ruling.reason
    if ruling.granted:
        assert any(e.node == "n1" and e.trust is Trust.PLATFORM for e in evidence)
        assert not found.draining
        assert not found.lost
        assert len([g for g in grants if now - g.at < WINDOW]) < per_hour
