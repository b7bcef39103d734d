"""What others do in the middle of a restart: put off, held by its reservation, cancelled and forgotten, requeued."""

from datetime import timedelta

import pytest

from relight.activities import contracts as c
from relight.clients.slurm import SlurmUnavailableError
from relight.domain.incidents import Outcome
from relight.domain.ledger import RowKind
from relight.domain.slurm import JobFlag, JobState


@pytest.fixture
def reused(world):
    """Slurm forgets the attempt's job, and gives its id to another of the same user, name and script."""

    def give(attempt, **fields):
        job = attempt.key.job_id
        world.slurm.purge(job)
        world.clock.on(60)
        world.slurm._next_id = job
        assert world.slurm.submit(**fields) == job
        return job

    return give


async def ours(world, attempt, act):
    """Requeue it."""
    await world.run(world.restart.requeue, act(attempt))
    world.slurm.writes.clear()


@pytest.mark.parametrize("seconds", [3600, 86400])
async def test_a_job_that_was_put_off_stays_so(world, act, seconds):
    """A person has set its begin time since our requeue: it is waited for, and nothing is meant or written."""
    attempt = await world.failed()
    await ours(world, attempt, act)
    world.change(attempt, eligible_time=world.clock.now + timedelta(seconds=seconds))
    done = await world.run(world.restart.start, act(attempt))
    assert done.outcome is None
    assert done.text.startswith("somebody has put the job off until")
    assert world.writes == []
    assert "start" not in [row.body["what"] for row in await world.rows(RowKind.INTENT)]


async def test_a_job_that_slurm_holds_because_its_reservation_has_ended(world, act):
    """It waits, and nobody has overridden anything."""
    attempt = await world.failed()
    await ours(world, attempt, act)
    world.change(attempt, flags=frozenset({JobFlag.RESV_DEL_HOLD}), reason="ReservationDeleted")
    done = await world.run(world.restart.start, act(attempt))
    assert (done.outcome, done.text) == (None, "Slurm holds the job, as its reservation has ended")
    assert world.writes == []


@pytest.mark.parametrize("step", ["requeue", "start", "cancel"])
async def test_nothing_is_done_to_another_job_of_the_same_id(world, act, reused, step):
    """Whatever was meant for the one that Slurm has forgotten."""
    attempt = await world.failed()
    reused(attempt)
    done = await world.run(getattr(world.restart, step), act(attempt))
    assert done.outcome is (Outcome.EXPIRED if step != "cancel" else None), done
    assert world.writes == []


async def test_exclusions_do_not_reach_another_job_of_the_same_id(world, ref, reused):
    """Nor is the end of the old one waited for there."""
    attempt = await world.failed()
    reused(attempt)
    done = await world.run(world.restart.exclude, c.ExcludeInput(incident=ref(attempt), nodes=("n1",)))
    ended = await world.run(world.restart.await_ended, c.AwaitEndedInput(incident=ref(attempt)))
    assert (done.outcome, ended.outcome, world.writes) == (Outcome.EXPIRED, Outcome.EXPIRED, [])


async def test_another_job_of_the_same_id_is_not_the_next_attempt(world, act, ref, reused):
    """Neither the one that waits for it to run takes it for that, nor the one that watches its progress."""
    attempt = await world.failed()
    await ours(world, attempt, act)
    world.slurm.start(reused(attempt))
    await world.look()
    running = await world.run(world.verify.await_running, c.AwaitRunningInput(incident=ref(attempt)))
    assert (running.attempt, running.outcome) == (None, Outcome.FAILED)
    lineages = {state.attempt.lineage for state in await world.ledger.attempts_of_job("test", attempt.key.job_id)}
    assert len(lineages) == 2


async def test_why_it_waits_is_told_once_for_each_reason(world, ref):
    """At once where it waits for longer than a start takes; not where nobody asks; then it is waited on."""
    attempt = await world.requeued()
    far = {"eligible_time": world.clock.now + timedelta(days=1)}
    world.change(attempt, reason="QOSMaxJobsPerUserLimit", **far)

    async def wait(told):
        arg = c.AwaitRunningInput(incident=ref(attempt), told=told)
        return await world.run(world.verify.await_running, arg)

    first = await wait(())
    assert (first.waits, first.attempt, first.outcome) == ("QOSMaxJobsPerUserLimit", None, None)
    assert first.text == "waits: a limit of its account or QOS is reached (QOSMaxJobsPerUserLimit)"
    world.after(30, lambda: world.change(attempt, reason="Resources"))
    assert (await wait((first.waits,))).waits == "Resources"
    world.change(attempt, reason="BeginTime", eligible_time=world.clock.now + timedelta(seconds=20))
    assert (await wait(())).attempt is not None
    world.clock.on(1)


async def test_reasons_are_told_only_to_those_who_ask(world, ref):
    """An incident of an older release waits as it did."""
    attempt = await world.requeued()
    world.change(attempt, reason="Resources", eligible_time=world.clock.now + timedelta(days=1))
    world.after(300, lambda: world.change(attempt, eligible_time=world.clock.now))
    running = await world.run(world.verify.await_running, c.AwaitRunningInput(incident=ref(attempt)))
    assert (running.attempt is not None, running.waits) == (True, "")


@pytest.fixture
def verify(world, ref):
    """Watch the progress of a job's second attempt."""

    async def call(attempt, key):
        until = world.clock.now + timedelta(minutes=10)
        arg = c.AwaitProgressInput(incident=ref(attempt), next_attempt=key, failed_step=100, until=until)
        return await world.run(world.verify.await_progress, arg)

    return call


@pytest.mark.parametrize("seen", [True, False])
async def test_a_requeue_by_somebody_else_while_it_is_verified_is_theirs(world, verify, seen):
    """Whether or not the watchers have seen the attempt: it has not failed, and uses up nothing."""
    attempt = await world.requeued()
    world.clock.on(121)
    job = attempt.key.job_id
    record = await world.slurm.job(job)
    key = attempt.key.model_copy(update={"submit_time": record.submit_time})
    if seen:
        await world.look()
    world.clock.on(10)
    await world.slurm.requeue(job)
    proof = await verify(attempt, key)
    assert (proof.moved, proof.outcome) == (False, Outcome.OVERRIDDEN)
    assert "somebody else queued the job again" in proof.text


async def test_a_preemption_while_it_is_verified_is_no_failure(world, verify):
    """Nor does it use up an attempt."""
    attempt = await world.requeued()
    world.clock.on(121)
    await world.look()
    key = (await world.attempt(attempt.key.job_id)).key
    world.slurm.fail(attempt.key.job_id, state=JobState.PREEMPTED)
    proof = await verify(attempt, key)
    assert (proof.outcome, proof.text) == (Outcome.OVERRIDDEN, "the job was preempted")


async def test_a_lost_node_while_it_is_verified_is_a_failure(world, verify):
    """Slurm itself has queued it again: the new attempt did not get past the failure."""
    attempt = await world.requeued()
    world.clock.on(121)
    await world.look()
    again = await world.attempt(attempt.key.job_id)
    world.clock.on(10)
    world.slurm.lose_node(again.record.nodes[0])
    proof = await verify(attempt, again.key)
    assert (proof.moved, proof.outcome) == (False, None)


async def test_a_failed_look_at_its_job_decides_nothing(world, verify):
    """Tried again by Temporal."""
    attempt = await world.requeued()
    world.slurm.fail_next("job", SlurmUnavailableError("timed out"))
    with pytest.raises(SlurmUnavailableError):
        await verify(attempt, attempt.key)
