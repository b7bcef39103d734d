"""A labelled corpus: its logs and the truth about each. Format: `labels.tsv`, one row for each log.

`file` names a log in the folder, or a folder in it that holds all files of one job. Beside `NAME.log` (or `NAME/`) may
lie `NAME.context.json` or `.yaml` (`attribution.context_file`) and `NAME.kernel-NODE.log`, a node's kernel log.
"""

import csv
import re
from collections.abc import Iterator, Mapping
from enum import StrEnum
from functools import partial
from pathlib import Path
from typing import BinaryIO, NamedTuple, TypeVar

from relight.attribution.context_file import read_context
from relight.attribution.sources import Context, LogSource
from relight.domain.diagnosis import Action, Category
from relight.domain.evidence import Source

FILE = "labels.tsv"
NEEDED = ("file", "category", "action")
REPEATS, WHO, SIGNATURE = "action_if_it_repeats", "implicated_rank_or_node", "signature_id"
_KERNEL = ".kernel-"
Answer = TypeVar("Answer", bound=StrEnum)


class CorpusError(ValueError):
    """The corpus cannot be measured; the message names file, line, field, what was found and what is accepted."""


class Places(NamedTuple):
    """Whom a label names, where a machine can check it."""

    ranks: frozenset[int] = frozenset()
    local_ranks: frozenset[int] = frozenset()
    nodes: frozenset[str] = frozenset()
    gpus: frozenset[str] = frozenset()
    """As `gpu_key` writes them."""


class Truth(NamedTuple):
    """One row."""

    file: str
    category: Category
    action: Action
    repeats: Action | None
    """None where the label does not say."""
    who: Places | None
    """None where the label is free text; all empty where it says that nobody is to blame."""
    signature: str

    @property
    def blames_nobody(self) -> bool:
        """Whether the label says so."""
        return self.who == Places()


class Case(NamedTuple):
    """A log, or several of one job, with what else is known and the truth."""

    truth: Truth
    sources: tuple[LogSource, ...]
    context: Context | None


def read_corpus(folder: Path) -> list[Case]:
    """All cases of a corpus, in the order of its labels.

    Raises:
        CorpusError: when labels.tsv or a file that it names is missing, or a row is not valid.
        ContextFileError: when a context file is not valid.
    """
    return [_case(folder, truth, line) for line, truth in _truths(folder / FILE)]


def _truths(file: Path) -> Iterator[tuple[int, Truth]]:
    try:
        text = file.read_text("utf-8")
    except FileNotFoundError:
        raise CorpusError(f"{file}: no such file; a corpus is a folder with logs and {FILE}") from None
    except (OSError, UnicodeDecodeError) as error:
        raise CorpusError(f"{file}: cannot be read: {getattr(error, 'strerror', None) or error}") from error
    table = csv.DictReader(text.splitlines(), delimiter="\t")
    columns = table.fieldnames or ()
    if lacking := [name for name in NEEDED if name not in columns]:
        found = ", ".join(columns) or "nothing"
        raise CorpusError(f"{file}: no column {lacking[0]!r}; found {found[:200]}, needed are {', '.join(NEEDED)}")
    seen: set[str] = set()
    for row in table:
        truth = _truth(row, f"{file}: line {table.line_num}")
        if truth.file in seen:
            raise CorpusError(f"{file}: line {table.line_num}: file: found {truth.file!r} a second time")
        seen.add(truth.file)
        yield table.line_num, truth
    if not seen:
        raise CorpusError(f"{file}: found no row; one for each log is needed")


def _truth(row: Mapping[str, str | None], place: str) -> Truth:
    repeats = row.get(REPEATS) or ""
    return Truth(
        file=row["file"] or "",
        category=_one_of(Category, row["category"], f"{place}: category"),
        action=_one_of(Action, row["action"], f"{place}: action"),
        repeats=_one_of(Action, repeats, f"{place}: {REPEATS}") if repeats else None,
        who=read_places(row.get(WHO) or ""),
        signature=row.get(SIGNATURE) or "",
    )


def _one_of(kind: type[Answer], text: str | None, place: str) -> Answer:
    try:
        return kind(text or "")
    except ValueError:
        raise CorpusError(f"{place}: found {text or ''!r}, accepted are {', '.join(kind)}") from None


