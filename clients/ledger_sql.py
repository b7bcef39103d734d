"""The ledger in an SQL database: SQLite by default, PostgreSQL in production."""

import asyncio
import json
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, nullcontext
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any, ParamSpec, TypeVar

from pydantic import ValidationError
from sqlalchemy import (
    ColumnElement,
    Connection,
    Engine,
    Pool,
    RowMapping,
    Select,
    StaticPool,
    Table,
    delete,
    func,
    insert,
    select,
    update,
)

from relight.clients import ledger_schema as db
from relight.clients.ledger import LedgerCorruptError
from relight.clients.ledger_chain import Chain
from relight.clients.ledger_key import make_key, read_key
from relight.clients.ledger_rows import Work, read_row, stamp, storable
from relight.clients.ledger_versions import prepare
from relight.domain.attempts import AttemptKey, AttemptState
from relight.domain.audit import Anchor
from relight.domain.base import Value
from relight.domain.evidence import Detection
from relight.domain.incidents import Incident
from relight.domain.ledger import Backlog, ChainReport, Change, Row, RowKind

_V = TypeVar("_V", bound=Value)
_P = ParamSpec("_P")
_R = TypeVar("_R")
_IN_ONE_QUERY = 500
_THREADS = 32
"""As many as the engine has connections (`ledger_schema.connect`)."""


def _now() -> datetime:
    return datetime.now(UTC)


