"""The process that looks at the checkpoints of one file system, started as `python -m` and killed when it hangs.

It imports the standard library, and modules of ours that do the same. The messages are those of `log_reader`: their
length and JSON. A request is a list of one `Wish`; the answer is a list of one of

    ["more", bytes read]       at work: ask the same again
    ["done", root, result]     the root without links, and `checkpoint_survey.Survey.result`
    ["led", path]              look there: the root is no folder, or in another file system, not to be touched from here
    ["missing", why]
    ["unreadable", why]

A turn is short, so that whoever asks can tell a long look from a file system that hangs. What the pickles of strangers
may claim in memory is limited for the whole process.
"""

import gc
import json
import os
import resource
import stat
import sys
import time
from collections.abc import Hashable, Mapping
from typing import Any, NamedTuple

from relight.clients.checkpoint_survey import Survey
from relight.clients.checkpoint_tree import ElsewhereError, Tree
from relight.clients.files import Entry, LocalFiles, OpenFile
from relight.clients.log_reader import HEADER

TURN = 0.5
"""Seconds after which an answer is given."""
MEMORY = 2 << 30
"""Bytes of address space."""
MOST_LINKS = 40
MOST_METADATA = 512 << 20


class Wish(NamedTuple):
    """What is asked for."""

    path: str
    """The root, as it was named."""
    number: int
    """The same for all turns of one look."""
    place: str
    """The file system that may be touched."""
    mounts: Mapping[str, str]
    """All mount points, and what each fails together with (`log_readers.Mount.place`)."""
    owner: int | None = None
    every: bool = False
    deep: bool = False
    stop: bool = False
    """Tell what is known, and forget the rest."""


class OneMount(LocalFiles):
    """Files of one file system: what leads into another is not touched.

    Args:
        place: that file system.
        mounts: places by mount point.
        private: folders that are never looked into.
    """

    def __init__(self, place: str, mounts: Mapping[str, str], private: tuple[str, ...] = ()) -> None:
        self._place, self._mounts = place, mounts
        self._private = tuple(folder.rstrip("/") + "/" for folder in private)
        self._known: set[str] = {"/"}
        """Folders that are known to be no links and of this file system."""

    def resolved(self, path: str) -> str:
        """The path without links, each looked at only where it is of this file system.

        Raises:
            ElsewhereError: it leads elsewhere.
            OSError: it cannot be looked at.
        """
        rest = [part for part in reversed(path.split("/")) if part not in ("", ".")]
        here, links = "", 0
        while rest:
            part = rest.pop()
            if part == "..":
                here = here.rpartition("/")[0]
                continue
            there = f"{here}/{part}"
            if there not in self._known:
                if self._of(there) != self._place:
                    # A mount point is no link. What lies above one may be of any file system, and is asked there.
                    if not rest or not self._leads_back(there, rest):
                        raise ElsewhereError("/".join([there, *reversed(rest)]))
                    here = there
                    continue
                mode = os.lstat(there).st_mode
                if stat.S_ISLNK(mode):
                    links += 1
                    if links > MOST_LINKS:
                        raise OSError("too many levels of symbolic links")
                    target = os.readlink(there)  # noqa: PTH115
                    rest += [each for each in reversed(target.split("/")) if each not in ("", ".")]
                    here = "" if target.startswith("/") else here
                    continue
                if stat.S_ISDIR(mode):
                    self._known.add(there)
            here = there
        if f"{here}/".startswith(self._private):
            raise OSError("leads into a private folder")
        return here or "/"

    def open(self, path: str) -> OpenFile:  # type: ignore[override]
        """Open a regular file of this file system."""
        return super().open(self.resolved(path))

    def listing(self, folder: str, most: int) -> list[Entry]:
        """What is in a folder; links and mount points as `_Guarded`."""
        real = self.resolved(folder)
        found = super().listing(real, most)
        plain = real == folder.rstrip("/")
        return [
            each
            if plain and not each.is_symlink() and each.path not in self._mounts  # type: ignore[attr-defined]
            else _Guarded(self, f"{folder.rstrip('/')}/{each.name}", each.name)
            for each in found
        ]

    def place(self, folder: str) -> Hashable:
        """Device and inode."""
        return super().place(self.resolved(folder))

    def space(self, folder: str) -> tuple[int, int, int | None]:
        """What statvfs tells."""
        return super().space(self.resolved(folder))

    def _of(self, path: str) -> str:
        while path:
            if path in self._mounts:
                return self._mounts[path]
            path = path.rpartition("/")[0]
        return self._mounts.get("/", "/")

    def _leads_back(self, there: str, rest: list[str]) -> bool:
        """Whether a mount point of this file system lies below, on the way: then what is above it is no link."""
        return any(
            f"{there}/{'/'.join(reversed(rest))}/".startswith(f"{point}/") and point.startswith(f"{there}/")
            for point, place in self._mounts.items()
            if place == self._place
        )


