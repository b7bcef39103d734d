"""Is a site's file of signatures right: each field, each example, and nothing that fires on a healthy log."""

import io
from collections.abc import Iterable, Iterator, Sequence
from importlib import resources
from pathlib import Path
from typing import NamedTuple

from relight.attribution import hyperscan_automaton
from relight.attribution.catalogue import Catalogue, Role, Signature, load, problems
from relight.attribution.hyperscan_automaton import PatternError
from relight.attribution.scanner import Scanner


class Report(NamedTuple):
    """What a check found."""

    problems: tuple[str, ...]
    """One line each; none: the file can be used."""
    notes: tuple[str, ...] = ()
    """Worth knowing, not wrong."""
    summary: str = ""


def check(file: Path, extra: Sequence[Path] = ()) -> Report:
    """Check a site's file, read after the `extra` ones.

    Raises:
        CatalogueError: when one of the `extra` files is not valid.
    """
    if wrong := problems(file, extra):
        return Report(wrong)
    before, known = load(extra), load([*extra, file])
    ours = [one for one in known.signatures.values() if before.signatures.get(one.id) != one]
    scanners = {"re": Scanner(known, fast=False)}
    if hyperscan_automaton.hyperscan is not None:
        alone = Catalogue(signatures={one.id: one for one in ours})  # all together take it seconds to compile
        try:
            scanners["hyperscan"] = Scanner(alone, fast=True)
        except PatternError as error:
            return Report((f"{file}: {_owner(ours, str(error))}patterns: {error}",))
    found: dict[str, None] = {}
    for scanner in scanners.values():
        found |= dict.fromkeys(_by_running(scanner, ours, file))
    examples = sum(len(one.examples.match) + len(one.examples.no_match) for one in ours)
    entries = f"{len(ours)} entr{'y is' if len(ours) == 1 else 'ies are'} valid"
    summary = f"{entries}, {examples} examples hold ({' and '.join(scanners)})"
    return Report(tuple(found), tuple(_notes(ours, before)), summary)


def healthy_lines() -> tuple[str, ...]:
    """Lines of healthy logs, some with frightening words: no cause may recognise one."""
    text = resources.files("relight.attribution").joinpath("healthy.txt").read_text("utf-8")
    return tuple(line for line in text.splitlines() if line and not line.startswith("# "))


def recognised(scanner: Scanner, line: str) -> set[str]:
    """The ids of the entries that recognise the line."""
    return {match.signature for match in scanner.scan(io.BytesIO(line.encode() + b"\n"))}


def _owner(ours: Iterable[Signature], message: str) -> str:
    """The entry whose pattern the message is about."""
    return next((f"entry {one.id}: " for one in ours for pattern in one.patterns if pattern in message), "")


def _by_running(scanner: Scanner, ours: Iterable[Signature], file: Path) -> Iterator[str]:
    for one in ours:
        for line in one.examples.match:
            if one.id not in recognised(scanner, line):
                yield f"{file}: entry {one.id}: examples.match: is not recognised: {line!r:.200}"
        for line in one.examples.no_match:
            if one.id in recognised(scanner, line):
                yield f"{file}: entry {one.id}: examples.no_match: is recognised all the same: {line!r:.200}"
    causes = {one.id for one in ours if one.role in {Role.ROOT, Role.WRAPPER}}
    for line in healthy_lines():
        for name in sorted(causes & recognised(scanner, line)):
            yield f"{file}: entry {name}: patterns: too wide, recognises a line of healthy logs: {line!r:.200}"


def _notes(ours: Iterable[Signature], before: Catalogue) -> Iterator[str]:
    for one in ours:
        if one.id in before:
            yield f"{one.id} replaces an entry of the group {before[one.id].group}"
        if not one.examples.match:
            yield f"{one.id} has no examples.match: give it a line that it must recognise"
