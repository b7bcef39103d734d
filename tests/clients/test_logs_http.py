# ruff: noqa: ASYNC240  the copies under test are small and local
"""Outputs in a log store, on stand-ins for both: each line once, and a failed read is never an empty one."""

import asyncio
import re
import ssl
import stat
import subprocess
import tracemalloc
from collections.abc import AsyncIterator, Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from relight.clients.http_store import Endpoint
from relight.clients.logs import Cursor, LogNotFoundError, Logs, LogUnreadableError
from relight.clients.logs_http import LINE_BYTES, HttpLogs, Reading
from relight.clients.logs_loki import Loki
from relight.clients.logs_victorialogs import VictoriaLogs
from relight.domain.log_labels import reference

from .fake_log_servers import Fault, LogServer, cut, garbage, hang, log_server, reset, says

NOW = datetime(2026, 1, 10, tzinfo=UTC)
START = int(NOW.timestamp() - 3600) * 10**9
SECOND = 10**9
PATH = "/data/out/slurm-7.out"
FROM_START = Cursor()


class Store:
    """A store's stand-in, and the reader under test."""

    def __init__(self, kind: str, server: LogServer) -> None:
        self.kind, self.server = kind, server
        self.tenant = "0:0" if kind == "victorialogs" else "team"

    def logs(self, labels: dict[str, str] | None = None, tenant: str | None = None, **options: Any) -> HttpLogs:
        reading = options.pop("reading", Reading(page=64))
        now = options.pop("now", lambda: NOW)
        endpoint = Endpoint(self.server.url, **options)
        make: Callable[..., HttpLogs] = VictoriaLogs if self.kind == "victorialogs" else Loki
        labels = labels or {"filename": "{path}"}
        return make(endpoint, labels, tenant=tenant or self.tenant, reading=reading, now=now)

    def add(self, *lines: tuple[float, str], path: str = PATH, **labels: str) -> None:
        """Lines at seconds after the start."""
        stamped = [(START + round(at * SECOND), text) for at, text in lines]
        self.server.add(*stamped, tenant=self.tenant, filename=path, **labels)


@pytest.fixture(params=["victorialogs", "loki"])
async def store(request: pytest.FixtureRequest) -> AsyncIterator[Store]:
    async with log_server() as server:
        yield Store(request.param, server)


@pytest.fixture
async def logs(store: Store) -> AsyncIterator[HttpLogs]:
    async with store.logs() as logs:
        yield logs


async def follow(logs: Logs, cursor: Cursor = FROM_START, path: str = PATH, **bounds: int) -> tuple[list[str], Cursor]:
    """All that is there now."""
    lines: list[str] = []
    for _ in range(2000):
        chunk = await logs.read_new(path, cursor, **bounds)
        lines += chunk.lines
        cursor = chunk.cursor
        if not chunk.more:
            return lines, cursor
    raise AssertionError("no end")


def whole(logs: Logs, offset: int = 0) -> bytes:
    with logs.open(PATH, offset) as stream:
        return stream.read()


def test_both_are_logs(store: Store):
    """The type checker accepts them for the contract."""
    contract: Logs = store.logs()
    assert contract


async def test_lines_come_once(store: Store, logs: HttpLogs):
    """What is added comes once, with the same cursor as with a new reader."""
    store.add((0, "one"), (1, "two"))
    lines, cursor = await follow(logs)
    assert lines == ["one", "two"]
    assert await follow(logs, cursor) == ([], cursor)
    store.add((2, "three"))
    async with store.logs() as other:
        stored = Cursor(**cursor.model_dump())
        assert (await follow(other, stored))[0] == ["three"]


async def test_equal_stamps_across_reads_and_pages(store: Store, logs: HttpLogs):
    """Lines of one moment that arrive between reads, or lie across a page's end, come once each."""
    store.add(*((1, f"a{n}") for n in range(30)))
    lines, cursor = await follow(logs)
    store.add(*((1, f"b{n}") for n in range(10)), *((2, f"c{n}") for n in range(40)))
    more, cursor = await follow(logs, cursor)
    assert sorted(lines) == sorted(f"a{n}" for n in range(30))
    assert sorted(more) == sorted([*(f"b{n}" for n in range(10)), *(f"c{n}" for n in range(40))])
    assert (await follow(logs, cursor))[0] == []


