"""What is VictoriaLogs' own; what it shares with Loki is in `test_logs_http.py`. On a stand-in."""

import asyncio
import json
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing
from datetime import UTC, datetime, timedelta
from typing import Any, Literal

import pytest

from relight.clients import logs_victorialogs
from relight.clients.http_store import Endpoint
from relight.clients.logs import Chunk, Cursor, LogUnreadableError
from relight.clients.logs_http import Reading
from relight.clients.logs_victorialogs import VictoriaLogs
from relight.domain.log_labels import reference

from .fake_log_servers import LogServer, log_server, says

NOW = datetime(2026, 1, 10, tzinfo=UTC)
START = int(NOW.timestamp() - 3600) * 10**9
PATH = "/out/7.out"


def reader(server: LogServer, **options: Any) -> VictoriaLogs:
    labels = options.pop("labels", {"filename": "{path}"})
    options.setdefault("reading", Reading(page=64))
    return VictoriaLogs(Endpoint(server.url), labels, now=lambda: NOW, **options)


@pytest.fixture
async def server() -> AsyncIterator[LogServer]:
    async with log_server() as server:
        yield server


@pytest.fixture
async def logs(server: LogServer) -> AsyncIterator[VictoriaLogs]:
    async with reader(server) as logs:
        yield logs


async def follow(logs: VictoriaLogs, cursor: Cursor) -> tuple[list[str], Cursor]:
    lines, more = list[str](), True
    while more:
        chunk = await logs.read_new(PATH, cursor)
        lines += chunk.lines
        cursor, more = chunk.cursor, chunk.more
    return lines, cursor


async def test_the_question(server: LogServer, logs: VictoriaLogs):
    """The order and the limit are in the query: the argument `limit` would select the newest lines."""
    server.add((START + 1, "one"), filename=PATH)
    _, cursor = await follow(logs, Cursor())
    await logs.read_new(PATH, cursor)
    assert server.asked[-1] == (
        '{"filename"="/out/7.out"} _time:>=2026-01-09T22:59:55.000000001Z '
        "| sort by (_time, _stream_id, _msg) offset 0 limit 64 | fields _time, _stream_id, _msg"
    )


async def test_fields_that_are_no_stream_fields(server: LogServer):
    """They are matched exactly, beside the stream or without one."""
    server.add((START, "mine"), app="train", job="7")
    server.add((START, "other"), app="train", job="70")
    for labels in ({"app": "train"}, {}):
        async with reader(server, labels=labels, fields={"job": "{job_id}"}) as logs:
            assert (await logs.read_new(reference(job_id="7"), Cursor())).lines == ("mine",)
    assert server.asked[-1].startswith('* "job":="7" _time:>=')


async def test_tenants(server: LogServer):
    """A tenant is two numbers, and the default is 0:0."""
    server.add((START, "theirs"), filename=PATH, tenant="12:34")
    async with reader(server, tenant="12:34") as logs:
        assert (await logs.read_new(PATH, Cursor())).lines == ("theirs",)
    for wrong in ("12", "a:b", "12:", ":"):
        with pytest.raises(ValueError, match="AccountID:ProjectID"):
            reader(server, tenant=wrong)


async def test_more_lines_of_one_moment_than_a_page(server: LogServer, logs: VictoriaLogs):
    """Stamps of whole seconds: all lines of a burst come once, to the follower and to the scanner."""
    burst = [f"rank {n} failed" for n in range(1000)]
    server.add((START, "before"), *((START + 5, line) for line in burst), (START + 6, "after"), filename=PATH)
    lines, cursor = await follow(logs, Cursor())
    assert lines == ["before", *sorted(burst), "after"]
    assert (await follow(logs, cursor))[0] == []

    def scan() -> list[str]:
        with logs.open(PATH) as stream:
            return stream.read().decode().splitlines()

    assert await asyncio.to_thread(scan) == lines


