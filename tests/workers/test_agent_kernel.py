"""Which messages of the kernel are faults, and what they name."""

import re
from datetime import UTC, datetime

import pytest

from relight.attribution.catalogue import load
from relight.clients.kernel_messages import KernelMessage
from relight.lab.xids import PCI_ADDRESSES, XIDS
from relight.workers.agent_faults import Faults, Sight
from relight.workers.agent_kernel import KernelFaults

NOW = datetime(2026, 11, 30, 12, tzinfo=UTC)


def read(*lines: str) -> list[Sight]:
    """What the lines tell, in order."""
    faults = KernelFaults()
    messages = [KernelMessage(line, NOW, f"k{number}") for number, line in enumerate(lines)]
    return [sight for sight in map(faults.read, messages) if sight]


OOM = (
    "oom-kill:constraint=CONSTRAINT_MEMCG,nodemask=(null),cpuset=/,mems_allowed=0-1,oom_memcg=/slurm/job_42,"
    "task_memcg=/slurm/job_42/step_0/task_0,task=python,pid=4711,uid=1000"
)


@pytest.mark.parametrize(
    ("line", "kind", "gpu", "xid", "pid"),
    [
        (
            "NVRM: Xid (PCI:0000:43:00): 79, pid='<unknown>', name=<unknown>, GPU has fallen",
            "xid",
            "0000:43:00",
            79,
            None,
        ),
        ("NVRM: Xid (PCI:0000:DC:00): 45, pid=1001, name=python3, Ch 00000001", "xid", "0000:dc:00", 45, 1001),
        ("NVRM: Xid (PCI:0000:02:00): 79, GPU has fallen off the bus.", "xid", "0000:02:00", 79, None),
        ("NVRM: Xid (PCI:10000:43:00): 13, pid='77', name=x, Graphics SM", "xid", "10000:43:00", 13, 77),
        ("NVRM: GPU 0000:43:00.0: GPU has fallen off the bus.", "gpu_lost", "0000:43:00", None, None),
        ("nvidia-nvswitch3: SXid (PCI:0000:05:00.0): 20034, Fatal, Link 30 LTSSM Fault Up", "sxid", "", None, None),
        (OOM, "oom_kill", "", None, 4711),
        ("Memory cgroup out of memory: Killed process 4711 (python) total-vm:1kB", "oom_kill", "", None, 4711),
        ("Out of memory: Killed process 99 (a) b) total-vm:1kB", "oom_kill", "", None, 99),
        ("Out of memory: Kill process 99 (python) score 900 or sacrifice child", "oom_kill", "", None, 99),
        (
            "pcieport 0000:00:01.0: AER: Uncorrected (Fatal) error received: 0000:43:00.0",
            "pcie",
            "0000:00:01",
            None,
            None,
        ),
        ("pcieport 0000:00:01.0: AER: Multiple Uncorrectable (Non-Fatal) error mes", "pcie", "0000:00:01", None, None),
        ("nvidia 0000:43:00.0: PCIe Bus Error: severity=Uncorrected (Fatal), type=", "pcie", "0000:43:00", None, None),
        ("pcieport 0000:30:03.0: DPC: containment event, status:0x1f01 source:0x0000", "pcie", "", None, None),
        ("pcieport 0000:30:03.0: pciehp: Slot(12): Link Down", "pcie", "", None, None),
        ("mlx5_core 0000:d2:00.0: poll_health:825:(pid 0): Fatal error 3 detected", "fabric", "", None, None),
        (
            "mlx5_core 0000:d2:00.0: poll_health:825: device's health compromised - reached miss count",
            "fabric",
            "",
            None,
            None,
        ),
        (
            "mlx5_core 0000:d2:00.0: Port module event[error]: module 0, Cable error, High Temperature",
            "fabric",
            "",
            None,
            None,
        ),
        (
            "mlx5_core 0000:61:00.0: temp_warn:171:(pid 0): High temperature on sensors with bit set 0 1",
            "fabric",
            "",
            None,
            None,
        ),
        ("mlx5_core 0000:5e:00.0 ens1f0np0: Link down", "fabric", "", None, None),
    ],
)
def test_a_fault_is_told_with_what_it_names(line: str, kind: str, gpu: str, xid: int | None, pid: int | None) -> None:
    """The address of a PCIe port is no GPU's; the loop leaves it only where NVML knows one there."""
    (sight,) = read(line)
    assert (sight.kind, sight.gpu, sight.xid, sight.pid, sight.text) == (kind, gpu, xid, pid, line)


