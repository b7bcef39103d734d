"""GPUs of an attempt whose SM clock is lastingly lower than their peers'. Pure.

A GPU is compared only while it is at work: an idle one clocks down by itself. Not every clock that is lower is a
fault: a heavier load under the same power cap lowers it as well, so this explains a slow-down and condemns nothing.
"""

import math
from collections.abc import Iterable, Mapping
from datetime import datetime
from statistics import median
from typing import NamedTuple

from relight.domain.evidence import Evidence, Source
from relight.domain.reports import GpuNow

SLOW_CLOCK = "SLOW_CLOCK"
"""Signature of the evidence that a GPU clocks lower than its peers."""
LOWER = 0.90
"""Below this share of the peers' median a clock is lower: steps then take a tenth longer, which is what is told."""
AT_WORK = 0.5
"""Utilisation from which on a GPU is compared."""
LASTING = 2
"""Samples in a row in which it must be lower: the last one, up to a quarter of a minute ago, and now."""
PEERS = 4
SHARE = 0.25
"""When more of the peers than this are lower, there is no crowd to compare with."""
MOST_NAMED = 3


class Low(NamedTuple):
    """A GPU whose clock is lower now."""

    samples: int
    mhz: float
    peers: float
    """Their median."""


class Clocks(NamedTuple):
    """Those that are lower now; nobody where it cannot be told."""

    low: Mapping[tuple[str, str], Low] = {}
    """By node and PCI address."""

    def with_beats(self, beats: Mapping[str, Iterable[GpuNow]]) -> "Clocks":
        """After one sample more of all the attempt's nodes, by node."""
        known = {
            (node, gpu.gpu): gpu.sm_clock_mhz
            for node, gpus in beats.items()
            for gpu in gpus
            if gpu.sm_clock_mhz and (gpu.utilisation or 0.0) >= AT_WORK and math.isfinite(gpu.sm_clock_mhz)
        }
        if len(known) < PEERS:
            return Clocks()
        middle = median(known.values())
        low = {gpu: mhz for gpu, mhz in known.items() if mhz < LOWER * middle}
        if len(low) > SHARE * len(known):
            return Clocks()
        before = {gpu: old.samples for gpu, old in self.low.items()}
        return Clocks({gpu: Low(before.get(gpu, 0) + 1, mhz, middle) for gpu, mhz in low.items()})

    def evidence(self, now: datetime) -> tuple[Evidence, ...]:
        """The slowest that last, each with its node."""
        lasting = sorted((each.mhz / each.peers, gpu) for gpu, each in self.low.items() if each.samples >= LASTING)
        found = []
        for share, (node, gpu) in lasting[:MOST_NAMED]:
            each = self.low[node, gpu]
            text = f"GPU {gpu} of {node} runs at {each.mhz:.0f} MHz, its peers at {each.peers:.0f} MHz ({share:.0%})"
            found.append(Evidence(source=Source.ACTIVITY, text=text, signature=SLOW_CLOCK, node=node, gpu=gpu, at=now))
        return tuple(found)
