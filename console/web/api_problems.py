"""Errors of the API as RFC 9457 problem details, and JSON that is safe wherever it ends up.

What stands in logs ends up in answers: all of it is written in ASCII, with what HTML would take for markup and every
character that does not print as an escape. Read as JSON it is what was written.
"""

import json
import logging
from collections.abc import Mapping
from http import HTTPStatus
from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.responses import JSONResponse, Response

from relight.clients.ledger import LedgerError, LedgerUnavailableError
from relight.console.text import clean
from relight.console.web.errors import BadAsk, Unreachable, WebError
from relight.domain.base import Value, clip

MEDIA_TYPE = "application/problem+json"
_ESCAPED = str.maketrans({"<": "\\u003c", ">": "\\u003e", "&": "\\u0026", "\x7f": "\\u007f"})
_LONGEST = 500
_MOST_ERRORS = 20
_LOG = logging.getLogger(__name__)


class Wrong(Value):
    """One thing that is wrong with a request."""

    where: str
    """For example `query.limit`."""
    what: str


class Problem(Value):
    """Why a request was not answered (RFC 9457)."""

    type: str = "about:blank"
    title: str
    status: int
    detail: str
    """For a person."""
    retry_after: int | None = None
    """Seconds after which trying again may help."""
    errors: tuple[Wrong, ...] = ()


class SafeJson(JSONResponse):
    """JSON in ASCII, without characters that mean anything to HTML or a terminal."""

    def render(self, content: Any) -> bytes:
        """The bytes."""
        return json.dumps(content, ensure_ascii=True, separators=(",", ":")).translate(_ESCAPED).encode("ascii")


class _ProblemJson(SafeJson):
    media_type = MEDIA_TYPE


def problem(error: WebError, errors: tuple[Wrong, ...] = ()) -> Response:
    """The answer that says so."""
    return _answer(error.status, error.title, str(error), error.retry_after, errors)


def _answer(
    status: int, title: str, detail: str, retry_after: int | None = None, errors: tuple[Wrong, ...] = ()
) -> Response:
    told = clean(detail, _LONGEST)
    body = Problem(title=title, status=status, detail=told, retry_after=retry_after, errors=errors)
    headers = {"Retry-After": str(retry_after)} if retry_after else None
    return _ProblemJson(body.model_dump(mode="json"), status_code=status, headers=headers)


ANSWERS: Mapping[int | str, dict[str, Any]] = {
    status: {"model": Problem, "description": HTTPStatus(status).phrase, "content": {MEDIA_TYPE: {}}}
    for status in (400, 401, 403, 404, 405, 422, 429, 503)
}
"""What any call may answer instead, for the OpenAPI document."""
CONFLICT: Mapping[int | str, dict[str, Any]] = {
    409: {"model": Problem, "description": "It does not count, or cannot any more", "content": {MEDIA_TYPE: {}}}
}


def install(app: FastAPI) -> None:
    """Answer errors of this application's routes in this way."""
    app.add_exception_handler(WebError, _web_error)
    app.add_exception_handler(LedgerError, _ledger_error)
    app.add_exception_handler(RequestValidationError, _invalid)
    app.add_exception_handler(HTTPException, _http_error)
    app.add_exception_handler(Exception, _unforeseen)


async def _web_error(_request: Request, error: Exception) -> Response:
    return problem(error if isinstance(error, WebError) else WebError(str(error)))


async def _ledger_error(_request: Request, error: Exception) -> Response:
    if isinstance(error, LedgerUnavailableError):
        _LOG.warning("%s", error)
        return problem(Unreachable("the ledger's database does not answer: try again in a moment"))
    _LOG.error("%s", error)
    return problem(WebError("the ledger holds what Relight cannot read: relight audit verify"))


async def _invalid(_request: Request, error: Exception) -> Response:
    found = error.errors() if isinstance(error, RequestValidationError) else ()
    # Not what was sent: it may be long, or a secret in the wrong place.
    wrong = tuple(
        Wrong(where=clip(".".join(map(str, each["loc"])), 200), what=clip(str(each["msg"]), 200))
        for each in list(found)[:_MOST_ERRORS]
    )
    first = f": {wrong[0].where}: {wrong[0].what}" if wrong else ""
    return problem(BadAsk(f"the request cannot be read{first}"), wrong)


async def _http_error(_request: Request, error: Exception) -> Response:
    status = error.status_code if isinstance(error, HTTPException) else HTTPStatus.INTERNAL_SERVER_ERROR
    title = HTTPStatus(status).phrase
    answer = _answer(status, title, str(getattr(error, "detail", title)))
    answer.headers.update(getattr(error, "headers", None) or {})
    return answer


async def _unforeseen(request: Request, error: Exception) -> Response:
    _LOG.error("%s %s failed", request.method, request.url.path, exc_info=error)
    return problem(WebError("this is a fault in Relight; the console's log has more"))
