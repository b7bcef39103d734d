"""torch.distributed.checkpoint: `.metadata` and `__<rank>_<number>.distcp`, on their own or within another format.

`.metadata` is written last, aside, and renamed into place; it names each piece of each file with its offset and length
(`torch/distributed/checkpoint/filesystem.py`, `_StorageInfo`). It is a pickle, and is looked at as data.

It imports the standard library only: it runs in the process that reads a file system.
"""

from collections.abc import Iterator
from typing import Any, NamedTuple

from relight.clients import checkpoint_pickle as pickles
from relight.clients.checkpoint_tensors import Findings
from relight.clients.checkpoint_tree import Content, Part, Steps, Tree

METADATA = ".metadata"
SHARD = ".distcp"
MOST_TOLD = 3


class Piece(NamedTuple):
    """Something stored in a file."""

    file: str
    offset: int
    length: int


def folders(content: Content) -> list[str]:
    """The folders of a checkpoint that hold such a one."""
    return sorted(
        {p.folder for p in content.parts.values() if p.base.endswith(SHARD) or p.base in (METADATA, METADATA + ".tmp")}
    )


def judge(tree: Tree, content: Content, found: Findings) -> Steps[None]:
    """Judge each such folder within a checkpoint; no shard is opened."""
    for folder in folders(content):
        yield from _judge(tree, content, folder, found)


def _judge(tree: Tree, content: Content, folder: str, found: Findings) -> Steps[None]:
    there = content.inside(folder)
    where = f"{folder}/" if folder else ""
    metadata = there.get(METADATA)
    if metadata is None:
        ranks = [name for name in there if name.startswith("__") and name.endswith(METADATA)]
        if ranks:
            found.open.append(f"{where}has a metadata file for each rank, and none for all")
        else:
            found.bad.append(f"{where}{METADATA} is not there: it was never finished, or is being written")
        return
    if not metadata.size:
        found.bad.append(f"{where}{METADATA} is empty")
        return
    pieces = yield from read(tree, metadata, found)
    if pieces is None:
        return
    wanted: dict[str, int] = {}
    for piece in pieces:
        wanted[piece.file] = max(wanted.get(piece.file, 0), piece.offset + piece.length)
    missing = [name for name in wanted if name not in there]
    lengths = {name: there[name].size for name in wanted.keys() & there.keys()}
    short = [(name, wanted[name] - size) for name, size in sorted(lengths.items()) if size < wanted[name]]
    if missing:
        found.bad.append(f"{len(missing)} of {len(wanted)} files are missing: {where}{_few(missing)}")
    if short:
        told = _few([f"{name} by {count} bytes" for name, count in short])
        found.bad.append(f"{len(short)} of {len(wanted)} files are cut short: {where}{told}")
    if not wanted:
        found.open.append(f"{where}{METADATA} names no file")
    elif not missing and not short:
        found.good.append(f"{where}{METADATA} and its {len(wanted)} files fit")


def read(tree: Tree, metadata: Part, found: Findings) -> Steps[list[Piece] | None]:
    """The pieces that a `.metadata` names; None where it cannot be read, and why is in `found`."""
    if metadata.size > tree.most_metadata:
        found.open.append(f"{metadata.name} is too large to look at")
        return None
    try:
        with tree.opened(metadata.path) as file:
            file.limit = tree.most_metadata
            data = file.read()
        value = yield from pickles.steps(data)
        return list(_pieces(value))
    except pickles.NotReadableError as error:
        # It was renamed into place when it was whole: one that cannot be read was damaged afterwards. A version of
        # torch that writes what we do not know would look the same, but for its first byte and its last.
        damaged = data[:1] != b"\x80" or data[-1:] != b"."
        (found.bad if damaged else found.open).append(f"{metadata.name}: {error}")
    except (OSError, ValueError, MemoryError) as error:
        found.open.append(
            f"{metadata.name}: {getattr(error, 'strerror', None) or str(error) or 'needs too much memory'}"
        )
    return None


def _pieces(value: Any) -> Iterator[Piece]:
    storage = pickles.get(value, "storage_data")
    if not pickles.is_a(storage, pickles.TABLE):
        raise pickles.NotReadableError("holds no list of what is stored where")
    for info in storage[2::2]:
        name, offset, length = (pickles.get(info, key) for key in ("relative_path", "offset", "length"))
        if not (isinstance(name, str) and isinstance(offset, int) and isinstance(length, int)):
            raise pickles.NotReadableError("holds a place that is none")
        yield Piece(name, offset, length)


def _few(names: list[str]) -> str:
    more = f" and {len(names) - MOST_TOLD} more" if len(names) > MOST_TOLD else ""
    return ", ".join(names[:MOST_TOLD]) + more
