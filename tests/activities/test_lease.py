"""The job's next incident waits for the open one, also where nobody is left to close that."""

from datetime import timedelta
from types import SimpleNamespace

import pytest
from temporalio.client import WorkflowExecutionStatus
from temporalio.service import RPCError, RPCStatusCode

from relight.activities import contracts as c
from relight.activities.lease import Lease
from relight.domain.incidents import Outcome, Phase
from relight.domain.ledger import Change, RowKind


class Temporal:
    """Knows one workflow, by its status or by the error that asking for it raises."""

    def __init__(self):
        self.answer = WorkflowExecutionStatus.RUNNING
        self.asked = []
        self.before_answer = None

    def get_workflow_handle(self, workflow_id, *, run_id):
        self.asked.append((workflow_id, run_id))
        return self

    async def describe(self):
        if self.before_answer:
            await self.before_answer()
        if isinstance(self.answer, Exception):
            raise self.answer
        return SimpleNamespace(status=self.answer)


@pytest.fixture
def temporal():
    return Temporal()


class Waiting:
    """Incident i1 waits for i0, which is open."""

    def __init__(self, world, lease, arg, other):
        self.world, self.lease, self.arg, self.other = world, lease, arg, other
        self.began = world.clock.now

    async def __call__(self):
        await self.world.run(self.lease.await_closed, self.arg)
        return self.world.clock.now - self.began

    async def close(self):
        """It closes itself."""
        update = {"outcome": Outcome.SUPERSEDED, "phase": Phase.CLOSED, "closed_at": self.world.clock.now}
        await self.world.ledger.commit(Change(incidents=(self.other.model_copy(update=update),)))

    async def outcome(self):
        return (await self.world.ledger.incident("i0")).outcome


@pytest.fixture
async def waiting(world, ref, incident, temporal):
    """Our own incident is open too: that does not count."""
    attempt = await world.failed()
    mine, theirs = ref(attempt), ref(attempt, name="i0")
    other = incident(theirs, attempt, world.clock.now)
    await world.ledger.commit(Change(incidents=(incident(mine, attempt, world.clock.now), other)))
    arg = c.AwaitClosedInput(incident=mine, workflow_id=theirs.workflow_id)
    return Waiting(world, Lease(world.site, temporal), arg, other)


async def test_it_waits_until_the_other_has_closed(world, temporal, waiting):
    """As the ledger shows it; asking for that very run."""
    world.after(3, waiting.close)
    assert await waiting() == timedelta(seconds=3)
    assert await waiting.outcome() is Outcome.SUPERSEDED
    assert set(temporal.asked) == {(waiting.other.workflow_id, "run-i0")}
    assert await waiting() == timedelta(seconds=3)


@pytest.mark.parametrize(
    "answer",
    [WorkflowExecutionStatus.TERMINATED, RPCError("no such workflow", RPCStatusCode.NOT_FOUND, b"")],
    ids=["terminated", "forgotten"],
)
async def test_an_incident_that_nobody_will_close_is_closed(world, temporal, waiting, answer):
    """Its workflow is gone: the ledger says so, in the audit trail and in the read model, and the wait ends."""
    temporal.answer = answer
    assert await waiting() == timedelta(0)
    found = await world.ledger.incident("i0")
    assert (found.open, found.phase, found.outcome) == (False, Phase.CLOSED, Outcome.FAILED)
    (row,) = await world.rows(RowKind.CLOSED)
    assert (row.incident, row.body["outcome"]) == ("i0", "failed")


async def test_an_unknown_answer_closes_nothing(world, temporal, waiting):
    """Temporal does not answer: waited for, not read as gone."""
    temporal.answer = RPCError("unavailable", RPCStatusCode.UNAVAILABLE, b"")
    world.after(5, waiting.close)
    assert await waiting() == timedelta(seconds=5)
    assert await waiting.outcome() is Outcome.SUPERSEDED


async def test_an_end_of_its_own_is_not_overwritten(temporal, waiting):
    """It closes between our look at the ledger and Temporal's answer that it has ended."""
    temporal.answer = WorkflowExecutionStatus.COMPLETED
    temporal.before_answer = waiting.close
    await waiting()
    assert await waiting.outcome() is Outcome.SUPERSEDED
