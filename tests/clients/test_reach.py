"""Whether something takes connections: on loopback, with real sockets."""

import asyncio
import socket

import pytest

from relight.clients.reach import TcpReach


@pytest.fixture
def listening():
    """The port of a socket that listens; nobody ever accepts."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield server.getsockname()[1]


async def test_a_connection_that_is_taken_is_an_answer(listening):
    """By the kernel: a busy slurmd answers too. Names are looked up."""
    assert await TcpReach().answers("127.0.0.1", listening) is True
    assert await TcpReach().answers("localhost", listening) is True


async def test_a_refused_connection_is_none():
    """Nothing listens there."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    assert await TcpReach().answers("127.0.0.1", port) is False


async def test_silence_is_none(monkeypatch):
    """Nobody says anything in time: a host that is off, a firewall that drops."""

    async def for_ever(*_args, **_fields):
        await asyncio.Event().wait()

    monkeypatch.setattr(asyncio, "open_connection", for_ever)
    assert await TcpReach(within=0.05).answers("127.0.0.1", 6818) is False


@pytest.mark.parametrize("host", ["no-such-host.invalid", "a" * 70])
async def test_a_name_that_cannot_be_found_is_unknown(host, listening):
    """The name service's trouble says nothing of the node."""
    assert await TcpReach().answers(host, listening) is None


@pytest.mark.parametrize("error", [PermissionError(1, "not permitted"), OSError(24, "Too many open files")])
async def test_trouble_of_our_own_is_unknown(monkeypatch, error):
    """It is not the node that has no files left."""

    async def fails(*_args, **_fields):
        raise error

    monkeypatch.setattr(asyncio, "open_connection", fails)
    assert await TcpReach().answers("127.0.0.1", 6818) is None
