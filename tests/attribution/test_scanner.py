"""The scanner: bounded, tolerant, and the same with both engines."""

import bz2
import gzip
import io
import lzma
import re
import tracemalloc
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from relight.attribution import unpacking
from relight.attribution.automaton import SMALL, PatternError, ReAutomaton, build
from relight.attribution.blocks import LONGEST_LINE, blocks
from relight.attribution.catalogue import load
from relight.attribution.hyperscan_automaton import HyperscanAutomaton
from relight.attribution.keywords import keywords, literal, needed
from relight.attribution.patterns import detector
from relight.attribution.reading import read_log
from relight.attribution.scanner import DETAILED, Scanner
from relight.attribution.sources import LogSource
from relight.domain.evidence import Source

SCANNERS = {fast: Scanner(load(), fast=fast) for fast in (True, False)}
ECC = b"[rank1]: RuntimeError: CUDA error: uncorrectable ECC error encountered\n"
PATTERNS = SCANNERS[True].patterns
EXAMPLES = [
    line.encode()
    for path in sorted((Path(__file__).parent / "examples").glob("*.yaml"))
    for lines in yaml.safe_load(path.read_text("utf-8")).values()
    for line in lines
]
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


@given(st.lists(st.sampled_from(PIECES + EXAMPLES) | st.binary(max_size=30), max_size=25))
@settings(deadline=None, max_examples=150)
def test_both_engines_agree(parts):
    """hyperscan and `re` report the same lines for any bytes, packed or not."""
    data = b"log\n" + b"".join(parts)
    fast = told(found(data, fast=True))
    assert fast == told(found(data, fast=False))
    assert fast == told(found(bz2.compress(data), fast=False))


def told(matches):
    """Without marks: of those that are wanted once a block, another line may be reported."""
    return [match for match in matches if not match[0].startswith("@")]


@given(st.lists(st.sampled_from(PIECES + EXAMPLES + [b" step 1/9 | loss 2\n"] * 40), max_size=60), st.data())
@settings(deadline=None, max_examples=60)
def test_a_log_cut_off_anywhere_is_read_as_far_as_it_goes(parts, data):
    """Plain or packed, cut at any byte: no error but an OSError, and all lines before the cut are found."""
    text = b"\n".join(parts) + b"\n"
    pack = data.draw(st.sampled_from([bytes, gzip.compress, bz2.compress, lzma.compress]))
    packed = pack(text)
    cut = packed[: data.draw(st.integers(0, len(packed)))]
    seen = []
    with suppress(OSError):
        seen.extend((match.signature, match.line_no) for match in SCANNERS[True].scan(io.BytesIO(cut)))
    whole = found(text)
    before = [one for one in seen if one[1] < seen[-1][1]]
    assert told(before) == told(whole)[: len(told(before))]
    assert cut != packed or seen == whole


def source(data):
    """A job's log of these bytes."""
    return LogSource("log", Source.JOB_LOG, None, lambda: io.BytesIO(data))


@given(st.binary(max_size=3000))
@settings(max_examples=60)
def test_blocks_lose_nothing(data):
    """Blocks hold all the bytes of the stream, in order (escapes, NULs, marks of encodings and packed data apart)."""
    packed = any(kind.begins.match(data) for kind in unpacking._KINDS)
    if not packed and b"\x1b" not in data and not data.startswith((b"\xff\xfe", b"\xfe\xff", b"\xef\xbb\xbf")):
        assert b"".join(block.raw for block in blocks(io.BytesIO(data))) == data.replace(b"\0", b"")


@pytest.mark.parametrize("fast", [True, False], ids=["hyperscan", "re"])
@pytest.mark.parametrize(
    "encode",
    [
        lambda text: b"\xff\xfe" + text.encode("utf-16-le"),
        lambda text: text.encode("utf-16-be"),
        lambda text: text.encode("utf-8-sig"),
        lambda text: text.encode("utf-32"),
        lambda text: text.replace("fine", "caf\xe9 \xdf").encode("latin-1"),
        lambda text: b"\0" * 5_000 + text.encode().replace(b"\n", b"\n\0\0\0"),
        lambda text: text.encode().replace(b"\n", b"\xff\xfe\xf0\n"),
    ],
    ids=["utf-16 with mark", "utf-16 without", "utf-8 with mark", "utf-32", "latin-1", "holes", "invalid"],
)
def test_any_encoding(encode, fast):
    """A failure is found in any encoding that ASCII can be read in, anchored patterns as well."""
    data = encode("fine\nsrun: error: n2: task 3: Killed\n" + ECC.decode())
    assert [(name, line) for name, line in found(data, fast) if name == "CUDA_ECC"] == [("CUDA_ECC", 3)]
    assert any(line == 2 for _, line in found(data, fast))


def test_echoes_are_counted_not_kept():
    """Of many thousand echoes a few lines are kept and all are counted."""
    log = LogSource("big", Source.JOB_LOG, None, lambda: io.BytesIO(ECC * (DETAILED + 500)))
    scan = read_log(log, SCANNERS[True])
    assert scan.counts["CUDA_ECC"] == DETAILED + 500
    assert len(list(scan.found["CUDA_ECC"].kept())) < 100


