"""Tokens that people sign in to the web console with. The file holds their hashes alone.

A token is 256 random bits, so that a plain SHA-256 of it can be neither guessed nor looked up: slow hashes are for
passwords, which people choose. Its id stands in front, so that one record is compared, in constant time.
"""

import fcntl
import hashlib
import hmac
import os
import secrets
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path

from pydantic import Field, ValidationError

from relight.config.console import Role
from relight.domain.base import Value

PREFIX = "relight"
MOST_TOKENS = 1000
_SECRET_BYTES = 32
_LARGEST = 1 << 20


class TokensFileError(Exception):
    """The file of tokens cannot be used; the message names it, and says what is accepted."""


class Token(Value):
    """What is kept of a token."""

    id: str
    name: str = Field(pattern=r"^[A-Za-z0-9_][A-Za-z0-9_.@-]{0,63}$")
    """Whose it is: the user name on the cluster."""
    role: Role
    hash: str
    """SHA-256 of the secret, hexadecimal."""
    created_at: datetime
    expires_at: datetime | None = None

    def good(self, now: datetime) -> bool:
        """True until it expires."""
        return self.expires_at is None or now < self.expires_at


class _File(Value):
    tokens: tuple[Token, ...] = ()


class Tokens:
    """The tokens of one file. What another process adds or takes away counts from the next look on."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._known: tuple[Token, ...] = ()
        self._mark: tuple[int, int, int] | None = None

    def all(self) -> tuple[Token, ...]:
        """All of them, the oldest first; none where there is no file.

        Raises:
            TokensFileError: it cannot be read, is none of ours, or others may read or write it.
        """
        try:
            found = self.path.stat()
            mark = (found.st_mtime_ns, found.st_size, found.st_ino)
            if mark != self._mark:
                self._known, self._mark = self._read(found.st_mode), mark
        except FileNotFoundError:
            self._known, self._mark = (), None
        except OSError as error:
            raise TokensFileError(f"{self.path}: {error.strerror}") from error
        return self._known

    def _read(self, mode: int) -> tuple[Token, ...]:
        if stat.S_IMODE(mode) & (stat.S_IRWXG | stat.S_IRWXO):
            raise TokensFileError(f"{self.path}: mode {stat.S_IMODE(mode):04o} lets others in: chmod 600 {self.path}")
        with self.path.open("rb") as file:
            text = file.read(_LARGEST + 1)
        try:
            return _File.model_validate_json(text).tokens
        except ValidationError as error:
            raise TokensFileError(f"{self.path}: no file of tokens that Relight wrote: {_first(error)}") from error

    def find(self, text: str, now: datetime) -> Token | None:
        """The token that this is; None where it is none, or has expired.

        Raises:
            TokensFileError: as `all`.
        """
        prefix, _, rest = text.partition("_")
        name, _, secret = rest.partition("_")
        known = next((token for token in self.all() if token.id == name), None)
        expected = known.hash if known else _hash("")
        same = hmac.compare_digest(_hash(secret), expected)
        return known if known and same and prefix == PREFIX and known.good(now) else None

    def by_id(self, name: str, now: datetime) -> Token | None:
        """The token of this id; None where it was taken away or has expired."""
        return next((token for token in self.all() if token.id == name and token.good(now)), None)

    def add(self, name: str, role: Role, now: datetime, expires_at: datetime | None = None) -> str:
        """Make one; what is returned is kept nowhere.

        Raises:
            TokensFileError: as `all`; or there are too many, or it cannot be written.
            ValidationError: the name is no user name.
        """
        secret = secrets.token_urlsafe(_SECRET_BYTES)
        fields = {"name": name, "role": role, "created_at": now, "expires_at": expires_at}
        token = Token.model_validate({"id": secrets.token_hex(4), "hash": _hash(secret), **fields})
        with self._changing():
            known = self.all()
            if len(known) >= MOST_TOKENS:
                raise TokensFileError(f"{self.path}: {len(known)} tokens are the most: revoke some")
            self._write((*known, token))
        return f"{PREFIX}_{token.id}_{secret}"

    def remove(self, which: str) -> tuple[Token, ...]:
        """Take away the token of this id, or all of this person; returns which.

        Raises:
            TokensFileError: as `add`.
        """
        with self._changing():
            known = self.all()
            gone = tuple(token for token in known if which in {token.id, token.name})
            if gone:
                self._write(tuple(token for token in known if token not in gone))
        return gone

    @contextmanager
    def _changing(self) -> Iterator[None]:
        """One writer at a time."""
        try:
            self.path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            with self.path.with_suffix(".lock").open("w") as lock:
                fcntl.flock(lock, fcntl.LOCK_EX)
                yield
        except OSError as error:
            raise TokensFileError(f"{self.path}: {error.strerror}") from error

    def _write(self, tokens: tuple[Token, ...]) -> None:
        """Whole or not at all, and never readable by others, not even for a moment."""
        beside = self.path.with_suffix(".new")
        beside.unlink(missing_ok=True)
        with os.fdopen(os.open(beside, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600), "w") as file:
            file.write(_File(tokens=tokens).model_dump_json(indent=1))
            file.flush()
            os.fsync(file.fileno())
        beside.replace(self.path)


def _hash(secret: str) -> str:
    return hashlib.sha256(secret.encode(errors="backslashreplace")).hexdigest()


def _first(error: ValidationError) -> str:
    found = error.errors(include_input=False, include_url=False)[0]
    return f"{'.'.join(map(str, found['loc']))}: {found['msg']}" if found["loc"] else str(found["msg"])
