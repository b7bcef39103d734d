"""What the console's pages, API and sign-in work with: one of each for the process."""

from collections.abc import Callable
from datetime import datetime
from typing import NamedTuple

from starlette.requests import HTTPConnection

from relight.config.settings import Settings
from relight.console.web.decisions import Decisions
from relight.console.web.door import Door
from relight.console.web.read import Reading
from relight.console.web.sign_in_oidc import Oidc


class Desk(NamedTuple):
    """All of it."""

    settings: Settings
    reading: Reading
    door: Door
    decisions: Decisions
    oidc: Oidc | None
    """None: this site has no provider."""
    dev: bool
    now: Callable[[], datetime]


def desk_of(asked: HTTPConnection) -> Desk:
    """The desk of the application that was asked."""
    desk: Desk = asked.app.state.desk
    return desk
