"""Many logs of a store are read with few questions, on stand-ins for both: each line once, whatever the others do."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from relight.clients.http_store import Endpoint
from relight.clients.logs import Asked, Chunk, Cursor, LogNotFoundError, LogUnreadableError
from relight.clients.logs_http import HttpLogs, Reading
from relight.clients.logs_loki import Loki
from relight.clients.logs_pages import Bounds, Log, Page, Place, Question, Row, batches, place_at
from relight.clients.logs_together import Together, Wanted
from relight.clients.logs_victorialogs import VictoriaLogs
from relight.clients.logs_whole import Asking
from relight.domain.log_labels import reference

from .fake_log_servers import LogServer, log_server, says

NOW = datetime(2026, 1, 10, tzinfo=UTC)
START = int(NOW.timestamp() - 3600) * 10**9
SECOND = 10**9


class Store:
    """A store's stand-in, the reader under test, and where it stands in each log."""

    def __init__(self, kind: str, server: LogServer) -> None:
        self.kind, self.server = kind, server
        self.tenant = "0:0" if kind == "victorialogs" else "team"
        self.cursors: dict[str, Cursor] = {}
        self.lines: dict[str, list[str]] = {}

    def logs(self, labels: dict[str, str], *, fields: dict[str, str] | None = None, page: int = 5000) -> HttpLogs:
        endpoint, given = Endpoint(self.server.url), {"reading": Reading(page=page), "now": lambda: NOW}
        if self.kind == "loki":
            return Loki(endpoint, {**labels, **(fields or {})}, tenant=self.tenant, **given)
        return VictoriaLogs(endpoint, labels, fields=fields, **given)

    def add(self, path: str, *lines: tuple[float, str]) -> None:
        stamped = [(START + round(at * SECOND), text) for at, text in lines]
        self.server.add(*stamped, tenant=self.tenant, filename=path, rank="0")

    async def round(self, logs: HttpLogs, paths: Sequence[str]) -> list[Chunk | BaseException]:
        """One read of each log, all at once; how many questions that took is counted."""
        self.server.asked.clear()
        reads = (logs.read_new(path, self.cursors.get(path, Cursor())) for path in paths)
        found = await asyncio.gather(*reads, return_exceptions=True)
        for path, chunk in zip(paths, found, strict=True):
            if isinstance(chunk, Chunk):
                self.cursors[path] = chunk.cursor
                self.lines.setdefault(path, []).extend(chunk.lines)
        return found


@pytest.fixture(params=["victorialogs", "loki"])
async def store(request: pytest.FixtureRequest) -> AsyncIterator[Store]:
    async with log_server() as server:
        yield Store(request.param, server)


@pytest.fixture
async def logs(store: Store) -> AsyncIterator[HttpLogs]:
    async with store.logs({"filename": "{path}"}) as logs:
        yield logs


async def test_many_logs_are_few_questions(store: Store, logs: HttpLogs):
    """500 logs whose paths are 60 characters long: a dozen questions, and each line to its own log, once."""
    paths = [f"/scratch/projects/team-{n % 7}/run+{n:04}/logs (a|b)/slurm-{n:07}.out" for n in range(500)]
    for n, path in enumerate(paths):
        store.add(path, (n / 500, f"{n} begins"))
    await store.round(logs, paths)
    for n, path in enumerate(paths):
        store.add(path, (n / 500 + 1, f"{n} goes on"))
    await store.round(logs, paths)
    assert len(store.server.asked) < 15
    await store.round(logs, paths)
    assert store.lines == {path: [f"{n} begins", f"{n} goes on"] for n, path in enumerate(paths)}


@pytest.mark.parametrize("labels", [{"filename": "{path}"}, {"rank": "0"}])
async def test_fields_that_are_no_labels(store: Store, labels: dict[str, str]):
    """What tells the logs apart may be a field of VictoriaLogs that is no stream field."""
    fields = {} if "filename" in labels else {"filename": "{path}"}
    async with store.logs(labels, fields=fields) as logs:
        for n in range(20):
            store.add(f"/o/{n}", (0, f"line {n}"))
        paths = [f"/o/{n}" for n in range(20)]
        await store.round(logs, paths)
        for n in range(20):
            store.add(f"/o/{n}", (1, f"more {n}"))
        await store.round(logs, paths)
        assert len(store.server.asked) == 1
        assert store.lines == {f"/o/{n}": [f"line {n}", f"more {n}"] for n in range(20)}


async def test_two_labels_that_differ_are_asked_one_by_one(store: Store):
    """Neither store can be asked for pairs of values."""
    async with store.logs({"filename": "{path}", "rank": "{name}"}) as logs:
        paths = [f"/{n}/0" for n in range(3)]
        for path in paths:
            store.add(path, (0, path))
        await store.round(logs, paths)
        await store.round(logs, paths)
        assert len(store.server.asked) == 3
        assert store.lines == {path: [path] for path in paths}


