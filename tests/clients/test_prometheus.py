"""GPU metrics from a real Prometheus server that scrapes stand-ins of DCGM's exporter; refusals by a stand-in."""

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from aiohttp import web

from relight.clients.http_store import Endpoint
from relight.clients.metrics import (
    GpuMetrics,
    MetricsAnswerError,
    MetricsUnavailableError,
    open_metrics,
)
from relight.clients.prometheus import Prometheus
from relight.config.settings import ConfigError, PrometheusSettings
from relight.domain.gpu_metrics import FIELDS, XID, faults
from relight.lab import packages
from relight.lab.dcgm import DcgmExporterStandIn, PrometheusServer, prometheus_server

PATIENCE = 30.0
XID_, REASONS, ECC = XID.name, "DCGM_FI_DEV_CLOCKS_EVENT_REASONS", "DCGM_FI_DEV_ECC_DBE_VOL_TOTAL"


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    """A real server, for all tests of this file."""
    if packages.find_program("prometheus") is None:
        pytest.skip("needs Debian's package prometheus: python -m relight.lab.packages")
    with prometheus_server(tmp_path_factory.mktemp("prometheus")) as server:
        yield server


@pytest.fixture
def exporters(server):
    """Makes exporters that it scrapes, until the test ends. Each test has hostnames of its own."""
    made: list[DcgmExporterStandIn] = []

    def make(hostname: str, **options: Any) -> DcgmExporterStandIn:
        made.append(DcgmExporterStandIn(hostname, **options))
        server.scrape(*made)
        return made[-1]

    yield make
    server.scrape()
    for exporter in made:
        exporter.stop()


@pytest.fixture
async def metrics(server: PrometheusServer) -> AsyncIterator[Prometheus]:
    async with Prometheus(Endpoint(server.url)) as metrics:
        yield metrics


async def until(condition: Callable[[], Any]) -> Any:
    """Ask again and again until the answer is something; returns it."""
    async with asyncio.timeout(PATIENCE):
        while not (found := await condition()):  # noqa: ASYNC110 - another process
            await asyncio.sleep(0.1)
    return found


async def seen(metrics: GpuMetrics, *nodes: str) -> datetime:
    """Wait until the server shows just these nodes; returns its time."""

    async def shown() -> datetime | None:
        now = await metrics.shown()
        return now.at if set(now.nodes) == set(nodes) else None

    return await until(shown)


async def told(metrics: GpuMetrics, nodes: set[str], since: datetime) -> list[str]:
    """Wait until something has changed; returns the faults' texts."""

    async def changed() -> list[str]:
        now = (await metrics.shown()).at
        return [f.text for each in await metrics.changes(nodes, since, now) for f in faults(each) if f.at > since]

    return await until(changed)


async def test_what_a_real_server_tells_of_an_xid(metrics, exporters):
    """The change, with both sides' samples as they were scraped, the exporter's words, and the GPU's address."""
    exporter = exporters("n1")
    exporters("n2.cluster.example")
    since = await seen(metrics, "n1", "n2.cluster.example")
    assert await metrics.changes({"n1"}, since, since) == ()
    exporter.set(XID_, 1, 79)
    assert await told(metrics, {"n1", "n2.cluster.example"}, since) == [
        "Xid (PCI:0000:44:00): 79, GPU has fallen off the bus, told by DCGM"
    ]
    now = (await metrics.shown()).at
    found = [each for each in await metrics.changes({"n1"}, since, now) if list(faults(each))]
    (samples,) = [each.samples for each in found]
    assert {sample.value for sample in samples} == {0, 79}
    assert all(sample.at <= now for sample in samples)
    assert await metrics.changes({"n3"}, since, now) == ()


