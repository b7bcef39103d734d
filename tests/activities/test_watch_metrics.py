"""GPU metrics read from a store: a change is told once, and what is not seen now is unknown. On a stand-in store.

Against a real Prometheus server: `test_watch_metrics_prometheus.py`.
"""

from datetime import timedelta

import pytest

from relight.activities import contracts as c
from relight.activities.ingest import Ingest
from relight.activities.watch_metrics import MISSED_FOR, NAME, OVERLAP, REACH, WatchMetrics
from relight.clients.metrics import MetricsUnavailableError, Shown
from relight.clients.slurm import SlurmUnavailableError
from relight.domain.detectors import Sees
from relight.domain.evidence import Interruption, Source, Trust
from relight.domain.gpu_metrics import TOGETHER, XID, Sample, Series
from relight.domain.ledger import RowKind

GPU = "0000:43:00"
SECOND = timedelta(seconds=1)


class Store:
    """A stand-in: keeps samples, and answers as `GpuMetrics` promises. `fail` is raised by the next answers."""

    def __init__(self, clock) -> None:
        self.clock = clock
        self.samples = {}
        self.fail = None
        self.twice = frozenset()
        self.asked = []

    def scrape(self, xid=0, *nodes) -> None:
        """All exporters of these nodes show this Xid now."""
        for node in nodes or ("n1",):
            self.samples.setdefault(node, []).append(Sample(self.clock.now, xid))

    async def shown(self):
        if self.fail:
            raise self.fail
        return Shown(self.clock.now, {node: each[-1].at for node, each in self.samples.items()}, self.twice)

    async def changes(self, nodes, since, until):
        self.asked.append((set(nodes), since, until))
        begin = since - TOGETHER
        return tuple(
            Series(XID, node, GPU, tuple(sample for sample in self.samples[node] if begin <= sample.at <= until))
            for node in nodes
        )


@pytest.fixture
def store(world):
    return Store(world.clock)


@pytest.fixture
def watcher(world, store):
    """Makes a watcher, as a worker does at its start."""
    object.__setattr__(world.site, "metrics", store)
    return lambda **given: WatchMetrics(world.site, Ingest(world.site, lambda: None), **given)


@pytest.fixture
def watch(watcher):
    return watcher()


@pytest.fixture
def look(world, watch):
    """One look; later looks at the same watcher, or at another one."""

    async def one(at=watch):
        await world.run(at._timed, world.site.metrics)
        return world.site.detectors.sights()[NAME]

    return one


async def faults(world):
    return [row.body["fault"]["xid"] for row in await world.rows(RowKind.FAULT)]


async def fail_gpu(world, store, look, xid=79):
    """A node that was well, seen; then its GPU fails, seen."""
    store.scrape()
    await look()
    world.clock.on(15)
    store.scrape(xid)
    return await look()


async def test_an_xid_under_a_running_job_is_detected(world, store, look):
    """With the catalogue's name for it; a program may pass for an exporter, so it is no platform witness."""
    attempt = await world.train()
    sight = await fail_gpu(world, store, look)
    (found,) = await world.ledger.undelivered()
    assert (found.kind, found.attempt, found.occurred_at) == (Interruption.GPU_FAULT, attempt.key, world.clock.now)
    (evidence,) = found.evidence
    assert (evidence.source, evidence.signature, evidence.node, evidence.gpu) == (Source.EXPORTER, "XID_79", "n1", GPU)
    assert evidence.trust is Trust.JOB
    assert sight.state(world.clock.now) is Sees.SEES


async def test_where_the_site_trusts_its_exporters_they_are_platform_witnesses(world, store, watcher):
    """The one setting decides."""
    await world.train()
    watch = watcher(trusted=True)
    await fail_gpu(world, store, lambda: watch._timed(store))
    (found,) = await world.ledger.undelivered()
    assert [(each.source, each.trust) for each in found.evidence] == [(Source.DCGM, Trust.PLATFORM)]


async def test_it_is_told_once(world, store, look, watcher):
    """However often it is looked at, also by a worker that starts anew."""
    await world.train()
    await fail_gpu(world, store, look)
    for _ in range(3):
        world.clock.on(15)
        store.scrape(79)
        await look()
        await look(watcher())
    assert await faults(world) == [79]
    assert len(await world.ledger.undelivered()) == 1


async def test_of_two_servers_behind_one_address_it_is_told_once(world, store, look):
    """Each has scraped the same at another time."""
    await fail_gpu(world, store, look)
    store.samples["n1"] = [Sample(sample.at - 7 * SECOND, sample.value) for sample in store.samples["n1"]]
    await look()
    assert await faults(world) == [79]


async def test_what_is_shown_at_the_first_look_is_old(world, store, look):
    """It may have stood there for weeks."""
    await world.train()
    for _ in range(3):
        store.scrape(79)
        await look()
        world.clock.on(15)
    assert await faults(world) == []


