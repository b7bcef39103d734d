"""Whom we log in to over SSH, and whether it is really that host: `known_hosts` as OpenSSH writes it."""

import os
import re
from pathlib import Path
from typing import NamedTuple

import asyncssh

PORT = 22
_ADDRESS = re.compile(
    r"(?:(?P<user>[^@\s]+)@)?(?:\[(?P<six>[0-9A-Fa-f:.%\w]+)\]|(?P<host>[^@:\s\[\]]+))(?::(?P<port>\d{1,5}))?"
)


class SshError(Exception):
    """No connection; the text says to whom, what was found, and what to do. Nothing was run."""


class Address(NamedTuple):
    """One host to log in to."""

    user: str
    host: str
    port: int

    @classmethod
    def parse(cls, text: str) -> "Address":
        """Read `user@host:port`; user and port may be left out, and an IPv6 address stands in brackets.

        Raises:
            ValueError: for anything else.
        """
        found = _ADDRESS.fullmatch(text)
        if not found or int(found["port"] or PORT) > 0xFFFF:  # noqa: PLR2004
            raise ValueError(f"not `user@host:port`: {text!r}")
        return cls(found["user"] or "", found["six"] or found["host"], int(found["port"] or PORT))

    def __str__(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return (f"{self.user}@" if self.user else "") + host + (f":{self.port}" if self.port != PORT else "")

    @property
    def known_as(self) -> str:
        """The name in `known_hosts`."""
        return self.host if self.port == PORT else f"[{self.host}]:{self.port}"


class KnownHosts:
    """The file `known_hosts`, read anew for each connection: an administrator may have added a host meanwhile.

    Args:
        path: the file; one that does not exist knows no host.

    Raises:
        SshError: it cannot be read.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            text = path.read_text(encoding="utf-8", errors="replace")
            self.parsed = asyncssh.import_known_hosts(text)
        except FileNotFoundError:
            self.parsed = asyncssh.import_known_hosts("")
        except OSError as error:
            raise SshError(f"{path}: the known hosts cannot be read: {error.strerror}") from error
        except ValueError as error:
            raise SshError(f"{path}: {error}. Correct that line.") from error

    def problem(self, address: Address, reached: str, key: asyncssh.SSHKey, *, trust: bool) -> str:
        """Why this key, which the file does not list for this host, is not trusted; empty with `trust`, if it is new.

        A host with another key, or one vouched for by a certificate authority, is never trusted on first use: that
        would be how an impostor gets in.
        """
        port = None if address.port == PORT else address.port
        other = [entry for entries in self.parsed.match(address.host, reached, port) for entry in entries]
        fingerprint = f"{key.get_algorithm()} {key.get_fingerprint()}"
        again = f"ssh-keygen -f {self.path} -R '{address.known_as}'"
        if other:
            return (
                f"{address}: its host key has changed: it shows {fingerprint}, {self.path} has another. Either it was "
                "set up anew, or somebody else answers in its place. Ask who runs it; if it was set up anew, "
                f"`{again}` and add the new key."
            )
        if trust:
            return ""
        return (
            f"{address}: {self.path} has no key of this host, which shows {fingerprint}. Compare with `ssh-keygen -lf "
            f"/etc/ssh/ssh_host_*_key.pub` there, then add it: `ssh-keyscan -p {address.port} {address.host} "
            f">> {self.path}`."
        )

    def learn(self, address: Address, key: asyncssh.SSHKey) -> None:
        """Add a host: one write to the end, so that two programs at once cannot lose or mix each other's lines."""
        line = " ".join((address.known_as, *key.export_public_key().decode().split()[:2])) + "\n"
        try:
            self.path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            handle = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
            try:
                size = os.fstat(handle).st_size
                torn = size and os.pread(handle, 1, size - 1) != b"\n"
                os.write(handle, ("\n" * bool(torn) + line).encode())
            finally:
                os.close(handle)
        except OSError as error:
            raise SshError(f"{self.path}: the key of {address} cannot be added: {error.strerror}") from error
