"""One look at the checkpoints below a root: found by name, then judged from the newest on, in pieces of work.

Whoever runs it may stop after any piece: what is known until then stands in the survey, and what was not come to is
unknown. It imports the standard library only: it runs in the process that reads a file system.
"""

import re
from collections.abc import Iterator, Sequence
from contextlib import suppress
from itertools import zip_longest
from typing import Any, NamedTuple

from relight.clients import checkpoint_lightning as lightning
from relight.clients.checkpoint_deep import check
from relight.clients.checkpoint_names import (
    JUDGES,
    TRACKED,
    Claim,
    claim,
    format_of,
    is_checkpoint_itself,
    is_published,
    may_be_file,
)
from relight.clients.checkpoint_tensors import Findings
from relight.clients.checkpoint_tree import Content, Steps, Tree, walk
from relight.clients.files import Entry, UnreachableError
from relight.domain.checkpoint_formats import Format

MOST_OF_A_FOLDER = 100
MOST_FOLDERS = 50
"""Folders with checkpoints; of more, those that were come to first."""
ENOUGH = 3
"""Whole ones of a folder, after which older ones are not judged: to go on from, and to fall back to."""
MOST_REASONS = 4
REASON = 300
"""Characters of one."""


class _Itself(NamedTuple):
    """A folder as an entry of the one above it."""

    name: str
    path: str
    entry: Entry | None = None

    def is_dir(self) -> bool:
        """Yes."""
        return True

    def stat(self) -> Any:
        """Not known here."""
        raise OSError("not looked at")


class _Candidate(NamedTuple):
    """Something whose name is a checkpoint's."""

    entry: Entry
    is_folder: bool
    claim: Claim


class _Group:
    """The candidates of one folder."""

    def __init__(self, folder: str, names: set[str], found: Sequence[_Candidate]) -> None:
        self.folder, self.names = folder, names
        ordered = sorted(found, key=lambda each: -1 if each.claim.step is None else each.claim.step, reverse=True)
        # Those without a step are few, and may be the ones to go on from; a link to another comes after that.
        kept = [each for each in ordered if each.claim.step is None][:MOST_OF_A_FOLDER]
        stepped = [each for each in ordered if each.claim.step is not None]
        self.candidates = stepped[:MOST_OF_A_FOLDER] + kept
        self.left_out = len(found) - len(self.candidates)
        self.whole = 0


