"""Hyperscan's compiled patterns in the user's cache: compiling hundreds takes a second, reading them a millisecond.

A compiled database is as good as code. So it is read only where nobody but this user can have written it, and only
whole: from a folder and a file that are the user's own and that no one else may write, with the digest that it was
written with. Anything else, and any failure, means that it is compiled anew.
"""

import hashlib
import os
import stat
import tempfile
from contextlib import suppress
from pathlib import Path

MOST_KEPT = 16
"""Databases that are kept, the newest: old versions' and old catalogues' go."""
MOST_BYTES = 64 << 20
"""A larger file is none of ours."""
_DIGEST = hashlib.sha256
_HEAD = _DIGEST().digest_size


def folder() -> Path | None:
    """`relight/scan` in `$XDG_CACHE_HOME` or in `~/.cache`; None where the user has no home."""
    try:
        base = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    except RuntimeError:  # no HOME, and the user is in no passwd
        return None
    return base / "relight" / "scan" if base.is_absolute() else None


def read(key: str) -> bytes | None:
    """The database kept under this key, or None."""
    place = folder()
    try:
        if place is None or not _ours(os.lstat(place), stat.S_ISDIR):
            return None
        handle = os.open(place / key, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
        with os.fdopen(handle, "rb") as file:
            if not _ours(os.fstat(handle), stat.S_ISREG):
                return None
            content = file.read(MOST_BYTES)
    except OSError:
        return None
    head, database = content[:_HEAD], content[_HEAD:]
    return database if head == _DIGEST(database).digest() else None


def write(key: str, database: bytes) -> None:
    """Keep a database, whole or not at all; silently not where that is impossible."""
    place = folder()
    if place is None:
        return
    with suppress(OSError):
        place.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        with suppress(FileExistsError):
            place.mkdir(mode=0o700)
        if not _ours(os.lstat(place), stat.S_ISDIR):
            return
        handle, fresh = tempfile.mkstemp(dir=place)  # mode 0600
        try:
            with os.fdopen(handle, "wb") as file:
                file.write(_DIGEST(database).digest() + database)
            Path(fresh).replace(place / key)
        except OSError:
            Path(fresh).unlink(missing_ok=True)
            return
        _forget(place)


def _ours(entry: os.stat_result, kind: object) -> bool:
    writable = entry.st_mode & (stat.S_IWGRP | stat.S_IWOTH)
    return callable(kind) and kind(entry.st_mode) and entry.st_uid == os.geteuid() and not writable


def _forget(place: Path) -> None:
    rows = sorted(((entry.stat().st_mtime, entry.path) for entry in os.scandir(place)), reverse=True)
    for _, path in rows[MOST_KEPT:]:
        Path(path).unlink(missing_ok=True)
