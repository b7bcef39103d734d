"""GPU metrics on one machine: a real Prometheus server, and a stand-in for DCGM's exporter (there are no GPUs here).

The stand-in prints what dcgm-exporter 3.3.6 and later print, with values that a test or a demo sets.
"""

import subprocess
import threading
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

from relight.domain.gpu_metrics import XID
from relight.lab.packages import find_program
from relight.lab.ports import claimed_ports
from relight.lab.processes import wait_until

READY_WITHIN = 30.0
_XID_TEXT = {0: "No Error", 31: "GPU memory page fault", 79: "GPU has fallen off the bus"}
_CONFIG = """\
global: {scrape_interval: 1s, scrape_timeout: 1s}
scrape_configs:
  - job_name: dcgm
    file_sd_configs: [{files: [targets.yml], refresh_interval: 1s}]
"""


class DcgmExporterStandIn:
    """Prints the metrics of one node's GPUs in DCGM's text format.

    Args:
        hostname: what it calls itself.
        gpus: how many it shows.
        old: as before 3.3.6, when an Xid's number was no label and GPUs had no PCI addresses.
    """

    def __init__(self, hostname: str, gpus: int = 2, *, old: bool = False) -> None:
        self.hostname = hostname
        self._gpus = gpus
        self._old = old
        self._values: dict[tuple[str, int], int] = {(XID.name, gpu): 0 for gpu in range(gpus)}
        self._server: ThreadingHTTPServer | None = None
        self.port = 0
        self.start()

    def set(self, name: str, gpu: int, value: int | None) -> None:
        """What a metric shows from now on; None: nothing."""
        if value is None:
            self._values.pop((name, gpu), None)
        else:
            self._values[name, gpu] = value

    def text(self) -> str:
        """One scrape."""
        return "".join(f"{name}{{{self._labels(name, gpu, value)}}} {value}\n" for (name, gpu), value in self._shown())

    def _shown(self) -> list[tuple[tuple[str, int], int]]:
        return sorted(self._values.items())

    def _labels(self, name: str, gpu: int, value: int) -> str:
        labels = {"gpu": gpu, "UUID": f"GPU-{self.hostname}-{gpu}", "device": f"nvidia{gpu}"}
        labels |= {"modelName": "NVIDIA H100 80GB HBM3", "Hostname": self.hostname}
        if not self._old:
            labels["pci_bus_id"] = f"00000000:{0x43 + gpu:02X}:00.0"
            if name == XID.name:
                labels |= {"err_code": value, "err_msg": _XID_TEXT.get(value, "Unknown Error")}
        return ",".join(f'{label}="{text}"' for label, text in labels.items())

    def start(self) -> None:
        """Serve; again on the same port after it was stopped."""
        exporter = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                body = exporter.text().encode()
                self.send_response(200)
                self.send_header("Content-Type", "text/plain; version=0.0.4")
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *_: object) -> None:
                """Say nothing."""

        self._server = ThreadingHTTPServer(("127.0.0.1", self.port), Handler)
        self._server.daemon_threads = True
        self.port = self._server.server_port
        threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True).start()

    def stop(self) -> None:
        """Take no more connections."""
        if self._server:
            self._server.shutdown()
            self._server.server_close()
            self._server = None


class PrometheusServer:
    """A real one, on the loopback address, that scrapes every second."""

    def __init__(self, folder: Path, port: int) -> None:
        self.folder = folder
        self.url = f"http://127.0.0.1:{port}"
        self._port = port
        self._process: subprocess.Popen[bytes] | None = None
        (folder / "prometheus.yml").write_text(_CONFIG)
        self.scrape()

    def scrape(self, *exporters: DcgmExporterStandIn) -> None:
        """Whom it scrapes from now on (within a second or two)."""
        targets = ", ".join(f'"127.0.0.1:{exporter.port}"' for exporter in exporters)
        new = self.folder / "targets.new"
        new.write_text(f"- targets: [{targets}]\n")
        new.rename(self.folder / "targets.yml")

    def start(self) -> None:
        """Start it, and wait until it answers."""
        program = find_program("prometheus")
        if program is None:
            raise FileNotFoundError("prometheus")
        options = [f"--config.file={self.folder}/prometheus.yml", f"--storage.tsdb.path={self.folder}/data"]
        with (self.folder / "prometheus.log").open("ab") as log:
            self._process = subprocess.Popen(
                [program, *options, f"--web.listen-address=127.0.0.1:{self._port}"],
                stdout=log,
                stderr=log,
                cwd=self.folder,
            )
        wait_until(self._ready, READY_WITHIN, "Prometheus to answer")

    def _ready(self) -> bool:
        with suppress(OSError), urllib.request.urlopen(f"{self.url}/-/ready", timeout=5) as answer:  # noqa: S310 - ours
            return bool(answer.status == 200)  # noqa: PLR2004
        return False

    def stop(self) -> None:
        """End it."""
        if self._process:
            self._process.terminate()
            self._process.wait(READY_WITHIN)
            self._process = None


@contextmanager
def prometheus_server(folder: Path) -> Iterator[PrometheusServer]:
    """A server that runs until the block ends.

    Raises:
        FileNotFoundError: Prometheus is not installed (`relight.lab.packages`).
    """
    with claimed_ports(1) as port:
        server = PrometheusServer(folder, port)
        server.start()
    try:
        yield server
    finally:
        server.stop()
