"""Draining needs leave that still holds, is done once, and never takes over what somebody else did."""

from datetime import timedelta

import pytest

from relight.activities import contracts as c
from relight.activities.records import row
from relight.activities.restart import ReadBackError
from relight.clients.ledger import LedgerUnavailableError
from relight.clients.slurm import (
    AmbiguousWriteError,
    NodeNotFoundError,
    NotPermittedError,
    RefusedError,
    SlurmUnavailableError,
)
from relight.domain.evidence import Evidence, Source
from relight.domain.incidents import Outcome
from relight.domain.ledger import Change, RowKind
from relight.domain.plan import Mode
from relight.domain.policy import Policy
from relight.domain.slurm import NodeFlag

REASON = "relight:i1:XID_79: n3 lost a GPU"


@pytest.fixture
async def drain(world, ref):
    """Drains n3 for incident i1, with leave for five minutes."""
    attempt = await world.failed()
    expires = world.clock.now + timedelta(minutes=5)

    async def call(node="n3", *, granted=True, expires=expires, name="i1", recorded=True):
        leave = c.Leave(node=node, granted=granted, reason="drain 1 of 1", expires=expires)
        if recorded and not world.ledger.down:
            seen = Evidence(source=Source.NVML, text="Xid 79", node=node)
            body = {"leave": leave.model_dump(mode="json"), "evidence": [seen.model_dump(mode="json")]}
            entry = row(world.site, ref(attempt, name=name), f"leave-{node}", RowKind.LEAVE, body, node=node)
            await world.ledger.commit(Change(entries=(entry,)))
        arg = c.DrainInput(
            incident=ref(attempt, name=name), node=node, cls="XID_79", summary="n3 lost a GPU", leave=leave
        )
        return await world.run(world.nodes.drain, arg)

    return call


def put(world, **fields):
    """Somebody else changes n3."""
    world.slurm.node_records["n3"] = world.slurm.node_records["n3"].model_copy(update=fields)


async def kinds(world):
    return [each.kind for each in await world.ledger.rows(node="n3") if each.kind is not RowKind.LEAVE]


async def test_drain(world, drain):
    """Meant, written with our mark, read back, written down."""
    done = await drain()
    node = world.slurm.node_records["n3"]
    assert (node.draining, node.reason, done.outcome) == (True, REASON, None)
    assert REASON in done.text
    assert world.writes == ["drain"]
    assert await kinds(world) == [RowKind.INTENT, RowKind.EFFECT]


async def test_a_drain_says_that_work_still_runs(world, drain):
    """The flag alone does not mean that the node is empty."""
    await world.train(nodes=3)
    assert (await drain()).text.endswith("work still runs there")


async def test_a_repeated_drain_returns_what_was_done(world, drain):
    """Also when the node was returned to service since: that was somebody's decision."""
    first = await drain()
    await world.slurm.undrain("n3")
    world.slurm.writes.clear()
    assert await drain() == first
    assert world.writes == []


async def test_a_drain_whose_effect_was_not_written_down_is_found(world, drain):
    """The next try finds it and does not repeat it."""
    world.ledger.refused = {RowKind.EFFECT}
    with pytest.raises(LedgerUnavailableError):
        await drain()
    world.ledger.refused = set()
    assert (await drain()).outcome is None
    assert world.writes == ["drain"]


async def test_a_drain_found_after_its_leave_is_told_as_it_is(world, drain):
    """The node has been drained with leave; that the leave has expired since does not undo it."""
    world.ledger.refused = {RowKind.EFFECT}
    with pytest.raises(LedgerUnavailableError):
        await drain()
    world.ledger.refused = set()
    world.clock.on(3600)
    done = await drain()
    assert (done.outcome, world.writes) == (None, ["drain"])
    assert "has the drain flag" in done.text


async def test_a_drain_whose_answer_was_lost_is_looked_for(world, drain):
    """With effect: found. Without: tried again later, after a look."""
    world.slurm.fail_next("drain", AmbiguousWriteError("the answer was lost"), after=True)
    assert (await drain()).outcome is None
    assert world.writes == ["drain"]


async def test_a_drain_without_effect_is_said(world, drain):
    """Read back in vain: not taken for done, and made by the next try."""
    world.slurm.fail_next("drain", AmbiguousWriteError("the answer was lost"))
    with pytest.raises(ReadBackError):
        await drain()
    assert (await drain()).outcome is None
    assert await kinds(world) == [RowKind.INTENT, RowKind.EFFECT]


