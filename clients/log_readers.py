"""Logs on this machine's file systems, each read by a process of its own: one that hangs blinds only its own jobs.

Nothing else here touches a file system, but `size`, `ahead`, `open` and `keep`, which have threads (`log_files.py`).
"""

import asyncio
import os
import re
from collections.abc import Mapping, Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any, NamedTuple, Self

from relight.clients import log_reader as program
from relight.clients.log_files import LogFiles
from relight.clients.log_reader_process import MountReader
from relight.clients.logs import Asked, Chunk, Cursor, LogError, LogNotFoundError, LogUnreadableError

MOST_BYTES = 1 << 20
"""Taken from one file at a time."""
MOST_PROCESSES = 32
"""File systems beyond so many share one process."""
OTHERS = "other file systems"
LOOK_AGAIN = 5.0
"""Seconds after which it is looked anew what is mounted."""
LINKS_LAST = 30.0
"""Seconds for which a link is taken to lead where it led."""
MOST_LINKS = 40
"""On the way to one file, as in the kernel."""
REMEMBERED = 100_000
_ESCAPED = re.compile(r"\\([0-7]{3})")


class Mount(NamedTuple):
    """Something mounted."""

    point: str
    place: str
    """What fails together: the mount point, or the server for which one of NFS stands (homes are a mount each)."""


def parse_mounts(text: str) -> dict[str, Mount]:
    """What `/proc/self/mountinfo` says (proc_pid_mountinfo(5)), by mount point.

    A line is `36 35 98:0 /mnt1 /mnt2 rw,noatime master:1 - ext3 /dev/root rw,errors=continue`.
    """
    mounts = {}
    for line in text.splitlines():
        before, _, after = line.partition(" - ")
        fields, kind = before.split(" "), after.split(" ")
        if len(fields) < 5 or len(kind) < 2:  # noqa: PLR2004 - not such a line
            continue
        point = _ESCAPED.sub(lambda found: chr(int(found[1], 8)), fields[4])
        server, colon, _ = kind[1].rpartition(":/")
        mounts[point] = Mount(point, f"NFS server {server}" if colon and kind[0].startswith("nfs") else point)
    return mounts


def mount_of(path: str, mounts: Mapping[str, Mount]) -> Mount:
    """Where a path's own name lies, links not looked at: the longest mount point that it begins with."""
    while path:
        if path in mounts:
            return mounts[path]
        path = path.rpartition("/")[0]
    return mounts.get("/", Mount("/", "/"))