async def test_late_lines(store: Store, logs: HttpLogs):
    """A line that arrives within the window comes; one that is later still is left to `open`."""
    store.add((100, "young"))
    _, cursor = await follow(logs)
    store.add((96, "late"), (94, "too late"))
    lines, cursor = await follow(logs, cursor)
    assert lines == ["late"]
    assert (await follow(logs, cursor))[0] == []
    assert await asyncio.to_thread(whole, logs) == b"too late\nlate\nyoung\n"


async def test_streams_of_many_ranks_are_one_log(store: Store, logs: HttpLogs):
    """Equal lines of several streams are several lines, in the order of time."""
    for rank in range(8):
        store.add((rank / 10, "step"), (5, "NCCL timeout"), rank=str(rank))
    lines, _ = await follow(logs)
    assert lines == ["step"] * 8 + ["NCCL timeout"] * 8


@pytest.fixture
def backlog(store: Store) -> int:
    """100,000 lines, 60 MB."""
    store.add(*((n / 1000, f"line {n} {'x' * 590}") for n in range(100_000)))
    return 100_000


async def test_a_backlog_is_caught_up_in_pages(store: Store, backlog: int):
    """100,000 lines: each once and in order, with no large chunk and no large cursor."""
    async with store.logs(reading=Reading(page=5000)) as logs:
        cursor, seen, more = Cursor(), 0, True
        while more:
            chunk = await logs.read_new(PATH, cursor)
            assert [line.split()[1] for line in chunk.lines] == [str(n) for n in range(seen, seen + len(chunk.lines))]
            assert len(chunk.lines) <= 5000
            assert len(chunk.cursor.mark) <= 8 * 512 + 16
            seen += len(chunk.lines)
            cursor, more = chunk.cursor, chunk.more
        assert seen == backlog


@pytest.mark.slow
async def test_a_long_log_is_scanned_in_bounded_memory(store: Store, backlog: int):
    """`open` holds a page, not the log; the stand-in's answers are counted in here."""

    def scan(logs: HttpLogs) -> tuple[int, int]:
        tracemalloc.start()
        with logs.open(PATH) as stream:
            return sum(1 for _ in stream), tracemalloc.get_traced_memory()[1]

    try:
        async with store.logs(reading=Reading(page=5000)) as logs:
            lines, peak = await asyncio.to_thread(scan, logs)
    finally:
        tracemalloc.stop()
    assert lines == backlog
    assert peak < 30 << 20
    assert len(store.server.asked) < 40


async def test_huge_lines(store: Store, logs: HttpLogs):
    """Long lines are cut for reading, pass in full to the scanner, and never keep the reader from going on."""
    store.add(*((n, f"{n}" + "\\" * 200_000) for n in range(60)), (60, "end"))
    lines, _ = await follow(logs)
    assert len(lines) == 61
    assert max(map(len, lines)) == 4096
    assert lines[-1] == "end"
    assert len(await asyncio.to_thread(whole, logs)) == sum(len(f"{n}") + 200_001 for n in range(60)) + 4


async def test_lines_are_bounded_in_bytes(store: Store, logs: HttpLogs):
    """A read takes no more than was asked for, but always something."""
    store.add(*((n, "y" * 500) for n in range(20)))
    first = await logs.read_new(PATH, Cursor(), max_bytes=2000)
    assert 1 <= len(first.lines) <= 4
    assert first.more
    assert len((await follow(logs, max_bytes=2000))[0]) == 20
    assert len((await follow(logs, max_bytes=1))[0]) == 20


async def test_lines_are_cleaned(store: Store, logs: HttpLogs):
    """Escapes and redrawings go, entries of several lines are several, blank ones stay, half characters do no harm."""
    store.add(
        (0, "\x1b[31mred\x1b[0m"), (1, " 1%|\r 2%|\r"), (2, "Traceback\n  File"), (3, ""), (4, "end\n"), (5, "\ud800")
    )
    lines, _ = await follow(logs)
    assert lines == ["red", " 2%|", "Traceback", "  File", "", "end", "?"]


