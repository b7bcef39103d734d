"""Checkpoints that survive a crash at any moment, and that are not trusted when damaged.

A checkpoint is `step_000120.npz` (or `.pt`) with its SHA-256 beside it in `step_000120.npz.sha256`. Both are
written aside, synced and renamed, the digest last; so a file without a digest is an unfinished checkpoint.
"""

import hashlib
import os
import re
from collections.abc import Callable, Iterator
from pathlib import Path

KEEP = 3


def save(folder: Path, step: int, content: bytes, suffix: str) -> Path:
    """Write a checkpoint, remove all but the newest three, and return its path."""
    folder.mkdir(parents=True, exist_ok=True)
    file = folder / f"step_{step:06}{suffix}"
    _write(file, content)
    _write(_digest_file(file), hashlib.sha256(content).hexdigest().encode() + b"\n")
    for old in list(_newest_first(folder, suffix))[KEEP:]:
        old.unlink(missing_ok=True)
        _digest_file(old).unlink(missing_ok=True)
    return file


def newest_valid(folder: Path, suffix: str, warn: Callable[[str], None]) -> Path | None:
    """Return the newest checkpoint whose content matches its digest; `warn` of each that is passed over."""
    for file in _newest_first(folder, suffix):
        if damage := _damage(file):
            warn(f"skipping damaged checkpoint {file}: {damage}")
        else:
            return file
    return None


def step_of(file: Path) -> int:
    """Return the step that a checkpoint's name tells."""
    return int(file.name.removeprefix("step_").split(".")[0])


def _newest_first(folder: Path, suffix: str) -> Iterator[Path]:
    found = [file for file in folder.glob(f"step_*{suffix}") if re.fullmatch(r"step_\d+", file.name[: -len(suffix)])]
    yield from sorted(found, key=step_of, reverse=True)


def _damage(file: Path) -> str | None:
    try:
        wanted = _digest_file(file).read_text().strip()
        content = file.read_bytes()
    except OSError as error:
        return f"{error.strerror} ({error.filename})"
    return None if hashlib.sha256(content).hexdigest() == wanted else "its checksum does not match"


def _digest_file(file: Path) -> Path:
    return file.with_name(file.name + ".sha256")


def _write(file: Path, content: bytes) -> None:
    aside = file.with_name(f".{file.name}.{os.getpid()}")
    with aside.open("wb") as stream:
        stream.write(content)
        stream.flush()
        os.fsync(stream.fileno())
    aside.rename(file)
