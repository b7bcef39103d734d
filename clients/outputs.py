"""The folder of kept outputs, `<job>/<incident>/<file>`: listed, read and thinned out, never past a symbolic link.

Everything here blocks: for a thread.
"""

import os
import re
import stat
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from pathlib import Path

from relight.domain.kept_outputs import KeptOutput

MOST = 200_000
"""Copies that are listed; of more the rest is left where it is."""
_JOB = re.compile(r"[1-9][0-9]{0,18}")
_INCIDENT = re.compile(r"i[0-9a-z]{1,63}")
_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


class KeptOutputs:
    """What lies below one folder; what is no copy of ours there (evidence on nodes, a person's file) is left alone.

    Args:
        folder: may be missing, as before the first copy.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def listing(self, job_id: int | None = None) -> tuple[KeptOutput, ...]:
        """All copies, or those of one job.

        Raises:
            OSError: the folder cannot be read.
        """
        found: list[KeptOutput] = []
        try:
            with _opened(self._folder) as root:
                for job in _names(root, _JOB):
                    if job_id is None or job == str(job_id):
                        found += self._of_job(root, job, MOST - len(found))
        except FileNotFoundError:
            return ()
        return tuple(found)

    def _of_job(self, root: int, job: str, most: int) -> list[KeptOutput]:
        found: list[KeptOutput] = []
        with suppress(FileNotFoundError), _opened(job, root) as there:
            for incident in _names(there, _INCIDENT):
                with suppress(FileNotFoundError), _opened(incident, there) as here:
                    found += self._of_incident(here, job, incident, most - len(found))
        return found

    def _of_incident(self, here: int, job: str, incident: str, most: int) -> list[KeptOutput]:
        found: list[KeptOutput] = []
        for name in os.listdir(here):
            if len(found) >= most:
                break
            with suppress(FileNotFoundError):
                about = os.stat(name, dir_fd=here, follow_symlinks=False)
                if stat.S_ISREG(about.st_mode) and not name.startswith("."):
                    path = str(self._folder / job / incident / name)
                    at = datetime.fromtimestamp(about.st_mtime, UTC)
                    found.append(KeptOutput(int(job), incident, name, about.st_size, at, path))
        return found

    def remove(self, gone: Iterable[KeptOutput]) -> tuple[KeptOutput, ...]:
        """Delete these, and what folders they leave empty; returns those that were there.

        Raises:
            OSError: one could not be deleted.
        """
        removed = []
        with _opened(self._folder) as root:
            for each in gone:
                job = str(each.job_id)
                try:
                    with _opened(job, root) as there, _opened(each.incident, there) as here:
                        about = os.stat(each.name, dir_fd=here, follow_symlinks=False)
                        if not stat.S_ISREG(about.st_mode):
                            continue
                        os.unlink(each.name, dir_fd=here)
                        removed.append(each)
                        with suppress(OSError):  # not empty yet
                            os.rmdir(each.incident, dir_fd=there)
                    with suppress(OSError):
                        os.rmdir(job, dir_fd=root)
                except FileNotFoundError:
                    continue
        return tuple(removed)

    def tail(self, kept: KeptOutput, most: int) -> bytes:
        """The last `most` bytes of one copy.

        Raises:
            OSError: it cannot be read.
        """
        with (
            _opened(self._folder) as root,
            _opened(str(kept.job_id), root) as there,
            _opened(kept.incident, there) as here,
        ):
            file = os.open(kept.name, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK, dir_fd=here)
            with os.fdopen(file, "rb") as copy:
                size = os.fstat(copy.fileno()).st_size
                copy.seek(max(0, size - most))
                return copy.read(most)


@contextmanager
def _opened(path: Path | str, within: int | None = None) -> Iterator[int]:
    """A folder; a link to one, in its last part, is refused (OSError), as is anything else."""
    handle = os.open(path, _FOLDER, dir_fd=within)
    try:
        yield handle
    finally:
        os.close(handle)


def _names(folder: int, pattern: re.Pattern[str]) -> list[str]:
    """The folders in it with such names; links are none."""
    found = []
    for name in os.listdir(folder):
        with suppress(FileNotFoundError):
            if pattern.fullmatch(name) and stat.S_ISDIR(os.stat(name, dir_fd=folder, follow_symlinks=False).st_mode):
                found.append(name)
    return sorted(found)