class _Guarded:
    """An entry that may lead into another file system."""

    def __init__(self, files: OneMount, path: str, name: str) -> None:
        self._files, self.path, self.name = files, path, name

    def is_dir(self) -> bool:
        """Whether it is a folder, links followed."""
        try:
            return stat.S_ISDIR(self.stat().st_mode)
        except FileNotFoundError:
            return False

    def stat(self) -> os.stat_result:
        """Its attributes, links followed."""
        return os.stat(self._files.resolved(self.path))  # noqa: PTH116


class Reader:
    """Answers wishes, one look at a time."""

    def __init__(self, private: tuple[str, ...], here: int) -> None:
        self._private, self._here = private, here
        self._number = -1
        self._root = ""
        self._survey: Survey | None = None
        self._steps: Any = None

    def answer(self, wish: Wish) -> list[Any]:
        """Go on with a look, or begin one."""
        os.pwrite(self._here, HEADER.pack(0), 0)
        try:
            if wish.number != self._number:
                self._begin(wish)
            return self._go_on(stop=wish.stop)
        except ElsewhereError as error:
            return ["led", error.target]
        except (FileNotFoundError, NotADirectoryError):
            return ["missing", "no such folder"]
        except OSError as error:
            return ["unreadable", error.strerror or str(error)]
        except (ValueError, MemoryError) as error:
            return ["unreadable", str(error) or type(error).__name__]

    def _begin(self, wish: Wish) -> None:
        self._number, self._survey = -1, None
        files = OneMount(wish.place, wish.mounts, self._private)
        self._root = files.resolved(wish.path)
        if not stat.S_ISDIR(os.stat(self._root).st_mode):  # noqa: PTH116
            raise ElsewhereError(self._root.rpartition("/")[0] or "/")
        survey = Survey(
            Tree(files, most_metadata=MOST_METADATA, owner=wish.owner), self._root, every=wish.every, deep=wish.deep
        )
        self._number, self._survey, self._steps = wish.number, survey, survey.steps()

    def _go_on(self, *, stop: bool) -> list[Any]:
        survey, until = self._survey, time.monotonic() + TURN
        if survey is None:
            return ["unreadable", "nothing is being looked at"]
        if not stop:
            try:
                while time.monotonic() < until:
                    next(self._steps)
            except StopIteration:
                stop = True
            except MemoryError:
                survey.give_up("too much memory would be needed")
                stop = True
        if not stop:
            return ["more", survey.read]
        self._number, self._survey, self._steps = -1, None, None
        return ["done", self._root, survey.result()]


def main() -> None:
    """Answer requests until there are no more."""
    _mount, private, here = sys.argv[1:]
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
    # Millions of small lists, and no circles among them: looking for those takes half the time.
    gc.disable()
    reader = Reader(tuple(json.loads(private)), int(here))
    stdin, stdout = sys.stdin.buffer, sys.stdout.buffer
    while header := stdin.read(HEADER.size):
        wishes = json.loads(stdin.read(*HEADER.unpack(header)))
        answer = json.dumps([reader.answer(Wish(*wish)) for wish in wishes]).encode()
        stdout.write(HEADER.pack(len(answer)) + answer)
        stdout.flush()


if __name__ == "__main__":
    main()
