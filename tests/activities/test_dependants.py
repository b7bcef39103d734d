"""Children that waited for the attempt's success are written anew: meant first, once, only where nobody acted."""

import pytest

from relight.activities import dependants
from relight.activities.dependants import Dependants, StillFailedError
from relight.clients.ledger import LedgerUnavailableError
from relight.clients.slurm import AmbiguousWriteError, RefusedError
from relight.domain.ledger import RowKind
from relight.domain.slurm import JobState

LOST = AmbiguousWriteError("the answer was lost")


@pytest.fixture
def child(world):
    """Submit a job that Slurm has marked as never to start, because that attempt failed."""

    def make(attempt, also=""):
        dependency = f"afterok:{attempt.key.job_id}(failed){also}"
        return world.slurm.submit(name="eval", dependency=dependency)

    return make


def dependency(world, job):
    """As Slurm shows it."""
    return world.slurm.job_records[job].dependency


async def ours(world, attempt, act):
    """Requeue it."""
    await world.run(world.restart.requeue, act(attempt))
    world.slurm.writes.clear()


@pytest.fixture
def repoint(world, act):
    """Run the activity."""

    async def call(attempt):
        return await world.run(Dependants(world.site).repoint, act(attempt))

    return call


async def test_children_wait_again(world, act, child, repoint):
    """Each is written once; a repeated call answers the same; what cannot be helped is said and noted."""
    attempt = await world.failed()
    children = [child(attempt), child(attempt, ",afterany:99(unfulfilled)")]
    stuck = child(attempt, ",afterok:99(failed)")
    await ours(world, attempt, act)
    done = await repoint(attempt)
    assert await repoint(attempt) == done
    job = attempt.key.job_id
    assert [dependency(world, each) for each in children] == [
        f"afterok:{job}(unfulfilled)",
        f"afterok:{job}(unfulfilled),afterany:99(unfulfilled)",
    ]
    assert "failed" in dependency(world, stuck)
    assert world.writes == ["depend", "depend"]
    assert done.outcome is None
    assert done.text.startswith("2 that waited for its success wait again: ")
    assert f"job {stuck} will not start" in done.text
    assert [row.body["what"] for row in await world.rows(RowKind.INTENT)] == ["requeue", "depend"]
    assert len(await world.rows(RowKind.NOTE)) == 1


async def test_without_children_nothing_is_written(world, act, repoint):
    """Neither to Slurm nor to the ledger."""
    attempt = await world.failed()
    await ours(world, attempt, act)
    assert (await repoint(attempt)).text == ""
    assert world.writes == []
    assert [row.body["what"] for row in await world.rows(RowKind.INTENT)] == ["requeue"]


@pytest.mark.parametrize("state", [JobState.FAILED, JobState.CANCELLED])
async def test_of_a_job_that_does_not_wait_any_more(world, act, child, repoint, state):
    """Cancelled, or failed again: its children are left as they are."""
    attempt = await world.failed()
    child(attempt)
    await ours(world, attempt, act)
    world.change(attempt, state=state)
    await repoint(attempt)
    assert world.writes == []


async def test_a_child_that_somebody_changes_meanwhile_is_theirs(world, act, child, repoint, monkeypatch):
    """Looked at again right before the write."""
    attempt = await world.failed()
    theirs, other = child(attempt), child(attempt)
    await ours(world, attempt, act)
    jobs = world.slurm.jobs

    async def read_then_changed():
        found = await jobs()
        world.slurm.job_records[theirs] = world.slurm.job_records[theirs].model_copy(update={"dependency": ""})
        return found

    monkeypatch.setattr(world.slurm, "jobs", read_then_changed)
    done = await repoint(attempt)
    assert dependency(world, theirs) == ""
    assert done.text == f"1 that waited for its success wait again: {other}"


async def test_a_child_that_slurm_refuses_to_change_is_left(world, act, child, repoint):
    """It has begun or ended between look and write: the others are written all the same."""
    attempt = await world.failed()
    child(attempt)
    other = child(attempt)
    await ours(world, attempt, act)
    world.slurm.fail_next("depend", RefusedError("Job is no longer pending execution"))
    assert (await repoint(attempt)).text == f"1 that waited for its success wait again: {other}"


@pytest.mark.parametrize("after", [True, False])
async def test_a_write_whose_answer_was_lost_is_looked_for(world, act, child, repoint, after):
    """It took effect, or the next try finds that it did not."""
    attempt = await world.failed()
    job = child(attempt)
    await ours(world, attempt, act)
    world.slurm.fail_next("depend", LOST, after=after)
    if not after:
        with pytest.raises(StillFailedError):
            await repoint(attempt)
    await repoint(attempt)
    assert "unfulfilled" in dependency(world, job)
    assert world.writes == ["depend"] * (1 if after else 2)


async def test_without_ledger_nothing_is_written(world, act, child, repoint):
    """No intent, no write."""
    attempt = await world.failed()
    child(attempt)
    await ours(world, attempt, act)
    world.ledger.refused = {RowKind.INTENT}
    with pytest.raises(LedgerUnavailableError):
        await repoint(attempt)
    assert world.writes == []


async def test_an_effect_that_was_not_written_down_is_written_by_the_next_try(world, act, child, repoint):
    """The worker died in between: the children wait, and the ledger has intent and effect."""
    attempt = await world.failed()
    child(attempt)
    await ours(world, attempt, act)
    world.ledger.refused = {RowKind.EFFECT}
    with pytest.raises(LedgerUnavailableError):
        await repoint(attempt)
    world.ledger.refused = set()
    await repoint(attempt)
    assert world.writes == ["depend"]
    assert [row.body["step"] for row in await world.rows(RowKind.EFFECT)] == ["requeue", "depend"]


async def test_of_very_many_some_are_written_and_the_rest_is_said(world, act, child, repoint, monkeypatch):
    """Bounded."""
    monkeypatch.setattr(dependants, "MOST", 2)
    attempt = await world.failed()
    for _ in range(3):
        child(attempt)
    await ours(world, attempt, act)
    done = await repoint(attempt)
    assert world.writes == ["depend", "depend"]
    assert done.text.endswith("1 more jobs that wait for it are left as they are")
