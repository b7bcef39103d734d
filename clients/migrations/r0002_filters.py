"""What incidents and attempts are looked for by, in columns of their own; the audit trail by time.

Lists with filters are then answered from an index, and not by reading each state. Versions 0.1 work on with it: what
they write has the columns' defaults.
"""

import json
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from alembic import op
from sqlalchemy import BigInteger, Column, Connection, Text, bindparam, column, select, table, update
from sqlalchemy.sql.expression import TableClause

revision = "0002"
down_revision = "0001"

_INCIDENT = ("user", "job_name", "kind", "phase", "mode", "outcome", "cause", "category", "nodes", "closed_at")
_ATTEMPT = ("user", "job_name", "partition")
_INCIDENTS_LISTED = (
    *("cluster", "opened_at", "id", "open", "outcome", "closed_at", "phase", "kind", "category"),
    *("user", "job_id", "job_name", "cause", "nodes"),
)
_ATTEMPTS_LISTED = ("cluster", "seen_at", "key", "lineage", "running", "user", "job_id", "job_name", "partition")
_PAGE = 500


def upgrade() -> None:
    """Add columns and indexes, and fill the columns from the states that are there."""
    for name in _INCIDENT:
        op.add_column("incidents", _text(name))
    op.add_column("incidents", Column("job_id", BigInteger, nullable=False, server_default="0"))
    for name in _ATTEMPT:
        op.add_column("attempts", _text(name))
    connection = op.get_bind()
    _fill(connection, _known("incidents", "id", (*_INCIDENT, "job_id")), "id", _of_incident)
    _fill(connection, _known("attempts", "key", _ATTEMPT), "key", _of_attempt)
    op.create_index("incidents_by_user", "incidents", ["cluster", "user", "opened_at"])
    op.create_index("incidents_by_job", "incidents", ["cluster", "job_id", "opened_at"])
    op.create_index("incidents_by_outcome", "incidents", ["cluster", "outcome", "opened_at"])
    op.create_index("attempts_by_seen", "attempts", ["cluster", "seen_at"])
    op.create_index("attempts_by_lineage", "attempts", ["lineage", "seen_at"])
    op.create_index("attempts_by_user", "attempts", ["cluster", "user", "seen_at"])
    op.create_index("ledger_by_time", "ledger", ["at", "seq"])
    if connection.dialect.name == "sqlite":
        op.create_index("incidents_listed", "incidents", list(_INCIDENTS_LISTED))
        op.create_index("attempts_listed", "attempts", list(_ATTEMPTS_LISTED))


def _text(name: str) -> "Column[str]":
    return Column(name, Text, nullable=False, server_default="")


def _known(name: str, key: str, names: tuple[str, ...]) -> TableClause:
    return table(name, *(column(each) for each in (key, "state", *names)))


def _of_incident(state: Mapping[str, Any]) -> dict[str, Any]:
    first = ((state.get("diagnosis") or {}).get("hypotheses") or [{}])[0]
    nodes = (first.get("implicated") or {}).get("nodes") or ()
    return {
        **{name: state.get(name) or "" for name in ("user", "job_name", "kind", "phase", "mode", "outcome")},
        "job_id": (state.get("attempt") or {}).get("job_id") or 0,
        "cause": first.get("signature") or "",
        "category": first.get("category") or "",
        "nodes": f" {' '.join(nodes)} " if nodes else "",
        "closed_at": _stamp(state.get("closed_at")),
    }


def _of_attempt(state: Mapping[str, Any]) -> dict[str, Any]:
    record = (state.get("attempt") or {}).get("record") or {}
    names = {"user": "user", "job_name": "name", "partition": "partition"}
    return {ours: record.get(theirs) or "" for ours, theirs in names.items()}


def _stamp(at: str | None) -> str:
    """A time of a state (`...Z`, microseconds only where there are any) as the columns have it."""
    if not at:
        return ""
    moment, _, _ = at.replace("Z", "+00:00").partition("+")
    return f"{moment if '.' in moment else moment + '.000000'}+00:00"


def _fill(connection: Connection, known: TableClause, key: str, read: Callable[[Mapping[str, Any]], Any]) -> None:
    where = update(known).where(known.c[key] == bindparam("the_key"))
    for page in _pages(connection, known, key):
        values = [{"the_key": name, **read(json.loads(state))} for name, state in page]
        names = [name for name in values[0] if name != "the_key"]
        connection.execute(where.values({name: bindparam(name) for name in names}), values)


def _pages(connection: Connection, known: TableClause, key: str) -> Iterator[list[Any]]:
    after = ""
    query = select(known.c[key], known.c.state).order_by(known.c[key]).limit(_PAGE)
    while page := list(connection.execute(query.where(known.c[key] > after))):
        yield page
        after = page[-1][0]
