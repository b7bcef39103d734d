"""What the agent costs a node on which nothing happens: memory and share of a core, printed."""

import os
import random
import time
from pathlib import Path

import pytest

from relight.lab.nvml_stub import NvmlStub
from relight.lab.processes import wait_until

from .agents import AgentProcess, Controller

SECONDS = float(os.environ.get("RELIGHT_FOOTPRINT_SECONDS", "10"))
MOST_MIB = 60
"""The goal is 40 MiB, of which about 28 are used. This much more means that something large is imported again (pydantic
is 12 MiB, aiohttp 17), wherever the allocator's and the interpreter's own needs may differ a little."""


def used(pid: int) -> tuple[float, float, float]:
    """Resident MiB, its part that is not shared with other programs, and CPU seconds."""
    status = dict(line.split(":", 1) for line in Path(f"/proc/{pid}/status").read_text().splitlines())
    threads = Path(f"/proc/{pid}/task").iterdir()
    cpu = sum(int((thread / "schedstat").read_text().split()[0]) for thread in threads) / 1e9
    return int(status["VmRSS"].split()[0]) / 1024, int(status["RssAnon"].split()[0]) / 1024, cpu


@pytest.mark.slow
def test_the_agent_is_small(
    agent: AgentProcess, controller: Controller, stub: NvmlStub, capsys: pytest.CaptureFixture[str]
) -> None:
    """With eight GPUs and beats of 5 s; RELIGHT_FOOTPRINT_SECONDS says for how long."""
    agent.config.write_text("{}\n")
    process = agent.start(controller.url)
    controller.wait(lambda: len(controller.reports) >= 2, "two beats")
    began, (_, _, before) = time.monotonic(), used(process.pid)
    time.sleep(SECONDS)
    mib, own, after = used(process.pid)
    share = (after - before) / (time.monotonic() - began)
    threads = len(list(Path(f"/proc/{process.pid}/task").iterdir()))
    with capsys.disabled():
        text = f"{mib:.1f} MiB ({own:.1f} its own), {share:.2%} of a core over {SECONDS:.0f} s, {threads} threads"
        print(f"\nagent: {text}")  # noqa: T201 - what the test is for
    assert mib < MOST_MIB
    wait_until(lambda: agent.stop() == 0, 10, "it to end")


@pytest.mark.slow
def test_latency_from_an_xid_to_the_controller(
    agent: AgentProcess, controller: Controller, stub: NvmlStub, capsys: pytest.CaptureFixture[str]
) -> None:
    """Printed, not asserted: from the driver's event to the report that has it, 30 times."""
    agent.config.write_text("{}\n")
    agent.start(controller.url)
    controller.wait(lambda: controller.reports and not controller.reports[-1][1].beat.blind, "an open eye")  # type: ignore[union-attr]
    took = []
    for xid in range(200, 230):
        time.sleep(random.uniform(0.5, 1.5))  # noqa: S311 - at any time between two beats, and outside the last one's batch
        began = time.monotonic()
        stub.xid(xid % 8, xid)
        controller.wait(lambda wanted=xid: any(fault.xid == wanted for fault in controller.faults), f"Xid {xid}")
        arrived = next(at for at, report in controller.reports if any(f.xid == xid for f in report.faults))
        took.append(1000 * (arrived - began))
    took.sort()
    with capsys.disabled():
        print(f"\nXid to controller, n=30: p50 {took[14]:.1f} ms, p95 {took[28]:.1f} ms, max {took[29]:.1f} ms")  # noqa: T201
    assert len(took) == 30
