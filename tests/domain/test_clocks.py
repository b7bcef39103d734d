"""GPUs whose clock is lastingly lower than their peers' explain a slow job, and condemn no node."""

from datetime import UTC, datetime

import pytest

from relight.domain.clocks import SLOW_CLOCK, Clocks
from relight.domain.evidence import Trust
from relight.domain.reports import GpuNow

NOW = datetime(2026, 11, 30, 9, 0, tzinfo=UTC)
PEERS = (1980, 1965, 1980, 1950)


def node(*mhz, busy=1.0):
    return [GpuNow(gpu=f"0000:{n:02x}:00", sm_clock_mhz=each, utilisation=busy) for n, each in enumerate(mhz)]


def told(*samples):
    clocks = Clocks()
    for sample in samples:
        clocks = clocks.with_beats(sample)
    return clocks.evidence(NOW)


def test_a_gpu_that_is_held_down_is_named():
    """With its node, its clock and its peers'."""
    sample = {"n1": node(*PEERS), "n2": node(1980, 1200, 1965, 1980)}
    (found,) = told(sample, sample)
    assert (found.signature, found.node, found.gpu, found.trust) == (SLOW_CLOCK, "n2", "0000:01:00", Trust.JOB)
    assert found.text == "GPU 0000:01:00 of n2 runs at 1200 MHz, its peers at 1972 MHz (61%)"


@pytest.mark.parametrize(
    "samples",
    [
        [{"n1": node(*PEERS), "n2": node(1200)}],  # once
        [{"n1": node(*PEERS), "n2": node(1200)}, {"n1": node(*PEERS), "n2": node(1980)}],  # over
        [{"n1": node(*PEERS), "n2": node(1800)}] * 3,  # within a tenth
        [{"n1": node(*PEERS), "n2": node(345, busy=0.0)}] * 3,  # idle
        [{"n1": node(1980, 1980, 1200)}] * 3,  # three are no crowd
        [{"n1": node(1980, 1980, 1980, 1200, 1200)}] * 3,  # two kinds
        [{"n1": node(1980, 1980, 1980, None)}] * 3,
    ],
)
def test_nothing_else_is_told(samples):
    """Neither what does not last, nor what has no peers."""
    assert told(*samples) == ()
