"""Reads a span of the ledger for reports: attempts with their progress and ends, incidents; a page at a time.

What is large in the ledger (scripts, diagnoses) is let go with its page, so that memory does not grow with it. Each
query goes by an index or a primary key.
"""

from collections.abc import AsyncIterator, Iterable, Iterator, Sequence
from datetime import datetime
from typing import TypeVar

from sqlalchemy import and_, or_, select

from relight.clients import ledger_schema as db
from relight.clients.ledger_rows import stamp, storable
from relight.clients.ledger_sql import SqlLedger
from relight.domain.attempts import AttemptState, Progress, progress_cursor
from relight.domain.goodput_runs import Ending, Seen, ending_of
from relight.domain.incidents import Incident
from relight.domain.ledger import Row, RowKind

PAGE = 500
MOST_ATTEMPTS = 50_000
"""Attempts in one report; of more, those that ended last are left out, and this is said."""
T = TypeVar("T")


async def rows_of(ledger: SqlLedger, cluster: str, kind: RowKind, since: datetime) -> AsyncIterator[Row]:
    """All rows of a kind written since then, in the order written."""
    after = 0
    while page := await ledger.rows(kind=kind, since=since, after=after, limit=PAGE):
        for row in page:
            if row.cluster == cluster:
                yield row
        after = page[-1].seq


async def incidents_since(ledger: SqlLedger, cluster: str, since: datetime) -> AsyncIterator[Incident]:
    """All incidents opened since then, oldest first."""
    table = db.incidents
    query = select(table.c.id, table.c.opened_at, table.c.state).order_by(table.c.opened_at, table.c.id).limit(PAGE)
    query = query.where(table.c.cluster == storable(cluster), table.c.opened_at >= stamp(since))
    page = await ledger.select(query)
    while page:
        for row in page:
            yield Incident.model_validate_json(row["state"])
        at, last = page[-1]["opened_at"], page[-1]["id"]
        later = or_(table.c.opened_at > at, and_(table.c.opened_at == at, table.c.id > last))
        page = await ledger.select(query.where(later))


async def ends_since(ledger: SqlLedger, cluster: str, since: datetime) -> tuple[dict[str, Ending], bool]:
    """How the attempts ended that did since then, by the text of their keys; and whether there are more."""
    found: dict[str, Ending] = {}
    async for row in rows_of(ledger, cluster, RowKind.ATTEMPT_ENDED, since):
        if len(found) >= MOST_ATTEMPTS and row.attempt not in found:
            return found, True
        found[row.attempt] = ending_of(row)
    return found, False


async def running_keys(ledger: SqlLedger, cluster: str) -> tuple[str, ...]:
    """The texts of the keys of attempts that run."""
    table = db.attempts
    query = select(table.c.key).where(table.c.cluster == storable(cluster), table.c.running.is_(True))
    return tuple(str(row["key"]) for row in await ledger.select(query.order_by(table.c.key).limit(MOST_ATTEMPTS)))


async def keys_of_lineage(ledger: SqlLedger, lineage: str) -> tuple[str, ...]:
    """The texts of the keys of all attempts of one job, whatever Slurm job ids they have, oldest first."""
    table = db.ledger
    query = select(table.c.attempt).where(table.c.lineage == storable(lineage), table.c.kind == RowKind.ATTEMPT_SEEN)
    found = await ledger.select(query.order_by(table.c.seq).limit(MOST_ATTEMPTS))
    return tuple(dict.fromkeys(str(row["attempt"]) for row in found))


async def ends_of(ledger: SqlLedger, lineage: str) -> dict[str, Ending]:
    """How the attempts of one job ended, by the text of their keys."""
    after, found = 0, dict[str, Ending]()
    while page := await ledger.rows(lineage=lineage, kind=RowKind.ATTEMPT_ENDED, after=after, limit=PAGE):
        found |= {row.attempt: ending_of(row) for row in page}
        after = page[-1].seq
    return found


async def seen(ledger: SqlLedger, keys: Sequence[str], ends: dict[str, Ending]) -> AsyncIterator[Seen]:
    """What the ledger knows of these attempts; of those that it does not know, nothing."""
    for part in _parts(keys, PAGE):
        table, wanted = db.attempts, [storable(key) for key in part]
        states = await ledger.select(select(table.c.key, table.c.state).where(table.c.key.in_(wanted)))
        known = [(str(row["key"]), AttemptState.model_validate_json(row["state"])) for row in states]
        names = [storable(progress_cursor(state.attempt.key)) for _, state in known]
        values = await ledger.select(
            select(db.cursors.c.name, db.cursors.c.value).where(db.cursors.c.name.in_(names)),
        )
        progress = {row["name"]: Progress.model_validate_json(row["value"]) for row in values}
        for (key, state), name in zip(known, names, strict=True):
            yield Seen(state, progress.get(name), ends.get(key))


def _parts(items: Iterable[T], size: int) -> Iterator[list[T]]:
    part: list[T] = []
    for item in items:
        part.append(item)
        if len(part) == size:
            yield part
            part = []
    if part:
        yield part
