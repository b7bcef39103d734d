"""Saves checkpoints until killed, in the layouts of several trainers: `python -m relight.lab.checkpoint_writers`.

The layouts are documented ones, written here; none of the trainers is run. Each has the rule by which its trainer
chooses what it goes on from, and a loader that compares nothing and trusts nothing.
"""

import hashlib
import io
import itertools
import re
import shutil
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from relight.lab import checkpoints, sharded
from relight.lab.dcp_metadata import PIECES, pickled_metadata

SHARDS = 4
SIZE = SHARDS * PIECES * 25_000
"""Bytes of a checkpoint: a million."""
EVERY = 10
"""Steps between two checkpoints."""
KEEP = 3
TRACKER = "latest_checkpointed_iteration.txt"


class DamagedError(Exception):
    """A checkpoint does not hold what was to be written."""


class Layout(NamedTuple):
    """How one kind of trainer keeps its checkpoints."""

    save: Callable[[Path, int], None]
    choose: Callable[[Path], Path | None]
    """The one that the trainer's own rule takes."""
    load: Callable[[Path], bytes]
    """All its bytes; DamagedError where that cannot be done."""
    pattern: str
    """Of the names of all checkpoints."""


def content(step: int, size: int = SIZE) -> bytes:
    """What stands in the checkpoint of a step."""
    return hashlib.shake_128(str(step).encode()).digest(size)


def step_of(path: Path) -> int:
    """The step that a name tells."""
    return int(re.findall(r"\d+", path.name)[0])


def whole(layout: Layout, path: Path) -> bool:
    """Whether every byte is as it was to be written."""
    try:
        return layout.load(path) == content(step_of(path))
    except DamagedError:
        return False


def _save_sharded(folder: Path, step: int) -> None:
    sharded.save(folder, step, content(step), ".npz")


def _load_sharded(path: Path) -> bytes:
    try:
        return sharded.load(path)
    except sharded.DamagedCheckpointError as error:
        raise DamagedError(str(error)) from error


def _save_own(folder: Path, step: int) -> None:
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w") as archive:
        archive.writestr(zipfile.ZipInfo("weights.npy"), content(step))
    checkpoints.save(folder, step, stream.getvalue(), ".npz")


def _load_own(path: Path) -> bytes:
    try:
        return zipfile.ZipFile(path).read("weights.npy")
    except (OSError, zipfile.BadZipFile, LookupError) as error:
        raise DamagedError(str(error)) from error


def _choose_own(folder: Path) -> Path | None:
    return checkpoints.newest_valid(folder, ".npz", lambda _text: None)


def _save_distributed(here: Path, step: int) -> None:
    here.mkdir(parents=True, exist_ok=True)
    each = SIZE // SHARDS
    for rank in range(SHARDS):
        (here / f"__{rank}_0.distcp").write_bytes(content(step)[rank * each : (rank + 1) * each])
    # As torch: aside and renamed, once all have written.
    aside = here / ".metadata.tmp"
    aside.write_bytes(pickled_metadata(SHARDS, each))
    aside.rename(here / ".metadata")


def _load_distributed(path: Path) -> bytes:
    try:
        (path / ".metadata").stat()
        return b"".join((path / f"__{rank}_0.distcp").read_bytes() for rank in range(SHARDS))
    except OSError as error:
        raise DamagedError(str(error)) from error


def _save_titan(folder: Path, step: int) -> None:
    _save_distributed(folder / f"step-{step}", step)
    for old in sorted(folder.glob("step-*"), key=step_of, reverse=True)[KEEP:]:
        shutil.rmtree(old, ignore_errors=True)


def _choose_titan(folder: Path) -> Path | None:
    found = [each for each in folder.glob("step-*") if (each / ".metadata").exists()]
    return max(found, key=step_of, default=None)


def _save_megatron(folder: Path, step: int) -> None:
    _save_distributed(folder / f"iter_{step:07}", step)
    (folder / TRACKER).write_text(str(step))


def _choose_megatron(folder: Path) -> Path | None:
    text = (folder / TRACKER).read_text()
    return folder / (f"iter_{int(text):07}" if text.isdecimal() else "iter_of_no_number_0")


LAYOUTS = {
    "transformers": Layout(_save_sharded, sharded.newest, _load_sharded, "checkpoint-*"),
    "torchtitan": Layout(_save_titan, _choose_titan, _load_distributed, "step-*"),
    "megatron": Layout(_save_megatron, _choose_megatron, _load_distributed, "iter_*"),
    "lab": Layout(_save_own, _choose_own, _load_own, "step_*.npz"),
}


def main(name: str, folder: str, step: str) -> None:
    """Save one checkpoint after the other, saying so, until killed."""
    print("ready", flush=True)
    for number in itertools.count(int(step), EVERY):
        LAYOUTS[name].save(Path(folder), number)
        print(number, flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
