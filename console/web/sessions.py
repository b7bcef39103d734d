"""Sessions of browsers that have signed in. They live in this process: after a restart people sign in again.

The cookie is a random name and nothing else, so there is nothing in it to forge; what it names is known here alone.
"""

import hashlib
import secrets
from collections import OrderedDict
from dataclasses import dataclass
from datetime import datetime, timedelta

from relight.console.web.roles import Identity, Role

MOST_SESSIONS = 10_000
"""The one begun first is ended beyond that."""
_BYTES = 32


@dataclass
class Session:
    """One browser."""

    identity: Identity
    token: str
    """Id of the token it was opened with; empty where it was none."""
    born: datetime
    seen: datetime
    """When a person last did something in it; what a page asks for by itself does not count."""


class Sessions:
    """All of them."""

    def __init__(self, idle: timedelta, most: timedelta) -> None:
        self._idle = idle
        self._most = most
        self._open: OrderedDict[str, Session] = OrderedDict()

    def begin(self, name: str, role: Role, way: str, now: datetime, token: str = "") -> tuple[str, Identity]:
        """Begin one: its cookie, and who it is."""
        cookie = secrets.token_urlsafe(_BYTES)
        named = _named(cookie)
        who = Identity(name=name, role=role, way=way, session=named, csrf=secrets.token_urlsafe(_BYTES))
        self._open[named] = Session(who, token, now, now)
        while len(self._open) > MOST_SESSIONS:
            self._open.popitem(last=False)
        return cookie, who

    def of_cookie(self, cookie: str, now: datetime, *, touch: bool) -> Session | None:
        """The session of a cookie; None where it is none, or is over."""
        found = self.named(_named(cookie), now)
        if found and touch:
            found.seen = now
        return found

    def named(self, name: str, now: datetime) -> Session | None:
        """The session of this name (`Identity.session`), untouched; None where it is over."""
        found = self._open.get(name)
        if found and (now - found.seen >= self._idle or now - found.born >= self._most):
            del self._open[name]
            return None
        return found

    def end(self, name: str) -> None:
        """End it."""
        self._open.pop(name, None)


def _named(cookie: str) -> str:
    return hashlib.sha256(cookie.encode(errors="backslashreplace")).hexdigest()
