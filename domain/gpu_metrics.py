"""GPU faults told by DCGM's fields as a monitoring store keeps them: what each pair of neighbouring samples says.

No state of our own: the store remembers what was before. A value that stands is no news, however bad; its change is.

Facts (dcgm-exporter's counter files and README, DCGM's `dcgm_fields.h`):
- `DCGM_FI_DEV_XID_ERRORS` shows the *last* Xid for ever after, also when all is well again, and 0 after the exporter's
  restart. The same Xid twice in a row cannot be told from once. Of two between two scrapes only the second is seen.
- Volatile ECC counters and those of NVLink begin at 0 again when the driver is loaded.
- A field that a GPU does not have, or that cannot be read now, is left out: its absence says nothing.
"""

from collections.abc import Collection, Iterable, Iterator, Sequence
from datetime import datetime, timedelta
from enum import StrEnum
from itertools import pairwise
from math import isfinite
from typing import NamedTuple

from relight.domain.base import clip, few
from relight.domain.reports import FaultKind, NodeFault

TOGETHER = timedelta(seconds=90)
"""Two samples further apart are no neighbours: what happened between them may have happened to anybody. Also the age
up to which a sample is fresh. A store that scrapes less often than that is blind."""
LINK_ERRORS_PER_SECOND = 100.0
"""Replays and CRC errors are repaired by the link; they matter at this rate (DCGM, dcgm_gpu_hardware_limits.h)."""
HELD_BACK = {
    0x08: "hw_slowdown",
    0x20: "sw_thermal_slowdown",
    0x40: "hw_thermal_slowdown",
    0x80: "hw_power_brake_slowdown",
}
"""Clock event reasons that a healthy GPU at work does not have (nvml.h). The power cap it has all the time."""
REASONS_FROM, REASONS_BELOW = 0x08, 0x100
"""All of these bits lie in here."""
_LARGEST_XID = 999
_TEXT = 200
_NAMED = 3


class Reading(StrEnum):
    """What of a field's values is looked at."""

    VALUE = "value"
    """Whether it has become another one."""
    RISE = "rise"
    REASONS = "reasons"
    """Whether any of the bits of `HELD_BACK` is set."""


class Field(NamedTuple):
    """A field of DCGM, under the name that dcgm-exporter gives its metric."""

    name: str
    kind: FaultKind
    reading: Reading
    words: str
    rate: float = 0.0
    """Rises of fewer in a second are everyday."""


XID = Field("DCGM_FI_DEV_XID_ERRORS", FaultKind.XID, Reading.VALUE, "Xid")
"""In the exporter's default set: a node shows its GPUs by it."""
_REMAP_FAILURE = Field("DCGM_FI_DEV_ROW_REMAP_FAILURE", FaultKind.ROW_REMAP, Reading.VALUE, "row remapping failure")

FIELDS = (
    XID,
    _REMAP_FAILURE,
    Field(
        "DCGM_FI_DEV_UNCORRECTABLE_REMAPPED_ROWS",
        FaultKind.ROW_REMAP,
        Reading.RISE,
        "rows remapped for uncorrectable errors",
    ),
    Field("DCGM_FI_DEV_ECC_DBE_VOL_TOTAL", FaultKind.ECC, Reading.RISE, "uncorrected ECC errors (volatile)"),
    Field("DCGM_FI_DEV_NVLINK_RECOVERY_ERROR_COUNT_TOTAL", FaultKind.NVLINK, Reading.RISE, "NVLink recovery errors"),
    *(
        Field(f"DCGM_FI_DEV_NVLINK_{name}_ERROR_COUNT_TOTAL", FaultKind.NVLINK, Reading.RISE, words, rate)
        for name, words, rate in (
            ("REPLAY", "NVLink replay errors", LINK_ERRORS_PER_SECOND),
            ("CRC_FLIT", "NVLink CRC flit errors", LINK_ERRORS_PER_SECOND),
            ("CRC_DATA", "NVLink CRC data errors", LINK_ERRORS_PER_SECOND),
        )
    ),
    # One field under two names: the newer is DCGM's since 3.3.
    Field("DCGM_FI_DEV_CLOCKS_EVENT_REASONS", FaultKind.THROTTLED, Reading.REASONS, "clocks held down"),
    Field("DCGM_FI_DEV_CLOCK_THROTTLE_REASONS", FaultKind.THROTTLED, Reading.REASONS, "clocks held down"),
)


class Sample(NamedTuple):
    """One value of one field."""

    at: datetime
    """When it was scraped, by the store's clock."""
    value: float
    text: str = ""
    """What the exporter says of it: `err_msg` of an Xid."""


class Series(NamedTuple):
    """A field of one GPU over some time."""

    field: Field
    node: str
    """As the store names it."""
    gpu: str
    """PCI address `0000:43:00`; where the exporter is too old to tell it, the index."""
    samples: tuple[Sample, ...]


