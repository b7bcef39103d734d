"""What readings and events of NVML tell."""

import re
from datetime import UTC, datetime, timedelta
from typing import Any

import pynvml
import pytest
from hypothesis import given
from hypothesis import strategies as st

from relight.attribution.catalogue import load
from relight.clients.nvml import EVENTS, GpuEvent, GpuReading
from relight.domain.reports import GpuState
from relight.workers.agent_faults import Condition, Fault, Faults
from relight.workers.agent_gpus import EVENT_KINDS, RECOVERY_ACTIONS, GpuFaults, event, state

NOW = datetime(2026, 11, 30, 12, tzinfo=UTC)
HEALTHY = GpuReading(
    "0000:43:00",
    1,
    power_w=600.0,
    utilisation=1.0,
    throttle=(),
    pids=(),
    ecc_volatile=0,
    ecc_aggregate=5,
    remap_pending=0,
    remap_failure=0,
    recovery_action=0,
    nvlink_recovery=0,
    nvlink_replay=0,
    nvlink_crc_flit=0,
    nvlink_crc_data=0,
)
UNKNOWN = GpuReading("0000:43:00", 1)


def told(*readings: GpuReading, every: float = 5.0) -> list[Fault]:
    """The faults that readings tell, one every few seconds."""
    gpus, faults = GpuFaults(), Faults("n1/boot")
    for number, reading in enumerate(readings):
        for each in gpus.read([reading], NOW + timedelta(seconds=every * number)):
            if isinstance(each, Condition):
                faults.check(each)
            else:
                faults.tell(each)
    return faults.first(1000)


def changed(**values: Any) -> GpuReading:
    """A healthy GPU but for that."""
    return HEALTHY._replace(**values)


def test_a_healthy_gpu_tells_nothing() -> None:
    """Neither at first, whatever its counters are, nor later."""
    assert told(HEALTHY, changed(power_w=80.0, throttle=("sw_power_cap",)), HEALTHY) == []


@pytest.mark.parametrize(
    ("values", "kind"),
    [
        ({"lost": True}, "gpu_lost"),
        ({"ecc_volatile": 1}, "ecc"),
        ({"ecc_aggregate": 6}, "ecc"),
        ({"remap_pending": 1}, "row_remap"),
        ({"remap_failure": 1}, "row_remap"),
        ({"nvlink_recovery": 1}, "nvlink"),
        ({"nvlink_replay": 500}, "nvlink"),
        ({"nvlink_crc_data": 500}, "nvlink"),
        ({"recovery_action": 2}, "recovery_action"),
    ],
)
def test_what_went_wrong_is_told_once(values: dict[str, Any], kind: str) -> None:
    """As one fault of this GPU, however often it is read."""
    (fault,) = told(HEALTHY, changed(**values), changed(**values))
    assert (fault.kind, fault.gpu, fault.source, fault.cleared) == (kind, "0000:43:00", "nvml", False)


def test_links_repair_a_few_errors_themselves() -> None:
    """Below a hundred a second nothing is told."""
    assert told(HEALTHY, changed(nvlink_replay=490, nvlink_crc_flit=490)) == []


def test_a_counter_that_was_reset_is_no_rise() -> None:
    """A driver that was loaded anew counts from zero, and a rise after that is one again."""
    assert told(changed(ecc_volatile=7), changed(ecc_volatile=0)) == []
    (fault,) = told(changed(ecc_volatile=7), changed(ecc_volatile=0), changed(ecc_volatile=1))
    assert "from 0 to 1" in fault.text


def test_a_rise_across_an_unknown_reading_is_seen() -> None:
    """What is not known for a while is compared with what was known before."""
    (fault,) = told(HEALTHY, UNKNOWN, changed(ecc_volatile=2))
    assert fault.kind == "ecc"


@given(known=st.lists(st.booleans(), min_size=1, max_size=20))
def test_unknown_is_neither_fault_nor_recovery(known: list[bool]) -> None:
    """A state that holds is not over because it cannot be read, and nothing begins so."""
    readings = [changed(remap_failure=1, recovery_action=1) if each else UNKNOWN for each in known]
    assert len(told(*readings)) == (2 if any(known) else 0)
    assert not any(fault.cleared for fault in told(*readings))


def test_a_state_that_is_over_is_told_as_cleared() -> None:
    """After a reset."""
    begun, over = told(HEALTHY, changed(recovery_action=1), HEALTHY)
    assert (begun.cleared, over.cleared) == (False, True)
    assert over.id == f"{begun.id}/over"


def test_another_recovery_action_is_another_state() -> None:
    """Drain first, then reset."""
    faults = told(HEALTHY, changed(recovery_action=3), changed(recovery_action=1))
    assert [(fault.cleared, fault.text.partition("(")[2]) for fault in faults] == [
        (False, "Drain P2P Required)"),
        (False, "GPU Reset Required)"),
        (True, "Drain P2P Required)"),
    ]


@pytest.mark.parametrize("action", [1, 2, 3, 4])
def test_a_recovery_action_reads_as_the_drivers_xid_154(action: int) -> None:
    """So that one pattern of the catalogue knows both."""
    (fault,) = told(HEALTHY, changed(recovery_action=action))
    pattern = load()["XID_154"].patterns[0]
    assert re.search(pattern, f"Xid (PCI:{fault.gpu}): 154, {fault.text}")


def test_throttling_is_told_when_it_lasts() -> None:
    """Short spells are everyday; it is over only when it stays away."""
    hot, cold = changed(throttle=("hw_thermal_slowdown", "sw_power_cap"), sm_clock_mhz=800.0), HEALTHY
    assert told(cold, hot, hot, cold, hot, hot, cold) == []
    begun, over = told(cold, *[hot] * 5, cold, hot, *[cold] * 8)
    assert (begun.kind, begun.cleared) == ("throttled", False)
    assert begun.text == "clocks held down at 800 MHz: hw_thermal_slowdown"
    assert over.cleared


def test_every_event_that_is_waited_for_is_a_fault_or_a_reason_to_read() -> None:
    """The recovery action is read; all others are faults by themselves."""
    assert set(EVENTS.values()) - EVENT_KINDS.keys() == {"GpuRecoveryAction"}
    assert event(GpuEvent("0000:43:00", "GpuRecoveryAction"), NOW) is None


def test_an_xid_event_reads_as_the_drivers_line() -> None:
    """So that the catalogue knows it."""
    sight = event(GpuEvent("0000:43:00", "XidCriticalError", 79), NOW)
    assert sight is not None
    assert any(re.search(pattern, sight.text) for pattern in load()["XID_79"].expressions)


@pytest.mark.parametrize("reading", [HEALTHY, UNKNOWN, GpuReading("", 3, lost=True)])
def test_a_reading_is_valid_by_the_contract(reading: GpuReading) -> None:
    """And unknown stays unknown."""
    assert GpuState.model_validate(state(reading)).power_w == reading.power_w


def test_all_recovery_actions_have_words() -> None:
    """Those that nvml.h has."""
    values = {value for name, value in vars(pynvml).items() if name.startswith("NVML_GPU_RECOVERY_ACTION_")}
    assert values == {0, *RECOVERY_ACTIONS}
