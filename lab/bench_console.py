"""How fast the web console answers with a large ledger behind it, and how soon a new incident shows in a browser.

The console is the one that ships (`relight console --dev`), its ledger SQLite, its incidents made up
(`lab.console_seed`). A page's time is what its server takes for the whole answer: not what a browser then does.
"""

import asyncio
import http.client
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from datetime import UTC, datetime
from pathlib import Path
from statistics import quantiles
from typing import Any

from pydantic import BaseModel, ConfigDict, Field

from relight.clients.ledger_sql import SqlLedger
from relight.config.settings import load
from relight.domain.incidents import Incident
from relight.domain.ledger import Change, Entry, RowKind
from relight.lab import console_seed
from relight.lab.ports import claimed_ports
from relight.lab.processes import DaemonStartError, wait_until

GOALS = {"page_p95_ms": 300, "incident_visible_s": 1.0}
_BATCH = 5000
_STARTS_WITHIN_S, _ENDS_WITHIN_S = 60.0, 15.0
_PAGES = {
    "now": "/",
    "incidents": "/incidents",
    "incidents, searched": "/incidents?q=gpu-044",
    "incidents, filtered": "/incidents?state=recovered&kind=node_lost",
    "incident": "/incidents/i3fa9c1d2e4",
    "jobs": "/jobs",
    "job": "/jobs/48671",
    "nodes": "/nodes",
    "node": "/nodes/gpu-057",
    "audit": "/audit",
    "audit of an incident": "/audit?incident=i07be11ab02",
    "settings": "/settings",
    "goodput": "/goodput",
    "score card": "/scorecard",
}


class Order(BaseModel):
    """What to measure."""

    model_config = ConfigDict(frozen=True)

    incidents: int = Field(default=10_000, ge=1)
    rows: int = Field(default=1_000_000, ge=0)
    """Of the ledger in all; those of the incidents are among them."""
    requests: int = Field(default=40, ge=2)
    """For each page."""
    at_once: int = Field(default=2, ge=1, le=16)
    opened: int = Field(default=10, ge=0)
    """Incidents that open while a browser looks; 0: none."""


def measure(order: Order, say: Callable[[str], None]) -> dict[str, Any]:
    """Fill a ledger, serve it, ask for each page, and open incidents before a browser's eyes."""
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="relight-bench-console-")))
        config = _settings(folder)
        settings = load(config)
        ledger = SqlLedger.open(settings.ledger_url, settings.ledger_key)
        stack.callback(ledger.close)
        say(f"writing {order.incidents} incidents and {order.rows} rows")
        rows = _fill(ledger, order)
        port = stack.enter_context(claimed_ports(1))
        stack.enter_context(_served(config, port, folder / "console.log"))
        pages = {}
        for name, place in _PAGES.items():
            pages[name] = _page(port, place, order)
            say(f"{name}: p50 {pages[name]['p50']} ms, p95 {pages[name]['p95']} ms")
        visible = _visible(f"http://127.0.0.1:{port}/", ledger, order, say)
    return {
        "pages_ms": pages,
        "incident_visible_s": visible,
        "incidents": order.incidents,
        "rows": rows,
        "goals": GOALS,
        "order": order.model_dump(),
        "machine": {"cores": os.cpu_count(), "load": round(os.getloadavg()[0], 1)},
    }


def _settings(folder: Path) -> Path:
    (folder / "data").mkdir(mode=0o700)
    path = folder / "relight.yaml"
    path.write_text(f"data: {folder / 'data'}\ntemporal:\n  address: 127.0.0.1:1\n")
    return path


def _fill(ledger: SqlLedger, order: Order) -> int:
    now = datetime.now(UTC)
    console_seed.seed(ledger, now, many=order.incidents)
    return asyncio.run(_rows(ledger, now, order.rows))


async def _rows(ledger: SqlLedger, now: datetime, wanted: int) -> int:
    """Rows of nodes' faults until there are so many; returns how many there are."""
    there = (await ledger.rows(kind=RowKind.CARE))[-1].seq
    for start in range(there, wanted, _BATCH):
        batch = tuple(_fault(number, now) for number in range(start, min(start + _BATCH, wanted)))
        await ledger.commit(Change(entries=batch))
    return max(there, wanted)