async def test_every_field_is_asked_for_as_the_server_understands_it(metrics, exporters):
    """Counters that rise by much, flags that are raised, clocks that are held down; and not what stands."""
    exporter = exporters("every", gpus=1)
    for field in FIELDS:
        exporter.set(field.name, 0, 4)
    since = await seen(metrics, "every")

    async def standing() -> bool:
        now = (await metrics.shown()).at
        return now - since > timedelta(seconds=3) and await metrics.changes({"every"}, since, now) == ()

    await until(standing)
    since = (await metrics.shown()).at
    for field in FIELDS:
        exporter.set(field.name, 0, 10_000 if field.reading == "rise" else 8)

    async def kinds() -> bool:
        now = (await metrics.shown()).at
        series = await metrics.changes({"every"}, since, now)
        return {each.field.name for each in series if list(faults(each))} == {field.name for field in FIELDS}

    await until(kinds)


async def test_an_exporter_that_is_gone_is_not_shown(metrics, exporters):
    """Neither its nodes, nor any change of them; and again when it is back, with what it shows then as old."""
    exporter = exporters("gone")
    await seen(metrics, "gone")
    exporter.set(XID_, 0, 79)
    exporter.stop()
    since = await seen(metrics)
    assert await metrics.changes({"gone"}, since - timedelta(seconds=60), since) == ()
    exporter.start()
    since = await seen(metrics, "gone")
    assert await metrics.changes({"gone"}, since, (await metrics.shown()).at) == ()


async def test_a_name_that_two_exporters_claim_is_nobodys(metrics, exporters):
    """A user's program can open a port and say anything."""
    exporters("claimed")
    exporters("claimed")
    exporters("other")

    async def both() -> bool:
        shown = await metrics.shown()
        return shown.twice == {"claimed"} and set(shown.nodes) == {"other"}

    await until(both)


async def test_by_another_label_and_with_a_selector(server, metrics, exporters):
    """`instance` is the server's own word; matchers keep other clusters out."""
    exporter = exporters("old1", gpus=1, old=True)
    exporters("old2", gpus=1)
    await seen(metrics, "old1", "old2")
    place = f"127.0.0.1:{exporter.port}"
    async with Prometheus(Endpoint(server.url), node_label="instance", selector='Hostname="old1"') as other:
        since = await seen(other, place)
        exporter.set(XID_, 0, 31)
        assert await told(other, {place}, since) == ["Xid (PCI:0): 31, told by DCGM"]


async def test_a_server_that_is_down_is_said():
    """With its address."""
    async with Prometheus(Endpoint("http://127.0.0.1:9")) as metrics:
        with pytest.raises(MetricsUnavailableError, match=r"http://127\.0\.0\.1:9"):
            await metrics.shown()


# Refusals.


@asynccontextmanager
async def answering(answer: Callable[[web.Request], Any], port: int = 0) -> AsyncIterator[str]:
    """A stand-in server that answers queries so."""
    app = web.Application()
    app.add_routes([web.post("/prom/api/v1/query", answer)])
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", port)
    await site.start()
    try:
        yield f"http://127.0.0.1:{runner.addresses[0][1]}/prom"
    finally:
        await runner.cleanup()


def vector(*rows: dict[str, Any]) -> web.Response:
    return web.json_response({"status": "success", "data": {"resultType": "vector", "result": rows}})


async def test_token_tenant_and_form_travel(tmp_path):
    """The secret is read from its file; the question is no part of the address."""
    asked = []

    async def answer(request: web.Request) -> web.Response:
        asked.append((request.headers, await request.post(), request.query_string))
        return vector({"metric": {}, "value": [1796000000.5, "0"]})

    token = tmp_path / "token"
    token.write_text("s3cret\n")
    async with answering(answer) as url:
        settings = PrometheusSettings(url=url, token_file=str(token), tenant="east")
        async with open_metrics(settings) as metrics:
            shown = await metrics.shown()
    assert shown == (datetime.fromtimestamp(1796000000.5, UTC), {}, frozenset())
    ((headers, form, query),) = asked
    assert (headers["Authorization"], headers["X-Scope-OrgID"]) == ("Bearer s3cret", "east")
    assert (XID_ in form["query"], query) == (True, "")


SHOWN_AT_NO_TIME = '{"data": {"result": [{"metric": {"Hostname": "n1"}, "value": [1, "NaN"]}]}}'


