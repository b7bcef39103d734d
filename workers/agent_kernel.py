"""Which of the kernel's messages are faults of the node.

Rules are anchored at the beginning of the message: what a program can put into one (its name, at most 15 signs) stands
further back, and cannot make another fault of it. Only what interrupts work is told: corrected errors are not, nor
what NVIDIA or the kernel say by themselves to be harmless. What a fault means is the controller's to say.
"""

import re
from typing import NamedTuple

from relight.clients.kernel_messages import KernelMessage
from relight.workers.agent_faults import Kind, Sight

_PCI = r"[0-9A-Fa-f]{4,8}:[0-9A-Fa-f]{2}:[0-9A-Fa-f]{2}"


class Rule(NamedTuple):
    """A kind of message. Named groups: pci, xid, pid, and about (what makes two of them one fault)."""

    kind: Kind
    pattern: re.Pattern[str]


def rule(kind: Kind, pattern: str) -> Rule:
    """A rule; raises `re.error` when the pattern is none."""
    return Rule(kind, re.compile(pattern))


RULES = (
    # NVIDIA, "Xid errors": `NVRM: Xid (PCI:<address>): <xid>, [pid=<pid>, name=<name>,] <message>`.
    rule("xid", rf"NVRM: Xid \(PCI:(?P<pci>{_PCI})(?:\.\d)?\): (?P<xid>\d{{1,4}}),(?: pid='?(?P<pid>\d+))?"),
    rule("gpu_lost", rf"NVRM: GPU (?P<pci>{_PCI})(?:\.\d)?: GPU has fallen off the bus"),
    # NVIDIA Fabric Manager user guide, "NVSwitch SXid errors". Lines of details follow, with the same number.
    rule("sxid", rf"nvidia-nvswitch\d+: SXid \(PCI:(?P<about>{_PCI}(?:\.\d)?\): \d+),"),
    # mm/oom_kill.c. The first form names the cgroup, and with it the job; both come for one kill.
    rule("oom_kill", r"oom-kill:constraint=.*,pid=(?P<about>(?P<pid>\d+)),uid=\d+$"),
    rule("oom_kill", r"(?:Memory cgroup out|Out) of memory: Kill(?:ed)? process (?P<about>(?P<pid>\d+)) \("),
    # drivers/pci/pcie: aer.c, dpc.c (the port has been cut off), and pciehp of a card that is gone.
    rule(
        "pcie", rf"\S+ (?P<about>(?P<pci>{_PCI})\.\d: )AER: (?:Multiple )?Uncorrect(?:ed|able) \((?:Non-)?Fatal\) error"
    ),
    rule("pcie", rf"\S+ (?P<about>(?P<pci>{_PCI})\.\d: )(?:AER: )?PCIe Bus Error: severity=Uncorrect(?:ed|able)"),
    rule("pcie", rf"pcieport (?P<about>{_PCI}\.\d: DPC: )containment event"),
    rule("pcie", rf"pcieport (?P<about>{_PCI}\.\d: pciehp: Slot)\([^)]*\): (?:Link Down|Card not present)"),
    # drivers/net/ethernet/mellanox/mlx5/core: health.c, events.c, en_main.c. Slot power (27 W) is no fault.
    rule(
        "fabric",
        rf"mlx5_core (?P<about>{_PCI}\.\d).{{0,80}}: (?:Fatal error \d+ detected|device's health compromised"
        r"|Health issue observed|Port module event\[error\]|High temperature on sensors)",
    ),
    rule("fabric", rf"mlx5_core (?P<about>{_PCI}\.\d \S+: )(?:Link down|TX timeout detected)$"),
)
_SPEAKS_OF = re.compile(rf"NVRM: The NVIDIA GPU (?P<pci>{_PCI})")
_FALLEN = re.compile(r"NVRM: fallen off the bus and is not responding")


class KernelFaults:
    """Reads messages in their order.

    Args:
        rules: a site's own, tried before the shipped ones.
    """

    def __init__(self, rules: tuple[Rule, ...] = ()) -> None:
        """No message was read yet."""
        self._rules = (*rules, *RULES)
        self._spoken_of = ""

    def read(self, message: KernelMessage) -> Sight | None:
        """What the message tells; None for most."""
        if found := _SPEAKS_OF.match(message.text):
            # The driver's message on a GPU that it cannot reach goes over several lines; the first names it.
            self._spoken_of = found["pci"].lower()
            return None
        if _FALLEN.match(message.text):
            return _sight(message, "gpu_lost", {"pci": self._spoken_of})
        for kind, pattern in self._rules:
            if found := pattern.match(message.text):
                return _sight(message, kind, found.groupdict())
        return None


def _sight(message: KernelMessage, kind: Kind, groups: dict[str, str | None]) -> Sight:
    xid, pid = groups.get("xid"), groups.get("pid")
    return Sight(
        kind,
        message.at,
        message.text,
        "kernel_log",
        gpu=(groups.get("pci") or "").lower(),
        xid=int(xid) if xid else None,
        pid=int(pid) if pid else None,
        about=groups.get("about") or "",
        mark=message.mark,
    )
