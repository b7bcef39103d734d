"""What NVIDIA's drivers number: Xids of GPUs, SXids of NVSwitches, as facts; the catalogue says what we make of them.

Sources: NVIDIA Xid catalogue (docs.nvidia.com/deploy/xid-errors); NVIDIA Fabric Manager user guide, SXid errors.
Where other public tools disagree with NVIDIA about a number, its row says so.
"""

import csv
import re
from collections.abc import Iterator, Mapping
from functools import cache
from importlib import resources
from typing import NamedTuple

from relight.attribution.signature import Signature

TEXT_DECIDES = frozenset((*range(144, 151), 154))
"""Xids whose number alone does not tell whether anything is wrong: the rest of the driver's line does."""
_NAMED = re.compile(r"(?<!S)Xid .*\(\?P<code>([^()]*)\)")
"""The alternatives that a pattern has for the number in the driver's line."""


class Xid(NamedTuple):
    """One number of the GPU driver's."""

    number: int
    mnemonic: str
    means: str
    immediate: str
    """What NVIDIA says to do at once; empty where it says nothing. `WORKFLOW_*` and `XID_154` depend on more."""
    investigatory: str
    """What it says to look into."""
    sources_disagree: str
    """How sources judge it differently, and what we do; empty where they agree."""


class SXid(NamedTuple):
    """One number of the NVSwitch driver's."""

    number: int
    severity: str
    """`non-fatal`, `fatal` (to the programs on the link), `always fatal` (to the whole fabric), `notable`."""
    means: str


def rows(name: str) -> Iterator[list[str]]:
    """The rows of one of our tables, without its head."""
    text = resources.files("relight.attribution").joinpath(name).read_text("utf-8")
    table = csv.reader(text.splitlines(), delimiter="\t", quoting=csv.QUOTE_NONE)
    next(table)
    return table


@cache
def xids() -> Mapping[int, Xid]:
    """All Xids, by number."""
    return {int(number): Xid(int(number), *rest) for number, *rest in rows("xids.tsv")}


@cache
def sxids() -> Mapping[int, SXid]:
    """All SXids that the manual lists, by number. For others the severity that the line prints is all there is."""
    return {int(number): SXid(int(number), *rest) for number, *rest in rows("sxids.tsv")}


def names_xid(signature: Signature, number: int) -> bool:
    """True when the signature is about this Xid: always, or for some texts of its line."""
    if number in signature.xids:
        return True
    codes = [found[1] for pattern in signature.patterns if (found := _NAMED.search(pattern))]
    return any(re.fullmatch(code, str(number)) for code in codes)
