"""slurmctld is killed and goes on from what it last saved: what it has forgotten is noticed, and done again once."""

from datetime import timedelta

import pytest

from relight.activities import contracts as c
from relight.domain.evidence import Interruption
from relight.domain.forgotten import FOR_SO_LONG
from relight.domain.ledger import RowKind
from relight.domain.slurm import JobState


async def requeued_and_forgotten(world, act):
    """A job that we queued again, of which slurmctld knows nothing any more."""
    attempt = await world.failed()
    before = world.record(attempt)
    await world.run(world.restart.requeue, act(attempt))
    world.slurm.job_records[before.job_id] = before
    return attempt


async def test_a_forgotten_requeue_ends_the_wait(world, act, ref):
    """The job is FAILED as before, and nobody would ever queue it again."""
    attempt = await requeued_and_forgotten(world, act)
    began = world.clock.now
    ended = await world.run(world.restart.await_ended, c.AwaitEndedInput(incident=ref(attempt), requeued_at=began))
    assert (ended.forgotten, ended.outcome) == (True, None)
    assert world.clock.now - began >= FOR_SO_LONG, "one look is not enough"
    running = await world.run(world.verify.await_running, c.AwaitRunningInput(incident=ref(attempt)))
    assert (running.forgotten, running.attempt, running.outcome) == (True, None, None)


async def test_it_is_queued_again_with_rows_of_its_own(world, act, ref):
    """The same step of the same incident would find its own effect, and do nothing."""
    attempt = await requeued_and_forgotten(world, act)
    assert (await world.run(world.restart.requeue, act(attempt))).outcome is None
    assert world.writes == ["requeue"]
    again = act(attempt).model_copy(update={"incident": ref(attempt).model_copy(update={"again": 1})})
    for _ in range(2):
        assert (await world.run(world.restart.requeue, again)).outcome is None
    assert world.writes == ["requeue", "requeue"]
    ids = [row.id.rpartition("run-i1/")[2] for row in await world.rows(RowKind.INTENT)]
    assert ids == ["requeue/intent", "requeue~1/intent"]


async def test_a_requeue_forgotten_between_two_steps_is_nobody_elses_doing(world, act, ref):
    """Neither are exclusions tried again for ever, nor is it called overridden: the wait that follows finds it."""
    attempt = await requeued_and_forgotten(world, act)
    steps = (
        (world.restart.exclude, c.ExcludeInput(incident=ref(attempt), nodes=("n1",))),
        (world.restart.start, act(attempt)),
    )
    for step, arg in steps:
        done = await world.run(step, arg)
        assert (done.outcome, "forgotten the requeue" in done.text) == (None, True)
    assert world.writes == ["requeue"]


async def test_what_looks_forgotten_for_a_moment_only_is_not(world, act, ref):
    """A single odd read is no reason to do anything."""
    attempt = await requeued_and_forgotten(world, act)
    later = {"state": JobState.PENDING, "submit_time": world.clock.now, "restarts": 1}
    world.after(FOR_SO_LONG.total_seconds() / 2, lambda: world.change(attempt, **later))
    wait = c.AwaitEndedInput(incident=ref(attempt), requeued_at=world.clock.now)
    assert not (await world.run(world.restart.await_ended, wait)).forgotten


@pytest.mark.parametrize("nodes", [("n1", "n2"), ("n3", "n4")])
async def test_an_attempt_whose_start_was_forgotten_is_watched_on(make_world, nodes):
    """PENDING with its own SubmitTime is no end; on other nodes it is the same attempt, and its crash is not lost."""
    world = make_world(nodes=("n1", "n2", "n3", "n4"))
    attempt = await world.train()
    was = world.record(attempt)
    world.change(attempt, state=JobState.PENDING, nodes=(), start_time=None)
    await world.look()
    assert await world.rows(RowKind.ATTEMPT_ENDED) == ()
    world.clock.on(30)
    world.slurm.job_records[was.job_id] = was.model_copy(update={"nodes": nodes, "start_time": world.clock.now})
    await world.look()
    known = await world.attempt(was.job_id)
    assert (known.key, known.record.nodes) == (attempt.key, nodes)
    world.clock.on(30)
    world.slurm.fail(was.job_id)
    await world.look()
    [detected] = await world.rows(RowKind.DETECTED)
    assert detected.body["detection"]["kind"] == Interruption.CRASH


async def test_an_attempt_whose_end_was_forgotten_is_watched_again(world):
    """FAILED, then RUNNING again without a task: when Slurm ends it for good, that is an interruption of its own."""
    attempt = await world.train()
    was = world.record(attempt)
    world.slurm.fail(was.job_id)
    await world.look()
    world.clock.on(30)
    world.slurm.job_records[was.job_id] = was
    for _ in range(2):
        await world.look()
    assert [state.attempt.key for state in await world.ledger.running_attempts("test")] == [attempt.key]
    world.clock.on(90)
    world.slurm.fail(was.job_id)
    for _ in range(2):
        await world.look()
    detected = [row.body["detection"]["id"] for row in await world.rows(RowKind.DETECTED)]
    assert detected == [f"{attempt.key}/ended", f"{attempt.key}/ended~1"]
    assert len(await world.rows(RowKind.ATTEMPT_ENDED)) == len(detected)
    assert len(await world.rows(RowKind.NOTE)) == 1


async def test_progress_of_a_forgotten_start_is_waited_for(world, ref):
    """The next attempt is PENDING again: that says nothing of its progress."""
    attempt = await world.train()
    world.change(attempt, state=JobState.PENDING, nodes=(), start_time=None)
    world.after(20, lambda: world.steps(attempt.key, 9))
    until = world.clock.now + timedelta(minutes=5)
    arg = c.AwaitProgressInput(incident=ref(attempt), next_attempt=attempt.key, failed_step=5, until=until)
    assert (await world.run(world.verify.await_progress, arg)).moved
