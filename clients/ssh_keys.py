"""With which keys we log in: those of a file, or of an agent. Never a password."""

import asyncio
import base64
import hashlib
import os
import stat
from collections.abc import Sequence
from pathlib import Path
from typing import Self

import asyncssh
from asyncssh.agent import SSHAgentClient
from asyncssh.public_key import CERT_TYPE_USER, SSHKeyPair, SSHOpenSSHCertificate

from relight.clients.ssh_hosts import SshError

_OTHERS = stat.S_IRWXG | stat.S_IRWXO
_MOST_TOLD = 4


class Keys:
    """What is offered to a host. An agent's keys need the agent until the login is over: use it with `async with`.

    Args:
        file: private key in OpenSSH's or PEM format, with its certificate beside it as `FILE-cert.pub` if there is
            one; None: the agent's keys.
        agent: the agent's socket; empty: SSH_AUTH_SOCK.
    """

    def __init__(self, file: Path | None, agent: str = "") -> None:
        self._file = file
        self._socket = agent or os.environ.get("SSH_AUTH_SOCK", "")
        self._agent: SSHAgentClient | None = None
        self.pairs: Sequence[SSHKeyPair] = ()
        self.expired = ""
        """What is known already to be wrong with a certificate."""

    async def __aenter__(self) -> Self:
        if self._file:
            # A key's file may lie on a file system that is slow to answer.
            self.pairs, self.expired = await asyncio.to_thread(_load, self._file)
        else:
            self.pairs = await self._ask_agent()
        return self

    async def __aexit__(self, *_: object) -> None:
        if self._agent:
            self._agent.close()

    def __str__(self) -> str:
        """For a person: which keys these are."""
        told = [f"{pair.get_algorithm()} {_fingerprint(pair)}" for pair in self.pairs]
        more = f" and {len(told) - _MOST_TOLD} more" if len(told) > _MOST_TOLD else ""
        where = str(self._file) if self._file else f"the agent {self._socket}"
        return f"{where} ({', '.join(told[:_MOST_TOLD])}{more})"

    async def _ask_agent(self) -> Sequence[SSHKeyPair]:
        if not self._socket:
            raise SshError("no key file is set and there is no agent (SSH_AUTH_SOCK is empty): set `key` or `agent`")
        try:
            self._agent = await asyncssh.connect_agent(self._socket)
            pairs = await self._agent.get_keys()
        except (OSError, ValueError, asyncssh.Error) as error:
            raise SshError(f"the agent at {self._socket} does not answer: {error}. Start it, or set `key`") from error
        if not pairs:
            self._agent.close()
            raise SshError(f"the agent at {self._socket} holds no key: `ssh-add` one (a restarted agent has none)")
        return pairs


def _load(file: Path) -> tuple[Sequence[SSHKeyPair], str]:
    try:
        mode = stat.S_IMODE(file.stat().st_mode)
        if mode & _OTHERS:
            raise SshError(f"{file}: others may read this private key (mode {mode:04o}): `chmod 600 {file}`")
        pairs = asyncssh.load_keypairs(str(file))
    except OSError as error:
        raise SshError(f"{file}: the private key cannot be read: {error.strerror}") from error
    except asyncssh.KeyImportError as error:
        raise SshError(f"{file}: {_why(str(error))}") from error
    return pairs, _expired(Path(f"{file}-cert.pub"))


def _why(error: str) -> str:
    if "assphrase" in error:
        return "the key has a passphrase, which nobody can type here: `ssh-add` it to an agent, and leave `key` empty"
    return f"no private key that can be used: {error}"


def _expired(file: Path) -> str:
    try:
        certificate = asyncssh.read_certificate(str(file))
        if isinstance(certificate, SSHOpenSSHCertificate):
            certificate.validate(CERT_TYPE_USER, None)
    except FileNotFoundError:
        return ""
    except (OSError, ValueError) as error:
        return f"{file}: {str(error).lower()}"
    return ""


def _fingerprint(pair: SSHKeyPair) -> str:
    """As `ssh-keygen -l` prints it."""
    return "SHA256:" + base64.b64encode(hashlib.sha256(pair.key_public_data).digest()).decode().rstrip("=")
