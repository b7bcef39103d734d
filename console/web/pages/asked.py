"""What a page is asked for, and what it shows."""

from collections.abc import Awaitable, Callable, Mapping
from datetime import datetime
from typing import TYPE_CHECKING, NamedTuple

from relight.console.web.look import Html
from relight.console.web.roles import Identity

if TYPE_CHECKING:
    from relight.console.web.api_build import Desk


class Asked(NamedTuple):
    """One look at one page."""

    desk: "Desk"
    who: Identity
    query: Mapping[str, str]
    """What the address asks for, as it was typed: pages leave out what makes no sense."""
    name: str
    """The incident, job or node; empty for lists."""
    now: datetime


class View(NamedTuple):
    """What is shown. Each block is replaced on its own when it changes."""

    title: str
    blocks: tuple[Html, ...]


Load = Callable[[Asked], Awaitable[View]]
