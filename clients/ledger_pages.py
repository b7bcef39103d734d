"""The ledger by pages, for who looks at it: filters and limits in SQL, so that its size does not show.

Pages are cut by key, not by number: what is added meanwhile neither repeats nor hides a line.
"""

import asyncio
import json
from collections.abc import Collection, Sequence
from datetime import datetime, timedelta
from typing import Any, NamedTuple

from pydantic import ValidationError
from sqlalchemy import ColumnElement, RowMapping, Select, and_, exists, func, or_, select

from relight.clients import ledger_schema as db
from relight.clients.ledger import LedgerCorruptError
from relight.clients.ledger_rows import read_row, stamp, storable
from relight.clients.ledger_sql import SqlLedger
from relight.domain.attempts import AttemptKey, AttemptState, Progress, progress_cursor
from relight.domain.diagnosis import Diagnosis, Hypothesis
from relight.domain.incidents import Incident, Outcome
from relight.domain.ledger import Row, RowKind
from relight.domain.slurm import JobRecord

_AT_ONCE = 500
"""Names in one query."""


class Key(NamedTuple):
    """Where a page ends: the time and id of its last line."""

    at: str
    id: str


class Wanted(NamedTuple):
    """Which incidents; what is empty or None is not asked for."""

    cluster: str
    open: bool | None = None
    users: tuple[str, ...] = ()
    job_id: int | None = None
    kind: str = ""
    phase: str = ""
    outcome: str = ""
    category: str = ""
    node: str = ""
    text: str = ""
    since: datetime | None = None
    until: datetime | None = None
    closed_since: datetime | None = None
    everything: bool = False
    """Also what was not confirmed."""


class WantedJobs(NamedTuple):
    """Which jobs; what is empty or None is not asked for."""

    cluster: str
    running: bool | None = None
    users: tuple[str, ...] = ()
    job_id: int | None = None
    text: str = ""


class WantedRows(NamedTuple):
    """Which rows; what is empty or None is not asked for."""

    cluster: str
    incident: str = ""
    lineage: str = ""
    attempt: str = ""
    node: str = ""
    kind: str = ""
    since: datetime | None = None
    until: datetime | None = None


class Mark(NamedTuple):
    """What a row is about, without its body."""

    seq: int
    kind: str
    incident: str
    lineage: str
    node: str


class Counted(NamedTuple):
    """How many attempts and incidents a job has, and its newest open incident."""

    attempts: int = 0
    incidents: int = 0
    open_incident: str = ""


class Diagnosed(NamedTuple):
    """What of an incident speaks for or against a node (`domain.care_history.signs_of`)."""

    id: str
    detected_at: datetime
    diagnosis: Diagnosis
    """With the verdict alone."""


