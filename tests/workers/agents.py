"""A controller as node agents see it, and real agents that talk to it."""

import json
import os
import signal
import socket
import ssl
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from relight.domain.reports import NodeFault, ProbeRequest, Receipt, Report, agent_token
from relight.lab.nvml_stub import NvmlStub
from relight.lab.processes import wait_until

KEY = b"the site's key"
NODE = "n1"
TOKEN = agent_token(KEY, NODE)
PATIENCE = 30
OFF_THE_BUS = "NVRM: Xid (PCI:0000:43:00): 79, pid='<unknown>', name=<unknown>, GPU has fallen off the bus."


@dataclass
class Controller:
    """Speaks the contract of `domain/reports.py`, and can be told to fail.

    `respond`, where set, gets each valid report and returns a status, or None for the receipt that it deserves.
    """

    url: str = ""
    reports: list[tuple[float, Report]] = field(default_factory=list)
    tokens: list[str] = field(default_factory=list)
    respond: Callable[[Report], int | bytes | None] = lambda _report: None
    probes: list[ProbeRequest] = field(default_factory=list)

    @property
    def faults(self) -> list[NodeFault]:
        """All faults that arrived, in order; one that was sent twice is here twice."""
        return [fault for _, report in self.reports for fault in report.faults]

    def wait(self, condition: Callable[[], Any], what: str) -> None:
        """Wait until something has arrived."""
        wait_until(lambda: bool(condition()), PATIENCE, what)

    def wait_for_fault(self, **wanted: object) -> NodeFault:
        """The first fault with these values."""

        def found() -> list[NodeFault]:
            return [f for f in self.faults if all(getattr(f, name) == value for name, value in wanted.items())]

        self.wait(found, f"a fault with {wanted}")
        return found()[0]

    def next_report(self) -> Report:
        """The next one that arrives."""
        count = len(self.reports)
        self.wait(lambda: len(self.reports) > count, "a report")
        return self.reports[-1][1]

    def handle(self, token: str, body: bytes) -> tuple[int, bytes]:
        """One request."""
        self.tokens.append(token)
        report = Report.model_validate_json(body)
        if token != f"Bearer {agent_token(KEY, report.node)}":
            return 401, b""
        answer = self.respond(report)
        self.reports.append((time.monotonic(), report))
        if isinstance(answer, bytes):
            return 200, answer
        receipt = Receipt(faults=len(report.faults), probes=tuple(self.probes))
        return (answer, b"") if answer else (200, receipt.model_dump_json().encode())


class Server(ThreadingHTTPServer):
    """HTTP for a `Controller`; silent about clients that go away."""

    daemon_threads = True
    allow_reuse_address = True
    controller: Controller

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self._open: list[socket.socket] = []

    def get_request(self) -> tuple[socket.socket, Any]:
        """Remember the connection."""
        request, address = super().get_request()
        self._open.append(request)
        return request, address

    def end(self) -> None:
        """End, and with it the connections that were kept open."""
        self.shutdown()
        self.server_close()
        for connection in self._open:
            with suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)

    def handle_error(self, request: object, client_address: object) -> None:
        """An agent that was ended in the middle of a request is no error."""


class Handler(BaseHTTPRequestHandler):
    """POST /v1/report."""

    protocol_version = "HTTP/1.1"
    server: Server

    def do_POST(self) -> None:
        """Answer one report."""
        body = self.rfile.read(int(self.headers["Content-Length"]))
        status, answer = 404, b""
        if self.path == "/v1/report":
            status, answer = self.server.controller.handle(self.headers["Authorization"], body)
        self.send_response(status)
        self.send_header("Content-Length", str(len(answer)))
        self.end_headers()
        self.wfile.write(answer)

    def log_message(self, *_arguments: object) -> None:
        """Say nothing."""


def serve(port: int = 0, tls: ssl.SSLContext | None = None, controller: Controller | None = None) -> Server:
    """Start a controller; `end()` ends it."""
    server = Server(("127.0.0.1", port), Handler)
    if tls:
        server.socket = tls.wrap_socket(server.socket, server_side=True)
    server.controller = controller or Controller()
    server.controller.url = f"{'https' if tls else 'http'}://127.0.0.1:{server.server_port}"
    threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True).start()
    return server


class AgentProcess:
    """A real `relight agent`, with a folder of its own."""

    def __init__(self, folder: Path, stub: NvmlStub | None) -> None:
        self.folder = folder
        self.kernel_log = folder / "kern.log"
        self.kernel_log.touch()
        self.token = folder / "token"
        self.token.write_text(TOKEN)
        self.token.chmod(0o600)
        self.config = folder / "agent.yaml"
        # Whatever else is mounted on this machine is not the test's; and nobody waits for beats of 5 s.
        self.config.write_text(f"beat: 0.5\npaths: [{folder}]\nmounts: false\n")
        self.environment = os.environ | (stub.environment if stub else {}) | {"STATE_DIRECTORY": str(folder / "state")}
        self.environment.pop("SLURMD_NODENAME", None)
        self.process: subprocess.Popen[str] | None = None

    def command(self, url: str, *more: str) -> list[str]:
        """What starts it."""
        options = ["--controller", url, "--token-file", str(self.token), "--node", NODE]
        options += ["--kernel-log", str(self.kernel_log), "--config", str(self.config)]
        return [str(Path(sys.executable).with_name("relight")), "agent", *options, *more]

    def start(self, url: str, *more: str) -> subprocess.Popen[str]:
        """Start it; what it logs goes to `log`."""
        with (self.folder / "agent.log").open("a") as log:
            self.process = subprocess.Popen(
                self.command(url, *more), env=self.environment, stderr=log, stdout=log, text=True
            )
        return self.process

    @property
    def log(self) -> str:
        """What it has logged so far."""
        return (self.folder / "agent.log").read_text()

    @property
    def saved(self) -> Any:
        """Its state file."""
        return json.loads((self.folder / "state" / "agent.json").read_text())

    def kernel(self, text: str) -> None:
        """Let the kernel say something."""
        with self.kernel_log.open("a") as log:
            log.write(f"{datetime.now(UTC).isoformat()} {NODE} kernel: {text}\n")

    def stop(self, number: signal.Signals = signal.SIGTERM) -> int:
        """End it; its exit status."""
        assert self.process is not None
        self.process.send_signal(number)
        return self.process.wait(10)


def started(agent: AgentProcess, controller: Controller) -> None:
    """Start it, and wait until all its eyes are open."""
    agent.start(controller.url)
    controller.wait(
        lambda: controller.reports and controller.reports[-1][1].beat and not controller.reports[-1][1].beat.blind,
        "a beat that is not blind",
    )
