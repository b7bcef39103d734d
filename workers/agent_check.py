"""One check of this node, as a program of its own: whatever hangs in it hangs here and not in the agent.

    python -m relight.workers.agent_check nvml GPUS                  GPUS: how many there have to be; 0: not known
    python -m relight.workers.agent_check disk FOLDER...             the first one is written to
    python -m relight.workers.agent_check network HOST:PORT HOST:PORT...   the first one is the controller

Prints one JSON object: `result` (see `Result` in domain/reports.py), `text`, and perhaps `output` and `cards`.
"""

import json
import os
import socket
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from relight.workers.agent_faults import Condition, Sight

APART = 2.0
"""Seconds between the two readings of the GPUs: what rises in between rises now."""
WRITTEN = 1 << 20
CONNECTS_WITHIN = 3.0
PASSED, FAILED, UNKNOWN = "passed", "failed", "unknown"


def nvml(expected: int) -> dict[str, Any]:
    """What the driver says of each GPU: two readings, judged as the agent judges those of every day."""
    from relight.clients.nvml import Nvml, NvmlError
    from relight.workers.agent_gpus import GpuFaults

    driver = Nvml()
    try:
        driver.open()
        faults = GpuFaults()
        found = list(faults.read(driver.read(), datetime.now(UTC)))
        time.sleep(APART)
        readings = driver.read()
        found += faults.read(readings, datetime.now(UTC))
        cards = driver.cards()
    except NvmlError as error:
        return {"result": UNKNOWN, "text": f"NVML does not answer: {error}"}
    wrong = [f"{s.gpu or s.about or 'a GPU'}: {s.text}" for s in map(_wrong, found) if s]
    since = "uncorrected ECC errors since the driver was loaded"
    wrong += [f"{r.gpu}: {r.ecc_volatile} {since}" for r in readings if r.ecc_volatile]
    if len(readings) < expected:
        wrong.insert(0, f"{len(readings)} GPUs of {expected}")
    silent = [r.gpu for r in readings if (r.ecc_volatile, r.remap_failure, r.recovery_action) == (None, None, None)]
    told = {"output": json.dumps([r._asdict() for r in readings]), "cards": [card_of(card) for card in cards]}
    if wrong:
        return {"result": FAILED, "text": "; ".join(dict.fromkeys(wrong)), **told}
    if not readings:
        return {"result": UNKNOWN, "text": "the driver shows no GPU", **told}
    if silent:
        return {"result": UNKNOWN, "text": f"the driver tells nothing of the health of {', '.join(silent)}", **told}
    return {"result": PASSED, "text": f"{len(readings)} GPUs: nothing wrong, nothing asked for", **told}


def card_of(card: Any) -> dict[str, Any]:
    """A `GpuCard`, as it is sent."""
    known = card._asdict()
    return {"index": known.pop("number"), **known}


def _wrong(seen: Sight | Condition) -> Sight | None:
    """What is wrong; None for a state that does not hold, or of which nothing is known."""
    if isinstance(seen, Condition):
        return seen.sight if seen.holds else None
    return seen


def disk(folders: Sequence[str]) -> dict[str, Any]:
    """Space left in each folder's file system, and a file written, synced, read back and removed in the first."""
    from relight.clients.host_state import space

    wrong, left = [], []
    for folder in folders:
        found = space(folder)
        if found.full or found.stale:
            wrong.append(found.problem or f"{folder}: {found.free} bytes and {found.files_free} files left")
        left.append(f"{folder} {(found.free or 0) >> 30} GiB")
    content = os.urandom(WRITTEN)
    try:
        with tempfile.NamedTemporaryFile(dir=folders[0], prefix="relight-check-") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
            # Out of the page cache where the kernel does so, or what is read back has never left memory.
            with suppress(OSError):
                os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
            if Path(file.name).read_bytes() != content:
                wrong.append(f"{folders[0]}: what was read back is not what was written")
    except OSError as error:
        wrong.append(f"{folders[0]}: cannot be written: {error.strerror}")
    if wrong:
        return {"result": FAILED, "text": "; ".join(wrong)}
    return {"result": PASSED, "text": f"written and read back in {folders[0]}; free: {', '.join(left)}"}


def network(controller: str, peers: Sequence[str]) -> dict[str, Any]:
    """Connections to the controller and to other nodes, one of which is enough; whether any fabric port is active."""
    from relight.clients.host_state import fabric_ports

    ports = fabric_ports()
    unreached = {place: why for place in (controller, *peers) if (why := connects(place))}
    wrong = [f"the controller {controller}: {unreached[controller]}"] if controller in unreached else []
    if peers and all(peer in unreached for peer in peers):
        wrong.append(f"no other node: {'; '.join(f'{peer}: {unreached[peer]}' for peer in peers)}")
    if ports and not any(ports.values()):
        wrong.append(f"no fabric port is active: {', '.join(sorted(ports))}")
    if wrong:
        return {"result": FAILED, "text": "; ".join(wrong)}
    reached = sum(peer not in unreached for peer in peers)
    active = f"; {sum(ports.values())} of {len(ports)} fabric ports active" if ports else ""
    return {"result": PASSED, "text": f"the controller and {reached} of {len(peers)} other nodes answer{active}"}


def connects(place: str) -> str:
    """Why no connection can be made; empty where one can."""
    host, _, port = place.rpartition(":")
    try:
        socket.create_connection((host.strip("[]"), int(port)), CONNECTS_WITHIN).close()
    except (OSError, ValueError) as error:
        return str(error)
    return ""


def main(arguments: Sequence[str]) -> None:
    """Run as a program."""
    name, *rest = arguments
    if name == "nvml":
        found = nvml(int(rest[0]))
    elif name == "disk":
        found = disk(rest)
    else:
        found = network(rest[0], rest[1:])
    json.dump(found, sys.stdout)


if __name__ == "__main__":
    main(sys.argv[1:])
