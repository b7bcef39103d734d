"""NVIDIA's management library (NVML) through NVIDIA's own binding. No other file imports `pynvml`.

NvmlError                 NVML does not answer; the text says what and why. Trying again later may help
└── GpuLostError          a GPU has fallen off the bus, or is otherwise out of reach

What a GPU or its driver does not support is None, never 0. Every call may block for ever when a driver is broken: each
user of an `Nvml` calls it from a thread of its own, and `hung` tells any other thread of a call that is overdue.
Plain tuples, no pydantic: the node agent's memory is counted (docs of `relight agent`).
"""

import ctypes
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any, NamedTuple, TypeVar

import pynvml  # type: ignore[import-untyped]

T = TypeVar("T")

HANGS_AFTER = 10.0
"""Seconds after which a call counts as hanging. Ordinary ones take milliseconds, resets of a GPU a few seconds."""

THROTTLE = {
    pynvml.nvmlClocksEventReasonSwPowerCap: "sw_power_cap",
    pynvml.nvmlClocksEventReasonHwSlowdown: "hw_slowdown",
    pynvml.nvmlClocksEventReasonSwThermalSlowdown: "sw_thermal_slowdown",
    pynvml.nvmlClocksEventReasonHwThermalSlowdown: "hw_thermal_slowdown",
    pynvml.nvmlClocksEventReasonHwPowerBrakeSlowdown: "hw_power_brake_slowdown",
}
"""Reasons that hold clocks down; idleness, set clocks and sync boost are not among them (nvml.h)."""

EVENTS = {
    pynvml.nvmlEventTypeXidCriticalError: "XidCriticalError",
    pynvml.nvmlEventTypeDoubleBitEccError: "DoubleBitEccError",
    pynvml.nvmlEventTypeDramRetirementEvent: "DramRetirementEvent",
    pynvml.nvmlEventTypeDramRetirementFailure: "DramRetirementFailure",
    pynvml.nvmlEventTypeNonFatalPoisonError: "NonFatalPoisonError",
    pynvml.nvmlEventTypeFatalPoisonError: "FatalPoisonError",
    pynvml.nvmlEventTypeGpuUnavailableError: "GpuUnavailableError",
    pynvml.nvmlEventTypeGpuRecoveryAction: "GpuRecoveryAction",
}
"""Events that are waited for. Single-bit errors are corrected and stop nothing: too many of them come as Xid 92."""

_FIELDS = (
    pynvml.NVML_FI_DEV_ECC_DBE_VOL_TOTAL,
    pynvml.NVML_FI_DEV_ECC_DBE_AGG_TOTAL,
    pynvml.NVML_FI_DEV_REMAPPED_PENDING,
    pynvml.NVML_FI_DEV_REMAPPED_FAILURE,
    pynvml.NVML_FI_DEV_GET_GPU_RECOVERY_ACTION,
    pynvml.NVML_FI_DEV_NVLINK_RECOVERY_ERROR_COUNT_TOTAL,
    pynvml.NVML_FI_DEV_NVLINK_REPLAY_ERROR_COUNT_TOTAL,
    pynvml.NVML_FI_DEV_NVLINK_CRC_FLIT_ERROR_COUNT_TOTAL,
    pynvml.NVML_FI_DEV_NVLINK_CRC_DATA_ERROR_COUNT_TOTAL,
)
_MEMBER = {
    pynvml.NVML_VALUE_TYPE_DOUBLE: "dVal",
    pynvml.NVML_VALUE_TYPE_UNSIGNED_INT: "uiVal",
    pynvml.NVML_VALUE_TYPE_UNSIGNED_LONG: "ulVal",
    pynvml.NVML_VALUE_TYPE_UNSIGNED_LONG_LONG: "ullVal",
    pynvml.NVML_VALUE_TYPE_SIGNED_LONG_LONG: "sllVal",
    pynvml.NVML_VALUE_TYPE_SIGNED_INT: "siVal",
    pynvml.NVML_VALUE_TYPE_UNSIGNED_SHORT: "usVal",
}
_GONE = (
    pynvml.NVML_ERROR_UNINITIALIZED,
    pynvml.NVML_ERROR_DRIVER_NOT_LOADED,
    pynvml.NVML_ERROR_LIB_RM_VERSION_MISMATCH,
)
"""The library has to be opened anew: the driver was taken out, or replaced under us."""


class NvmlError(Exception):
    """NVML does not answer."""


class GpuLostError(NvmlError):
    """A GPU has fallen off the bus, or is otherwise out of reach."""


