"""The process that reads the logs of one file system, and what it shares with other readers of logs.

This program is self-contained: it imports the standard library only, and is started by its path, without the site's
packages, so that one of it costs a few MiB. `relight.clients.log_readers` talks to it, and kills it when the file
system does not answer: nothing else ends a call into one that hangs.

A message is its length (a big-endian 32-bit number) and JSON. A request is a list of `Wish`; the answer to it a list
of `[kind, ...]` in the same order, one of

    ["same"]                  nothing is new, the place is the same
    ["read", *Read]           what is new
    ["led", path]             a link on the way: its target may be in another file system, which is not touched here
    ["missing", why]          there is no such file
    ["unreadable", why]

An answer that has become long, in bytes or in time, ends before the request does; the first wish is always answered.
"""

import hashlib
import json
import os
import re
import stat
import struct
import sys
import time
from typing import Any, BinaryIO, NamedTuple, Protocol, Self

HEADER = struct.Struct("!I")
MAX_LINE = 4096
"""Characters kept of a line."""
MAX_PARTIAL = 1 << 20
"""Bytes of a line without an end that are waited for."""
ANSWER = 1 << 20
"""Bytes taken from files after which an answer ends."""
TURN = 1.0
"""Seconds after which it ends."""
_LOOKED_AT = 4 * MAX_LINE
_MARK = 64
_BLOCK = 1 << 20

# Bounded, and stopping at the next escape: a line made of nothing but openings takes linear time.
_ESCAPES = re.compile(
    r"\x1b\[[0-?]*[ -/]*[@-~]"  # CSI: colours, cursor movements
    r"|\x1b\][^\x07\x1b]{0,256}(?:\x07|\x1b\\)"  # OSC: titles, links
    r"|\x1b[ -/]*[0-Z\\^-~]",
)
# All controls but the tab, and those that turn the direction of text around on a person's screen.
_CONTROLS = re.compile("[\x00-\x08\x0a-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069]")
_PLAIN = bytes(range(0x20, 0x7F)) + b"\t\n"
"""Blocks of nothing else need no cleaning."""


class Place(NamedTuple):
    """Where a follower stands in a file."""

    inode: int = 0
    offset: int = 0
    mark: str = ""


START = Place()


class Wish(NamedTuple):
    """What is asked for."""

    path: str
    place: Place | None
    """None: near the end."""
    most: int
    """Bytes taken at most."""
    far: int | None = None
    """When more than so many bytes lie ahead, all but the last so many are skipped."""


class Read(NamedTuple):
    """What was new in a file, and where that ends."""

    lines: tuple[str, ...]
    place: Place
    restarted: bool = False
    more: bool = False
    skipped: bool = False


class Readable(Protocol):
    """An open file."""

    size: int

    def identity(self, offset: int) -> int:
        """The same number as long as this is the file whose first `offset` bytes were read before."""

    def read(self, offset: int, count: int) -> bytes:
        """Up to `count` bytes; fewer only at the end."""


def read_new(file: Readable, place: Place | None, most: int, far: int | None = None) -> Read:
    """Lines added since `place`; from near the end with None, or when more than `far` bytes lie ahead."""
    if place is None:
        return _near_end(file, most)
    restarted = place != START and not is_same(file, place)
    start = 0 if restarted else place.offset
    if far is not None and file.size - start > far:
        return _near_end(file, min(far, most))._replace(restarted=restarted, skipped=True)
    if start == file.size and not restarted and place != START:
        return Read((), place)
    return _from(file, start, most)._replace(restarted=restarted)


def is_same(file: Readable, place: Place) -> bool:
    """Whether this is the file that was read up to there before: not another, and not emptied since."""
    if place.offset > file.size or place.inode != file.identity(place.offset):
        return False
    return not place.mark or _mark(file, place.offset) == place.mark


def _near_end(file: Readable, most: int) -> Read:
    """From the first line that begins within the last `most` bytes."""
    start = max(0, file.size - most)
    if start == 0:
        return _from(file, 0, most)
    # From one byte before: when that ends a line, the next one is whole.
    ahead = file.read(start - 1, most)
    ends = [at for at in (ahead.find(b"\n"), ahead.find(b"\r")) if at >= 0]
    return _from(file, start + min(ends) if ends else start, most)


