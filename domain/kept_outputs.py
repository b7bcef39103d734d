"""Outputs of failed attempts that Relight has kept: which of them go. Pure."""

from collections.abc import Collection, Iterable
from datetime import datetime, timedelta
from pathlib import PurePosixPath
from typing import NamedTuple


class KeptOutput(NamedTuple):
    """One copy: `<job>/<incident>/<file>` below the folder of kept outputs."""

    job_id: int
    incident: str
    name: str
    size: int
    """Bytes of it: head and tail of what the attempt wrote."""
    kept_at: datetime
    path: str

    @property
    def original(self) -> str:
        """The name that the file had: behind it stand a dot and twelve digits."""
        return PurePosixPath(self.name).stem or self.name


def expired(
    kept: Iterable[KeptOutput],
    now: datetime,
    *,
    keep_for: timedelta,
    keep_at_most: int,
    open_incidents: Collection[str],
) -> tuple[KeptOutput, ...]:
    """What goes: older than that; and, where all that is left is too much, the oldest first.

    Args:
        kept: all there are.
        now: the time.
        keep_for: how long each stays.
        keep_at_most: bytes of all together.
        open_incidents: nothing of these goes, however old and however much it is.
    """
    oldest = sorted(kept, key=lambda each: (each.kept_at, each.path))
    left = sum(each.size for each in oldest)
    gone = []
    for each in oldest:
        if each.incident in open_incidents:
            continue
        if now - each.kept_at > keep_for or left > keep_at_most:
            gone.append(each)
            left -= each.size
    return tuple(gone)
