"""The `.metadata` of a checkpoint of torch.distributed.checkpoint, written without torch: as torch 2.13 pickles one."""

import struct

PIECES = 10
"""Of each file."""
_TORCH = "torch.distributed.checkpoint"


def pickled_metadata(files: int, size: int) -> bytes:
    """What torch would pickle of a checkpoint with ten pieces in each of so many files of that size."""
    out = _Pickle()
    length = size // PIECES
    out.new(f"{_TORCH}.metadata", "Metadata").text("state_dict_metadata").raw(b"}\x94(")
    out.count += 1
    for piece in range(PIECES):
        out.text(f"layer.{piece}.weight").new(f"{_TORCH}.metadata", "TensorStorageMetadata")
        out.text("chunks").raw(b"]\x94(")
        out.count += 1
        for rank in range(files):
            out.new(f"{_TORCH}.metadata", "ChunkStorageMetadata")
            out.text("offsets").size(rank, 0).text("sizes").size(1, length).raw(b"ub")
        out.raw(b"e").text("size").size(files, length).raw(b"ub")
    out.raw(b"u").text("storage_data").raw(b"}\x94(")
    out.count += 1
    for rank in range(files):
        for piece in range(PIECES):
            out.new(f"{_TORCH}.metadata", "MetadataIndex").text("fqn").text(f"layer.{piece}.weight")
            out.text("index").number(rank).text("offset").size(rank, 0).raw(b"ub")
            out.new(f"{_TORCH}.filesystem", "_StorageInfo").text("relative_path").text(f"__{rank}_0.distcp")
            out.text("offset").number(piece * length).text("length").number(length).raw(b"ub")
    return bytes(out.raw(b"uub.").data)


class _Pickle:
    """Writes the operations that Python's pickler writes, protocol 4: what came before is referred to by its number."""

    def __init__(self) -> None:
        self.data = bytearray(b"\x80\x04")
        self.count = 0
        self._numbers: dict[object, int] = {}

    def raw(self, data: bytes) -> "_Pickle":
        """Operations as they are."""
        self.data += data
        return self

    def text(self, text: str) -> "_Pickle":
        """A text."""
        return self._once(text, b"\x8c" + bytes([len(text)]) + text.encode())

    def number(self, value: int) -> "_Pickle":
        """A whole number."""
        if value < 1 << 8:
            return self.raw(b"K" + bytes([value]))
        small = value < 1 << 31
        return self.raw(b"J" + struct.pack("<i", value) if small else b"\x8a\x08" + struct.pack("<q", value))

    def new(self, module: str, name: str) -> "_Pickle":
        """Something of that class, and the beginning of its state."""
        self._name(module, name).raw(b")\x81\x94}\x94(")
        self.count += 2
        return self

    def size(self, first: int, second: int) -> "_Pickle":
        """A torch.Size."""
        self._name("torch", "Size").number(first).number(second).raw(b"\x86\x94\x85\x94R\x94")
        self.count += 3
        return self

    def _name(self, module: str, name: str) -> "_Pickle":
        if (module, name) in self._numbers:
            return self._once((module, name), b"")
        self.text(module).text(name)
        return self._once((module, name), b"\x93")

    def _once(self, key: object, data: bytes) -> "_Pickle":
        number = self._numbers.get(key)
        if number is not None:
            return self.raw(b"h" + bytes([number]) if number < 1 << 8 else b"j" + struct.pack("<I", number))
        self._numbers[key] = self.count
        self.count += 1
        return self.raw(data + b"\x94")
