"""What a page shows where it cannot show what was asked for: each says why, and what helps."""

import logging

from relight.console.web.errors import NotThere, Refused, Stranger, Unreachable, WebError
from relight.console.web.look import Html, link
from relight.console.web.look_parts import empty
from relight.console.web.pages.asked import View

_log = logging.getLogger(__name__)
LOADING = Html('<div class="empty" role="status">Loading…</div>')


def log(error: Exception) -> None:
    """Write down what a person is not told the whole of."""
    if not isinstance(error, WebError):
        _log.warning("a page could not be shown", exc_info=error)


def failed(error: Exception) -> View:
    """The page for an error."""
    from relight.clients.ledger import LedgerError
    from relight.console.errors import NotFoundStop, Stop

    told = str(error).partition("\n")[0]
    for kinds, title, more in (
        ((NotThere, NotFoundStop), "Not found", [" ", link("/incidents", "Look among the incidents")]),
        ((Refused,), "This is not for you to see", [" Ask an administrator of Relight for another role."]),
        ((Stranger,), "You are signed out", [" ", link("/sign-in", "Sign in")]),
        ((Unreachable, LedgerError), "The ledger does not answer", [" This page tries again by itself."]),
        ((WebError, Stop), "This cannot be shown", []),
    ):
        if isinstance(error, kinds):
            return _view(title, told, ".", *more)
    return _view("Something went wrong here", f"{type(error).__name__}: the console's own log tells more. Jobs run on.")


def _view(title: str, *told: str | Html) -> View:
    return View(title, (empty(title, *told, fine=False),))
