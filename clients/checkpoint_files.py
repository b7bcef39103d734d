"""Checkpoints on a file system, found by the names that trainers give them. Nothing is ever unpickled or loaded."""

import json
import re
import stat
import zipfile
from collections import deque
from collections.abc import Hashable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import NamedTuple

from relight.clients.checkpoints import Checkpoint
from relight.clients.files import Entry, Files, LocalFiles, Stream
from relight.clients.log_files import Bounded
from relight.clients.logs import LogNotFoundError, LogUnreadableError
from relight.domain.evidence import Answer

MAX_DEPTH = 3
MAX_ENTRIES = 10_000
MAX_FOUND = 100
_MAX_DIRECTORY = 4 << 20
_MAX_HEADER = 8 << 20


class _Names(NamedTuple):
    """How one trainer names its checkpoints; the first group is the step."""

    trainer: str
    folder: bool
    pattern: re.Pattern[str]


def _names(trainer: str, pattern: str, *, folder: bool = False) -> _Names:
    return _Names(trainer, folder, re.compile(pattern))


_TENSORS = r"\.(?:npz|pt|pth|bin|safetensors|ckpt)"
NAMES = (
    _names("Hugging Face Trainer", r"checkpoint-(\d{1,12})", folder=True),
    _names("Megatron-LM", r"iter_(\d{1,12})", folder=True),
    _names("DeepSpeed", r"global_step(\d{1,12})", folder=True),
    _names("torchtitan and torch.distributed.checkpoint", r"step[-_]?(\d{1,12})", folder=True),
    _names("Lightning, sharded", r"(?:.*[-_])?step=(\d{1,12})(?:[-_.].*)?", folder=True),
    _names("Lightning and NeMo", r"(?:.*[-_])?step=(\d{1,12})(?:[-_].*)?\.ckpt"),
    _names("Lightning's last", r"last(?:-v\d+)?\.ckpt()"),
    _names("plain PyTorch and numpy", rf"(?:.*[-_])?(?:step|iter)[-_]?(\d{{1,12}}){_TENSORS}"),
    _names("plain PyTorch", rf"(?:ckpt|checkpoint|model)[-_]?(\d{{1,12}}){_TENSORS}"),
    _names("nanoGPT", rf"(?:ckpt|checkpoint){_TENSORS}()"),
)
"""The first that fits the whole name counts."""

_UNFINISHED = re.compile(r"(?i)^[.~]|~$|(?:^|[-_.])(?:te?mp|part|partial|incomplete|unfinished|staging)(?:[-_.]|$)")
_NEMO_MARK = "-unfinished"
"""NeMo keeps an empty file of this ending beside a checkpoint while it is being written."""
_TRACKERS = ("latest_checkpointed_iteration.txt", "latest")
"""Megatron-LM and DeepSpeed write here the newest checkpoint, after all ranks have written theirs."""


class CheckpointFiles:
    """Implements `Checkpoints` for folders of files, three levels deep and at most 10,000 entries.

    Args:
        timeout: half of how long a search may take.
        files: where they are; None: on this machine.
    """

    def __init__(self, *, timeout: timedelta = timedelta(seconds=5), files: Files | None = None) -> None:
        self._bounded = Bounded(timeout)
        self._files = files or LocalFiles()

    async def find(self, root: str) -> tuple[Checkpoint, ...]:
        """Checkpoints under `root`, newest step first, at most 100.

        Folders that cannot be read are left out.

        Raises:
            LogUnreadableError: when the root itself is missing or unreadable, does not answer, or is so large that
                nothing was found among the entries looked at: that is not the same as no checkpoint.
        """
        try:
            return await self._bounded.run(root, lambda: _find(self._files, root), patience=2)
        except LogNotFoundError as e:
            raise LogUnreadableError(str(e)) from e


class _Walk:
    """Looks into folders until the entries that may be looked at are used up."""

    def __init__(self, files: Files) -> None:
        self.files = files
        self.left = MAX_ENTRIES
        self._seen: set[Hashable] = set()

    def entries(self, folder: str) -> list[Entry]:
        """What is in a folder, sorted; nothing when it was seen before (links can go in circles)."""
        place = self.files.place(folder)
        if place in self._seen:
            return []
        self._seen.add(place)
        found = self.files.listing(folder, self.left)
        self.left -= len(found)
        return sorted(found, key=lambda entry: entry.name)

    def readable(self, folder: str) -> list[Entry]:
        """As `entries`, and nothing where the folder cannot be read."""
        try:
            return self.entries(folder)
        except OSError:
            return []


def _find(files: Files, root: str) -> tuple[Checkpoint, ...]:
    walk, found = _Walk(files), list[Checkpoint]()
    entries = walk.entries(root)
    # Breadth first: what lies near the root is found even where something below is huge.
    waiting = deque([(entries, 1)])
    while waiting:
        entries, depth = waiting.popleft()
        names = {entry.name for entry in entries}
        for entry in entries:
            match = _match(entry)
            if match is not None:
                found += _checkpoint(entry, match, names, walk)
            elif depth < MAX_DEPTH and _is_folder(entry):
                waiting.append((walk.readable(entry.path), depth + 1))
    if not found and walk.left <= 0:
        raise LogUnreadableError(f"{root}: no checkpoint among the first {MAX_ENTRIES} entries")
    found.sort(key=lambda c: (-1 if c.step is None else c.step, c.modified_at), reverse=True)
    return tuple(found[:MAX_FOUND])


