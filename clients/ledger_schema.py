"""The ledger's tables, and how each database is opened.

Everything that differs between SQLite and PostgreSQL stands in this file: connection settings, how writers
are serialised (two writers that do not wait for each other fork the chain within 600 rows: seen), and the
triggers that make the database itself refuse changes to the audit trail.
"""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from sqlalchemy import (
    BigInteger,
    Boolean,
    Column,
    Connection,
    Engine,
    Index,
    Integer,
    MetaData,
    StaticPool,
    Table,
    Text,
    TextClause,
    create_engine,
    event,
    exc,
    insert,
    inspect,
    make_url,
    select,
    text,
)

from relight.clients.ledger import LedgerCorruptError, LedgerUnavailableError

SCHEMA_VERSION = 1
_BUSY_SECONDS = 15
_CONNECT_SECONDS = 5
_PG_LOCK = 0x72656C69_67687401  # "relight", 1: the advisory lock that every writer takes
_WRITER = "relight_writer"

metadata = MetaData()
# SQLite numbers rows only where the type reads INTEGER.
_Serial = BigInteger().with_variant(Integer, "sqlite")

schema = Table("schema_version", metadata, Column("version", Integer, primary_key=True))

ledger = Table(
    "ledger",
    metadata,
    # Given by the writer, not by the database: PostgreSQL's sequences leave gaps after a rollback, and
    # without gaps a missing row shows by its number.
    Column("seq", _Serial, primary_key=True, autoincrement=False),
    Column("id", Text, nullable=False, unique=True),
    Column("kind", Text, nullable=False),
    Column("at", Text, nullable=False),
    Column("cluster", Text, nullable=False),
    Column("incident", Text, nullable=False),
    Column("attempt", Text, nullable=False),
    Column("lineage", Text, nullable=False),
    Column("node", Text, nullable=False),
    Column("body", Text, nullable=False),
    Column("prev_hash", Text, nullable=False, unique=True),
    Column("hash", Text, nullable=False),
    Index("ledger_by_incident", "incident", "seq"),
    Index("ledger_by_lineage", "lineage", "seq"),
    Index("ledger_by_attempt", "attempt", "seq"),
    Index("ledger_by_node", "node", "seq"),
    Index("ledger_by_kind", "kind", "seq"),
)

head = Table(
    "ledger_head",
    metadata,
    Column("one", Integer, primary_key=True, autoincrement=False),
    Column("seq", _Serial, nullable=False),
    Column("hash", Text, nullable=False),
    Column("seal", Text, nullable=False),
)

attempts = Table(
    "attempts",
    metadata,
    Column("key", Text, primary_key=True),
    Column("cluster", Text, nullable=False),
    Column("job_id", BigInteger, nullable=False),
    Column("lineage", Text, nullable=False),
    Column("running", Boolean, nullable=False),
    Column("seen_at", Text, nullable=False),
    Column("state", Text, nullable=False),
    Index("attempts_running", "cluster", "running"),
    Index("attempts_by_job", "cluster", "job_id", "key"),
)

outbox = Table(
    "outbox",
    metadata,
    Column("id", Text, primary_key=True),
    Column("cluster", Text, nullable=False),
    Column("created_at", Text, nullable=False),
    Column("body", Text, nullable=False),
    Column("delivered_at", Text),
    Index("outbox_undelivered", "delivered_at", "created_at"),
)

incidents = Table(
    "incidents",
    metadata,
    Column("id", Text, primary_key=True),
    Column("cluster", Text, nullable=False),
    Column("lineage", Text, nullable=False),
    Column("attempt", Text, nullable=False),
    Column("open", Boolean, nullable=False),
    Column("opened_at", Text, nullable=False),
    Column("state", Text, nullable=False),
    Index("incidents_by_time", "cluster", "opened_at"),
    Index("incidents_by_lineage", "lineage", "opened_at"),
    Index("incidents_by_attempt", "attempt", "opened_at"),
    Index("incidents_open", "open", "opened_at"),
)

cursors = Table(
    "cursors",
    metadata,
    Column("name", Text, primary_key=True),
    Column("value", Text, nullable=False),
)


def _sqlite_trigger(name: str, when: str) -> TextClause:
    return text(
        f"CREATE TRIGGER IF NOT EXISTS {name} {when} BEGIN SELECT RAISE(ABORT, 'the ledger only grows'); END",
    )


_SQLITE_TRIGGERS = (
    _sqlite_trigger("ledger_no_update", "BEFORE UPDATE ON ledger"),
    _sqlite_trigger("ledger_no_delete", "BEFORE DELETE ON ledger"),
    # INSERT OR REPLACE removes the old row without a delete trigger.
    _sqlite_trigger(
        "ledger_no_replace",
        "BEFORE INSERT ON ledger WHEN EXISTS (SELECT 1 FROM ledger"
        " WHERE seq = NEW.seq OR id = NEW.id OR prev_hash = NEW.prev_hash)",
    ),
)
_POSTGRESQL_TRIGGERS = (
    text(
        "CREATE OR REPLACE FUNCTION ledger_only_grows() RETURNS trigger LANGUAGE plpgsql AS"
        " $$ BEGIN RAISE EXCEPTION 'the ledger only grows'; END $$",
    ),
    text(
        "CREATE OR REPLACE TRIGGER ledger_only_grows BEFORE UPDATE OR DELETE OR TRUNCATE ON ledger"
        " FOR EACH STATEMENT EXECUTE FUNCTION ledger_only_grows()",
    ),
)


