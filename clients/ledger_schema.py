"""The ledger's tables, and how each database is opened.

What differs between SQLite and PostgreSQL stands here and in `migrations` (which make these tables, and the triggers
by which the database itself refuses changes to the audit trail): connection settings, and how writers are serialised
(two writers that do not wait for each other fork the chain within 600 rows: seen).
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
    create_engine,
    event,
    exc,
    make_url,
    text,
)

from relight.clients.ledger import LedgerCorruptError, LedgerUnavailableError

_BUSY_SECONDS = 15
_CONNECT_SECONDS = 5
_PG_LOCK = 0x72656C69_67687401  # "relight", 1: the advisory lock that every writer takes
_WRITER = "relight_writer"

metadata = MetaData()
# SQLite numbers rows only where the type reads INTEGER.
_Serial = BigInteger().with_variant(Integer, "sqlite")


def _filter(name: str) -> "Column[str]":
    """Part of a state, in a column of its own to look for it by; empty where there is none."""
    return Column(name, Text, nullable=False, server_default="")


INCIDENTS_LISTED = (
    *("cluster", "opened_at", "id", "open", "outcome", "closed_at", "phase", "kind", "category"),
    *("user", "job_id", "job_name", "cause", "nodes"),
)
ATTEMPTS_LISTED = ("cluster", "seen_at", "key", "lineage", "running", "user", "job_id", "job_name", "partition")
"""All that lists of incidents and of jobs are filtered by."""

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
    Index("ledger_by_time", "at", "seq"),
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
    *(_filter(name) for name in ("user", "job_name", "partition")),
    Index("attempts_running", "cluster", "running"),
    Index("attempts_by_job", "cluster", "job_id", "key"),
    Index("attempts_by_seen", "cluster", "seen_at"),
    Index("attempts_by_lineage", "lineage", "seen_at"),
    Index("attempts_by_user", "cluster", "user", "seen_at"),
    # SQLite keeps a row together, its wide state before what came later: a list must not read it for each row it skips.
    # PostgreSQL keeps such a state aside by itself, and has no room for thousands of nodes in an index.
    Index("attempts_listed", *ATTEMPTS_LISTED).ddl_if(dialect="sqlite"),
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
    *(_filter(name) for name in ("user", "job_name", "kind", "phase", "mode", "outcome")),
    *(_filter(name) for name in ("cause", "category", "nodes", "closed_at")),
    Column("job_id", BigInteger, nullable=False, server_default="0"),
    Index("incidents_by_time", "cluster", "opened_at"),
    Index("incidents_by_user", "cluster", "user", "opened_at"),
    Index("incidents_by_job", "cluster", "job_id", "opened_at"),
    Index("incidents_by_outcome", "cluster", "outcome", "opened_at"),
    Index("incidents_listed", *INCIDENTS_LISTED).ddl_if(dialect="sqlite"),
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


@contextmanager
def one_moment(engine: Engine) -> Iterator[Connection]:
    """A transaction whose reads all show the ledger of one moment, whoever writes meanwhile."""
    # SQLite's are so by themselves; PostgreSQL's default shows each statement the newest.
    level = {"isolation_level": "REPEATABLE READ"} if engine.dialect.name == "postgresql" else {}
    with engine.connect().execution_options(**level) as connection, connection.begin():
        yield connection
