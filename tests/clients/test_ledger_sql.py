"""The ledger on a real SQLite file: what goes in comes out, once, all or nothing."""

import asyncio
import sqlite3
import stat
import subprocess
from collections.abc import Iterator
from contextlib import closing, suppress
from datetime import UTC, datetime, timedelta, timezone
from pathlib import Path

import pytest

from relight.clients.ledger import LedgerCorruptError, LedgerUnavailableError
from relight.clients.ledger_sql import SqlLedger
from relight.domain.attempts import Attempt, AttemptKey, AttemptState
from relight.domain.evidence import Detection, Evidence, Interruption, Source
from relight.domain.incidents import Incident, Outcome, Phase
from relight.domain.ledger import Backlog, Change, Entry, RowKind
from relight.domain.plan import Mode
from relight.domain.slurm import JobFlag, JobRecord, JobState

AT = datetime(2026, 11, 30, 9, 27, 12, 345678, tzinfo=UTC)
KEY = AttemptKey(cluster="c", job_id=7, submit_time=AT.replace(microsecond=0))


def entry(name: str, **fields: object) -> Entry:
    return Entry(**{"id": name, "kind": RowKind.NOTE, "at": AT, "cluster": "c", **fields})


def detection(name: str, at: datetime = AT) -> Detection:
    evidence = Evidence(source=Source.JOB_LOG, text="NCCL WARN ✗ \x00 '\"", node="n1", rank=3, at=AT)
    return Detection(id=name, attempt=KEY, kind=Interruption.CRASH, detected_at=at, evidence=(evidence,))


def state(key: AttemptKey = KEY, **fields: object) -> AttemptState:
    record = JobRecord(
        job_id=key.job_id,
        state=JobState.RUNNING,
        flags=frozenset({JobFlag.SIGNALING}),
        submit_time=key.submit_time,
        nodes=("n1", "n2"),
        time_limit=timedelta(hours=3),
    )
    attempt = Attempt(key=key, lineage="j1", record=record, seen_at=AT, script="#!/bin/sh\n")
    return AttemptState(attempt=attempt, **fields)


def incident(name: str, at: datetime = AT, **fields: object) -> Incident:
    given = {
        "id": name,
        "workflow_id": KEY.workflow_id,
        "run_id": "r",
        "attempt": KEY,
        "lineage": "j1",
        "kind": Interruption.HANG,
        "phase": Phase.CONFIRMING,
        "mode": Mode.AUTO,
        "opened_at": at,
        "detected_at": at,
    }
    return Incident(**{**given, **fields})


@pytest.fixture
def ledger(tmp_path: Path) -> Iterator[SqlLedger]:
    opened = SqlLedger.open(f"sqlite:///{tmp_path}/db/ledger.db", tmp_path / "keys" / "key")
    yield opened
    opened.close()


async def test_every_value_comes_back_as_it_went_in(ledger: SqlLedger):
    """One change with everything in it reads back equal, value by value."""
    body = {"é\x00": [1, 2.5, None, True, {"b": "x\n", "a": "\U0001f600"}], "big": 2**70, "f": 0.1 + 0.2}
    east = AT.astimezone(timezone(timedelta(hours=9)))
    row = entry("e1", at=east, incident="i1", attempt=str(KEY), lineage="j1", node="n1", body=body)
    change = Change(
        entries=(row,),
        attempts=(state(last_step=120, last_step_at=AT, step_seconds=0.25),),
        detections=(detection("d1"),),
        incidents=(incident("i1"),),
        cursors={"jobs/c": {"seen": {"7": 1}}},
    )
    assert await ledger.commit(change) == 1
    (read,) = await ledger.rows()
    assert Entry(**read.model_dump()) == row
    assert (read.seq, read.prev_hash, len(read.hash)) == (1, "0" * 64, 64)
    assert await ledger.attempt(KEY) == change.attempts[0]
    assert await ledger.undelivered() == change.detections
    assert await ledger.incident("i1") == change.incidents[0]
    assert await ledger.cursor("jobs/c") == {"seen": {"7": 1}}
    assert await ledger.has("e1")