async def test_from_the_end(store: Store, logs: HttpLogs):
    """Without a cursor the last page is read; what is older never comes."""
    store.add(*((n, str(n)) for n in range(200)))
    chunk = await logs.read_new(PATH, None)
    assert chunk.lines == tuple(str(n) for n in range(137, 200))
    store.add((199, "same moment"), (200, "next"))
    assert (await follow(logs, chunk.cursor))[0] == ["same moment", "next"]


async def test_a_cursor_of_a_file_begins_anew(store: Store, logs: HttpLogs):
    """A site that changes its log source reads each log from its first line."""
    store.add((0, "one"))
    chunk = await logs.read_new(PATH, Cursor(inode=5, offset=77, mark="abcdef"))
    assert (chunk.lines, chunk.restarted) == (("one",), True)


async def test_the_next_attempt_begins_where_the_last_ended(store: Store, logs: HttpLogs):
    """A cursor's offset opens the log behind what was read."""
    store.add((0, "first attempt"))
    _, cursor = await follow(logs)
    store.add((9, "second attempt"))
    assert await asyncio.to_thread(whole, logs, cursor.offset) == b"second attempt\n"


# --- what the store says ---


async def test_nothing_there_is_said_by_the_store_alone(store: Store, logs: HttpLogs):
    """No line at all is `LogNotFoundError`, and names the tenant; nothing new is an empty read."""
    with pytest.raises(LogNotFoundError, match=store.tenant):
        await logs.read_new(PATH, Cursor())
    with pytest.raises(LogNotFoundError):
        await logs.read_new(PATH, None)
    with pytest.raises(FileNotFoundError):
        await asyncio.to_thread(logs.open, PATH)
    with pytest.raises(LogNotFoundError):
        await logs.keep(PATH, "/nonexistent")
    store.add((0, "one"))
    lines, cursor = await follow(logs)
    assert lines == ["one"]
    assert (await logs.read_new(PATH, cursor)).lines == ()


async def test_a_wrong_tenant_behind_a_gateway(store: Store):
    """A refusal is not an empty log, and says what to check."""
    store.add((0, "one"))
    store.server.allowed = {store.tenant}
    wrong = "9:9" if store.kind == "victorialogs" else "others"
    async with store.logs(tenant=wrong) as logs:
        with pytest.raises(LogUnreadableError, match=f"{wrong}: check the tenant"):
            await logs.read_new(PATH, Cursor())


async def test_a_token_that_expires_and_is_renewed(store: Store, tmp_path: Path):
    """An expired token is said, without showing it; a renewed file is used at once, with no failed read."""
    token = tmp_path / "token"
    token.write_text("t0p-old\n")
    store.server.token = "t0p-old"
    store.add((0, "one"))
    async with store.logs(secret=token) as logs:
        lines, cursor = await follow(logs)
        store.server.token = "t0p-new"
        with pytest.raises(LogUnreadableError, match=r"does not accept the secret in .*token \(expired") as caught:
            await logs.read_new(PATH, cursor)
        assert "t0p" not in str(caught.value)
        token.write_text("t0p-new\n")
        assert (await logs.read_new(PATH, cursor)).lines == ()
        token.unlink()
        store.server.token = "t0p-next"
        with pytest.raises(LogUnreadableError, match="cannot be read"):
            await logs.read_new(PATH, cursor)
    assert lines == ["one"]


async def test_user_and_password(store: Store, tmp_path: Path):
    """Basic authentication, where a user is named."""
    secret = tmp_path / "password"
    secret.write_text("pä55")
    store.server.basic = "Basic cmVsaWdodDpww6Q1NQ=="
    store.add((0, "one"))
    async with store.logs(secret=secret, user="relight") as logs:
        assert (await follow(logs))[0] == ["one"]


