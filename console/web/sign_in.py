"""Signing in and out: plain pages and forms that need no script."""

from http import HTTPStatus
from typing import Annotated
from urllib.parse import urlsplit

from fastapi import APIRouter, Query, Request
from starlette.requests import HTTPConnection
from starlette.responses import HTMLResponse, RedirectResponse, Response

from relight.console.text import clean
from relight.console.web.desk import Desk, desk_of
from relight.console.web.errors import NotThere, Stranger, WebError
from relight.console.web.gate import address_of, check_csrf, cookie_name
from relight.console.web.look_sign_in import sign_in_page
from relight.console.web.roles import Identity
from relight.console.web.sign_in_oidc import LASTS
from relight.domain.base import Value

_STATE = "relight-sign-in"
"""The cookie of a sign-in that is under way."""
_NO_PROVIDER = "this site has no single sign-on"
_LONGEST = 2000
routes = APIRouter(include_in_schema=False)
Following = Annotated[str, Query(alias="next")]
"""Where to go afterwards."""


class SignInView(Value):
    """What the sign-in page shows."""

    token: bool
    """Whether one can sign in by token."""
    oidc: str
    """The name on the provider's button; empty: there is none."""
    wrong: str
    next: str


def identity_of(asked: HTTPConnection) -> Identity:
    """Who has signed in, of a request or websocket that the gate has let pass.

    Raises:
        Stranger: nobody.
    """
    found = asked.scope.get("state", {}).get("identity")
    if not isinstance(found, Identity):
        raise Stranger("sign in first")
    return found


def own_place(following: str) -> str:
    """A place on this site: where it is anything else, its first page."""
    parts = urlsplit(following) if following.isprintable() else None
    bad = parts is None or parts.scheme or parts.netloc or not following.startswith("/") or "\\" in following
    return (
        "/" if bad or following.startswith(("//", "/sign-in", "/sign-out")) or len(following) > _LONGEST else following
    )


@routes.get("/sign-in")
async def show(request: Request, following: Following = "/") -> Response:
    """The page with the form."""
    if isinstance(request.scope.get("state", {}).get("identity"), Identity):
        return RedirectResponse(own_place(following), status_code=HTTPStatus.SEE_OTHER)
    return _page(desk_of(request), following)


@routes.post("/sign-in")
async def by_token(request: Request) -> Response:
    """The form comes back."""
    desk, form = desk_of(request), await request.form(max_files=0, max_fields=8)
    following = str(form.get("next", "/"))
    try:
        cookie = desk.door.let_in_by_token(str(form.get("token", "")), address_of(request))
    except WebError as error:
        return _failed(desk, following, error)
    return _come_in(desk, cookie, following)


@routes.get("/sign-in/oidc")
async def to_provider(request: Request, following: Following = "/") -> Response:
    """Send the browser to the provider."""
    desk, console = desk_of(request), desk_of(request).settings.console
    if desk.oidc is None:
        return _failed(desk, following, NotThere(_NO_PROVIDER))
    try:
        url, state = await desk.oidc.begin(own_place(following))
    except WebError as error:
        return _failed(desk, following, error)
    answer = RedirectResponse(url, status_code=HTTPStatus.SEE_OTHER)
    # Bound to this browser: nobody can be signed in as somebody else by a link.
    lasts = int(LASTS.total_seconds())
    answer.set_cookie(_STATE, state, lasts, path="/sign-in", secure=console.encrypted, httponly=True, samesite="lax")
    return answer


@routes.get("/sign-in/callback")
async def from_provider(request: Request, state: str = "", code: str = "", iss: str = "", error: str = "") -> Response:
    """The provider sends the browser back."""
    desk = desk_of(request)
    try:
        if desk.oidc is None:
            raise NotThere(_NO_PROVIDER)
        if not state or state != request.cookies.get(_STATE):
            raise Stranger("this sign-in was not begun in this browser: begin again")
        if error or not code:
            who = desk.settings.console.oidc.name
            raise Stranger(f"{who} let nobody in: {error[:100] or 'no code'}")
        person = await desk.oidc.finish(state, code, iss)
    except WebError as wrong:
        return _failed(desk, "/", wrong)
    return _come_in(desk, desk.door.let_in(person.name, person.role, address_of(request)), person.next)


@routes.post("/sign-out")
async def sign_out(request: Request) -> Response:
    """End the session."""
    desk, who = desk_of(request), identity_of(request)
    form = await request.form(max_files=0, max_fields=8)
    if who.session:
        check_csrf(who, str(form.get("csrf", "")))
        desk.door.end(who)
    answer = RedirectResponse("/sign-in", status_code=HTTPStatus.SEE_OTHER)
    console = desk.settings.console
    answer.delete_cookie(cookie_name(console), path="/", secure=console.encrypted, httponly=True)
    return answer


def _page(desk: Desk, following: str, wrong: str = "", status: int = HTTPStatus.OK) -> Response:
    button = desk.settings.console.oidc.name if desk.oidc else ""
    view = SignInView(token=True, oidc=button, wrong=wrong, next=own_place(following))
    return HTMLResponse(sign_in_page(view), status_code=status)


def _failed(desk: Desk, following: str, error: WebError) -> Response:
    answer = _page(desk, following, clean(str(error), 300), error.status)
    if error.retry_after:
        answer.headers["Retry-After"] = str(error.retry_after)
    return answer


def _come_in(desk: Desk, cookie: str, following: str) -> Response:
    console = desk.settings.console
    answer = RedirectResponse(own_place(following), status_code=HTTPStatus.SEE_OTHER)
    answer.set_cookie(cookie_name(console), cookie, path="/", secure=console.encrypted, httponly=True, samesite="lax")
    answer.delete_cookie(_STATE, path="/sign-in")
    return answer
