"""What samples of DCGM's fields tell: changes, never what stands; and each the same whenever it is asked."""

from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from relight.domain.gpu_metrics import (
    FIELDS,
    TOGETHER,
    NodeNames,
    Sample,
    Series,
    faults,
    pci_address,
    some,
    too_little,
)
from relight.domain.reports import FaultKind

START = datetime(2026, 11, 30, 9, tzinfo=UTC)
GPU = "0000:43:00"
BY_NAME = {field.name.removeprefix("DCGM_FI_DEV_"): field for field in FIELDS}
RISING = [field for field in FIELDS if field.reading == "rise"]


def series(name, *values, every=15.0, texts=()):
    """A field's values, one scrape after the other; None: the scrape did not show it."""
    texts = (*texts, *[""] * len(values))
    samples = [
        Sample(START + timedelta(seconds=number * every), value, texts[number])
        for number, value in enumerate(values)
        if value is not None
    ]
    return Series(BY_NAME[name], "n1", GPU, tuple(samples))


def told(name, *values, **options):
    return [fault.text for fault in faults(series(name, *values, **options))]


@pytest.mark.parametrize(
    ("values", "xids"),
    [
        ((0, 0, 79, 79, 79), [79]),
        ((79, 79, 79), []),
        ((79,), []),
        ((31, 79), [79]),
        ((0, 79, 45), [79, 45]),
        ((79, 0, 0), []),
        ((79, 0, 79), [79]),
        ((0, None, 79), [79]),
        ((None, 79), []),
        ((0, float("nan"), 0), []),
        ((0, -1), []),
        ((0, 7.5), []),
        ((0, 1e18), []),
    ],
)
def test_an_xid_is_news_when_another_one_is_shown(values, xids):
    """What is shown at the first look is old, it stays for ever, and the exporter's restart shows 0."""
    assert [fault.xid for fault in faults(series("XID_ERRORS", *values))] == xids


def test_a_fault_of_an_xid():
    """In the form of the driver's own line, between two times, under an id that does not depend on who asks when."""
    (fault,) = faults(series("XID_ERRORS", 0, 79, texts=("", "fallen off\x1b the bus")))
    assert (fault.kind, fault.source, fault.gpu, fault.xid) == (FaultKind.XID, "dcgm", GPU, 79)
    assert (fault.after, fault.at) == (START, START + timedelta(seconds=15))
    assert fault.text == f"Xid (PCI:{GPU}): 79, fallen off the bus, told by DCGM"
    (later,) = faults(series("XID_ERRORS", 0, 79, 79, 79))
    assert later.id == fault.id


def test_samples_far_apart_are_no_neighbours():
    """An exporter that was away: whom the fault hit meanwhile is not known."""
    limit = TOGETHER.total_seconds()
    assert told("XID_ERRORS", 0, 79, every=limit)
    assert not told("XID_ERRORS", 0, 79, every=limit + 1)
    assert not told("ECC_DBE_VOL_TOTAL", 0, 1, every=limit + 1)


@pytest.mark.parametrize("field", RISING, ids=lambda field: field.name)
def test_a_counter_that_falls_tells_nothing(field):
    """The driver was loaded anew."""
    name = field.name.removeprefix("DCGM_FI_DEV_")
    assert not told(name, 10_000, 0, 0)
    assert len(told(name, 0, 10_000, 10_000)) == 1


def test_counters_say_from_what_to_what():
    """Each rise is one fault."""
    assert told("ECC_DBE_VOL_TOTAL", 1, 1, 2, 4) == [
        "uncorrected ECC errors (volatile) rose from 1 to 2 within 15 s",
        "uncorrected ECC errors (volatile) rose from 2 to 4 within 15 s",
    ]


@pytest.mark.parametrize("name", ["REPLAY", "CRC_FLIT", "CRC_DATA"])
@pytest.mark.parametrize(("per_second", "said"), [(99, 0), (100, 1)])
def test_link_errors_that_are_repaired_matter_at_a_rate(name, per_second, said):
    """Some happen on every healthy link; a recovery does not."""
    assert len(told(f"NVLINK_{name}_ERROR_COUNT_TOTAL", 5, 5 + 15 * per_second)) == said
    assert len(told("NVLINK_RECOVERY_ERROR_COUNT_TOTAL", 5, 6)) == 1