class LedgerPages:
    """Reads a ledger by pages."""

    def __init__(self, ledger: SqlLedger) -> None:
        self._ledger = ledger

    async def head(self) -> int:
        """The number of the newest row; 0 where there is none."""
        found = await self._ledger.select(select(func.max(db.ledger.c.seq).label("seq")))
        return int(found[0]["seq"] or 0)

    async def marks(self, after: int, limit: int) -> tuple[Mark, ...]:
        """What the rows after a number are about, oldest first."""
        table = db.ledger.c
        query = select(table.seq, table.kind, table.incident, table.lineage, table.node)
        found = await self._ledger.select(query.where(table.seq > after).order_by(table.seq).limit(limit))
        return tuple(Mark(**row) for row in found)

    # --- incidents ----------------------------------------------------------------------------------------------------

    async def incidents(self, wanted: Wanted, limit: int, before: Key | None = None) -> tuple[Incident, ...]:
        """Those that fit, newest first."""
        table = db.incidents.c
        order = table.opened_at.desc(), table.id.desc()
        ids = select(table.id).where(*_fits(wanted)).order_by(*order)
        ids = _before(ids, table.opened_at, table.id, before).limit(limit)
        found = await self._ledger.select(select(table.state).where(table.id.in_(ids)).order_by(*order))
        return tuple(_value(Incident, row["state"]) for row in found)

    async def count_incidents(self, wanted: Wanted) -> int:
        """How many fit."""
        query = select(func.count().label("all")).select_from(db.incidents).where(*_fits(wanted))
        return int((await self._ledger.select(query))[0]["all"])

    async def beside(self, incident: Incident) -> tuple[str, str]:
        """Ids of the same job's incident before and after; empty where there is none."""
        table = db.incidents.c
        own, at = storable(incident.lineage), stamp(incident.opened_at)
        if not own:
            return "", ""
        earlier = select(table.id).where(table.lineage == own, table.opened_at < at).order_by(table.opened_at.desc())
        later = select(table.id).where(table.lineage == own, table.opened_at > at).order_by(table.opened_at)
        found = [await self._ledger.select(query.limit(1)) for query in (earlier, later)]
        before, after = (str(rows[0]["id"]) if rows else "" for rows in found)
        return before, after

    async def rows_of(self, incidents: Collection[str], kinds: Collection[RowKind]) -> dict[str, tuple[Row, ...]]:
        """The rows of these kinds of each incident, in the order written. An incident has few: most end after ten."""
        table, found = db.ledger, dict[str, list[Row]]()
        names = [storable(name) for name in incidents]
        for start in range(0, len(names), _AT_ONCE):
            part = table.c.incident.in_(names[start : start + _AT_ONCE])
            rows = await self._ledger.select(select(table).where(part, _of_kinds(kinds)))
            for row in sorted(rows, key=lambda row: int(row["seq"])):
                found.setdefault(row["incident"], []).append(read_row(row))
        return {name: tuple(rows) for name, rows in found.items()}

    async def verdicts(self, cluster: str, since: datetime, limit: int) -> tuple[Diagnosed, ...]:
        """The verdicts of the newest incidents that name a node.

        Their states are large, and what is asked of hundreds at once is little: the rest is not read.
        """
        table = db.incidents.c
        ids = select(table.id).where(table.cluster == storable(cluster), table.nodes != "")
        ids = ids.where(table.opened_at >= stamp(since)).order_by(table.opened_at.desc()).limit(limit)
        found = await self._ledger.select(select(table.state).where(table.id.in_(ids)))
        return await asyncio.to_thread(lambda: tuple(_verdict(row["state"]) for row in found))

    # --- jobs ---------------------------------------------------------------------------------------------------------

    async def jobs(self, wanted: WantedJobs, limit: int, before: Key | None = None) -> tuple[AttemptState, ...]:
        """The newest attempt of each job that fits, the job last begun first."""
        table, other = db.attempts.c, db.attempts.alias().c
        later = exists().where(other.lineage == table.lineage, other.seen_at > table.seen_at)
        order = table.seen_at.desc(), table.key.desc()
        keys = select(table.key).where(*_fit_jobs(wanted), ~later).order_by(*order)
        keys = _before(keys, table.seen_at, table.key, before).limit(limit)
        found = await self._ledger.select(select(table.state).where(table.key.in_(keys)).order_by(*order))
        return tuple(_value(AttemptState, row["state"]) for row in found)

    async def counted(self, lineages: Collection[str]) -> dict[str, Counted]:
        """How much there is of each job (one page of them)."""
        attempts, incidents = db.attempts.c, db.incidents.c
        names = [storable(lineage) for lineage in lineages]
        tries = select(attempts.lineage, func.count().label("all")).where(attempts.lineage.in_(names))
        known = select(incidents.lineage, incidents.id, incidents.open).where(incidents.lineage.in_(names))
        found: dict[str, list[RowMapping]] = {}
        for row in await self._ledger.select(known.order_by(incidents.opened_at.desc())):
            found.setdefault(row["lineage"], []).append(row)
        numbers = {
            row["lineage"]: int(row["all"]) for row in await self._ledger.select(tries.group_by(attempts.lineage))
        }
        return {
            name: Counted(
                numbers.get(name, 0),
                len(found.get(name, ())),
                next((str(row["id"]) for row in found.get(name, ()) if row["open"]), ""),
            )
            for name in names
        }

    async def of_lineage(self, lineage: str) -> AttemptState | None:
        """The newest attempt of a job; None when it was never seen."""
        table = db.attempts.c
        query = select(table.state).where(table.lineage == storable(lineage)).order_by(table.seen_at.desc()).limit(1)
        found = await self._ledger.select(query)
        return _value(AttemptState, found[0]["state"]) if found else None

    async def progress(self, keys: Collection[AttemptKey]) -> dict[AttemptKey, Progress]:
        """How far each attempt has come; without those of which nothing is known."""
        names = {storable(progress_cursor(key)): key for key in keys}
        table, listed, known = db.cursors.c, list(names), dict[AttemptKey, Progress]()
        for start in range(0, len(listed), _AT_ONCE):
            part = table.name.in_(listed[start : start + _AT_ONCE])
            for row in await self._ledger.select(select(table.name, table.value).where(part)):
                known[names[row["name"]]] = _value(Progress, row["value"])
        return known

    async def display_ids(self, keys: Collection[AttemptKey]) -> dict[AttemptKey, str]:
        """The job id of each attempt as Slurm's commands print it; without those that were never seen."""
        names = {storable(str(key)): key for key in keys}
        table, listed, known = db.attempts.c, list(names), dict[AttemptKey, str]()
        for start in range(0, len(listed), _AT_ONCE):
            part = table.key.in_(listed[start : start + _AT_ONCE])
            for row in await self._ledger.select(select(table.key, table.state).where(part)):
                known[names[row["key"]]] = _display_id(row["state"])
        return known

    async def count_running(self, cluster: str, users: tuple[str, ...] = ()) -> int:
        """How many attempts run (of these users' jobs)."""
        wanted = _fit_jobs(WantedJobs(cluster, running=True, users=users))
        query = select(func.count().label("all")).select_from(db.attempts).where(*wanted)
        return int((await self._ledger.select(query))[0]["all"])

    # --- rows ---------------------------------------------------------------------------------------------------------

    async def rows(self, wanted: WantedRows, limit: int, before: int | None = None) -> tuple[Row, ...]:
        """Rows that fit, newest first."""
        table = db.ledger
        query = select(table).where(table.c.cluster == storable(wanted.cluster))
        for name in ("incident", "lineage", "attempt", "node", "kind"):
            if value := getattr(wanted, name):
                query = query.where(table.c[name] == storable(value))
        if wanted.since:
            query = query.where(_at_least(wanted.since))
        if wanted.until:
            query = query.where(_before_time(wanted.until))
        if before is not None:
            query = query.where(table.c.seq < before)
        found = await self._ledger.select(query.order_by(table.c.seq.desc()).limit(limit))
        return tuple(read_row(row) for row in found)

    async def of_node(
        self, cluster: str, node: str, kinds: Collection[RowKind], since: datetime, limit: int
    ) -> tuple[Row, ...]:
        """The newest rows of these kinds on a node, in the order written."""
        table = db.ledger
        query = select(table).where(table.c.node == storable(node), _of_kinds(kinds))
        query = query.where(table.c.cluster == storable(cluster), table.c.at >= stamp(since))
        found = await self._ledger.select(query.order_by(table.c.seq.desc()).limit(limit))
        return tuple(read_row(row) for row in reversed(found))

    async def newest_care(self, cluster: str, since: datetime, limit: int) -> tuple[Row, ...]:
        """All rows of the newest quarantine of each node, in the order written; of the newest `limit` nodes."""
        table, ours = db.ledger, storable(cluster)
        of_care = and_(table.c.kind == RowKind.CARE.value, table.c.cluster == ours)
        newest = select(func.max(table.c.seq)).where(of_care, table.c.at >= stamp(since)).group_by(table.c.node)
        query = select(table.c.node, table.c.incident).where(table.c.seq.in_(newest))
        last = await self._ledger.select(query.order_by(table.c.seq.desc()).limit(limit))
        rows: list[RowMapping] = []
        cares = [row["incident"] for row in last]
        for start in range(0, len(cares), _AT_ONCE):
            part = table.c.incident.in_(cares[start : start + _AT_ONCE])
            rows += await self._ledger.select(select(table).where(of_care, part).order_by(table.c.seq))
        return await _read(sorted(rows, key=lambda row: int(row["seq"])))

    async def care_after(self, cluster: str, after: int) -> tuple[Row, ...]:
        """Rows of quarantines written after a row, in the order written."""
        table = db.ledger
        query = select(table).where(table.c.kind == RowKind.CARE.value, table.c.seq > after)
        found = await self._ledger.select(query.where(table.c.cluster == storable(cluster)).order_by(table.c.seq))
        return await _read(found)


