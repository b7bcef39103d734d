"""The audit trail's chain: one chain whoever writes, and no change goes unnoticed."""

import asyncio
import random
import shutil
import sqlite3
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from datetime import UTC, datetime
from pathlib import Path

import pytest

from relight.clients.ledger import LedgerCorruptError
from relight.clients.ledger_sql import SqlLedger
from relight.domain.ledger import Change, Entry, RowKind

AT = datetime(2026, 11, 30, 9, 27, 12, tzinfo=UTC)
ROWS = 40

_WRITER = """
import asyncio, sys
from contextlib import closing
from datetime import UTC, datetime
from pathlib import Path
from relight.clients.ledger_sql import SqlLedger
from relight.domain.ledger import Change, Entry, RowKind

async def main(url, key, name, count):
    ledger = SqlLedger.open(url, Path(key))
    for n in range(int(count)):
        entry = Entry(id=f"{name}/{n}", kind=RowKind.NOTE, at=datetime.now(UTC), cluster="c")
        assert await ledger.commit(Change(entries=(entry,))) == 1
    ledger.close()

asyncio.run(main(*sys.argv[1:]))
"""


def entry(name: str, **fields: object) -> Entry:
    return Entry(**{"id": name, "kind": RowKind.NOTE, "at": AT, "cluster": "c", **fields})


def entries(count: int) -> Change:
    rows = (
        entry(f"e{n}", node=f"n{n}", incident=f"i{n}", lineage=f"j{n}", attempt=f"c/{n}/x", body={"n": n})
        for n in range(count)
    )
    return Change(entries=tuple(rows))


@pytest.fixture
def where(tmp_path: Path) -> tuple[str, Path]:
    return f"sqlite:///{tmp_path}/l.db", tmp_path / "key"


@pytest.fixture
async def written(where: tuple[str, Path], tmp_path: Path) -> Path:
    """A closed ledger of some rows."""
    ledger = SqlLedger.open(*where)
    await ledger.commit(entries(ROWS))
    ledger.close()
    return tmp_path / "l.db"


@pytest.fixture
def tampered(written: Path, where: tuple[str, Path]) -> Iterator[Callable[..., object]]:
    """Opens a copy of the ledger on which somebody with full rights has run SQL."""
    opened: list[SqlLedger] = []

    def tamper(*statements: tuple[str, tuple[object, ...]]) -> SqlLedger:
        copy = written.with_name(f"copy{len(opened)}.db")
        shutil.copy(written, copy)
        raw = sqlite3.connect(copy)
        for name in ("ledger_no_update", "ledger_no_delete", "ledger_no_replace"):
            raw.execute(f"DROP TRIGGER {name}")
        for sql, values in statements:
            raw.execute(sql, values)
        raw.commit()
        raw.close()
        opened.append(SqlLedger.open(f"sqlite:///{copy}", where[1]))
        return opened[-1]

    yield tamper
    for ledger in opened:
        ledger.close()