class GpuReading(NamedTuple):
    """What NVML says of one GPU now. None: it does not say."""

    gpu: str
    """PCI address `0000:43:00`; empty where the GPU was out of reach from the beginning."""
    number: int
    """NVML's index, from 0."""
    lost: bool = False
    power_w: float | None = None
    utilisation: float | None = None
    """Share of the last sample period in which a kernel ran, 0 to 1."""
    temperature_c: float | None = None
    sm_clock_mhz: float | None = None
    throttle: tuple[str, ...] | None = None
    pids: tuple[int, ...] | None = None
    """Of processes with a compute context, as the host numbers them."""
    ecc_volatile: int | None = None
    """Uncorrected memory errors since the driver was loaded."""
    ecc_aggregate: int | None = None
    """Uncorrected memory errors in the GPU's life."""
    remap_pending: int | None = None
    remap_failure: int | None = None
    recovery_action: int | None = None
    """NVML_GPU_RECOVERY_ACTION_*: 0 none."""
    nvlink_recovery: int | None = None
    nvlink_replay: int | None = None
    nvlink_crc_flit: int | None = None
    nvlink_crc_data: int | None = None


class Card(NamedTuple):
    """What names one GPU for who repairs it; empty: the driver does not say."""

    gpu: str
    """PCI address."""
    number: int
    """NVML's index."""
    uuid: str = ""
    serial: str = ""
    model: str = ""


class GpuEvent(NamedTuple):
    """Something that the driver reports by itself."""

    gpu: str
    """PCI address, or empty where the GPU is not known."""
    name: str
    """A value of `EVENTS`."""
    xid: int | None = None


