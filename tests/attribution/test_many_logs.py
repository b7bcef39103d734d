"""Many logs at once: in order, with bounds, in processes or in threads, and whatever becomes of those."""

import asyncio
import io
import os
import subprocess
import sys
import time
from functools import partial
from pathlib import Path

import pytest

from relight.attribution import many_logs
from relight.attribution.catalogue import load
from relight.attribution.found import KEEP_FIRST
from relight.attribution.many_logs import LEAST, MANY, MOST, read_logs, share
from relight.attribution.reading import read_log
from relight.attribution.scanner import Scanner
from relight.attribution.sources import LogSource
from relight.domain.evidence import Source

SCANNER = Scanner(load())
ECC = "[rank{0}]: RuntimeError: CUDA error: uncorrectable ECC error encountered\n"


def logs(count, lines=3):
    """As many logs, each of one rank."""
    texts = [f"step {rank}/900 | loss 2\n" + ECC.format(rank) * lines for rank in range(count)]
    return [
        LogSource(f"rank-{rank}", Source.JOB_LOG, None, partial(io.BytesIO, text.encode()))
        for rank, text in enumerate(texts)
    ]


def summary(scan):
    """What a log said."""
    lines = {name: list(found.kept()) for name, found in scan.found.items()}
    return scan.source, scan.counts, lines, scan.steps, scan.anchors, scan.empty, scan.error


@pytest.fixture(params=["processes", "threads"])
def way(request, monkeypatch):
    """Either way to read."""
    monkeypatch.setattr(many_logs, "_alone", lambda: request.param == "processes")
    monkeypatch.setattr(os, "sched_getaffinity", lambda _pid: {0, 1, 2})


@pytest.mark.usefixtures("way")
@pytest.mark.filterwarnings("ignore:This process:DeprecationWarning")  # the tests' own process may have threads
def test_logs_are_read_as_one_by_one():
    """Each log's summary stands in its place and is the same."""
    sources = [*logs(40), LogSource("gone", Source.JOB_LOG, None, partial(open, "/nowhere/log", "rb"))]
    scans = read_logs(sources, SCANNER)
    keep = share(len(sources))
    assert [summary(scan) for scan in scans] == [summary(read_log(one, SCANNER, keep)) for one in sources]
    assert scans[7].found["CUDA_ECC"].ranks == {7}
    assert scans[-1].error == "No such file or directory"


@pytest.mark.usefixtures("way")
@pytest.mark.filterwarnings("ignore:This process:DeprecationWarning")
def test_what_cannot_be_sent_can_be_read():
    """What opens a log may be a closure over anything."""
    lock = asyncio.Lock()
    sources = [one._replace(open=lambda one=one: (lock, one.open())[1]) for one in logs(MANY)]
    assert all(scan.counts["CUDA_ECC"] == 3 for scan in read_logs(sources, SCANNER))


async def test_beside_an_event_loop_logs_are_read_in_threads():
    """An activity reads in a thread, and what opens a log may wait for the loop: a forked one would never run."""
    loop = asyncio.get_running_loop()

    def through_the_loop(source):
        async def data():
            return source.open()

        return lambda: asyncio.run_coroutine_threadsafe(data(), loop).result(20)

    sources = [one._replace(open=through_the_loop(one)) for one in logs(MANY)]
    scans = await asyncio.to_thread(read_logs, sources, SCANNER)
    assert all(scan.counts["CUDA_ECC"] == 3 for scan in scans)


def test_few_logs_are_read_in_place(monkeypatch):
    """Starting processes would take longer."""
    monkeypatch.setattr(many_logs, "_in_processes", None)
    monkeypatch.setattr(many_logs, "ThreadPoolExecutor", None)
    assert len(read_logs(logs(MANY - 1), SCANNER)) == MANY - 1
    assert read_logs([], SCANNER) == []


SCRIPT = """
import io, os, sys, time
from relight.attribution.catalogue import load
from relight.attribution.many_logs import read_logs
from relight.attribution.scanner import Scanner
from relight.attribution.sources import LogSource
from relight.domain.evidence import Source

os.sched_getaffinity = lambda pid: {0, 1}
parent = os.getpid()
def opened(number):
    if os.getpid() == parent:
        raise OSError("read in the parent")
    if sys.argv[1] == "crash" and number == 3:
        os.abort()
    if sys.argv[1] == "wait":
        print(os.getpid(), flush=True)
        time.sleep(600)
    return io.BytesIO(b"slurmstepd: error: Detected 1 oom_kill event in StepId=7.0\\n")
sources = [LogSource(str(n), Source.JOB_LOG, None, lambda n=n: opened(n)) for n in range(20)]
scans = read_logs(sources, Scanner(load(), fast=False))
print([bool(scan.counts) or scan.error for scan in scans])
"""


def test_a_process_of_its_own_reads_in_processes():
    """The command line's process has one thread, and may fork."""
    done = subprocess.run([sys.executable, "-c", SCRIPT, "read"], capture_output=True, text=True, check=True)
    assert done.stdout == f"{[True] * 20}\n"


def test_a_process_that_is_ended_costs_its_logs_only():
    """The others are told as not read: not one is taken for a log without a failure."""
    done = subprocess.run([sys.executable, "-c", SCRIPT, "crash"], capture_output=True, text=True, check=True)
    told = done.stdout.strip().strip("[]").split(", ")
    assert len(told) == 20
    lost = repr("not read: a process that read logs was ended (out of memory?)")
    assert set(told) <= {"True", lost}
    assert told[3] == lost


def test_no_process_outlives_the_one_that_started_it():
    """Not even one that was killed."""
    with subprocess.Popen([sys.executable, "-c", SCRIPT, "wait"], stdout=subprocess.PIPE, text=True) as parent:
        children = {int(parent.stdout.readline()) for _ in range(2)}
        parent.kill()
    until = time.monotonic() + 20
    while any(alive(child) for child in children):
        assert time.monotonic() < until
        time.sleep(0.02)


def alive(pid):
    """True while the process is there, and no zombie."""
    try:
        return Path(f"/proc/{pid}/stat").read_text("ascii").rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


@pytest.mark.parametrize("count", [0, 1, 8, 100, 2048, 100_000])
def test_of_many_logs_less_is_kept_of_each(count):
    """But never nothing, and of one log as much as ever."""
    keep = share(count)
    assert all(least <= kept <= most for least, kept, most in zip(LEAST, keep, MOST, strict=True))
    assert count > 1 or keep == MOST
    assert count < 2048 or keep.first * count <= 2 * count


def test_the_first_and_the_last_lines_are_kept():
    """Of how many there were, the count."""
    keep = share(2048)
    (log,) = logs(1, lines=KEEP_FIRST + 50)
    scan = read_log(log, SCANNER, keep)
    lines = [match.line_no for match in scan.found["CUDA_ECC"].kept()]
    assert lines == [2, 3, KEEP_FIRST + 51]
    assert scan.counts["CUDA_ECC"] == KEEP_FIRST + 50
