"""Job outputs in Grafana Loki.

Facts from its HTTP API's documentation and its limits:
- `query_range` answers lines stamped from `start` on and before `end`; without `end`, up to its own now. `limit` counts
  over all streams. It has no offset: of more lines of one nanosecond than `limit`, the rest cannot be asked for.
- More than 5,000 lines, or a longer time than 30 days, are refused with 400 by default.
- Of identical lines of one stream and one nanosecond it keeps one.
- Without a tenant a Loki of several answers 401; an unknown tenant is empty, unless a gateway refuses it.
- Its `tail` is a WebSocket for people: it drops lines when it is slow and does not promise the older ones. Not used.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from itertools import accumulate
from typing import Any

from relight.clients.http_store import Endpoint, HttpStore
from relight.clients.logs import LogUnreadableError
from relight.clients.logs_http import HttpLogs, Reading
from relight.clients.logs_pages import PAGE_BYTES, Log, Page, Question, Row, one_of, quoted
from relight.domain.base import canonical_json, clip

_FEWEST = 4
"""Lines asked for when more are too long: Loki's lines have at most 256 KiB by default, escaping makes them longer."""


class Loki(HttpLogs):
    """Implements `Logs` for Loki.

    Args:
        endpoint: where it is.
        labels: labels that select a log, for example `{"job_id": "{job_id}"}` or `{"filename": "{path}"}`.
        tenant: value of `X-Scope-OrgID`; empty where Loki has one tenant.
        reading: how it is read.
        now: the time.
    """

    def __init__(
        self,
        endpoint: Endpoint,
        labels: Mapping[str, str],
        *,
        tenant: str = "",
        reading: Reading | None = None,
        now: Callable[[], datetime] | None = None,
    ) -> None:
        if any(not (label.isascii() and label.isidentifier()) for label in labels):
            raise ValueError(f"labels of Loki are letters, digits and underscores: {', '.join(labels)}")
        headers = {"X-Scope-OrgID": tenant} if tenant else {}
        store = HttpStore(endpoint, headers=headers, whose=f"Loki tenant {tenant}" if tenant else "Loki")
        super().__init__(store, labels, reading or Reading(), now)

    async def page(self, asked: Question) -> Page:
        """Lines in the order of time; of too long an answer, fewer."""
        limit = asked.limit
        while True:
            query = {
                "query": _selector(asked.labels, asked.by, asked.values),
                "direction": "backward" if asked.newest else "forward",
                "limit": str(limit),
                "start": str(asked.low),
            }
            if asked.end is not None:
                query["end"] = str(asked.end)
            body = await self._store.body("/loki/api/v1/query_range", query, PAGE_BYTES)
            if body is not None:
                break
            if limit <= _FEWEST:
                raise LogUnreadableError(f"{self._store.url}: {limit} lines are more than {PAGE_BYTES >> 20} MiB")
            # Its answer is one JSON text, so it is taken whole or not at all.
            limit = max(_FEWEST, limit // 10)
        rows = sorted(self._rows(body, asked.by), key=lambda row: row.at, reverse=asked.newest)
        lengths = accumulate(len(row.text) for row in rows)
        fitting = sum(length <= asked.most for length in lengths)
        # What fits; but of two moments at least, or a moment would look as though the store could not tell its end.
        kept = rows[: max(fitting, 1 + sum(row.at == rows[0].at for row in rows))]
        full = len(rows) >= limit or len(rows) > len(kept)
        return Page(tuple(reversed(kept) if asked.newest else kept), full=full)

    async def count(self, log: Log, low: int) -> int:
        """What its index tells of: without what is not yet in its chunks (the last minutes)."""
        now = round(self._now().timestamp()) * 1_000_000_000
        query = {"query": _selector(log.labels), "start": str(low), "end": str(max(now, low + 1))}
        body = await self._store.body("/loki/api/v1/index/stats", query, PAGE_BYTES)
        try:
            return int(json.loads(body or b"")["bytes"])
        except (KeyError, TypeError, ValueError):
            raise self._no_answer(body or b"") from None

    def _rows(self, body: bytes, by: str) -> list[Row]:
        try:
            answer = json.loads(body)
            data = answer["data"]
            if answer["status"] != "success" or data["resultType"] != "streams":
                raise self._no_answer(body)
            rows = [row for stream in data["result"] for row in _of_stream(stream, by)]
        except (AttributeError, IndexError, KeyError, TypeError, ValueError):
            raise self._no_answer(body) from None
        if not rows and answer.get("warnings"):
            raise LogUnreadableError(f"{self._store.url}: nothing, with warnings: {clip(str(answer['warnings']), 200)}")
        return rows

    def _no_answer(self, body: bytes) -> LogUnreadableError:
        shown = body[:1024].decode("utf-8", "replace")
        return LogUnreadableError(f"{self._store.url}: an answer cut off, or none: {clip(repr(shown), 200)}")


def _of_stream(stream: dict[str, Any], by: str) -> list[Row]:
    labels = stream["stream"]
    name, of = canonical_json(labels), str(labels.get(by, ""))
    return [Row(int(at), name, _text(text), of) for at, text, *_ in stream["values"]]


def _text(text: object) -> str:
    if not isinstance(text, str):
        raise TypeError
    return text


def _selector(labels: Mapping[str, str], by: str = "", values: Sequence[str] = ()) -> str:
    parts = [f"{label}={quoted(value)}" for label, value in labels.items() if label != by]
    if by:
        parts.append(f"{by}=~{quoted(one_of(values))}")
    return "{" + ",".join(parts) + "}"
