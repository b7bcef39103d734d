"""The guard grants only on platform evidence, of a node in service, within the least of all limits; unknown is no."""

from datetime import timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from relight.attribution.catalogue import load
from relight.domain.breaker import BreakerPolicy
from relight.domain.evidence import Evidence, Source, Trust
from relight.domain.guard import (
    FATAL,
    LEAVE_LASTS,
    WINDOW,
    Case,
    Grant,
    NodeAct,
    PartitionCount,
    Room,
    View,
    counts,
    part,
    recent,
    rule,
    wild,
)
from relight.domain.human import Share
from relight.domain.policy import Policy
from relight.domain.slurm import NodeFlag, NodeRecord, NodeState

WITNESS = Evidence(source=Source.KERNEL_LOG, text="NVRM: Xid 48", node="n1", signature="XID_48")
LOST = Evidence(source=Source.NVML, text="GPU is lost", node="n1", signature="NVML_GPU_LOST")
SECOND = timedelta(seconds=1)
GENEROUS = Policy(drains_per_hour=100, downs_per_hour=100, drain_share=Share(1), most_unavailable=Share(1))


def grant(node, at, **fields):
    return Grant(node=node, incident="i1", at=at, **fields)


def asked(*evidence, node="n1", **fields):
    return Case(node=node, evidence=evidence or (WITNESS,), **fields)


def view(node, **fields):
    """What a look shows of a node of partition gpu, of 100 nodes none of which is out, without topology."""
    given_ = {"node": node, "domains": ()}
    if node is not None and node.partitions:
        given_["partitions"] = tuple(PartitionCount(name=name, nodes=100, out=0) for name in node.partitions)
    return View(**{**given_, **fields})


@pytest.fixture
def n1(node):
    """A node in service, in partition gpu."""
    return node("n1", partitions=("gpu",))


def test_leave_is_given(n1, now):
    """A platform witness on a node in service, and room within all limits."""
    assert rule(asked(), view(n1), [], Policy(), now) == (True, "drain 1 of 1 in this hour")


@pytest.mark.parametrize(
    "missing",
    [{"node": None}, {"domains": None}, {"partitions": ()}],
    ids=["node", "topology", "partition's count"],
)
def test_what_is_not_known_never_grants(n1, now, missing):
    """A look that failed, in part or whole, is no yes."""
    ruling = rule(asked(), view(n1).model_copy(update=missing), [], GENEROUS, now)
    assert not ruling.granted
    assert "could not be" in ruling.reason


@pytest.mark.parametrize(
    "evidence",
    [
        Evidence(source=Source.JOB_LOG, text="Xid 79", node="n1"),
        Evidence(source=Source.HISTORY, text="n1 failed before", node="n1"),
        Evidence(source=Source.KERNEL_LOG, text="Xid 79", node="n2"),
        Evidence(source=Source.KERNEL_LOG, text="Xid 79"),
    ],
    ids=["job log", "history", "another node", "no node"],
)
def test_without_a_platform_witness_on_the_node_it_is_refused(n1, now, evidence):
    """No amount of a job's own words drains a node."""
    assert "no platform witness" in rule(asked(*[evidence] * 50), view(n1), [], GENEROUS, now).reason
    assert "no platform witness" in rule(Case("n1", ()), view(n1), [], GENEROUS, now).reason


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("", "no node is named"),
        ("ALL", "not one plain node name"),
        ("all", "not one plain node name"),
        ("*", "not one plain node name"),
        ("n[1-4]", "not one plain node name"),
        ("n1,n2", "not one plain node name"),
        ("--all", "not one plain node name"),
        ("-n1", "not one plain node name"),
        ("n1 n2", "not one plain node name"),
        ("n1\n", "not one plain node name"),
        ("n" * 60_000, "not one plain node name"),
    ],
)
def test_a_wild_or_empty_target_is_an_error(n1, now, name, words):
    """Never "all": `scontrol update NodeName=ALL` would be every node. What is told stays short."""
    assert words in wild(name)
    ruling = rule(asked(node=name), view(n1), [], GENEROUS, now)
    assert not ruling.granted
    assert len(ruling.reason) < 200
    assert wild("gpu-001.rack_2") == ""


def test_a_plan_of_many_nodes_is_refused_whole(n1, now):
    """As many nodes as make a common cause are not taken out one by one; nor is a plan of none."""
    assert rule(asked(targets=2), view(n1), [], GENEROUS, now).granted
    assert "3 are a common cause" in rule(asked(targets=3), view(n1), [], GENEROUS, now).reason
    assert not rule(asked(targets=0), view(n1), [], GENEROUS, now).granted


