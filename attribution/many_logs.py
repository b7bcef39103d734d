"""Reads many logs at once: in processes where this one may fork, else in threads."""

import multiprocessing
import os
import signal
import threading
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from functools import partial
from io import BytesIO
from pathlib import Path

from relight.attribution.found import KEEP_FIRST, KEEP_LAST
from relight.attribution.reading import Keep, LogScan, read_log
from relight.attribution.scanner import DETAILED, Scanner
from relight.attribution.sources import LogSource

MANY = 8
"""Fewer logs are read one after the other: starting processes takes a tenth of a second."""
MUCH = 64
"""So many logs are surely much to read."""
MOST_AT_ONCE = 16
"""Logs that are read at once: the machine may be a login node."""
LEAST = Keep(detailed=256, first=2, last=1, steps=8)
MOST = Keep(detailed=DETAILED, first=KEEP_FIRST, last=KEEP_LAST, steps=256)
IN_ALL = Keep(detailed=8 * DETAILED, first=4096, last=1024, steps=16_384)
"""What is kept of all logs together, as far as each has its least."""


def read_logs(sources: Sequence[LogSource], scanner: Scanner) -> list[LogScan]:
    """Read each log once, in order. Never fails: what cannot be read is told in `LogScan.error`.

    The more logs, the less is kept of each. In a process without other threads logs are read in processes, for Python
    runs one thread at a time; with other threads a fork is not safe, and what `open` needs may be theirs.
    """
    keep = share(len(sources))
    at_once = min(len(sources), len(os.sched_getaffinity(0)), MOST_AT_ONCE)
    if at_once == 1 or len(sources) < MANY:
        return [read_log(source, scanner, keep) for source in sources]
    if _alone():
        return _in_processes(sources, scanner, keep, at_once)
    with ThreadPoolExecutor(at_once) as pool:
        return list(pool.map(partial(read_log, scanner=scanner, keep=keep), sources))


def share(logs: int) -> Keep:
    """How much is kept of each of so many logs."""
    rows = zip(LEAST, MOST, IN_ALL, strict=True)
    return Keep(*(max(least, min(most, in_all // max(logs, 1))) for least, most, in_all in rows))


def _alone() -> bool:
    """True in a process with one thread, native ones counted, too."""
    try:
        return len(list(Path("/proc/self/task").iterdir())) == 1
    except OSError:
        return False


class _Work:
    """What a process reads: inherited when it is forked, for neither `open` nor a scanner can be sent."""

    sources: Sequence[LogSource]
    scanner: Scanner
    keep: Keep


def _in_processes(sources: Sequence[LogSource], scanner: Scanner, keep: Keep, at_once: int) -> list[LogScan]:
    if len(sources) >= MUCH:
        scanner.prepare()  # else each process does
    scans: list[LogScan] = []
    with ProcessPoolExecutor(
        at_once,
        mp_context=multiprocessing.get_context("fork"),
        initializer=_begin,
        initargs=(sources, scanner, keep),
    ) as pool:
        chunk = max(1, min(16, len(sources) // (4 * at_once)))
        try:
            for scan in pool.map(_read, range(len(sources)), chunksize=chunk):
                scan.source = sources[len(scans)]
                scans.append(scan)
        except BrokenProcessPool:
            lost = "not read: a process that read logs was ended (out of memory?)"
            scans += [LogScan(source, error=lost) for source in sources[len(scans) :]]
    return scans


def _begin(sources: Sequence[LogSource], scanner: Scanner, keep: Keep) -> None:
    _Work.sources, _Work.scanner, _Work.keep = sources, scanner, keep
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    threading.Thread(target=_end_with_parent, daemon=True).start()


def _end_with_parent() -> None:
    """The queue that a process waits for has its other end in that process, too: it would wait for ever."""
    if parent := multiprocessing.parent_process():
        parent.join()
        os._exit(1)


def _read(number: int) -> LogScan:
    scan = read_log(_Work.sources[number], _Work.scanner, _Work.keep)
    scan.source = scan.source._replace(open=BytesIO)  # what can be sent
    return scan