def test_threads_and_processes_write_one_chain(where: tuple[str, Path]):
    """Eight threads and four processes append 600 rows at once, from the first opening on, to one unforked chain."""
    url, key = where
    programs = [
        subprocess.Popen([sys.executable, "-c", _WRITER, url, str(key), f"p{n}", "50"], stderr=subprocess.PIPE)
        for n in range(4)
    ]
    ledger = SqlLedger.open(url, key)

    def write(name: str) -> None:
        async def all_of_it() -> None:
            for n in range(50):
                await ledger.commit(Change(entries=(entry(f"{name}/{n}"),)))

        asyncio.run(all_of_it())

    threads = [threading.Thread(target=write, args=(f"t{n}",)) for n in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for program in programs:
        _, err = program.communicate(timeout=60)
        assert program.returncode == 0, err.decode()
    report = asyncio.run(ledger.verify())
    ledger.close()
    assert (report.ok, report.rows) == (True, 600), report


async def test_two_writers_of_one_id_write_it_once(where: tuple[str, Path]):
    """The same entries written by many at once exist once."""
    ledgers = [SqlLedger.open(*where) for _ in range(3)]
    counts = await asyncio.gather(*(ledger.commit(entries(20)) for ledger in ledgers * 4))
    assert sum(counts) == 20
    assert (await ledgers[0].verify()).rows == 20
    for ledger in ledgers:
        ledger.close()


async def test_the_database_itself_refuses_changes(written: Path):
    """UPDATE, DELETE and INSERT OR REPLACE on the audit trail abort, from any program."""
    raw = sqlite3.connect(written)
    row = "SELECT 3, 'new', kind, at, cluster, '', '', '', '', body, 'x', hash FROM ledger WHERE seq = 3"
    for sql in ("UPDATE ledger SET body = '{}'", "DELETE FROM ledger", f"INSERT OR REPLACE INTO ledger {row}"):
        with pytest.raises(sqlite3.IntegrityError, match="only grows"):
            raw.execute(sql)
    raw.close()


COLUMNS = (
    *("seq", "id", "kind", "at", "cluster", "incident"),
    *("attempt", "lineage", "node", "body", "prev_hash", "hash"),
)


async def test_each_of_200_random_edits_is_found(tampered: Callable[..., SqlLedger]):
    """Any column of any row, changed to anything else, breaks the chain there, or at once when opened."""
    dice = random.Random(7)  # noqa: S311
    for n in range(200):
        column, seq = dice.choice(COLUMNS), dice.randint(1, ROWS)
        value = seq + 10_000 if column == "seq" else dice.choice([" ", "x", "{}", "0" * 63, b"\x01", f"é{n}"])
        change = (f"UPDATE ledger SET {column} = ? WHERE seq = ?", (value, seq))  # noqa: S608
        if column == "body" and n % 2:  # the same value in another spelling
            change = ("UPDATE ledger SET body = replace(body, ':', ': ') WHERE seq = ?", (seq,))
        try:
            report = await tampered(change).verify()
        except LedgerCorruptError:
            assert seq == ROWS or column == "seq"  # the newest row is looked at when the ledger is opened
            continue
        assert not report.ok, change
        assert report.broken_at in {seq, seq + 1}, (change, report)


@pytest.mark.parametrize(
    ("broken_at", "statements"),
    [
        (2, ["DELETE FROM ledger WHERE seq = 1"]),
        (21, ["DELETE FROM ledger WHERE seq = 20"]),
        (20, ["DELETE FROM ledger WHERE seq = 20", "UPDATE ledger SET seq = seq - 1 WHERE seq > 20 AND seq < 40"]),
        (40, ["DELETE FROM ledger WHERE seq = 40"]),
        (1, ["DELETE FROM ledger"]),
        (41, ["DELETE FROM ledger_head"]),
    ],
)
async def test_removed_rows_are_found(tampered: Callable[..., SqlLedger], broken_at: int, statements: list[str]):
    """Rows taken out anywhere show, also with the numbers closed up, also the last one, also all."""
    report = await tampered(*((sql, ()) for sql in statements)).verify()
    assert report.broken_at == broken_at, report
    assert report.problem


async def test_swapped_rows_are_found(tampered: Callable[..., SqlLedger]):
    """Two rows in each other's place show at the first of them."""
    steps = ("SET seq = 99 WHERE seq = 5", "SET seq = 5 WHERE seq = 6", "SET seq = 6 WHERE seq = 99")
    report = await tampered(*((f"UPDATE ledger {step}", ()) for step in steps)).verify()
    assert report.broken_at == 5


async def test_a_forged_row_is_found(tampered: Callable[..., SqlLedger]):
    """A row made without the key is refused when the ledger is opened, and found when it came in later."""
    forged = (
        "INSERT INTO ledger SELECT 41, 'forged', kind, at, cluster, '', '', '', '', body, hash, 'f' || prev_hash"
        " FROM ledger WHERE seq = 40"
    )
    with pytest.raises(LedgerCorruptError, match="does not fit"):
        tampered((forged, ()))
    ledger = tampered()
    with closing(sqlite3.connect(ledger._engine.url.database or "")) as raw, raw:
        raw.execute(forged)
    assert (await ledger.verify()).broken_at == 41
    with pytest.raises(LedgerCorruptError):
        await ledger.commit(Change(entries=(entry("more"),)))


async def test_a_forged_head_does_not_hide_a_removed_end(tampered: Callable[..., SqlLedger]):
    """The seal of the newest row cannot be made without the key, and nothing is appended over the gap."""
    ledger = tampered(
        ("DELETE FROM ledger WHERE seq > 38", ()),
        ("UPDATE ledger_head SET seq = 38, hash = (SELECT hash FROM ledger WHERE seq = 38)", ()),
    )
    report = await ledger.verify()
    assert not report.ok
    assert "seal" in report.problem
    with pytest.raises(LedgerCorruptError, match="seal"):
        await ledger.commit(Change(entries=(entry("more"),)))


async def test_an_older_copy_is_found_by_an_anchor(tampered: Callable[..., SqlLedger], where: tuple[str, Path]):
    """A report kept elsewhere shows that later rows are gone, or are others than those anchored."""
    ledger = SqlLedger.open(*where)
    anchor = await ledger.verify()
    assert (anchor.ok, anchor.rows) == (True, ROWS)
    older = tampered()  # a whole and sound copy
    await ledger.commit(Change(entries=(entry("ours"),)))
    later = await ledger.verify(anchor)
    assert later.ok
    assert "41 rows were anchored" in (await older.verify(later)).problem
    await older.commit(Change(entries=(entry("theirs"),)))
    report = await older.verify(later)
    assert (report.ok, report.broken_at) == (False, 41)
    ledger.close()


async def test_a_check_while_others_write_is_sound(where: tuple[str, Path]):
    """Rows that come in during the check neither break it nor are waited for."""
    ledger = SqlLedger.open(*where)
    await ledger.commit(entries(3000))

    async def write() -> None:
        for n in range(30):
            await ledger.commit(Change(entries=(entry(f"w{n}"),)))

    writing = asyncio.ensure_future(write())
    while not writing.done():
        report = await ledger.verify()
        assert report.ok, report
    await writing
    assert (await ledger.verify()).rows == 3030
    ledger.close()


def test_a_writer_killed_at_any_moment_leaves_a_sound_chain(where: tuple[str, Path]):
    """SIGKILL in the middle of writing: what was committed is there, the chain goes on from it."""
    url, key = where
    ledger = SqlLedger.open(url, key)
    for n in range(5):
        before = asyncio.run(ledger.verify()).rows
        program = subprocess.Popen([sys.executable, "-c", _WRITER, url, str(key), f"k{n}", "100000"])
        while asyncio.run(ledger.verify()).rows < before + 20 + n:
            time.sleep(0.01)
        program.kill()
        program.wait()
        assert asyncio.run(ledger.commit(Change(entries=(entry(f"after {n}"),)))) == 1
    report = asyncio.run(ledger.verify())
    ledger.close()
    assert report.ok
    assert report.rows >= 110
