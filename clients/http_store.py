"""Kept HTTP connections to a log store; what goes wrong there comes out as a `LogError`. No failure is waited out here.

A question is asked again in two cases, once: where the store had closed a kept connection meanwhile (aiohttp does that
for GET itself), and where the secret's file holds another secret than the one that was refused.
"""

import asyncio
import ssl
import time
from base64 import b64encode
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from datetime import timedelta
from email.utils import parsedate_to_datetime
from pathlib import Path
from typing import NamedTuple, Self

import aiohttp

from relight.clients.log_files import plain
from relight.clients.logs import LogUnreadableError
from relight.domain.base import clip

_AT_ONCE = 16
"""Requests at the same time: a store has few query slots, and each answer may take some MiB here."""
_EXCERPT = 2048
_LONGEST_PAUSE = 60.0
_PIECE = 1 << 16


class Endpoint(NamedTuple):
    """Where a store is, and as whom it is asked."""

    url: str
    """Its root, for example `https://logs.example.org:9428`; a path in it is kept."""
    secret: Path | None = None
    """File with a bearer token, or with the password when there is a `user`."""
    user: str = ""
    ca: Path | None = None
    """Certificates to trust instead of the system's."""
    timeout: timedelta = timedelta(seconds=10)
    """For one request, its answer's body included."""