def test_a_node_that_is_out_already_is_refused(node, now):
    """Drained by us, by somebody else, or down: there is nothing to grant, and the reason says which."""
    drained = {"flags": {NodeFlag.DRAIN}}
    ours = rule(asked(), view(node("n1", reason="relight:i1:X: y", **drained)), [], GENEROUS, now)
    theirs = rule(asked(), view(node("n1", reason="bad fan", **drained)), [], GENEROUS, now)
    down = rule(asked(), view(node("n1", NodeState.DOWN)), [], GENEROUS, now)
    assert not any(ruling.granted for ruling in (ours, theirs, down))
    assert "by Relight" in ours.reason
    assert "somebody else: bad fan" in theirs.reason
    assert "down already" in down.reason


def test_the_cap_counts_one_hour_and_one_action(n1, now):
    """A grant counts for the hour after it was given, to the second; leave to declare down is counted by itself."""
    once, used = Policy(), "1 of 1 drains of this hour are used on this cluster"
    assert rule(asked(), view(n1), [grant("n9", now - WINDOW + SECOND)], once, now) == (False, used)
    assert rule(asked(), view(n1), [grant("n9", now - WINDOW)], once, now).granted
    assert rule(asked(), view(n1), [grant("n9", now, action=NodeAct.DOWN)], once, now).granted
    assert recent([grant("n9", now - WINDOW), grant("n8", now)], now) == (grant("n8", now),)
    assert not rule(asked(), view(n1), [], Policy(drains_per_hour=0), now).granted


def test_two_incidents_do_not_get_leave_for_one_node(n1, now):
    """Until the first leave is void, or its drain can be read back, a second one is refused whatever the limits."""
    ruling = rule(asked(), view(n1), [grant("n1", now - LEAVE_LASTS + SECOND)], GENEROUS, now)
    assert "has leave for this node already" in ruling.reason
    assert rule(asked(), view(n1), [grant("n1", now - LEAVE_LASTS)], GENEROUS, now).granted


@pytest.mark.parametrize(("nodes", "limit"), [(1, 1), (8, 1), (19, 1), (40, 2), (60, 3), (100, 5)])
def test_the_share_of_a_partition(n1, now, nodes, limit):
    """5 % of the partition in an hour, rounded down; of a small one, one node."""
    policy = GENEROUS.model_copy(update={"drain_share": Share(0.05)})
    seen = view(n1, partitions=(PartitionCount(name="gpu", nodes=nodes, out=0),))
    used = [grant(f"g{number}", now - LEAVE_LASTS, partitions=("gpu", "all")) for number in range(limit)]
    assert part(Share(0.05), nodes) == limit
    assert rule(asked(), seen, used[1:], policy, now).granted
    assert f"{limit} of {limit} nodes (5% of partition gpu)" in rule(asked(), seen, used, policy, now).reason
    elsewhere = [one.model_copy(update={"partitions": ("cpu",)}) for one in used]
    assert rule(asked(), seen, elsewhere, policy, now).granted


@pytest.mark.parametrize(("nodes", "most"), [(4, 1), (8, 1), (40, 6), (100, 15)])
def test_no_drain_while_too_much_is_out_of_service(n1, now, nodes, most):
    """15 % of the partition, whatever put those nodes out; leave that cannot be seen yet counts too."""
    policy = GENEROUS.model_copy(update={"most_unavailable": Share(0.15)})

    def answer(out, unseen=()):
        seen = view(n1, partitions=(PartitionCount(name="gpu", nodes=nodes, out=out),), unseen=unseen)
        granted = [grant(name, now - SECOND, partitions=("gpu",)) for name in unseen]
        return rule(asked(), seen, granted, policy, now)

    assert answer(most - 1).granted
    assert f"{most} of {nodes} nodes of partition gpu are out of service" in answer(most).reason
    assert not answer(most - 1, unseen=("g1",)).granted


