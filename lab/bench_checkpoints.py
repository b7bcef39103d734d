"""What looking at checkpoints costs: a large tree, and a large checkpoint. Printed, never asserted.

Both are made here. The checkpoint is a documented layout, not written by torch: 10,000 sparse files of 100 MB and a
`.metadata` that names ten pieces of each, operation by operation as torch 2.13 pickles one.
"""

import asyncio
import os
import platform
import statistics
import tempfile
import time
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any, NamedTuple

from relight.clients.checkpoint_readers import CheckpointReaders
from relight.clients.log_readers import mount_of, parse_mounts
from relight.domain.checkpoints import HowNamed, Root, choose, main_series
from relight.lab.dcp_metadata import PIECES, pickled_metadata

GOALS = {"discovery_s": 2.0}
WITHIN = timedelta(minutes=2)


class Order(NamedTuple):
    """What is measured."""

    files: int
    """In the tree."""
    shards: int
    """Of the checkpoint."""
    size: int
    """Bytes of the checkpoint."""
    repeat: int


def measure(order: Order, say: Callable[[str], None], folder: Path | None = None) -> dict[str, Any]:
    """The numbers with their conditions."""
    with tempfile.TemporaryDirectory(prefix="relight-bench-", dir=folder) as name:
        tree, large = Path(name, "tree"), Path(name, "large")
        say(f"a tree of {order.files} files")
        steps = write_tree(tree, order.files)
        say(f"a checkpoint of {order.shards} shards, {order.size / 1e12:g} TB, sparse")
        write_checkpoint(large / "step-1000", order.shards, order.size)
        return asyncio.run(_measured(order, tree, large, steps)) | {"goals": GOALS, "machine": _machine(name)}


async def _measured(order: Order, tree: Path, large: Path, steps: int) -> dict[str, Any]:
    async with CheckpointReaders() as readers:

        async def timed(root: Path) -> tuple[list[float], dict[str, Any]]:
            seconds = []
            for _ in range(order.repeat + 1):
                begun = time.perf_counter()
                survey = await readers.look([Root(path=str(root), how=HowNamed.PERSON)], within=WITHIN)
                seconds.append(time.perf_counter() - begun)
            series = main_series(survey)
            if series is None:
                raise RuntimeError(f"nothing found: {survey.problems}")
            found = {
                "checkpoints": sum(len(each.checkpoints) for each in survey.series),
                "whole": str(series.checkpoints[0].whole),
                "told": choose(series).sentence,
                "problems": list(survey.problems),
            }
            return seconds, found

        discovery, found = await timed(tree)
        guard, judged = await timed(large)
    return {
        "discovery_s": round(statistics.median(discovery[1:]), 3),
        "discovery_first_s": round(discovery[0], 3),
        "discovery": {"files": order.files, "steps": steps, **found},
        "guard_s": round(statistics.median(guard[1:]), 3),
        "guard_first_s": round(guard[0], 3),
        "guard": {"shards": order.shards, "bytes": order.size, "pieces": order.shards * PIECES, **judged},
        "repeat": order.repeat,
    }


def _machine(folder: str) -> dict[str, Any]:
    mounts = parse_mounts(Path("/proc/self/mountinfo").read_text())
    return {
        "python": platform.python_version(),
        "cores": len(os.sched_getaffinity(0)),
        "load_1m": round(os.getloadavg()[0], 2),
        "mount": mount_of(folder, mounts).point,
    }


def write_tree(folder: Path, files: int) -> int:
    """A run's folder: half data, half checkpoints of torchtitan's layout with 64 files each; how many checkpoints."""
    per = 64
    steps = max(1, files // 2 // per)
    for number in range(files - steps * per):
        if number % 1000 == 0:
            data = folder / "data" / f"part-{number // 1000:04}"
            data.mkdir(parents=True)
        (data / f"sample_{number:06}.npy").touch()
    metadata = pickled_metadata(per - 1, 100)
    for step in range(1, steps + 1):
        here = folder / "checkpoints" / f"step-{step * 100}"
        here.mkdir(parents=True)
        for rank in range(per - 1):
            (here / f"__{rank}_0.distcp").write_bytes(b"x" * 100)
        (here / ".metadata").write_bytes(metadata)
    return steps


def write_checkpoint(folder: Path, shards: int, size: int) -> None:
    """One checkpoint of sparse files and the `.metadata` that names them."""
    folder.mkdir(parents=True)
    each = size // shards
    for rank in range(shards):
        with (folder / f"__{rank}_0.distcp").open("wb") as file:
            file.truncate(each)
    (folder / ".metadata").write_bytes(pickled_metadata(shards, each))
