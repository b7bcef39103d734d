"""Folders looked into within bounds, and the files of one checkpoint with their sizes.

It imports the standard library only: it runs in the process that reads a file system. Everything here that takes long
is a generator that yields after each piece of work, so that whoever runs it can stop it there.
"""

import os
import stat
from collections import deque
from collections.abc import Generator, Hashable, Iterator
from typing import NamedTuple, TypeVar

from relight.clients.files import Entry, Files, Stream, UnreachableError
from relight.domain.checkpoint_formats import ASIDE

T = TypeVar("T")
Steps = Generator[None, None, T]
"""Work done in pieces, and what comes of it."""

MOST_ENTRIES = 400_000
"""Of all folders that one look goes through."""
MOST_DEPTH = 5
"""Folders below a root: `nemo_experiments/name/date/checkpoints/x` is as deep as trainers go by themselves."""
MOST_INSIDE = 4
"""Folders below a checkpoint."""
MOST_PROBLEMS = 20
MOST_READ = 64 << 20
"""Bytes read of one file at a time: its author decides what its headers claim."""
PIECE = 500
"""Files looked at before others have a turn."""
NEVER = frozenset({"__pycache__", "node_modules", "site-packages", "wandb", "proc", "sys", "dev"})
"""Folders that hold no checkpoints, and much else."""


class ElsewhereError(OSError):
    """It lies in another file system, which must not be touched from here."""

    def __init__(self, target: str) -> None:
        super().__init__("lies in another file system")
        self.strerror = "lies in another file system"
        self.target = target


class Part(NamedTuple):
    """A file of a checkpoint."""

    path: str
    name: str
    """Its path within the checkpoint; of a checkpoint that is one file, that file's name."""
    size: int
    modified: float
    owner: int

    @property
    def base(self) -> str:
        """The last part of its name."""
        return self.name.rpartition("/")[2]

    @property
    def folder(self) -> str:
        """The folder within the checkpoint in which it lies; empty at the top."""
        return self.name.rpartition("/")[0]


class Content:
    """What belongs to one checkpoint.

    Attributes:
        path: where it is.
        name: the last part of that.
        is_folder: whether it is a folder of files.
        parts: its files by name.
        unread: what could not be looked at, and why.
        folders: the folders within.
    """

    def __init__(self, path: str, name: str, *, is_folder: bool) -> None:
        self.path, self.name, self.is_folder = path, name, is_folder
        self.parts: dict[str, Part] = {}
        self.folders: set[str] = set()
        self.unread: list[str] = []
        self.modified = 0.0
        self.owner = -1

    @property
    def size(self) -> int:
        """Bytes of all files."""
        return sum(part.size for part in self.parts.values())

    def inside(self, folder: str) -> dict[str, Part]:
        """The files of a folder, not of those within it, by their last name."""
        return {part.base: part for part in self.parts.values() if part.folder == folder}

    def has(self, name: str) -> bool:
        """Whether it has that file, with something in it."""
        part = self.parts.get(name)
        return part is not None and part.size > 0