async def test_what_was_never_written_is_none_or_empty(ledger: SqlLedger):
    """An empty ledger answers every question, and its chain is sound."""
    assert await ledger.commit(Change()) == 0
    assert await ledger.rows() == ()
    assert not await ledger.has("x")
    assert await ledger.cursor("x") is None
    assert await ledger.undelivered() == ()
    assert await ledger.attempt(KEY) is None
    assert await ledger.incident("") is None
    assert await ledger.incidents() == ()
    report = await ledger.verify()
    assert (report.ok, report.rows, report.head) == (True, 0, "")


async def test_strange_text_is_stored_as_escapes(ledger: SqlLedger):
    """A lone surrogate or a NUL, which databases refuse, neither fails a commit nor breaks the chain."""
    await ledger.commit(Change(entries=(entry("a\x00b", body={"t": "\udc80\x00"}),)))
    assert await ledger.has("a\x00b")
    assert (await ledger.rows())[0].body == {"t": "\udc80\x00"}
    assert (await ledger.verify()).ok


async def test_a_retry_writes_nothing_twice(ledger: SqlLedger):
    """The same change again adds no row; an id that exists keeps its first body."""
    change = Change(entries=(entry("a"), entry("b"), entry("a", body={"second": 1})), detections=(detection("d"),))
    assert await ledger.commit(change) == 2
    assert await ledger.commit(change) == 0
    assert await ledger.commit(Change(entries=(entry("b", body={"x": 1}), entry("c")))) == 1
    assert [(r.id, r.body) for r in await ledger.rows()] == [("a", {}), ("b", {}), ("c", {})]
    assert len(await ledger.undelivered()) == 1
    assert (await ledger.verify()).rows == 3


async def test_many_entries_in_one_change(ledger: SqlLedger):
    """A change larger than one query's limit of values is written whole."""
    change = Change(entries=tuple(entry(f"e{n}") for n in range(3000)))
    assert await ledger.commit(change) == 3000
    assert await ledger.commit(change) == 0
    assert (await ledger.verify()).rows == 3000


async def test_rows_are_filtered_and_paged(ledger: SqlLedger):
    """Filters add up, `after` and `limit` page through in the order written."""
    rows = [entry(f"e{n}", node=f"n{n % 2}", incident=f"i{n % 3}", lineage="j", attempt="a") for n in range(12)]
    await ledger.commit(Change(entries=tuple(rows)))
    await ledger.commit(Change(entries=(entry("last", kind=RowKind.CLOSED),)))
    assert [r.id for r in await ledger.rows(node="n1", incident="i0")] == ["e3", "e9"]
    assert [r.id for r in await ledger.rows(after=3, limit=2)] == ["e3", "e4"]
    assert [r.id for r in await ledger.rows(kind=RowKind.CLOSED)] == ["last"]
    assert len(await ledger.rows(lineage="j", attempt="a")) == 12


async def test_rows_since_a_time(ledger: SqlLedger):
    """Of one kind or of all; the time itself counts."""
    rows = [
        entry(f"e{n}", kind=RowKind.FAULT if n % 2 else RowKind.NOTE, at=AT + timedelta(seconds=n)) for n in range(8)
    ]
    await ledger.commit(Change(entries=tuple(rows)))
    since = AT + timedelta(seconds=5)
    assert [r.id for r in await ledger.rows(kind=RowKind.FAULT, since=since)] == ["e5", "e7"]
    assert [r.id for r in await ledger.rows(since=since, limit=2)] == ["e5", "e6"]
    assert await ledger.rows(kind=RowKind.FAULT, since=AT + timedelta(days=1)) == ()
    assert len(await ledger.rows(since=AT - timedelta(days=1))) == 8


