"""How fast logs are scanned: one large log beside `rg -j1`, many ranks' logs, a log that never ends, a storm of echoes.

All logs are made here (simulated): step lines as Megatron prints them, and a failure at their end. Printed, never
asserted.
"""

import io
import json
import os
import platform
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from resource import RUSAGE_CHILDREN, getrusage
from typing import Any, BinaryIO, NamedTuple

from relight.attribution import hyperscan_automaton
from relight.attribution.catalogue import load
from relight.attribution.engine import diagnose
from relight.attribution.many_logs import read_logs
from relight.attribution.reading import read_log
from relight.attribution.scanner import Scanner
from relight.attribution.sources import LogSource
from relight.domain.evidence import Source
from relight.lab.bench_scan_logs import CULPRIT, Made, failure, step_lines, watchdog, write_ranks
from relight.lab.packages import SlurmNotInstallableError, find_program, install

GOALS = {"ratio_to_rg": 2.5, "stream_peak_mib": 200, "many_s": 5.0}
ROUNDS = 5
MB = 1_000_000
CORES = 2
"""The goal for many logs is for so many."""


class Order(NamedTuple):
    """What is measured; 0 leaves a part out."""

    size: int
    """MB of the one log."""
    files: int
    """Logs of as many ranks."""
    files_size: int
    """MB in all of them."""
    stream: int
    """MB of the log that is never stored."""
    storm: int
    """MB of echoes."""


def measure(order: Order, say: Callable[[str], None]) -> dict[str, Any]:
    """The numbers with their conditions."""
    result: dict[str, Any] = {"order": order._asdict(), "goals": GOALS, "machine": _machine()}
    with tempfile.TemporaryDirectory(prefix="relight-bench-") as name:
        folder = Path(name)
        result["start"] = _start(folder, say)
        if order.size:
            result["one"] = _one(folder, order.size * MB, say)
        if order.files:
            say(f"{order.files} logs of {order.files_size} MB in all")
            write_ranks(folder / "ranks", order.files, order.files_size * MB)
            result["many"] = _apart("many", folder / "ranks")
        if order.stream:
            say(f"a log of {order.stream} MB that is never stored")
            result["stream"] = _apart("stream", order.stream * MB)
        if order.storm:
            say(f"{order.storm} MB of a watchdog's echoes")
            result["storm"] = _apart("storm", order.storm * MB)
    result["machine"]["load_after"] = os.getloadavg()[0]
    return result


def _machine() -> dict[str, Any]:
    return {
        "python": platform.python_version(),
        "hyperscan": getattr(hyperscan_automaton.hyperscan, "__version__", None),
        "cores": len(os.sched_getaffinity(0)),
        "processor": platform.machine(),
        "load_before": os.getloadavg()[0],
    }


def _start(folder: Path, say: Callable[[str], None]) -> dict[str, Any]:
    """Seconds of `relight diagnose` on a log of one line: with nothing compiled before, and again."""
    say("relight diagnose on a log of one line")
    log = folder / "small.log"
    log.write_bytes(failure(CULPRIT))
    command = [sys.executable, "-m", "relight.workers.cli", "diagnose", str(log)]
    environment = os.environ | {"XDG_CACHE_HOME": str(folder / "cache")}
    times = []
    for _ in range(2):
        begun = time.perf_counter()
        subprocess.run(command, env=environment, stdout=subprocess.DEVNULL, check=True)
        times.append(time.perf_counter() - begun)
    return {"first_s": round(times[0], 2), "again_s": round(times[1], 2)}


def _one(folder: Path, size: int, say: Callable[[str], None]) -> dict[str, Any]:
    say(f"one log of {size // MB} MB")
    log = folder / "steps.log"
    with log.open("wb") as file, Made(size - len(failure(CULPRIT)), step_lines(1, 40_000), failure(CULPRIT)) as made:
        while piece := made.read(1 << 20):
            file.write(piece)
    begun = time.perf_counter()
    scanner = Scanner(load())
    prepared = time.perf_counter() - begun
    patterns = scanner.patterns
    listed = folder / "patterns.txt"
    listed.write_text("".join(_for_rg(pattern) + "\n" for pattern in patterns))
    rg = _rg(say)
    ours, theirs, found, their_lines = [], [], 0, None
    for _ in range(ROUNDS):
        begun = time.perf_counter()
        scan = read_log(_source(log), scanner)
        ours.append(time.perf_counter() - begun)
        found = sum(scan.counts.values())
        if isinstance(rg, list):
            begun = time.perf_counter()
            done = subprocess.run([*rg, str(listed), str(log)], capture_output=True, text=True, check=False)
            theirs.append(time.perf_counter() - begun)
            their_lines = int(done.stdout or 0)
            if done.returncode > 1:  # 1: no line
                rg = f"rg failed: {done.stderr.strip().splitlines()[-1]}"
    bytes_read = log.stat().st_size
    log.unlink()
    result = {
        "bytes": bytes_read,
        "patterns": len(patterns),
        "prepared_s": round(prepared, 3),
        "seconds": _rounded(ours),
        "gb_per_s": round(bytes_read / min(ours) / 1e9, 3),
        "lines_found": found,
    }
    if not isinstance(rg, list):
        return result | {"rg": rg, "ratio_to_rg": None}
    rate = round(bytes_read / min(theirs) / 1e9, 3)
    told = {"seconds": _rounded(theirs), "gb_per_s": rate, "lines_found": their_lines, "command": " ".join(rg)}
    return result | {"rg": told, "ratio_to_rg": round(min(theirs) / min(ours), 2)}