class SqlLedger:
    """Implements `Ledger`. Calls are safe from any thread and any number of processes."""

    def __init__(self, engine: Engine, key: bytes, *, clock: Callable[[], datetime] = _now) -> None:
        self._engine = engine
        self._chain = Chain(key)
        self._clock = clock
        # SQLite's own waiting is by polling and unfair: within one process writers queue here instead.
        self._write_turn = threading.Lock()
        # A database in memory is one connection, which has no room for two transactions at a time.
        single = isinstance(engine.pool, StaticPool)
        self._read_turn = self._write_turn if single else nullcontext()
        # Not `asyncio.to_thread`: a database that stands still would take its few threads from everything else.
        self._threads = ThreadPoolExecutor(_THREADS, thread_name_prefix="ledger")
        self._left: Pool | None = None
        """The pool that was given up by `close`."""
        self._running: dict[str, AttemptState] = {}
        """The running attempts as last read, by their text in the database."""

    @classmethod
    def open(cls, url: str, key_file: Path, *, clock: Callable[[], datetime] = _now) -> "SqlLedger":
        """Open the ledger, with a new schema and a new key file where both are missing; blocks.

        Args:
            url: such as `sqlite:////var/lib/relight/ledger.db` or `postgresql+psycopg://relight@db/relight`.
            key_file: the key of the chain; keep it, and a copy of it, away from the database.
            clock: tells when a detection is marked as delivered.

        Raises:
            LedgerUnavailableError: when the database does not answer.
            LedgerCorruptError: when the key file is open to others or does not fit, or the schema is
                newer than ours.
        """
        with db.told():
            engine = db.connect(url)
            try:
                prepare(engine)
                key = _key(engine, key_file)
                with engine.connect() as connection:
                    Chain(key).check_key(connection)
            except BaseException:
                engine.dispose()
                raise
        return cls(engine, key, clock=clock)

    def close(self) -> None:
        """Give the connections and the threads back; what is under way gives its own back when it is done."""
        self._left = self._engine.pool
        self._threads.shutdown(wait=False, cancel_futures=True)
        self._engine.dispose()

    async def commit(self, change: Change) -> int:
        """Write a change in one transaction; returns how many entries were new.

        A repeated change writes nothing twice: an entry whose id exists is left as it is.
        """
        return await self._run(self._commit, change)

    async def rows(
        self,
        *,
        incident: str | None = None,
        lineage: str | None = None,
        attempt: str | None = None,
        node: str | None = None,
        kind: RowKind | None = None,
        after: int = 0,
        since: datetime | None = None,
        limit: int = 1000,
    ) -> tuple[Row, ...]:
        """Rows of the audit trail that fit all that is given, in the order written, with seq > `after`.

        `since` leaves out what was written earlier.
        """
        table = db.ledger
        wanted = {"incident": incident, "lineage": lineage, "attempt": attempt, "node": node, "kind": kind}
        query = select(table).where(table.c.seq > after).order_by(table.c.seq).limit(limit)
        asked = {name: storable(value) for name, value in wanted.items() if value is not None}
        for name, value in asked.items():
            # SQLite takes the index by kind for narrower than it is: 350 ms of a job's rows among a million (seen).
            broad = name == "kind" and len(asked) > 1
            query = query.where((func.coalesce(table.c.kind, "") if broad else table.c[name]) == value)
        if since is not None:
            query = query.where(table.c.at >= stamp(since), table.c.seq > _last_before(since, kind))
        return tuple(read_row(found) for found in await self._run(self._all, query))

    async def has(self, entry_id: str) -> bool:
        """True when an entry with this id has been written."""
        query = select(db.ledger.c.seq).where(db.ledger.c.id == storable(entry_id))
        return bool(await self._run(self._all, query))

    async def select(self, query: Select[Any]) -> Sequence[RowMapping]:
        """What a reading query of this package's own finds (`ledger_pages`)."""
        return await self._run(self._all, query)

    async def cursor(self, name: str) -> dict[str, Any] | None:
        """Where the watcher of that name stands; None when it never wrote."""
        query = select(db.cursors.c.value).where(db.cursors.c.name == storable(name))
        found = await self._run(self._all, query)
        return dict(json.loads(found[0]["value"])) if found else None

    async def undelivered(self, limit: int = 100, *, cluster: str | None = None) -> tuple[Detection, ...]:
        """Detections in the outbox not yet delivered (of one cluster), oldest first."""
        table = db.outbox
        query = select(table.c.body).where(table.c.delivered_at.is_(None))
        if cluster is not None:
            query = query.where(table.c.cluster == storable(cluster))
        query = query.order_by(table.c.created_at, table.c.id).limit(limit)
        return await self._values(Detection, query)

    async def delivered(self, *detection_ids: str) -> None:
        """Mark detections as delivered, all in one transaction; a second time changes nothing."""
        await self._run(self._mark_delivered, [storable(each) for each in detection_ids])

    async def backlog(self, cluster: str) -> Backlog:
        """What waits: counted, not read."""
        waiting, incidents, ours = db.outbox, db.incidents, storable(cluster)
        open_ones = select(func.count()).where(incidents.c.open.is_(True), incidents.c.cluster == ours)
        query = select(
            func.count().label("undelivered"),
            func.min(waiting.c.created_at).label("oldest"),
            open_ones.scalar_subquery().label("open_incidents"),
        ).where(waiting.c.delivered_at.is_(None), waiting.c.cluster == ours)
        return Backlog.model_validate(dict((await self._run(self._all, query))[0]))

    async def attempt(self, key: AttemptKey) -> AttemptState | None:
        """One attempt; None when it was never seen."""
        query = select(db.attempts.c.state).where(db.attempts.c.key == storable(str(key)))
        return _only(await self._values(AttemptState, query))

    async def running_attempts(self, cluster: str) -> tuple[AttemptState, ...]:
        """Attempts not yet seen ended, in the order first seen."""
        table = db.attempts
        query = select(table.c.state).where(table.c.cluster == storable(cluster), table.c.running.is_(True))
        found = await self._run(self._all, query.order_by(table.c.seen_at, table.c.key))
        # Asked for every second, and of thousands a few have changed: what is known is not read anew.
        known, read = self._running, dict[str, AttemptState]()
        for row in found:
            text = row["state"]
            read[text] = known.get(text) or _value(AttemptState, text)
        self._running = read
        return tuple(read.values())

    async def attempts_of_job(self, cluster: str, job_id: int, limit: int = 50) -> tuple[AttemptState, ...]:
        """The attempts of a Slurm job id, newest first (lineages told apart by `attempt.lineage`)."""
        table = db.attempts
        query = select(table.c.state).where(table.c.cluster == storable(cluster), table.c.job_id == job_id)
        # A key ends with its SubmitTime, so that the keys of one job sort by it.
        return await self._values(AttemptState, query.order_by(table.c.key.desc()).limit(limit))

    async def incident(self, incident_id: str) -> Incident | None:
        """One incident by its id, or by the beginning of it where that is unambiguous."""
        table, wanted = db.incidents, storable(incident_id)
        exact = await self._values(Incident, select(table.c.state).where(table.c.id == wanted))
        if exact or not wanted:
            return _only(exact)
        # Not LIKE: it has wildcards, and SQLite's does not tell upper from lower case.
        begins = func.substr(table.c.id, 1, len(wanted)) == wanted
        return _only(await self._values(Incident, select(table.c.state).where(begins).limit(2)))

    async def incidents(
        self,
        *,
        cluster: str | None = None,
        lineage: str | None = None,
        attempt: AttemptKey | None = None,
        open_only: bool = False,
        limit: int = 50,
    ) -> tuple[Incident, ...]:
        """Incidents that fit, newest first."""
        table = db.incidents
        query = select(table.c.state).order_by(table.c.opened_at.desc(), table.c.id).limit(limit)
        wanted = {"cluster": cluster, "lineage": lineage, "attempt": str(attempt) if attempt else None}
        for name, value in wanted.items():
            if value is not None:
                query = query.where(table.c[name] == storable(value))
        return await self._values(Incident, query.where(table.c.open.is_(True)) if open_only else query)

    async def verify(self, anchor: ChainReport | None = None) -> ChainReport:
        """Check every row's hash and link.

        Args:
            anchor: an earlier report that was kept outside the database; the chain must go on from its head.
        """
        return await self._run(self._verify, anchor)

    async def anchor(self, cluster: str) -> Anchor | None:
        """The head as it is now, to be kept elsewhere; None while there is no row.

        Raises:
            LedgerCorruptError: the newest row is not the one sealed: that is not anchored.
        """
        return await self._run(self._anchor, cluster)

    async def _run(self, call: Callable[_P, _R], *args: _P.args, **kwargs: _P.kwargs) -> _R:
        """Call in a thread of ours, with the database's errors turned into ours."""
        work = partial(call, *args, **kwargs)
        return await asyncio.get_running_loop().run_in_executor(self._threads, self._called, work)

    def _called(self, call: Callable[[], _R]) -> _R:
        try:
            with db.told():
                return call()
        finally:
            if self._left is not None:
                self._left.dispose()

    def _commit(self, change: Change) -> int:
        work = Work(change)
        if work.empty:
            return 0
        with self._writing() as connection:
            new = self._append(connection, work.entries)
            _insert_missing(connection, db.outbox, work.detections)
            _put(connection, db.attempts, work.attempts)
            _put(connection, db.incidents, _not_reopened(connection, work.incidents))
            _put(connection, db.cursors, work.cursors)
        return new

    def _append(self, connection: Connection, entries: dict[str, dict[str, str]]) -> int:
        seq, newest = self._chain.newest(connection)
        there = _existing(connection, db.ledger.c.id, entries)
        rows: list[dict[str, Any]] = []
        for stored in (entry for name, entry in entries.items() if name not in there):
            seq += 1
            rows.append(self._chain.link(stored, seq, newest))
            newest = rows[-1]["hash"]
        if rows:
            connection.execute(insert(db.ledger), rows)
            self._chain.seal(connection, seq, newest)
        return len(rows)

    def _mark_delivered(self, names: list[str]) -> None:
        table, at = db.outbox, stamp(self._clock())
        with self._writing() as connection:
            for start in range(0, len(names), _IN_ONE_QUERY):
                part = table.c.id.in_(names[start : start + _IN_ONE_QUERY])
                connection.execute(update(table).where(part, table.c.delivered_at.is_(None)).values(delivered_at=at))

    @contextmanager
    def _writing(self) -> Iterator[Connection]:
        with self._write_turn, db.writing(self._engine) as connection:
            yield connection

    def _all(self, query: Select[Any]) -> Sequence[RowMapping]:
        with self._read_turn, self._engine.connect() as connection:
            return connection.execute(query).mappings().all()

    def _verify(self, anchor: ChainReport | None) -> ChainReport:
        with self._read_turn:
            return self._chain.verify(self._engine, anchor)

    def _anchor(self, cluster: str) -> Anchor | None:
        first = select(db.ledger.c.hash).order_by(db.ledger.c.seq).limit(1)
        with self._read_turn, db.one_moment(self._engine) as connection:
            seq, newest = self._chain.newest(connection)
            begun = connection.scalar(first)
        made = Anchor(cluster=cluster, ledger=begun or "", seq=seq, hash=newest, at=self._clock())
        return self._chain.anchor(made) if begun else None

    async def _values(self, kind: type[_V], query: Select[Any]) -> tuple[_V, ...]:
        """What the query's only column holds."""
        found = await self._run(self._all, query)
        return tuple(_value(kind, next(iter(row.values()))) for row in found)


