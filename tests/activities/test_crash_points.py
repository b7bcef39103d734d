"""A worker that dies at any point of the way from a finding to its incident, and one that goes on from there.

Each await that touches the outside is a point; at each one the worker dies right before its effect, or right after.
"""

import pytest

from relight.activities.deliver import Deliver
from relight.activities.watch import Watch
from relight.domain.ledger import Change, RowKind
from relight.domain.slurm import JobState

JOBS = 3


class Death(BaseException):
    """The worker's process has ended here."""


class Points:
    """Counts the calls to the outside of one worker's life, and ends it at one of them."""

    def __init__(self, last=None, *, after=False):
        self.count = 0
        self.last = last
        self.after = after

    async def __call__(self, call, *args, **kwargs):
        dies = self.count == self.last
        self.count += 1
        if dies and not self.after:
            raise Death
        answer = await call(*args, **kwargs)
        if dies:
            raise Death
        return answer


class Through:
    """Something outside, each call to which is a point."""

    def __init__(self, outside, points):
        self._outside = outside
        self._points = points

    def __getattr__(self, name):
        call = getattr(self._outside, name)

        async def point(*args, **kwargs):
            return await self._points(call, *args, **kwargs)

        return point


class Temporal:
    """Signals with start, as the server does them: one open run of an id, and each run knows detections by their ids.

    The incident's first step writes the opening row, and closes at once where `quick` says so: a crash between signal
    and mark then finds the workflow gone.
    """

    def __init__(self, world, *, quick):
        self.world = world
        self.quick = quick
        self.opened = []
        self.runs = {}

    async def start_workflow(self, _name, _arg, *, id, start_signal_args, **_options):  # noqa: A002 - its name there
        (detection,) = start_signal_args
        known = self.runs.setdefault(id, set())
        if not known:
            self.opened.append(detection.id)
            body = {"detection": detection.model_dump(mode="json")}
            attempt = (await self.world.ledger.attempt(detection.attempt)).attempt
            row = self.world.site.entry(f"{id}/{len(self.opened)}/open/done", RowKind.OPENED, body, attempt)
            await self.world.ledger.commit(Change(entries=(row,)))
        known.add(detection.id)
        if self.quick:
            del self.runs[id]


async def live(world, temporal, points):
    """One life of a worker: it looks, delivers, and goes on until there is nothing more to do."""
    ledger, slurm = world.site.ledger, world.site.slurm
    object.__setattr__(world.site, "ledger", Through(ledger, points))
    object.__setattr__(world.site, "slurm", Through(slurm, points))
    try:
        watch, relay = Watch(world.site), Deliver(world.site, Through(temporal, points), "q")
        for _ in range(3):
            await world.run(watch._look_at_jobs)
            await world.run(relay._round)
            world.clock.on(1)
    finally:
        object.__setattr__(world.site, "ledger", ledger)
        object.__setattr__(world.site, "slurm", slurm)


async def prepared(make_world):
    """Jobs that ran, as their watcher saw, and then failed: each is one interruption."""
    world = make_world()
    jobs = [world.slurm.submit(nodes=1, stdout=str(world.folder / f"{i}.out")) for i in range(JOBS)]
    for job in jobs:
        world.slurm.start(job)
    await world.look()
    world.clock.on(60)
    for job in jobs:
        world.slurm.fail(job, state=JobState.FAILED)
    return world


async def outcome(world, temporal):
    """What there is to see in the end."""
    detected = [row.body["detection"]["id"] for row in await world.rows(RowKind.DETECTED)]
    waiting = await world.ledger.undelivered()
    return sorted(detected), sorted(temporal.opened), [each.id for each in waiting]


@pytest.mark.parametrize("quick", [False, True], ids=["the incident goes on", "the incident closes at once"])
@pytest.mark.parametrize("after", [False, True], ids=["before its effect", "after its effect"])
async def test_a_worker_may_die_anywhere(make_world, quick, after):
    """Wherever it ends, the next one brings about the same: each interruption detected once, and one incident of it."""
    world = await prepared(make_world)
    temporal, points = Temporal(world, quick=quick), Points()
    await live(world, temporal, points)
    wanted = await outcome(world, temporal)
    assert (len(wanted[0]), wanted[0], wanted[2]) == (JOBS, wanted[1], [])
    assert points.count > 20
    for last in range(points.count):
        world = await prepared(make_world)
        temporal = Temporal(world, quick=quick)
        with pytest.raises(Death):
            await live(world, temporal, Points(last, after=after))
        await live(world, temporal, Points())
        assert await outcome(world, temporal) == wanted, f"died at point {last}"
        assert (await world.ledger.verify()).ok
