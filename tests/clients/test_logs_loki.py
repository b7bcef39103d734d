"""What is Loki's own; what it shares with VictoriaLogs is in `test_logs_http.py`. On a stand-in."""

import asyncio
import json
from collections.abc import AsyncIterator
from datetime import UTC, datetime
from typing import Any

import pytest

from relight.clients import logs_loki
from relight.clients.http_store import Endpoint
from relight.clients.logs import Cursor, LogNotFoundError, LogUnreadableError
from relight.clients.logs_http import Reading
from relight.clients.logs_loki import Loki

from .fake_log_servers import LogServer, log_server, says

NOW = datetime(2026, 1, 10, tzinfo=UTC)
START = int(NOW.timestamp() - 3600) * 10**9
PATH = "/out/7.out"


def reader(server: LogServer, **options: Any) -> Loki:
    options.setdefault("tenant", "team")
    options.setdefault("reading", Reading(page=64))
    return Loki(Endpoint(server.url), {"filename": "{path}"}, now=lambda: NOW, **options)


@pytest.fixture
async def server() -> AsyncIterator[LogServer]:
    async with log_server() as server:
        yield server


@pytest.fixture
async def logs(server: LogServer) -> AsyncIterator[Loki]:
    async with reader(server) as logs:
        yield logs


async def follow(logs: Loki, cursor: Cursor) -> tuple[list[str], Cursor]:
    lines, more = list[str](), True
    while more:
        chunk = await logs.read_new(PATH, cursor)
        lines += chunk.lines
        cursor, more = chunk.cursor, chunk.more
    return lines, cursor


def streams(*values: list[Any], **more: Any) -> str:
    data = {"resultType": "streams", "result": [{"stream": {"a": "b"}, "values": list(values)}] if values else []}
    return json.dumps({"status": "success", "data": data, **more})


async def test_a_tenant_is_needed(server: LogServer):
    """A Loki of several tenants says that none was named."""
    async with reader(server, tenant="") as logs:
        with pytest.raises(LogUnreadableError, match=r"no tenant named.*no org id"):
            await logs.read_new(PATH, Cursor())


async def test_pages_that_loki_refuses(server: LogServer):
    """The limit of lines in one answer is the site's: what Loki says of it is passed on."""
    async with reader(server, reading=Reading(page=6000)) as logs:
        with pytest.raises(LogUnreadableError, match=r"max entries limit per query exceeded.*6000 > 5000"):
            await logs.read_new(PATH, Cursor())


async def test_more_lines_of_one_moment_than_a_page(server: LogServer, logs: Loki):
    """What cannot be asked for is said to be left out, to the follower and to the scanner; reading goes on."""
    server.add(*((START + 5, f"rank {n:04}") for n in range(1000)), (START + 6, "after"), tenant="team", filename=PATH)
    lines, _ = await follow(logs, Cursor())
    assert len(lines) == 64 + 1 + 1
    assert lines[64:] == ["[relight: 64 lines of one moment; if there are more, they are left out here]", "after"]

    def scan() -> list[str]:
        with logs.open(PATH) as stream:
            return stream.read().decode().splitlines()

    assert (await asyncio.to_thread(scan))[64:] == lines[64:]


async def test_answers_too_long_are_asked_for_in_smaller_pages(
    server: LogServer, logs: Loki, monkeypatch: pytest.MonkeyPatch
):
    """An answer is never held beyond its bound; where not even four lines fit, that is said."""
    monkeypatch.setattr(logs_loki, "PAGE_BYTES", 20_000)
    server.add(*((START + n, f"{n} " + "x" * 2000) for n in range(100)), tenant="team", filename=PATH)
    lines, _ = await follow(logs, Cursor())
    assert [line.split()[0] for line in lines] == [str(n) for n in range(100)]
    monkeypatch.setattr(logs_loki, "PAGE_BYTES", 5000)
    with pytest.raises(LogUnreadableError, match="4 lines are more than"):
        await follow(logs, Cursor())


async def test_structured_metadata(server: LogServer, logs: Loki):
    """A third element of a line is passed over."""
    server.faults.append(says(200, streams([str(START), "text", {"trace_id": "1"}])))
    assert (await logs.read_new(PATH, Cursor())).lines == ("text",)


async def test_nothing_with_warnings(server: LogServer, logs: Loki):
    """Nothing, with a warning, is not known to be nothing."""
    server.faults.append(says(200, streams(warnings=["an ingester is missing"])))
    with pytest.raises(LogUnreadableError, match="an ingester is missing"):
        await logs.read_new(PATH, Cursor())
    server.faults.append(says(200, streams()))
    with pytest.raises(LogNotFoundError):
        await logs.read_new(PATH, Cursor())


@pytest.mark.parametrize(
    "body",
    [
        streams([str(START)]),
        streams(["soon", "text"]),
        streams([str(START), 7]),
        '{"status": "success", "data": {"resultType": "matrix", "result": []}}',
        '{"status": "success", "data": {"resultType": "streams"}}',
        '{"status": "success", "data": null}',
        "null",
        "",
    ],
)
async def test_answers_that_are_none(server: LogServer, logs: Loki, body: str):
    """What does not have the documented shape is unreadable as a whole."""
    server.faults.append(says(200, body))
    with pytest.raises(LogUnreadableError, match="cut off, or none"):
        await logs.read_new(PATH, Cursor())


@pytest.mark.parametrize("label", ["job-id", "1st", 'a"', ""])
def test_label_names(server: LogServer, label: str):
    """Names that Loki cannot have are refused at the start: they would be read as something else."""
    with pytest.raises(ValueError, match="letters, digits"):
        Loki(Endpoint(server.url), {label: "{path}"})
