"""GPU metrics all the way: exporter (a stand-in), a real Prometheus server, the watcher, the ledger."""

import asyncio
from datetime import UTC, datetime, timedelta

import pytest

from relight.activities.ingest import Ingest
from relight.activities.watch_metrics import NAME, WatchMetrics
from relight.clients.metrics import open_metrics
from relight.config.settings import PrometheusSettings
from relight.domain.detectors import Sees
from relight.domain.evidence import Interruption, Source
from relight.domain.gpu_metrics import XID
from relight.domain.ledger import RowKind
from relight.lab import packages
from relight.lab.dcgm import DcgmExporterStandIn, prometheus_server

PATIENCE = 40.0


@pytest.fixture
def server(tmp_path):
    if packages.find_program("prometheus") is None:
        pytest.skip("needs Debian's package prometheus: python -m relight.lab.packages")
    with prometheus_server(tmp_path) as server:
        yield server


async def test_a_fault_is_told_once_whatever_goes_down(world, server):
    """An Xid is a detection in the ledger; with exporter or server gone it is blind, tells nothing, and recovers."""
    world.clock.now = datetime.now(UTC) - timedelta(minutes=10)
    attempt = await world.train()
    exporter = DcgmExporterStandIn("n1.cluster.example")
    server.scrape(exporter)
    async with open_metrics(PrometheusSettings(url=server.url)) as metrics:
        object.__setattr__(world.site, "metrics", metrics)
        watch = WatchMetrics(world.site, Ingest(world.site, lambda: None))

        async def look_until(state: Sees, says: str = "", told: int = 1) -> None:
            async with asyncio.timeout(PATIENCE):
                while True:
                    world.clock.now = datetime.now(UTC)
                    await world.run(watch._timed, metrics)
                    sight = world.site.detectors.sights()[NAME]
                    here = sight.state(world.clock.now) is state and says in sight.problem
                    if here and len(await world.ledger.undelivered()) == told:
                        return
                    await asyncio.sleep(0.2)

        await look_until(Sees.SEES, told=0)
        exporter.set(XID.name, 0, 79)
        await look_until(Sees.SEES)
        (found,) = await world.ledger.undelivered()
        assert (found.kind, found.attempt) == (Interruption.GPU_FAULT, attempt.key)
        assert (found.evidence[0].source, found.evidence[0].signature) == (Source.EXPORTER, "XID_79")

        exporter.stop()
        await look_until(Sees.BLIND, "no fresh GPU metrics of n1")
        exporter.start()  # and shows what it showed before
        await look_until(Sees.SEES)
        server.stop()
        await look_until(Sees.BLIND, server.url)
        server.start()
        await look_until(Sees.SEES)

        again = WatchMetrics(world.site, Ingest(world.site, lambda: None))  # as by another worker
        await world.run(again._timed, metrics)
        assert len(await world.rows(RowKind.FAULT)) == 1
        assert len(await world.ledger.undelivered()) == 1
    exporter.stop()