@pytest.mark.parametrize(
    ("fault", "text"),
    [
        (says(500, "boom"), r"cannot answer \(wholly\) now \(status 500: boom\)"),
        (says(503, "starting"), "cannot answer"),
        (says(502, "vlstorage down"), "status 502"),
        (says(206), "status 206"),
        (says(404), "check the address"),
        (says(400, "parse error\x1b[31m"), r"refuses the question \(status 400: parse error\)"),
        (says(302, Location="http://login.invalid/"), "log in"),
        (says(200, "<html>Please log in</html>"), "Please log in"),
        (says(200, '{"error": "out of memory"}\n'), "out of memory"),
        (says(200, '{"status": "error", "error": "too many"}\n'), "too many"),
        (says(200, "[]\n"), "cut off, or none"),
        (says(200, '{"status": "success", "data": {"resultType": "streams", "result": [{}]}, "_time": 7}\n'), "none"),
        (cut(0.5), "http"),
        (cut(0.7, neatly=True), "cut off"),
        (cut(0.99, neatly=True), "cut off"),
        (garbage, "http"),
        (hang, r"within 0.5 s"),
    ],
)
async def test_a_failed_read_is_no_empty_read(store: Store, fault: Fault, text: str):
    """Whatever is no whole answer is `LogUnreadableError`; nothing is taken, and the next read goes on."""
    store.add((0, "one"), (1, "two"))
    async with store.logs(timeout=timedelta(seconds=0.5)) as logs:
        lines, cursor = await follow(logs)
        store.add((2, "three"))
        store.server.faults.append(fault)
        with pytest.raises(LogUnreadableError, match=text):
            await logs.read_new(PATH, cursor)
        store.server.faults.append(fault)
        with pytest.raises(OSError, match=text):
            await asyncio.to_thread(whole, logs)
        more, _ = await follow(logs, cursor)
    assert [*lines, *more] == ["one", "two", "three"]


async def test_reconnects(store: Store, logs: HttpLogs):
    """A kept connection that the store has closed is opened anew, once; what goes on failing is said."""
    store.add((0, "one"))
    _, cursor = await follow(logs)
    store.server.faults.append(reset)
    assert (await logs.read_new(PATH, cursor)).lines == ()
    store.server.faults += [reset, reset]
    with pytest.raises(LogUnreadableError, match="http"):
        await logs.read_new(PATH, cursor)
    assert (await logs.read_new(PATH, cursor)).lines == ()


async def test_unreachable(store: Store):
    """A store that is not there is unreadable; nothing is asked before it is entered or after it is left."""
    store.server.url = "http://127.0.0.1:9"
    logs = store.logs()
    with pytest.raises(LogUnreadableError, match="not connected"):
        await logs.read_new(PATH, Cursor())
    async with logs:
        with pytest.raises(LogUnreadableError, match=r"127\.0\.0\.1"):
            await logs.read_new(PATH, Cursor())
        with pytest.raises(OSError, match="other threads"):
            logs.open(PATH)
    with pytest.raises(LogUnreadableError, match="closed"):
        await logs.read_new(PATH, Cursor())
    with pytest.raises(OSError, match="before it is closed"):
        await asyncio.to_thread(logs.open, PATH)


@pytest.fixture
def certificate(tmp_path: Path) -> tuple[Path, Path]:
    """A certificate for 127.0.0.1 that signs itself, and its key."""
    command = "openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -subj /CN=logs -days 2 -addext"
    cert, key = tmp_path / "cert.pem", tmp_path / "key.pem"
    names = ["subjectAltName=IP:127.0.0.1", "-keyout", str(key), "-out", str(cert)]
    try:
        subprocess.run([*command.split(), *names], check=True, capture_output=True)
    except FileNotFoundError:
        pytest.skip("openssl is not installed")
    return cert, key