@pytest.mark.parametrize(
    ("stamp", "at"),
    [("2026-01-09T23:00:00Z", 0), ("2026-01-09T23:00:00.5Z", 500_000_000), ("2026-01-09T23:00:00.000000001Z", 1)],
)
async def test_stamps(server: LogServer, logs: VictoriaLogs, stamp: str, at: int):
    """The store cuts trailing zeros; nanoseconds are kept."""
    server.add((START + at, "x"), filename=PATH)
    server.faults.append(says(200, json.dumps({"_time": stamp, "_stream_id": "1", "_msg": "x"}) + "\n"))
    assert (await logs.read_new(PATH, Cursor())).cursor.offset == START + at + 1


async def test_fields_left_out(server: LogServer, logs: VictoriaLogs):
    """An empty message is left out of the answer, and is a blank line."""
    server.faults.append(says(200, '{"_time":"2026-01-09T23:00:00Z"}\n'))
    assert (await logs.read_new(PATH, Cursor())).lines == ("",)


@pytest.mark.parametrize(
    "line", ['{"_msg":"no time"}', '{"_time":7,"_msg":"x"}', '{"_time":"2026-01-09T23:00:00Z","_msg":7}', '"text"']
)
async def test_entries_that_are_none(server: LogServer, logs: VictoriaLogs, line: str):
    """What does not look like a log entry makes the whole answer unreadable."""
    good = '{"_time":"2026-01-09T23:00:00Z","_msg":"x"}\n'
    server.faults.append(says(200, f"{good}{line}\n"))
    with pytest.raises(LogUnreadableError):
        await logs.read_new(PATH, Cursor())


async def test_an_entry_without_end(server: LogServer, logs: VictoriaLogs, monkeypatch: pytest.MonkeyPatch):
    """No more of an entry is held than the store can have of one."""
    monkeypatch.setattr(logs_victorialogs, "_MAX_ENTRY", 1000)
    server.add((START, "x" * 300_000), filename=PATH)
    with pytest.raises(LogUnreadableError, match="an entry of more"):
        await logs.read_new(PATH, Cursor())


# --- live tailing ---


async def test_tail_wakes_the_reader(server: LogServer):
    """A line that the store tells of is read at once; lines come as `read_new` has them, late ones too."""
    server.add((START, "one"), filename=PATH)
    # Long enough that only the bell can be what wakes it.
    async with (
        reader(server, reading=Reading(late=timedelta(seconds=50))) as logs,
        aclosing(logs.tail(PATH, Cursor())) as chunks,
    ):
        assert (await anext(chunks)).lines == ("one",)
        server.add((START + 2, "three"), (START + 2, "tres"), filename=PATH)
        lines = list[str]()
        while len(lines) < 2:
            lines += (await anext(chunks)).lines
        assert sorted(lines) == ["three", "tres"]
        server.add((START + 1, "late"), filename=PATH)
        while "late" not in lines:
            lines += (await anext(chunks)).lines
    assert lines.count("three") == 1


async def test_tail_looks_by_itself(server: LogServer):
    """A bell that stays silent (it leaves out late lines) delays a line by no more than `late`."""
    reading = Reading(late=timedelta(milliseconds=50))
    async with reader(server, reading=reading) as logs, aclosing(logs.tail(PATH, Cursor())) as chunks:
        server.add((START, "one"), filename=PATH)
        await anext(chunks)
        server.news = asyncio.Event()  # nobody waits for this one
        server.add((START + 1, "unheard"), filename=PATH)
        assert (await _with_lines(chunks)).lines == ("unheard",)


async def _with_lines(chunks: AsyncGenerator[Chunk]) -> Chunk:
    async for chunk in chunks:
        if chunk.lines:
            return chunk
    raise AssertionError("ended")


@pytest.mark.parametrize("end", ["whole", "broken"])
async def test_tail_that_ends(server: LogServer, logs: VictoriaLogs, end: Literal["whole", "broken"]):
    """The end of live tailing is an error; whoever goes on does so from the last cursor."""
    server.add((START, "one"), filename=PATH)
    async with aclosing(logs.tail(PATH, Cursor())) as chunks:
        first = await anext(chunks)
        server.tail_ends = end
        server.add((START + 1, "two"), filename=PATH)
        with pytest.raises(LogUnreadableError):
            await _last(chunks)
    assert (await logs.read_new(PATH, first.cursor)).lines == ("two",)


async def _last(chunks: AsyncGenerator[Chunk]) -> None:
    async for _ in chunks:
        pass