class Nvml:
    """The GPUs of this machine; to be used by one thread.

    Raises (on every call):
        NvmlError: there is no library, no driver, or it fails altogether.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        """Nothing is called yet."""
        self._clock = clock
        self._call: tuple[str, float] | None = None
        self._gpus: list[tuple[Any, str]] = []
        """Handle (None: out of reach) and PCI address, by index."""
        self._set: Any = None
        self._unwatched: tuple[str, ...] = ()

    @property
    def hung(self) -> str | None:
        """The call that is overdue, and for how long; None while all is well."""
        call = self._call
        if call is None or self._clock() - call[1] < HANGS_AFTER:
            return None
        return f"{call[0]} hangs for {self._clock() - call[1]:.0f} s"

    @property
    def unwatched(self) -> tuple[str, ...]:
        """GPUs whose events cannot be had."""
        return self._unwatched

    def open(self) -> None:
        """Load the library and find the GPUs."""
        self._try(pynvml.nvmlInit)
        self._gpus = []
        for index in range(self._try(pynvml.nvmlDeviceGetCount)):
            try:
                handle = self._try(pynvml.nvmlDeviceGetHandleByIndex, index)
                self._gpus.append((handle, address(self._try(pynvml.nvmlDeviceGetPciInfo, handle).busId)))
            except NvmlError:
                self._gpus.append((None, ""))

    def close(self) -> None:
        """Let go of the driver, so that it can be opened anew."""
        self._gpus, self._set = [], None
        with suppress(NvmlError):
            self._try(pynvml.nvmlShutdown)

    def read(self) -> list[GpuReading]:
        """Read all GPUs."""
        return [self._read(index, handle, gpu) for index, (handle, gpu) in enumerate(self._gpus)]

    def _read(self, index: int, handle: Any, gpu: str) -> GpuReading:
        if handle is None:
            return GpuReading(gpu, index, lost=True)
        try:
            power = self._ask(pynvml.nvmlDeviceGetPowerUsage, handle)
            rates = self._ask(pynvml.nvmlDeviceGetUtilizationRates, handle)
            processes = self._ask(pynvml.nvmlDeviceGetComputeRunningProcesses, handle)
            fields = self._ask(pynvml.nvmlDeviceGetFieldValues, handle, _FIELDS) or ()
            values = {field.fieldId: _value(field) for field in fields}
            return GpuReading(
                gpu,
                index,
                power_w=None if power is None else power / 1000,
                utilisation=None if rates is None else rates.gpu / 100,
                temperature_c=self._ask(pynvml.nvmlDeviceGetTemperature, handle, pynvml.NVML_TEMPERATURE_GPU),
                sm_clock_mhz=self._ask(pynvml.nvmlDeviceGetClockInfo, handle, pynvml.NVML_CLOCK_SM),
                throttle=_throttle(self._reasons(handle)),
                pids=None if processes is None else tuple(process.pid for process in processes),
                ecc_volatile=values.get(pynvml.NVML_FI_DEV_ECC_DBE_VOL_TOTAL),
                ecc_aggregate=values.get(pynvml.NVML_FI_DEV_ECC_DBE_AGG_TOTAL),
                remap_pending=values.get(pynvml.NVML_FI_DEV_REMAPPED_PENDING),
                remap_failure=values.get(pynvml.NVML_FI_DEV_REMAPPED_FAILURE),
                recovery_action=values.get(pynvml.NVML_FI_DEV_GET_GPU_RECOVERY_ACTION),
                nvlink_recovery=values.get(pynvml.NVML_FI_DEV_NVLINK_RECOVERY_ERROR_COUNT_TOTAL),
                nvlink_replay=values.get(pynvml.NVML_FI_DEV_NVLINK_REPLAY_ERROR_COUNT_TOTAL),
                nvlink_crc_flit=values.get(pynvml.NVML_FI_DEV_NVLINK_CRC_FLIT_ERROR_COUNT_TOTAL),
                nvlink_crc_data=values.get(pynvml.NVML_FI_DEV_NVLINK_CRC_DATA_ERROR_COUNT_TOTAL),
            )
        except GpuLostError:
            return GpuReading(gpu, index, lost=True)

    def _reasons(self, handle: Any) -> int | None:
        found: int | None = self._ask(pynvml.nvmlDeviceGetCurrentClocksEventReasons, handle)
        # Drivers before 535 know it by its former name.
        return self._ask(pynvml.nvmlDeviceGetCurrentClocksThrottleReasons, handle) if found is None else found

    def cards(self) -> list[Card]:
        """What names each GPU; of one that is out of reach there is no more than its address."""
        return [Card(gpu, index, *self._names(handle)) for index, (handle, gpu) in enumerate(self._gpus)]

    def _names(self, handle: Any) -> tuple[str, ...]:
        calls = (pynvml.nvmlDeviceGetUUID, pynvml.nvmlDeviceGetSerial, pynvml.nvmlDeviceGetName) if handle else ()
        try:
            return tuple(str(self._ask(call, handle) or "") for call in calls)
        except GpuLostError:
            return ()

    def watch(self) -> None:
        """Ask for the events of all GPUs; only what happens after this is told."""
        self._set = self._try(pynvml.nvmlEventSetCreate)
        unwatched = []
        for handle, gpu in self._gpus:
            try:
                wanted = self._try(pynvml.nvmlDeviceGetSupportedEventTypes, handle) & sum(EVENTS) if handle else 0
                self._try(pynvml.nvmlDeviceRegisterEvents, handle, wanted, self._set) if wanted else None
            except NvmlError:
                wanted = 0
            if not wanted & pynvml.nvmlEventTypeXidCriticalError:
                unwatched.append(gpu or "one out of reach")
        self._unwatched = tuple(unwatched)

    def wait(self, timeout_s: float) -> GpuEvent | None:
        """Wait for the next event; None where there was none in that time.

        Raises:
            NvmlError: events may have been lost; `watch` anew.
        """
        late = self._clock() + timeout_s
        try:
            data = self._try(pynvml.nvmlEventSetWait, self._set, int(timeout_s * 1000), expected=late)
        except NvmlError as error:
            if isinstance(error.__cause__, pynvml.NVMLError) and error.__cause__.value == pynvml.NVML_ERROR_TIMEOUT:
                return None
            raise
        name = EVENTS.get(data.eventType, f"event {data.eventType:#x}")
        return GpuEvent(self._whose(data.device), name, data.eventData if name == "XidCriticalError" else None)

    def _whose(self, device: Any) -> str:
        place = _place(device)
        return next((gpu for handle, gpu in self._gpus if handle and _place(handle) == place), "")

    def _ask(self, function: Callable[..., T], *arguments: Any) -> T | None:
        """Call, where None stands for every reason why there is no answer but a lost GPU or a lost library."""
        try:
            return self._try(function, *arguments)
        except GpuLostError:
            raise
        except NvmlError as error:
            if isinstance(error.__cause__, pynvml.NVMLError) and error.__cause__.value in _GONE:
                raise
            return None

    def _try(self, function: Callable[..., T], *arguments: Any, expected: float = 0.0) -> T:
        self._call = (function.__name__, max(expected, self._clock()))
        try:
            return function(*arguments)
        except pynvml.NVMLError as error:
            kind = GpuLostError if error.value == pynvml.NVML_ERROR_GPU_IS_LOST else NvmlError
            raise kind(f"{function.__name__}: {error}") from error
        finally:
            self._call = None


def address(bus_id: str | bytes) -> str:
    """A PCI address as the driver's kernel lines have it: `00000000:43:00.0` is `0000:43:00`.

    The domain has at least four digits, and more only where it is that large.
    """
    text = bus_id.decode(errors="replace") if isinstance(bus_id, bytes) else bus_id
    domain, _, rest = text.strip().lower().partition(":")
    try:
        return f"{int(domain, 16):04x}:{rest.partition('.')[0]}"
    except ValueError:
        return text


def _place(handle: Any) -> int | None:
    return ctypes.cast(handle, ctypes.c_void_p).value


def _value(field: Any) -> int | None:
    if field.nvmlReturn != pynvml.NVML_SUCCESS or field.valueType not in _MEMBER:
        return None
    return int(getattr(field.value, _MEMBER[field.valueType]))


def _throttle(reasons: int | None) -> tuple[str, ...] | None:
    return None if reasons is None else tuple(name for bit, name in THROTTLE.items() if reasons & bit)
