"""Single files of tensors: whole or not by what their own directory or header says. Nothing is loaded or unpickled.

It imports the standard library only: it runs in the process that reads a file system.
"""

import json
import re
import zipfile
from collections.abc import Iterator
from typing import Any

from relight.clients import checkpoint_pickle as pickles
from relight.clients.checkpoint_tree import Limited, Part, Tree

TENSORS = (".pt", ".pth", ".bin", ".ckpt", ".safetensors", ".npz", ".pkl", ".nemo", ".distcp", ".tar")
"""Endings of files that hold tensors."""
_ZIP, _GZIP, _PICKLE = b"PK\x03\x04", b"\x1f\x8b", b"\x80"
_MOST_HEADER = 100 << 20
"""Bytes: what safetensors itself allows."""
_MOST_PICKLE = 16 << 20
_BLOCK = 512
_FIRST = 4096
_TORCHS = re.compile(r"\.(?:pt|pth|ckpt|npz|pkl)$|^(?:optimizer|scheduler|\w*model\w*)[-\w]*\.bin$")
"""Names of files that torch or numpy writes; any other `.bin` may begin with zeros."""
_LENGTH_OF_HEADER = 8
_LOCAL = 30
"""Bytes of a zip member's own header, without its name."""


class Findings:
    """What speaks for and against a checkpoint."""

    def __init__(self) -> None:
        self.bad: list[str] = []
        """What is damaged or missing: with any of it, it is not whole."""
        self.open: list[str] = []
        """What could not be told."""
        self.good: list[str] = []
        """By what it is known to be complete."""

    @property
    def whole(self) -> str:
        """`yes`, `no` or `unknown`."""
        if self.bad:
            return "no"
        return "yes" if self.good and not self.open else "unknown"

    @property
    def reasons(self) -> list[str]:
        """What a person should read of it."""
        if self.bad:
            return self.bad
        return self.open or self.good or ["nothing in it says that it is complete"]


def judge(tree: Tree, part: Part, found: Findings, unclear: list[str]) -> bool:
    """Judge one file; True when its own directory says that it is whole.

    What is wrong goes into `found`, what is in no format that can be judged into `unclear`.
    """
    if not part.size:
        found.bad.append(f"{part.name} is empty")
        return False
    try:
        with tree.opened(part.path) as file:
            why, known = _judged(file, part)
    except (OSError, ValueError, RecursionError, MemoryError) as error:
        found.open.append(f"{part.name}: {getattr(error, 'strerror', None) or str(error) or type(error).__name__}")
        return False
    if why:
        (found.bad if known else unclear).append(f"{part.name} {why}")
    return not why


def _judged(file: Limited, part: Part) -> tuple[str, bool]:  # noqa: PLR0911 - one for each kind of file
    """What is wrong with it, empty for nothing; and whether that is known or only not known to be well."""
    size = file.seek(0, 2)
    file.seek(0)
    begin = file.read(4)
    if part.name.endswith(".safetensors"):
        return _safetensors(file, size)
    if begin == _ZIP:
        return _zip(file)
    if part.name.endswith((".nemo", ".tar")) and begin[:2] != _GZIP:
        return _tar(file, size)
    file.seek(0)
    if _TORCHS.search(part.base) and not any(file.read(_FIRST)):
        return "begins with zeros: what was to stand there never reached the disk", True
    if part.name.endswith(".npz"):
        return "is no zip file", True
    if begin[:2] == _GZIP:
        return "is compressed: only a deep check can tell", False
    if begin[:1] == _PICKLE:
        return "is in torch's older format, which has no directory to look at", False
    return "is in no format that is known", False


def _zip(file: Limited) -> tuple[str, bool]:
    """Zip files (`torch.save`, `numpy.savez`) end with their directory: cut short, they have none."""
    try:
        with zipfile.ZipFile(file) as archive:
            members = archive.infolist()
            if not members:
                return "is a zip file with nothing in it", True
            for member in (members[0], members[-1], max(members, key=lambda each: each.header_offset)):
                if member.header_offset + _LOCAL + member.compress_size > archive.start_dir:
                    return "is damaged: its directory names more than is there", True
                file.seek(member.header_offset)
                if file.read(4) != _ZIP:
                    return f"is damaged where {member.filename!r} should begin", True
    except zipfile.BadZipFile:
        return "is cut short: its end, a zip file's directory, is not there", True
    except (NotImplementedError, OverflowError, EOFError):
        return "is a zip file that cannot be read", False
    return "", True


