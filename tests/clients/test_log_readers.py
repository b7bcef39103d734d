"""Logs are read by a process for each file system; one that does not answer is given up, and blinds only its own.

No file system here can be made to hang: a process that is stopped (SIGSTOP), or whose look at a file is made to last,
stands for one in a call that does not return. Two folders stand for two mounts.
"""

import asyncio
import os
import signal
import sys
from collections.abc import AsyncIterator
from datetime import timedelta
from pathlib import Path

import psutil
import pytest

from relight.clients import log_reader, log_reader_process, log_readers
from relight.clients.log_readers import LogReaders, mount_of, parse_mounts
from relight.clients.logs import Asked, Chunk, Cursor, LogNotFoundError, LogUnreadableError

MOUNTINFO = """\
22 1 8:1 / / rw,relatime shared:1 - ext4 /dev/sda1 rw
30 22 0:40 / /nfs/a rw shared:2 - nfs4 filer:/a rw,hard
31 22 0:41 / /nfs/b\\040c rw - nfs filer:/b rw
32 22 0:42 / /nfs2 rw - nfs4 [fe80::1]:/x rw
33 22 0:43 / /scratch rw master:1 propagate_from:2 - lustre mgs@tcp:/fs rw
broken
"""
TIMEOUT = timedelta(seconds=3)


@pytest.mark.parametrize(
    ("path", "place"),
    [
        ("/home/ann/x.out", "/"),
        ("/nfs/a/x.out", "NFS server filer"),
        ("/nfs/a", "NFS server filer"),
        ("/nfs/b c/deep/er/x.out", "NFS server filer"),
        ("/nfs/ab/x.out", "/"),
        ("/nfs2/x.out", "NFS server [fe80::1]"),
        ("/scratch/x.out", "/scratch"),
        ("/scratch", "/scratch"),
    ],
)
def test_the_mount_of_a_path(path, place):
    """The longest mount point that it begins with; NFS by its server, since homes may be a mount each."""
    assert mount_of(path, parse_mounts(MOUNTINFO)).place == place


def test_without_mounts_all_is_one():
    """Where nothing is told."""
    assert mount_of("/x/y", parse_mounts("")).place == "/"


class Mounts:
    """Two folders, `a` and `b`, that stand for two mounts, and the readers of both."""

    def __init__(self, folder: Path, logs: LogReaders) -> None:
        self.a, self.b, self.logs = folder / "a", folder / "b", logs

    async def read(self, *paths: Path, far: int | None = None):
        return await self.logs.read_many([Asked(str(path), Cursor(), far) for path in paths])

    def process(self, folder: Path) -> psutil.Process:
        process = self.logs._readers[str(folder)]._process
        assert process
        return psutil.Process(process.pid)


@pytest.fixture
async def mounts(tmp_path: Path) -> AsyncIterator[Mounts]:
    info = tmp_path / "mountinfo"
    info.write_text(
        "".join(f"1 0 0:1 / {point} rw - ext4 /dev/x rw\n" for point in ("/", tmp_path / "a", tmp_path / "b"))
    )
    async with LogReaders(timeout=TIMEOUT, mountinfo=info) as logs:
        made = Mounts(tmp_path, logs)
        for folder in (made.a, made.b):
            folder.mkdir()
            (folder / "1.out").write_text("one\ntwo\n")
        yield made


def lines(found):
    assert isinstance(found, Chunk), found
    return found.lines


async def test_each_mount_has_a_process(mounts):
    """It costs a few MiB, holds no file open and stands in no mount, and ends with its owner."""
    found = await mounts.read(mounts.a / "1.out", mounts.b / "1.out")
    assert [lines(each) for each in found] == [("one", "two")] * 2
    first, second = mounts.process(mounts.a), mounts.process(mounts.b)
    assert first.pid != second.pid
    assert (first.cwd(), first.open_files()) == ("/", [])
    assert first.memory_full_info().uss < 20 << 20
    await mounts.read(mounts.a / "1.out")
    assert mounts.process(mounts.a) == first
    await mounts.logs.__aexit__()
    assert not any(each.is_running() and each.status() != psutil.STATUS_ZOMBIE for each in (first, second))


