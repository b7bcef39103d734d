"""What can be wrong with what a browser or program asks of the console; each has words for a person.

WebError
├── BadAsk        what was sent cannot be read: 400, 422
├── Stranger      nobody has signed in (any more): 401
├── Refused       it exists, and may not be done (any more, or by this person): 403, 409
├── NotThere      there is no such thing, or this person may not know of it: 404
├── TooMany       too often: 429, with when to try again
└── Unreachable   the ledger or Temporal does not answer: 503; trying again helps
"""

from http import HTTPStatus


class WebError(Exception):
    """Root of what the console answers instead of a page or value."""

    status = HTTPStatus.INTERNAL_SERVER_ERROR
    title = "Failed"
    retry_after: int | None = None
    """Seconds after which trying again may help."""


class BadAsk(WebError):  # noqa: N818 - an answer, named as a person would
    """What was sent cannot be read."""

    status = HTTPStatus.UNPROCESSABLE_ENTITY
    title = "Not understood"


class Stranger(WebError):  # noqa: N818 - an answer, named as a person would
    """Nobody has signed in, or the session is over."""

    status = HTTPStatus.UNAUTHORIZED
    title = "Sign in first"


class Refused(WebError):  # noqa: N818 - an answer, named as a person would
    """This person's role does not allow it."""

    status = HTTPStatus.FORBIDDEN
    title = "Not allowed"


class Overtaken(Refused):
    """It may not be done any more, or does not count: the plan has changed, it is over, it was decided."""

    status = HTTPStatus.CONFLICT
    title = "Not counted"


class NotThere(WebError):  # noqa: N818 - an answer, named as a person would
    """There is no such thing, or this person may not know of it."""

    status = HTTPStatus.NOT_FOUND
    title = "Not found"


class TooMany(WebError):  # noqa: N818 - an answer, named as a person would
    """Too often."""

    status = HTTPStatus.TOO_MANY_REQUESTS
    title = "Too many requests"

    def __init__(self, message: str, retry_after: int) -> None:
        super().__init__(message)
        self.retry_after = retry_after


class Unreachable(WebError):  # noqa: N818 - an answer, named as a person would
    """The ledger or Temporal does not answer."""

    status = HTTPStatus.SERVICE_UNAVAILABLE
    title = "Try again"
    retry_after = 5