def _match(entry: Entry) -> re.Match[str] | None:
    if _UNFINISHED.search(entry.name):
        return None
    for names in NAMES:
        match = names.pattern.fullmatch(entry.name)
        if match and _is_folder(entry) is names.folder:
            return match
    return None


def _is_folder(entry: Entry) -> bool:
    try:
        return entry.is_dir()
    except OSError:
        return False


def _checkpoint(entry: Entry, match: re.Match[str], names: set[str], walk: _Walk) -> Iterator[Checkpoint]:
    """The checkpoint behind this entry; none when it went away or is no regular file."""
    try:
        files = list(_files(entry, walk))
    except OSError:
        return
    if not files and not entry.is_dir():
        return
    step = int(match[1]) if match[1] else None
    whole = _whole(walk.files, entry, files, step)
    if entry.name.removesuffix(".ckpt") + _NEMO_MARK in names:
        whole = Answer.NO
    newest = max((file.modified for file in files), default=None) or entry.stat().st_mtime
    yield Checkpoint(
        path=entry.path,
        step=step,
        modified_at=datetime.fromtimestamp(newest, UTC),
        size=sum(file.size for file in files),
        whole=whole,
    )


class _File(NamedTuple):
    path: str
    name: str
    size: int
    modified: float


def _files(entry: Entry, walk: _Walk) -> Iterator[_File]:
    """The regular files of a checkpoint, two folders deep."""
    waiting = deque([(entry, 0)])
    while waiting:
        here, depth = waiting.popleft()
        if here.is_dir():
            if depth <= MAX_DEPTH - 1:
                waiting.extend((inner, depth + 1) for inner in walk.readable(here.path))
            continue
        try:
            found = here.stat()
        except OSError:  # removed meanwhile, or a link to nowhere
            continue
        if stat.S_ISREG(found.st_mode):
            yield _File(here.path, here.name, found.st_size, found.st_mtime)


def _whole(system: Files, entry: Entry, files: list[_File], step: int | None) -> Answer:
    if not entry.is_dir():
        return judge(files[0].path, system)
    weights = [file for file in files if re.search(_TENSORS + r"$|\.distcp$", file.name)]
    answers = {judge(file.path, system) for file in weights}
    if not any(file.size for file in files) or Answer.NO in answers:
        return Answer.NO
    if any(file.name.endswith(".distcp") for file in files):
        # torch.distributed.checkpoint renames `.metadata` into place once all ranks have written theirs.
        return Answer.YES if any(file.name == ".metadata" for file in files) else Answer.NO
    if step is not None and _tracked(system, Path(entry.path).parent) == step:
        return Answer.YES
    # All that is there is sound, but whether all is there nobody says.
    return Answer.UNKNOWN


def _tracked(system: Files, folder: Path) -> int | None:
    """The step that the trainer itself calls its newest complete one."""
    for name in _TRACKERS:
        try:
            with _LimitedFile(system.open(str(folder / name))) as file:
                match = re.fullmatch(rb"\s*(?:global_step)?(\d{1,12})\s*", file.read(64))
        except (OSError, ValueError):
            continue
        if match:
            return int(match[1])
    return None


class _LimitedFile(Stream):
    """A file of which only so much is read at a time: its author decides what its headers claim."""

    limit = _MAX_HEADER

    def read(self, size: int | None = -1, /) -> bytes:
        wanted = self.limit + 1 if size is None or size < 0 else size
        data = super().read(min(wanted, self.limit + 1)) or b""
        if len(data) > self.limit:
            raise ValueError("too much to read")
        return data


def judge(path: str, files: Files | None = None) -> Answer:
    """Whether a file of tensors is whole, as far as its directory or header says."""
    try:
        with _LimitedFile((files or LocalFiles()).open(path)) as file:
            size = file.seek(0, 2)
            file.seek(0)
            if size == 0:
                return Answer.NO
            if path.endswith(".safetensors"):
                return _judge_safetensors(file, size)
            begin = file.read(4)
            if begin == b"PK\x03\x04":
                return _judge_zip(file)
    except (OSError, ValueError, RecursionError):
        return Answer.UNKNOWN
    # numpy's is always a zip file; torch's older format is a bare pickle, which has no directory to look at.
    return Answer.NO if path.endswith(".npz") else Answer.UNKNOWN


def _judge_zip(file: _LimitedFile) -> Answer:
    """Zip files (`torch.save`, `numpy.savez`) end with their directory: cut short, they have none."""
    file.limit = _MAX_DIRECTORY
    try:
        with zipfile.ZipFile(file) as archive:
            return Answer.YES if archive.infolist() else Answer.NO
    except zipfile.BadZipFile:
        return Answer.NO
    except (NotImplementedError, OverflowError, EOFError):
        return Answer.UNKNOWN


def _judge_safetensors(file: _LimitedFile, size: int) -> Answer:
    """The header says where each tensor ends; the last one ends the file (safetensors, "Format")."""
    begin = file.read(8)
    length = int.from_bytes(begin, "little")
    if len(begin) < 8 or 8 + length > size:  # noqa: PLR2004
        return Answer.NO
    header = json.loads(file.read(length))
    try:
        ends = [int(entry["data_offsets"][1]) for name, entry in header.items() if name != "__metadata__"]
    except (AttributeError, TypeError, LookupError):
        return Answer.UNKNOWN
    return Answer.YES if 8 + length + max(ends, default=0) == size else Answer.NO
