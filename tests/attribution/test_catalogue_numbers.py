"""The numbers of NVIDIA's drivers: every Xid has its place, NVLink 5 words are decoded, SXids are known."""

import io

import pytest

from relight.attribution.catalogue import load
from relight.attribution.nvlink5 import decode
from relight.attribution.scanner import Scanner
from relight.attribution.xids import TEXT_DECIDES, names_xid, rows, sxids, xids

LINK_EVENT = "NVRM: Xid (PCI:0009:01:00): 149, NETIR_LINK_EVT  Fatal   XC0 i0 Link {} ({} 0x00000000)"


@pytest.fixture(scope="module")
def recognised():
    """The signatures that recognise a line, by the engine that needs no extra."""
    scanner = Scanner(load(), fast=False)
    return lambda line: {match.signature for match in scanner.scan(io.BytesIO(line.encode()))}


def test_each_xid_stands_in_one_entry():
    """All 172 are described, and each is one entry's; those whose text decides are named by several."""
    assert sorted(xids()) == list(range(1, 173))
    for number in xids():
        always = [one.id for one in load().signatures.values() if number in one.xids]
        named = [one.id for one in load().signatures.values() if names_xid(one, number)]
        assert len(always) == (number not in TEXT_DECIDES), number
        assert set(always) <= set(named), number
        assert len(named) >= 2 if number in TEXT_DECIDES else named, number


@pytest.mark.parametrize(
    "line",
    [
        "[  81.2] NVRM: Xid (PCI:0000:1b:00): {}, pid=7, name=python, something",
        "NVRM: Xid (0000:1b:00): {}, Channel 00000001",
        "NVRM: Xid (PCI:0000:1b:00 GPU-I:05): {}, pid=7, something",
        "XidCriticalError: Xid={} on Device=GPU-1-2-3, the device will go unhealthy.",
    ],
    ids=["today", "old driver", "MIG", "Kubernetes"],
)
def test_each_xid_is_recognised(recognised, line):
    """By its own entry and no other's."""
    for one in load().signatures.values():
        for number in one.xids:
            found = recognised(line.format(number)) & {other.id for other in load().signatures.values() if other.xids}
            assert found == {one.id}, number


@pytest.mark.parametrize(
    ("text", "signature"),
    [
        ("149, NETIR Fatal XC0 i0 Link -1 (0x000fe406 0x0)", "XID_144_150"),
        ("145, pid=7, name=python, RLW_RXPIPE Nonfatal XC0 i0 Link 13 (0x0 0x8)", "XID_144_150_NONFATAL"),
        ("150, MSE_WATCHDOG", "XID_BY_TEXT"),
        ("154, GPU recovery action changed from 0x1 (GPU Reset Required) to 0x0 (None)", "XID_154_NONE"),
        ("154, GPU recovery action changed from 0x0 (None) to 0x2 (Node Reboot Required)", "XID_154"),
        ("187, not known yet", "XID_UNLISTED"),
    ],
)
def test_what_the_text_decides(recognised, text, signature):
    """The words after the number, not the words about what was before."""
    assert recognised(f"NVRM: Xid (PCI:0000:1b:00): {text}") == {signature}


@pytest.mark.parametrize("number", [63, 92, 94, 109, 121])
def test_disagreement_is_told(number):
    """Where sources judge an Xid differently, its row says who says what."""
    assert "NVIDIA" in xids()[number].sources_disagree


def test_every_nvlink5_row_is_found():
    """A line made of a row's own bits, in either numbering, and of its status is decoded as that row."""
    for number, unit, first, second, status, resolution, investigate, severity, *_ in rows("nvlink5.tsv"):
        for pattern in (first, second):
            word = f"0x{int(pattern.replace('-', '0'), 2):08x}"
            line = f"Xid (PCI:0000:1b:00): {number}, {unit.split('/')[0]} Fatal XC0 i0 Link 03 ({word} {status} 0x0)"
            found = decode(line)
            assert found is not None, line
            assert (found.xid, found.unit.split("/")[0], found.link) == (int(number), unit.split("/")[0], 3)
            assert (found.resolution, found.investigate, found.severity) == (resolution, investigate, severity)


@pytest.mark.parametrize(
    ("line", "resolution", "investigate", "fatal"),
    [
        (LINK_EVENT.format("01", "0x021425c6"), "RESET_GPU", "INVESTIGATE_PEER_DEVICE", True),
        (LINK_EVENT.format("00", "0x026001c6"), "IGNORE", "INVESTIGATE_SW_USER", True),
        ("Xid (PCI:1:0:0): 149, NETIR_LINK_EVT Fatal XC 1 i 2 Link 01 [0x016415c6]", "RESET_GPU", None, True),
        ("Xid (PCI:1:0:0): 145, RLW_RXPIPE Nonfatal XC0 i0 Link 13 (0x0409a0c2 0x00000008)", "IGNORE", None, False),
    ],
)
def test_nvlink5_lines_of_drivers(line, resolution, investigate, fatal):
    """With more bits set than a row names, and in the form of drivers before R575, which print no status."""
    found = decode(line)
    assert found is not None
    assert (found.resolution, found.fatal) == (resolution, fatal)
    assert investigate in {None, found.investigate}


@pytest.mark.parametrize(
    "line",
    [
        "step 149 | loss 2.0",
        LINK_EVENT.format("01", "0xffffffff"),
        "Xid (PCI:1:0:0): 145, RLW_RXPIPE Nonfatal XC0 i0 Link 13 (0x0409a0c2 0x12345678)",
        "Xid (PCI:1:0:0): 145, RLW_REMAP Nonfatal XC0 i0 Link 13 (0x00000082)",
        "Xid (PCI:1:0:0): 149, NETIR_LINK_EVT Fatal XC0 i0 Link 01 (0x" + "1" * 5000,
    ],
    ids=["no such line", "no such bits", "no such status", "status decides, and is not printed", "endless"],
)
def test_nvlink5_says_nothing_where_it_knows_nothing(line):
    """Unknown is an answer."""
    assert decode(line) is None


def test_sxids():
    """Those of the manual, with what they are to the fabric."""
    severities = {number: one.severity for number, one in sxids().items()}
    assert severities[20034] == "fatal"
    assert severities[22013] == severities[12028] == "non-fatal"
    assert severities[22003] == "always fatal"
    assert set(severities.values()) == {"non-fatal", "fatal", "always fatal", "notable"}