class Survey:
    """A look below one root.

    Args:
        tree: what to look through.
        root: where.
        every: whether to judge all; False: of a folder, only until three are known to be whole.
        deep: whether to read the bytes, too: of each series, of the newest one that is not damaged.
    """

    def __init__(self, tree: Tree, root: str, *, every: bool = False, deep: bool = False) -> None:
        self._tree, self._root, self._every, self._deep = tree, root, every, deep
        self._groups: list[_Group] = []
        self._found: dict[tuple[str, Format], list[dict[str, Any]]] = {}
        self._contents: dict[str, Content] = {}
        self._waiting = 0
        self._space: dict[str, tuple[int, int, int | None]] = {}
        self._tracked: dict[tuple[str, Format], dict[str, Any]] = {}
        self._done = False
        self.read = 0
        """Bytes that the deep check has read."""

    def steps(self) -> Steps[None]:
        """Do the work, in pieces."""
        try:
            yield from self._work()
        except UnreachableError as error:
            self.give_up(str(error))

    def _work(self) -> Steps[None]:
        yield from self._find()
        self._waiting = sum(len(group.candidates) for group in self._groups)
        for row in zip_longest(*(group.candidates for group in self._groups)):
            for group, candidate in zip(self._groups, row, strict=True):
                if candidate is not None:
                    yield from self._look(group, candidate)
                    self._waiting -= 1
        for folder, kind in self._found:
            yield from self._track(folder, kind)
        if self._deep:
            yield from self._check_deep()
        self._done = True

    def result(self) -> dict[str, Any]:
        """What is known by now, as JSON has it."""
        problems = list(self._tree.problems)
        if not self._done:
            more = f", {self._waiting} of the checkpoints found" if self._waiting else ""
            problems.append(f"{self._root}: time was up before everything was looked at{more}")
        left = {group.folder: group.left_out for group in self._groups}
        return {
            "series": [
                {
                    "folder": folder,
                    "format": kind,
                    "left_out": left.get(folder, 0),
                    "tracker": self._tracked.get((folder, kind)),
                    "checkpoints": [
                        each | {"last": each["last"] or each["path"] in self._tree.aliases}
                        for each in sorted(found, key=_newest_first, reverse=True)
                    ],
                }
                for (folder, kind), found in self._found.items()
            ],
            "space": {folder: list(space) for folder, space in self._space.items()},
            "problems": problems,
            "elsewhere": [list(each) for each in self._tree.elsewhere.items()],
        }

    def give_up(self, why: str) -> None:
        """Note why the work is not done to its end."""
        self._tree.problem(f"{self._root}: {why}")

    def _find(self) -> Iterator[None]:
        """Find candidates by their names."""
        for folder, entries, _ in walk(self._tree, self._root):
            names = {entry.name for entry in entries}
            if is_checkpoint_itself(names):
                above, _, name = folder.rstrip("/").rpartition("/")
                self._tree.forget(folder)
                digits = re.search(r"\d{1,12}$", name)
                said = claim(name, is_folder=True) or Claim(int(digits[0]) if digits else None)
                itself = _Candidate(_Itself(name, folder), is_folder=True, claim=said)
                self._add(above, set(), [itself])
                entries.clear()
            else:
                found = list(self._claimed(folder, entries))
                if not any(each.is_folder and each.claim.step is not None for each in found):
                    # Alone, a folder called `latest` is a run rather than a checkpoint.
                    found = [each for each in found if not (each.is_folder and lightning.is_last(each.entry.name))]
                if found:
                    self._add(folder, names, found)
                    taken = {each.entry.name for each in found}
                    entries[:] = [entry for entry in entries if entry.name not in taken]
            yield

    def _add(self, folder: str, names: set[str], found: list[_Candidate]) -> None:
        if len(self._groups) < MOST_FOLDERS:
            self._groups.append(_Group(folder, names, found))
        else:
            self._tree.problem(f"{folder}: its checkpoints were left out, so many folders hold some")

    def _claimed(self, folder: str, entries: Sequence[Entry]) -> Iterator[_Candidate]:
        tag = self._tag(folder, {entry.name for entry in entries})
        for entry in entries:
            is_folder = self._tree.is_folder(entry)
            if is_folder is None or not (is_folder or may_be_file(entry.name)):
                continue
            said = claim(entry.name, is_folder=is_folder)
            if said is None and is_folder and entry.name == tag:
                said = Claim(None)
            if said is not None:
                yield _Candidate(entry, is_folder, said)

    def _tag(self, folder: str, names: set[str]) -> str:
        """The checkpoint that DeepSpeed's `latest` names: any name will do for one."""
        read = TRACKED[Format.DEEPSPEED](self._tree, folder, names) if "latest" in names else None
        return (read.target or "") if read else ""

    def _look(self, group: _Group, candidate: _Candidate) -> Steps[None]:
        entry, is_folder, said = candidate
        content = yield from self._tree.content(entry, is_folder=is_folder)
        if content is None:  # a link to one that has been seen
            return
        kind = format_of(content, group.names)
        if kind is None or (not is_folder and not content.parts and not content.unread):
            return
        if self._tree.owner is not None and content.owner not in (self._tree.owner, -1):
            self._tree.problem(f"{entry.path}: left out, as it belongs to another user")
            return
        marker = lightning.marker(entry.name)
        marked = bool(said.mark) or marker in group.names
        found = yield from self._judged(group, content, kind, said, marker if marked else "")
        group.whole += found.whole == "yes"
        step = said.step
        if step is None and not said.mark:
            step = lightning.step_inside(self._tree, content)
        self._contents[entry.path] = content
        self._found.setdefault((group.folder, kind), []).append(
            {
                "path": entry.path,
                "step": step,
                "modified_at": content.modified,
                "size": content.size,
                "files": len(content.parts),
                "whole": found.whole,
                "reasons": [each[:REASON] for each in found.reasons[:MOST_REASONS]],
                "published": is_published(content) if kind is Format.TORCHTITAN else not marked,
                "last": lightning.is_last(entry.name),
                "deep": False,
            }
        )
        yield

    def _judged(self, group: _Group, content: Content, kind: Format, said: Claim, marker: str) -> Steps[Findings]:
        """What speaks for and against a checkpoint; `marker` is set where something says that it is not finished."""
        found = Findings()
        if said.mark:
            found.bad.append(f"its name ({said.mark}) says that it is being written, or was never finished")
        elif marker:
            found.bad.append(f"{marker} beside it says that it was never finished")
        elif not self._every and group.whole >= ENOUGH and said.step is not None:
            found.open.append("not looked into: newer ones are whole")
        else:
            yield from JUDGES[kind](self._tree, content, found)
        found.open += content.unread
        return found

    def _track(self, folder: str, kind: Format) -> Iterator[None]:
        names = next((group.names for group in self._groups if group.folder == folder), set[str]())
        read = TRACKED[kind](self._tree, folder, names) if kind in TRACKED else None
        if read is not None:
            self._tracked[folder, kind] = {
                "path": f"{folder}/{read.file}",
                "says": read.says,
                "target": f"{folder}/{read.target}" if read.target else None,
                "step": read.step,
                "problem": read.problem,
            }
        with suppress(OSError, UnreachableError):
            self._space[folder] = self._tree.files.space(folder)
        yield

    def _check_deep(self) -> Steps[None]:
        """Read the newest that is not damaged; where it turns out to be, the one before it."""
        for found in self._found.values():
            for each in sorted(found, key=_newest_first, reverse=True):
                if each["whole"] == "no":
                    continue
                findings = Findings()
                yield from check(self._tree, self._contents[each["path"]], findings, self._count)
                each["deep"] = True
                if findings.bad:
                    each.update(whole="no", reasons=[text[:REASON] for text in findings.bad[:MOST_REASONS]])
                    continue
                if findings.open and each["whole"] == "yes":
                    each.update(whole="unknown", reasons=[])
                each["reasons"] = [*each["reasons"], *(findings.open or findings.good)][: MOST_REASONS + 1]
                break

    def _count(self, count: int) -> None:
        self.read += count


def _newest_first(checkpoint: dict[str, Any]) -> tuple[int, float]:
    step = checkpoint["step"]
    return (-1 if step is None else step, checkpoint["modified_at"])


def folder_of(root: str) -> str:
    """The folder to look through where somebody names this path: of a checkpoint, the one above it."""
    above, _, name = root.rstrip("/").rpartition("/")
    is_one = claim(name, is_folder=True) or (may_be_file(name) and claim(name, is_folder=False))
    return (above or "/") if is_one else root.rstrip("/") or "/"