async def test_tls(certificate: tuple[Path, Path]):
    """A certificate that the system does not know is trusted where the site says so, and else said in one line."""
    tls = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    tls.load_cert_chain(*certificate)
    async with log_server(tls) as server:
        store = Store("loki", server)
        store.add((0, "one"))
        async with store.logs(ca=certificate[0]) as logs:
            assert (await follow(logs))[0] == ["one"]
        async with store.logs() as logs:
            with pytest.raises(
                LogUnreadableError, match="no TLS connection that can be trusted: self-signed"
            ) as caught:
                await logs.read_new(PATH, Cursor())
        assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("status", "after", "pause"),
    [
        (429, "3", 3),
        (429, "Sat, 10 Jan 2026 00:00:03 GMT", 3),
        (429, "soon", 1),
        (429, "100000", 60),
        (503, "3", 3),
    ],
)
async def test_a_rate_limit_is_respected(store: Store, logs: HttpLogs, status: int, after: str, pause: int):
    """After a 429 nothing is asked until the store wants to be asked again: in seconds, or at a time by its clock."""
    clock = 100.0
    logs._store._monotonic = lambda: clock
    store.add((0, "one"))
    date = "Sat, 10 Jan 2026 00:00:00 GMT"
    store.server.faults.append(says(status, "slow down", Retry_After=after, Date=date))
    for _ in range(3):
        with pytest.raises(LogUnreadableError, match=f"in {pause} s"):
            await logs.read_new(PATH, Cursor())
    assert len(store.server.asked) == 1
    clock += pause + 0.1
    assert (await follow(logs))[0] == ["one"]


async def test_clocks_that_differ(store: Store):
    """Neither our clock nor the stamps' being hours apart loses lines; stamps of the future are read too."""
    store.add((0, "one"))
    for hours in (-5, 5):
        async with store.logs(now=lambda hours=hours: NOW + timedelta(hours=hours)) as logs:
            lines, cursor = await follow(logs)
            assert lines == ["one"]
            store.add((0, f"{hours}"))
            assert (await follow(logs, cursor))[0] == [f"{hours}"]
            store.server.kept[store.tenant].pop()
            assert await asyncio.to_thread(whole, logs) == b"one\n"


# --- which log ---


HOSTILE = [
    '/out/a"} or {job="b".out',
    "/out/back\\slash\\",
    "/out/new\nline",
    "/out/tab\tnul\x00esc\x1b",
    "/out/{job_id}{path}",
    "/out/`x` | stats count()",
    "/out/ünïcode \u200b \u2028 🦊",
    "/out/%22%7D&job_id=1",
]


@pytest.mark.parametrize("path", HOSTILE)
async def test_hostile_paths_select_their_own_log(store: Store, logs: HttpLogs, path: str):
    """Whatever a user names his file, the query selects that file's lines and no others."""
    store.add((0, "theirs"), path="b")
    store.add((0, "theirs too"), path="/out/back", job="b")
    store.add((1, "his"), path=path)
    assert (await follow(logs, path=path))[0] == ["his"]


TEXT = st.text(st.characters(exclude_categories=("Cs",)), min_size=1)


@given(TEXT, TEXT, st.lists(TEXT, min_size=1, max_size=4))
def test_any_text_is_one_string_of_the_query(text: str, other: str, values: list[str]):
    """The stand-in's strict parser reads back what was put in; an expression matches its values and no others."""
    from relight.clients.logs_loki import _selector

    from .fake_log_servers import matchers

    assert matchers(_selector({"a": text, "b": "2"})[1:-1]) == [("a", re.escape(text)), ("b", "2")]
    [first, (name, expression)] = matchers(_selector({"a": text, "by": values[0]}, "by", values)[1:-1])
    assert (first, name) == (("a", re.escape(text)), "by")
    for value in (*values, other):
        assert bool(re.fullmatch(expression, value)) == (value in values)


async def test_labels_of_the_job(store: Store):
    """A log is found by the job's fields where the labels say so; a missing one is said, never left out."""
    store.server.add((START, "mine"), tenant=store.tenant, job_id="7", cluster="main")
    store.server.add((START, "other"), tenant=store.tenant, job_id="8", cluster="main")
    store.server.add((START, "none"), tenant=store.tenant, cluster="main")
    async with store.logs({"job_id": "{job_id}", "cluster": "main"}) as logs:
        assert (await follow(logs, path=reference(job_id="7", node='n"1')))[0] == ["mine"]
        for path in (PATH, reference(job_id=""), reference(job_name="7")):
            with pytest.raises(LogUnreadableError, match="job_id"):
                await logs.read_new(path, Cursor())