def test_out_of_service_is_counted_for_every_cause(node):
    """Down, drained by anybody, silent, in maintenance, of unknown state; not: asleep to save power, only planned."""
    gpu = {"partitions": ("gpu", "all")}
    nodes = [
        node("a", NodeState.DOWN, **gpu),
        node("b", flags={NodeFlag.DRAIN}, reason="fan", **gpu),
        node("c", NodeState.ALLOCATED, flags={NodeFlag.NOT_RESPONDING}, **gpu),
        node("d", flags={NodeFlag.MAINTENANCE}, **gpu),
        node("e", NodeState.UNKNOWN, **gpu),
        node("f", flags={NodeFlag.CLOUD, NodeFlag.POWERED_DOWN}, partitions=("gpu",)),
        node("g", NodeState.FUTURE, **gpu),
        node("h", NodeState.MIXED),
    ]
    assert counts(nodes) == (
        PartitionCount(name="all", nodes=5, out=5),
        PartitionCount(name="gpu", nodes=6, out=5),
    )


def test_one_per_failure_domain(n1, now):
    """Below one switch or in one block one node in an hour; a cluster without topology has nothing to limit by."""
    used = [grant("n9", now - LEAVE_LASTS, domains=("switch s1",))]
    assert rule(asked(), view(n1, domains=("switch s2",)), used, GENEROUS, now).granted
    assert rule(asked(), view(n1, domains=()), used, GENEROUS, now).granted
    refused = rule(asked(), view(n1, domains=("block b1", "switch s1")), used, GENEROUS, now)
    assert refused == (False, "1 of 1 drains of this hour are used in switch s1")


@pytest.mark.parametrize(
    ("room", "granted"),
    [(Room(needs=4, spare=4), True), (Room(needs=4, spare=3), False), (None, False)],
    ids=["enough", "too few", "unknown"],
)
def test_a_job_that_waits_keeps_room(n1, now, room, granted):
    """Not drained where too few nodes would be left for the job, unless none could use the node anyhow."""
    assert rule(asked(restarts=True), view(n1, room=room), [], GENEROUS, now).granted is granted
    assert rule(asked(LOST, restarts=True), view(n1, room=room), [], GENEROUS, now).granted
    assert rule(asked(restarts=False), view(n1, room=room), [], GENEROUS, now).granted


def test_only_a_platform_witness_of_that_node_is_fatal(n1, now):
    """The job's own words do not make room scarcer, nor does what is fatal for another node."""
    said = [
        WITNESS,
        LOST.model_copy(update={"source": Source.JOB_LOG}),
        LOST.model_copy(update={"node": "n2"}),
    ]
    assert not rule(asked(*said, restarts=True), view(n1, room=Room(needs=4, spare=3)), [], GENEROUS, now).granted


def test_fatal_signatures_are_of_the_catalogue():
    """A signature that is renamed there must be renamed here."""
    assert set(load().signatures) >= FATAL


def test_a_person_who_put_a_node_back_is_not_fought(n1, now):
    """Six hours, to the second; and the reason says until when."""
    back = now - timedelta(hours=6)
    assert rule(asked(), view(n1, undrained_at=back), [], GENEROUS, now).granted
    refused = rule(asked(), view(n1, undrained_at=back + SECOND), [], GENEROUS, now)
    assert not refused.granted
    assert "not again before 2026-11-30 09:00 UTC" in refused.reason


def test_leave_to_declare_a_node_down(node, now):
    """For a node that hangs in COMPLETING now, ours if it is drained; a job that waits has no room there anyhow."""
    hangs = {"partitions": ("gpu",), "flags": {NodeFlag.COMPLETING}}
    down = asked(WITNESS, action=NodeAct.DOWN, restarts=True)
    assert rule(down, view(node("n1", **hangs)), [grant("n9", now)], Policy(), now).granted
    ours = {"flags": {NodeFlag.COMPLETING, NodeFlag.DRAIN}, "reason": "relight:i1:X: y"}
    assert rule(down, view(node("n1", **{**hangs, **ours})), [], Policy(), now).granted
    theirs = node("n1", **{**hangs, **ours, "reason": "fan"})
    assert "somebody else" in rule(down, view(theirs), [], Policy(), now).reason
    assert "no longer hangs" in rule(down, view(node("n1", partitions=("gpu",))), [], Policy(), now).reason
    used = [grant("n8", now, action=NodeAct.DOWN)]
    assert "1 of 1 downs" in rule(down, view(node("n1", **hangs)), used, Policy(), now).reason


def test_a_stop_is_told_before_any_limit(n1, now):
    """A pause, the breaker or the kill switch."""
    assert rule(asked(), view(n1, stop="paused by ada"), [], GENEROUS, now) == (False, "paused by ada")


SIZE = 40
NAMES = [f"n{number}" for number in range(SIZE)]
POLICIES = st.builds(
    Policy,
    drains_per_hour=st.integers(0, 6),
    drain_share=st.sampled_from([Share(0.01), Share(0.05), Share(0.1), Share(1)]),
    most_unavailable=st.sampled_from([Share(0.05), Share(0.15), Share(0.5), Share(1)]),
    drains_per_domain=st.integers(1, 2),
)


