"""What the power of an attempt's GPUs tells about a silent attempt: whether they still do what they did. Pure.

A collective that waits for a peer spins: the driver calls the GPU busy all the time, and it draws little. Seen by
others: 100 W of the 500 to 690 W of training on H100 at 100 % utilisation (NVIDIA-NeMo/Speech issue 9291), 40 to 47 W
on V100 (horovod issue 3611). So utilisation is no witness of a hang; power that fell and stays low is.
"""

from array import array
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime, timedelta
from math import isfinite, nan
from statistics import median
from typing import NamedTuple

from relight.domain.evidence import Evidence, Source
from relight.domain.reports import GpuNow

POWER_FELL = "POWER_FELL"
"""Signature of the evidence that the GPUs' power fell away."""
ODD_GPU = "ODD_GPU"
"""That a GPU does nothing at all while the others spin."""

EVERY = timedelta(seconds=15)
"""From one sample of the baseline to the next."""
SAMPLES = 20
"""Samples that make the baseline: five minutes."""
LEAST_SAMPLES = 4
FELL = 0.45
"""Below this share of its own baseline a GPU's power has fallen: in logarithms halfway from 1 to a spinning GPU's 0.2.

A long checkpoint lets power fall as well: only beside a silence that the job's rhythm does not explain is it a witness.
"""
WORKS = 0.8
"""From this share on a GPU still does what it did: it may be rank 0 that evaluates while the others wait for it."""
USED = 0.5
"""A GPU that draws less than this share of what the attempt's busiest does is not known to be the attempt's."""
KNOWN = 0.75
"""Share of the GPUs with a baseline whose power must be known now."""
LEAST_BEATS = 2
"""So often a GPU must have been seen since the attempt fell under suspicion."""
IDLE, SPINS = 0.05, 0.9
"""Utilisation of a GPU that does nothing, and of one that spins."""
CROWD = 0.75
LEAST_CROWD = 4
MOST_NAMED = 4

Gpu = tuple[str, str]
"""Node and PCI address."""


class Levels(NamedTuple):
    """Power while the attempt trained: a row of watts for each sample, nan where unknown; 80 bytes a GPU."""

    gpus: tuple[Gpu, ...] = ()
    rows: tuple["array[float]", ...] = ()

    def with_sample(self, watts: Mapping[Gpu, float]) -> "Levels":
        """After one sample more."""
        known = frozenset(self.gpus)
        new = tuple(gpu for gpu in watts if gpu not in known)
        rows = self.rows[-SAMPLES + 1 :]
        if new:
            rows = tuple(row + array("f", [nan] * len(new)) for row in rows)
        gpus = self.gpus + new
        return Levels(gpus, (*rows, array("f", [watts.get(gpu, nan) for gpu in gpus])))

    def baselines(self) -> dict[Gpu, float]:
        """Each GPU's median, of those that the attempt uses."""
        found = {}
        for index, gpu in enumerate(self.gpus):
            known = [row[index] for row in self.rows if isfinite(row[index])]
            if len(known) >= LEAST_SAMPLES:
                found[gpu] = median(known)
        most = max(found.values(), default=0.0)
        return {gpu: level for gpu, level in found.items() if level > 0 and level >= USED * most}


class Held(NamedTuple):
    """What a GPU did at most, and at least, since the attempt fell under suspicion."""

    beats: int
    watts: float
    """At most."""
    least: float
    """Utilisation at least; nan where unknown."""
    most: float
    """Utilisation at most."""


def watts_of(node: str, gpus: Iterable[GpuNow]) -> dict[Gpu, float]:
    """Power by GPU, of those that tell it."""
    return {(node, gpu.gpu): gpu.power_w for gpu in gpus if gpu.power_w is not None}


def with_beat(held: Mapping[Gpu, Held], node: str, gpus: Iterable[GpuNow]) -> dict[Gpu, Held]:
    """After one beat more of a node."""
    after = dict(held)
    for gpu in gpus:
        if gpu.power_w is None:
            continue
        share = nan if gpu.utilisation is None else gpu.utilisation
        old = held.get((node, gpu.gpu)) or Held(0, gpu.power_w, share, share)
        after[node, gpu.gpu] = Held(
            old.beats + 1, max(old.watts, gpu.power_w), min(old.least, share), max(old.most, share)
        )
    return after


def judge(levels: Levels, held: Mapping[Gpu, Held], now: datetime) -> tuple[Evidence, ...]:
    """The evidence that power fell, and which GPU does nothing; nothing where it did not, or is not known.

    Not while one GPU still works: the others may wait for it.
    """
    base = levels.baselines()
    known = {gpu: held[gpu] for gpu in base if gpu in held and held[gpu].beats >= LEAST_BEATS}
    if not known or len(known) < KNOWN * len(base):
        return ()
    shares = [seen.watts / base[gpu] for gpu, seen in known.items()]
    fell = sum(share < FELL for share in shares)
    if max(shares) >= WORKS or 2 * fell <= len(known):
        return ()
    before, after = median(base[gpu] for gpu in known), median(seen.watts for seen in known.values())
    busy = [seen.most for seen in known.values() if isfinite(seen.most)]
    used = f", at a utilisation of {median(busy):.0%}" if busy else ""
    text = f"power of {fell} of {len(known)} GPUs fell: {after:.0f} W instead of {before:.0f} W (medians){used}"
    found = Evidence(source=Source.NVML, text=text, signature=POWER_FELL, at=now)
    return (found, *_idle_ones(known, now))


def still_work(levels: Levels, held: Mapping[Gpu, Held]) -> bool:
    """Whether one GPU is known to do what it did. One that is not used draws the same power all the time."""
    base = levels.baselines()
    return any(held[gpu].watts >= WORKS * base[gpu] and not held[gpu].most <= IDLE for gpu in base if gpu in held)


def _idle_ones(known: Mapping[Gpu, Held], now: datetime) -> Sequence[Evidence]:
    """Those that do nothing while nearly all others spin: what these wait for has not begun there."""
    idle = sorted(gpu for gpu, seen in known.items() if seen.most <= IDLE)
    spins = sum(seen.least >= SPINS for seen in known.values())
    if not idle or len(known) < LEAST_CROWD or spins <= CROWD * len(known) or len(idle) > MOST_NAMED:
        return ()
    text = "GPU {} of {} does nothing ({:.0f} W) while {} others spin"
    # What a GPU does is what the job lets it do: this condemns no node.
    return [
        Evidence(
            source=Source.ACTIVITY,
            text=text.format(gpu, node, known[node, gpu].watts, spins),
            signature=ODD_GPU,
            node=node,
            gpu=gpu,
            at=now,
        )
        for node, gpu in idle
    ]
