"""Who comes in: by session cookie, by a token with each request, or, with `--dev` on loopback, unasked."""

import logging
from collections.abc import Callable
from datetime import datetime

from relight.clients.console_tokens import Token, Tokens, TokensFileError
from relight.config.console import ConsoleSettings
from relight.console.web.errors import Stranger, TooMany, Unreachable
from relight.console.web.limits import Limit
from relight.console.web.roles import Identity, Role
from relight.console.web.sessions import Session, Sessions

DEV = Identity(name="dev", role=Role.ADMIN, way="dev")
"""Everybody, with `--dev`."""
_LOG = logging.getLogger(__name__)
_WRONG = "that is no token of this console, or no longer"


class Door:
    """Knows tokens and sessions."""

    def __init__(
        self,
        settings: ConsoleSettings,
        tokens: Tokens,
        *,
        failures: Limit,
        now: Callable[[], datetime],
        dev: bool = False,
    ) -> None:
        """Make it.

        Args:
            settings: how long sessions last.
            tokens: of this site.
            failures: how often one address may fail.
            now: the time.
            dev: whether everybody is let in.
        """
        self.dev = dev
        self._tokens = tokens
        self._failures = failures
        self._now = now
        self._sessions = Sessions(settings.session_idle, settings.session_most)

    def by_token(self, text: str, address: str) -> Token:
        """The token that somebody at this address shows.

        Raises:
            TooMany: it failed too often from there.
            Stranger: it is none.
            Unreachable: the file of tokens cannot be read.
        """
        if wait := self._failures.wait(address):
            raise TooMany(f"too many sign-ins failed from here: again in {wait} s", wait)
        try:
            found = self._tokens.find(text.strip(), self._now())
        except TokensFileError as error:
            _LOG.error("sign-in by token: %s", error)
            raise Unreachable("tokens cannot be checked now; the console's log says why") from error
        if found is None:
            self._failures.use(address)
            _LOG.warning("sign-in by token failed from %s", address)
            raise Stranger(_WRONG)
        return found

    def bearer(self, text: str, address: str) -> Identity:
        """Who sends this token with a request; errors as of `by_token`."""
        token = self.by_token(text, address)
        return Identity(name=token.name, role=token.role, way="bearer")

    def let_in_by_token(self, text: str, address: str) -> str:
        """Begin a session: its cookie; errors as of `by_token`."""
        token = self.by_token(text, address)
        cookie, who = self._sessions.begin(token.name, token.role, "token", self._now(), token.id)
        _LOG.info("%s (%s) signed in by token %s from %s", who.name, who.role, token.id, address)
        return cookie

    def let_in(self, name: str, role: Role, address: str) -> str:
        """Begin a session of who has proven to be this person: its cookie."""
        cookie, _ = self._sessions.begin(name, role, "oidc", self._now())
        _LOG.info("%s (%s) signed in by OIDC from %s", name, role, address)
        return cookie

    def of_cookie(self, cookie: str, *, touch: bool = True) -> Identity | None:
        """Whose session it is; None where it is none, or is over."""
        return self._good(self._sessions.of_cookie(cookie, self._now(), touch=touch))

    def still(self, who: Identity) -> bool:
        """True while a page of this person may go on; asking does not keep the session alive."""
        if who.way == "dev":
            return self.dev
        return self._good(self._sessions.named(who.session, self._now())) is not None

    def end(self, who: Identity) -> None:
        """Sign out."""
        self._sessions.end(who.session)

    def _good(self, session: Session | None) -> Identity | None:
        """A session lasts no longer than the token that began it, and has that token's role."""
        if session is None or not session.token:
            return session.identity if session else None
        try:
            token = self._tokens.by_id(session.token, self._now())
        except TokensFileError as error:
            _LOG.error("a session by token: %s", error)
            return None
        if token is None or token.name != session.identity.name:
            self._sessions.end(session.identity.session)
            return None
        if token.role != session.identity.role:
            session.identity = session.identity.model_copy(update={"role": token.role})
        return session.identity
