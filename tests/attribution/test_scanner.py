"""The scanner: bounded, tolerant, and the same with both engines."""

import gzip
import io
import tracemalloc
from concurrent.futures import ThreadPoolExecutor

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from relight.attribution.automaton import literal
from relight.attribution.blocks import LONGEST_LINE, blocks
from relight.attribution.catalogue import load
from relight.attribution.reading import read_log
from relight.attribution.scanner import DETAILED, Scanner
from relight.attribution.sources import LogSource
from relight.domain.evidence import Source

SCANNERS = {fast: Scanner(load(), fast=fast) for fast in (True, False)}
ECC = b"[rank1]: RuntimeError: CUDA error: uncorrectable ECC error encountered\n"
PIECES = [
    b"CUDA out of memory. Tried to allocate 2.00 GiB",
    b"srun: error: n2: task 3: Killed",
    b"ValueError: no",
    b"\x1b[31m",
    b"\x00\xff\xfe",
    b"\r",
    b"\n",
    b"[rank7]: ",
    b"NVRM: Xid (PCI:0000:1b:00): 79, gone",
    b" step 12/100 | loss 0.5",
    b"LOSS IS NAN ",
]


class Endless(io.RawIOBase):
    """A stream of one line that never ends, until `size` bytes."""

    def __init__(self, size):
        self.left = size

    def read(self, size=-1):
        """The next piece of the line."""
        taken = min(size, self.left)
        self.left -= taken
        return b"x" * taken


def found(data, fast=True):
    """Signature and line number of every match."""
    return [(match.signature, match.line_no) for match in SCANNERS[fast].scan(io.BytesIO(data)) if match.line_no]


def test_giant_line_stays_in_bounds():
    """A line of 64 MiB without an end is read in constant memory."""
    tracemalloc.start()
    assert list(SCANNERS[True].scan(Endless(64 << 20))) == []
    assert tracemalloc.get_traced_memory()[1] < 16 << 20
    tracemalloc.stop()


def test_giant_line_is_split():
    """What stands at the end of a giant line is still found."""
    names = [name for name, _ in found(b"x" * (5 * LONGEST_LINE) + b" " + ECC)]
    assert names == ["CUDA_ECC"]


def test_line_numbers_count_newlines_only():
    """Line numbers are those of an editor: a progress bar's carriage returns do not count."""
    data = b"first\r\n10%\r20%\r30%\n" + ECC
    assert found(data) == [("CUDA_ECC", 3)]


def test_line_numbers_across_blocks():
    """Line numbers go on over blocks."""
    assert found(b"all is well\n" * 200_000 + ECC) == [("CUDA_ECC", 200_001)]


@pytest.mark.parametrize("fast", [True, False], ids=["hyperscan", "re"])
def test_escapes_do_not_hide_a_line(fast):
    """Colour codes inside a message are taken out before the search, and are not in the text."""
    (match,) = SCANNERS[fast].scan(io.BytesIO(b"\x1b[31mRuntimeError: CUDA error: uncorrect\x1b[0mable ECC error\n"))
    assert match.text == "RuntimeError: CUDA error: uncorrectable ECC error"


@given(st.lists(st.sampled_from(PIECES) | st.binary(max_size=30), max_size=25))
@settings(deadline=None, max_examples=150)
def test_both_engines_agree(parts):
    """hyperscan and `re` report the same lines for any bytes."""
    data = b"log\n" + b"".join(parts)
    assert found(data, fast=True) == found(data, fast=False) or _only_marks_differ(data)


def _only_marks_differ(data):
    """Marks that are wanted once a block may be reported at another line."""
    keep = [[one for one in found(data, fast) if not one[0].startswith("@")] for fast in (True, False)]
    return keep[0] == keep[1]


@given(st.binary(max_size=3000))
@settings(deadline=None, max_examples=60)
def test_blocks_lose_nothing(data):
    """Blocks hold all the bytes of the stream, in order (escapes and gzip apart)."""
    if b"\x1b" not in data and not data.startswith(b"\x1f\x8b\x08"):
        assert b"".join(block.raw for block in blocks(io.BytesIO(data))) == data


def test_gzip_is_read():
    """A rotated, packed log is read as it is."""
    assert found(gzip.compress(b"fine\n" + ECC)) == [("CUDA_ECC", 2)]


@pytest.mark.parametrize("data", [b"\x1f\x8b\x08" + bytes(range(256)), gzip.compress(ECC * 5000)[:60]])
def test_damaged_gzip_is_told(data):
    """A damaged packed log is an error of that log, not of the diagnosis."""
    scan = read_log(LogSource("a.gz", Source.JOB_LOG, None, lambda: io.BytesIO(data)), SCANNERS[True])
    assert scan.error


def test_echoes_are_counted_not_kept():
    """Of many thousand echoes a few lines are kept and all are counted."""
    log = LogSource("big", Source.JOB_LOG, None, lambda: io.BytesIO(ECC * (DETAILED + 500)))
    scan = read_log(log, SCANNERS[True])
    assert scan.counts["CUDA_ECC"] == DETAILED + 500
    assert len(list(scan.found["CUDA_ECC"].kept())) < 100


@pytest.mark.parametrize(
    ("pattern", "expected"),
    [
        (r"Got completion .{0,40}with (?:status=|error )12\b", b"got completion "),
        (r"(?i:Disk Quota) exceeded", b"disk quota exceeded"),
        (r"a+bcd?e", b"bc"),
        (r"(?P<x>long text)? short", b" short"),
        (r"one|two", b""),
        (r"[abc]xyz\.\d", b"xyz."),
        (r"\*\*\* JOB", b"*** job"),
    ],
)
def test_literal_is_in_every_match(pattern, expected):
    """The text that the slow engine looks for first is one that no match can lack."""
    assert literal(pattern) == expected


def test_threads_share_a_scanner():
    """Several logs may be read at once with one scanner."""
    data = (b"all is well\n" * 2000 + ECC) * 20
    with ThreadPoolExecutor(8) as pool:
        results = list(pool.map(found, [data] * 8))
    assert all(one == results[0] for one in results)
    assert len(results[0]) == 20