async def test_a_new_worker_looks_back_a_little(world, store, look):
    """What happened while no worker was there is told, but not what is long past."""
    for xid, minutes in ((0, 0), (31, 1), (31, 5), (31, 1), (79, 1)):
        for _ in range(minutes * 2):
            world.clock.on(30)
            store.scrape(xid)
        store.scrape(xid)
    await look()
    assert await faults(world) == [79]
    assert store.asked[0][1] == world.clock.now - REACH


async def test_a_sample_that_arrives_late_is_seen(world, store, look):
    """A scrape bears the time at which it began."""
    store.scrape()
    await look()
    world.clock.on(10)
    late = Sample(world.clock.now, 79)
    world.clock.on(OVERLAP.total_seconds() - 1)
    store.scrape(79)
    await look()
    store.samples["n1"].insert(1, late)
    assert late.at < store.asked[-1][2]
    await look()
    assert await faults(world) == [79]


async def test_a_job_that_started_in_between_is_not_blamed(world, store, look):
    """The fault may have ended the job before it, and the scrape came after this one had started."""
    store.scrape()
    await look()
    world.clock.on(10)
    attempt = await world.train()  # and a minute passes
    store.scrape(79)
    await look()
    (row,) = await world.rows(RowKind.FAULT)
    assert row.node in attempt.record.nodes
    assert row.body["attempts"] == []
    assert await world.ledger.undelivered() == ()


@pytest.mark.parametrize("xid", [145, 154])
async def test_a_number_that_may_mean_nothing_is_only_written_down(world, store, look, xid):
    """Of these, the kernel's line tells whether anything is wrong, and DCGM has none."""
    await world.train()
    await fail_gpu(world, store, look, xid)
    assert await faults(world) == [xid]
    assert await world.ledger.undelivered() == ()


async def test_strange_names_are_left_out(world, store, look):
    """Another cluster's nodes; and those that two exporters claim to be."""
    await world.train()
    store.scrape(0, "n1", "other.example")
    await look()
    world.clock.on(15)
    store.scrape(79, "n1", "other.example")
    await look()
    assert [row.node for row in await world.rows(RowKind.FAULT)] == ["n1"]
    assert store.asked[-1][0] == {"n1"}


# Blindness.


async def blind(look, world):
    sight = await look()
    assert sight.state(world.clock.now) is Sees.BLIND
    return sight.problem


async def test_a_store_that_does_not_answer_is_blindness(world, store, look):
    """Nothing is told; afterwards it goes on where it was."""
    store.scrape()
    await look()
    store.fail = MetricsUnavailableError("http://p: no answer within 10 s")
    world.clock.on(15)
    store.scrape(79)
    assert "no answer" in await blind(look, world)
    assert await faults(world) == []
    store.fail = None
    world.clock.on(15)
    store.scrape(79)
    assert (await look()).state(world.clock.now) is Sees.SEES
    assert await faults(world) == [79]


async def test_samples_that_are_not_fresh_tell_nothing(world, store, look):
    """A store that scrapes no more, or an exporter that is gone."""
    store.scrape()
    await look()
    world.clock.on(1)
    store.scrape(79)
    world.clock.on(TOGETHER.total_seconds() + 1)
    assert "no fresh GPU metrics of n1" in await blind(look, world)
    assert await faults(world) == []


async def test_one_exporter_that_is_down_is_no_blindness(world, store, look):
    """Half of them are."""
    nodes = ("n1", "n2", "n3")
    store.scrape(0, *nodes)
    await look()
    world.clock.on(TOGETHER.total_seconds() + 1)
    store.scrape(0, "n1", "n2")
    assert (await look()).state(world.clock.now) is Sees.SEES
    del store.samples["n2"]
    assert "n2, n3" in await blind(look, world)
    world.clock.on(MISSED_FOR.total_seconds() + 1)
    store.scrape(0, "n1")
    assert (await look()).state(world.clock.now) is Sees.SEES


async def test_without_slurms_nodes_names_mean_nothing(world, store, look):
    """Unknown is no."""
    store.scrape()
    world.slurm.fail_next("nodes", SlurmUnavailableError("timed out"))
    assert "timed out" in await blind(look, world)
    assert store.asked == []


async def test_without_the_ledger_nothing_is_lost(world, store, look):
    """Told by the look after it comes back."""
    await world.train()
    store.scrape()
    await look()
    world.clock.on(15)
    store.scrape(79)
    world.ledger.down = True
    assert "does not answer" in await blind(look, world)
    world.ledger.down = False
    world.clock.on(15)
    store.scrape(79)
    await look()
    assert await faults(world) == [79]
    assert len(await world.ledger.undelivered()) == 1


async def test_a_site_without_metrics_has_no_such_detector(world, watch):
    """It idles."""
    object.__setattr__(world.site, "metrics", None)
    await world.run(watch.watch_metrics, c.WatchInput(cluster="test", run_for=timedelta(seconds=30)))
    assert NAME not in world.site.detectors.sights()
    assert world.sleeps > 1


async def test_it_looks_again_and_again(world, store, watch):
    """For as long as it is asked to."""
    store.scrape()
    await world.run(watch.watch_metrics, c.WatchInput(cluster="test", run_for=timedelta(seconds=30)))
    assert len(store.asked) == 6