async def _read(found: Sequence[RowMapping]) -> tuple[Row, ...]:
    """Beside the event loop: there may be many."""
    return await asyncio.to_thread(lambda: tuple(read_row(row) for row in found))


def _of_kinds(kinds: Collection[RowKind]) -> ColumnElement[bool]:
    """Of any of these kinds, but not by the index of kinds: there is a narrower one for what else is asked."""
    return func.coalesce(db.ledger.c.kind, "").in_([kind.value for kind in kinds])


def _fits(wanted: Wanted) -> list[ColumnElement[bool]]:
    table = db.incidents.c
    texts = {name: getattr(wanted, name) for name in ("kind", "phase", "outcome", "category")}
    found = [table.cluster == storable(wanted.cluster)]
    found += [table[name] == storable(value) for name, value in texts.items() if value]
    if wanted.open is not None:
        found.append(table.open.is_(wanted.open))
    if wanted.users:
        found.append(table.user.in_([storable(user) for user in wanted.users]))
    if wanted.job_id is not None:
        found.append(table.job_id == wanted.job_id)
    if wanted.node:
        found.append(_holds(table.nodes, f" {wanted.node} "))
    if wanted.text:
        columns = (table.id, table.job_name, table.user, table.cause, table.nodes)
        found.append(_speaks_of(wanted.text, table.job_id, *columns))
    if not wanted.everything and wanted.outcome != Outcome.NOT_CONFIRMED:
        found.append(table.outcome != Outcome.NOT_CONFIRMED.value)
    return [*found, *_within(wanted)]


