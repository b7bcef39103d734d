"""A slow attempt that a person wants restarted elsewhere: only while it is still slow."""

from relight.domain.attempts import Progress, progress_cursor
from relight.domain.evidence import Interruption
from relight.domain.incidents import Outcome
from relight.domain.ledger import Change


async def seen(world, attempt, **progress):
    value = Progress(last_step=90, **progress).model_dump(mode="json")
    await world.ledger.commit(Change(cursors={progress_cursor(attempt.key): value}))


async def test_an_attempt_that_is_still_slow_is_requeued(world, act):
    """Although it runs: that is what was approved."""
    attempt = await world.train()
    await seen(world, attempt, slow_since=51)
    done = await world.run(world.restart.requeue, act(attempt, Interruption.STRAGGLER))
    assert done.outcome is None
    assert world.writes == ["requeue"]


async def test_an_attempt_whose_pace_has_recovered_is_left_alone(world, act):
    """The approval came too late to be of use."""
    attempt = await world.train()
    await seen(world, attempt)
    done = await world.run(world.restart.requeue, act(attempt, Interruption.STRAGGLER))
    assert done.outcome is Outcome.NOT_CONFIRMED
    assert world.writes == []
