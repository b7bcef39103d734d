"""Reads a log of any size and any bytes in bounded memory: blocks of whole lines, without terminal escapes."""

import gzip
import re
import zlib
from collections.abc import Iterator
from typing import BinaryIO, NamedTuple, cast

BLOCK_BYTES = 1 << 20
LONGEST_LINE = 1 << 16
"""A line longer than this is split: a log without a line end must not fill the memory."""

_ESCAPES = re.compile(rb"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b\n]{0,256}(?:\x07|\x1b\\)|[@-Z\\^_=>()#])")
_CONTROLS = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069]")
_GZIP = b"\x1f\x8b\x08"


class Block(NamedTuple):
    """A stretch of whole lines."""

    number: int
    data: bytes
    """Escapes gone, carriage returns turned into line ends."""
    raw: bytes
    """The same length as `data`, carriage returns kept: only `\\n` counts as a line for a person's editor."""
    first_line: int

    def newlines(self, start: int, end: int) -> int:
        """How many lines, as an editor counts them, end between two offsets."""
        return self.raw.count(b"\n", start, end)

    def line_start(self, offset: int) -> int:
        """Where the line at this offset begins; a giant line counts as several."""
        start = self.data.rfind(b"\n", 0, offset) + 1
        return start + (offset - start) // LONGEST_LINE * LONGEST_LINE

    def line(self, start: int, hit: int, limit: int) -> bytes:
        """The line that begins at `start`; of a long one `limit` bytes around `hit`."""
        start = max(start, hit - limit // 2)
        end = self.data.find(b"\n", start, start + limit)
        return self.data[start : end if end >= 0 else start + limit]


def printable(raw: bytes) -> str:
    """The bytes as text that is safe to show: any encoding, no control characters, no escapes."""
    return _CONTROLS.sub(" ", raw.decode("utf-8", errors="replace")).strip()


def blocks(stream: BinaryIO) -> Iterator[Block]:
    """The stream as blocks of whole lines; memory stays constant. Reads gzip as well.

    Raises:
        OSError: when the stream cannot be read; what came before it has been yielded.
    """
    number, line, carry = 0, 1, b""
    for chunk in _chunks(stream):
        body, carry = _cut(carry + chunk)
        if body:
            block = _block(number, body, line)
            yield block
            number, line = number + 1, line + block.raw.count(b"\n")
    if carry:
        yield _block(number, carry, line)


def _chunks(stream: BinaryIO) -> Iterator[bytes]:
    chunk = stream.read(BLOCK_BYTES)
    if chunk.startswith(_GZIP):
        yield from _inflated(cast("BinaryIO", _Rejoined(chunk, stream)))
        return
    while chunk:
        yield chunk
        chunk = stream.read(BLOCK_BYTES)


def _inflated(stream: BinaryIO) -> Iterator[bytes]:
    try:
        with gzip.GzipFile(fileobj=stream, mode="rb") as plain:
            while chunk := plain.read(BLOCK_BYTES):
                yield chunk
    except (EOFError, zlib.error) as error:
        raise OSError(f"the gzip data is damaged or cut off: {error}") from error


class _Rejoined:
    """A stream whose first bytes have been read already, for streams that cannot seek."""

    def __init__(self, head: bytes, rest: BinaryIO) -> None:
        self._head, self._rest = head, rest

    def read(self, size: int = -1) -> bytes:
        """The next bytes, first those read already."""
        if self._head:
            taken, self._head = (self._head[:size], self._head[size:]) if size >= 0 else (self._head, b"")
            return taken
        return self._rest.read(size)


def _cut(data: bytes) -> tuple[bytes, bytes]:
    """The part with whole lines, and the rest for the next round; a giant line is cut."""
    end = max(data.rfind(b"\n"), data.rfind(b"\r")) + 1
    if len(data) - end > LONGEST_LINE:
        end = len(data) - LONGEST_LINE
    return data[:end], data[end:]


def _block(number: int, body: bytes, line: int) -> Block:
    raw = _ESCAPES.sub(b"", body) if b"\x1b" in body else body
    data = raw.replace(b"\r", b"\n") if b"\r" in raw else raw
    return Block(number, data, raw, line)