async def test_a_mount_that_does_not_answer_blinds_only_its_own(mounts):
    """It is given up after the time-out and its process killed; others answer meanwhile, and it is tried again."""
    paths = mounts.a / "1.out", mounts.b / "1.out"
    await mounts.read(*paths)
    stopped = mounts.process(mounts.a)
    stopped.suspend()
    waiting = asyncio.create_task(mounts.read(mounts.a / "1.out", mounts.a / "2.out"))
    assert lines(*(await mounts.read(mounts.b / "1.out"))) == ("one", "two")
    assert not waiting.done()
    for found, name in zip(await waiting, ("1.out", "2.out"), strict=True):
        assert isinstance(found, LogUnreadableError)
        assert str(found) == f"{mounts.a}/{name}: {mounts.a} did not answer within 3 s"
    await mounts.logs._readers[str(mounts.a)]._process.wait()
    (found,) = await mounts.read(mounts.a / "1.out")
    assert isinstance(found, LogUnreadableError)
    assert "left alone" in str(found)
    mounts.logs._readers[str(mounts.a)]._again = 0.0  # the while is over
    assert lines(*(await mounts.read(mounts.a / "1.out"))) == ("one", "two")


async def test_while_the_kernel_holds_a_process_there_is_no_other(mounts, monkeypatch):
    """A killed process may not go: simulated, the kill does nothing until the file system answers again."""
    await mounts.read(mounts.a / "1.out")
    held = mounts.process(mounts.a)
    held.suspend()
    with monkeypatch.context() as patch:
        patch.setattr(asyncio.subprocess.Process, "kill", lambda _: None)
        await mounts.read(mounts.a / "1.out")
        mounts.logs._readers[str(mounts.a)]._again = 0.0
        for _ in range(3):
            (found,) = await mounts.read(mounts.a / "3.out")
            assert isinstance(found, LogUnreadableError)
            assert "still does not answer" in str(found)
        assert mounts.process(mounts.a) == held
    held.send_signal(signal.SIGKILL)
    reader = mounts.logs._readers[str(mounts.a)]
    await reader._process.wait()
    (mounts.a / "3.out").write_text("three\n")
    assert lines(*(await mounts.read(mounts.a / "3.out"))) == ("three",)


HANGS = """
import os, runpy, sys, time
look = os.lstat
os.lstat = lambda path: time.sleep(600) if "hang" in path else look(path)
sys.argv = [{program!r}, *sys.argv[1:]]
runpy.run_path({program!r}, run_name="__main__")
"""


async def test_a_file_at_which_its_process_hung_is_left_out(mounts):
    """For longer than the mount itself: it may hang alone, and the others are to be read. Simulated."""
    paths = [mounts.a / name for name in ("1.out", "hang.out", "2.out")]
    (mounts.a / "2.out").write_text("2\n")
    reader = mounts.logs._reader(str(mounts.a), str(mounts.a))
    reader._command = (sys.executable, "-c", HANGS.format(program=log_reader.__file__), *reader._command[4:])
    assert all(isinstance(found, LogUnreadableError) for found in await mounts.read(*paths))
    await reader._process.wait()
    reader._again = 0.0
    first, hung, last = await mounts.read(*paths)
    assert (lines(first), lines(last)) == (("one", "two"), ("2",))
    assert isinstance(hung, LogUnreadableError)
    assert "did not answer there" in str(hung)


async def test_a_link_is_read_by_the_process_of_where_it_leads(mounts):
    """A mount that hangs is not touched by another's process, however it is reached."""
    (mounts.a / "link.out").symlink_to(mounts.b / "1.out")
    (mounts.a / "folder").symlink_to("../b")
    chunk = await mounts.logs.read_new(str(mounts.a / "link.out"), Cursor())
    assert chunk.lines == ("one", "two")
    assert (await mounts.logs.read_new(f"{mounts.a}/folder/./1.out", Cursor())).lines == ("one", "two")
    assert (await mounts.logs.read_new(f"{mounts.a}/../b/1.out", Cursor())).lines == ("one", "two")
    assert mounts.logs.place(str(mounts.a / "link.out")) == str(mounts.b)
    mounts.process(mounts.b).suspend()
    through, own = await mounts.read(mounts.a / "link.out", mounts.a / "1.out")
    assert isinstance(through, LogUnreadableError)
    assert lines(own) == ("one", "two")


async def test_a_link_that_leads_elsewhere_now_is_followed(mounts):
    """After a while it is looked at again."""
    link = mounts.a / "latest.out"
    link.symlink_to(mounts.b / "1.out")
    cursor = (await mounts.logs.read_new(str(link), Cursor())).cursor
    link.unlink()
    (mounts.a / "2.out").write_text("2\n")
    link.symlink_to("2.out")
    mounts.logs._links = {path: (target, 0.0) for path, (target, _) in mounts.logs._links.items()}
    chunk = await mounts.logs.read_new(str(link), cursor)
    assert (chunk.lines, chunk.restarted) == (("2",), True)