def _value(kind: type[_V], text: str) -> _V:
    try:
        return kind.model_validate_json(text)
    except ValidationError as e:
        raise LedgerCorruptError(f"the ledger holds an unreadable {kind.__name__}: {e}") from e


def _last_before(at: datetime, kind: RowKind | None) -> ColumnElement[int]:
    """Where the newest row stands that was written before; found from the end of the index by kind."""
    table = db.ledger
    query = select(table.c.seq).where(table.c.at < stamp(at)).order_by(table.c.seq.desc()).limit(1)
    if kind is not None:
        query = query.where(table.c.kind == kind.value)
    return func.coalesce(query.scalar_subquery(), 0)


def _key(engine: Engine, path: Path) -> bytes:
    found = read_key(path)
    if found is not None:
        return found
    with engine.connect() as connection:
        started = connection.scalar(select(func.count()).select_from(db.head)) != 0
    # Looked for once more: another process may have made both between our two looks.
    if started and not path.exists():
        raise LedgerCorruptError(f"the ledger has rows, but its key file {path} is missing")
    return make_key(path)


def _existing(connection: Connection, column: Any, names: Iterable[str]) -> set[str]:
    """Which of the names are there, asked in parts: databases limit the values of one query."""
    wanted, found = list(names), set[str]()
    for start in range(0, len(wanted), _IN_ONE_QUERY):
        part = wanted[start : start + _IN_ONE_QUERY]
        found.update(connection.scalars(select(column).where(column.in_(part))))
    return found