def _from(file: Readable, offset: int, most: int) -> Read:
    data = file.read(offset, min(most, max(0, file.size - offset)))
    skip = 1 if data[:1] == b"\n" and offset and file.read(offset - 1, 1) == b"\r" else 0
    found = split(data[skip:], whole_at=min(MAX_PARTIAL, most))
    end = offset + skip + found.consumed
    more = offset + len(data) < file.size
    return Read(found.lines, Place(file.identity(end), end, _mark(file, end)), more=more)


def _mark(file: Readable, offset: int) -> str:
    """A hash of the bytes right before `offset`."""
    if not offset:
        return ""
    start = max(0, offset - _MARK)
    return hashlib.sha256(file.read(start, offset - start).hex().encode()).hexdigest()[:16]


class Split(NamedTuple):
    """Lines found in a block, and how many of its bytes they took."""

    lines: tuple[str, ...]
    consumed: int


def split(data: bytes, *, whole_at: int = MAX_PARTIAL) -> Split:
    """Cut a block into lines for reading.

    What follows the last newline is left for later, except the redrawings of a progress bar that are complete,
    of which the newest counts, and a beginning of `whole_at` bytes or more.
    """
    body, newline, rest = data.rpartition(b"\n")
    lines = _lines(body) if newline else []
    consumed = len(body) + len(newline)
    drawn, redraw, rest = rest.rpartition(b"\r")
    if redraw:
        consumed += len(drawn) + 1
        # An empty one is the beginning of a redrawing, not a line.
        lines += [plain(drawn)] if drawn.strip(b"\r") else []
    if len(rest) >= whole_at:
        consumed += len(rest)
        lines.append(plain(rest))
    return Split(tuple(lines), consumed)


def _lines(body: bytes) -> list[str]:
    if body.translate(None, _PLAIN):
        return [plain(line) for line in body.split(b"\n")]
    # Nearly all blocks are of this kind.
    return [_clipped(line) for line in body.decode("ascii").split("\n")]


def plain(line: bytes) -> str:
    """A line as a person would see it: the last redrawing only, no escapes, no control characters."""
    last = line.rstrip(b"\r").rpartition(b"\r")[2]
    # A file emptied under a writer that does not append begins with as many NULs as it was long.
    text = last.lstrip(b"\x00")[:_LOOKED_AT].replace(b"\x00", b"")
    words = text.decode("utf-8", "replace")
    if not words.isprintable():
        words = _CONTROLS.sub("", _ESCAPES.sub("", words))
    return _clipped(words)


def _clipped(words: str) -> str:
    return words if len(words) <= MAX_LINE else words[: MAX_LINE - 1] + "…"


class File:
    """A regular file, open for reading."""

    def __init__(self, path: str) -> None:
        # Should anything else take its place now: a link is not followed, a FIFO not waited for.
        self.fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC)
        try:
            self.stat = os.fstat(self.fd)
            _check_regular(self.stat.st_mode)
        except BaseException:
            os.close(self.fd)
            raise
        self.size = self.stat.st_size

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        os.close(self.fd)

    def identity(self, offset: int) -> int:
        """The inode."""
        del offset
        return self.stat.st_ino

    def read(self, offset: int, count: int) -> bytes:
        """Up to `count` bytes; fewer only at the end."""
        parts = []
        while count > 0 and (part := os.pread(self.fd, min(count, _BLOCK), offset)):
            parts.append(part)
            offset, count = offset + len(part), count - len(part)
        return b"".join(parts)


