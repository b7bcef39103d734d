"""What the controller's and a relay's endpoints for agents have in common: tokens, bounded bodies, refusals, TLS."""

import asyncio
import contextlib
import logging
import re
from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from aiohttp import web

from relight.config.settings import ConfigError, IngestSettings

if TYPE_CHECKING:
    from ssl import SSLContext

logger = logging.getLogger(__name__)

MAX_BODY = 256 << 10
"""Bytes of one report."""
READ_WITHIN = 10.0
"""Seconds for a request's body to arrive."""
KEPT_OPEN = 30
"""Seconds that a connection stays open between two reports: an agent beats every 5 s."""
_TOKEN = re.compile(r"Bearer ([0-9a-f]{64})")
_PIECE = 1 << 16


class IngestError(ConfigError):
    """The endpoint cannot be opened; the text says what to do."""


class Names(NamedTuple):
    """What the operator calls the settings of an endpoint."""

    listen: str
    tls_cert: str


async def health(_request: web.Request) -> web.Response:
    """Say that it serves."""
    return web.Response(text="ok\n")


def token(request: web.Request) -> str:
    """The bearer token, by its form."""
    found = _TOKEN.fullmatch(request.headers.get("Authorization", ""))
    if found is None:
        raise refused(web.HTTPUnauthorized, "no token: Authorization: Bearer ...", {"WWW-Authenticate": "Bearer"})
    return found[1]


async def body(request: web.Request, most: int = MAX_BODY) -> bytes:
    """The whole body, in time and of `most` bytes."""
    parts, size = [], 0
    try:
        async with asyncio.timeout(READ_WITHIN):
            async for part in request.content.iter_chunked(_PIECE):
                parts.append(part)
                size += len(part)
                if size > most:
                    raise refused(_TooLarge, f"more than {most} bytes")
    except TimeoutError:
        raise refused(web.HTTPRequestTimeout, "the request did not arrive in time") from None
    return b"".join(parts)


class _TooLarge(web.HTTPClientError):
    """aiohttp's own wants to know by how much."""

    status_code = 413


def refused(kind: type[web.HTTPException], text: str, headers: Mapping[str, str] | None = None) -> web.HTTPException:
    """A refusal in one line of text."""
    return kind(text=" ".join(text.split())[:300] + "\n", headers=headers)


@contextlib.asynccontextmanager
async def listening(
    application: web.Application, settings: IngestSettings, names: Names
) -> AsyncIterator[tuple[str, int]]:
    """Serve where the settings say; yields host and port.

    Raises:
        IngestError: the address is taken, or the certificate cannot be used.
    """
    # Access is not logged: 2,000 lines a second.
    runner = web.AppRunner(application, access_log=None, keepalive_timeout=KEPT_OPEN, handle_signals=False)
    await runner.setup()
    try:
        host, port = settings.address
        site = web.TCPSite(runner, host, port, ssl_context=_tls(settings, names))
        try:
            await site.start()
        except OSError as error:
            raise IngestError(f"{names.listen} {settings.listen}: {error.strerror or error}") from error
        bound = runner.addresses[0]
        logger.info("%s: listens on %s:%d", names.listen, bound[0], bound[1])
        yield str(bound[0]), int(bound[1])
    finally:
        await runner.cleanup()


def _tls(settings: IngestSettings, names: Names) -> "SSLContext | None":
    if not settings.tls_cert:
        return None
    import ssl

    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    try:
        context.load_cert_chain(Path(settings.tls_cert).expanduser(), Path(settings.tls_key).expanduser())
    except (OSError, ssl.SSLError) as error:
        raise IngestError(f"{names.tls_cert} {settings.tls_cert}: {error}") from error
    return context