@contextmanager
def told() -> Iterator[None]:
    """Turn what the database driver raises into the ledger's own errors."""
    try:
        yield
    except (exc.OperationalError, exc.InterfaceError, exc.InternalError) as e:
        # Python's sqlite3 reports stored text that is not UTF-8 as an operational error.
        if "Could not decode" in str(e.orig):
            raise LedgerCorruptError(f"the ledger holds text that Relight never wrote: {e.orig}") from e
        raise LedgerUnavailableError(f"the ledger does not answer: {e.orig}") from e
    except exc.IntegrityError as e:
        # Another writer was faster without taking our lock; a new try starts from its row.
        raise LedgerUnavailableError(f"the ledger was written past us: {e.orig}") from e
    except exc.DBAPIError as e:
        raise LedgerCorruptError(f"the ledger cannot be read: {e.orig}") from e
    except (exc.TimeoutError, OSError) as e:
        raise LedgerUnavailableError(f"the ledger does not answer: {e}") from e


def connect(url: str) -> Engine:
    """An engine for this URL; nothing is sent to the database yet, but an SQLite file is made (mode 0600)."""
    parsed = make_url(url)
    if parsed.get_backend_name() != "sqlite":
        return create_engine(
            parsed,
            pool_size=8,
            max_overflow=24,
            pool_timeout=_BUSY_SECONDS,
            pool_pre_ping=True,
            connect_args={"connect_timeout": _CONNECT_SECONDS},
        )
    if in_memory(parsed.database):
        engine = create_engine(parsed, poolclass=StaticPool, connect_args={"check_same_thread": False})
    else:
        _make_private(parsed.database)
        args = {"timeout": _BUSY_SECONDS, "check_same_thread": False}
        engine = create_engine(parsed, pool_size=8, max_overflow=24, pool_timeout=_BUSY_SECONDS, connect_args=args)
    event.listen(engine, "connect", _sqlite_settings)
    event.listen(engine, "begin", _sqlite_begin)
    return engine


def in_memory(database: str | None) -> bool:
    """True for an SQLite database that lives in one connection."""
    return database in (None, "", ":memory:")


def _make_private(database: str | None) -> None:
    """Create the file before SQLite does: the journal files take over its mode."""
    if database is None or database.startswith("file:"):
        return
    path = Path(database)
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    if not path.exists():
        os.close(os.open(path, os.O_CREAT | os.O_WRONLY, 0o600))


def _sqlite_settings(connection: Any, _record: object) -> None:
    # None: the driver no longer begins transactions by itself, `_sqlite_begin` does (as SQLAlchemy advises).
    connection.isolation_level = None
    for setting in (
        f"busy_timeout = {_BUSY_SECONDS * 1000}",
        "synchronous = FULL",
        "recursive_triggers = ON",
    ):
        connection.execute(f"PRAGMA {setting}")
    # Switching needs the file alone for a moment; it lasts, so only the first connection ever does it.
    if connection.execute("PRAGMA journal_mode").fetchone()[0] == "delete":
        connection.execute("PRAGMA journal_mode = WAL")


def _sqlite_begin(connection: Connection) -> None:
    writer = connection.get_execution_options().get(_WRITER, False)
    # A deferred transaction that reads and then writes fails at once when another writer came between.
    connection.exec_driver_sql("BEGIN IMMEDIATE" if writer else "BEGIN")


@contextmanager
def writing(engine: Engine) -> Iterator[Connection]:
    """The one transaction that may write: all others, of any process, wait for its end."""
    with engine.connect().execution_options(**{_WRITER: True}) as connection, connection.begin():
        if connection.dialect.name == "postgresql":
            connection.execute(text(f"SET LOCAL lock_timeout = '{_BUSY_SECONDS}s'"))
            connection.execute(text(f"SELECT pg_advisory_xact_lock({_PG_LOCK})"))
        yield connection


def prepare(engine: Engine) -> None:
    """Create the tables where they are missing.

    Raises:
        LedgerCorruptError: when a newer Relight has written this database.
    """
    with engine.connect() as connection:
        if _version(connection) == SCHEMA_VERSION:
            return
    with writing(engine) as connection:
        found = _version(connection)
        if found is not None and found > SCHEMA_VERSION:
            raise LedgerCorruptError(
                f"the ledger has schema version {found}, this Relight knows {SCHEMA_VERSION}: upgrade",
            )
        if found is None:
            _create(connection)


def _version(connection: Connection) -> int | None:
    if not inspect(connection).has_table(schema.name):
        return None
    return connection.scalar(select(schema.c.version).order_by(schema.c.version.desc()).limit(1))


def _create(connection: Connection) -> None:
    metadata.create_all(connection)
    triggers = _SQLITE_TRIGGERS if connection.dialect.name == "sqlite" else _POSTGRESQL_TRIGGERS
    for trigger in triggers:
        connection.execute(trigger)
    connection.execute(insert(schema), {"version": SCHEMA_VERSION})
