"""The schema that versions 0.1 made. A ledger of theirs counts as having had this step."""

from alembic import op
from sqlalchemy import BigInteger, Boolean, Column, Integer, Text, insert, text

revision = "0001"
down_revision = None

_ABORT = "BEGIN SELECT RAISE(ABORT, 'the ledger only grows'); END"
_SQLITE = (
    f"CREATE TRIGGER ledger_no_update BEFORE UPDATE ON ledger {_ABORT}",
    f"CREATE TRIGGER ledger_no_delete BEFORE DELETE ON ledger {_ABORT}",
    # INSERT OR REPLACE removes the old row without a delete trigger.
    """CREATE TRIGGER ledger_no_replace BEFORE INSERT ON ledger WHEN EXISTS
    (SELECT 1 FROM ledger WHERE seq = NEW.seq OR id = NEW.id OR prev_hash = NEW.prev_hash)
    BEGIN SELECT RAISE(ABORT, 'the ledger only grows'); END""",
)
_POSTGRESQL = (
    """CREATE OR REPLACE FUNCTION ledger_only_grows() RETURNS trigger LANGUAGE plpgsql AS
    $$ BEGIN RAISE EXCEPTION 'the ledger only grows'; END $$""",
    """CREATE TRIGGER ledger_only_grows BEFORE UPDATE OR DELETE OR TRUNCATE ON ledger
    FOR EACH STATEMENT EXECUTE FUNCTION ledger_only_grows()""",
)


def upgrade() -> None:
    """Make tables, indexes and the triggers that refuse changes of the audit trail."""
    # SQLite numbers rows only where the type reads INTEGER.
    serial = BigInteger().with_variant(Integer, "sqlite")
    version = op.create_table("schema_version", Column("version", Integer, primary_key=True))
    op.create_table(
        "ledger",
        Column("seq", serial, primary_key=True, autoincrement=False),
        Column("id", Text, nullable=False, unique=True),
        *(_text(name) for name in ("kind", "at", "cluster", "incident", "attempt", "lineage", "node", "body")),
        Column("prev_hash", Text, nullable=False, unique=True),
        _text("hash"),
    )
    for name in ("incident", "lineage", "attempt", "node", "kind"):
        op.create_index(f"ledger_by_{name}", "ledger", [name, "seq"])
    op.create_table(
        "ledger_head",
        Column("one", Integer, primary_key=True, autoincrement=False),
        Column("seq", serial, nullable=False),
        *(_text(name) for name in ("hash", "seal")),
    )
    op.create_table(
        "attempts",
        Column("key", Text, primary_key=True),
        _text("cluster"),
        Column("job_id", BigInteger, nullable=False),
        _text("lineage"),
        Column("running", Boolean, nullable=False),
        *(_text(name) for name in ("seen_at", "state")),
    )
    op.create_index("attempts_running", "attempts", ["cluster", "running"])
    op.create_index("attempts_by_job", "attempts", ["cluster", "job_id", "key"])
    op.create_table(
        "outbox",
        Column("id", Text, primary_key=True),
        *(_text(name) for name in ("cluster", "created_at", "body")),
        Column("delivered_at", Text),
    )
    op.create_index("outbox_undelivered", "outbox", ["delivered_at", "created_at"])
    op.create_table(
        "incidents",
        Column("id", Text, primary_key=True),
        *(_text(name) for name in ("cluster", "lineage", "attempt")),
        Column("open", Boolean, nullable=False),
        *(_text(name) for name in ("opened_at", "state")),
    )
    op.create_index("incidents_by_time", "incidents", ["cluster", "opened_at"])
    op.create_index("incidents_by_lineage", "incidents", ["lineage", "opened_at"])
    op.create_index("incidents_by_attempt", "incidents", ["attempt", "opened_at"])
    op.create_index("incidents_open", "incidents", ["open", "opened_at"])
    op.create_table("cursors", Column("name", Text, primary_key=True), _text("value"))
    for trigger in _SQLITE if op.get_context().dialect.name == "sqlite" else _POSTGRESQL:
        op.execute(text(trigger))
    # What versions 0.1 look at: one that a later step would trouble is told by a greater number here.
    op.execute(insert(version).values(version=1))


def _text(name: str) -> "Column[str]":
    return Column(name, Text, nullable=False)