async def test_a_log_far_behind_is_asked_for_alone(store: Store, logs: HttpLogs):
    """One that fell silent an hour ago does not have an hour of the others' lines sent again."""
    for path in ("/silent", "/a", "/b"):
        store.add(path, (0, "begins"))
    await store.round(logs, ["/silent", "/a", "/b"])
    for path in ("/a", "/b"):
        store.add(path, *((n, f"line {n}") for n in range(1, 3600, 10)))
        await store.round(logs, [path])
    await store.round(logs, ["/silent", "/a", "/b"])
    assert len(store.server.asked) == 2
    store.add("/silent", (3600, "goes on"))
    await store.round(logs, ["/silent", "/a", "/b"])
    assert store.lines["/silent"] == ["begins", "goes on"]


async def test_a_flood_in_one_log_does_not_hold_up_the_others(store: Store):
    """Answers that are cut at a page: fewer logs are asked for together, and every line comes once."""
    paths = [f"/o/{n}" for n in range(40)]
    async with store.logs({"filename": "{path}"}, page=64) as logs:
        for path in paths:
            store.add(path, (0, "begins"))
        await store.round(logs, paths)
        store.add(paths[7], *((1 + n / 1000, f"flood {n}") for n in range(1000)))
        for path in paths:
            store.add(path, (3, "goes on"))
        for _ in range(60):
            found = await store.round(logs, paths)
            if not any(chunk.more for chunk in found if isinstance(chunk, Chunk)):
                break
        else:
            raise AssertionError("no end")
    flood = [f"flood {n}" for n in range(1000)]
    assert store.lines == {p: ["begins", *(flood if p == paths[7] else []), "goes on"] for p in paths}


async def test_a_log_that_vanishes_is_its_own_trouble(store: Store, logs: HttpLogs):
    """Where the store has none of the lines read last, that log is unreadable; the others are read."""
    for path in ("/a", "/b"):
        store.add(path, (0, "begins"))
    await store.round(logs, ["/a", "/b"])
    kept = store.server.kept[store.tenant]
    store.server.kept[store.tenant] = [line for line in kept if line.labels["filename"] == "/b"]
    store.add("/b", (1, "goes on"))
    lost, chunk = await store.round(logs, ["/a", "/b"])
    assert isinstance(lost, LogUnreadableError)
    assert "/a" in str(lost)
    assert "/b" not in str(lost)
    assert isinstance(chunk, Chunk)
    assert chunk.lines == ("goes on",)
    store.add("/a", (2, "is back"))
    await store.round(logs, ["/a", "/b"])
    assert store.lines["/a"] == ["begins", "is back"]


async def test_a_failed_question_is_no_empty_read_of_any(store: Store, logs: HttpLogs):
    """All that were asked for together are told; who no longer waits harms nobody; nothing is left at the end."""
    for path in ("/a", "/b", "/c"):
        store.add(path, (0, "begins"))
    await store.round(logs, ["/a", "/b", "/c"])
    store.server.faults.append(says(500, "boom"))
    assert all(isinstance(each, LogUnreadableError) for each in await store.round(logs, ["/a", "/b", "/c"]))
    reads = [asyncio.create_task(logs.read_new(path, store.cursors[path])) for path in ("/a", "/b")]
    await asyncio.sleep(0)
    reads[0].cancel()
    assert (await reads[1]).lines == ()
    last = asyncio.create_task(logs.read_new("/c", store.cursors["/c"]))
    await asyncio.sleep(0)
    await logs.__aexit__()
    with pytest.raises(LogUnreadableError, match="closed"):
        await last


async def test_a_log_that_is_far_ahead_is_read_on_near_its_end(store: Store):
    """Only where that is asked for, and only where a page does not reach the end."""
    async with store.logs({"filename": "{path}"}, page=64) as logs:
        store.add("/short", (0, "one"))
        store.add("/long", *((n, f"line {n}") for n in range(3000)))
        asked = [Asked(path, Cursor(), 10 << 10) for path in ("/short", "/long")]
        short, long = await logs.read_many(asked)
        assert isinstance(short, Chunk)
        assert isinstance(long, Chunk)
        assert (short.lines, short.skipped, long.skipped) == (("one",), False, True)
        assert long.lines[-1] == "line 2999"
        assert len(store.server.asked) == 4
        (whole,) = await logs.read_many([Asked("/long", Cursor())])
        assert isinstance(whole, Chunk)
        assert (whole.lines[0], whole.skipped, whole.more) == ("line 0", False, True)


async def test_a_store_that_refuses_everything_is_not_asked_for_everything(store: Store, logs: HttpLogs):
    """After many refusals in a row the others wait for the next round."""
    paths = [f"/out/{n}" for n in range(600)]
    store.server.faults += [says(500, "boom")] * 1000
    found = await logs.read_many([Asked(path, Cursor()) for path in paths])
    assert [isinstance(each, LogUnreadableError) for each in found] == [n < 256 for n in range(600)]
    assert found[-1] is None
    assert len(store.server.asked) == 256


