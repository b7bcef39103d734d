"""Packed logs: every kind is read, and what is damaged or too much is said."""

import bz2
import gzip
import importlib.util
import io
import lzma
import tracemalloc
from itertools import islice

import pytest

from relight.attribution import unpacking
from relight.attribution.unpacking import plain

PACK = {"gzip": gzip.compress, "bzip2": bz2.compress, "xz": lzma.compress}
TEXT = b"".join(b"line %d of a log that is long enough\n" % n for n in range(30_000))


class Drip(io.RawIOBase):
    """A stream that gives a few bytes at a time, as a pipe may."""

    def __init__(self, data, size):
        self.data, self.size, self.at = data, size, 0

    def readable(self):
        """Yes."""
        return True

    def read(self, size=-1):
        """The next few bytes."""
        end = self.at + self.size
        piece, self.at = self.data[self.at : end], end
        return piece


def unpacked(stream):
    """What could be read, and the error that ended it."""
    pieces = []
    try:
        pieces.extend(plain(stream))
    except OSError as error:
        return b"".join(pieces), str(error)
    return b"".join(pieces), None


@pytest.mark.parametrize("kind", PACK)
def test_each_kind_is_read(kind):
    """By its first bytes, whatever its name."""
    assert unpacked(io.BytesIO(PACK[kind](TEXT))) == (TEXT, None)


@pytest.mark.parametrize("kind", PACK)
@pytest.mark.parametrize("size", [1, 5, 4096])
def test_a_stream_may_give_little_at_a_time(kind, size):
    """Pages of a log store and pipes do."""
    assert unpacked(Drip(PACK[kind](TEXT[:2000]), size)) == (TEXT[:2000], None)


@pytest.mark.parametrize("kind", PACK)
def test_files_of_several_are_read_whole(kind):
    """pigz, pbzip2 and `cat` make them; padding and what else follows is left."""
    pack = PACK[kind]
    data = pack(b"one\n") + pack(b"two\n") + b"\0\0\0" + pack(b"three\n") + b"\0" * 600 + b"rubbish"
    assert unpacked(io.BytesIO(data)) == (b"one\ntwo\nthree\n", None)


@pytest.mark.parametrize("kind", PACK)
def test_what_was_cut_off_is_read_as_far_as_it_goes(kind):
    """A job that was killed has not ended its log."""
    packed = PACK[kind](TEXT)
    text, error = unpacked(io.BytesIO(packed[: len(packed) * 3 // 4]))
    assert error == f"its {kind} data is cut off"
    assert TEXT.startswith(text)
    assert kind != "gzip" or len(text) > len(TEXT) // 2


@pytest.mark.parametrize("kind", PACK)
def test_damage_is_said(kind):
    """And ends only this log."""
    packed = bytearray(PACK[kind](TEXT))
    packed[len(packed) // 2] ^= 0xFF
    _, error = unpacked(io.BytesIO(bytes(packed)))
    assert error
    assert error.startswith(f"its {kind} data is ")


@pytest.mark.parametrize("kind", PACK)
def test_a_bomb_is_not_read_to_its_end(kind, monkeypatch):
    """A few kilobytes that unpack to anything take no memory, and no more time than the limit allows."""
    packed = PACK[kind](b"\0" * (64 << 20))
    monkeypatch.setattr(unpacking, "MOST_UNPACKED", 32 << 20)
    tracemalloc.start()
    pieces = plain(io.BytesIO(packed))
    assert sum(len(piece) for piece in islice(pieces, (32 << 20) // unpacking.READ)) == 32 << 20
    with pytest.raises(OSError, match="the rest is not read"):
        next(pieces)
    assert tracemalloc.get_traced_memory()[1] < 16 << 20
    tracemalloc.stop()


def test_an_xz_log_that_needs_much_memory_is_not_read():
    """The dictionary's size stands in the file, so anyone can ask for gigabytes."""
    filters = [{"id": lzma.FILTER_LZMA2, "preset": 0, "dict_size": 512 << 20}]
    text, error = unpacked(io.BytesIO(lzma.compress(b"x", filters=filters)))
    assert text == b""
    assert error == "its xz data is damaged: Memory usage limit exceeded"


@pytest.mark.parametrize(
    ("begins", "said"), [(b"\x04\x22\x4d\x18", "it is lz4-compressed"), (b"PK\x03\x04", "it is a zip archive")]
)
def test_kinds_that_are_not_read_are_told(begins, said):
    """With what to do."""
    assert unpacked(io.BytesIO(begins + bytes(40))) == (b"", f"{said}, which is not read: unpack it first")


@pytest.mark.skipif(importlib.util.find_spec("compression") is not None, reason="this Python reads zstd")
def test_zstd_is_told_where_python_cannot_read_it():
    """With what to do."""
    _, error = unpacked(io.BytesIO(b"\x28\xb5\x2f\xfd" + bytes(40)))
    assert error == "it is zstd-compressed, which this Python cannot read: unpack it first (unzstd)"


def test_a_log_that_only_begins_like_a_packed_one_is_text():
    """`BZh` are three letters."""
    assert unpacked(io.BytesIO(b"BZh9 is my host\n")) == (b"BZh9 is my host\n", None)
