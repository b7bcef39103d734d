"""A real agent process and the real pynvml on a stand-in library: beats, faults, stacks."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from relight.domain.reports import FaultKind, ProbeKind, ProbeRequest
from relight.lab.nvml_stub import NvmlStub

from .agents import NODE, OFF_THE_BUS, TOKEN, AgentProcess, Controller, started


def test_a_beat_tells_of_all_gpus(agent: AgentProcess, controller: Controller, stub: NvmlStub) -> None:
    """In the contract's units, with this node's name, boot and token."""
    stub.pids(1, 4711)
    stub.set(2, power_mw=None, throttle=0x40)
    started(agent, controller)
    report = controller.reports[-1][1]
    assert report.beat is not None
    assert (report.node, len(report.boot)) == (NODE, 36)
    assert [gpu.gpu for gpu in report.beat.gpus][:2] == ["0000:1b:00", "0000:43:00"]
    gpu = report.beat.gpus[1]
    assert (gpu.index, gpu.power_w, gpu.utilisation, gpu.sm_clock_mhz, gpu.pids) == (1, 612.0, 1.0, 1980.0, (4711,))
    assert (report.beat.gpus[2].power_w, report.beat.gpus[2].throttle) == (None, ("hw_thermal_slowdown",))
    assert set(controller.tokens) == {f"Bearer {TOKEN}"}
    sequences = [each.sequence for _, each in controller.reports]
    assert sequences == list(range(len(sequences)))


def test_without_a_driver_it_lives_and_says_that_it_is_blind(
    agent: AgentProcess, controller: Controller, stub: NvmlStub
) -> None:
    """A node without working GPUs must not look like one on which nothing is wrong."""
    stub.driver(loaded=False)
    agent.start(controller.url)
    controller.wait(
        lambda: any(
            "nvml: nvmlInit: Driver Not Loaded" in (report.beat.blind if report.beat else ())
            for _, report in controller.reports
        ),
        "a beat that says so",
    )
    agent.kernel("Out of memory: Killed process 4711 (python) total-vm:1kB")
    assert controller.wait_for_fault(kind=FaultKind.OOM_KILL).pid == 4711


def test_without_the_library_it_says_so(tmp_path: Path, controller: Controller) -> None:
    """As on any node without NVIDIA's driver."""
    folder = tmp_path / "bare"
    folder.mkdir()
    agent = AgentProcess(folder, None)
    agent.start(controller.url)
    try:
        controller.wait(
            lambda: any("nvml" in text for _, r in controller.reports if r.beat for text in r.beat.blind), "blindness"
        )
    finally:
        agent.stop()


def test_where_no_gpus_are_wanted_none_are_missed(agent: AgentProcess, controller: Controller) -> None:
    """`nvml: false`: not seeing GPUs is no blindness then."""
    agent.config.write_text(f"{agent.config.read_text()}nvml: false\n")
    started(agent, controller)
    report = controller.next_report()
    assert report.beat is not None
    assert (report.beat.gpus, report.beat.blind) == ((), ())


@pytest.mark.slow
def test_a_call_of_nvml_that_hangs_stops_neither_beats_nor_kernel_faults(
    agent: AgentProcess, controller: Controller, stub: NvmlStub
) -> None:
    """A broken driver blocks for ever: the beat says which call, shows no old readings, and it all comes back."""
    started(agent, controller)
    stub.hang("nvmlDeviceGetPowerUsage")

    def blind() -> bool:
        beat = controller.next_report().beat
        return beat is not None and beat.gpus == () and any("nvmlDeviceGetPowerUsage hangs" in b for b in beat.blind)

    controller.wait(blind, "a beat that says that NVML hangs")
    agent.kernel(OFF_THE_BUS)
    controller.wait_for_fault(kind=FaultKind.XID, xid=79)
    stub.hang("nvmlDeviceGetPowerUsage", hangs=False)
    controller.wait(lambda: (beat := controller.next_report().beat) and len(beat.gpus) == 8, "GPUs in a beat")


@pytest.mark.parametrize("xid", [79, 48, 94])
def test_an_xid_of_nvml_is_told(agent: AgentProcess, controller: Controller, stub: NvmlStub, xid: int) -> None:
    """At once, with its GPU, in the form of the driver's own line."""
    started(agent, controller)
    stub.xid(1, xid)
    fault = controller.wait_for_fault(kind=FaultKind.XID)
    assert (fault.gpu, fault.xid, fault.source) == ("0000:43:00", xid, "nvml")
    assert fault.text.startswith(f"Xid (PCI:0000:43:00): {xid}, ")


def test_one_xid_seen_by_both_is_one_fault(agent: AgentProcess, controller: Controller, stub: NvmlStub) -> None:
    """NVML and the kernel's line tell of the same thing; another GPU's is another fault."""
    started(agent, controller)
    stub.xid(1, 79)
    agent.kernel(OFF_THE_BUS)
    agent.kernel(OFF_THE_BUS.replace(":43:", ":52:"))
    controller.wait_for_fault(gpu="0000:52:00")
    controller.next_report()
    assert [(fault.gpu, fault.xid) for fault in controller.faults] == [("0000:43:00", 79), ("0000:52:00", 79)]


