"""A stand-in for VictoriaLogs and Grafana Loki: the parts of their documented HTTP APIs that Relight uses.

Neither is to be had here as a package. It is strict where the real ones are: a query outside the subset is refused
with 400, as a selector is whose strings do not end where they should. Lines of one moment come in another order each
time, except where a query says the order. Faults can be queued, each for one request.
"""

import asyncio
import json
import random
import re
import ssl
from bisect import bisect_left
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from typing import Literal, NamedTuple

from aiohttp import web

Fault = Callable[[web.Request, bytes], Awaitable[web.StreamResponse]]
_STRING = r'"(?:[^"\\\n]|\\.)*"'
_MATCHER = re.compile(rf"({_STRING}|[A-Za-z_]\w*)(=~|=)({_STRING})")
_EXACT = re.compile(rf"({_STRING}):(?:=({_STRING})|in\(({_STRING}(?:,{_STRING})*)\))")
_LOGSQL = re.compile(
    rf"(?P<selector>\{{(?:[^\"{{}}]|{_STRING})*\}}|\*)(?P<exact>(?: {_EXACT.pattern})*)"
    r"(?: _time:>=(?P<low>\S+?Z))?(?: _time:<(?P<end>\S+?Z))?(?P<pipes>(?: \| .+)?)"
)
_SORT = re.compile(r"sort by \(_time( desc)?(, _stream_id, _msg)?\) offset (\d+) limit (\d+)")
_FIELDS = re.compile(rf"fields _time, _stream_id, _msg(?:, ({_STRING}))?")
_STATS = "stats count() as lines"
MAX_ENTRIES = 5000


class Kept(NamedTuple):
    """A line in the store."""

    at: int
    labels: dict[str, str]
    text: str
    stream: str
    """Name of its stream."""