async def test_attempts_are_replaced_and_listed(ledger: SqlLedger):
    """An ended attempt leaves the running list; a job's attempts come newest first."""
    keys = [KEY.model_copy(update={"submit_time": KEY.submit_time + timedelta(hours=n)}) for n in range(3)]
    await ledger.commit(Change(attempts=tuple(state(k) for k in keys)))
    await ledger.commit(Change(attempts=(state(keys[0], running=False, ended_at=AT),)))
    assert {s.attempt.key for s in await ledger.running_attempts("c")} == set(keys[1:])
    assert await ledger.running_attempts("other") == ()
    assert [s.attempt.key for s in await ledger.attempts_of_job("c", 7)] == keys[::-1]
    assert [s.attempt.key for s in await ledger.attempts_of_job("c", 7, limit=1)] == keys[2:]


async def test_outbox_keeps_order_until_delivered(ledger: SqlLedger):
    """Undelivered detections come oldest first; a delivered one is gone for good, also when written again."""
    made = [detection(f"d{n}", AT + timedelta(seconds=10 - n)) for n in range(3)]
    await ledger.commit(Change(detections=tuple(made)))
    assert [d.id for d in await ledger.undelivered()] == ["d2", "d1", "d0"]
    await ledger.delivered("d2")
    await ledger.delivered("d2")
    await ledger.delivered("unknown")
    await ledger.commit(Change(detections=tuple(made)))
    assert [d.id for d in await ledger.undelivered()] == ["d1", "d0"]
    assert [d.id for d in await ledger.undelivered(limit=1)] == ["d1"]


async def test_many_are_marked_as_delivered_at_once(ledger: SqlLedger):
    """More than a database takes in one query; names that nobody knows do no harm, and none at all is none."""
    found = tuple(detection(f"d{number}") for number in range(1201))
    await ledger.commit(Change(detections=found))
    await ledger.delivered()
    await ledger.delivered("unknown", *(each.id for each in found[1:]))
    assert [each.id for each in await ledger.undelivered()] == ["d0"]


async def test_what_waits_is_counted_for_each_cluster(ledger: SqlLedger):
    """One database may serve several clusters; the oldest finding is told by its own time."""
    other = detection("e1").model_copy(update={"attempt": KEY.model_copy(update={"cluster": "east"})})
    old = AT - timedelta(minutes=5)
    opened = (incident("i1"), incident("i2"), incident("i3", outcome=Outcome.OBSERVED, closed_at=AT))
    await ledger.commit(Change(detections=(detection("d1"), detection("d2", old), other), incidents=opened))
    assert await ledger.backlog("c") == Backlog(open_incidents=2, undelivered=2, oldest=old)
    assert [each.id for each in await ledger.undelivered(cluster="east")] == ["e1"]
    await ledger.delivered("d1", "d2")
    assert await ledger.backlog("c") == Backlog(open_incidents=2)
    assert (await ledger.backlog("east")).undelivered == 1


async def test_incidents_are_found_by_prefix_and_filter(ledger: SqlLedger):
    """A beginning that fits one id finds it; wildcards, other cases and ambiguity find nothing."""
    made = [
        incident("iab1", AT),
        incident("iab2", AT + timedelta(seconds=1), outcome=Outcome.RECOVERED, phase=Phase.CLOSED),
        incident("iab", AT + timedelta(seconds=2), lineage="j2"),
        incident("i_%9", AT + timedelta(seconds=3)),
    ]
    await ledger.commit(Change(incidents=tuple(made)))
    assert await ledger.incident("iab") == made[2]
    assert await ledger.incident("iab1") == made[0]
    assert await ledger.incident("i_") == made[3]
    for nothing in ("ia", "i", "%", "iab_", "IAB1", "iab11"):
        assert await ledger.incident(nothing) is None, nothing
    assert [i.id for i in await ledger.incidents()] == ["i_%9", "iab", "iab2", "iab1"]
    assert [i.id for i in await ledger.incidents(open_only=True, lineage="j1")] == ["i_%9", "iab1"]
    assert [i.id for i in await ledger.incidents(attempt=KEY, cluster="c", limit=1)] == ["i_%9"]
    assert await ledger.incidents(cluster="other") == ()
    closed = made[0].model_copy(update={"outcome": Outcome.STOPPED})
    await ledger.commit(Change(incidents=(closed,)))
    assert await ledger.incident("iab1") == closed