class Reader:
    """Reads files of one file system.

    Args:
        mount: where that is mounted. What leads there is not looked at: it is known to be no link.
        private: real paths of folders that are never read from.
        here: an open file in which the number of the wish at work is kept, for whoever kills this process.
    """

    def __init__(self, mount: str, private: list[str], here: int) -> None:
        self._above = frozenset(mount[:at] for at, letter in enumerate(mount + "/") if letter == "/" and at)
        self._private = tuple(folder.rstrip("/") + "/" for folder in private)
        self._here = here
        self._known: dict[str, tuple[object, Place]] = {}
        """What files looked like that had nothing more to read, and up to where they were read."""

    def answer(self, wishes: list[Wish]) -> list[list[Any]]:
        """The answers to the first of the wishes, or all."""
        began, taken = time.monotonic(), 0
        if len(self._known) > 2 * len(wishes) + 1000:
            self._known.clear()
        folders = set(self._above)
        answers: list[list[Any]] = []
        for number, wish in enumerate(wishes):
            if answers and (taken >= ANSWER or time.monotonic() - began >= TURN):
                break
            os.pwrite(self._here, HEADER.pack(number), 0)
            answers.append(self._answer(wish, folders))
            if answers[-1][0] == "read":
                taken += sum(map(len, answers[-1][1]))
        return answers

    def _answer(self, wish: Wish, folders: set[str]) -> list[Any]:
        try:
            target = self._led(wish.path, folders)
            if target is not None:
                return ["led", target]
            found = self._read(wish)
        except (FileNotFoundError, NotADirectoryError):
            return ["missing", "no such file"]
        except ValueError as error:  # a path with a NUL in it
            return ["missing", str(error)]
        except OSError as error:
            return ["unreadable", error.strerror or str(error)]
        return ["read", *found] if found else ["same"]

    def _led(self, path: str, folders: set[str]) -> str | None:
        """Where the first link on the way leads to; None where there is none: then it was looked at without opening.

        `folders` holds those that are known to be no links; it grows.
        """
        folder, _, name = path.rpartition("/")
        if folder and folder not in folders:
            head = ""
            parts = folder.split("/")
            for at, part in enumerate(parts):
                rest = "/".join([*parts[at + 1 :], name])
                if part in {"", "."}:
                    continue
                if part == "..":
                    return f"{head.rpartition('/')[0]}/{rest}"
                here = f"{head}/{part}"
                if here not in folders:
                    if stat.S_ISLNK(os.lstat(here).st_mode):
                        return _joined(head, os.readlink(here), rest)  # noqa: PTH115
                    folders.add(here)
                head = here
            folders.add(folder)
        # Looked at before it is opened: opening a device can do something by itself.
        mode = os.lstat(path).st_mode
        if stat.S_ISLNK(mode):
            return _joined(folder, os.readlink(path), "")  # noqa: PTH115
        _check_regular(mode)
        return None

    def _read(self, wish: Wish) -> Read | None:
        """What is new; None when the file is as it was.

        It is opened each time: a network file system shows a change at once only to who opens the file.
        """
        with File(wish.path) as file:
            looks = file.stat
            look = looks.st_dev, looks.st_ino, looks.st_size, looks.st_mtime_ns, looks.st_ctime_ns
            if self._known.get(wish.path) == (look, wish.place):
                return None
            real = os.readlink(f"/proc/self/fd/{file.fd}") if self._private else ""  # noqa: PTH115
            if real.startswith(self._private):
                raise OSError("leads into a private folder")
            found = read_new(file, wish.place, wish.most, wish.far)
        if found.more:
            self._known.pop(wish.path, None)
        else:
            self._known[wish.path] = look, found.place
        return found


def _check_regular(mode: int) -> None:
    if not stat.S_ISREG(mode):
        raise OSError("not a regular file")


def _joined(folder: str, target: str, rest: str) -> str:
    path = target if target.startswith("/") else f"{folder}/{target}"
    return f"{path}/{rest}" if rest else path


def _message(stream: BinaryIO) -> bytes:
    """The next message; empty at the end."""
    header = stream.read(HEADER.size)
    return stream.read(*HEADER.unpack(header)) if header else b""


def main() -> None:
    """Answer requests until there are no more."""
    mount, private, here = sys.argv[1:]
    reader = Reader(mount, json.loads(private), int(here))
    while message := _message(sys.stdin.buffer):
        wishes = [Wish(path, place and Place(*place), most, far) for path, place, most, far in json.loads(message)]
        answer = json.dumps(reader.answer(wishes)).encode()
        sys.stdout.buffer.write(HEADER.pack(len(answer)) + answer)
        sys.stdout.buffer.flush()


if __name__ == "__main__":
    main()
