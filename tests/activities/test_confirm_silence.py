"""A node that Slurm has not given up: believed, and left alone until Slurm decides."""

from datetime import timedelta

import pytest

from relight.activities import contracts as c
from relight.activities.confirm import SLURM_DECIDES_WITHIN
from relight.activities.ingest import NodeSight
from relight.domain.evidence import Evidence, Interruption, Source
from relight.domain.incidents import Outcome, Phase
from relight.domain.ledger import RowKind
from relight.domain.silence import Lost, node_booted, node_silent
from relight.domain.slurm import NodeFlag

SECOND = timedelta(seconds=1)
LIMIT = timedelta(seconds=300)
WITNESS = Evidence(source=Source.SLURMD, text="slurmd of n2 at 10.0.0.2:6818 does not answer", node="n2")


@pytest.fixture
def found(world):
    """n2 of an attempt was last heard of 9 s ago, or booted then."""

    def make(attempt, *, booted=False, within=LIMIT):
        lost = Lost("n2", world.clock.now - 9 * SECOND, within, world.clock.now)
        detection = node_booted(attempt, lost) if booted else node_silent(attempt, lost, 5 * SECOND, WITNESS)
        assert detection is not None
        return detection

    return make


@pytest.fixture
def confirm(world, ref):
    """Looks again; returns the answer and the seconds that it took."""

    async def call(attempt, detection):
        began = world.clock.now
        arg = c.ConfirmInput(incident=ref(attempt, Interruption.NODE_LOST), detection=detection)
        answer = await world.run(world.confirm.confirm, arg)
        return answer, (world.clock.now - began).total_seconds()

    return call


def beats(world, node="n2", **fields):
    """Let an agent beat now."""
    world.sights[node] = NodeSight(**{"node": node, "last_beat": world.clock.now, "boot": "b", **fields})


async def test_it_waits_for_as_long_as_slurm_may_take(world, found, confirm):
    """And is confirmed by Slurm's own end of the job, here after 290 s."""
    attempt = await world.train()
    world.after(290, lambda: world.slurm.lose_node("n2"))
    answer, seconds = await confirm(attempt, found(attempt))
    assert (answer.outcome, seconds) == (None, 290)


async def test_a_job_that_fails_by_itself_meanwhile_is_confirmed(world, found, confirm):
    """The other ranks may give up before Slurm does."""
    attempt = await world.train()
    world.after(20, lambda: world.slurm.fail(attempt.key.job_id))
    answer, seconds = await confirm(attempt, found(attempt))
    assert (answer.outcome, seconds) == (None, 20)


@pytest.mark.parametrize("within", [timedelta(0), timedelta(seconds=8), LIMIT])
async def test_slurm_that_does_not_decide_in_its_time_says_no(world, found, confirm, within):
    """SlurmdTimeout and a minute, counted from the detection: a step tried again does not wait anew."""
    attempt = await world.train()
    detection = found(attempt, within=within)
    world.clock.on(5)
    answer, seconds = await confirm(attempt, detection)
    assert answer.outcome is Outcome.NOT_CONFIRMED
    assert seconds == (within + SLURM_DECIDES_WITHIN).total_seconds() - 5


async def test_slurms_first_doubt_is_no_decision(world, found, confirm):
    """A node that does not respond is still waited for."""
    attempt = await world.train()
    node = world.slurm.node_records["n2"]
    world.slurm.node_records["n2"] = node.model_copy(update={"flags": frozenset({NodeFlag.NOT_RESPONDING})})
    _, seconds = await confirm(attempt, found(attempt))
    assert seconds == 360


async def test_it_ends_when_the_agent_is_heard_of_again(world, found, confirm):
    """At once: the node lives."""
    attempt = await world.train()
    world.after(30, lambda: beats(world))
    answer, seconds = await confirm(attempt, found(attempt))
    assert (answer.outcome, answer.reason) == (Outcome.NOT_CONFIRMED, "the agent of n2 is heard of again")
    assert seconds == 30


async def test_another_nodes_agent_and_an_old_beat_say_nothing(world, found, confirm):
    """Nor does an agent that has never been heard of here."""
    attempt = await world.train()
    world.after(30, lambda: beats(world, "n1"))
    beats(world)
    _, seconds = await confirm(attempt, found(attempt))
    assert seconds == 360


@pytest.mark.parametrize("booted", [False, True])
async def test_a_node_that_was_booted_is_not_back(world, found, confirm, booted):
    """Its agent beats, but what ran there is gone."""
    attempt = await world.train()
    detection = found(attempt, booted=booted)
    world.after(30, lambda: beats(world, before=detection.occurred_at))
    _, seconds = await confirm(attempt, detection)
    assert seconds == 360


async def test_it_ends_when_training_goes_on(world, found, confirm):
    """A step that cannot have been on its way already; one that may have been is no answer."""
    attempt = await world.train()
    world.after(4, lambda: world.steps(attempt.key, 40))
    world.after(60, lambda: world.steps(attempt.key, 41))
    answer, seconds = await confirm(attempt, found(attempt))
    assert (answer.outcome, answer.reason) == (Outcome.NOT_CONFIRMED, "training goes on: step 41")
    assert seconds == 60


async def test_while_it_waits_the_incident_says_so(world, found, confirm, ref):
    """Open in the ledger from the first moment, with what it waits for; afterwards the rows tell the story."""
    attempt = await world.train()
    seen = []

    async def look():
        seen.append(await world.ledger.incident("i1"))

    world.after(10, look)
    world.after(20, lambda: world.slurm.lose_node("n2"))
    began = world.clock.now
    await confirm(attempt, found(attempt))
    (waiting,) = seen
    assert waiting.open
    assert waiting.steps[-1].text == "n2 is silent; waiting for Slurm to declare it down (up to 300 s)"
    after = await world.ledger.incident("i1")
    assert (after.steps, after.phase, after.opened_at) == ((), Phase.CONFIRMING, began)
    rows = await world.ledger.rows(incident=ref(attempt).id)
    assert [row.kind for row in rows] == [RowKind.OPENED, RowKind.CONFIRMED]
