"""The load of the detection benchmark, from processes of its own: logs that grow, and node agents that beat.

    python -m relight.lab.bench_load logs FOLDER COUNT
    python -m relight.lab.bench_load beats|relayed HOST PORT KEY_FILE COUNT

Each runs until SIGTERM, or until its parent is gone, and then prints, as JSON, what it has done. It does not wait for
anybody: what it cannot write or send in time shows in its numbers.
"""

import json
import os
import re
import selectors
import signal
import socket
import sys
import time
from collections import deque
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from relight.domain.reports import Beat, GpuState, Report, agent_token
from relight.lab.xids import PCI_ADDRESSES
from relight.workers.ingest import RELAY

LINES_A_SECOND = 10
BEAT_S = 5.0
"""From one beat of an agent to its next."""
RELAYED_AT_ONCE = 50
"""Beats that a relay forwards together: of 250 nodes, those of a second."""
BOOT = "8d6f7b1e-0000-4000-8000-3d2c1b0a9f8e"
OTHER_LINES = (
    "[2026-11-30 16:00:00,123] [INFO] [dataloader.py:118:next_batch] shard 117 of 2048, 31 batches prefetched",
    "[2026-11-30 16:00:00,223] [INFO] [memory.py:44:report] allocated 61.2 GiB, reserved 70.5 GiB, 0 retries",
    "[2026-11-30 16:00:00,323] [INFO] [optimizer.py:301:clip] grad_norm before clipping 1.0417, clipped to 1.0",
)


def node_name(number: int) -> str:
    """The node of agent `number`, counted from 1: as the lab calls nodes that are only defined."""
    return f"d{number}"


def log_file(folder: Path, number: int) -> Path:
    """The output of job `number`, counted from 1."""
    return folder / f"{number}.out"


class Stopped:
    """Whether to stop: true once told to, or left alone."""

    def __init__(self) -> None:
        """Listen for SIGTERM."""
        self._told = False
        self._parent = os.getppid()
        signal.signal(signal.SIGTERM, self._stop)

    def _stop(self, *_: object) -> None:
        self._told = True

    def __bool__(self) -> bool:
        return self._told or os.getppid() != self._parent


def grow_logs(folder: Path, number: int, stopped: Stopped) -> dict[str, Any]:
    """Write ten lines a second to each of so many files, every other one a step."""
    files = [log_file(folder, each).open("ab", buffering=0) for each in range(1, number + 1)]
    written, began = 0, time.monotonic()
    for tick in range(1, sys.maxsize):
        if stopped:
            break
        line = _line(tick)
        for file in files:
            file.write(line)
        written += number
        time.sleep(max(0.0, began + tick / LINES_A_SECOND - time.monotonic()))
    seconds = time.monotonic() - began
    return {"lines": written, "lines_a_second": round(written / seconds, 1)}


def _line(tick: int) -> bytes:
    if tick % 2:
        return f"{OTHER_LINES[tick // 2 % len(OTHER_LINES)]}\n".encode()
    step = tick // 2
    loss, seconds = 8 / step + 2, 0.2 + 0.002 * (step % 7)
    line = f"step {step}/1000000 | loss {loss:.4f} | step_time {seconds:.3f} s | {64 / seconds:.0f} samples/s\n"
    return line.encode()


class Agents:
    """Pretended agents that share a connection: one alone, or those whose beats a relay forwards together."""

    def __init__(self, numbers: Sequence[int], key: bytes, address: tuple[str, int], *, relayed: bool) -> None:
        """Not connected yet."""
        self._tokens = {node_name(number): agent_token(key, node_name(number)) for number in numbers}
        self._address = address
        self._relayed = relayed
        path, token = ("/v1/reports", agent_token(key, RELAY)) if relayed else ("/v1/report", *self._tokens.values())
        self._head = (
            f"POST {path} HTTP/1.1\r\nHost: relight\r\nAuthorization: Bearer {token}\r\n"
            "Content-Type: application/json\r\nContent-Length: "
        )
        self._sequence = 0
        self._got = b""
        self.socket: socket.socket | None = None
        self.sent_at = 0.0
        """When what has not been answered yet was sent; 0: nothing."""

    def __len__(self) -> int:
        """How many they are."""
        return len(self._tokens)

    def send(self) -> None:
        """Send a beat of each."""
        self._sequence += 1
        reports = [(beat(node, self._sequence), token) for node, token in self._tokens.items()]
        if self._relayed:
            body = "\n".join(f'{{"token":"{token}","report":{report}}}' for report, token in reports).encode()
        else:
            body = reports[0][0].encode()
        if self.socket is None:
            self.socket = socket.create_connection(self._address, timeout=10)
        self.sent_at, self._got = time.monotonic(), b""
        self.socket.sendall(f"{self._head}{len(body)}\r\n\r\n".encode() + body)

    def answered(self) -> int | None:
        """Read of the answer what has come; how many beats it accepts, None while it is not complete.

        Raises:
            OSError: the connection has ended.
        """
        more = self.socket.recv(1 << 20) if self.socket else b""
        if not more:
            raise ConnectionResetError
        self._got += more
        head, _, body = self._got.partition(b"\r\n\r\n")
        length = re.search(rb"(?i)content-length: (\d+)", head)
        if length is None or len(body) < int(length[1]):
            return None
        if not head.startswith(b"HTTP/1.1 200"):
            return 0
        return body.count(b'"status":200') if self._relayed else 1

    def close(self) -> None:
        """Give up the connection."""
        if self.socket is not None:
            self.socket.close()
        self.socket, self.sent_at = None, 0.0