def faults(series: Series) -> Iterator[NodeFault]:
    """What happened in that time, oldest first; the same each time that it is asked, with the same ids."""
    samples = sorted({sample.at: sample for sample in series.samples if isfinite(sample.value)}.values())
    match series.field.reading:
        case Reading.VALUE:
            return _became(series, samples)
        case Reading.RISE:
            return _rose(series, samples)
        case Reading.REASONS:
            return _held_back(series, samples)


def pci_address(label: str) -> str:
    """`0000:43:00` of the exporter's `00000000:43:00.0`, as the kernel's lines have it; empty where it is none."""
    domain, colon, rest = label.partition(":")
    bus, _, device = rest.partition(":")
    number = device.partition(".")[0]
    if not colon or not all(_hexadecimal(part) for part in (domain, bus, number)):
        return ""
    return f"{int(domain, 16):04x}:{bus.lower()}:{number.lower()}"


def _hexadecimal(text: str) -> bool:
    return bool(text) and all(sign in "0123456789abcdefABCDEF" for sign in text)


class NodeNames:
    """Finds Slurm's name of a node in what a label says: `n1`, `n1.cluster.example`, `n1:9400`.

    Args:
        known: Slurm's node names.
    """

    def __init__(self, known: Iterable[str]) -> None:
        self._known = frozenset(known)

    def find(self, label: str) -> str | None:
        """The node's name; None where Slurm has no such node."""
        host = label.rpartition(":")[0] if label.rpartition(":")[2].isdecimal() else label
        return next((name for name in (label, host, host.partition(".")[0]) if name in self._known), None)


def some(names: Collection[str]) -> str:
    """A few of the names, and how many there are."""
    return few(sorted(names), _NAMED)


def too_little(expected: Collection[str], fresh: Collection[str]) -> str:
    """Why too little is seen; empty when enough is.

    One exporter that is down makes nobody blind, nor does a node that is away for repair: half of them do.

    Args:
        expected: nodes that have shown metrics lately.
        fresh: those of them that show metrics now.
    """
    missing = frozenset(expected) - frozenset(fresh)
    if not fresh and not missing:
        return "no node of Slurm's has fresh GPU metrics"
    if 2 * len(missing) < len(expected):
        return ""
    return f"no fresh GPU metrics of {some(missing)}: of {len(missing)} out of {len(expected)} nodes"


def _neighbours(samples: Sequence[Sample]) -> Iterator[tuple[Sample, Sample]]:
    return ((old, new) for old, new in pairwise(samples) if new.at - old.at <= TOGETHER)


def _became(series: Series, samples: Sequence[Sample]) -> Iterator[NodeFault]:
    for old, new in _neighbours(samples):
        if new.value == old.value or not 0 < new.value <= _LARGEST_XID or new.value != int(new.value):
            continue
        if series.field is XID:
            said = clip("".join(sign for sign in new.text if sign.isprintable()), _TEXT)
            number = int(new.value)
            text = f"Xid (PCI:{series.gpu}): {number}, {said + ', ' if said else ''}told by DCGM"
            yield _fault(series, old, new, text).model_copy(update={"xid": number})
        else:
            yield _fault(series, old, new, f"{series.field.words}: yes")


def _rose(series: Series, samples: Sequence[Sample]) -> Iterator[NodeFault]:
    for old, new in _neighbours(samples):
        seconds = (new.at - old.at).total_seconds()
        if new.value > old.value and new.value - old.value >= series.field.rate * seconds:
            text = f"{series.field.words} rose from {old.value:.0f} to {new.value:.0f} within {seconds:.0f} s"
            yield _fault(series, old, new, text)


def _held_back(series: Series, samples: Sequence[Sample]) -> Iterator[NodeFault]:
    """Held in two samples in a row after one in which it was not, and the other way round: short ones are everyday."""
    for before, old, new in zip(samples, samples[1:], samples[2:], strict=False):
        was, began, holds = (_reasons(sample.value) for sample in (before, old, new))
        if new.at - old.at > TOGETHER or old.at - before.at > TOGETHER or bool(began) != bool(holds):
            continue
        if began and not was:
            yield _fault(series, before, new, f"{series.field.words}: {', '.join(holds)}")
        elif was and not began:
            yield _fault(series, before, new, "clocks free again").model_copy(update={"cleared": True})


def _reasons(value: float) -> list[str]:
    return [words for bit, words in HELD_BACK.items() if int(value) & bit]


def _fault(series: Series, old: Sample, new: Sample, text: str) -> NodeFault:
    identity = f"dcgm/{series.field.name}/{series.gpu}/{int(new.at.timestamp() * 1000)}"
    return NodeFault(
        id=clip(identity, 200),
        kind=series.field.kind,
        at=new.at,
        after=old.at,
        text=text,
        source="dcgm",
        gpu=series.gpu,
    )
