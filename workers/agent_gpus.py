"""What the readings and events of NVML tell: faults that have happened, and states that hold."""

from collections.abc import Iterable, Iterator
from datetime import datetime, timedelta
from typing import Any

from relight.clients.nvml import GpuEvent, GpuReading
from relight.workers.agent_faults import Condition, Kind, Sight

EVENT_KINDS: dict[str, Kind] = {
    "XidCriticalError": "xid",
    "DoubleBitEccError": "ecc",
    "NonFatalPoisonError": "ecc",
    "FatalPoisonError": "ecc",
    "DramRetirementEvent": "row_remap",
    "DramRetirementFailure": "row_remap",
    "GpuUnavailableError": "gpu_lost",
}
"""Events that are faults by themselves. Any event is a reason to read the GPUs at once."""

NEEDS_TEXT = frozenset((*range(144, 151), 154))
"""Xids whose number alone does not tell whether anything is wrong: the kernel's line does (NVIDIA Xid catalogue)."""

RECOVERY_ACTIONS = {
    1: "GPU Reset Required",
    2: "Node Reboot Required",
    3: "Drain P2P Required",
    4: "Drain and Reset Required",
    5: "Recover IMEX Domain Required",
    6: "Bus Reset Required",
    7: "System Reboot Required",
}
"""NVML_GPU_RECOVERY_ACTION_* (nvml.h), in the words of the driver's Xid 154."""

HELD_BACK = frozenset({"hw_slowdown", "sw_thermal_slowdown", "hw_thermal_slowdown", "hw_power_brake_slowdown"})
"""Reasons that a healthy GPU at work does not have. The power cap it has all the time."""
THROTTLED_AFTER = timedelta(seconds=15)
"""So long without a break, or it is not told: short ones are everyday."""
FREE_AFTER = timedelta(seconds=30)
LINK_ERRORS_PER_SECOND = 100.0
"""Replays and CRC errors are repaired by the link; they matter at this rate (DCGM, dcgm_gpu_hardware_limits.h)."""
_NOT_READ = GpuReading("", -1)


class GpuFaults:
    """Compares each reading with the one before."""

    def __init__(self) -> None:
        """No reading yet: what counters say at first is where they stand, and no news."""
        self._before: dict[int, tuple[GpuReading, datetime]] = {}
        self._throttled: dict[str, tuple[bool, datetime]] = {}
        """By GPU: whether it is held back, and since when it has been so."""

    def read(self, readings: Iterable[GpuReading], at: datetime) -> Iterator[Sight | Condition]:
        """What the readings tell."""
        for now in readings:
            before, earlier = self._before.get(now.number, (_NOT_READ, at))
            yield from _states(now, at)
            if (held := self._held_back(now, at)) is not None:
                yield held
            yield from _rises(before, now, (at - earlier).total_seconds(), at)
            # An unknown value leaves the last known one to compare with.
            known = {name: value for name, value in now._asdict().items() if value is not None}
            self._before[now.number] = (before._replace(**known), at)

    def _held_back(self, now: GpuReading, at: datetime) -> Condition | None:
        if now.throttle is None:
            return None
        reasons = HELD_BACK.intersection(now.throttle)
        was, since = self._throttled.get(now.gpu, (False, at))
        if bool(reasons) != was:
            was, since = bool(reasons), at
        self._throttled[now.gpu] = was, since
        holds = None
        if at - since >= (THROTTLED_AFTER if was else FREE_AFTER):
            holds = was
        clock = "" if now.sm_clock_mhz is None else f" at {now.sm_clock_mhz:.0f} MHz"
        text = f"clocks held down{clock}: {', '.join(sorted(reasons))}" if was else f"clocks free again{clock}"
        return Condition(_sight("throttled", at, text, now.gpu), holds)


def event(told: GpuEvent, at: datetime) -> Sight | None:
    """The fault that an event is by itself; an Xid in the form of the driver's own line."""
    kind = EVENT_KINDS.get(told.name)
    if kind is None:
        return None
    if told.xid is not None:
        text = f"Xid (PCI:{told.gpu}): {told.xid}, told by NVML"
        return Sight(kind, at, text, "nvml", gpu=told.gpu, xid=told.xid)
    return _sight(kind, at, f"NVML event {told.name}", told.gpu)


def state(reading: GpuReading) -> dict[str, Any]:
    """The reading as a `GpuState`."""
    return {
        "gpu": reading.gpu,
        "index": reading.number,
        "power_w": reading.power_w,
        "utilisation": reading.utilisation,
        "temperature_c": reading.temperature_c,
        "sm_clock_mhz": reading.sm_clock_mhz,
        "throttle": reading.throttle or (),
        "pids": reading.pids or (),
    }


def _sight(kind: Kind, at: datetime, text: str, gpu: str, about: str = "") -> Sight:
    return Sight(kind, at, text, "nvml", gpu=gpu, about=about)


def _states(now: GpuReading, at: datetime) -> Iterator[Condition]:
    # One that was out of reach from the beginning has no address.
    where = "" if now.gpu else f"index {now.number}"
    text = f"GPU is lost {where}".strip() if now.lost else "GPU answers again"
    yield Condition(_sight("gpu_lost", at, text, now.gpu, where), now.lost)
    for action, words in RECOVERY_ACTIONS.items():
        holds = None if now.recovery_action is None else now.recovery_action == action
        text = f"GPU recovery action {action:#x} ({words})"
        yield Condition(_sight("recovery_action", at, text, now.gpu, words), holds)
    for about, value in (("pending", now.remap_pending), ("failure", now.remap_failure)):
        text = f"row remapping {about}: {'yes' if value else 'no'}"
        yield Condition(_sight("row_remap", at, text, now.gpu, about), None if value is None else value != 0)


def _rises(before: GpuReading, now: GpuReading, seconds: float, at: datetime) -> Iterator[Sight]:
    for what, old, new in (
        ("volatile", before.ecc_volatile, now.ecc_volatile),
        ("aggregate", before.ecc_aggregate, now.ecc_aggregate),
    ):
        if old is not None and new is not None and new > old:
            yield _sight("ecc", at, f"uncorrected ECC errors ({what}) rose from {old} to {new}", now.gpu)
    for what, old, new, least in (
        ("recovery", before.nvlink_recovery, now.nvlink_recovery, 0.0),
        ("replay", before.nvlink_replay, now.nvlink_replay, LINK_ERRORS_PER_SECOND),
        ("CRC flit", before.nvlink_crc_flit, now.nvlink_crc_flit, LINK_ERRORS_PER_SECOND),
        ("CRC data", before.nvlink_crc_data, now.nvlink_crc_data, LINK_ERRORS_PER_SECOND),
    ):
        if old is not None and new is not None and new > old and new - old >= least * seconds:
            text = f"NVLink {what} errors rose from {old} to {new} within {seconds:.0f} s"
            yield _sight("nvlink", at, text, now.gpu, what)