def test_a_failed_remapping_is_told_once():
    """Its being over again is none."""
    assert told("ROW_REMAP_FAILURE", 0, 1, 1, 0) == ["row remapping failure: yes"]


@pytest.mark.parametrize("name", ["CLOCKS_EVENT_REASONS", "CLOCK_THROTTLE_REASONS"])
@pytest.mark.parametrize(
    ("values", "said"),
    [
        ((0, 0x40, 0x40, 0x40), ["clocks held down: hw_thermal_slowdown"]),
        ((0, 0x48, 0xC, 0), ["clocks held down: hw_slowdown"]),
        ((0, 0x40, 0, 0x40, 0), []),
        ((0, 0x1, 0x4, 0x5, 0x10), []),
        ((0x40, 0x40, 0x40), []),
        ((0, 0x20, 0x20, 0, 0, 0), ["clocks held down: sw_thermal_slowdown", "clocks free again"]),
    ],
)
def test_clocks_held_down_in_two_samples_in_a_row(name, values, said):
    """Not those of an idle GPU, nor the power cap; a short time is everyday."""
    assert told(name, *values) == said


def test_clocks_free_again_clear_what_was_told():
    """As an agent does it."""
    assert [fault.cleared for fault in faults(series("CLOCKS_EVENT_REASONS", 0, 8, 8, 0, 0))] == [False, True]


@given(st.lists(st.sampled_from([0, 0, 31, 79]), max_size=12), st.data())
def test_a_part_of_the_samples_tells_a_part_of_the_faults(values, data):
    """So looks may overlap, and a worker that starts anew tells nothing twice."""
    whole = series("XID_ERRORS", *values)
    first = data.draw(st.integers(0, len(values)))
    part = whole._replace(samples=whole.samples[first:])
    ids = {fault.id for fault in faults(whole)}
    assert {fault.id for fault in faults(part)} <= ids
    shuffled = data.draw(st.permutations(whole.samples))
    assert {fault.id for fault in faults(whole._replace(samples=tuple(shuffled)))} == ids


@pytest.mark.parametrize(
    ("label", "address"),
    [
        ("00000000:43:00.0", "0000:43:00"),
        ("00000001:CA:00.0", "0001:ca:00"),
        ("0000:43:00", "0000:43:00"),
        ("", ""),
        ("nvidia0", ""),
        ("x:43:00.0", ""),
    ],
)
def test_pci_addresses_are_written_as_the_kernel_does(label, address):
    """Evidence from metrics and from the kernel's log meets by them."""
    assert pci_address(label) == address


@pytest.mark.parametrize(
    ("label", "node"),
    [
        ("n1", "n1"),
        ("n1:9400", "n1"),
        ("n1.cluster.example", "n1"),
        ("n1.cluster.example:9400", "n1"),
        ("n2.long", "n2.long"),
        ("n2", None),
        ("10.0.0.1:9400", None),
        ("", None),
        ("n1x", None),
    ],
)
def test_nodes_are_found_by_slurms_names(label, node):
    """With or without domain and port; a name that Slurm has itself wins."""
    assert NodeNames(["n1", "n2.long", "login"]).find(label) == node


@pytest.mark.parametrize(
    ("expected", "fresh", "blind"),
    [(0, 0, True), (1, 1, False), (1, 0, True), (4, 3, False), (4, 2, True), (5, 3, False), (100, 0, True)],
)
def test_blind_when_half_of_the_nodes_are_not_seen(expected, fresh, blind):
    """One exporter that is down blinds nobody."""
    names = [f"n{number:03}" for number in range(expected)]
    assert bool(too_little(names, names[:fresh])) is blind


def test_names_are_counted_where_there_are_many():
    """A log line is no list."""
    assert some(["b", "a"]) == "a, b"
    assert some([f"n{number}" for number in range(10)]) == "n0, n1, n2 and 7 more"
