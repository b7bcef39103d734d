"""The kill switch: a file. While it is there, nothing is touched. It is looked at each time, and no answer is kept."""

import stat
from datetime import timedelta
from pathlib import Path

from relight.clients.log_files import Bounded
from relight.clients.logs import LogError
from relight.domain.base import clip

LOOKED_WITHIN = timedelta(seconds=5)
READ_WITHIN = timedelta(seconds=1)
"""For the file's first line. What it says is worth no longer wait: that it is there counts."""

# Threads of their own: those of `asyncio.to_thread` may all stand still with something else.
_looks, _reads = Bounded(LOOKED_WITHIN), Bounded(READ_WITHIN)


class KillSwitchUnknownError(Exception):
    """Whether the file is there cannot be found out now: neither yes nor no. Trying again helps once it can."""


async def killed(file: Path | None) -> str:
    """Why the kill switch is on: that the file is there, whatever it is, and its first line. Empty: it is off.

    Raises:
        KillSwitchUnknownError: when the file system does not answer in time, or does not let us look.
    """
    if file is None:
        return ""
    try:
        mode = await _looks.run(str(file), lambda: _mode(file))
    except LogError as error:
        raise KillSwitchUnknownError(f"the kill switch cannot be looked for: {error}") from error
    if mode is None:
        return ""
    return f"{file} is there{await _said(file) if stat.S_ISREG(mode) else ''}"


def _mode(file: Path) -> int | None:
    """What kind of file it is (`st_mode`), of a link the link's own; None where there is none."""
    try:
        return file.lstat().st_mode
    except (FileNotFoundError, NotADirectoryError):
        return None


async def _said(file: Path) -> str:
    """The first line: why the file was put there; nothing where it cannot be read."""
    try:
        first = await _reads.run(str(file), lambda: _first_line(file))
    except LogError:
        return ""
    return f": {clip(first, 200)}" if first else ""


def _first_line(file: Path) -> str:
    with file.open("rb") as opened:
        lines = opened.read(400).decode(errors="replace").strip().splitlines()
    return lines[0] if lines else ""
