"""The ingest endpoint: node agents report here, and slurmctld's hook tells that a job has ended.

    POST /v1/report    a `Report`, answered with a `Receipt`; the token of that very node
    POST /v1/reports   a `RelayedReport` in each line, answered with `RelayedAnswers`; the token of `relay`
    POST /v1/epilog    `{"job_id": 7}`; the token of `slurmctld`. Makes the watcher look; nothing else follows from it
    GET  /healthz      200 while it serves

A refusal is one line of text: 400 or 422 not a report, 401 no token, 403 another's token or no such node, 413 too long,
429 too often, 503 Slurm's nodes are not known yet.
"""

import asyncio
import contextlib
import hmac
import json
import os
import stat
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from aiohttp import web
from pydantic import BaseModel, ValidationError

from relight.activities.ingest import Ingest, Told
from relight.clients.slurm import SlurmError
from relight.config.settings import IngestSettings
from relight.domain.reports import (
    MAX_RELAYED,
    RelayedAnswer,
    RelayedAnswers,
    RelayedReport,
    Report,
    agent_token,
)
from relight.workers import endpoint
from relight.workers.endpoint import IngestError, refused
from relight.workers.keys import make_key

MAX_BATCH = 1 << 20
"""Bytes of a relay's batch."""
REPORTS_AT_ONCE = 20
"""Reports that a node may send in a row; after these `REPORTS_A_SECOND`. A beat comes every 5 s, faults at once."""
REPORTS_A_SECOND = 2.0
MIN_KEY = 32
MAX_KEY = 4096
HOOK, RELAY = "slurmctld", "relay"
"""Whose tokens the hook and relays have. A relay's lets it send batches, and speaks for no node."""
_NAMES = endpoint.Names("ingest.listen", "ingest.tls_cert")
_I = TypeVar("_I")
_O = TypeVar("_O")


class _Bucket(NamedTuple):
    """What a node may still send, and when that was."""

    left: float
    at: float


class Server:
    """The endpoint's answers.

    Args:
        ingest: what reports do.
        key: what tokens are made from.
    """

    def __init__(self, ingest: Ingest, key: bytes) -> None:
        self._ingest = ingest
        self._key = key
        self._buckets: dict[str, _Bucket] = {}

    def application(self) -> web.Application:
        """The routes."""
        application = web.Application()
        application.add_routes(
            [
                web.post("/v1/report", self.report),
                web.post("/v1/reports", self.reports),
                web.post("/v1/epilog", self.epilog),
                web.get("/healthz", endpoint.health),
            ]
        )
        return application

    async def report(self, request: web.Request) -> web.Response:
        """Take an agent's report."""
        token = endpoint.token(request)
        body = _object(await endpoint.body(request))
        node = body.get("node")
        if not isinstance(node, str):
            raise refused(web.HTTPUnprocessableEntity, "a report names its node")
        await self._admit(token, node)
        receipt = await self._ingest.report(_with_zones(_valid(Report.model_validate, body)))
        return _json(receipt)

    async def reports(self, request: web.Request) -> web.Response:
        """Take what came to a relay: each report as if it had come here."""
        self._check(endpoint.token(request), RELAY)
        lines = (await endpoint.body(request, MAX_BATCH)).split(b"\n")
        if len(lines) > MAX_RELAYED:
            raise refused(web.HTTPUnprocessableEntity, f"more than {MAX_RELAYED} reports")
        # One at a time, and of each only the faults stay: hundreds of reports at once cost twice as much, most of it
        # the garbage collector's.
        taken = [await self._taken(line) for line in lines]
        kept = await self._ingest.kept([each for each in taken if isinstance(each, Told) and each.faults])
        return _json(RelayedAnswers(answers=tuple(self._answered(each, kept=kept) for each in taken)))

    async def _taken(self, line: bytes) -> Told | RelayedAnswer:
        """Its faults, or why it is refused."""
        try:
            relayed = _valid(RelayedReport.model_validate_json, line)
            report = _with_zones(relayed.report)
            await self._admit(relayed.token, report.node)
        except web.HTTPException as error:
            after = int(error.headers.get("Retry-After", "0"))
            return RelayedAnswer(status=error.status, text=error.text or "", retry_after=after)
        self._ingest.hear(report)
        return Told(report.node, report.faults, report.boot)

    def _answered(self, taken: Told | RelayedAnswer, *, kept: bool) -> RelayedAnswer:
        if isinstance(taken, RelayedAnswer):
            return taken
        receipt = self._ingest.receipt(taken.node, len(taken.faults) if kept else 0)
        return RelayedAnswer(status=200, receipt=receipt)

    async def epilog(self, request: web.Request) -> web.Response:
        """Take the hook's word that a job has ended. It is cheap, so it is not limited: hooks come in crowds."""
        token = endpoint.token(request)
        job_id = _object(await endpoint.body(request)).get("job_id")
        self._check(token, HOOK)
        if type(job_id) is not int or job_id <= 0:
            raise refused(web.HTTPUnprocessableEntity, "job_id must be a positive number")
        self._ingest.job_ended(job_id)
        return web.Response(status=202, text="ok\n")

    async def _admit(self, token: str, node: str) -> None:
        """Refuse what is not that node's own word, or too much of it."""
        self._check(token, node)
        if node in {HOOK, RELAY} or not await self._known(node):
            raise refused(web.HTTPForbidden, f"Slurm has no node {node[:64]!r}")
        self._limit(node)

    def _check(self, token: str, name: str) -> None:
        if not hmac.compare_digest(token, agent_token(self._key, name)):
            raise refused(web.HTTPForbidden, f"the token is not that of {name[:64]!r}")

    async def _known(self, node: str) -> bool:
        try:
            return await self._ingest.knows(node)
        except SlurmError as error:
            problem = f"Slurm's nodes are not known yet: {error}"
            raise refused(web.HTTPServiceUnavailable, problem, {"Retry-After": "5"}) from error

    def _limit(self, node: str) -> None:
        now = asyncio.get_running_loop().time()
        old = self._buckets.get(node, _Bucket(REPORTS_AT_ONCE, now))
        left = min(REPORTS_AT_ONCE, old.left + (now - old.at) * REPORTS_A_SECOND)
        if left < 1:
            raise refused(web.HTTPTooManyRequests, f"{node} reports too often", {"Retry-After": "1"})
        self._buckets[node] = _Bucket(left - 1, now)