async def test_a_path_that_is_no_text(store: Store, logs: HttpLogs):
    """A name that is not UTF-8 is in no store."""
    with pytest.raises(LogNotFoundError, match="UTF-8"):
        await logs.read_new("/out/\udcff", Cursor())


@pytest.mark.parametrize("labels", [{"cluster": "main"}, {"job_id": "{job_id}", "cluster": ""}, {}])
def test_labels_that_select_too_much(store: Store, labels: dict[str, str]):
    """Labels that cannot tell a job's log from another's are refused at the start."""
    with pytest.raises(ValueError, match="label"):
        store.logs(labels or {"": ""})


@pytest.mark.parametrize("url", ["logs.example.org", "ftp://x", "https://u:p@logs", "http://"])
def test_addresses(store: Store, url: str):
    """An address is http or https, and holds no password."""
    store.server.url = url
    with pytest.raises(ValueError, match=r"http|password"):
        store.logs()


# --- copies ---


async def test_a_copy(store: Store, logs: HttpLogs, tmp_path: Path):
    """A log is kept whole, in a file of ours alone."""
    store.add(*((n, f"line {n}") for n in range(300)))
    copy = Path(await logs.keep(PATH, str(tmp_path / "kept")))
    assert copy.read_text() == "".join(f"line {n}\n" for n in range(300))
    assert copy.name.startswith("slurm-7.out.")
    assert stat.S_IMODE(copy.stat().st_mode) == 0o600
    assert stat.S_IMODE(copy.parent.stat().st_mode) == 0o700
    assert list(copy.parent.iterdir()) == [copy]


async def test_a_copy_of_head_and_tail(store: Store, logs: HttpLogs, tmp_path: Path):
    """Of a long log the first and last lines are kept, and the gap is said; no line is there twice."""
    store.add(*((n // 3, f"line {n}") for n in range(1000)))
    lines = Path(await logs.keep(PATH, str(tmp_path), head=600, tail=1200)).read_text().splitlines()
    gap = lines.index("[relight: lines left out here]")
    assert sorted(lines[:gap]) == sorted(f"line {n}" for n in range(gap))
    assert sorted(lines[gap + 1 :]) == sorted(f"line {n}" for n in range(1001 + gap - len(lines), 1000))
    assert 600 <= sum(len(line) + 1 for line in lines[:gap]) < 600 + 64 * 9
    assert 1200 <= sum(len(line) + 1 for line in lines[gap + 1 :]) < 1200 + 64 * 9


async def test_a_copy_that_fails_leaves_nothing(store: Store, logs: HttpLogs, tmp_path: Path):
    """Where a page is missing there is no copy that looks whole."""
    store.add(*((n, f"line {n}") for n in range(100)))

    async def pass_on(request: Any, body: bytes) -> Any:
        from aiohttp import web

        return web.Response(body=body)

    store.server.faults += [pass_on, says(503)]
    with pytest.raises(LogUnreadableError):
        await logs.keep(PATH, str(tmp_path))
    assert list(tmp_path.iterdir()) == []


async def test_how_far_ahead(store: Store, logs: HttpLogs):
    """Lines since the cursor, roughly in bytes; nothing where there is nothing, and a failed count is no count."""
    assert await logs.ahead(PATH, Cursor()) == 0
    store.add(*((n, "x" * LINE_BYTES) for n in range(3)))
    _, cursor = await follow(logs)
    store.add((3, "y" * LINE_BYTES), (4, "z" * LINE_BYTES))
    assert await logs.ahead(PATH, cursor) == 2 * LINE_BYTES
    assert await logs.ahead(PATH, Cursor()) == await logs.size(PATH) == 5 * LINE_BYTES
    store.server.faults.append(says(200, "{}\n"))
    with pytest.raises(LogUnreadableError):
        await logs.ahead(PATH, cursor)
