"""Which schema a ledger has, and how it gets the newest: the steps are in `relight.clients.migrations`.

SQLite is brought up to date by whoever opens it. A PostgreSQL ledger is made where there is none yet, and otherwise
brought up to date by `relight ledger upgrade` alone: that needs the role that owns the tables, which workers should
not have.
"""

import threading
from pathlib import Path

from sqlalchemy import Column, Connection, Engine, MetaData, Table, Text, exc, inspect, select

from relight.clients.ledger import LedgerCorruptError, LedgerUnavailableError
from relight.clients.ledger_schema import connect, schema, told, writing

HEAD = "0002"
"""The newest step: what this version works with."""
ADOPTED = "0001"
"""What versions 0.1 made, which knew no steps."""
_STEPS = Path(__file__).parent / "migrations"
_one_at_a_time = threading.Lock()
"""Alembic's `op` is one for the whole process."""
_applied = Table("alembic_version", MetaData(), Column("version_num", Text, primary_key=True))


def version_of(connection: Connection) -> str | None:
    """The step that the ledger's schema is at; None where there is no ledger."""
    tables = inspect(connection)
    if tables.has_table(_applied.name):
        return connection.scalar(select(_applied.c.version_num))
    return ADOPTED if tables.has_table(schema.name) else None


def prepare(engine: Engine) -> None:
    """Make sure that the schema is the one this version works with; blocks.

    Raises:
        LedgerCorruptError: it is newer, or an older one of PostgreSQL.
        LedgerUnavailableError: there is none, and this role may not make it.
    """
    with engine.connect() as connection:
        found = version_of(connection)
    if found == HEAD:
        return
    if found is not None and engine.dialect.name != "sqlite":
        _refuse_newer(found)
        raise LedgerCorruptError(
            f"the ledger has schema {found}, this Relight works with {HEAD}: run `relight ledger upgrade` as the "
            "role that owns its tables",
        )
    upgrade(engine)


def upgrade(engine: Engine) -> tuple[str | None, str]:
    """Bring the schema up to date in one transaction; returns what it was (None: there was none) and what it is.

    Raises:
        LedgerCorruptError: it is newer than this version's.
        LedgerUnavailableError: the role may not do it.
    """
    try:
        with writing(engine) as connection:
            found = version_of(connection)
            if found != HEAD:
                _refuse_newer(found)
                _run(connection, found)
    except exc.ProgrammingError as error:
        raise LedgerUnavailableError(
            f"the ledger's tables cannot be made or changed by {engine.url.username or 'this role'}: {error.orig}; "
            "run `relight ledger upgrade` as the role that owns them (--url)",
        ) from error
    return found, HEAD


def upgrade_at(url: str) -> tuple[str | None, str]:
    """As `upgrade`, for the database at this address."""
    with told():
        engine = connect(url)
        try:
            return upgrade(engine)
        finally:
            engine.dispose()


def _refuse_newer(found: str | None) -> None:
    if found is not None and found not in _known():
        raise LedgerCorruptError(
            f"the ledger has schema {found}, which this Relight does not know (it works with {HEAD}): upgrade Relight",
        )


def _known() -> frozenset[str]:
    return frozenset(path.name[1:5] for path in _STEPS.glob("r[0-9][0-9][0-9][0-9]_*.py"))


def _run(connection: Connection, found: str | None) -> None:
    # Imported only where there is something to do: it takes as long as a whole command otherwise does.
    from alembic.config import Config  # noqa: PLC0415
    from alembic.runtime.environment import EnvironmentContext  # noqa: PLC0415
    from alembic.script import ScriptDirectory  # noqa: PLC0415

    script = ScriptDirectory(str(_STEPS), version_locations=[str(_STEPS)])
    # Without env.py, which would connect by itself: this runs in the transaction that all writers wait for.
    steps = script._upgrade_revs  # noqa: SLF001 - as Alembic's manual does it
    with _one_at_a_time, EnvironmentContext(Config(), script, fn=lambda rev, _: steps("head", rev)) as environment:
        environment.configure(connection=connection)
        if found == ADOPTED and not inspect(connection).has_table(_applied.name):
            environment.get_context().stamp(script, ADOPTED)
        environment.run_migrations()
