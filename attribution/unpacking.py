"""The plain bytes of a log, unpacked where it is compressed: told by its first bytes, whatever its name."""

import bz2
import importlib
import lzma
import re
import zlib
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, BinaryIO, NamedTuple, Protocol

READ = 1 << 18
"""Bytes that are read, and unpacked, at a time."""
MOST_UNPACKED = 1 << 37
"""Bytes (128 GiB) after which a packed log is read no further: a few kilobytes can unpack to any size."""
MEMORY = 96 << 20
"""What unpacking may take: `xz -9` needs 65 MiB."""
_HEAD = 10
"""Bytes that tell every kind."""


class _Unpacker(Protocol):
    """As bz2's, lzma's and zstd's are."""

    @property
    def eof(self) -> bool: ...
    @property
    def needs_input(self) -> bool: ...
    @property
    def unused_data(self) -> bytes: ...
    def decompress(self, data: bytes, max_length: int) -> bytes: ...


class _Gzip:
    """zlib's, by the same methods."""

    def __init__(self) -> None:
        self._inner = zlib.decompressobj(wbits=31)
        self.needs_input = True

    @property
    def eof(self) -> bool:
        return self._inner.eof

    @property
    def unused_data(self) -> bytes:
        return self._inner.unused_data

    def decompress(self, data: bytes, max_length: int) -> bytes:
        plain = self._inner.decompress(self._inner.unconsumed_tail + data, max_length)
        self.needs_input = not self._inner.unconsumed_tail and len(plain) < max_length
        return plain


def _zstd() -> _Unpacker:
    try:
        zstd: Any = importlib.import_module("compression.zstd")  # Python 3.14
    except ImportError:
        raise OSError("it is zstd-compressed, which this Python cannot read: unpack it first (unzstd)") from None
    unpacker: _Unpacker = zstd.ZstdDecompressor()
    return unpacker


def _other(what: str) -> _Unpacker:
    raise OSError(f"it is {what}, which is not read: unpack it first")


class _Kind(NamedTuple):
    name: str
    begins: re.Pattern[bytes]
    make: Callable[[], _Unpacker]


_KINDS = (
    _Kind("gzip", re.compile(rb"\x1f\x8b\x08"), _Gzip),
    _Kind("bzip2", re.compile(rb"BZh[1-9](?:1AY&SY|\x17rE8P\x90)"), bz2.BZ2Decompressor),
    _Kind("xz", re.compile(rb"\xfd7zXZ\0"), partial(lzma.LZMADecompressor, lzma.FORMAT_XZ, MEMORY)),
    _Kind("zstd", re.compile(rb"\x28\xb5\x2f\xfd"), _zstd),
    _Kind("lz4", re.compile(rb"\x04\x22\x4d\x18"), partial(_other, "lz4-compressed")),
    _Kind("zip", re.compile(rb"PK\x03\x04"), partial(_other, "a zip archive")),
)


def plain(stream: BinaryIO) -> Iterator[bytes]:
    """The stream's bytes, unpacked, in pieces of at most `READ` bytes.

    Raises:
        OSError: when it cannot be read, or the packed data is damaged or cut off; what came before has been yielded.
    """
    head = _at_least(_HEAD, b"", stream)
    for kind in _KINDS:
        if kind.begins.match(head):
            yield from _unpacked(kind, head, stream)
            return
    while head:
        yield head
        head = stream.read(READ)


def _at_least(size: int, data: bytes, stream: BinaryIO) -> bytes:
    while len(data) < size and (more := stream.read(READ)):
        data += more
    return data


def _unpacked(kind: _Kind, data: bytes, stream: BinaryIO) -> Iterator[bytes]:
    unpacker, total = kind.make(), 0
    while True:
        if unpacker.eof:  # pigz, pbzip2 and `cat` make files of several
            data = _at_least(_HEAD, unpacker.unused_data.lstrip(b"\0"), stream).lstrip(b"\0")
            if not kind.begins.match(data):
                return
            unpacker = kind.make()
        elif not data and unpacker.needs_input and not (data := stream.read(READ)):
            raise OSError(f"its {kind.name} data is cut off")
        try:
            piece, data = unpacker.decompress(data, READ), b""
        except Exception as error:  # each kind has errors of its own
            raise OSError(f"its {kind.name} data is damaged: {error}") from error
        total += len(piece)
        if total > MOST_UNPACKED:
            raise OSError(f"it unpacks to more than {MOST_UNPACKED >> 30} GiB: the rest is not read")
        if piece:
            yield piece