def beat(node: str, sequence: int) -> str:
    """A report of a healthy node with eight GPUs, as an agent writes it."""
    body = {"node": node, "boot": BOOT, "version": "bench", "sequence": sequence, "faults": []}
    return json.dumps(body | {"beat": {**_BEAT, "at": datetime.now(UTC).isoformat()}}, separators=(",", ":"))


def _beat() -> dict[str, Any]:
    gpus = tuple(
        GpuState(
            gpu=pci, index=index, power_w=612.0, utilisation=1.0, temperature_c=54.0, sm_clock_mhz=1980.0, pids=(4711,)
        )
        for index, pci in enumerate(PCI_ADDRESSES)
    )
    whole = Report(node="n1", boot="", beat=Beat(at=datetime.now(UTC), gpus=gpus))
    return dict(whole.model_dump(mode="json")["beat"])


_BEAT = _beat()


class Beats:
    """Agents that beat, each every five seconds, evenly spread."""

    def __init__(self, agents: Sequence[Agents]) -> None:
        """Nothing has been sent."""
        self._agents = agents
        self._answers = selectors.DefaultSelector()
        self._numbers = dict.fromkeys(("sent", "answered", "refused", "unanswered", "broken"), 0)
        self._took: deque[float] = deque(maxlen=10_000)

    def run(self, stopped: Stopped) -> dict[str, Any]:
        """Beat until stopped, and return what came of it."""
        began = time.monotonic()
        try:
            self._beat(began, stopped)
        finally:
            self._answers.close()
            for agents in self._agents:
                agents.close()
        seconds = time.monotonic() - began
        slowest = sorted(self._took) or [0.0]
        return self._numbers | {
            "answered_a_second": round(self._numbers["answered"] / seconds, 1),
            "answer_p95_ms": round(1000 * slowest[int(0.95 * len(slowest))], 1),
        }

    def _beat(self, began: float, stopped: Stopped) -> None:
        for due, agents in self._schedule():
            wait = 1.0
            # At least once: behind time, answers are read all the same.
            while wait > 0 and not stopped:
                wait = began + due - time.monotonic()
                for ready, _ in self._answers.select(max(0.0, wait)):
                    self._answer(ready.data)
            if stopped:
                break
            self._send(agents)

    def _schedule(self) -> Iterator[tuple[float, Agents]]:
        """Who is due next, and when, in seconds; for ever."""
        for turn in range(sys.maxsize):
            for index, agents in enumerate(self._agents):
                yield BEAT_S * (turn + index / len(self._agents)), agents

    def _send(self, agents: Agents) -> None:
        if agents.sent_at:
            self._numbers["unanswered"] += len(agents)
            return
        new = agents.socket is None
        try:
            agents.send()
        except OSError:
            self._break(agents)
            return
        if new and agents.socket:
            self._answers.register(agents.socket, selectors.EVENT_READ, agents)
        self._numbers["sent"] += len(agents)

    def _answer(self, agents: Agents) -> None:
        try:
            accepted = agents.answered()
        except OSError:
            self._break(agents)
            return
        if accepted is None:
            return
        self._numbers["answered"] += accepted
        self._numbers["refused"] += len(agents) - accepted
        self._took.append(time.monotonic() - agents.sent_at)
        agents.sent_at = 0.0

    def _break(self, agents: Agents) -> None:
        if agents.socket and agents.socket in self._answers.get_map():
            self._answers.unregister(agents.socket)
        agents.close()
        self._numbers["broken"] += len(agents)


def send_beats(address: tuple[str, int], key: bytes, number: int, stopped: Stopped, *, relayed: bool) -> dict[str, Any]:
    """Beat for so many nodes."""
    together = RELAYED_AT_ONCE if relayed else 1
    numbers = range(1, number + 1)
    parts = [numbers[first : first + together] for first in range(0, number, together)]
    return Beats([Agents(part, key, address, relayed=relayed) for part in parts]).run(stopped)


def main(words: list[str]) -> None:
    """Do as told."""
    stopped = Stopped()
    match words:
        case ["logs", folder, number]:
            told = grow_logs(Path(folder), int(number), stopped)
        case ["beats" | "relayed" as how, host, port, key_file, number]:
            key = bytes.fromhex(Path(key_file).read_text().strip())
            told = send_beats((host, int(port)), key, int(number), stopped, relayed=how == "relayed")
        case _:
            raise SystemExit(__doc__)
    print(json.dumps(told), flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
