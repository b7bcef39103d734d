"""Job outputs in VictoriaLogs.

Facts from its documentation ("Querying", "LogsQL") and its handler of queries:
- An answer is JSON lines. The argument `limit` selects the newest lines and `sort` alone nothing: so the query says
  both itself. Fields that are empty are left out.
- `sort by (_time)` leaves lines of one moment in an order that changes with each answer; more fields settle it.
- An error once lines have been sent cuts the answer off in the middle of a chunk.
- A tenant that does not exist is empty; only a proxy before the store (vmauth) refuses one.
- Live tailing is a query that the server repeats every second over what is older than 5 s. It leaves out lines that
  share the stamp of one it has sent, or are late. So it only wakes `tail` here, and `read_new` reads.
"""

import asyncio
import json
import re
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import aclosing, suppress
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from typing import Any

from relight.clients.http_store import Endpoint, HttpStore
from relight.clients.log_files import plain
from relight.clients.logs import Chunk, Cursor, LogNotFoundError, LogUnreadableError
from relight.clients.logs_http import LINE_BYTES, HttpLogs, Reading
from relight.clients.logs_pages import Log, Page, Question, Row, one_of, quoted, selected
from relight.domain.base import clip

_QUERY = "/select/logsql/query"
_TAIL = "/select/logsql/tail"
_MAX_ENTRY = 16 << 20
"""Bytes of one entry as JSON: the store holds at most 2 MiB, and escaping makes up to six of one."""
_PIECE = 1 << 16
_STAMP = re.compile(r"(\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d)(?:\.(\d{1,9}))?Z")
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_FIELDS = "fields _time, _stream_id, _msg"