@given(
    requests=st.lists(st.tuples(st.sampled_from(NAMES), st.integers(0, 1200), st.booleans()), max_size=40),
    out=st.sets(st.sampled_from(NAMES), max_size=10),
    switches=st.integers(0, 8),
    policy=POLICIES,
)
def test_never_more_than_the_least_of_the_limits(now, *, requests, out, switches, policy):
    """Whatever is asked, in whatever order and at whatever pace: in no hour more than each limit allows, and each
    partition keeps what it must. A drain that was granted is seen at the next look, or not yet.
    """
    names = {"gpu": NAMES[:30], "big": NAMES[20:], "all": NAMES}
    drained = set(out)
    grants: list[Grant] = []
    at = now
    for name, seconds, late in requests:
        at += timedelta(seconds=seconds)
        pending = {g.node for g in grants if at - g.at < LEAVE_LASTS} if late else set()
        seen_out = drained - (pending - out)
        mine = tuple(partition for partition, nodes in names.items() if name in nodes)
        record = NodeRecord(
            name=name,
            state=NodeState.IDLE,
            partitions=mine,
            flags=frozenset({NodeFlag.DRAIN} if name in seen_out else ()),
        )
        view_ = View(
            node=record,
            partitions=tuple(
                PartitionCount(name=each, nodes=len(names[each]), out=len(seen_out & set(names[each]))) for each in mine
            ),
            domains=(f"switch {int(name[1:]) % switches}",) if switches else (),
            unseen=tuple(pending - out),
        )
        witness = WITNESS.model_copy(update={"node": name})
        before = {each: len(drained & set(names[each])) for each in mine}
        if not rule(asked(witness, node=name), view_, grants, policy, at).granted:
            continue
        for each in mine:
            assert before[each] < part(policy.most_unavailable, len(names[each]))
        grants.append(Grant(node=name, incident="i", at=at, partitions=mine, domains=view_.domains))
        drained.add(name)
        hour = recent(grants, at)
        assert len(hour) <= policy.drains_per_hour
        for each, nodes in names.items():
            assert sum(each in g.partitions for g in hour) <= part(policy.drain_share, len(nodes))
        for domain in {d for g in hour for d in g.domains}:
            assert sum(domain in g.domains for g in hour) <= policy.drains_per_domain


@given(
    seen=st.lists(st.tuples(st.sampled_from(["n1", "n2"]), st.sampled_from(list(Source))), max_size=6),
    state=st.sampled_from(list(NodeState)),
    flags=st.frozensets(st.sampled_from(list(NodeFlag)), max_size=2),
    action=st.sampled_from(list(NodeAct)),
    domains=st.sampled_from([None, (), ("switch s1",)]),
    known=st.booleans(),
    stop=st.sampled_from(["", "paused"]),
    back=st.none() | st.integers(0, 48),
    targets=st.integers(-1, 5),
    spare=st.none() | st.integers(0, 5),
)
def test_what_leave_always_means(node, now, **found):
    """Whenever leave is given: platform evidence on that node, in service, all of it known, and nobody against it."""
    evidence = tuple(Evidence(source=source, text="x", node=name) for name, source in found["seen"])
    record = node("n1", found["state"], flags=found["flags"], partitions=("gpu",))
    back, spare = found["back"], found["spare"]
    shown = View(
        node=record if found["known"] else None,
        partitions=(PartitionCount(name="gpu", nodes=100, out=0),),
        domains=found["domains"],
        stop=found["stop"],
        undrained_at=None if back is None else now - timedelta(hours=back),
        room=None if spare is None else Room(needs=3, spare=spare),
    )
    case = Case("n1", evidence, action=found["action"], targets=found["targets"], restarts=True)
    ruling = rule(case, shown, [], Policy(), now)
    assert ruling.reason
    if ruling.granted:
        assert any(e.node == "n1" and e.trust is Trust.PLATFORM for e in evidence)
        assert found["known"]
        assert not record.draining
        assert not record.lost
        assert found["domains"] is not None
        assert not found["stop"]
        assert 1 <= found["targets"] < BreakerPolicy().nodes
        if found["action"] is NodeAct.DRAIN:
            assert back is None or back >= 6
            assert spare is not None
            assert spare >= 3
        else:
            assert NodeFlag.COMPLETING in record.flags
