"""The outbox is delivered at least once: a detection is marked only after Temporal has taken it."""

from datetime import timedelta

import pytest
from temporalio.common import WorkflowIDConflictPolicy, WorkflowIDReusePolicy
from temporalio.service import RPCError, RPCStatusCode

from relight.activities import contracts as c
from relight.activities.attributes import CLUSTER, JOB_ID, KIND
from relight.activities.deliver import Deliver
from relight.clients.ledger import LedgerUnavailableError
from relight.domain.ledger import Change

SHORT = c.WatchInput(cluster="test", run_for=timedelta(seconds=2))


class Temporal:
    """Takes what is started; `error` is raised instead."""

    def __init__(self):
        self.started = []
        self.error = None

    async def start_workflow(self, name, arg, **options):
        if self.error:
            raise self.error
        self.started.append((name, arg, options))


@pytest.fixture
def temporal():
    return Temporal()


@pytest.fixture
def deliver(world, temporal):
    """Delivers for two seconds."""
    relay = Deliver(world.site, temporal, "relight-test")

    async def call():
        await world.run(relay.deliver, SHORT)

    return call


async def test_a_detection_starts_its_incident(world, temporal, deliver):
    """By signal with start, so that one that runs already is told; marked then, and not delivered again."""
    attempt = await world.failed()
    (found,) = await world.ledger.undelivered()
    await deliver()
    ((name, arg, options),) = temporal.started
    assert (name, arg) == ("RecoverJob", c.RecoverInput(attempt=attempt.key, kind=found.kind))
    assert (options["id"], options["task_queue"]) == (f"recover/{attempt.key}", "relight-test")
    assert (options["start_signal"], options["start_signal_args"]) == ("evidence", [found])
    assert options["id_reuse_policy"] is WorkflowIDReusePolicy.ALLOW_DUPLICATE
    assert options["id_conflict_policy"] is WorkflowIDConflictPolicy.USE_EXISTING
    assert await world.ledger.undelivered() == ()


async def test_what_the_web_ui_can_filter_by(world, temporal, deliver):
    """Cluster, job and kind are known from the start."""
    attempt = await world.failed()
    await deliver()
    attributes = temporal.started[0][2]["search_attributes"]
    assert (attributes[CLUSTER], attributes[JOB_ID], attributes[KIND]) == ("test", str(attempt.key.job_id), "crash")
    assert len(temporal.started[0][2]["static_summary"]) <= 200


async def test_all_that_waits_is_delivered_in_order(world, temporal, deliver, detection):
    """Oldest first, one start each."""
    attempt = await world.train()
    ids = [f"d{i}" for i in range(5)]
    for i in ids:
        await world.ledger.commit(Change(detections=(detection(attempt, world.clock.now, id=i),)))
    await deliver()
    assert sorted(options["start_signal_args"][0].id for _, _, options in temporal.started) == ids


async def test_what_temporal_does_not_take_stays(world, temporal, deliver):
    """The activity ends, Temporal starts it again, and nothing is lost."""
    await world.failed()
    temporal.error = RPCError("unavailable", RPCStatusCode.UNAVAILABLE, b"")
    with pytest.raises(RPCError):
        await deliver()
    assert len(await world.ledger.undelivered()) == 1
    temporal.error = None
    await deliver()
    assert (len(temporal.started), await world.ledger.undelivered()) == (1, ())


async def test_what_could_not_be_marked_is_delivered_again(world, temporal, deliver, monkeypatch):
    """At least once: the workflow knows the detection by its id."""
    await world.failed()

    async def fails(_detection_id):
        raise LedgerUnavailableError("the database does not answer")

    monkeypatch.setattr(world.ledger, "delivered", fails, raising=False)
    with pytest.raises(LedgerUnavailableError):
        await deliver()
    monkeypatch.undo()
    assert len(await world.ledger.undelivered()) == 1
    await deliver()
    first, second = (options["start_signal_args"][0] for _, _, options in temporal.started)
    assert first == second


async def test_a_ledger_that_is_away_is_waited_for(world, temporal, deliver):
    """Looked at again and again; delivered once it is back."""
    await world.failed()
    world.ledger.down = True

    def back():
        world.ledger.down = False

    world.after(1, back)
    await deliver()
    assert len(temporal.started) == 1