def _json(value: BaseModel) -> web.Response:
    return web.Response(body=value.model_dump_json().encode(), content_type="application/json")


def _object(text: bytes) -> dict[str, Any]:
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        raise refused(web.HTTPBadRequest, "not JSON") from None
    if not isinstance(value, dict):
        raise refused(web.HTTPUnprocessableEntity, "not a JSON object")
    return value


def _valid(read: Callable[[_I], _O], value: _I) -> _O:
    try:
        return read(value)
    except ValidationError as error:
        first = error.errors(include_url=False, include_context=False, include_input=False)[0]
        where = ".".join(str(part) for part in first["loc"])
        raise refused(web.HTTPUnprocessableEntity, f"{where}: {first['msg']}") from None


def _with_zones(report: Report) -> Report:
    times = [report.beat.at if report.beat else None]
    times += [at for fault in report.faults for at in (fault.at, fault.after)]
    times += [answer.at for answer in report.answers]
    if any(at is not None and at.tzinfo is None for at in times):
        raise refused(web.HTTPUnprocessableEntity, "a time has no zone")
    return report


def open_key(path: Path) -> bytes:
    """The key that tokens are made from; a new one where there is none.

    Raises:
        IngestError: others may read the file, or it holds no key.
    """
    make_key(path)
    with path.open("rb") as file:
        mode, words = os.fstat(file.fileno()).st_mode, file.read(MAX_KEY)
    if mode & (stat.S_IRWXG | stat.S_IRWXO):
        raise IngestError(f"the agents' key file {path} is open to others: chmod 600 {path}")
    try:
        key = bytes.fromhex(words.decode().strip())
    except ValueError:
        key = b""
    if len(key) < MIN_KEY:
        raise IngestError(f"the agents' key file {path} holds no key: {2 * MIN_KEY} hexadecimal digits or more")
    return key


@contextlib.asynccontextmanager
async def serving(settings: IngestSettings, key_file: Path, ingest: Ingest) -> AsyncIterator[tuple[str, int] | None]:
    """Serve where the settings say so; yields host and port, None where nothing listens.

    Raises:
        IngestError: the address is taken, or the certificate cannot be used.
    """
    if not settings.listen:
        yield None
        return
    server = Server(ingest, open_key(key_file))
    async with endpoint.listening(server.application(), settings, _NAMES) as bound:
        yield bound
