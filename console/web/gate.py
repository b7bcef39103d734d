"""What every request and websocket passes before it reaches a page: who it is, from which site, and how it is answered.

Works on ASGI itself, so that it stands before NiceGUI's websockets too.
"""

from collections.abc import Callable
from hmac import compare_digest
from typing import Any
from urllib.parse import quote, urlsplit

from starlette.datastructures import MutableHeaders
from starlette.requests import HTTPConnection
from starlette.responses import PlainTextResponse, RedirectResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from relight.config.console import LOOPBACK, ConsoleSettings
from relight.console.web.api_problems import problem
from relight.console.web.door import DEV, Door
from relight.console.web.errors import BadAsk, Refused, Stranger, WebError
from relight.console.web.roles import Identity

SAFE = frozenset({"GET", "HEAD", "OPTIONS"})
CSRF_HEADER = "X-CSRF-Token"
MOST_BODY = 64 << 10
"""Bytes of a request. The largest is a decision with its reason."""
API = "/api/"
OWN_WORDS = frozenset({"/sign-in", "/sign-out"})
"""Forms, which check for themselves that they are ours."""
OPEN = ("/sign-in", "/healthz", "/static/", "/_nicegui/", "/slack/interactions")
"""Before signing in: the sign-in itself, code and styles, which are the same for everybody, and what Slack signs."""
_WEBSOCKET_PATH = "/_nicegui_ws/"
_PAGES_CSP = (
    # NiceGUI compiles its components in the browser, and writes its start-up into the page.
    "default-src 'self'; script-src 'self' 'unsafe-inline' 'unsafe-eval'; style-src 'self' 'unsafe-inline'; "
    "img-src 'self' data:; font-src 'self' data:; connect-src 'self'; object-src 'none'; base-uri 'self'; "
    "form-action 'self'; frame-ancestors 'none'"
)
_PLAIN_CSP = (
    "default-src 'none'; style-src 'unsafe-inline'; img-src 'self' data:; base-uri 'none'; form-action 'self'; "
    "frame-ancestors 'none'"
)
"""Where there is no script: the API and the sign-in page."""
_ALWAYS = {
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Permissions-Policy": "camera=(), geolocation=(), microphone=(), payment=(), usb=()",
}
_HSTS = "max-age=31536000"