def _case(folder: Path, truth: Truth, line: int) -> Case:
    path = folder / truth.file
    if not truth.file or not path.exists():
        raise CorpusError(f"{folder / FILE}: line {line}: file: found {truth.file!r}, which is not in {folder}")
    files = sorted(path.iterdir()) if path.is_dir() else [path]
    if not files:
        raise CorpusError(f"{folder / FILE}: line {line}: file: found {truth.file!r}, an empty folder")
    sources = [_source(file, folder, Source.JOB_LOG, None) for file in files]
    stem = path.name.removesuffix(".gz")
    stem = stem if path.is_dir() else stem.rpartition(".")[0] or stem
    for file in sorted(path.parent.glob(f"{_literal(stem)}{_KERNEL}*")):
        node = file.name.removeprefix(stem + _KERNEL).split(".log")[0]
        sources.append(_source(file, folder, Source.KERNEL_LOG, node))
    contexts = [file for ending in ("json", "yaml") if (file := path.parent / f"{stem}.context.{ending}").exists()]
    return Case(truth, tuple(sources), read_context(contexts[0]) if contexts else None)


def _source(file: Path, folder: Path, kind: Source, node: str | None) -> LogSource:
    return LogSource(str(file.relative_to(folder)), kind, node, partial(_open, file))


def _open(file: Path) -> BinaryIO:
    return file.open("rb")


def _literal(text: str) -> str:
    return re.sub(r"([*?\[])", r"[\1]", text)


_COMMENT = re.compile(r"\([^()]*\)")
_NUMBERS = r"\d+(?:-\d+)?(?:(?:,\s?|\sand\s)\d+(?:-\d+)?)*"
_PART = re.compile(
    rf"""(?: ranks?\ (?P<ranks>{_NUMBERS})
    | (?:tasks?)\ (?P<tasks>{_NUMBERS})
    | local[_ ]ranks?\ (?P<local>{_NUMBERS})
    | (?:local\ )?GPU\ ?(?P<gpu>[0-9a-fA-F:.]+)
    | nodes?\ (?P<nodes>[\w.-]+(?:(?:,\ ?|\ and\ )[\w.-]+)*)
    | (?P<host>[a-z][a-z-]*\d[\w.-]*)
    | one\ node )\b""",
    re.VERBOSE,
)
_BETWEEN = re.compile(r"(?:, | and | on | of |; | )?")


def read_places(text: str) -> Places | None:
    """Whom a label names: `rank 3`, `ranks 4,5,6,7`, `local_rank 1`, `node01 task 4`, `GPU dc:00 of one node`, `none`.

    What stands in parentheses or after a semicolon is a comment. None for free text: no machine can say whether it was
    met.
    """
    text = _COMMENT.sub("", text).partition(";")[0].strip().removeprefix("around ")
    if re.match(r"none\b", text):
        return Places()
    found: dict[str, set[str]] = {"ranks": set(), "local": set(), "nodes": set(), "gpus": set()}
    at = 0
    while at < len(text):
        part = _PART.match(text, at)
        if part is None:
            return None
        _take(part, found)
        at = _BETWEEN.match(text, part.end()).end()  # type: ignore[union-attr]  # matches the empty text, too
        if at == part.end() < len(text):
            return None
    ranks, local = (frozenset(_expand(found[name])) for name in ("ranks", "local"))
    named = Places(ranks, local, frozenset(found["nodes"]), frozenset(map(gpu_key, found["gpus"])))
    return named if named != Places() else None


def _take(part: re.Match[str], found: Mapping[str, set[str]]) -> None:
    for group, kind in (("ranks", "ranks"), ("tasks", "ranks"), ("local", "local"), ("nodes", "nodes")):
        found[kind].update(re.split(r", ?| and ", part[group] or "") if part[group] else ())
    found["nodes"].update([part["host"]] if part["host"] else ())
    found["gpus"].update([part["gpu"]] if part["gpu"] else ())


def _expand(ranges: set[str]) -> Iterator[int]:
    for text in ranges:
        low, _, high = text.partition("-")
        yield from range(int(low), int(high or low) + 1)


def gpu_key(text: str) -> str:
    """A GPU in the form in which two are compared: bus and device of a PCI address, or the local index."""
    return text.lower().partition(".")[0][-5:] if ":" in text else text