def _rg(say: Callable[[str], None]) -> list[str] | str:
    """The command that counts lines with any pattern, bytes as they are; or why there is none."""
    if find_program("rg") is None:
        try:
            install(["ripgrep"], say)
        except SlurmNotInstallableError as error:
            return f"rg is not installed: {error}"
    return [find_program("rg") or "rg", "-j1", "--no-config", "--text", "--no-unicode", "--count", "-f"]


def _for_rg(pattern: str) -> str:
    """The same pattern: groups without names, for one stands in many; bytes beyond ASCII as what they are to us."""
    unnamed = re.sub(r"\(\?P<\w+>", "(?:", pattern)
    return "".join(chr(byte) if byte < 128 else rf"\x{byte:02x}" for byte in unnamed.encode())  # noqa: PLR2004


def _rounded(seconds: list[float]) -> list[float]:
    return [round(one, 3) for one in seconds]


def _open(path: Path) -> BinaryIO:
    return path.open("rb")


def _source(path: Path) -> LogSource:
    return LogSource(path.name, Source.JOB_LOG, None, partial(_open, path))


def _apart(what: str, argument: object) -> dict[str, Any]:
    """A part in a process of its own, for its memory is measured."""
    command = [sys.executable, "-m", "relight.lab.bench_scan", what, str(argument)]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
    result: dict[str, Any] = json.loads(done.stdout)
    return result


def _many(folder: str) -> dict[str, Any]:
    cores = sorted(os.sched_getaffinity(0))[:CORES]
    os.sched_setaffinity(0, cores)
    files = sorted(Path(folder).iterdir())
    size = sum(len(path.read_bytes()) for path in files)  # and so it is in the page cache
    scanner = Scanner(load())
    sources = [_source(path) for path in files]
    begun = time.perf_counter()
    read_logs(sources, scanner)
    read = time.perf_counter()
    verdict = diagnose(sources, scanner=scanner).verdict
    diagnosed = time.perf_counter()
    return {
        "files": len(files),
        "bytes": size,
        "cores": len(cores),
        "read_s": round(read - begun, 2),
        "diagnosed_s": round(diagnosed - read, 2),
        "verdict": verdict.signature,
        "ranks": list(verdict.implicated.ranks),
        "peak_mib": _peak(),
    }


def _scanned(made: Callable[[], BinaryIO], size: int) -> dict[str, Any]:
    scanner = Scanner(load())
    begun = time.perf_counter()
    scan = read_log(LogSource("made", Source.JOB_LOG, None, made), scanner)
    seconds = time.perf_counter() - begun
    rate = round(size / seconds / 1e9, 3)
    counts = dict(scan.counts.most_common(3))
    return {"bytes": size, "seconds": round(seconds, 2), "gb_per_s": rate, "found": counts, "peak_mib": _peak()}


def _stream(size: str) -> dict[str, Any]:
    return _scanned(lambda: io.BufferedReader(Made(int(size), step_lines(1, 4_000), failure(CULPRIT))), int(size))


def _storm(size: str) -> dict[str, Any]:
    piece = b"".join(watchdog(rank % 2048, rank) for rank in range(8_000))
    return _scanned(lambda: io.BufferedReader(Made(int(size), piece, failure(CULPRIT))), int(size))


def _peak() -> int:
    """MiB of the largest process. What `getrusage` says of this one would be its parent's at the fork."""
    status = Path("/proc/self/status").read_text("ascii")
    return max(int(status.partition("VmHWM:")[2].split()[0]), getrusage(RUSAGE_CHILDREN).ru_maxrss) >> 10


if __name__ == "__main__":
    parts: dict[str, Callable[[str], dict[str, Any]]] = {"many": _many, "stream": _stream, "storm": _storm}
    print(json.dumps(parts[sys.argv[1]](sys.argv[2])))
