"""A range of free ports that no other lab cluster is about to take."""

import random
import socket
from collections.abc import Iterator
from contextlib import contextmanager

BLOCK = 128
FIRST, LAST = 10_240, 32_000
"""Below Linux' ephemeral range (from 32768), so that a client's own port is never in the way."""


class NoFreePortsError(Exception):
    """No block of ports is free on this machine."""


@contextmanager
def claimed_ports(count: int) -> Iterator[int]:
    """Yield the first of `count` free contiguous ports, and keep other labs off them until the block ends.

    By then slurmctld listens on the first one, which is the claim that lasts. Until then it is an abstract Unix
    socket: the kernel lets one process have the name and drops it when that process ends, however it ends.
    """
    blocks = list(range(FIRST, LAST - BLOCK, BLOCK))
    random.shuffle(blocks)
    for start in blocks:
        with socket.socket(socket.AF_UNIX) as claim:
            try:
                claim.bind(f"\0relight-lab-ports-{start}")
            except OSError:
                continue
            if all(_free(port) for port in range(start, start + count)):
                yield start
                return
    raise NoFreePortsError(f"no {count} contiguous free ports between {FIRST} and {LAST}")


def _free(port: int) -> bool:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("", port))
        except OSError:
            return False
    return True