class LogServer:
    """Both stores behind one address."""

    def __init__(self) -> None:
        self.kept: dict[str, list[Kept]] = {}
        """By tenant: `0:0` of VictoriaLogs, a name of Loki."""
        self.faults: deque[Fault] = deque()
        self.token = ""
        self.basic = ""
        self.allowed: set[str] | None = None
        """Tenants that a gateway before the store lets through."""
        self.asked: list[str] = []
        """Queries, in order."""
        self.now = 1 << 62
        """What Loki takes for now when no end is given."""
        self.tail_ends: Literal["", "whole", "broken"] = ""
        """How live tailing ends at the next line."""
        self.random = random.Random(4)  # noqa: S311  no secret
        self.url = ""
        self.news = asyncio.Event()

    def add(self, *lines: tuple[int, str], tenant: str = "0:0", **labels: str) -> None:
        """Store lines of one stream."""
        stream = json.dumps(labels, sort_keys=True)
        kept = self.kept.setdefault(tenant, [])
        kept.extend(Kept(at, labels, text, stream) for at, text in lines)
        kept.sort(key=_at)
        self.news.set()

    # --- VictoriaLogs ---

    async def logsql(self, request: web.Request) -> web.StreamResponse:
        tenant = f"{request.headers.get('AccountID', 0)}:{request.headers.get('ProjectID', 0)}"
        return await self._answer(request, tenant, request.query["query"], self._logsql)

    def _logsql(self, query: str, tenant: str) -> bytes:
        found = _LOGSQL.fullmatch(query)
        if not found:
            raise web.HTTPBadRequest(text=f"cannot parse query [{query}]")
        low, end = _nanoseconds(found["low"], 0), _nanoseconds(found["end"], 1 << 62)
        kept = self._select(tenant, found["selector"], found["exact"], low, end)
        sort, _, last = found["pipes"].removeprefix(" | ").rpartition(" | ")
        if last == _STATS:
            return json.dumps({"lines": str(len(kept))}).encode() + b"\n"
        fields = _FIELDS.fullmatch(last)
        if not fields:
            raise web.HTTPBadRequest(text=f"unexpected pipes in [{query}]")
        if sort:
            by = _SORT.fullmatch(sort)
            if not by:
                raise web.HTTPBadRequest(text=f"unexpected pipe [{sort}]")
            if by[2]:
                kept.sort(key=lambda line: (line.stream, line.text))
            kept.sort(key=_at, reverse=bool(by[1]))
            kept = kept[int(by[3]) :][: int(by[4])]
        more = json.loads(fields[1]) if fields[1] else ""
        return b"".join(_json_line(line, more) for line in kept)

    async def tail(self, request: web.Request) -> web.StreamResponse:
        query = request.query["query"]
        self.asked.append(query)
        response = web.StreamResponse(headers={"Content-Type": "application/x-ndjson"})
        await response.prepare(request)
        sent = 0
        while True:
            lines = self._logsql(query, "0:0").splitlines(keepends=True)
            if len(lines) > sent:
                await response.write(b"".join(lines[sent:]))
                sent = len(lines)
            if self.tail_ends:
                if self.tail_ends == "broken" and request.transport:
                    request.transport.close()
                return response
            self.news.clear()
            await self.news.wait()

    # --- Loki ---

    async def query_range(self, request: web.Request) -> web.StreamResponse:
        tenant = request.headers.get("X-Scope-OrgID", "")
        asked = request.query
        limit = int(asked["limit"])

        def answer(query: str, tenant: str) -> bytes:
            if not tenant:
                raise web.HTTPUnauthorized(text="no org id")
            if limit > MAX_ENTRIES:
                text = f"max entries limit per query exceeded, limit > max_entries_limit ({limit} > {MAX_ENTRIES})"
                raise web.HTTPBadRequest(text=text)
            low, end = int(asked["start"]), int(asked.get("end", self.now))
            kept = self._select(tenant, query, "", low, end)
            kept.sort(key=_at, reverse=asked["direction"] == "backward")
            streams: dict[str, dict[str, object]] = {}
            unique = {(line.stream, line.at, line.text): line for line in kept[: limit * 2]}
            for line in list(unique.values())[:limit]:
                stream = streams.setdefault(line.stream, {"stream": line.labels, "values": []})
                stream["values"].append([str(line.at), line.text])
            data = {"resultType": "streams", "result": list(streams.values()), "stats": {}}
            return json.dumps({"status": "success", "data": data}).encode()

        return await self._answer(request, tenant, asked["query"], answer)

    async def index_stats(self, request: web.Request) -> web.StreamResponse:
        def answer(query: str, tenant: str) -> bytes:
            kept = self._select(tenant, query, "", int(request.query["start"]), int(request.query["end"]))
            total = sum(len(line.text) for line in kept)
            return json.dumps({"streams": 1, "chunks": 1, "entries": len(kept), "bytes": total}).encode()

        return await self._answer(request, request.headers.get("X-Scope-OrgID", ""), request.query["query"], answer)

    # --- both ---

    async def _answer(
        self, request: web.Request, tenant: str, query: str, answer: Callable[[str, str], bytes]
    ) -> web.StreamResponse:
        self.asked.append(query)
        given = request.headers.get("Authorization", "")
        if (self.token and given != f"Bearer {self.token}") or (self.basic and given != self.basic):
            return web.Response(status=401, text="invalid or expired token")
        if self.allowed is not None and tenant not in self.allowed:
            return web.Response(status=403, text="not your tenant")
        body = answer(query, tenant)
        if self.faults:
            return await self.faults.popleft()(request, body)
        return web.Response(body=body, content_type="application/json")

    def _select(self, tenant: str, selector: str, exact: str, low: int, end: int) -> list[Kept]:
        wanted = [*matchers("" if selector == "*" else selector[1:-1]), *_exact(exact)]
        kept = self.kept.get(tenant, [])
        kept = kept[bisect_left(kept, low, key=_at) : bisect_left(kept, end, key=_at)]
        chosen: dict[str, bool] = {}
        for line in kept:
            if line.stream not in chosen:
                chosen[line.stream] = all(re.fullmatch(value, line.labels.get(name, "")) for name, value in wanted)
        kept = [line for line in kept if chosen[line.stream]]
        if len(kept) < 10 * MAX_ENTRIES:  # more of them would take a test's time
            self.random.shuffle(kept)
        return kept