class LogReaders(LogFiles):
    """Implements `Logs` for regular files of this machine. To be entered; at its exit the processes are ended.

    Args:
        timeout: how long a file system may take to answer; its process is killed after that.
        private: folders that are never read from.
        mountinfo: what tells the mounts.
    """

    def __init__(
        self,
        *,
        timeout: timedelta = timedelta(seconds=5),
        private: tuple[Path, ...] = (),
        mountinfo: Path = Path("/proc/self/mountinfo"),
    ) -> None:
        super().__init__(timeout=timeout, private=private)
        self._timeout = timeout.total_seconds()
        self._hidden = [str(path.resolve()) for path in private]
        self._mountinfo = mountinfo
        self._mounts: dict[str, Mount] = {}
        self._looked = float("-inf")
        self._found: dict[str, Mount] = {}
        self._links: dict[str, tuple[str, float]] = {}
        self._readers: dict[str, MountReader] = {}

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        readers, self._readers = self._readers, {}
        await asyncio.gather(*(reader.close() for reader in readers.values()))

    def place(self, path: str) -> str:
        """What this file fails with: its file system. Nothing of it is touched."""
        return self._mount(self._followed(path)).place

    async def read_new(self, path: str, cursor: Cursor | None, *, max_bytes: int = 4 << 20) -> Chunk:
        """Lines added since `cursor`; with None, from the last `max_bytes`; with `Cursor()`, from the start.

        A progress bar that is redrawn with carriage returns yields its newest complete state without waiting
        for the end of its line; a line of more than 1 MiB comes in pieces.
        """
        for _ in range(MOST_LINKS):
            (found,) = await self._read_many((Asked(path, cursor),), max_bytes)
            if isinstance(found, LogError):
                raise found
            if found is not None:
                return found
        raise LogUnreadableError(f"{path}: too many links, or they change all the time")

    async def read_many(self, asked: Sequence[Asked]) -> list[Chunk | LogError | None]:
        """What is new in each, in their order: all of a file system in one question to its process.

        Where None stands, that file was not come to; ask again. It is bounded: 1 MiB of a file, and when so much, or a
        second, has been taken in all of a file system, nothing more.
        """
        return await self._read_many(asked, MOST_BYTES)

    async def _read_many(self, asked: Sequence[Asked], most: int) -> list[Chunk | LogError | None]:
        batches: dict[str, list[int]] = {}
        real = [self._followed(each.path) for each in asked]
        mounts = [self._mount(path) for path in real]
        for number, mount in enumerate(mounts):
            batches.setdefault(mount.place, []).append(number)
        answers: list[Chunk | LogError | None] = [None] * len(asked)

        async def ask(place: str, numbers: list[int]) -> None:
            wishes = [_wish(real[number], asked[number], most) for number in numbers]
            try:
                found = await self._reader(place, mounts[numbers[0]].point).ask(wishes)
            except LogUnreadableError as error:
                for number in numbers:
                    answers[number] = LogUnreadableError(f"{asked[number].path}: {error}")
                return
            for number, wish, answer in zip(numbers, wishes, found, strict=False):
                answers[number] = self._told(asked[number], wish, answer)

        await asyncio.gather(*(ask(place, numbers) for place, numbers in batches.items()))
        return answers

    def _told(self, asked: Asked, wish: program.Wish, answer: list[Any]) -> Chunk | LogError | None:
        kind, *rest = answer
        if kind == "same" and asked.cursor:
            return Chunk(lines=(), cursor=asked.cursor)
        if kind == "read":
            lines, place, restarted, more, skipped = rest
            inode, offset, mark = place
            cursor = Cursor(inode=inode, offset=offset, mark=mark)
            return Chunk(lines=lines, cursor=cursor, restarted=restarted, more=more, skipped=skipped)
        if kind == "led":
            return self._led(asked.path, wish.path, rest[0])
        error = LogNotFoundError if kind == "missing" else LogUnreadableError
        return error(f"{asked.path!r}: {rest[0]}" if "\0" in asked.path else f"{asked.path}: {rest[0]}")

    def _led(self, path: str, link: str, target: str) -> LogError | None:
        """Remember where a link leads: its target is read the next time, by the process of *its* file system."""
        if len(self._links) > REMEMBERED:
            self._links.clear()
        self._links[link] = target, _now() + LINKS_LAST
        if self._followed(path) in self._links:
            return LogUnreadableError(f"{path}: too many levels of symbolic links")
        return None

    def _followed(self, path: str) -> str:
        """The path with the links that are known; it is in `_links` itself when these go round in a circle."""
        now = _now()
        path = path if path.startswith("/") else os.path.abspath(path)  # noqa: PTH100 - touches nothing
        for _ in range(MOST_LINKS):
            target, until = self._links.get(path, ("", 0.0))
            if not target:
                break
            if now > until:
                del self._links[path]
                break
            path = target
        return path

    def _mount(self, path: str) -> Mount:
        if _now() - self._looked >= LOOK_AGAIN:
            # It tells of mounts and asks none of them.
            mounts = parse_mounts(self._mountinfo.read_text(errors="surrogateescape"))
            self._looked = _now()
            if mounts != self._mounts or len(self._found) > REMEMBERED:
                self._mounts, self._found = mounts, {}
            for name in [name for name, reader in self._readers.items() if reader.idle]:
                self._readers.pop(name).end()
        found = self._found.get(path)
        if found is None:
            found = self._found[path] = mount_of(path, self._mounts)
        return found

    def _reader(self, place: str, mount: str) -> MountReader:
        place = place if place in self._readers or len(self._readers) < MOST_PROCESSES else OTHERS
        if place not in self._readers:
            self._readers[place] = MountReader(place, mount, self._hidden, self._timeout)
        return self._readers[place]


def _wish(path: str, asked: Asked, most: int) -> program.Wish:
    at = asked.cursor
    return program.Wish(path, program.Place(at.inode, at.offset, at.mark) if at else None, most, asked.far)


def _now() -> float:
    return asyncio.get_running_loop().time()