class Gate:
    """ASGI middleware. The application finds who has signed in at `scope["state"]["identity"]`."""

    def __init__(self, app: ASGIApp, settings: ConsoleSettings, door: Callable[[], Door]) -> None:
        self._app = app
        self._settings = settings
        self._door = door
        self._secure = settings.encrypted
        self._hosts = _hosts(settings)
        self.cookie = cookie_name(settings)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Let it pass, or answer it."""
        if scope["type"] not in {"http", "websocket"}:
            await self._app(scope, receive, send)
            return
        asked = HTTPConnection(scope)
        answer: Response | None = None
        try:
            who = self._admit(asked, scope)
        except Stranger as error:
            answer = self._stranger(asked, scope, error)
        except WebError as error:
            answer = _refusal(asked, error)
        else:
            scope.setdefault("state", {})["identity"] = who
        told = self._with_headers(scope, asked.url.path, send)
        if answer is None:
            await self._app(scope, _bounded(scope, receive), told)
        elif scope["type"] == "websocket":
            await send({"type": "websocket.close", "code": 4401})
        else:
            await answer(scope, receive, told)

    def _admit(self, asked: HTTPConnection, scope: Scope) -> Identity | None:
        """Who it is; None where that need not be known."""
        path = asked.url.path
        self._check_host(asked)
        changes = scope["type"] == "websocket" or scope["method"] not in SAFE
        if changes:
            _check_origin(asked, self._settings, must_say=path.startswith(_WEBSOCKET_PATH))
        if length := asked.headers.get("content-length"):
            _check_length(length)
        who = self._who(asked)
        if who is None and not path.startswith(OPEN):
            raise Stranger("sign in first")
        by_cookie = who is not None and who.session
        forms = path in OWN_WORDS or path.startswith(_WEBSOCKET_PATH)
        if who and by_cookie and changes and not forms and scope["type"] == "http":
            check_csrf(who, asked.headers.get(CSRF_HEADER, ""))
        return who

    def _who(self, asked: HTTPConnection) -> Identity | None:
        door = self._door()
        kind, _, token = asked.headers.get("authorization", "").partition(" ")
        if kind.lower() == "bearer":
            return door.bearer(token, address_of(asked))
        if door.dev:
            return DEV
        cookie = asked.cookies.get(self.cookie, "")
        # A page that is open asks for its parts and its websocket by itself: that is nobody's click.
        by_person = not asked.url.path.startswith(("/_nicegui", "/static/", "/api/v1/changes"))
        return door.of_cookie(cookie, touch=by_person) if cookie else None

    def _check_host(self, asked: HTTPConnection) -> None:
        """Refuse what was sent to another name: a page elsewhere may have had its own name lead here."""
        said = asked.headers.get("host", "")
        host = urlsplit(f"//{said}").hostname if said.isascii() else None
        if self._hosts and host not in self._hosts:
            raise BadAsk(f"this is not {said[:100] or 'the host asked for'} (console.url names the host)")

    def _stranger(self, asked: HTTPConnection, scope: Scope, error: Stranger) -> Response:
        path, wants = asked.url.path, asked.headers.get("accept", "")
        if scope["type"] == "http" and scope["method"] == "GET" and not path.startswith(API) and "html" in wants:
            following = quote(path + (f"?{asked.url.query}" if asked.url.query else ""), safe="")
            return RedirectResponse(f"/sign-in?next={following}", status_code=303)
        answer = problem(error)
        answer.headers["WWW-Authenticate"] = "Bearer"
        return answer

    def _with_headers(self, scope: Scope, path: str, send: Send) -> Send:
        plain = path.startswith((API, "/sign-in", "/healthz", "/slack/"))
        cached = path.startswith(("/static/", "/_nicegui/"))

        async def told(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                for name, value in _ALWAYS.items():
                    headers.setdefault(name, value)
                headers["Content-Security-Policy"] = _PLAIN_CSP if plain else _PAGES_CSP
                if not cached:
                    headers["Cache-Control"] = "no-store"
                if self._secure:
                    headers.setdefault("Strict-Transport-Security", _HSTS)
            await send(message)

        return told if scope["type"] == "http" else send


def check_csrf(who: Identity, said: str) -> None:
    """Refuse what another site may have made this person's browser send.

    Raises:
        Refused: it does not carry the session's own word.
    """
    if not (who.csrf and compare_digest(who.csrf.encode(), said.encode(errors="backslashreplace"))):
        raise Refused(f"this request does not carry its session's {CSRF_HEADER}: load the page again")


def address_of(asked: HTTPConnection) -> str:
    """Where it comes from; behind proxies that are believed, as they say (`console.proxies`)."""
    return asked.client.host if asked.client else "unknown"


def cookie_name(settings: ConsoleSettings) -> str:
    """With a prefix by which browsers keep it from other hosts of the domain, where there is TLS."""
    return "__Host-relight" if settings.encrypted else "relight"


def _hosts(settings: ConsoleSettings) -> frozenset[str]:
    """The names that it is reached by; empty: any, where nobody says."""
    named = urlsplit(settings.url).hostname
    host = settings.address[0]
    anywhere = host in {"", "0.0.0.0", "::"}  # noqa: S104 - compared, not listened on
    if anywhere and not named:
        return frozenset()
    own = LOOPBACK if settings.loopback else () if anywhere else (host,)
    return frozenset({*own, *((named,) if named else ())})


def _check_origin(asked: HTTPConnection, settings: ConsoleSettings, *, must_say: bool) -> None:
    """Refuse what a page of another site sends. Programs say no origin: they have no cookies to misuse either."""
    origin, fetched = asked.headers.get("origin"), asked.headers.get("sec-fetch-site")
    own = {asked.headers.get("host", ""), urlsplit(settings.url).netloc} - {""}
    unsaid = must_say or fetched in {"cross-site", "same-site"}
    if unsaid if origin is None else urlsplit(origin).netloc not in own:
        raise Refused("this was sent by a page of another site, or by none")


def _check_length(text: str) -> None:
    if not text.isascii() or not text.isdigit() or int(text[:20]) > MOST_BODY:
        raise BadAsk(f"a request of {text[:20]} bytes; accepted: at most {MOST_BODY}")


def _bounded(scope: Scope, receive: Receive) -> Receive:
    """The same without a body that goes on for ever."""
    if scope["type"] != "http":
        return receive
    seen = 0

    async def counted() -> Message:
        nonlocal seen
        message: dict[str, Any] = dict(await receive())
        seen += len(message.get("body", b""))
        return message if seen <= MOST_BODY else {"type": "http.disconnect"}

    return counted


def _refusal(asked: HTTPConnection, error: WebError) -> Response:
    if asked.url.path.startswith(API):
        return problem(error)
    headers = {"Retry-After": str(error.retry_after)} if error.retry_after else {}
    return PlainTextResponse(f"{error.title}: {error}\n", status_code=error.status, headers=headers)
