"""What is the same for all checkpoints that are folders of files: each file by itself, and the lists that name them.

It imports the standard library only: it runs in the process that reads a file system.
"""

import json
import re
from collections.abc import Iterable

from relight.clients import checkpoint_dcp as dcp
from relight.clients.checkpoint_tensors import TENSORS, Findings, judge
from relight.clients.checkpoint_tree import Content, Part, Steps, Tree

_SHARD = re.compile(r"(?P<stem>.+)-(?P<number>\d{5})-of-(?P<count>\d{5})(?P<ending>\.\w+)")
_INDEX = re.compile(r".+\.index(?:\.\w+)?\.json")
MOST_TOLD = 3


def judge_files(tree: Tree, content: Content, found: Findings) -> Steps[int]:
    """Judge each file of tensors but those of torch.distributed.checkpoint; how many are well."""
    parts = [part for part in content.parts.values() if part.base.endswith(TENSORS)]
    sound, unclear = 0, list[str]()
    for part in parts:
        if part.base.endswith(dcp.SHARD):
            continue
        yield
        sound += judge(tree, part, found, unclear)
    if not sound and not dcp.folders(content):
        # Beside files that can be judged, a tokenizer's own pickle does not leave all of it unknown.
        found.open += unclear
    return sound


def judge_indices(tree: Tree, content: Content, found: Findings) -> None:
    """Hold the files of tensors against the lists that name them (`model.safetensors.index.json`) and their numbers."""
    listed: set[str] = set()
    for part in [part for part in content.parts.values() if _INDEX.fullmatch(part.base)]:
        names = _named(tree, part, found)
        there = content.inside(part.folder)
        listed |= {f"{part.folder}/{name}" if part.folder else name for name in names}
        if missing := sorted(names - there.keys()):
            found.bad.append(f"{len(missing)} of {len(names)} files that {part.name} names are missing: {few(missing)}")
    sets: dict[tuple[str, str, int, str], set[int]] = {}
    for part in content.parts.values():
        if (match := _SHARD.fullmatch(part.base)) and part.name not in listed:
            key = (part.folder, match["stem"], int(match["count"]), match["ending"])
            sets.setdefault(key, set()).add(int(match["number"]))
    for (_, stem, count, ending), numbers in sets.items():
        if lacking := set(range(1, min(count, 100_000) + 1)) - numbers:
            found.bad.append(f"{len(lacking)} of {count} files {stem}-*{ending} are missing, among them {min(lacking)}")
        elif count > 1:
            found.bad.append(f"the list of the {count} files {stem}-*{ending} is missing")


def _named(tree: Tree, part: Part, found: Findings) -> set[str]:
    try:
        with tree.opened(part.path) as file:
            weights = json.loads(file.read())["weight_map"]
        return {str(name) for name in weights.values()}
    except OSError as error:
        found.open.append(f"{part.name}: {error.strerror or error}")
    except (ValueError, TypeError, LookupError, AttributeError, RecursionError):
        found.bad.append(f"{part.name} is cut short or damaged")
    return set()


def judge_numbers(found: Findings, what: str, numbers: Iterable[int], wanted: int | None) -> bool:
    """Whether the numbers run from 0 on without a gap, up to how many there should be; False where some are missing."""
    there = set(numbers)
    count = wanted if wanted is not None else max(there, default=-1) + 1
    missing = sorted(set(range(min(count, 1_000_000))) - there)
    if missing:
        found.bad.append(f"{len(missing)} of {count} {what} are missing: {few(map(str, missing))}")
    return not missing


def few(names: Iterable[str]) -> str:
    """The first of them, and how many more there are."""
    known = list(names)
    more = f" and {len(known) - MOST_TOLD} more" if len(known) > MOST_TOLD else ""
    return ", ".join(known[:MOST_TOLD]) + more


def judge_folder(tree: Tree, content: Content, found: Findings) -> Steps[None]:
    """A folder of a trainer that is not known: its files, and torch's own metadata where there is one."""
    yield from dcp.judge(tree, content, found)
    sound = yield from judge_files(tree, content, found)
    judge_indices(tree, content, found)
    if not sound and not dcp.folders(content) and not found.open:
        found.bad.append("it holds no file of tensors that is whole")
    elif not found.good and not found.open:
        found.open.append("all files in it are sound; whether all are there, nothing in it says")
