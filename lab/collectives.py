"""Collectives between the ranks of a job, over TCP: what gloo or NCCL is to a real trainer.

Every rank holds one connection to rank 0 (a star): rank 0 collects, combines and hands out. A rank that
loses its peer raises a RuntimeError, worded as those libraries word it.
"""

import socket
import struct
from collections.abc import Callable
from datetime import timedelta

import numpy as np
from numpy.typing import NDArray

HEADER = struct.Struct("!IQ")
"""Rank of the sender, and bytes that follow."""

Vector = NDArray[np.float64]


class Star:
    """The connections of one rank."""

    def __init__(self, rank: int, peers: dict[int, socket.socket]) -> None:
        """Take over connected sockets: rank 0 has one to each other rank, the others one to rank 0."""
        self.rank = rank
        self._peers = peers
        # Asked for now: a connection that is gone no longer tells its peer.
        self._addresses = {peer: connection.getpeername() for peer, connection in peers.items()}

    def sum(self, vector: Vector) -> Vector:
        """Return the sum of all ranks' vectors: the same bits on each rank, so that models stay equal."""
        parts = self._exchange("allreduce", vector.tobytes(), _summed)
        return np.frombuffer(parts, dtype=np.float64).copy()

    def share(self, text: str) -> str:
        """Return rank 0's text on every rank."""
        return self._exchange("broadcast", text.encode(), lambda parts: parts[0]).decode()

    def gather(self, text: str) -> list[str]:
        """Return every rank's text, by rank. No text may hold a line break."""
        return self._exchange("allgather", text.encode(), b"\n".join).decode().split("\n")

    def close(self) -> None:
        """Close the connections."""
        for peer in self._peers.values():
            peer.close()

    def _exchange(self, what: str, mine: bytes, combine: Callable[[list[bytes]], bytes]) -> bytes:
        if self.rank != 0:
            self._send(what, 0, mine)
            return self._receive(what, 0)
        parts = [mine, *(self._receive(what, rank) for rank in sorted(self._peers))]
        whole = combine(parts)
        for rank in self._peers:
            self._send(what, rank, whole)
        return whole

    def _send(self, what: str, to: int, content: bytes) -> None:
        try:
            self._peers[to].sendall(HEADER.pack(self.rank, len(content)) + content)
        except OSError as error:
            raise self._failed(what, to, error) from None

    def _receive(self, what: str, source: int) -> bytes:
        try:
            return receive(self._peers[source])[1]
        except OSError as error:
            raise self._failed(what, source, error) from None

    def _failed(self, what: str, peer: int, error: OSError) -> RuntimeError:
        host, port = self._addresses[peer]
        reason = "Timed out waiting for" if isinstance(error, TimeoutError) else "Connection closed by"
        return RuntimeError(f"[rank {self.rank}] {what} failed: {reason} peer [{host}]:{port}")


def listen(address: str) -> socket.socket:
    """Return rank 0's listening socket on a free port."""
    return socket.create_server((address, 0), backlog=1024)


def accept(server: socket.socket, world: int, timeout: timedelta) -> Star:
    """Return rank 0's star once all other ranks have called."""
    server.settimeout(timeout.total_seconds())
    peers: dict[int, socket.socket] = {}
    while len(peers) < world - 1:
        peer, _ = server.accept()
        _tune(peer, timeout)
        rank, _ = receive(peer)
        peers[rank] = peer
    server.close()
    return Star(0, peers)


def connect(rank: int, own_address: str, server: tuple[str, int], timeout: timedelta) -> Star:
    """Return another rank's star. It calls from its node's address, so that errors name the node."""
    peer = socket.create_connection(server, timeout=30, source_address=(own_address, 0))
    _tune(peer, timeout)
    peer.sendall(HEADER.pack(rank, 0))
    return Star(rank, {0: peer})


def receive(peer: socket.socket) -> tuple[int, bytes]:
    """Read one message: the sender's rank and the content. ConnectionResetError when the peer has gone."""
    rank, length = HEADER.unpack(_exactly(peer, HEADER.size))
    return rank, _exactly(peer, length)


def _exactly(peer: socket.socket, count: int) -> bytes:
    parts = bytearray()
    while len(parts) < count:
        part = peer.recv(count - len(parts))
        if not part:
            raise ConnectionResetError("Connection closed by peer")
        parts += part
    return bytes(parts)


def _tune(peer: socket.socket, timeout: timedelta) -> None:
    peer.settimeout(timeout.total_seconds())
    peer.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)


def _summed(parts: list[bytes]) -> bytes:
    total: Vector = np.sum([np.frombuffer(part, dtype=np.float64) for part in parts], axis=0)
    return total.tobytes()