class HttpStore:
    """Asks a store. To be entered on the event loop that uses it.

    Args:
        endpoint: where.
        headers: sent with each request: the tenant.
        whose: the tenant in words, for errors.
        monotonic: seconds of a clock that never jumps.
    """

    def __init__(
        self,
        endpoint: Endpoint,
        *,
        headers: Mapping[str, str],
        whose: str,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        scheme, _, rest = endpoint.url.partition("://")
        if scheme not in ("http", "https") or not rest:
            raise ValueError(f"{endpoint.url!r}: must begin with http:// or https://")
        if "@" in rest.partition("/")[0]:
            raise ValueError("no user or password in a store's address: it is shown in errors")
        self._endpoint = endpoint
        self.url = endpoint.url.rstrip("/")
        self._headers = dict(headers)
        self.whose = whose
        self._monotonic = monotonic
        self._paused_until = 0.0
        self._secret = ""
        self._gate = asyncio.Semaphore(_AT_ONCE)
        self._session: aiohttp.ClientSession | None = None

    async def __aenter__(self) -> Self:
        endpoint = self._endpoint
        self._secret = self._read_secret()
        secure: ssl.SSLContext | bool = ssl.create_default_context(cafile=endpoint.ca) if endpoint.ca else True
        self._session = aiohttp.ClientSession(
            # Bodies come as they are: what is cut off is seen, and a small answer cannot unpack to a large one.
            headers={**self._headers, "Accept-Encoding": "identity"},
            connector=aiohttp.TCPConnector(ssl=secure, limit=0),
            cookie_jar=aiohttp.DummyCookieJar(),
        )
        return self

    async def __aexit__(self, *_: object) -> None:
        if self._session is not None:
            await self._session.close()

    @asynccontextmanager
    async def answer(
        self,
        path: str,
        query: Mapping[str, str],
        *,
        endless: bool = False,
        form: bool = False,
    ) -> AsyncIterator[aiohttp.StreamReader]:
        """The body of an answer with status 200.

        `endless`: an answer that goes on; no time-out, and it takes none of the places of others.
        `form`: the question is longer than an address may be, and is sent as a form (POST).

        Raises:
            LogUnreadableError: no answer, a refusal, or a body that is cut off, also while it is read here.
        """
        bound = self._endpoint.timeout.total_seconds()
        timeout = aiohttp.ClientTimeout(total=None if endless else bound, sock_connect=bound)
        gate = asyncio.Semaphore() if endless else self._gate
        try:
            async with gate, await self._ask(path, query, timeout, form=form) as response:
                yield response.content
        except TimeoutError:
            raise LogUnreadableError(f"{self.url}: no (or no whole) answer within {bound:g} s") from None
        except aiohttp.ClientSSLError as error:
            found = getattr(error.os_error, "verify_message", "") or getattr(error.os_error, "reason", "") or error
            text = f"no TLS connection that can be trusted: {found}: check the address, and the certificates (ca)"
            raise LogUnreadableError(f"{self.url}: {text}") from error
        except (aiohttp.ClientError, OSError, RuntimeError) as error:  # RuntimeError: what aiohttp says of closed ones
            raise LogUnreadableError(f"{self.url}: {error or type(error).__name__}") from error

    async def body(self, path: str, query: Mapping[str, str], most: int, *, form: bool = False) -> bytes | None:
        """A whole answer; None where it is longer than `most` bytes. `form`: see `answer`."""
        async with self.answer(path, query, form=form) as content:
            parts, size = [], 0
            async for part in content.iter_chunked(_PIECE):
                parts.append(part)
                size += len(part)
                if size > most:
                    return None
            return b"".join(parts)

    async def _ask(
        self,
        path: str,
        query: Mapping[str, str],
        timeout: aiohttp.ClientTimeout,  # noqa: ASYNC109  aiohttp bounds each phase by it
        *,
        form: bool,
    ) -> aiohttp.ClientResponse:
        wait = self._paused_until - self._monotonic()
        if wait > 0:
            raise LogUnreadableError(f"{self.url}: limits our rate; it is asked again in {wait:.0f} s")
        while True:
            used = self._secret
            try:
                response = await self._send(path, query, used, timeout, form=form)
            except aiohttp.ServerDisconnectedError:
                if not form:
                    raise
                response = await self._send(path, query, used, timeout, form=form)
            if response.status == 200:  # noqa: PLR2004
                return response
            async with response:
                if response.status == 401 and self._renewed(used):  # noqa: PLR2004
                    continue
                raise LogUnreadableError(await self._refusal(path, response))

    async def _send(
        self,
        path: str,
        query: Mapping[str, str],
        secret: str,
        timeout: aiohttp.ClientTimeout,  # noqa: ASYNC109
        *,
        form: bool,
    ) -> aiohttp.ClientResponse:
        if self._session is None:
            raise LogUnreadableError(f"{self.url}: not connected")
        return await self._session.request(
            "POST" if form else "GET",
            self.url + path,
            params=None if form else query,
            data=query if form else None,
            headers=self._authorization(secret),
            timeout=timeout,
            # A login page is no answer, and another host gets no secret of ours.
            allow_redirects=False,
        )

    async def _refusal(self, path: str, response: aiohttp.ClientResponse) -> str:
        """What the status means, and what to do about it."""
        words = clip(plain((await response.content.read(_EXCERPT)).replace(b"\n", b" ").replace(b"\r", b" ")), 200)
        status, pause = response.status, _pause(response)
        if status == 401:  # noqa: PLR2004
            held = f"the secret in {self._endpoint.secret}" if self._endpoint.secret else "a request without a secret"
            text = f"does not accept {held} (expired, wrong, or no tenant named): renew it, or check {self.whose}"
        elif status == 403:  # noqa: PLR2004
            text = f"knows us, but does not let us read {self.whose}: check the tenant, or have the right granted"
        elif status == 404:  # noqa: PLR2004
            text = f"has no {path}: check the address"
        elif status == 429 or (status == 503 and pause):  # noqa: PLR2004
            self._paused_until = self._monotonic() + pause
            text = f"limits our rate; it is asked again in {pause:.0f} s"
        elif 300 <= status < 400:  # noqa: PLR2004
            text = "sends us elsewhere, probably to log in: check the address and the secret"
        elif 400 <= status < 500:  # noqa: PLR2004
            text = "refuses the question"
        else:
            text = "cannot answer (wholly) now"
        return f"{self.url}: {text} (status {status}{': ' if words else ''}{words})"

    def _authorization(self, secret: str) -> dict[str, str]:
        if not secret:
            return {}
        if self._endpoint.user:
            pair = f"{self._endpoint.user}:{secret}".encode()
            return {"Authorization": f"Basic {b64encode(pair).decode()}"}
        return {"Authorization": f"Bearer {secret}"}

    def _renewed(self, used: str) -> bool:
        self._secret = self._read_secret()
        return self._secret != used

    def _read_secret(self) -> str:
        if self._endpoint.secret is None:
            return ""
        try:
            # A small file of this machine, read once and after a refusal.
            return self._endpoint.secret.read_text(encoding="utf-8").strip()
        except (OSError, UnicodeDecodeError) as error:
            raise LogUnreadableError(f"{self._endpoint.secret}: the secret cannot be read: {error}") from error


def _pause(response: aiohttp.ClientResponse) -> float:
    """Seconds that `Retry-After` (RFC 9110, 10.2.3: seconds or a date) asks for, by the store's own clock."""
    asked = response.headers.get("Retry-After", "").strip()
    if asked.isdecimal():
        seconds = float(asked)
    else:
        try:
            now = parsedate_to_datetime(response.headers.get("Date", ""))
            seconds = (parsedate_to_datetime(asked) - now).total_seconds()
        except (TypeError, ValueError):
            # A 429 without a word is believed for a second; a 503 is an outage, not a limit.
            seconds = 1.0 if response.status == 429 else 0.0  # noqa: PLR2004
    return min(max(seconds, 0.0), _LONGEST_PAUSE)