class VictoriaLogs(HttpLogs):
    """Implements `Logs` for VictoriaLogs.

    Args:
        endpoint: where it is.
        labels: stream fields that select a log, for example `{"job_id": "{job_id}"}` or `{"filename": "{path}"}`.
        fields: the same for fields that are no stream fields; slower.
        tenant: `AccountID:ProjectID`.
        reading: how it is read.
        now: the time.
    """

    can_skip = True

    def __init__(
        self,
        endpoint: Endpoint,
        labels: Mapping[str, str],
        *,
        fields: Mapping[str, str] | None = None,
        tenant: str = "0:0",
        reading: Reading | None = None,
        now: Callable[[], datetime] | None = None,
    ) -> None:
        account, colon, project = tenant.partition(":")
        if not (account.isdecimal() and colon and project.isdecimal()):
            raise ValueError(f"{tenant!r}: a tenant is AccountID:ProjectID, two numbers")
        headers = {"AccountID": account, "ProjectID": project}
        self._fields = dict(fields or {})
        store = HttpStore(endpoint, headers=headers, whose=f"VictoriaLogs tenant {tenant}")
        super().__init__(store, {**self._fields, **labels}, reading or Reading(), now)

    async def page(self, asked: Question) -> Page:
        """Lines in the order of time, those of one moment always in the same order."""
        until = "" if asked.end is None else f" _time:<{_stamp(asked.end)}"
        order = "_time desc" if asked.newest else "_time"
        fields = f"{_FIELDS}, {quoted(asked.by)}" if asked.by else _FIELDS
        pipes = f"sort by ({order}, _stream_id, _msg) offset {asked.skip} limit {asked.limit} | {fields}"
        query = f"{self._selector(asked.labels, asked.by, asked.values)} _time:>={_stamp(asked.low)}{until} | {pipes}"
        rows: list[Row] = []
        left, full = asked.most, False
        async with aclosing(self._entries(query)) as entries:
            async for entry, length in entries:
                left -= length
                full = left < 0 < len(rows)
                if full:
                    break
                rows.append(self._row(entry, asked.by))
        return Page(tuple(sorted(rows, key=lambda row: row.at)), full=full or len(rows) >= asked.limit)

    async def count(self, log: Log, low: int) -> int:
        """From the number of its lines: for their lengths it would have to read them all."""
        found: dict[str, Any] = {}
        query = f"{self._selector(log.labels)} _time:>={_stamp(low)} | stats count() as lines"
        async with aclosing(self._entries(query)) as entries:
            async for entry, _ in entries:
                found = entry
        try:
            return int(found["lines"]) * LINE_BYTES
        except (KeyError, TypeError, ValueError):
            raise LogUnreadableError(f"{self._store.url}: no count in the answer: {clip(str(found), 200)}") from None

    async def tail(self, path: str, cursor: Cursor | None) -> AsyncGenerator[Chunk]:
        """What `read_new` finds now, and again when live tailing sees a line, or at least every `late`.

        Saves questions where logs are mostly silent; costs a connection a log, and makes the server ask itself every
        second, so a log that is written all the time is better polled. Ends with a `LogError`. To be closed.
        """
        query = f"{self._selector(selected(self._labels, path).labels)} | {_FIELDS}"
        asked = {"query": query, "offset": "1ms", "refresh_interval": "1s"}
        async with self._store.answer(_TAIL, asked, endless=True) as bell:
            while True:
                more = True
                while more:
                    try:
                        chunk = await self.read_new(path, cursor)
                    except LogNotFoundError:
                        break
                    cursor, more = chunk.cursor, chunk.more
                    yield chunk
                with suppress(TimeoutError):
                    if not await asyncio.wait_for(bell.readany(), self._reading.late.total_seconds()):
                        raise LogUnreadableError(f"{self._store.url}: live tailing has ended")

    def _selector(self, labels: Mapping[str, str], by: str = "", values: Sequence[str] = ()) -> str:
        streams = [f"{quoted(k)}={quoted(v)}" for k, v in labels.items() if k not in self._fields and k != by]
        others = [f"{quoted(k)}:={quoted(v)}" for k, v in labels.items() if k in self._fields and k != by]
        if by in self._fields:
            others.append(f"{quoted(by)}:in({','.join(quoted(value) for value in dict.fromkeys(values))})")
        elif by:
            streams.append(f"{quoted(by)}=~{quoted(one_of(values))}")
        return " ".join([f"{{{','.join(streams)}}}" if streams else "*", *others])

    async def _entries(self, query: str) -> AsyncGenerator[tuple[dict[str, Any], int]]:
        """The answer's entries, each with its length in bytes."""
        rest = b""
        async with self._store.answer(_QUERY, {"query": query}) as content:
            async for piece in content.iter_chunked(_PIECE):
                *lines, rest = (rest + piece).split(b"\n")
                if len(rest) > _MAX_ENTRY:
                    raise LogUnreadableError(f"{self._store.url}: an entry of more than {_MAX_ENTRY >> 20} MiB")
                for line in lines:
                    yield self._entry(line), len(line)
        if rest:
            raise self._no_answer(rest)

    def _entry(self, line: bytes) -> dict[str, Any]:
        try:
            entry = json.loads(line.decode())  # which spares it guessing the encoding
        except ValueError:
            entry = None
        if not isinstance(entry, dict):
            raise self._no_answer(line)
        return entry

    def _row(self, entry: dict[str, Any], by: str) -> Row:
        stamp, text = entry.get("_time"), entry.get("_msg", "")
        found = _STAMP.fullmatch(stamp) if isinstance(stamp, str) else None
        if found is None or not isinstance(text, str):
            raise self._no_answer(json.dumps(entry).encode())
        at = _seconds(found[1]) * 1_000_000_000 + int((found[2] or "").ljust(9, "0"))
        return Row(at, str(entry.get("_stream_id")), text, str(entry.get(by, "")) if by else "")

    def _no_answer(self, line: bytes) -> LogUnreadableError:
        return LogUnreadableError(f"{self._store.url}: an answer cut off, or none: {clip(plain(line), 200)}")


@lru_cache(maxsize=1024)
def _seconds(text: str) -> int:
    """Since 1970; most lines of an answer share theirs with others."""
    return (datetime.fromisoformat(f"{text}+00:00") - _EPOCH) // timedelta(seconds=1)


def _stamp(at: int) -> str:
    """Nanoseconds as LogsQL reads a time: with nine digits it is that nanosecond, not the second around it."""
    seconds, nanoseconds = divmod(at, 1_000_000_000)
    return f"{_EPOCH + timedelta(seconds=seconds):%Y-%m-%dT%H:%M:%S}.{nanoseconds:09d}Z"
