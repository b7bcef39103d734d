"""What a PostgreSQL role needs to work with the ledger, and nothing beyond: rows of the audit trail are only added."""

import re

from relight.clients import ledger_schema as db

_ROLE = re.compile(r"[A-Za-z_][A-Za-z0-9_$-]{0,62}")
_READ = (db.schema.name, "alembic_version")
_CHANGED = (db.head, db.attempts, db.outbox, db.incidents, db.cursors)
"""The seal of the newest row, and the read models."""


def sql(role: str, *, read_only: bool = False) -> str:
    """The statements, to be run by the role that owns the tables.

    Raises:
        ValueError: no name of a role.
    """
    if not _ROLE.fullmatch(role):
        raise ValueError(f"{role[:64]!r} is no role's name; accepted: letters, digits and _ $ -, at most 63")
    name, ledger = f'"{role}"', db.ledger.name
    every = ", ".join((ledger, *(table.name for table in _CHANGED), *_READ))
    changed = ", ".join(table.name for table in _CHANGED)
    lines = [
        "BEGIN;",
        f"REVOKE ALL ON {every} FROM {name}, PUBLIC;",
        f"GRANT SELECT ON {every} TO {name};",
        *([] if read_only else [f"GRANT INSERT ON {ledger} TO {name};"]),
        *([] if read_only else [f"GRANT INSERT, UPDATE, DELETE ON {changed} TO {name};"]),
        "COMMIT;",
    ]
    return "\n".join(lines)