def _fault(number: int, now: datetime) -> Entry:
    body = {"fault": {"kind": "xid", "xid": 31}, "text": "MMU fault"}
    return Entry(
        id=f"bench/{number}",
        kind=RowKind.FAULT,
        at=now,
        cluster=console_seed.CLUSTER,
        node=f"gpu-{100 + number % 900:03}",
        body=body,
    )


@contextmanager
def _served(config: Path, port: int, log: Path) -> Iterator[None]:
    beside = Path(sys.executable).parent / "relight"
    command = [str(beside), "console", "--config", str(config), "--dev", "--listen", f"127.0.0.1:{port}"]
    with log.open("wb") as told:
        server = subprocess.Popen(command, stdout=told, stderr=told)
    try:
        wait_until(lambda: _answers(port, server, log), _STARTS_WITHIN_S, "the console")
        yield
    finally:
        server.terminate()
        try:
            server.wait(_ENDS_WITHIN_S)
        except subprocess.TimeoutExpired:  # a page that is still being read
            server.kill()
            server.wait()


def _answers(port: int, server: "subprocess.Popen[bytes]", log: Path) -> bool:
    if server.poll() is not None:
        raise DaemonStartError(f"the console did not start: {log.read_text(errors='replace')[-500:]}")
    try:
        return _get(port, "/healthz") > 0
    except OSError:
        return False


def _get(port: int, place: str) -> float:
    """Seconds for one answer, all of it."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    try:
        begun = time.perf_counter()
        connection.request("GET", place)
        answer = connection.getresponse()
        answer.read()
        took = time.perf_counter() - begun
    finally:
        connection.close()
    if answer.status != http.HTTPStatus.OK:
        raise OSError(f"{place} answered {answer.status}")
    return took


def _page(port: int, place: str, order: Order) -> dict[str, float]:
    _get(port, place)
    with ThreadPoolExecutor(order.at_once) as clients:
        took = list(clients.map(lambda _: _get(port, place), range(order.requests)))
    return _spread([1000 * each for each in took], 1)


def _spread(values: Sequence[float], digits: int) -> dict[str, float]:
    cuts = quantiles(values, n=20, method="inclusive")
    return {"p50": round(cuts[9], digits), "p95": round(cuts[18], digits), "max": round(max(values), digits)}


def _visible(url: str, ledger: SqlLedger, order: Order, say: Callable[[str], None]) -> dict[str, float] | str | None:
    """Seconds from an incident's commit until its row stands on *Now*; or why that was not measured."""
    chromium = shutil.which("chromium")
    if order.opened == 0:
        return None
    try:
        from playwright.sync_api import sync_playwright  # noqa: PLC0415 - for those who have it
    except ImportError:
        return "not measured: the package playwright is not installed"
    if chromium is None:
        return "not measured: there is no chromium"
    first = asyncio.run(ledger.incident("i00000011b8"))
    if first is None:
        return "not measured: the ledger does not hold what was written"
    took = []
    with sync_playwright() as engine, ThreadPoolExecutor(1) as writer:
        browser = engine.chromium.launch(executable_path=chromium, args=["--no-sandbox", "--disable-gpu"])
        tab = browser.new_page()
        tab.goto(url)
        tab.wait_for_selector("#main h1")
        for number in range(order.opened):
            change = _opened(first, number)
            begun = time.perf_counter()
            writer.submit(asyncio.run, ledger.commit(change)).result()
            tab.wait_for_selector(f"#row-{change.incidents[0].id}", timeout=60_000)
            took.append(time.perf_counter() - begun)
        browser.close()
    spread = _spread(took, 2)
    say(f"a new incident is visible after {spread['p50']} s, p95 {spread['p95']} s")
    return spread


def _opened(like: Incident, number: int) -> Change:
    now = datetime.now(UTC)
    new = like.model_copy(update={"id": f"ifee{number:07x}", "opened_at": now, "detected_at": now})
    row = Entry(id=f"bench/opened/{number}", kind=RowKind.OPENED, at=now, cluster=console_seed.CLUSTER, incident=new.id)
    return Change(entries=(row,), incidents=(new,))
