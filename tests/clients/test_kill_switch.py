"""The kill switch: a yes, a no, or not known; whatever else in the process, or in its file system, stands still."""

import asyncio
import os
import sqlite3
import threading
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from relight.clients import kill_switch
from relight.clients.kill_switch import KillSwitchUnknownError, killed
from relight.clients.ledger_sql import SqlLedger
from relight.clients.log_files import Bounded
from relight.domain.ledger import Change, Entry, RowKind


@pytest.fixture
def file(tmp_path):
    """Where the kill switch is looked for; it is not there."""
    return tmp_path / "KILL"


@pytest.fixture
def hanging(monkeypatch):
    """Lets calls of a method of `Path` hang (simulated: each waits for an event) until it is told otherwise."""
    answers = threading.Event()
    monkeypatch.setattr(kill_switch, "_looks", Bounded(timedelta(seconds=0.1)))
    monkeypatch.setattr(kill_switch, "_reads", Bounded(timedelta(seconds=0.1)))

    def hang(method):
        real = getattr(Path, method)

        def late(*args, **kwargs):
            answers.wait(60)
            return real(*args, **kwargs)

        monkeypatch.setattr(Path, method, late)
        return answers

    yield hang
    answers.set()


async def test_it_is_off_where_there_is_no_file(file):
    """No file, no folder, a file in the folder's place, or no kill switch on this site."""
    file.with_name("plain").touch()
    for absent in (None, file, file.parent / "nowhere/KILL", file.with_name("plain") / "KILL"):
        assert await killed(absent) == ""


@pytest.mark.parametrize(
    ("put", "said"),
    [
        (lambda file: file.write_text("fire drill, ask ada\nmore"), ": fire drill, ask ada"),
        (lambda file: file.write_text(""), ""),
        (lambda file: file.mkdir(), ""),
        (lambda file: file.symlink_to("nowhere"), ""),
        (os.mkfifo, ""),
    ],
    ids=["text", "empty", "folder", "dangling link", "pipe"],
)
async def test_it_is_on_while_the_file_is_there(file, put, said):
    """Whatever it is: opening a pipe would wait for ever. It is looked at each time."""
    assert await killed(file) == ""
    put(file)
    assert await killed(file) == f"{file} is there{said}"
    (file.rmdir if file.is_dir() else file.unlink)()
    assert await killed(file) == ""


async def test_a_long_first_line_is_cut(file):
    """Anybody may have written it."""
    file.write_bytes(b"\xff" * 10_000)
    assert len(await killed(file)) < 400


@pytest.mark.parametrize("where", ["loop/KILL", "x" * 300], ids=["links in a circle", "name too long"])
async def test_what_the_file_system_refuses_is_unknown(tmp_path, where):
    """Neither on nor off."""
    (tmp_path / "loop").symlink_to("loop")
    with pytest.raises(KillSwitchUnknownError, match="cannot be looked for"):
        await killed(tmp_path / where)


async def test_where_we_may_not_look_it_is_unknown(file, monkeypatch):
    """Simulated: root may look everywhere."""

    def refuse(_path):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(Path, "lstat", refuse)
    with pytest.raises(KillSwitchUnknownError, match="Permission denied"):
        await killed(file)


@pytest.mark.parametrize("there", [True, False])
async def test_a_file_system_that_hangs_makes_it_unknown_until_it_answers(file, hanging, there):
    """Asked again and again meanwhile, no further thread waits with the first. Then it is as it is."""
    answers = hanging("lstat")
    if there:
        file.touch()
    with pytest.raises(KillSwitchUnknownError, match="did not answer"):
        await killed(file)
    before = threading.active_count()
    for _ in range(100):
        with pytest.raises(KillSwitchUnknownError, match="does not answer"):
            await killed(file)
    assert threading.active_count() <= before
    answers.set()
    while True:
        try:
            found = await killed(file)
        except KillSwitchUnknownError:
            await asyncio.sleep(0.001)  # the thread that hung has not come back yet
        else:
            break
    assert found == (f"{file} is there" if there else "")


async def test_a_file_that_cannot_be_read_is_there_all_the_same(file, hanging):
    """Its text is a remark. Later looks are not kept waiting by it either."""
    file.write_text("fire drill")
    hanging("open")
    for _ in range(3):
        assert await killed(file) == f"{file} is there"


@pytest.mark.parametrize("there", [True, False])
async def test_a_database_that_stands_still_does_not_matter(file, there):
    """Real SQLite, locked by another process's transaction: more writers wait than there are threads for anything."""
    if there:
        file.touch()
    ledger = SqlLedger.open(f"sqlite:///{file.parent}/ledger.db", file.parent / "key")
    other = sqlite3.connect(file.parent / "ledger.db", isolation_level=None)
    other.execute("BEGIN EXCLUSIVE")
    entry = Entry(id="1", kind=RowKind.NOTE, at=datetime(2026, 11, 30, tzinfo=UTC), cluster="test", body={})
    waiting = [asyncio.create_task(ledger.commit(Change(entries=(entry,)))) for _ in range(50)]
    try:
        assert await killed(file) == (f"{file} is there" if there else "")
        await asyncio.to_thread(file.exists)  # nor does anything else wait that is done in the common threads
        assert not any(each.done() for each in waiting)
    finally:
        other.execute("ROLLBACK")
        other.close()
    assert sum(await asyncio.gather(*waiting)) == 1
    ledger.close()


async def test_other_work_in_threads_does_not_matter(file):
    """However much of it stands still in the executor that all share."""
    end, loop = threading.Event(), asyncio.get_running_loop()
    busy = [loop.run_in_executor(None, end.wait, 60) for _ in range(100)]
    file.touch()
    try:
        assert await killed(file) == f"{file} is there"
    finally:
        end.set()
    await asyncio.gather(*busy)