@pytest.mark.parametrize(
    ("status", "body", "error", "says"),
    [
        (401, "no", MetricsUnavailableError, "does not accept"),
        (403, "no", MetricsUnavailableError, "does not let us read"),
        (422, '{"error": "query timed out"}', MetricsUnavailableError, "query timed out"),
        (503, "", MetricsUnavailableError, "cannot answer"),
        (200, "<html>", MetricsAnswerError, "no Prometheus"),
        (200, "[]", MetricsAnswerError, "no Prometheus"),
        (200, '{"data": {"result": [{"metric": {}}]}}', MetricsAnswerError, "no Prometheus"),
        (200, '{"data": {"result": [{"metric": {}, "value": [1e300, "0"]}]}}', MetricsAnswerError, "no Prometheus"),
        (200, '{"data": {"result": [{"metric": {}, "value": [1, "x"]}]}}', MetricsAnswerError, "no Prometheus"),
        (200, "[" * 100_000, MetricsAnswerError, "no Prometheus"),
        (200, '{"data": {"result": []}}', MetricsAnswerError, "no Prometheus"),
        (200, '{"data": {"result": [{"metric": {}, "values": []}]}}', MetricsAnswerError, "no Prometheus"),
        (200, SHOWN_AT_NO_TIME, MetricsAnswerError, "no Prometheus"),
    ],
)
async def test_what_is_no_answer_is_an_error(status, body, error, says):
    """Never an empty answer."""

    async def answer(_request: web.Request) -> web.Response:
        return web.Response(status=status, text=body)

    async with answering(answer) as url, Prometheus(Endpoint(url)) as metrics:
        with pytest.raises(error, match=says):
            await metrics.shown()


async def test_an_answer_too_long_is_an_error(monkeypatch):
    """Memory is bounded."""
    monkeypatch.setattr("relight.clients.prometheus._MOST", 1000)

    async def answer(_request: web.Request) -> web.Response:
        return web.Response(text=json.dumps("x" * 2000))

    async with answering(answer) as url, Prometheus(Endpoint(url)) as metrics:
        with pytest.raises(MetricsAnswerError, match="longer than"):
            await metrics.shown()


async def test_a_kept_connection_that_was_closed_is_opened_again():
    """A question may be put twice."""
    times = 0

    async def answer(request: web.Request) -> web.Response:
        nonlocal times
        times += 1
        if times == 2:  # as a server that closes just when the next question comes
            assert request.transport is not None
            request.transport.close()
        return vector({"metric": {}, "value": [1796000000, "0"]})

    async with answering(answer) as url, Prometheus(Endpoint(url)) as metrics:
        await metrics.shown()
        await metrics.shown()
    assert times == 3


async def test_names_that_are_no_plain_names_are_not_asked_for():
    """What stands in a label is anybody's, and would become part of a question."""
    asked = []

    async def answer(request: web.Request) -> web.Response:
        query = str((await request.post())["query"])
        asked.append(query)
        bad = {"metric": {"Hostname": 'x"}) or vector(1'}, "value": [1, "1"]}
        good = {"metric": {"Hostname": "n1.a"}, "value": [1, "1"]}
        return vector() if query.endswith("s]") else vector(bad, good)

    now = datetime.now(UTC)
    async with answering(answer) as url, Prometheus(Endpoint(url)) as metrics:
        await metrics.changes({'x"}) or vector(1', "n1.a"}, now, now)
    assert {query.partition("=~")[2] for query in asked if "=~" in query} == {'"n1[.]a"}[90s]'}


@pytest.mark.parametrize("field", ["token_file", "ca"])
async def test_a_file_that_cannot_be_read_is_said_at_the_start(field):
    """With the setting's name."""
    settings = PrometheusSettings(url="http://127.0.0.1:9", **{field: "/does/not/exist"})
    with pytest.raises(ConfigError, match=rf"metrics\.prometheus\.{field}.*/does/not/exist"):
        async with open_metrics(settings):
            pass


async def test_without_an_address_there_is_no_store():
    """And no error."""
    async with open_metrics(PrometheusSettings()) as metrics:
        assert metrics is None