async def test_logs_without_a_line_are_few_questions(store: Store, logs: HttpLogs):
    """A wrong tenant must not make a storm of them; the first line of one is read at once, and once."""
    paths = [reference(NOW - timedelta(seconds=n), path=f"/out/{n}.out") for n in range(200)]
    for _ in range(2):
        found = await store.round(logs, paths)
        assert all(isinstance(each, LogNotFoundError) for each in found)
    assert len(store.server.asked) < 5
    store.server.add((int(NOW.timestamp()) * SECOND, "begins"), tenant=store.tenant, filename="/out/7.out")
    for _ in range(2):
        await store.round(logs, paths)
    assert store.lines == {paths[7]: ["begins"]}


# --- where a job's log begins ---


async def test_a_log_begins_with_its_job(store: Store, logs: HttpLogs):
    """Older lines under the same labels are another job's: for the follower, the scanner, and the count."""
    store.add("/a", (0, "an earlier job"), (100, "mine"))
    path = reference(datetime.fromtimestamp(START / SECOND + 60, UTC), path="/a")
    await store.round(logs, [path])
    assert store.lines[path] == ["mine"]
    assert (await logs.read_new(path, None)).lines == ("mine",)
    assert await logs.ahead(path, Cursor()) < await logs.ahead(reference(path="/a"), Cursor())
    with await asyncio.to_thread(logs.open, path) as stream:
        assert await asyncio.to_thread(stream.read) == b"mine\n"


async def test_a_job_without_a_line(store: Store, logs: HttpLogs):
    """It is not there (yet); an output beside one that has lines is empty."""
    began = NOW - timedelta(minutes=6)
    with pytest.raises(LogNotFoundError, match=r"no line of .*/a\"} since 2026-01-09 23:54:00Z, when its job began"):
        await logs.read_new(reference(began, path="/a"), Cursor())
    lone, twin = reference(began, path="/a"), reference(began, beside="/b", path="/a")
    for path in (lone, twin):
        with pytest.raises(FileNotFoundError):
            await asyncio.to_thread(logs.open, path)
    store.add("/b", (3599, "a line"))
    with await asyncio.to_thread(logs.open, twin) as stream:
        assert await asyncio.to_thread(stream.read) == b""
    with pytest.raises(FileNotFoundError):
        await asyncio.to_thread(logs.open, lone)


# --- the rule ---


@given(st.lists(st.tuples(st.integers(0, 99), st.integers(1, 40)), max_size=40), st.integers(1, 6))
def test_who_asks_together(readers: list[tuple[int, int]], most: int):
    """Everyone once, none far behind another, no more than fit."""
    wanted = [(place_at(low), "x" * length) for low, length in readers]
    groups = batches(wanted, most, 10)
    assert sorted(number for group in groups for number in group) == list(range(len(readers)))
    for group in groups:
        lows = [readers[number][0] for number in group]
        assert len(group) <= most
        assert max(lows) - min(lows) <= 10


ROWS = st.lists(st.tuples(st.integers(1, 40), st.sampled_from("abcd"), st.integers(0, 3)), max_size=80)


@given(ROWS, ROWS, st.integers(16, 40), st.booleans())
async def test_any_logs_are_read_to_their_end(first: Any, second: Any, limit: int, can_skip: bool):
    """However lines lie, and wherever pages are cut, each line comes once to its own log, and the reading ends."""
    stored: list[Row] = []

    async def page(asked: Question) -> Page:
        values = asked.values or tuple(asked.labels.values())
        rows = sorted(row for row in stored if row.of in values and row.at >= asked.low)[asked.skip :]
        return Page(tuple(rows[: asked.limit]), full=len(rows) >= asked.limit)

    unique = [
        list(dict.fromkeys(Row(at * 10, "s", f"{n} {number}", of) for at, of, number in rows))
        for n, rows in enumerate((first, second))
    ]
    bounds = Bounds(late=1000, lines=limit // 2, size=10_000)
    together = Together(Asking(page, limit, can_skip), "of", bounds)
    places: dict[str, Place] = {of: place_at(1) for of in "abcd"}
    taken: list[Row] = []
    for rows in unique:
        stored += rows
        for _ in range(300):
            got = await asyncio.gather(*(together.ask(Wanted(Log({"of": of}), places[of])) for of in places))
            for of, each in zip(places, got, strict=True):
                places[of] = each.place
                taken += [row._replace(of=of) for row in each.rows]
            if not any(each.more for each in got):
                break
        else:
            raise AssertionError("no end")
        assert len(taken) == len(set(taken))
    assert set(taken) >= set(unique[0])
