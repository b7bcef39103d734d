# ruff: noqa: ASYNC240  the files under test are small and local
"""Files that grow: every line once, whatever is done to the file meanwhile."""

import asyncio
import os
import socket
import stat
import threading
import time
from collections.abc import AsyncIterator
from datetime import timedelta
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from relight.clients.log_files import LogFiles, plain, split
from relight.clients.log_readers import LogReaders
from relight.clients.logs import Chunk, Cursor, LogNotFoundError, Logs, LogUnreadableError

logs = LogFiles()


def add(path: Path, data: bytes) -> None:
    with path.open("ab") as file:
        file.write(data)


@pytest.fixture
async def readers(tmp_path: Path) -> AsyncIterator[LogReaders]:
    """Reads by processes; has a private folder."""
    async with LogReaders(private=(tmp_path / "secret",)) as made:
        yield made


@pytest.fixture(params=["local", "processes", "sftp"])
def where(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> str:
    """Where the files are, and who reads them: on this machine threads or processes, or threads behind a real sshd."""
    if request.param == "processes":
        made = request.getfixturevalue("readers")
    else:
        files = None if request.param == "local" else request.getfixturevalue("sftp")
        made = LogFiles(files=files, private=(tmp_path / "secret",))
    monkeypatch.setitem(globals(), "logs", made)
    return str(request.param)


@pytest.fixture
def log(where: str, tmp_path: Path) -> Path:
    return tmp_path / "slurm-1.out"


async def follow(path: Path, cursor: Cursor | None = None, **bounds: int) -> Chunk:
    return await logs.read_new(str(path), cursor, **bounds)


def test_it_is_logs():
    """The type checker accepts it for the contract."""
    contract: Logs = logs
    assert contract


async def test_lines_come_once_and_whole(log: Path):
    """What is appended comes once; a line without its end waits for it."""
    add(log, b"one\ntwo\nthr")
    first = await follow(log)
    assert (first.lines, first.restarted, first.more) == (("one", "two"), False, False)
    assert first.cursor.offset == 8
    again = await follow(log, first.cursor)
    assert (again.lines, again.cursor) == ((), first.cursor)
    add(log, b"ee\r\nfour\n")
    assert (await follow(log, first.cursor)).lines == ("three", "four")


async def test_the_end_of_a_long_file_begins_at_a_line(log: Path):
    """With no cursor reading begins at the first line within the bound, also where the bound cuts exactly."""
    add(log, b"".join(b"line %03d\n" % n for n in range(100)))
    for bound in (9, 13, 17, 18, 19):
        assert (await follow(log, max_bytes=bound)).lines[-1:] == (("line 099",) if bound >= 9 else ())
    assert (await follow(log, max_bytes=18)).lines == ("line 098", "line 099")
    assert (await follow(log, max_bytes=17)).lines == ("line 099",)
    assert len((await follow(log, Cursor())).lines) == 100


async def test_reads_are_bounded_and_say_that_there_is_more(log: Path):
    """A large backlog comes in parts, nothing lost or twice between them."""
    add(log, b"".join(b"%d\n" % n for n in range(5000)))
    lines: list[str] = []
    chunk = await follow(log, Cursor(), max_bytes=1000)
    lines += chunk.lines
    while chunk.more:
        chunk = await follow(log, chunk.cursor, max_bytes=1000)
        lines += chunk.lines
    assert lines == [str(n) for n in range(5000)]


async def test_truncation_and_replacement_begin_anew(log: Path, where: str):
    """A shorter file and another file under the name are both read from their start, and said so.

    SFTP tells no inode: there it must differ in what was read before.
    """
    head = b"w" if where == "sftp" else b"x"
    add(log, b"a\nb\nc\n")
    cursor = (await follow(log)).cursor
    log.write_bytes(b"x\n")
    chunk = await follow(log, cursor)
    assert (chunk.lines, chunk.restarted) == (("x",), True)
    other = log.with_suffix(".new")
    other.write_bytes(head + b"\ny\nz\n")
    other.rename(log)
    chunk = await follow(log, chunk.cursor)
    assert (chunk.lines, chunk.restarted) == ((head.decode(), "y", "z"), True)


async def test_a_file_emptied_and_grown_again_begins_anew(log: Path):
    """A requeued job's output that has outgrown the cursor between two reads is not taken for the old one."""
    add(log, b"attempt 1\n" * 10)
    cursor = (await follow(log)).cursor
    log.write_bytes(b"attempt 2\n" * 20)
    chunk = await follow(log, cursor)
    assert chunk.restarted
    assert chunk.lines == ("attempt 2",) * 20


async def test_an_emptied_file_with_a_writer_at_its_old_place(log: Path):
    """The run of NULs that such a file begins with is no text."""
    add(log, b"\x00" * 3_000_000 + b"step 7\n")
    chunk = await follow(log, Cursor(), max_bytes=1 << 20)
    lines = [*chunk.lines]
    while chunk.more:
        chunk = await follow(log, chunk.cursor, max_bytes=1 << 20)
        lines += chunk.lines
    assert [line for line in lines if line] == ["step 7"]


async def test_a_progress_bar_yields_its_newest_state_without_a_newline(log: Path):
    """The newest redrawing that is complete comes at once, older ones never, and nothing is held back for ever."""
    add(log, b"start\n\r  1%|# |\r  2%|# |\r  3%|")
    chunk = await follow(log)
    assert chunk.lines == ("start", "  2%|# |")
    add(log, b"# |\r  4%|# |\r  5%")
    chunk = await follow(log, chunk.cursor)
    assert chunk.lines == ("  4%|# |",)
    add(log, b"|# |\r100%|##|\ndone\r\n")
    assert (await follow(log, chunk.cursor)).lines == ("100%|##|", "done")


async def test_a_line_end_in_two_reads_is_one(log: Path):
    """CR and LF read apart do not make an empty line."""
    add(log, b"one\r")
    chunk = await follow(log)
    assert chunk.lines == ("one",)
    add(log, b"\ntwo\n")
    assert (await follow(log, chunk.cursor)).lines == ("two",)


async def test_a_line_without_end_comes_in_pieces(log: Path):
    """More than 1 MiB without a newline is not waited for, and a single line is cut at 4,096 characters."""
    add(log, b"x" * (1 << 20))
    chunk = await follow(log)
    assert [len(line) for line in chunk.lines] == [4096]
    assert chunk.cursor.offset == 1 << 20
    add(log, b"tail\n")
    assert (await follow(log, chunk.cursor)).lines == ("tail",)


@pytest.mark.parametrize(
    ("raw", "shown"),
    [
        (b"\x1b[1;31mERROR\x1b[0m bad", "ERROR bad"),
        (b"\x1b]0;title\x07text", "text"),
        (b"\x1b]8;;http://x\x1b\\link\x1b]8;;\x1b\\", "link"),
        (b"\x1b(Bplain\x1b=", "plain"),
        (b"a\x00b\x07c\x7fd\te", "abcd\te"),
        (b"caf\xe9 \xe2\x9c\x93 \xff", "caf� ✓ �"),
        ("safe\u202eevil".encode(), "safeevil"),
        (b"10%\r20%\r30%\r", "30%"),
        (b"\x1b]" * 4, "]]]]"),
        (b"", ""),
    ],
)
def test_lines_are_made_plain(raw: bytes, shown: str):
    """Escapes and controls are taken out, what is not UTF-8 is replaced, the last redrawing stays."""
    assert plain(raw) == shown


def test_hostile_lines_take_linear_time():
    """Lines made of nothing but escape openings do not stop the reader."""
    began = time.monotonic()
    for opening in (b"\x1b]", b"\x1b[", b"\x1b[0;", b"\x1b]x", b"\x1b "):
        split((opening * 10_000 + b"\n") * 20)
    assert time.monotonic() - began < 2


@given(st.binary(max_size=300), st.lists(st.integers(0, 300), max_size=5))
def test_however_a_file_is_read_its_lines_are_the_same(data: bytes, cuts: list[int]):
    """Reading in parts gives the lines of reading at once, but for redrawings shown in between."""
    data = data.replace(b"\r", b"")
    whole, parts, rest = split(data), [], b""
    edges = [0, *sorted(min(c, len(data)) for c in cuts), len(data)]
    for begin, end in pairwise(edges):
        rest += data[begin:end]
        found = split(rest)
        parts += found.lines
        rest = rest[found.consumed :]
    assert tuple(parts) == whole.lines
    assert rest == data[whole.consumed :]


@given(st.binary(max_size=300))
def test_nothing_that_is_printed_survives_as_a_control(data: bytes):
    """Whatever the bytes, a line has no control characters and never raises."""
    for line in split(data, whole_at=1).lines:
        assert "\x1b" not in line
        assert all(c == "\t" or ord(c) >= 32 for c in line)


async def test_what_is_not_a_regular_file_is_unreadable(tmp_path: Path, where: str):
    """A FIFO, a socket, a folder, a device: said at once, never waited for. SFTP calls a loop of links no file."""
    os.mkfifo(tmp_path / "fifo")
    (tmp_path / "loop").symlink_to(tmp_path / "loop")
    with socket.socket(socket.AF_UNIX) as sock:
        sock.bind(str(tmp_path / "sock"))
        loop = [] if where == "sftp" else [tmp_path / "loop"]
        for strange in (tmp_path / "fifo", tmp_path / "sock", tmp_path, Path("/dev/zero"), *loop):
            with pytest.raises(LogUnreadableError):
                await follow(strange)
            with pytest.raises(LogUnreadableError):
                await logs.size(str(strange))
            with pytest.raises(LogUnreadableError):
                await logs.keep(str(strange), str(tmp_path / "kept"))


@pytest.mark.usefixtures("where")
async def test_a_missing_file_is_not_found(tmp_path: Path):
    """No file, a link to nowhere, a file where a folder should be, an impossible path."""
    (tmp_path / "link").symlink_to(tmp_path / "nowhere")
    (tmp_path / "file").touch()
    for missing in (tmp_path / "none", tmp_path / "link", tmp_path / "file" / "x", tmp_path / "a\x00b"):
        with pytest.raises(LogNotFoundError):
            await follow(missing)


@pytest.mark.usefixtures("where")
async def test_links_are_followed_but_not_into_private_folders(tmp_path: Path):
    """A link to a log is a log; a job's output linked to the ledger's key is not read."""
    (tmp_path / "secret").mkdir()
    (tmp_path / "secret" / "key").write_text("hush\n")
    (tmp_path / "log").write_text("fine\n")
    for name, to in (("good", "log"), ("bad", "secret/key")):
        (tmp_path / name).symlink_to(tmp_path / to)
    assert (await follow(tmp_path / "good")).lines == ("fine",)
    with pytest.raises(LogUnreadableError, match="private"):
        await follow(tmp_path / "bad")
    with pytest.raises(LogUnreadableError, match="private"):
        await logs.keep(str(tmp_path / "bad"), str(tmp_path / "kept"))


async def test_size(log: Path):
    """Bytes, as they are now."""
    add(log, b"12345")
    assert await logs.size(str(log)) == 5


async def test_a_kept_copy_has_head_and_tail(log: Path, tmp_path: Path):
    """A long file is kept as its two ends with the gap said, for the owner's eyes only, and the source stays."""
    add(log, b"H" * 100 + b"-" * 5000 + b"T" * 50)
    kept = Path(await logs.keep(str(log), str(tmp_path / "keep"), head=100, tail=50))
    assert kept.read_bytes() == b"H" * 100 + b"\n[relight: 5000 bytes left out here]\n" + b"T" * 50
    assert stat.S_IMODE(kept.stat().st_mode) == 0o600
    assert stat.S_IMODE(kept.parent.stat().st_mode) == 0o700
    assert log.stat().st_size == 5150
    log.write_bytes(b"")
    assert kept.stat().st_size > 150  # a copy of its own


async def test_copies_never_collide(log: Path, tmp_path: Path):
    """A short file is kept whole; each copy has its own name, also of names that no path may have."""
    strange = tmp_path / ("ünï cödé " * 12)
    for path in (log, strange):
        add(path, b"short\n")
        kept = {await logs.keep(str(path), str(tmp_path / "keep")) for _ in range(3)}
        assert len(kept) == 3
        assert {Path(k).read_bytes() for k in kept} == {b"short\n"}
    assert len([*(tmp_path / "keep").iterdir()]) == 6


async def test_a_copy_that_cannot_be_made_leaves_nothing(log: Path, tmp_path: Path):
    """A folder that is a file raises the log's own error."""
    add(log, b"x\n")
    (tmp_path / "flat").touch()
    with pytest.raises(LogUnreadableError):
        await logs.keep(str(log), str(tmp_path / "flat"))


async def test_a_hung_file_system_is_given_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """A read that hangs ends with an error in time, its folder is not tried again meanwhile, others are."""
    log = tmp_path / "slurm-1.out"
    add(log, b"x\n")
    heal = threading.Event()
    pread = os.pread

    def hang(fd: int, count: int, offset: int) -> bytes:
        heal.wait(10)
        return pread(fd, count, offset)

    quick = LogFiles(timeout=timedelta(seconds=0.1))
    monkeypatch.setattr(os, "pread", hang)
    began = time.monotonic()
    with pytest.raises(LogUnreadableError, match="did not answer"):
        await quick.read_new(str(log), None)
    with pytest.raises(LogUnreadableError, match="still"):
        await quick.size(str(log))
    assert time.monotonic() - began < 2
    other = log.parent / "other"
    other.mkdir()
    add(other / "log", b"12")
    assert await quick.size(str(other / "log")) == 2
    heal.set()
    monkeypatch.undo()
    for _ in range(100):
        try:
            assert (await quick.read_new(str(log), None)).lines == ("x",)
            break
        except LogUnreadableError:
            await asyncio.sleep(0.02)
    else:
        pytest.fail("a file system that answers again is read again")
