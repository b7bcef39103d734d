"""Xid 144 to 150: what the driver's words in hexadecimal say about an NVLink 5 fault.

The line ends in words, for example `149, NETIR_LINK_EVT Fatal XC0 i0 Link 01 (0x021425c6 0x00000000 ...)`: the first is
intrinfo, the second the error status. NVIDIA's Xid catalogue has a row for each pattern of bits and status; in the
patterns `-` is any bit. Drivers number the units in two ways (v1, v2); the unit's name in the line tells them apart.
"""

import re
from functools import cache
from typing import NamedTuple

from relight.attribution.xids import rows

_LINE = re.compile(
    r"Xid \((?:PCI:)?[0-9A-Fa-f:.]{5,20}\): (?P<xid>14[4-9]|150)[, ] *"
    r"(?:pid=.{1,20}?, )?(?:name=.{0,40}?, )?(?P<unit>[A-Z][A-Z0-9_]{2,24})\b"
    r".{0,100}?[(\[](?P<intrinfo>0x[0-9A-Fa-f]{1,8})\b(?:[ ,]+(?P<status>0x[0-9A-Fa-f]{1,8})\b)?"
)
_LINK = re.compile(r"\bLink (\d+)")
_BITS = 32


class Decoded(NamedTuple):
    """What one line says."""

    xid: int
    unit: str
    resolution: str
    """NVIDIA's immediate action: RESET_GPU, IGNORE, or XID_154_EVAL (the Xid 154 that follows says it)."""
    investigate: str
    severity: str
    """`Fatal`, `Link Fatal` or `Non-fatal`."""
    kind: str
    """HW, SW, FW or both; NA where neither."""
    local: str
    """What follows on this GPU; empty for nothing."""
    remote: str
    """What follows at the other end."""
    link: int | None = None

    @property
    def fatal(self) -> bool:
        """True when the GPU or its link is lost until a reset."""
        return self.severity != "Non-fatal"


class _Rule(NamedTuple):
    masks: tuple[tuple[int, int], ...]
    """(bits that count, their values), for v1 and v2."""
    status: int
    said: Decoded

    def fits(self, intrinfo: int, status: int | None) -> bool:
        return status in {None, self.status} and any(intrinfo & mask == value for mask, value in self.masks)


def decode(line: str) -> Decoded | None:
    """What the line says; None when it is no such line, or no row fits.

    Of several rows that fit, the one of the unit that the line names counts; for lines of old drivers, which print no
    error status, the rows of all statuses must agree on the resolution.
    """
    found = _LINE.search(line)
    if found is None:
        return None
    status = int(found["status"], 16) if found["status"] else None
    intrinfo = int(found["intrinfo"], 16)
    fitting = [rule for rule in _rules() if rule.said.xid == int(found["xid"]) and rule.fits(intrinfo, status)]
    named = [rule for rule in fitting if _same_unit(found["unit"], rule.said.unit)]
    answers = [rule.said for rule in named or fitting]
    if len({(said.resolution, said.severity) for said in answers}) != 1:
        return None
    link = _LINK.search(found[0])
    return answers[0]._replace(link=int(link[1]) if link else None)


def _same_unit(printed: str, names: str) -> bool:
    return printed in names.split("/")


@cache
def _rules() -> tuple[_Rule, ...]:
    return tuple(
        _Rule((_mask(v1), _mask(v2)), int(status, 16), Decoded(int(xid), unit, does, look, severity, kind, here, there))
        for xid, unit, v1, v2, status, does, look, severity, kind, here, there in rows("nvlink5.tsv")
    )


def _mask(pattern: str) -> tuple[int, int]:
    if len(pattern) != _BITS:
        raise ValueError(f"{pattern!r} has {len(pattern)} bits, not {_BITS}")
    mask = int("".join("0" if bit == "-" else "1" for bit in pattern), 2)
    return mask, int(pattern.replace("-", "0"), 2)