def _safetensors(file: Limited, size: int) -> tuple[str, bool]:  # noqa: PLR0911 - one for each thing wrong
    """The header says where each tensor lies; they cover the rest of the file exactly (safetensors, "Format")."""
    file.seek(0)
    begin = file.read(_LENGTH_OF_HEADER)
    length = int.from_bytes(begin, "little")
    if len(begin) < _LENGTH_OF_HEADER or _LENGTH_OF_HEADER + length > size:
        return "is cut short within its header", True
    if not length:
        return "has no header", True
    if length > _MOST_HEADER:
        return "has a header that is too long to be one", True
    file.limit = _MOST_HEADER
    try:
        spans = sorted(_spans(json.loads(file.read(length))))
    except (ValueError, TypeError, LookupError, AttributeError):
        return "has a header that cannot be read", True
    at = 0
    for begins, ends in spans:
        if begins != at or ends < begins:
            return "has a header with gaps or overlaps", True
        at = ends
    wanted = _LENGTH_OF_HEADER + length + at
    if wanted > size:
        return f"is {wanted - size} bytes short of what its header says", True
    return ("" if wanted == size else f"is {size - wanted} bytes longer than its header says"), True


def _spans(header: Any) -> Iterator[tuple[int, int]]:
    for name, entry in header.items():
        if name != "__metadata__":
            begins, ends = entry["data_offsets"]
            yield int(begins), int(ends)


def _tar(file: Limited, size: int) -> tuple[str, bool]:
    """A tar file (`.nemo`) is a chain of headers that ends with two blocks of zeros (POSIX ustar)."""
    at, members = 0, 0
    while at + _BLOCK <= size:
        file.seek(at)
        header = file.read(_BLOCK)
        if not any(header):
            return ("", True) if members else ("begins with zeros", True)
        if header[257:262] != b"ustar":
            return "is damaged: no tar header where one should be", True
        length = _tar_size(header[124:136])
        if length is None:
            return "is damaged: a tar header without a size", True
        at += _BLOCK + -(-length // _BLOCK) * _BLOCK
        members += 1
        if members > 100_000:  # noqa: PLR2004 - no model has so many files
            return "has too many files in it to look at", False
    return "is cut short: a tar file's end is not there", True


def _tar_size(field: bytes) -> int | None:
    if field[0] & 0x80:
        return int.from_bytes(field[1:], "big")
    try:
        return int(field.rstrip(b"\0 ") or b"0", 8)
    except ValueError:
        return None


def values(tree: Tree, path: str) -> Any:
    """What `torch.save` wrote, as data (`checkpoint_pickle`); None where that cannot be read."""
    try:
        with tree.opened(path) as file, zipfile.ZipFile(file) as archive:
            member = next(each for each in archive.infolist() if each.filename.endswith("/data.pkl"))
            if member.file_size > _MOST_PICKLE or member.compress_type != zipfile.ZIP_STORED:
                return None
            return pickles.read(archive.read(member))
    except (OSError, ValueError, StopIteration, zipfile.BadZipFile, NotImplementedError, EOFError):
        return None


def number(tree: Tree, path: str, *names: str) -> int | None:
    """The first of these entries of what `torch.save` wrote that is a whole number, or a tensor of one."""
    return number_of(tree, path, values(tree, path), names)


def number_of(tree: Tree, path: str, found: Any, names: tuple[str, ...]) -> int | None:
    """As `number`, of what was read already."""
    for name in names:
        value = pickles.get(found, name)
        if isinstance(value, int) and not isinstance(value, bool):
            return value
        if pickles.is_a(value, pickles.RECORD) and (scalar := _scalar(tree, path, value)) is not None:
            return scalar
    return None


_INTEGERS = {"IntStorage": 4, "LongStorage": 8}


def _scalar(tree: Tree, path: str, tensor: list[Any]) -> int | None:
    """The value of a tensor of one whole number: `_rebuild_tensor_v2(storage, offset, size, stride, ...)`."""
    try:
        (_, reference), offset, size = tensor[2][:3]
        _, (_, kind), key, _, count = reference
        width = _INTEGERS[kind]
        if offset or size not in ((), (1,)) or count != 1:
            return None
        with tree.opened(path) as file, zipfile.ZipFile(file) as archive:
            member = next(each for each in archive.infolist() if each.filename.endswith(f"/data/{key}"))
            data = archive.read(member) if member.file_size == width else b""
    except (TypeError, ValueError, AttributeError, KeyError, OSError, StopIteration, zipfile.BadZipFile):
        return None
    return int.from_bytes(data, "little", signed=True) if data else None
