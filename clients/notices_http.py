"""One POST to a channel's server, and what its answer means; each channel reads the answer's words itself."""

import ssl
from collections.abc import Mapping
from datetime import timedelta
from email.utils import parsedate_to_datetime
from typing import NamedTuple

import aiohttp

from relight.clients.notices import NoticeNotSentError, Wire
from relight.domain.notices import words

_MOST = 64 << 10
LONGEST_PAUSE = timedelta(hours=1)
"""What a server may ask us to wait."""
TOO_MANY = 429


class Answer(NamedTuple):
    """What came back."""

    status: int
    body: str

    @property
    def said(self) -> str:
        """Status and body in one short line."""
        return f"status {self.status}" + (f": {words(self.body, 200)}" if self.body.strip() else "")

    @property
    def good(self) -> bool:
        """True for 2xx."""
        return 200 <= self.status < 300  # noqa: PLR2004


async def post(url: str, *, whose: str, body: bytes, headers: Mapping[str, str], wire: Wire) -> Answer:
    """Send it once. Redirects are not followed: another host gets nothing of ours.

    Args:
        url: may be a secret itself, and stands in no error.
        whose: names the server in errors.
        body: as it is signed.
        headers: beside it.
        wire: how it is reached.

    Raises:
        NoticeNotSentError: no (whole) answer, an answer of an outage (5xx), or too much at once (429).
    """
    bound = aiohttp.ClientTimeout(total=wire.timeout.total_seconds())
    try:
        secure: ssl.SSLContext | bool = ssl.create_default_context(cafile=wire.ca) if wire.ca else True
        # A connection for each: a channel says little, and what an idle one costs is a lost message.
        async with (
            aiohttp.ClientSession(timeout=bound, cookie_jar=aiohttp.DummyCookieJar()) as session,
            session.post(url, data=body, headers=headers, ssl=secure, allow_redirects=False) as response,
        ):
            text = (await response.content.read(_MOST)).decode(errors="replace")
            answer = Answer(response.status, text)
            again = _again(response)
    except TimeoutError:
        raise NoticeNotSentError(f"{whose}: no answer within {wire.timeout.total_seconds():g} s") from None
    except aiohttp.ClientSSLError as error:
        found = getattr(error.os_error, "verify_message", "") or type(error).__name__
        raise NoticeNotSentError(f"{whose}: no TLS connection that can be trusted: {found}") from None
    except aiohttp.InvalidURL:
        raise NoticeNotSentError(f"{whose}: its address is none") from None
    except (aiohttp.ClientError, OSError) as error:
        raise NoticeNotSentError(f"{whose}: {_why(error)}") from None
    if answer.status == TOO_MANY:
        raise NoticeNotSentError(f"{whose} limits our rate", again or timedelta(seconds=30))
    if answer.status >= 500:  # noqa: PLR2004
        raise NoticeNotSentError(f"{whose} cannot answer now ({answer.said})", again)
    return answer


def _why(error: Exception) -> str:
    """Without the address, which may be a secret."""
    inner = getattr(error, "os_error", None) or error
    return getattr(inner, "strerror", None) or type(inner).__name__


def _again(response: aiohttp.ClientResponse) -> timedelta | None:
    """What `Retry-After` asks for (RFC 9110, 10.2.3): seconds, or a date by the server's own clock."""
    asked = response.headers.get("Retry-After", "").strip()
    if asked.isascii() and asked.isdecimal():
        return min(timedelta(seconds=min(int(asked[:9]), 1 << 20)), LONGEST_PAUSE)
    try:
        now = parsedate_to_datetime(response.headers.get("Date", ""))
        return min(max(parsedate_to_datetime(asked) - now, timedelta(0)), LONGEST_PAUSE)
    except (TypeError, ValueError):
        return None