@pytest.mark.parametrize(
    "line",
    [
        "pcieport 0000:00:02.0: AER: Corrected error received: 0000:00:02.0",
        "nvme 0000:02:00.0: PCIe Bus Error: severity=Corrected, type=Physical Layer",
        "mlx5_core 0000:5e:00.0: mlx5_pcie_event:301:(pid 5): Detected insufficient power on the PCIe slot (27W).",
        "mlx5_core 0000:5e:00.0 ens1f0np0: Link up",
        "mlx5_core 0000:5e:00.0: Port module event: module 0, Cable plugged",
        "NVRM: loading NVIDIA UNIX x86_64 Kernel Module  570.86.15",
        "oom_reaper: reaped process 4711 (python), now anon-rss:0kB",
        "usb 1-1: new high-speed USB device number 2",
        "",
    ],
)
def test_what_interrupts_nothing_is_not_told(line: str) -> None:
    """Corrected errors and notices are everyday."""
    assert read(line) == []


@pytest.mark.parametrize(
    "line",
    [
        "x): 79, GPU has[77]: segfault at 0 ip 0 sp 0 error 4 in NVRM: Xid (PCI:0000:43:00): 79,",
        "NVRM: Xid (PCI:[77]: segfault at 0 ip 0 sp 0 error 4",
        'audit: type=1400 comm="NVRM: Xid (PCI:0000:43:00): 79, "',
        " NVRM: Xid (PCI:0000:43:00): 79, GPU has fallen off the bus.",
    ],
)
def test_what_a_program_can_put_into_a_message_is_no_fault(line: str) -> None:
    """Its name stands in messages about it; only the beginning of one counts."""
    assert read(line) == []


def test_an_xid_cannot_be_made_another_one_by_the_programs_name() -> None:
    """The first number is the driver's."""
    (sight,) = read("NVRM: Xid (PCI:0000:43:00): 13, pid=7, name=): 79, GPU, Graphics Exception")
    assert sight.xid == 13


def test_a_message_over_several_lines_names_the_gpu_in_its_first() -> None:
    """The driver's words when it cannot reach a GPU at all."""
    (sight,) = read(
        "NVRM: The NVIDIA GPU 0000:B3:00.0",
        "NVRM: (PCI ID: 10de:2330) installed in this system has",
        "NVRM: fallen off the bus and is not responding to commands.",
    )
    assert (sight.kind, sight.gpu) == ("gpu_lost", "0000:b3:00")


def test_lines_of_one_event_are_one_fault() -> None:
    """An OOM kill is told twice by the kernel, an SXid with lines of details, a PCIe error by port and by device."""
    faults = Faults("n1/boot")
    told = [
        faults.tell(sight)
        for sight in read(
            OOM,
            "Memory cgroup out of memory: Killed process 4711 (python) total-vm:1kB",
            "nvidia-nvswitch3: SXid (PCI:0000:05:00.0): 20034, Fatal, Link 30 LTSSM Fault Up",
            "nvidia-nvswitch3: SXid (PCI:0000:05:00.0): 20034, Severity 1 Engine instance 30 Sub-engine instance 00",
            "nvidia-nvswitch3: SXid (PCI:0000:05:00.0): 20034, Data {0x00140004, 0x00000000}",
        )
    ]
    assert told == [True, False, True, False, False]


@pytest.mark.parametrize("xid", XIDS)
def test_the_labs_xids_are_recognised_by_the_catalogue_too(xid: int) -> None:
    """What the agent passes on is what the controller's catalogue reads."""
    patterns = [pattern for signature in load().signatures.values() for pattern in signature.expressions]
    for number, text in XIDS[xid].lines:
        line = f"NVRM: Xid (PCI:{PCI_ADDRESSES[1]}): {number}, {text.format(pid=7)}"
        (sight,) = read(line)
        assert (sight.xid, sight.gpu) == (number, PCI_ADDRESSES[1])
        assert any(re.search(pattern, sight.text) for pattern in patterns)