class Tree:
    """Looks into folders until the entries that may be looked at are used up.

    Args:
        files: the file system.
        most: entries.
        most_metadata: bytes of the largest pickle that is looked at.
        owner: no other user's files are opened, wherever links lead; None: whoever's.
    """

    def __init__(
        self, files: Files, *, most: int = MOST_ENTRIES, most_metadata: int = MOST_READ, owner: int | None = None
    ) -> None:
        self.files, self.left, self.most_metadata, self.owner = files, most, most_metadata, owner
        self.problems: list[str] = []
        self.elsewhere: dict[str, str] = {}
        """Paths that lead into other file systems, and where they lead."""
        self.aliases: set[str] = set()
        """Paths of checkpoints to which a link leads that is called the last."""
        self._seen: dict[Hashable, str] = {}

    def problem(self, text: str) -> None:
        """Note what could not be looked at."""
        if len(self.problems) < MOST_PROBLEMS and text not in self.problems:
            self.problems.append(text)

    def entries(self, folder: str) -> list[Entry]:
        """What is in a folder, sorted; nothing when it was seen before (links can go in circles).

        Raises:
            OSError: it cannot be read.
        """
        place = self.files.place(folder)
        if place in self._seen:
            return []
        self._seen[place] = folder
        if self.left <= 0:
            self.problem(f"{folder}: not looked into, so much was there before it")
            return []
        found = self.files.listing(folder, self.left)
        self.left -= len(found)
        if self.left <= 0:
            self.problem(f"{folder}: not looked at to its end, so much is there")
        return sorted(found, key=lambda entry: entry.name)

    def forget(self, folder: str) -> None:
        """Let a folder be looked into once more."""
        self._seen.pop(self.files.place(folder), None)

    def _first(self, folder: str) -> str | None:
        """The path by which this folder was looked into before."""
        try:
            return self._seen.get(self.files.place(folder))
        except OSError:
            return None

    def is_folder(self, entry: Entry) -> bool | None:
        """Whether it is a folder; None when it leads to another file system, which is noted."""
        try:
            return entry.is_dir()
        except ElsewhereError as error:
            self.elsewhere[entry.path] = error.target
        except OSError:
            return False
        return None

    def content(self, entry: Entry, *, is_folder: bool) -> Steps[Content | None]:
        """The files of a checkpoint, with their sizes; None when it is another name of one that was looked into."""
        content = Content(entry.path, entry.name, is_folder=is_folder)
        if not is_folder:
            self._add(content, entry, entry.name)
            return content
        if first := self._first(entry.path):
            if "last" in entry.name or "latest" in entry.name:
                self.aliases.add(first)
            return None
        waiting: deque[tuple[str, str, int]] = deque([(entry.path, "", 0)])
        while waiting:
            path, inside, depth = waiting.popleft()
            try:
                entries = self.entries(path)
            except OSError as error:
                content.unread.append(f"{inside or entry.name}: {error.strerror or error}")
                continue
            yield
            for number, each in enumerate(entries):
                name = f"{inside}/{each.name}" if inside else each.name
                if self._is_inside(content, each, name, depth):
                    waiting.append((each.path, name, depth + 1))
                if number % PIECE == PIECE - 1:
                    yield
        if not content.parts and (found := self._stat(entry)):
            content.modified, content.owner = found.st_mtime, found.st_uid
        return content

    def _is_inside(self, content: Content, entry: Entry, name: str, depth: int) -> bool:
        """Take a file of a checkpoint; True for a folder that must be looked into."""
        kind = self.is_folder(entry)
        if kind is None:
            content.unread.append(f"{name} lies in another file system")
        elif not kind:
            self._add(content, entry, name)
        elif depth < MOST_INSIDE:
            content.folders.add(name)
            return True
        else:
            content.unread.append(f"{name} is too deep to look into")
        return False

    def _stat(self, entry: Entry) -> os.stat_result | None:
        try:
            return entry.stat()
        except OSError:
            return None

    def _add(self, content: Content, entry: Entry, name: str) -> None:
        try:
            found = entry.stat()
        except FileNotFoundError:
            # A link to nowhere, or removed at this moment.
            content.unread.append(f"{name} leads nowhere")
            return
        except OSError as error:
            content.unread.append(f"{name}: {error.strerror or error}")
            return
        if stat.S_ISREG(found.st_mode):
            content.parts[name] = Part(entry.path, name, found.st_size, found.st_mtime, found.st_uid)
            content.modified = max(content.modified, found.st_mtime)
            content.owner = found.st_uid

    def opened(self, path: str) -> "Limited":
        """A file of which only so much is read at a time.

        Raises:
            OSError: it cannot be read, or is another user's.
        """
        file = self.files.open(path)
        if self.owner is not None and file.stat().st_uid != self.owner:
            file.close()
            raise OSError("belongs to another user")
        return Limited(file)

    def text(self, path: str, most: int = 4096) -> str:
        """The beginning of a small file.

        Raises:
            OSError: it cannot be read.
        """
        with self.opened(path) as file:
            return (file.read(most) or b"").decode("utf-8", "replace")


class Limited(Stream):
    """A file of which only so much is read at a time."""

    limit = MOST_READ

    def read(self, size: int | None = -1, /) -> bytes:
        """Read; ValueError where that is more than the limit."""
        wanted = self.limit + 1 if size is None or size < 0 else size
        data = super().read(min(wanted, self.limit + 1)) or b""
        if len(data) > self.limit:
            raise ValueError("too much to read")
        return data


def walk(tree: Tree, root: str) -> Iterator[tuple[str, list[Entry], int]]:
    """Each folder below a root with what is in it, near ones first, and how deep it lies.

    Whoever takes this may remove entries of the list: what is gone from it is not looked into.
    """
    waiting: deque[tuple[str, int]] = deque([(root, 0)])
    while waiting:
        folder, depth = waiting.popleft()
        try:
            entries = tree.entries(folder)
        except ElsewhereError as error:
            tree.elsewhere[folder] = error.target
            continue
        except UnreachableError as error:
            tree.problem(f"{folder}: {error}")
            return
        except (OSError, ValueError) as error:
            tree.problem(f"{folder}: {_why(error)}")
            continue
        yield folder, entries, depth
        for entry in entries:
            hidden = entry.name.startswith((".", ASIDE)) or entry.name in NEVER
            # Asked first: nearly all entries of a large tree are files, and DirEntry knows that by itself.
            if tree.is_folder(entry) and not hidden:
                if depth < MOST_DEPTH:
                    waiting.append((entry.path, depth + 1))
                else:
                    tree.problem(f"{folder}: folders in it are too deep to look into")


def _why(error: Exception) -> str:
    if isinstance(error, FileNotFoundError | NotADirectoryError):
        return "no such folder"
    return str(getattr(error, "strerror", None) or error)
