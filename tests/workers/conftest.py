"""A controller as node agents see it, and a real agent on a node with eight pretended GPUs."""

import subprocess
from collections.abc import Iterator
from pathlib import Path

import aiohttp
import pytest

from relight.lab.nvml_stub import NoCompilerError, NvmlStub, build

from .agents import AgentProcess, Controller, Server, serve
from .endpoint import Endpoint


@pytest.fixture
def server() -> Iterator[Server]:
    """A controller's server."""
    server = serve()
    yield server
    server.end()


@pytest.fixture
def controller(server: Server) -> Controller:
    """The controller."""
    return server.controller


@pytest.fixture(scope="session")
def nvml_library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The stand-in for libnvidia-ml.so.1."""
    try:
        return build(tmp_path_factory.mktemp("nvml"))
    except NoCompilerError as reason:
        pytest.skip(str(reason))


@pytest.fixture
def stub(nvml_library: Path, tmp_path: Path) -> NvmlStub:
    """Eight healthy GPUs."""
    return NvmlStub(tmp_path / "stub", nvml_library)


@pytest.fixture
def agent(tmp_path: Path, stub: NvmlStub) -> Iterator[AgentProcess]:
    """An agent on a node with eight GPUs, not started."""
    folder = tmp_path / "agent"
    folder.mkdir()
    agent = AgentProcess(folder, stub)
    yield agent
    if agent.process and agent.process.poll() is None:
        agent.process.kill()
        agent.process.wait()


@pytest.fixture
async def endpoint(tmp_path):
    """An endpoint that is open, on a port of its own."""
    async with aiohttp.ClientSession() as session:
        made = Endpoint(tmp_path, session)
        async with made.open():
            yield made
        made.ledger.close()


@pytest.fixture
def certificate(tmp_path):
    """A certificate for 127.0.0.1 that signs itself, and its key."""
    cert, key = tmp_path / "cert.pem", tmp_path / "key.pem"
    command = "openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -subj /CN=relight -days 2"
    names = ["-addext", "subjectAltName=IP:127.0.0.1", "-keyout", str(key), "-out", str(cert)]
    try:
        subprocess.run([*command.split(), *names], check=True, capture_output=True)
    except FileNotFoundError:
        pytest.skip("openssl is not installed")
    return cert, key
