"""NVML through the real pynvml, on the stand-in library: what it says, what it does not say, and what goes wrong."""

import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from relight.clients.nvml import GpuLostError, Nvml, NvmlError, address
from relight.lab.nvml_stub import DOUBLE_BIT_EVENT, NoCompilerError, NvmlStub, build, load


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The stand-in, loaded into this process."""
    try:
        library = build(tmp_path_factory.mktemp("nvml"))
    except NoCompilerError as reason:
        pytest.skip(str(reason))
    load(library)
    return library


@pytest.fixture
def stub(library: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> NvmlStub:
    """Eight healthy GPUs."""
    stub = NvmlStub(tmp_path / "stub", library)
    for name, value in stub.environment.items():
        monkeypatch.setenv(name, value)
    return stub


@pytest.fixture
def nvml(stub: NvmlStub) -> Iterator[Nvml]:
    """The library, opened."""
    nvml = Nvml()
    nvml.open()
    yield nvml
    nvml.close()


def test_a_healthy_gpu_is_read_in_our_units(nvml: Nvml) -> None:
    """Watts, shares of one, and the PCI address as the kernel writes it."""
    gpus = nvml.read()
    assert [gpu.gpu for gpu in gpus][:2] == ["0000:1b:00", "0000:43:00"]
    assert gpus[1].number == 1
    assert gpus[1].power_w == pytest.approx(612.0)
    assert gpus[1].utilisation == pytest.approx(1.0)
    assert (gpus[1].temperature_c, gpus[1].sm_clock_mhz, gpus[1].throttle) == (54, 1980, ())
    assert (gpus[1].recovery_action, gpus[1].ecc_volatile, gpus[1].remap_failure, gpus[1].lost) == (0, 0, 0, False)


def test_what_is_not_supported_is_none_and_not_zero(nvml: Nvml, stub: NvmlStub) -> None:
    """An older driver or GPU does not say; 0 W and 0 errors would be claims."""
    stub.set(0, power_mw=None, utilisation=None, temperature=None, sm_clock=None, throttle=None)
    stub.set(0, field_4=None, field_59=None, field_230=None)
    gpu = nvml.read()[0]
    assert (gpu.power_w, gpu.utilisation, gpu.temperature_c, gpu.sm_clock_mhz, gpu.throttle) == (None,) * 5
    assert (gpu.ecc_volatile, gpu.nvlink_recovery, gpu.recovery_action) == (None,) * 3
    assert gpu.ecc_aggregate == 0


def test_a_lost_gpu_is_lost_and_the_others_are_read(nvml: Nvml, stub: NvmlStub) -> None:
    """Every call on it fails; its address is still known."""
    stub.set(3, lost=1)
    gpus = nvml.read()
    assert [gpu.lost for gpu in gpus] == [index == 3 for index in range(8)]
    assert (gpus[3].gpu, gpus[3].power_w) == ("0000:61:00", None)


def test_a_gpu_out_of_reach_from_the_beginning_is_lost(nvml: Nvml, stub: NvmlStub) -> None:
    """No handle can be had for it, so its address is unknown."""
    stub.set(2, absent=1)
    nvml.close()
    nvml.open()
    gpu = nvml.read()[2]
    assert (gpu.lost, gpu.gpu, gpu.number) == (True, "", 2)


def test_throttling_tells_its_reasons(nvml: Nvml, stub: NvmlStub) -> None:
    """Idleness (bit 0) is none."""
    stub.set(0, throttle=0x1 | 0x4 | 0x40)
    assert nvml.read()[0].throttle == ("sw_power_cap", "hw_thermal_slowdown")


def test_processes_are_named(nvml: Nvml, stub: NvmlStub) -> None:
    """Those with a compute context."""
    stub.pids(0, 4711, 4712)
    gpus = nvml.read()
    assert (gpus[0].pids, gpus[1].pids) == ((4711, 4712), ())


def test_an_event_names_its_gpu_and_xid(nvml: Nvml, stub: NvmlStub) -> None:
    """One after the other, and what happened before `watch` is not told."""
    stub.xid(0, 31)
    nvml.watch()
    stub.xid(1, 79)
    stub.event(2, DOUBLE_BIT_EVENT)
    first, second = nvml.wait(5), nvml.wait(5)
    assert first is not None
    assert second is not None
    assert (first.gpu, first.name, first.xid) == ("0000:43:00", "XidCriticalError", 79)
    assert (second.gpu, second.name, second.xid) == ("0000:52:00", "DoubleBitEccError", None)
    assert nvml.wait(0.01) is None


def test_a_gpu_without_events_is_named(nvml: Nvml, stub: NvmlStub) -> None:
    """Its Xids would be missed without a word."""
    stub.set(5, events=None)
    nvml.watch()
    assert nvml.unwatched == ("0000:c3:00",)


@pytest.mark.parametrize(("code", "kind"), [(15, GpuLostError), (999, NvmlError)])
def test_failing_to_wait_is_an_error_and_not_silence(
    nvml: Nvml, stub: NvmlStub, code: int, kind: type[NvmlError]
) -> None:
    """Only a time-out means that nothing happened."""
    nvml.watch()
    stub.error("nvmlEventSetWait_v2", code)
    with pytest.raises(kind):
        nvml.wait(0.01)


def test_without_a_driver_it_says_so(stub: NvmlStub) -> None:
    """The reason is NVML's own."""
    stub.driver(loaded=False)
    with pytest.raises(NvmlError, match="Driver Not Loaded"):
        Nvml().open()


def test_a_driver_taken_out_is_an_error_and_not_eight_unknown_gpus(nvml: Nvml, stub: NvmlStub) -> None:
    """NVML_ERROR_UNINITIALIZED of any call: the library has to be opened anew."""
    stub.error("nvmlDeviceGetPowerUsage", 1)
    with pytest.raises(NvmlError):
        nvml.read()


def test_a_call_that_hangs_is_told_to_other_threads(nvml: Nvml, stub: NvmlStub) -> None:
    """Which one, and only once it is overdue; afterwards the thread goes on."""
    now = [0.0]
    nvml._clock = lambda: now[0]
    stub.hang("nvmlDeviceGetTemperature")
    reader = threading.Thread(target=nvml.read)
    reader.start()
    while nvml._call is None or nvml._call[0] != "nvmlDeviceGetTemperature":
        pass
    assert nvml.hung is None
    now[0] = 11.0
    assert nvml.hung == "nvmlDeviceGetTemperature hangs for 11 s"
    stub.hang("nvmlDeviceGetTemperature", hangs=False)
    reader.join(10)
    assert not reader.is_alive()
    assert nvml.hung is None


def test_waiting_for_an_event_is_no_hang(nvml: Nvml) -> None:
    """It counts as overdue from when it should have returned."""
    now = [0.0]
    nvml._clock = lambda: now[0]
    nvml.watch()
    waiter = threading.Thread(target=nvml.wait, args=(1.0,))
    waiter.start()
    now[0] = 10.5
    assert nvml.hung is None
    waiter.join(10)
    assert not waiter.is_alive()


@pytest.mark.parametrize(
    ("bus_id", "expected"),
    [
        ("00000000:43:00.0", "0000:43:00"),
        (b"00000000:DF:00.0", "0000:df:00"),
        ("00010000:01:00.0", "10000:01:00"),
        ("0000:43:00", "0000:43:00"),
        ("nonsense", "nonsense"),
    ],
)
def test_addresses_are_the_kernels(bus_id: str | bytes, expected: str) -> None:
    """So that one GPU has one name, whoever speaks of it."""
    assert address(bus_id) == expected