def _insert_missing(connection: Connection, table: Table, rows: dict[str, dict[str, Any]]) -> None:
    there = _existing(connection, next(iter(table.primary_key)), rows)
    missing = [row for name, row in rows.items() if name not in there]
    if missing:
        connection.execute(insert(table), missing)


def _put(connection: Connection, table: Table, rows: dict[str, dict[str, Any]]) -> None:
    """Insert or replace by primary key."""
    key = next(iter(table.primary_key))
    names = list(rows)
    for start in range(0, len(names), _IN_ONE_QUERY):
        connection.execute(delete(table).where(key.in_(names[start : start + _IN_ONE_QUERY])))
    if rows:
        connection.execute(insert(table), list(rows.values()))


def _not_reopened(connection: Connection, rows: dict[str, dict[str, Any]]) -> dict[str, dict[str, Any]]:
    """Without those that would open a closed incident again.

    A step given up when its incident ended may still be writing; its row stands, its state is of yesterday.
    """
    table = db.incidents
    open_ones = [name for name, row in rows.items() if row["open"]]
    closed = select(table.c.id).where(table.c.id.in_(open_ones), table.c.open.is_(False))
    ended = set(connection.execute(closed).scalars()) if open_ones else set()
    return {name: row for name, row in rows.items() if name not in ended}


def _only(found: tuple[_V, ...]) -> _V | None:
    return found[0] if len(found) == 1 else None
