"""The ingest endpoint: node agents report here, and slurmctld's hook tells that a job has ended.

    POST /v1/report    a `Report`, answered with a `Receipt`; the token of that very node
    POST /v1/epilog    `{"job_id": 7}`; the token of `slurmctld`. Makes the watcher look; nothing else follows from it
    GET  /healthz      200 while it serves

A refusal is one line of text: 400 or 422 not a report, 401 no token, 403 another's token or no such node, 413 too long,
429 too often, 503 Slurm's nodes are not known yet.
"""

import asyncio
import contextlib
import hmac
import json
import logging
import os
import re
import stat
from collections.abc import AsyncIterator, Mapping
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from aiohttp import web
from pydantic import ValidationError

from relight.activities.ingest import Ingest
from relight.clients.slurm import SlurmError
from relight.config.settings import ConfigError, IngestSettings
from relight.domain.reports import Report, agent_token
from relight.workers.keys import make_key

if TYPE_CHECKING:
    from ssl import SSLContext

logger = logging.getLogger(__name__)

MAX_BODY = 256 << 10
READ_WITHIN = 10.0
"""Seconds for a request's body to arrive."""
REPORTS_AT_ONCE = 20
"""Reports that a node may send in a row; after these `REPORTS_A_SECOND`. A beat comes every 5 s, faults at once."""
REPORTS_A_SECOND = 2.0
MIN_KEY = 32
MAX_KEY = 4096
HOOK = "slurmctld"
"""Whose token the hook has."""
_TOKEN = re.compile(r"Bearer ([0-9a-f]{64})")


class IngestError(ConfigError):
    """The endpoint cannot be opened; the text says what to do."""


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
        application = web.Application(client_max_size=MAX_BODY)
        application.add_routes(
            [
                web.post("/v1/report", self.report),
                web.post("/v1/epilog", self.epilog),
                web.get("/healthz", self.health),
            ]
        )
        return application

    async def health(self, _request: web.Request) -> web.Response:
        """Say that it serves."""
        return web.Response(text="ok\n")

    async def report(self, request: web.Request) -> web.Response:
        """Take an agent's report."""
        token = _token(request)
        body = await _body(request)
        node = body.get("node")
        if not isinstance(node, str):
            raise _refused(web.HTTPUnprocessableEntity, "a report names its node")
        self._check(token, node)
        if node == HOOK or not await self._known(node):
            raise _refused(web.HTTPForbidden, f"Slurm has no node {node[:64]!r}")
        self._limit(node)
        receipt = await self._ingest.report(_report(body))
        return web.Response(text=receipt.model_dump_json(), content_type="application/json")

    async def epilog(self, request: web.Request) -> web.Response:
        """Take the hook's word that a job has ended. It is cheap, so it is not limited: hooks come in crowds."""
        token = _token(request)
        job_id = (await _body(request)).get("job_id")
        self._check(token, HOOK)
        if type(job_id) is not int or job_id <= 0:
            raise _refused(web.HTTPUnprocessableEntity, "job_id must be a positive number")
        self._ingest.job_ended(job_id)
        return web.Response(status=202, text="ok\n")

    def _check(self, token: str, name: str) -> None:
        if not hmac.compare_digest(token, agent_token(self._key, name)):
            raise _refused(web.HTTPForbidden, f"the token is not that of {name[:64]!r}")

    async def _known(self, node: str) -> bool:
        try:
            return await self._ingest.knows(node)
        except SlurmError as error:
            problem = f"Slurm's nodes are not known yet: {error}"
            raise _refused(web.HTTPServiceUnavailable, problem, {"Retry-After": "5"}) from error

    def _limit(self, node: str) -> None:
        now = asyncio.get_running_loop().time()
        old = self._buckets.get(node, _Bucket(REPORTS_AT_ONCE, now))
        left = min(REPORTS_AT_ONCE, old.left + (now - old.at) * REPORTS_A_SECOND)
        if left < 1:
            raise _refused(web.HTTPTooManyRequests, f"{node} reports too often", {"Retry-After": "1"})
        self._buckets[node] = _Bucket(left - 1, now)


def _token(request: web.Request) -> str:
    found = _TOKEN.fullmatch(request.headers.get("Authorization", ""))
    if found is None:
        raise _refused(web.HTTPUnauthorized, "no token: Authorization: Bearer ...", {"WWW-Authenticate": "Bearer"})
    return found[1]


async def _body(request: web.Request) -> dict[str, Any]:
    try:
        async with asyncio.timeout(READ_WITHIN):
            text = await request.read()
    except TimeoutError:
        raise _refused(web.HTTPRequestTimeout, "the request did not arrive in time") from None
    except web.HTTPRequestEntityTooLarge:
        raise _refused(_TooLarge, f"more than {MAX_BODY} bytes") from None
    try:
        body = json.loads(text)
    except (ValueError, RecursionError):
        raise _refused(web.HTTPBadRequest, "not JSON") from None
    if not isinstance(body, dict):
        raise _refused(web.HTTPUnprocessableEntity, "not a JSON object")
    return body


class _TooLarge(web.HTTPClientError):
    """aiohttp's own wants to know by how much."""

    status_code = 413


def _report(body: Mapping[str, Any]) -> Report:
    try:
        report = Report.model_validate(body)
    except ValidationError as error:
        first = error.errors(include_url=False, include_context=False, include_input=False)[0]
        where = ".".join(str(part) for part in first["loc"])
        raise _refused(web.HTTPUnprocessableEntity, f"{where}: {first['msg']}") from None
    if any(at.tzinfo is None for at in _times(report)):
        raise _refused(web.HTTPUnprocessableEntity, "a time has no zone")
    return report


def _times(report: Report) -> list[datetime]:
    beat = [report.beat.at] if report.beat else []
    return [*beat, *(fault.at for fault in report.faults), *(answer.at for answer in report.answers)]


def _refused(kind: type[web.HTTPException], text: str, headers: Mapping[str, str] | None = None) -> web.HTTPException:
    return kind(text=" ".join(text.split())[:300] + "\n", headers=headers)


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
    # An agent keeps its connection open between two beats; access is not logged: 2,000 lines a second.
    runner = web.AppRunner(server.application(), access_log=None, keepalive_timeout=30, handle_signals=False)
    await runner.setup()
    try:
        host, port = settings.address
        site = web.TCPSite(runner, host, port, ssl_context=_tls(settings))
        try:
            await site.start()
        except OSError as error:
            raise IngestError(f"ingest.listen {settings.listen}: {error.strerror or error}") from error
        bound = runner.addresses[0]
        logger.info("ingest listens on %s:%d", bound[0], bound[1])
        yield str(bound[0]), int(bound[1])
    finally:
        await runner.cleanup()


def _tls(settings: IngestSettings) -> "SSLContext | None":
    if not settings.tls_cert:
        return None
    import ssl

    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    try:
        context.load_cert_chain(Path(settings.tls_cert).expanduser(), Path(settings.tls_key).expanduser())
    except (OSError, ssl.SSLError) as error:
        raise IngestError(f"ingest.tls_cert {settings.tls_cert}: {error}") from error
    return context
