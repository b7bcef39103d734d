"""Who sets nodes aside, and when they are back, is written down once: later it tells whether a decision was right."""

from relight.activities.set_aside import MOST_AT_ONCE, SetAside
from relight.domain.ledger import RowKind
from relight.domain.slurm import NodeFlag, NodeRecord, NodeState


def node(name="n1", *flags, state=NodeState.IDLE, reason=""):
    return NodeRecord(name=name, state=state, flags=frozenset(flags), reason=reason, reason_user="root")


async def told(world):
    rows = await world.rows(RowKind.SET_ASIDE)
    return [(row.node, row.body["state"], row.body["ours"], row.body["reason"]) for row in rows]


async def test_a_drain_and_the_return_are_told_once(world):
    """Also where the watcher was started anew between; what was so before the first look is not news."""
    drained = node("n1", NodeFlag.DRAIN, reason="bad GPU")
    look = SetAside(world.site).look
    await look((node("n0", NodeFlag.DRAIN, reason="old"), node("n1")))
    assert await told(world) == []
    for _ in range(2):
        await look((node("n0", NodeFlag.DRAIN, reason="old"), drained))
        world.clock.on(2)
    look = SetAside(world.site).look
    await look((node("n0"), drained, node("n2", state=NodeState.DOWN, reason="Not responding")))
    assert await told(world) == [
        ("n1", "drained", False, "bad GPU"),
        ("n0", "back", False, ""),
        ("n2", "down", False, "Not responding"),
    ]


async def test_our_own_mark_is_known(world):
    """A drain of Relight's is no person's word."""
    look = SetAside(world.site).look
    await look((node(),))
    await look((node("n1", NodeFlag.DRAIN, reason="relight:i1:CUDA_ECC: bad GPU"),))
    assert await told(world) == [("n1", "drained", True, "relight:i1:CUDA_ECC: bad GPU")]


async def test_thousands_at_a_time_are_told_a_part_at_a_look(world):
    """Maintenance drains a whole cluster."""
    names = [f"n{number}" for number in range(MOST_AT_ONCE + 10)]
    look = SetAside(world.site).look
    await look([node(name) for name in names])
    drained = [node(name, NodeFlag.DRAIN, reason="maintenance") for name in names]
    for count in (MOST_AT_ONCE, MOST_AT_ONCE + 10, MOST_AT_ONCE + 10):
        await look(drained)
        world.clock.on(2)
        assert len(await world.rows(RowKind.SET_ASIDE)) == count