@pytest.mark.parametrize("fast", [True, False], ids=["hyperscan", "re"])
def test_a_storm_does_not_hide_what_comes_in_it(fast):
    """While echoes are only counted, a line of another kind is found with its number."""
    lines = DETAILED + 10_000
    data = ECC * lines + b"srun: error: n2: task 3: Killed\n" + ECC * lines
    scan = read_log(source(data), SCANNERS[fast])
    assert scan.counts["CUDA_ECC"] == 2 * lines
    others = {match.line_no for name, found in scan.found.items() if name != "CUDA_ECC" for match in found.first}
    assert others == {lines + 1}


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


@pytest.mark.parametrize(
    ("pattern", "expected"),
    [
        (r"(?:No route|Connection timed out) to", {b"no route", b"connection timed out"}),
        (r"[Tt]imeout of (?:a|b)", {b"timeout of "}),
        (r"one|two", {b"one", b"two"}),
        (r"\bEROFS\b", {b"erofs"}),
        (r"\d+ (?:x|\w)", set()),
    ],
)
def test_one_of_these_texts_is_in_every_match(pattern, expected):
    """Of alternatives one text each."""
    assert set(needed(pattern)) == expected


@pytest.mark.parametrize(
    ("pattern", "expected"),
    [
        (r"SeqNum=(?P<seq>\d+)", r"SeqNum=\d"),
        (r"error: (?P<msg>.{0,160})", r"error: "),
        (r"error: (?P<msg>.{1,160})", r"error: ."),
        (r"ends \w+.{0,80}", r"ends \w"),
        (r"a literal \.*", r"a literal \.*"),
        (r"\d+", r"\d"),
        (r".{0,9}", r".{0,9}"),
    ],
)
def test_detector_leaves_out_what_a_match_only_captures(pattern, expected):
    """Each end that a match can have would be a hit."""
    assert detector(pattern) == expected


def test_no_line_is_lost_on_the_way_to_its_pattern():
    """Whatever a pattern of the catalogue matches, hyperscan's shorter one matches, and it holds a keyword."""
    words, without = KEYWORDS
    for pattern in PATTERNS:
        regex, shorter = re.compile(pattern.encode()), re.compile(detector(pattern).encode())
        matching = [line for line in EXAMPLES if regex.search(line)]
        assert all(shorter.search(line) for line in matching), pattern
        assert pattern in without or all(any(word in line.lower() for word in words) for line in matching), pattern


KEYWORDS = [[word.encode() for word in keywords(PATTERNS)[0]], keywords(PATTERNS)[1]]


def test_most_patterns_have_a_keyword():
    """Without one they are searched for in all of a log, which many cannot be: write more of what the line says."""
    assert len(KEYWORDS[1]) <= len(PATTERNS) // 50, KEYWORDS[1]


@pytest.mark.parametrize("engine", [HyperscanAutomaton, ReAutomaton])
def test_patterns_see_one_line(engine):
    """No pattern goes on into the next line."""
    patterns = [r"first\s+second", r"first[^x]second", r"first\Wsecond", r"first[\s,]second", r"first\Dsecond"]
    assert list(engine(patterns).hits(b"first\nsecond\n")) == []
    assert {pattern for _, pattern in engine(patterns).hits(b"first second\n")} == {0, 1, 2, 3, 4}


def test_lazy_compiles_when_there_is_much_to_read(monkeypatch, tmp_path):
    """A small log is read at once; hits are the same before and after."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    lazy = build([r"rare \d\d"], lazy=True)
    data = b"common\n" * (SMALL // 14) + b"rare 12\n"
    before = lazy.hits(data)
    assert not list(tmp_path.iterdir())
    assert [lazy.hits(data) for _ in range(3)] == [before] * 3
    assert list(tmp_path.iterdir())


def test_lazy_can_be_prepared(monkeypatch, tmp_path):
    """Before many logs are read by processes: each of them would compile for itself."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    lazy = build([r"rare \d\d"], lazy=True)
    lazy.prepare()
    assert list(tmp_path.iterdir())
    assert lazy.hits(b"rare 12\n") == [(7, 0)]


def test_a_pattern_that_hyperscan_does_not_know_is_told():
    """The message has the pattern and the reason."""
    with pytest.raises(PatternError, match=r"'a\{1,40000\}b\{1,40000\}' cannot be searched for: .*too large"):
        build(["fine", r"a{1,40000}b{1,40000}"], fast=True)


@pytest.mark.timeout(120)
@pytest.mark.parametrize(
    "unit", [b"a", b" ", b"1", b"a ", b"1,", b": ", b"/a.b-", b"error ", b"rank 1 ", b"[", b"\\", b"x=1 "]
)
def test_no_line_takes_for_ever(unit):
    """The longest line that `re` is given, made of what patterns repeat, costs no pattern more than a moment."""
    body = (unit * 4096)[:4000]
    for pattern in PATTERNS:
        regex = re.compile(pattern.encode())
        for head in (b"", *needed(pattern)[:1]):
            regex.search(head + body)


def test_threads_share_a_scanner():
    """Several logs may be read at once with one scanner."""
    data = (b"all is well\n" * 2000 + ECC) * 20
    with ThreadPoolExecutor(8) as pool:
        results = list(pool.map(found, [data] * 8))
    assert all(one == results[0] for one in results)
    assert len(results[0]) == 20