async def test_a_failing_change_leaves_nothing(ledger: SqlLedger, tmp_path: Path):
    """When the last table refuses, the rows written before it in the same change are gone too."""
    with closing(sqlite3.connect(tmp_path / "db/ledger.db")) as raw, raw:
        raw.execute("CREATE TRIGGER no BEFORE INSERT ON cursors BEGIN SELECT RAISE(ABORT, 'no'); END")
    raw.close()
    change = Change(
        entries=(entry("a"),),
        attempts=(state(),),
        detections=(detection("d"),),
        incidents=(incident("i1"),),
        cursors={"x": {}},
    )
    with pytest.raises(LedgerUnavailableError):
        await ledger.commit(change)
    assert await ledger.rows() == ()
    assert await ledger.attempt(KEY) is None
    assert await ledger.undelivered() == ()
    assert await ledger.incidents() == ()
    assert (await ledger.verify()).ok


async def test_the_event_loop_stays_free_while_another_writes(ledger: SqlLedger, tmp_path: Path):
    """A database that is locked by another process blocks the commit, not the loop."""
    other = sqlite3.connect(tmp_path / "db/ledger.db", isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    pending = asyncio.ensure_future(ledger.commit(Change(entries=(entry("a"),))))
    for _ in range(5):
        await asyncio.sleep(0.02)
    assert not pending.done()
    assert await ledger.rows() == ()  # readers do not wait for writers
    other.execute("ROLLBACK")
    other.close()
    assert await pending == 1


async def test_what_is_under_way_at_the_end_is_done_and_leaves_no_connection(ledger: SqlLedger, tmp_path: Path):
    """It waits for another program's transaction when the ledger is closed."""
    with closing(sqlite3.connect(tmp_path / "db/ledger.db", isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        pending = asyncio.ensure_future(ledger.commit(Change(entries=(entry("a"),))))
        pool = ledger._engine.pool
        while not pool.checkedout():  # noqa: ASYNC110 - a thread takes it
            await asyncio.sleep(0.01)
        ledger.close()
        other.execute("ROLLBACK")
        assert await pending == 1
    assert (pool.checkedout(), pool.checkedin()) == (0, 0)


async def test_reopening_goes_on_with_the_same_chain(tmp_path: Path):
    """A second opening finds schema and key, and continues."""
    where = (f"sqlite:///{tmp_path}/l.db", tmp_path / "key")
    for n in range(3):
        ledger = SqlLedger.open(*where)
        await ledger.commit(Change(entries=(entry(f"e{n}"),)))
        ledger.close()
    ledger = SqlLedger.open(*where)
    report = await ledger.verify()
    ledger.close()
    assert (report.ok, report.rows) == (True, 3)
    assert [stat.S_IMODE((tmp_path / f).stat().st_mode) for f in ("key", "l.db")] == [0o600, 0o600]


async def test_a_key_that_does_not_fit_is_refused(tmp_path: Path):
    """Another key, a missing one, one that others may read, and one that is none: each is refused in words."""
    url, key = f"sqlite:///{tmp_path}/l.db", tmp_path / "key"
    ledger = SqlLedger.open(url, key)
    await ledger.commit(Change(entries=(entry("a"),)))
    ledger.close()
    good = key.read_text()
    assert len(good.strip()) == 64
    key.write_text("ab" * 32)
    with pytest.raises(LedgerCorruptError, match="does not fit"):
        SqlLedger.open(url, key)
    for bad in ("", "zz" * 32, "ab" * 31, good + "00"):
        key.write_text(bad)
        with pytest.raises(LedgerCorruptError, match="no key"):
            SqlLedger.open(url, key)
    key.write_text(good)
    key.chmod(0o640)
    with pytest.raises(LedgerCorruptError, match="open to others"):
        SqlLedger.open(url, key)
    key.unlink()
    with pytest.raises(LedgerCorruptError, match="missing"):
        SqlLedger.open(url, key)
    assert not key.exists()


async def test_a_newer_schema_is_refused(tmp_path: Path):
    """A database that a newer Relight has migrated is left alone."""
    where = (f"sqlite:///{tmp_path}/l.db", tmp_path / "key")
    SqlLedger.open(*where).close()
    with closing(sqlite3.connect(tmp_path / "l.db")) as raw, raw:
        raw.execute("UPDATE alembic_version SET version_num = '9999'")
    raw.close()
    with pytest.raises(LedgerCorruptError, match=r"schema 9999.*upgrade Relight"):
        SqlLedger.open(*where)


async def test_a_file_that_is_no_database_is_refused(tmp_path: Path):
    """Something else under the ledger's name is corrupt, not unavailable."""
    (tmp_path / "l.db").write_text("not a database " * 500)
    with pytest.raises(LedgerCorruptError):
        SqlLedger.open(f"sqlite:///{tmp_path}/l.db", tmp_path / "key")


async def test_a_read_only_ledger_reads_and_refuses_writes(tmp_path: Path):
    """With a database that cannot be written reads answer, a commit is unavailable and nothing is half done."""
    key = tmp_path / "key"
    ledger = SqlLedger.open(f"sqlite:///{tmp_path}/l.db", key)
    await ledger.commit(Change(entries=(entry("a"),)))
    frozen = SqlLedger.open(f"sqlite:///file:{tmp_path}/l.db?mode=ro&uri=true", key)
    with pytest.raises(LedgerUnavailableError, match="readonly"):
        await frozen.commit(Change(entries=(entry("b"),)))
    assert [r.id for r in await frozen.rows()] == ["a"]
    frozen.close()
    ledger.close()


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 1 MiB."""
    disk = tmp_path / "disk"
    disk.mkdir()
    made = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1m", "none", disk], check=False, capture_output=True)
    if made.returncode:
        pytest.skip("may not mount a tmpfs here")
    yield disk
    subprocess.run(["umount", "-l", disk], check=True)


async def test_a_full_disk_is_unavailable_and_heals(small_disk: Path, tmp_path: Path):
    """On a full disk commits fail as unavailable, the chain stays whole, and writing goes on once there is room."""
    ledger = SqlLedger.open(f"sqlite:///{small_disk}/l.db", tmp_path / "key")
    await ledger.commit(Change(entries=(entry("a"),)))
    ballast = small_disk / "ballast"
    with ballast.open("wb", buffering=0) as file, suppress(OSError):
        while True:
            file.write(bytes(4096))
    big = Change(entries=(entry("b", body={"x": "y" * 200_000}),))
    with pytest.raises(LedgerUnavailableError):
        await ledger.commit(big)
    ballast.unlink()
    assert (await ledger.verify()).rows == 1
    assert await ledger.commit(big) == 1
    assert (await ledger.verify()).ok
    ledger.close()


async def test_a_missing_server_is_unavailable(tmp_path: Path):
    """A folder that cannot be made is reported as the ledger's own error."""
    (tmp_path / "file").touch()
    with pytest.raises(LedgerUnavailableError):
        SqlLedger.open(f"sqlite:///{tmp_path}/file/l.db", tmp_path / "key")


async def test_an_unreadable_value_is_corrupt(ledger: SqlLedger, tmp_path: Path):
    """A read model that somebody spoiled raises, it is not skipped."""
    await ledger.commit(Change(incidents=(incident("i1"),)))
    with closing(sqlite3.connect(tmp_path / "db/ledger.db")) as raw, raw:
        raw.execute("UPDATE incidents SET state = '{}'")
    raw.close()
    with pytest.raises(LedgerCorruptError, match="Incident"):
        await ledger.incidents()


async def test_a_closed_incident_is_not_opened_again(ledger):
    """A step that was given up may write late: its state is of yesterday, and the end stands."""
    opened = incident("i1")
    closed = incident("i1", outcome=Outcome.OVERRIDDEN, phase=Phase.CLOSED)
    for state_of_it in (opened, closed, opened):
        await ledger.commit(Change(incidents=(state_of_it,)))
    assert await ledger.incident("i1") == closed