@pytest.mark.parametrize("how", ["down", "no intent"])
async def test_without_a_ledger_nothing_is_drained(world, drain, how):
    """No ledger, no mutation."""
    if how == "down":
        world.ledger.down = True
    else:
        world.ledger.refused = {RowKind.INTENT}
    with pytest.raises(LedgerUnavailableError):
        await drain()
    assert world.writes == []


async def test_an_expired_leave_drains_nothing(world, drain):
    """The world has moved on."""
    world.clock.on(301)
    assert (await drain()).outcome is Outcome.EXPIRED
    assert (world.writes, await kinds(world)) == ([], [RowKind.EFFECT])


async def test_a_refusal_drains_nothing(world, drain):
    """Whatever the workflow asks."""
    assert (await drain(granted=False, expires=None)).outcome is Outcome.EXPIRED
    assert world.writes == []


async def test_without_a_leave_on_record_nothing_is_drained(world, drain):
    """A workflow's word that there is one is not enough."""
    assert (await drain(recorded=False)).outcome is Outcome.EXPIRED
    assert (world.writes, await kinds(world)) == ([], [RowKind.EFFECT])


@pytest.mark.parametrize("reason", ["bad fan", "relight:i0:XID_79: another incident", ""])
async def test_a_drain_by_somebody_else_wins(world, drain, reason):
    """An administrator's, or another incident's: the reason stays theirs."""
    put(world, flags=frozenset({NodeFlag.DRAIN}), reason=reason)
    assert (await drain()).outcome is Outcome.OVERRIDDEN
    assert (world.writes, world.slurm.node_records["n3"].reason) == ([], reason)


@pytest.mark.parametrize("error", [RefusedError("hourly cap"), NotPermittedError("no"), SlurmUnavailableError("late")])
async def test_an_error_of_the_wrapper_is_not_an_effect(world, drain, error):
    """It is raised, and nothing is written down as done."""
    world.slurm.fail_next("drain", error)
    with pytest.raises(type(error)):
        await drain()
    assert await kinds(world) == [RowKind.INTENT]


async def test_a_node_that_does_not_exist_is_said(world, drain):
    """Nothing is meant for it."""
    with pytest.raises(NodeNotFoundError):
        await drain("nope")
    assert world.writes == []


async def test_read_nodes(world):
    """Those asked for; a failed read says why and is no empty answer."""
    arg = c.ReadNodesInput(cluster="test", nodes=("n1", "n3", "nope"))
    assert [n.name for n in (await world.run(world.nodes.read_nodes, arg)).nodes] == ["n1", "n3"]
    world.slurm.fail_next("nodes", SlurmUnavailableError("timed out"))
    assert await world.run(world.nodes.read_nodes, arg) == c.Nodes(nodes=(), unknown="timed out")


async def test_leave_is_written_down(world, ref):
    """Grant or refusal, with the evidence, on the node's page."""
    attempt = await world.failed()
    seen = Evidence(source=Source.KERNEL_LOG, text="NVRM: Xid 79", node="n3")
    request = c.DrainRequest(incident=ref(attempt), node="n3", cls="XID_79", reason="why", evidence=(seen,))
    leave = c.Leave(node="n3", granted=False, reason="1 of 1 drains of this hour are used on this cluster")
    for _ in range(2):
        await world.run(world.nodes.record_leave, c.LeaveInput(request=request, leave=leave))
    (row,) = await world.ledger.rows(node="n3", kind=RowKind.LEAVE)
    assert row.body["leave"]["granted"] is False
    assert row.body["evidence"][0]["text"] == "NVRM: Xid 79"


async def test_the_policy_in_force_is_read(make_world):
    """As the operator wrote it."""
    policy = Policy(mode=Mode.APPROVE, drains_per_hour=7)
    world = make_world(policy=policy)
    assert await world.run(world.nodes.read_policy, c.PolicyInput(cluster="test")) == policy


async def test_a_remark_that_slurm_appends_does_not_make_it_anothers(world, drain):
    """slurmctld adds to a reason; the mark at its beginning tells whose it is."""
    put(world, flags=frozenset({NodeFlag.DRAIN}), reason=f"{REASON} : Not responding [slurm@2026-11-30T09:00:00]")
    assert (await drain()).outcome is None
    assert world.writes == []
