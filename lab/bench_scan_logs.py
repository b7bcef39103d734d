"""Logs for the scanner's benchmark, made from nothing (simulated): steps, NCCL's talk, and how ranks end."""

import io
from collections.abc import Iterator
from pathlib import Path
from typing import Any

CULPRIT = 7
"""The rank whose GPU fails."""


def step_lines(first: int, count: int) -> bytes:
    """Lines of steps, each with numbers of its own."""
    return b"".join(
        b" iteration %8d/  500000 | consumed samples: %12d | elapsed time per iteration (ms): %.1f |"
        b" learning rate: 1.200000E-04 | global batch size:  1024 | lm loss: %.6E | grad norm: %.3f |\n"
        % (n, n * 1024, 1800 + n % 97, 2.5 + n % 89 / 100, 0.4 + n % 31 / 100)
        for n in range(first, first + count)
    )


def failure(rank: int) -> bytes:
    """How one rank ends: the culprit of a lost GPU, all others of a collective that never finished."""
    if rank == CULPRIT:
        return b"[rank%d]: RuntimeError: CUDA error: uncorrectable ECC error encountered\n" % rank
    return watchdog(rank, 4812)


def watchdog(rank: int, seq: int) -> bytes:
    """What NCCL's watchdog prints."""
    return (
        b"[rank%d]:[E1130 09:41:00.123456 ProcessGroupNCCL.cpp:616] [Rank %d] Watchdog caught collective operation"
        b" timeout: WorkNCCL(SeqNum=%d, OpType=ALLREDUCE, NumelIn=16777216, NumelOut=16777216, Timeout(ms)=600000)"
        b" ran for 600012 milliseconds before timing out.\n" % (rank, rank, seq)
    )


class Made(io.RawIOBase):
    """A log that is made while it is read: a piece again and again, then its end."""

    def __init__(self, size: int, piece: bytes, last: bytes) -> None:
        self._parts = self._pieces(size, piece, last)
        self._rest = memoryview(b"")

    @staticmethod
    def _pieces(size: int, piece: bytes, last: bytes) -> Iterator[bytes]:
        for _ in range(size // len(piece)):
            yield piece
        yield piece[: piece.rfind(b"\n", 0, size % len(piece)) + 1] + last

    def readable(self) -> bool:
        """Yes."""
        return True

    def readinto(self, buffer: Any, /) -> int:
        """Fill what fits."""
        if not self._rest:
            self._rest = memoryview(next(self._parts, b""))
        view = memoryview(buffer).cast("B")
        count = min(len(view), len(self._rest))
        view[:count] = self._rest[:count]
        self._rest = self._rest[count:]
        return count


def channel_lines(size: int) -> bytes:
    """What NCCL prints where it is asked to (NCCL_DEBUG=INFO), and what most ranks print nothing but."""
    line = b"n%d:12345:12400 [%d] NCCL INFO Channel %02d/16 : %d[%d] -> %d[%d] [send] via NET/IB/%d/GDRDMA\n"
    lines = (line % (n % 64, n % 8, n % 16, n % 512, n % 8, (n + 8) % 512, n % 8, n % 8) for n in range(size // 70))
    return b"".join(lines)


def write_ranks(folder: Path, files: int, size: int) -> None:
    """Logs of as many ranks, `size` bytes in all: one of eight prints steps, the others what NCCL says."""
    folder.mkdir()
    each = size // files
    steps, channels = step_lines(1, each // 190)[:each], channel_lines(each)[:each]
    steps, channels = steps[: steps.rfind(b"\n") + 1], channels[: channels.rfind(b"\n") + 1]
    for rank in range(files):
        node = b"n%d" % (rank // 8)
        seat = b"%s:1:2 [%d] NCCL INFO comm 0x1 rank %d nranks %d cudaDev %d nvmlDev %d - Init COMPLETE\n"
        start = seat % (node, rank % 8, rank, files, rank % 8, rank % 8)
        body = channels if rank % 8 else steps
        (folder / f"rank-{rank:04}.log").write_bytes(start + body + failure(rank))