def matchers(text: str) -> list[tuple[str, str]]:
    """A selector's labels, each with an expression for its value."""
    pairs, at = [], 0
    while at < len(text):
        found = _MATCHER.match(text, at)
        if not found:
            raise web.HTTPBadRequest(text=f"syntax error at {text[at:]!r}")
        name = json.loads(found[1]) if found[1].startswith('"') else found[1]
        value = json.loads(found[3])
        pairs.append((name, value if found[2] == "=~" else re.escape(value)))
        at = found.end()
        if text[at : at + 1] not in ("", ","):
            raise web.HTTPBadRequest(text=f"syntax error at {text[at:]!r}")
        at += 1
    return pairs


def _exact(text: str) -> list[tuple[str, str]]:
    """The same of filters by exact values."""
    return [
        (json.loads(name), "|".join(re.escape(value) for value in json.loads(f"[{one or several}]")))
        for name, one, several in _EXACT.findall(text)
    ]


def _json_line(line: Kept, more: str = "") -> bytes:
    seconds, nanoseconds = divmod(line.at, 1_000_000_000)
    fraction = f".{nanoseconds:09d}".rstrip("0") if nanoseconds else ""
    stamp = f"{datetime.fromtimestamp(seconds, UTC):%Y-%m-%dT%H:%M:%S}{fraction}Z"
    fields = {"_time": stamp, "_stream_id": line.stream, "_msg": line.text, more: line.labels.get(more, "")}
    return json.dumps({name: value for name, value in fields.items() if value}).encode() + b"\n"


def _at(line: Kept) -> int:
    return line.at


def _nanoseconds(stamp: str | None, default: int) -> int:
    if stamp is None:
        return default
    whole, _, fraction = stamp.removesuffix("Z").partition(".")
    return int(datetime.fromisoformat(f"{whole}+00:00").timestamp()) * 1_000_000_000 + int(fraction.ljust(9, "0"))


# --- faults ---


def says(status: int, text: str = "", **headers: str) -> Fault:
    """Answer something else."""

    async def fault(request: web.Request, body: bytes) -> web.StreamResponse:
        return web.Response(status=status, text=text, headers={k.replace("_", "-"): v for k, v in headers.items()})

    return fault


def cut(share: float, *, neatly: bool = False) -> Fault:
    """Send a part of the answer; neatly: as though it were all (a proxy that ends what its server broke off)."""

    async def fault(request: web.Request, body: bytes) -> web.StreamResponse:
        response = web.StreamResponse()
        response.enable_chunked_encoding()
        await response.prepare(request)
        await response.write(body[: int(len(body) * share)])
        if neatly:
            await response.write_eof()
        elif request.transport:
            request.transport.close()
        return response

    return fault


async def garbage(request: web.Request, body: bytes) -> web.StreamResponse:
    """Break the rules of HTTP in the middle of the answer."""
    response = web.StreamResponse()
    response.enable_chunked_encoding()
    await response.prepare(request)
    await response.write(body[:20])
    if request.transport:
        request.transport.write(b"HTTP/1.1 200 OK\r\n\r\n")
    await asyncio.sleep(0.05)
    return response


async def hang(request: web.Request, body: bytes) -> web.StreamResponse:
    """Begin to answer, and never go on."""
    response = web.StreamResponse()
    await response.prepare(request)
    await response.write(body[:10])
    await asyncio.sleep(60)
    return response


async def reset(request: web.Request, body: bytes) -> web.StreamResponse:
    """Close the connection without a word."""
    if request.transport:
        request.transport.close()
    return web.Response()


@asynccontextmanager
async def log_server(tls: ssl.SSLContext | None = None) -> AsyncIterator[LogServer]:
    """One that listens on a port of its own."""
    server = LogServer()
    app = web.Application()
    app.router.add_get("/select/logsql/query", server.logsql)
    app.router.add_get("/select/logsql/tail", server.tail)
    app.router.add_get("/loki/api/v1/query_range", server.query_range)
    app.router.add_get("/loki/api/v1/index/stats", server.index_stats)
    runner = web.AppRunner(app, shutdown_timeout=0.1)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0, ssl_context=tls)
    await site.start()
    server.url = f"{'https' if tls else 'http'}://127.0.0.1:{runner.addresses[0][1]}"
    try:
        yield server
    finally:
        await runner.cleanup()