async def test_links_in_a_circle_are_unreadable(mounts):
    """As the kernel has it."""
    for name, to in (("x", "y"), ("y", "z"), ("z", "x")):
        (mounts.a / name).symlink_to(mounts.a / to)
    with pytest.raises(LogUnreadableError, match="too many"):
        await mounts.logs.read_new(str(mounts.a / "x"), None)


async def test_a_file_that_is_as_it_was_says_nothing_new(mounts):
    """Until it grows, or is written anew with the same length."""
    path = mounts.a / "1.out"
    (first,) = await mounts.read(path)
    assert isinstance(first, Chunk)
    again = await mounts.logs.read_many([Asked(str(path), first.cursor)])
    assert again == [Chunk(lines=(), cursor=first.cursor)]
    os.utime(path, ns=(0, 0))
    path.write_text("ONE\nTWO\n")
    (anew,) = await mounts.logs.read_many([Asked(str(path), first.cursor)])
    assert (lines(anew), anew.restarted) == (("ONE", "TWO"), True)


async def test_answers_are_bounded(mounts):
    """Of much that is new a part comes; asked again for what was not come to, every line comes once."""
    paths = []
    for number in range(5):
        paths.append(mounts.a / f"big-{number}.out")
        paths[-1].write_text("".join(f"{number} {line:0100d}\n" for line in range(6000)))
    cursors = dict.fromkeys(paths, Cursor())
    came: dict[Path, list[str]] = {path: [] for path in paths}
    rounds = 0
    while cursors:
        found = await mounts.logs.read_many([Asked(str(path), at) for path, at in cursors.items()])
        assert isinstance(found[0], Chunk)
        assert sum(len(line) for each in found if each for line in each.lines) < 2 * log_reader.ANSWER
        for path, each in zip(list(cursors), found, strict=True):
            if each is not None:
                came[path] += lines(each)
                cursors.pop(path) if not each.more else cursors.update({path: each.cursor})
        rounds += 1
    assert rounds > 2
    for number, path in enumerate(paths):
        assert came[path] == [f"{number} {line:0100d}" for line in range(6000)]


@pytest.mark.parametrize("threads", [True, False])
async def test_what_is_far_ahead_is_read_near_its_end(mounts, threads):
    """The last so many bytes, and said so; where less lies ahead, all of it."""
    path = mounts.a / "long.out"
    path.write_text("".join(f"line {number:03d}\n" for number in range(100)))
    logs = log_readers.LogFiles() if threads else mounts.logs
    (far, near) = await logs.read_many([Asked(str(path), Cursor(), 18), Asked(str(path), Cursor(), 900)])
    assert far.skipped
    assert far.lines[-2:] == ("line 098", "line 099")
    assert threads or len(far.lines) == 2
    assert (len(near.lines), near.skipped) == (100, False)
    assert await logs.ahead(str(path), near.cursor) == 0
    assert await logs.ahead(str(path), Cursor()) == 900
    path.write_text("other\n" * 10)
    assert await logs.ahead(str(path), near.cursor) == 60


async def test_a_process_that_was_killed_is_replaced(mounts):
    """By whomever: nothing is lost, the cursors are not its."""
    (first,) = await mounts.read(mounts.a / "1.out")
    mounts.process(mounts.a).kill()
    await mounts.logs._readers[str(mounts.a)]._process.wait()
    with (mounts.a / "1.out").open("a") as file:
        file.write("three\n")
    (more,) = await mounts.logs.read_many([Asked(str(mounts.a / "1.out"), first.cursor)])
    assert lines(more) == ("three",)


async def test_a_reader_that_is_given_up_answers_nobody_else(mounts):
    """A late answer is not taken for that to the next question."""
    await mounts.read(mounts.a / "1.out")
    mounts.process(mounts.a).suspend()
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(mounts.read(mounts.a / "1.out"), 0.1)
    await mounts.logs._readers[str(mounts.a)]._process.wait()
    (missing,) = await mounts.read(mounts.a / "none.out")
    assert isinstance(missing, LogNotFoundError)


async def test_who_is_asked_nothing_for_long_ends(mounts, monkeypatch):
    """And begins anew when it is asked."""
    await mounts.read(mounts.a / "1.out")
    process = mounts.process(mounts.a)
    monkeypatch.setattr(log_reader_process, "IDLE", -1.0)
    monkeypatch.setattr(log_readers, "LOOK_AGAIN", -1.0)
    await mounts.read(mounts.b / "1.out")
    await asyncio.to_thread(process.wait, 10)
    monkeypatch.undo()
    assert lines(*(await mounts.read(mounts.a / "1.out"))) == ("one", "two")
