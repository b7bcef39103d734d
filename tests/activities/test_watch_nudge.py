"""A hook makes the watcher look at once, and never more often than slurmctld can bear."""

import asyncio
from collections.abc import Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import replace
from datetime import timedelta

import pytest
from temporalio.testing import ActivityEnvironment

from relight.activities import contracts as c
from relight.activities.watch import HASTY_LOOKS, LOOKS_APART, MIN_PERIOD, SETTLING_LOOKS, Watch
from relight.domain.evidence import Interruption
from relight.domain.slurm import JobState

FOR_EVER = c.WatchInput(cluster="test", run_for=timedelta(days=1))
MINUTE = timedelta(minutes=1)


class Sleeper:
    """Sleeps of the least distance pass while the gate is open; longer ones never end."""

    def __init__(self) -> None:
        self.gate = asyncio.Event()
        self.gate.set()
        self.asked: list[float] = []

    async def __call__(self, seconds: float) -> None:
        self.asked.append(seconds)
        assert len(self.asked) < 1000, "it looks again and again"
        await asyncio.sleep(0)
        if seconds > LOOKS_APART.total_seconds():
            await asyncio.Event().wait()
        await self.gate.wait()


async def until(condition: Callable[[], bool]) -> None:
    """Let others run until it is so."""
    while not condition():  # noqa: ASYNC110 - nobody would set an event
        await asyncio.sleep(0)


class Watched:
    """A watcher with a period of a minute, its sleeps in hand."""

    def __init__(self, world) -> None:
        self.sleeper = Sleeper()
        self.watch = Watch(replace(world.site, sleep=self.sleeper), period=MINUTE)
        self.reads = 0
        read = world.slurm.jobs

        async def jobs():
            self.reads += 1
            return await read()

        world.slurm.jobs = jobs

    @property
    def resting(self) -> bool:
        """It waits for the period to pass, or for a hook."""
        return bool(self.sleeper.asked) and self.sleeper.asked[-1] > LOOKS_APART.total_seconds()

    async def rest(self) -> None:
        """Until it does."""
        await until(lambda: self.resting)

    @asynccontextmanager
    async def running(self):
        """It watches meanwhile."""
        task = asyncio.create_task(ActivityEnvironment().run(self.watch.watch_jobs, FOR_EVER))
        try:
            await self.rest()
            yield
        finally:
            task.cancel()
            with suppress(asyncio.CancelledError):
                await task


@pytest.fixture
def watched(world):
    return Watched(world)


async def test_an_end_is_found_at_the_hooks_word(world, watched):
    """Not before, although it is there to be seen: the period is a minute."""
    attempt = await world.train()
    async with watched.running():
        world.slurm.fail(attempt.key.job_id)
        for _ in range(100):
            await asyncio.sleep(0)
        assert await world.ledger.undelivered() == ()
        reads = watched.reads
        watched.sleeper.asked.clear()
        watched.watch.nudge()
        await watched.rest()
        assert watched.reads == reads + 1
    assert [d.kind for d in await world.ledger.undelivered()] == [Interruption.CRASH]


async def test_a_thousand_hooks_cost_one_look(watched):
    """While the least distance between two looks lasts, they only ask for the next one."""
    async with watched.running():
        watched.sleeper.gate.clear()
        watched.sleeper.asked.clear()
        reads = watched.reads
        watched.watch.nudge()
        await until(lambda: watched.reads == reads + 1)
        for _ in range(1000):
            watched.watch.nudge()
            await asyncio.sleep(0)
        assert watched.reads == reads + 1
        watched.sleeper.gate.set()
        await watched.rest()
        assert watched.reads == reads + 2


async def test_a_hook_without_an_end_is_never_acted_on(world, watched):
    """Its word is not evidence."""
    attempt = await world.train()
    before = await world.rows()
    async with watched.running():
        watched.sleeper.asked.clear()
        watched.watch.nudge()
        await watched.rest()
    assert await world.rows() == before
    assert (await world.ledger.attempt(attempt.key)).running


async def test_a_slow_read_keeps_its_distance(world, watched, monkeypatch):
    """Ten times what slurmctld took for the read, however many hooks ask."""
    seconds = iter(range(0, 1000, 3))
    monkeypatch.setattr("relight.activities.watch._monotonic", lambda: timedelta(seconds=next(seconds)))
    task = asyncio.create_task(ActivityEnvironment().run(watched.watch.watch_jobs, FOR_EVER))
    await until(lambda: bool(watched.sleeper.asked))
    watched.watch.nudge()
    task.cancel()
    with suppress(asyncio.CancelledError):
        await task
    assert watched.sleeper.asked == [28.5]


async def test_what_slurm_does_not_say_yet_is_looked_at_again_soon(make_world):
    """At the hook's word a job still completes, and its state may be hidden: so the period does not count then."""
    world = make_world(epilog=None, accounting=False)
    attempt = await world.train()
    watch = Watch(world.site, period=MINUTE)
    world.slurm.fail(attempt.key.job_id)
    world.change(attempt, state=JobState.UNKNOWN)
    began = world.clock.now
    await world.run(watch.watch_jobs, c.WatchInput(cluster="test", run_for=timedelta(seconds=10)))
    assert world.clock.now - began == timedelta(seconds=10)
    world.change(attempt, state=JobState.FAILED, flags=frozenset())
    await world.run(watch.watch_jobs, c.WatchInput(cluster="test", run_for=timedelta(seconds=1)))
    assert [d.kind for d in await world.ledger.undelivered()] == [Interruption.CRASH]


async def test_not_for_ever(make_world):
    """A job that completes for hours is looked at as usual again."""
    world = make_world(epilog=None, accounting=False)
    attempt = await world.train()
    watch = Watch(world.site, period=MINUTE)
    world.slurm.fail(attempt.key.job_id)
    world.change(attempt, state=JobState.UNKNOWN)
    looks = world.sleeps
    later = SETTLING_LOOKS - HASTY_LOOKS
    settling = HASTY_LOOKS * LOOKS_APART + later * MIN_PERIOD
    await world.run(watch.watch_jobs, c.WatchInput(cluster="test", run_for=settling + 10 * MINUTE))
    assert world.sleeps - looks == HASTY_LOOKS + 2 * (later + 10)


async def test_a_long_pause_is_full_of_beats(world, monkeypatch):
    """Temporal takes a watcher without a beat for dead after 30 s."""
    monkeypatch.setattr("relight.activities.site.BEAT", 0)
    beats: list[object] = []
    environment = ActivityEnvironment()
    environment.on_heartbeat = lambda *details: beats.append(details)
    sleeper = Sleeper()
    watch = Watch(replace(world.site, sleep=sleeper), period=MINUTE)
    task = asyncio.create_task(environment.run(watch.watch_jobs, FOR_EVER))
    await until(lambda: len(sleeper.asked) == 2)
    here = len(beats)
    await until(lambda: len(beats) > here + 3)
    task.cancel()
    with suppress(asyncio.CancelledError):
        await task


async def test_a_look_that_never_ends_ends_the_watcher(world, monkeypatch):
    """It beats meanwhile, so Temporal would not notice: Temporal starts it again."""
    monkeypatch.setattr("relight.activities.watch.LOOK_WITHIN", 0.01)
    world.slurm.jobs = asyncio.Event().wait
    with pytest.raises(TimeoutError):
        await world.run(world.watch.watch_jobs, FOR_EVER)
