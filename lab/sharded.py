"""Checkpoints as the Trainer of transformers leaves them, for the lab's training job: `checkpoint-120`.

Two files of safetensors with their list, and `trainer_state.json`, which is written last. Written in place, as it does:
a crash within a save leaves a part. And like it, a start takes the highest number whatever is in it: where that is
damaged, the start fails. Nothing of transformers is used: the layout is written as documented.
"""

import json
import re
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

KEEP = 3
SHARDS = 2
STATE = "trainer_state.json"
_LENGTH = 8
"""Bytes of the length of a safetensors header."""


class DamagedCheckpointError(ValueError):
    """The checkpoint cannot be loaded; the message says why, in the words of safetensors."""


def save(folder: Path, step: int, content: bytes, suffix: str) -> Path:  # noqa: ARG001 - as `checkpoints.save`
    """Write a checkpoint, remove all but the newest three, and return its path."""
    here = folder / f"checkpoint-{step}"
    here.mkdir(parents=True, exist_ok=True)
    each = -(-len(content) // SHARDS)
    for number in range(SHARDS):
        _write_shard(here / shard(number), f"part.{number}", content[number * each : (number + 1) * each])
    names = {f"part.{number}": shard(number) for number in range(SHARDS)}
    index = {"metadata": {"total_size": len(content)}, "weight_map": names}
    (here / "model.safetensors.index.json").write_text(json.dumps(index))
    (here / STATE).write_text(json.dumps({"global_step": step}))
    for old in _newest_first(folder)[KEEP:]:
        shutil.rmtree(old, ignore_errors=True)
    return here


def newest(folder: Path) -> Path | None:
    """The checkpoint with the highest number, as `get_last_checkpoint` of transformers chooses."""
    return next(iter(_newest_first(folder)), None)


def shard(number: int) -> str:
    """Name of one of its files, counted from 0."""
    return f"model-{number + 1:05}-of-{SHARDS:05}.safetensors"


def step_of(checkpoint: Path) -> int:
    """The step that its name tells."""
    return int(checkpoint.name.rpartition("-")[2])


def load(checkpoint: Path) -> bytes:
    """Its content.

    Raises:
        DamagedCheckpointError: something is missing or cut short.
    """
    if not (checkpoint / STATE).is_file():
        raise DamagedCheckpointError(f"{checkpoint}: no {STATE}")
    return b"".join(_read_shard(checkpoint / shard(number), f"part.{number}") for number in range(SHARDS))


@contextmanager
def joined(checkpoint: Path, suffix: str) -> Iterator[Path]:
    """Its content as one file, for as long as it is needed."""
    with tempfile.NamedTemporaryFile(suffix=suffix) as file:
        file.write(load(checkpoint))
        file.flush()
        yield Path(file.name)


def _newest_first(folder: Path) -> list[Path]:
    found = [each for each in folder.glob("checkpoint-*") if re.fullmatch(r"checkpoint-\d+", each.name)]
    return sorted(found, key=step_of, reverse=True)


def _write_shard(file: Path, name: str, data: bytes) -> None:
    header = json.dumps({name: {"dtype": "U8", "shape": [len(data)], "data_offsets": [0, len(data)]}}).encode()
    file.write_bytes(len(header).to_bytes(_LENGTH, "little") + header + data)


def _read_shard(file: Path, name: str) -> bytes:
    try:
        content = file.read_bytes()
        length = int.from_bytes(content[:_LENGTH], "little")
        begin, end = json.loads(content[_LENGTH : _LENGTH + length])[name]["data_offsets"]
    except OSError as error:
        raise DamagedCheckpointError(f"{file}: {error.strerror}") from error
    except (ValueError, LookupError, TypeError) as error:
        raise DamagedCheckpointError(f"{file}: Error while deserializing header: invalid header") from error
    data = content[_LENGTH + length :][begin:end]
    if len(data) != end - begin or len(content) != _LENGTH + length + end:
        text = "Error while deserializing header: incomplete metadata, file not fully covered"
        raise DamagedCheckpointError(f"{file}: {text}")
    return data
