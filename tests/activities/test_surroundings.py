"""What is known against an attempt's nodes, and who else was interrupted when it was."""

from datetime import timedelta

import pytest

from relight.activities.surroundings import REMEMBERED, SAME_TIME, surroundings
from relight.domain.diagnosis import Action, Category, Diagnosis, Hypothesis, Implicated
from relight.domain.evidence import Interruption
from relight.domain.incidents import Outcome
from relight.domain.ledger import Change


@pytest.fixture
def earlier(world, incident, ref):
    """Writes an incident of an attempt to the ledger, with a cause that names nodes."""

    async def write(attempt, name, ago, *, drain=(), nodes=("n1",), outcome=Outcome.RECOVERED):
        cause = Hypothesis(
            signature="XID_79",
            category=Category.GPU,
            action=Action.RESTART,
            action_if_it_repeats=Action.RESTART,
            confidence=0.9,
            implicated=Implicated(nodes=nodes),
            drain_nodes=drain,
        )
        found = Diagnosis(hypotheses=(cause,))
        one = incident(ref(attempt, name=name), attempt, world.clock.now - ago, outcome=outcome, diagnosis=found)
        await world.ledger.commit(Change(incidents=(one,)))

    return write


DAY = timedelta(days=1)


async def test_incidents_on_its_nodes(world, earlier, detection):
    """Of this job and of others, within a week, on nodes of the attempt; proven where the platform said so."""
    other, mine = await world.failed(), await world.failed()
    await earlier(other, "i1", DAY, drain=("n1",))
    await earlier(other, "i2", DAY, nodes=("elsewhere",))
    await earlier(other, "i3", REMEMBERED + DAY)
    await earlier(other, "i4", DAY, outcome=Outcome.NOT_CONFIRMED)
    await earlier(other, "i5", -DAY)
    found, beside = await surroundings(world.site, mine, detection(mine, world.clock.now))
    assert [(one.node, one.own, one.proven) for one in found] == [("n1", False, True)]
    assert beside == ()
    again, _ = await surroundings(world.site, other, detection(other, world.clock.now, Interruption.CRASH))
    assert again == ()  # of this very attempt, none is earlier


@pytest.mark.parametrize(("ago", "seen"), [(SAME_TIME, True), (SAME_TIME + timedelta(seconds=1), False)])
async def test_jobs_interrupted_at_the_same_time(world, earlier, detection, ago, seen):
    """With their users and allocations."""
    other, mine = await world.failed(), await world.failed()
    await earlier(other, "i1", ago, outcome=None)
    _, beside = await surroundings(world.site, mine, detection(mine, world.clock.now))
    expected = [(other.lineage, other.record.user, other.record.nodes)] if seen else []
    assert [(one.lineage, one.user, one.nodes) for one in beside] == expected