def _within(wanted: Wanted) -> list[ColumnElement[bool]]:
    table, found = db.incidents.c, list[ColumnElement[bool]]()
    if wanted.since:
        found.append(table.opened_at >= stamp(wanted.since))
    if wanted.until:
        found.append(table.opened_at < stamp(wanted.until))
    if wanted.closed_since:
        found.append(table.closed_at >= stamp(wanted.closed_since))
    return found


def _fit_jobs(wanted: WantedJobs) -> list[ColumnElement[bool]]:
    table = db.attempts.c
    found = [table.cluster == storable(wanted.cluster)]
    if wanted.running is not None:
        found.append(table.running.is_(wanted.running))
    if wanted.users:
        found.append(table.user.in_([storable(user) for user in wanted.users]))
    if wanted.job_id is not None:
        found.append(table.job_id == wanted.job_id)
    if wanted.text:
        found.append(_speaks_of(wanted.text, table.job_id, table.job_name, table.user, table.partition, table.lineage))
    return found


def _speaks_of(text: str, number: Any, *columns: Any) -> ColumnElement[bool]:
    """Any of the columns holds the text, or the number is it."""
    found = [_holds(column, text) for column in columns]
    if text.isascii() and text.isdigit() and int(text) < 1 << 63:
        found.append(number == int(text))
    return or_(*found)


def _holds(column: Any, text: str) -> ColumnElement[bool]:
    """The column holds the text, upper or lower case."""
    found: ColumnElement[bool] = column.icontains(storable(text), autoescape=True)
    return found


def _before(query: Select[Any], at: Any, name: Any, key: Key | None) -> Select[Any]:
    if key is None:
        return query
    then, last = storable(key.at), storable(key.id)
    return query.where(at <= then, or_(at < then, name < last))


_DISORDER = timedelta(hours=1)
"""How much earlier than its neighbours a row's time may be: some tell of what was seen while the database was away."""


def _at_least(at: datetime) -> ColumnElement[bool]:
    """Bounded by number too, found from the index by time: so that a page is cut from the end of the rows."""
    table = db.ledger.c
    first = select(table.seq).where(table.at >= stamp(at - _DISORDER)).order_by(table.at, table.seq).limit(1)
    return and_(table.seq >= func.coalesce(first.scalar_subquery(), 0), table.at >= stamp(at))


def _before_time(at: datetime) -> ColumnElement[bool]:
    table = db.ledger.c
    last = (
        select(table.seq).where(table.at < stamp(at + _DISORDER)).order_by(table.at.desc(), table.seq.desc()).limit(1)
    )
    return and_(table.seq <= func.coalesce(last.scalar_subquery(), 0), table.at < stamp(at))


def _verdict(state: str) -> Diagnosed:
    try:
        known = json.loads(state)
        first = Hypothesis.model_validate(known["diagnosis"]["hypotheses"][0])
        at = datetime.fromisoformat(known["detected_at"])
        return Diagnosed(str(known["id"]), at, Diagnosis(hypotheses=(first,)))
    except (ValueError, LookupError, TypeError) as error:
        raise LedgerCorruptError(f"the ledger holds an unreadable Incident: {error}") from error


_NAMED_BY = frozenset({"job_id", "array_job_id", "array_task_id", "het_job_id", "het_offset"})


def _display_id(state: str) -> str:
    """Of an attempt; a record of thousands of nodes is not checked for it."""
    try:
        record = json.loads(state)["attempt"]["record"]
        named = {name: value for name, value in record.items() if name in _NAMED_BY}
        return JobRecord.model_construct(**named).display_id
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise LedgerCorruptError(f"the ledger holds an unreadable attempt: {error}") from error


def _value(kind: Any, text: str) -> Any:
    try:
        return kind.model_validate(json.loads(text))
    except (ValidationError, ValueError) as error:
        raise LedgerCorruptError(f"the ledger holds an unreadable {kind.__name__}: {error}") from error
