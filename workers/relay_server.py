"""The relay's process: takes reports of a rack's agents and forwards them to the controller in batches.

    POST /v1/report   as the controller's own (`ingest.py`), answered with the controller's answer to that very report;
                      503 while the controller is not reached: the agent keeps its faults
    GET  /healthz     200 while it serves

Why it is there: 10,000 agents send 2,000 reports a second, and most of what one costs the controller is HTTP.
"""

import asyncio
import json
import logging
import signal
import ssl
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Any

import aiohttp
from aiohttp import web
from pydantic import ValidationError

from relight.config.settings import ConfigError, IngestSettings
from relight.workers import endpoint
from relight.workers.agent_settings import AgentSettingsError, Controller, controller, read_token
from relight.workers.relay import Options
from relight.workers.relay_batch import ANSWER_WITHIN, Answer, Batches, UnreachableError

logger = logging.getLogger(__name__)

LONGEST = 4 << 20
"""Bytes of the controller's answer that are read."""
_KEPT_OPEN = 15.0
"""Seconds, less than the controller's: a connection that it has just closed is not used again."""
_OK = 200
_NAMES = endpoint.Names("--listen", "--tls-cert")


async def run(options: Options) -> None:
    """Run until SIGTERM or SIGINT.

    Raises:
        ConfigError: it cannot start so.
    """
    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    async with relaying(options):
        await stop.wait()


@asynccontextmanager
async def relaying(options: Options) -> AsyncIterator[tuple[str, int]]:
    """Relay until the block ends; yields host and port.

    Raises:
        ConfigError: it cannot start so.
    """
    try:
        target = controller(options.controller, plain_http=options.insecure)
        read_token(options.token_file)
    except AgentSettingsError as error:
        raise ConfigError(str(error).replace("plain_http: true in --config", "--insecure")) from error
    settings = _listen(options)
    connector = aiohttp.TCPConnector(ssl=_trust(options.ca), keepalive_timeout=_KEPT_OPEN)
    async with aiohttp.ClientSession(connector=connector, cookie_jar=aiohttp.DummyCookieJar()) as session:
        batches = Batches(_Sender(session, target, options.token_file).send)
        application = web.Application()
        application.add_routes([web.post("/v1/report", _taking(batches)), web.get("/healthz", endpoint.health)])
        async with endpoint.listening(application, settings, _NAMES) as bound:
            yield bound
            await batches.close()


def _listen(options: Options) -> IngestSettings:
    try:
        return IngestSettings(
            listen=options.listen or ":", tls_cert=options.tls_cert, tls_key=options.tls_key, insecure=options.insecure
        )
    except ValidationError as error:
        problem = str(error.errors()[0]["msg"]).removeprefix("Value error, ")
        for setting in ("tls_cert", "tls_key", "insecure: true"):
            problem = problem.replace(setting, "--" + setting.partition(":")[0].replace("_", "-"))
        raise ConfigError(f"--listen {options.listen}: {problem}") from error


def _trust(ca: str | None) -> ssl.SSLContext | bool:
    try:
        return ssl.create_default_context(cafile=ca) if ca else True
    except (OSError, ssl.SSLError) as error:
        raise ConfigError(f"--ca {ca}: {error.strerror or error}") from error


def _taking(batches: Batches) -> Callable[[web.Request], Any]:
    async def report(request: web.Request) -> web.Response:
        """Take an agent's report."""
        token = endpoint.token(request)
        answer = await batches.report(token, await endpoint.body(request))
        headers = {"Retry-After": str(answer.retry_after)} if answer.retry_after else {}
        kind = "application/json" if answer.status == _OK else "text/plain"
        return web.Response(status=answer.status, body=answer.body, content_type=kind, headers=headers)

    return report


class _Sender:
    """Takes batches to the controller. Its failures are logged when they begin and when they are over."""

    def __init__(self, session: aiohttp.ClientSession, target: Controller, token_file: str) -> None:
        self._session = session
        host = f"[{target.host}]" if ":" in target.host else target.host
        self._url = f"{'https' if target.tls else 'http'}://{host}:{target.port}{target.path}s"
        self._token_file = token_file
        self._said = ""

    async def send(self, lines: bytes) -> Sequence[Answer]:
        """What the controller answers to each.

        Raises:
            UnreachableError: nothing, or nothing that could be understood.
        """
        try:
            answers = await self._answers(lines)
        except UnreachableError as error:
            self._say(str(error))
            raise
        self._say("")
        return answers

    async def _answers(self, lines: bytes) -> list[Answer]:
        try:
            # Read each time: a new token needs no restart. A small file, of this machine.
            headers = {"Authorization": f"Bearer {read_token(self._token_file)}"}
            status, body = await self._post(lines, headers)
        except AgentSettingsError as error:
            raise UnreachableError(str(error)) from error
        except (aiohttp.ClientError, OSError, TimeoutError) as error:
            raise UnreachableError(str(error) or type(error).__name__) from error
        if status != _OK:
            said = " ".join(body[:200].decode(errors="replace").split())
            raise UnreachableError(f"it answers {status} {said}".strip())
        try:
            return [_answer(each) for each in json.loads(body)["answers"]]
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            raise UnreachableError("its answer is none: is it a controller of this version?") from error

    async def _post(self, lines: bytes, headers: dict[str, str]) -> tuple[int, bytes]:
        timeout = aiohttp.ClientTimeout(total=ANSWER_WITHIN)
        async with self._session.post(
            self._url, data=lines, headers=headers, timeout=timeout, allow_redirects=False
        ) as answer:
            body = bytearray()
            async for part in answer.content.iter_any():
                body += part
                if len(body) > LONGEST:
                    raise UnreachableError(f"its answer is longer than {LONGEST} bytes")
            return answer.status, bytes(body)

    def _say(self, problem: str) -> None:
        if problem != self._said:
            logger.warning("the controller is %s", f"not reached: {problem}" if problem else "reached again")
        self._said = problem


def _answer(told: dict[str, Any]) -> Answer:
    receipt = told.get("receipt")
    if receipt is not None:
        return Answer(_OK, json.dumps(receipt, separators=(",", ":")).encode())
    return Answer(int(told["status"]), str(told["text"]).encode(), int(told.get("retry_after", 0)))