def test_an_xid_whose_number_says_too_little_waits_for_its_text(
    agent: AgentProcess, controller: Controller, stub: NvmlStub
) -> None:
    """154 with None is harmless, 145 may be fatal or not: the kernel's line is told instead, or NVML's alone."""
    started(agent, controller)
    text = "NVRM: Xid (PCI:0000:43:00): 154, GPU recovery action changed from 0x1 (GPU Reset Required) to 0x0 (None)"
    stub.xid(1, 154)
    agent.kernel(text)
    stub.xid(2, 145)
    controller.wait_for_fault(xid=145, source="nvml")
    assert [fault.text for fault in controller.faults if fault.xid == 154] == [text]


def test_what_an_event_leaves_behind_is_read_at_once(
    agent: AgentProcess, controller: Controller, stub: NvmlStub
) -> None:
    """An uncorrectable error: the counter, the row to be remapped, and the action that the driver asks for."""
    started(agent, controller)
    stub.set(3, field_4=1, field_6=8, field_144=1, field_230=1)
    stub.xid(3, 48)
    for kind in (FaultKind.XID, FaultKind.ECC, FaultKind.ROW_REMAP, FaultKind.RECOVERY_ACTION):
        assert controller.wait_for_fault(kind=kind).gpu == "0000:61:00"
    assert "Reset Required" in controller.wait_for_fault(kind=FaultKind.RECOVERY_ACTION).text


def test_a_lost_gpu_and_link_errors_are_told(agent: AgentProcess, controller: Controller, stub: NvmlStub) -> None:
    """Without any event: the next reading shows them."""
    started(agent, controller)
    stub.set(4, lost=1)
    stub.set(5, field_59=2)
    assert controller.wait_for_fault(kind=FaultKind.GPU_LOST).gpu == "0000:9d:00"
    assert controller.wait_for_fault(kind=FaultKind.NVLINK).gpu == "0000:c3:00"
    stub.set(4, lost=0)
    assert controller.wait_for_fault(kind=FaultKind.GPU_LOST, cleared=True).gpu == "0000:9d:00"


def test_failing_to_wait_for_events_is_blindness_until_it_works_again(
    agent: AgentProcess, controller: Controller, stub: NvmlStub
) -> None:
    """Then Xids are told again."""
    started(agent, controller)
    stub.error("nvmlEventSetWait_v2", 999)
    controller.wait(
        lambda: (beat := controller.next_report().beat) and any("nvml events" in text for text in beat.blind),
        "blindness for events",
    )
    stub.error("nvmlEventSetWait_v2", 999, fails=False)
    controller.wait(lambda: (beat := controller.next_report().beat) and not beat.blind, "sight")
    stub.xid(0, 79)
    controller.wait_for_fault(xid=79)


def test_a_full_disk_is_told_and_its_end(agent: AgentProcess, controller: Controller, tmp_path: Path) -> None:
    """As one fault each."""
    disk = tmp_path / "disk"
    disk.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=256k", "tmpfs", str(disk)]
    if (done := subprocess.run(mount, capture_output=True, text=True, check=False)).returncode:
        pytest.skip(f"cannot mount a small file system here: {done.stderr.strip()}")
    try:
        agent.config.write_text(f"beat: 0.5\npaths: [{disk}]\nmounts: false\n")
        with pytest.raises(OSError, match="No space left"):
            (disk / "file").write_bytes(b"x" * (1 << 20))
        agent.start(controller.url)
        begun = controller.wait_for_fault(kind=FaultKind.DISK_FULL)
        (disk / "file").unlink()
        over = controller.wait_for_fault(kind=FaultKind.DISK_FULL, cleared=True)
        assert over.id == f"{begun.id}/over"
        agent.stop()
    finally:
        subprocess.run(["umount", str(disk)], check=True)


def test_a_stack_is_fetched_from_a_process_of_the_job(
    agent: AgentProcess, controller: Controller, tmp_path: Path
) -> None:
    """Asked with a receipt, answered once with a later report: the rank, and where its main thread is stuck."""
    script = tmp_path / "train.py"
    script.write_text(
        "import threading\ndef all_reduce():\n    print(flush=True)\n    threading.Event().wait()\nall_reduce()\n"
    )
    environment = os.environ | {"SLURM_JOB_ID": "606060", "RANK": "3"}
    with subprocess.Popen([sys.executable, str(script)], env=environment, stdout=subprocess.PIPE) as rank:
        try:
            assert rank.stdout is not None
            rank.stdout.readline()
            controller.probes = [ProbeRequest(id="p1", kind=ProbeKind.STACKS, job_id=606060)]
            started(agent, controller)
            controller.wait(lambda: any(r.answers for _, r in controller.reports), "an answer")
            controller.next_report()
            answers = [answer for _, report in controller.reports for answer in report.answers]
            assert [answer.id for answer in answers] == ["p1"]
            (stack,) = answers[0].stacks
            assert (stack.pid, stack.rank, stack.problem) == (rank.pid, 3, "")
            assert "all_reduce (train.py:4)" in stack.frames
            assert stack.frames[-1] == "<module> (train.py:5)"
        finally:
            rank.kill()
