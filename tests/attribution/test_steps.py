"""Steps of a log: the first, and the newest ones, however few there are among other lines."""

import io

import pytest

from relight.attribution.catalogue import load
from relight.attribution.many_logs import LEAST
from relight.attribution.reading import Keep, read_log
from relight.attribution.scanner import Scanner
from relight.attribution.sources import LogSource
from relight.attribution.steps import GLANCE, WAITING
from relight.attribution.unpacking import READ
from relight.domain.evidence import Source

SCANNER = Scanner(load())
OTHER = b"n1:1:2 [0] NCCL INFO Channel 03/16 : 12[4] -> 20[4] [send] via NET/IB/2\n"


def steps(first, last):
    """Lines of these steps."""
    return b"".join(b"step %d/9000 | loss 2.5\n" % number for number in range(first, last + 1))


def others(size):
    """About so many bytes without a step."""
    return OTHER * (size // len(OTHER))


def scanned(data, keep=None):
    """What is read of a log."""
    return read_log(LogSource("log", Source.JOB_LOG, None, lambda: io.BytesIO(data)), SCANNER, keep)


@pytest.mark.parametrize("before", [0, 3 * GLANCE, READ + 3 * GLANCE, 2 * WAITING * READ])
@pytest.mark.parametrize("after", [0, 3 * GLANCE, READ + 3 * GLANCE, (WAITING + 3) * READ])
def test_steps_are_found_wherever_they_are(before, after):
    """A stretch of steps longer than a block, after and before any amount of other lines."""
    scan = scanned(others(before) + steps(1, 20_000) + others(after))
    assert scan.first_step.step <= READ // 20
    assert scan.steps[-1].mark.step == 20_000 or after
    assert [line.mark.step for line in scan.steps] == sorted({line.mark.step for line in scan.steps})
    assert scan.steps[-1].mark.step > 20_000 - 2 * READ // 20


def test_a_few_steps_in_a_short_log_are_found():
    """Even in its middle."""
    scan = scanned(others(READ) + steps(7, 9) + others(READ // 2))
    assert (scan.first_step.step, [line.mark.step for line in scan.steps]) == (7, [7, 8, 9])
    assert set(scan.anchors) == {("step 7", ""), ("step 9", ""), ("startup", "")}


def test_a_last_line_without_its_end_is_one_more_step():
    """It makes a block of its own, and the steps before it still count."""
    scan = scanned(steps(1, 50) + b"step 51/9000 | loss 2.5")
    assert [line.mark.step for line in scan.steps][-3:] == [49, 50, 51]
    assert scan.went_on is not None


@pytest.mark.parametrize("keep", [Keep(), LEAST])
def test_what_training_went_on_after(keep):
    """A line after which a few different steps follow ended nothing; the same step of many ranks is one."""
    oom = b"torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB\n"
    scan = scanned(steps(1, 30) + oom + steps(31, 33) + oom + steps(34, 35) * 40, keep)
    first, second = scan.found["CUDA_OOM"].first[:2]
    assert scan.survived(first)
    assert not scan.survived(second)
    assert len(scan.steps) <= keep.steps
