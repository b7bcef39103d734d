"""One login to one host, and what its failures mean."""

import asyncio
import socket
from datetime import timedelta
from pathlib import Path
from typing import NamedTuple

import asyncssh

from relight.clients.ssh_hosts import Address, KnownHosts, SshError
from relight.clients.ssh_keys import Keys

MISSED = 3
"""Keepalives in a row that may stay unanswered."""


class Login(NamedTuple):
    """What each host of a connection is met with."""

    known_hosts: Path
    trust_on_first_use: bool
    keepalive: timedelta


class _Client(asyncssh.SSHClient):
    """Judges the host's key, and takes the jump host's connection down with its own."""

    def __init__(
        self, address: Address, hosts: KnownHosts, via: asyncssh.SSHClientConnection | None, trust: bool
    ) -> None:
        self._address, self._hosts, self._via, self._trust = address, hosts, via, trust
        self.problem = ""
        self.new_key: asyncssh.SSHKey | None = None

    def validate_host_public_key(self, host: str, addr: str, port: int, key: asyncssh.SSHKey) -> bool:  # noqa: ARG002
        """Called for a key that `known_hosts` does not list for this host."""
        self.problem = self._hosts.problem(self._address, addr, key, trust=self._trust)
        self.new_key = None if self.problem else key
        return not self.problem

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002
        """The tunnel is of no use any more."""
        if self._via:
            self._via.close()


async def log_in(
    address: Address, via: asyncssh.SSHClientConnection | None, keys: Keys, how: Login
) -> asyncssh.SSHClientConnection:
    """Connect to one host, directly or through another's connection, and log in by public key.

    The user's own ~/.ssh/config is not read: a ProxyCommand or an IdentityFile there would change, unseen by whoever
    reads Relight's settings, with whom we talk and as whom. Nothing of ours is forwarded.

    Raises:
        SshError: in words for a person.
    """
    hosts = await asyncio.to_thread(KnownHosts, how.known_hosts)
    client = _Client(address, hosts, via, how.trust_on_first_use)
    try:
        connection = await asyncssh.connect(
            address.host,
            address.port,
            tunnel=via or (),
            config=None,
            client_factory=lambda: client,
            known_hosts=hosts.parsed,
            username=address.user or (),
            client_keys=list(keys.pairs),
            agent_path=None,
            preferred_auth="publickey",
            password_auth=False,
            kbdint_auth=False,
            gss_host=None,
            keepalive_interval=how.keepalive.total_seconds(),
            keepalive_count_max=MISSED,
        )
    except (OSError, ValueError, asyncssh.Error) as error:
        raise SshError(client.problem or _why(error, address, keys, via is not None)) from error
    if client.new_key:
        await asyncio.to_thread(hosts.learn, address, client.new_key)
    return connection


def _why(error: Exception, address: Address, keys: Keys, tunnelled: bool) -> str:  # noqa: PLR0911
    if isinstance(error, asyncssh.PermissionDenied):
        seen = f" Seen here: {keys.expired}." if keys.expired else ""
        return (
            f"{address}: refuses the key {keys}. The account's authorized_keys must list it (or the authority that "
            f"signed it), and neither its expiry-time nor the certificate may have passed.{seen} The log of sshd there "
            f"says why; `from=`, AllowUsers and a locked account look the same from here."
        )
    if isinstance(error, asyncssh.ChannelOpenError):
        return (
            f"{address}: the jump host does not connect to it: {error.reason}. Its sshd must allow it (port-forwarding,"
            " permitopen, AllowTcpForwarding), resolve the name, and reach that port."
        )
    if isinstance(error, asyncssh.HostKeyNotVerifiable):
        return f"{address}: its host key is not accepted: {error.reason}. Ask who runs it before anything else."
    if isinstance(error, asyncssh.ConnectionLost | ConnectionResetError):
        return f"{address}: hung up before the login. If it is an sshd, its log says why."
    if isinstance(error, asyncssh.DisconnectError):
        return f"{address}: ended the connection before the login: {error.reason}. If it is an sshd, its log says why."
    if isinstance(error, socket.gaierror):
        return f"{address}: no such host name ({error.strerror}). Check the settings and the name service."
    if isinstance(error, ConnectionRefusedError):
        return f"{address}: refuses connections: is sshd running there, and is {address.port} its port?"
    if isinstance(error, OSError):
        return f"{address}: cannot be reached{' through the jump host' * tunnelled}: {error.strerror or error}."
    return f"{address}: no connection: {error}"
