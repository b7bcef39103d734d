"""The ledger's schema over the versions, and the role that can only add rows: on real SQLite and PostgreSQL."""

import asyncio
import os
import shutil
import sqlite3
import tempfile
from collections.abc import Callable, Iterator
from contextlib import closing
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from alembic.autogenerate import compare_metadata
from alembic.runtime.migration import MigrationContext
from alembic.script import ScriptDirectory
from sqlalchemy import create_engine, exc, inspect, text

from relight.clients import ledger_schema, ledger_versions
from relight.clients.ledger import LedgerCorruptError, LedgerUnavailableError
from relight.clients.ledger_grants import sql
from relight.clients.ledger_sql import SqlLedger
from relight.domain.ledger import Change, Entry, RowKind
from relight.lab.audit_story import Story
from relight.lab.postgres import Postgres
from tests.clients.test_ledger_sql import detection, incident, state

AT = datetime(2026, 11, 30, 9, 27, 12, tzinfo=UTC)


@pytest.fixture(scope="module")
def server() -> Iterator[Callable[[str], str]]:
    """A real server; each test has a database of its own there."""
    if why := Postgres.lacking():
        pytest.skip(why)
    pytest.importorskip("psycopg")
    folder = Path(tempfile.mkdtemp(prefix="relight-pg-", dir="/tmp"))
    folder.chmod(0o755)
    made = Postgres(folder / "pg", folder)
    made.start()

    def database(name: str) -> str:
        engine = create_engine(made.url, isolation_level="AUTOCOMMIT")
        with engine.connect() as connection:
            connection.execute(text(f"CREATE DATABASE {name}"))
        engine.dispose()
        return made.url.replace("/postgres", f"/{name}")

    yield database
    made.kill()
    shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture(params=["sqlite", "postgresql"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """A database without anything in it."""
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path}/l.db"
    made: str = request.getfixturevalue("server")(f"t{os.urandom(4).hex()}")
    return made


def run(url: str, *statements: str) -> None:
    engine = create_engine(url)
    try:
        with engine.begin() as connection:
            for statement in statements:
                connection.execute(text(statement))
    finally:
        engine.dispose()


def as_version_0_1(url: str) -> None:
    """Take off what came later: the schema is then what version 0.1 made, its rows stay."""
    engine = create_engine(url)
    with engine.begin() as connection:
        for name in _INDEXES:
            connection.execute(text(f"DROP INDEX IF EXISTS {name}"))
        for table, names in _COLUMNS.items():
            for name in names:
                connection.execute(text(f'ALTER TABLE {table} DROP COLUMN "{name}"'))
        connection.execute(text("DROP TABLE alembic_version"))
    engine.dispose()


_INDEXES = (
    *("incidents_listed", "attempts_listed"),
    *("incidents_by_user", "incidents_by_job", "incidents_by_outcome"),
    *("attempts_by_seen", "attempts_by_lineage", "attempts_by_user", "ledger_by_time"),
)
_COLUMNS = {
    "incidents": [
        *("user", "job_name", "kind", "phase", "mode", "outcome"),
        *("cause", "category", "nodes", "closed_at", "job_id"),
    ],
    "attempts": ["user", "job_name", "partition"],
}


def filled(url: str, key: Path) -> SqlLedger:
    ledger = SqlLedger.open(url, key)
    change = Change(
        entries=Story(1).rows(), attempts=(state(),), incidents=(incident("i1"),), detections=(detection("d1"),)
    )
    asyncio.run(ledger.commit(change))
    return ledger


def rows_of(url: str, table: str, columns: list[str]) -> list[Any]:
    engine = create_engine(url)
    names = ", ".join(f'"{name}"' for name in columns)
    with engine.connect() as connection:
        found = [tuple(row) for row in connection.execute(text(f"SELECT {names} FROM {table}"))]  # noqa: S608
    engine.dispose()
    return found


def test_the_steps_make_exactly_the_tables_that_are_worked_with(url, tmp_path):
    """Tables, columns, types and indexes; and the newest step is the one that this version asks for."""
    SqlLedger.open(url, tmp_path / "key").close()
    engine = create_engine(url)
    with engine.connect() as connection:
        context = MigrationContext.configure(connection, opts={"compare_type": True})
        differences = compare_metadata(context, ledger_schema.metadata)
    engine.dispose()
    only_sqlite = {"incidents_listed", "attempts_listed"} if url.startswith("postgresql") else set()
    assert [each for each in differences if each[-1].name not in only_sqlite] == []
    folder = str(ledger_versions._STEPS)
    assert ScriptDirectory(folder, version_locations=[folder]).get_heads() == [ledger_versions.HEAD]


def test_a_ledger_of_version_0_1_is_adopted(url, tmp_path):
    """Its rows stay and verify; SQLite by itself, PostgreSQL by command; what is filtered by is filled in."""
    filled(url, tmp_path / "key").close()
    before = {table: rows_of(url, table, names) for table, names in _COLUMNS.items()}
    as_version_0_1(url)
    if url.startswith("postgresql"):
        with pytest.raises(
            LedgerCorruptError, match="schema 0001, this Relight works with 0002: run `relight ledger up"
        ):
            SqlLedger.open(url, tmp_path / "key")
        assert ledger_versions.upgrade_at(url) == ("0001", "0002")
        assert ledger_versions.upgrade_at(url) == ("0002", "0002")
    ledger = SqlLedger.open(url, tmp_path / "key")
    report = asyncio.run(ledger.verify())
    assert (report.ok, report.rows) == (True, 16)
    assert asyncio.run(ledger.incident("i1")) == incident("i1")
    ledger.close()
    assert {table: rows_of(url, table, names) for table, names in _COLUMNS.items()} == before
    assert before["attempts"] == [("", "", "")]


def test_a_ledger_of_a_newer_version_is_left_alone(url, tmp_path):
    """By the worker and by the command."""
    SqlLedger.open(url, tmp_path / "key").close()
    run(url, "UPDATE alembic_version SET version_num = '9999'")
    for call in (lambda: SqlLedger.open(url, tmp_path / "key"), lambda: ledger_versions.upgrade_at(url)):
        with pytest.raises(LedgerCorruptError, match="9999, which this Relight does not know"):
            call()


def test_two_that_open_an_old_ledger_at_once_bring_it_up_to_date_once(tmp_path):
    """The second waits for the first, and finds nothing to do."""
    url = f"sqlite:///{tmp_path}/l.db"
    filled(url, tmp_path / "key").close()
    as_version_0_1(url)

    async def both() -> None:
        opened = [asyncio.to_thread(SqlLedger.open, url, tmp_path / "key") for _ in range(4)]
        for ledger in await asyncio.gather(*opened):
            ledger.close()

    asyncio.run(both())
    with closing(sqlite3.connect(tmp_path / "l.db")) as raw:
        assert raw.execute("SELECT version_num FROM alembic_version").fetchall() == [("0002",)]


def test_a_step_that_fails_leaves_the_ledger_as_it_was(url, tmp_path, monkeypatch):
    """All of it or nothing, on both databases."""
    filled(url, tmp_path / "key").close()
    as_version_0_1(url)
    run(url, "UPDATE incidents SET state = 'no JSON'")
    with pytest.raises(ValueError, match="Expecting value"):
        ledger_versions.upgrade_at(url)
    engine = create_engine(url)
    with engine.connect() as connection:
        assert ledger_versions.version_of(connection) == "0001"
        assert "user" not in {column["name"] for column in inspect(connection).get_columns("incidents")}
    engine.dispose()


# --- the role that can only add rows ---


@pytest.fixture
def worker(server, tmp_path: Path) -> tuple[str, str]:
    """The owner's URL and the worker's, with what `relight ledger grants` prints run in between."""
    name = f"t{os.urandom(4).hex()}"
    owner = server(name)
    SqlLedger.open(owner, tmp_path / "key").close()
    role = f"w{name}"
    run(owner, f"CREATE ROLE {role} LOGIN")
    _psql(owner, sql(role))
    return owner, owner.replace("relight@", f"{role}@")


def _psql(url: str, script: str) -> None:
    engine = create_engine(url, isolation_level="AUTOCOMMIT")
    with engine.connect() as connection:
        for statement in script.splitlines():
            connection.exec_driver_sql(statement)
    engine.dispose()


async def test_a_worker_needs_no_more_than_its_grants(worker, tmp_path):
    """Every operation of a ledger works with them, on tables that another role owns."""
    ledger = SqlLedger.open(worker[1], tmp_path / "key")
    change = Change(
        entries=Story(1).rows(),
        attempts=(state(),),
        incidents=(incident("i1"),),
        detections=(detection("d1"),),
        cursors={"jobs/c": {"n": 1}},
    )
    assert await ledger.commit(change) == 16
    assert await ledger.commit(change) == 0
    await ledger.delivered("d1")
    assert await ledger.undelivered() == ()
    assert await ledger.cursor("jobs/c") == {"n": 1}
    assert len(await ledger.incidents()) == len(await ledger.running_attempts("c")) == 1
    assert (await ledger.backlog("c")).open_incidents == 1
    anchor = await ledger.anchor("main")
    assert anchor
    assert anchor.seq == 16
    assert (await ledger.verify()).ok
    ledger.close()


@pytest.mark.parametrize(
    "statement",
    [
        "UPDATE ledger SET body = '{}'",
        "DELETE FROM ledger",
        "TRUNCATE ledger",
        "ALTER TABLE ledger DISABLE TRIGGER ALL",
        "DROP TABLE ledger",
        "ALTER TABLE ledger ADD COLUMN x int",
        "UPDATE alembic_version SET version_num = '9999'",
        "DROP TRIGGER ledger_only_grows ON ledger",
    ],
)
def test_a_worker_cannot_change_the_audit_trail(worker, statement):
    """The database itself refuses it, by the role's rights, before any trigger."""
    with pytest.raises(exc.DBAPIError, match=r"permission denied|must be owner"):
        run(worker[1], statement)


def test_an_auditor_can_only_read(server, tmp_path):
    """With --read-only nothing can be written at all; opening and verifying work."""
    name = f"t{os.urandom(4).hex()}"
    owner = server(name)
    filled(owner, tmp_path / "key").close()
    run(owner, f"CREATE ROLE r{name} LOGIN")
    _psql(owner, sql(f"r{name}", read_only=True))
    ledger = SqlLedger.open(owner.replace("relight@", f"r{name}@"), tmp_path / "key")
    assert asyncio.run(ledger.verify()).ok
    entry = Entry(id="x", kind=RowKind.NOTE, at=AT, cluster="c")
    with pytest.raises(LedgerCorruptError, match="permission denied"):
        asyncio.run(ledger.commit(Change(entries=(entry,))))
    ledger.close()


def test_a_role_that_may_not_make_tables_is_told_what_to_do(server, tmp_path):
    """Not with the driver's words alone."""
    name = f"t{os.urandom(4).hex()}"
    owner = server(name)
    run(owner, f"CREATE ROLE n{name} LOGIN", "REVOKE CREATE ON SCHEMA public FROM PUBLIC")
    with pytest.raises(LedgerUnavailableError, match="run `relight ledger upgrade` as the role that owns them"):
        SqlLedger.open(owner.replace("relight@", f"n{name}@"), tmp_path / "key")


@pytest.mark.parametrize("role", ["", 'x"; DROP TABLE ledger; --', "a" * 64, "ä"])
def test_grants_are_made_for_names_only(role):
    """What is no role's name is refused, and never part of a statement."""
    with pytest.raises(ValueError, match="no role's name"):
        sql(role)
