"""Whether a node's slurmd takes a connection: the second witness on a node of which nothing is heard."""

import asyncio
import errno
import socket
from typing import Protocol

ANSWERS_WITHIN = 2.0
"""Seconds for a connection to be taken. The kernel of a node that is up takes it, or refuses it, in one round trip."""
_GONE = frozenset({errno.ECONNREFUSED, errno.ECONNRESET, errno.EHOSTUNREACH, errno.EHOSTDOWN, errno.ETIMEDOUT})
"""Where nothing takes connections, or the last router finds nobody. All else is this machine's own trouble."""


class Reach(Protocol):
    """Asks whether something listens. Only of use on a machine in the cluster's own network."""

    async def answers(self, host: str, port: int) -> bool | None:
        """True when a connection is taken, False when it is refused or nobody answers; None: it could not be asked."""


class TcpReach:
    """Connects, and says nothing.

    Args:
        within: seconds for a connection to be taken.
    """

    def __init__(self, within: float = ANSWERS_WITHIN) -> None:
        self._within = within

    async def answers(self, host: str, port: int) -> bool | None:
        """True when a connection is taken, False when it is refused or nobody answers; None: it could not be asked."""
        loop = asyncio.get_running_loop()
        try:
            # By itself: a name server that is slow says nothing of the node.
            async with asyncio.timeout(self._within):
                found = await loop.getaddrinfo(host, port, type=socket.SOCK_STREAM)
        except (OSError, UnicodeError, TimeoutError):
            return None
        try:
            async with asyncio.timeout(self._within):
                _, writer = await asyncio.open_connection(str(found[0][4][0]), port)
        except TimeoutError:
            return False
        except OSError as error:
            return False if error.errno in _GONE else None
        writer.transport.abort()
        return True
