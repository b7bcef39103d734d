"""The deep check: every byte of a checkpoint is read, and held against what checksums and lengths there are.

Members of zip files (`torch.save`, `numpy.savez`) carry a CRC-32, also each piece within a `.distcp`; the lab's files
have a SHA-256 beside them. Of the rest the file server must at least be able to give back every byte. Memory is
bounded: a megabyte at a time. Nothing is unpickled.

It imports the standard library only: it runs in the process that reads a file system.
"""

import gzip
import hashlib
import io
import zipfile
import zlib
from collections.abc import Callable
from typing import BinaryIO, cast

from relight.clients import checkpoint_dcp as dcp
from relight.clients.checkpoint_lab import DIGEST
from relight.clients.checkpoint_tensors import Findings
from relight.clients.checkpoint_tree import Content, Limited, Part, Steps, Tree
from relight.clients.files import UnreachableError

BLOCK = 1 << 20
Count = Callable[[int], None]
"""Is told how many bytes were read."""
_SMALL = 4096


def check(tree: Tree, content: Content, found: Findings, count: Count) -> Steps[None]:
    """Read all of it. What is wrong goes into `found.bad`, what could not be read into `found.open`."""
    checked = 0
    pieces = yield from _pieces(tree, content)
    for part in content.parts.values():
        try:
            checked += yield from _part(tree, part, pieces.get(part.name, []), found, count)
        except (zipfile.BadZipFile, zlib.error, EOFError, gzip.BadGzipFile) as error:
            found.bad.append(f"{part.name} is damaged: {str(error)[:120] or 'cut short'}")
        except (UnreachableError, OSError) as error:
            found.open.append(f"{part.name}: {getattr(error, 'strerror', None) or error}")
        except (NotImplementedError, RuntimeError, ValueError) as error:
            found.open.append(f"{part.name}: {str(error)[:120]}")
    found.good.append(f"all {content.size} bytes were read; {checked} checksums are right")


def _pieces(tree: Tree, content: Content) -> Steps[dict[str, list[dcp.Piece]]]:
    """What lies where in each file of torch.distributed.checkpoint."""
    by_file: dict[str, list[dcp.Piece]] = {}
    for folder in dcp.folders(content):
        metadata = content.inside(folder).get(dcp.METADATA)
        pieces = (yield from dcp.read(tree, metadata, Findings())) if metadata else None
        for piece in pieces or ():
            by_file.setdefault(f"{folder}/{piece.file}" if folder else piece.file, []).append(piece)
    return by_file


def _part(tree: Tree, part: Part, pieces: list[dcp.Piece], found: Findings, count: Count) -> Steps[int]:
    """Check one file; how many checksums were right."""
    with tree.opened(part.path) as raw:
        if pieces:
            checked = 0
            for piece in sorted(pieces, key=lambda each: each.offset):
                place = _Slice(raw, piece.offset, piece.length)
                if not any(place.read(4)):
                    raise zipfile.BadZipFile(f"zeros at byte {piece.offset}, where something was written")
                place.seek(0)
                checked += yield from _stream(place, part.name, count)
            return checked
        checked = yield from _stream(_Slice(raw, 0, part.size), part.name, count)
    digest = _digest(tree, part)
    if digest:
        checked += yield from _hashed(tree, part, digest, found, count)
    return checked


def _stream(file: "_Slice", name: str, count: Count) -> Steps[int]:
    begin = file.read(4)
    file.seek(0)
    if begin == b"PK\x03\x04" and not name.endswith(".safetensors"):
        return (yield from _zip(file, count))
    opened = cast("BinaryIO", gzip.GzipFile(fileobj=file) if begin[:2] == b"\x1f\x8b" else file)
    while block := opened.read(BLOCK):
        count(len(block))
        yield
    return 1 if begin[:2] == b"\x1f\x8b" else 0


def _zip(file: "_Slice", count: Count) -> Steps[int]:
    """Each member is read to its end, where zipfile compares its CRC-32."""
    with zipfile.ZipFile(file) as archive:
        members = archive.infolist()
        for member in members:
            with archive.open(member) as stream:
                while block := stream.read(BLOCK):
                    count(len(block))
                    if len(block) > _SMALL:
                        yield
    yield
    return len(members)


def _digest(tree: Tree, part: Part) -> str:
    try:
        return tree.text(part.path + DIGEST, 256).split()[0]
    except (OSError, IndexError):
        return ""


def _hashed(tree: Tree, part: Part, digest: str, found: Findings, count: Count) -> Steps[int]:
    sha = hashlib.sha256()
    with tree.opened(part.path) as file:
        while block := file.read(BLOCK):
            sha.update(block)
            count(len(block))
            yield
    if sha.hexdigest() != digest:
        found.bad.append(f"{part.name} does not match its SHA-256")
        return 0
    return 1


class _Slice(io.RawIOBase):
    """A part of a file as a file of its own."""

    def __init__(self, file: Limited, offset: int, length: int) -> None:
        self._file, self._offset, self._length, self._at = file, offset, length, 0

    def readable(self) -> bool:
        """Yes."""
        return True

    def seekable(self) -> bool:
        """Yes."""
        return True

    def seek(self, offset: int, whence: int = 0, /) -> int:
        """Move within the part."""
        start = (0, self._at, self._length)[whence]
        if start + offset < 0:
            raise OSError("before the beginning of the file")
        self._at = start + offset
        return self._at

    def tell(self) -> int:
        """Where the next read begins."""
        return self._at

    def read(self, size: int | None = -1, /) -> bytes:
        """At most a megabyte beyond what a directory needs; fewer bytes only at the end."""
        left = max(0, self._length - self._at)
        wanted = left if size is None or size < 0 else min(size, left)
        self._file.seek(self._offset + self._at)
        parts = []
        while wanted and (block := self._file.read(wanted)):
            parts.append(block)
            wanted -= len(block)
            self._at += len(block)
        return b"".join(parts)
