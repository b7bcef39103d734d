"""The table of docs/slurm-ways.md: which operation works by which way on which Slurm, as the tests found it."""

import re
from collections.abc import Mapping

Ways = Mapping[str, Mapping[str, str]]
"""Way to operation to `passed`, `failed` or `skipped: ` and why."""

BEGIN = "<!-- begin: written by `make test-slurm-versions` -->"
END = "<!-- end -->"

WORDS = {"passed": "yes", "failed": "FAILED"}
SKIPPED = "skipped: "
NOT_RUN = "-"


class TableError(Exception):
    """The document has no place for the table."""


def merge(document: str, results: Mapping[str, Ways]) -> str:
    """Return the document with `results` (by Slurm version, such as 24.11.5) in its table.

    A version takes the place of an earlier one of its series; what was not run this time stays.
    """
    before, begin, rest = document.partition(BEGIN)
    old, end, after = rest.partition(END)
    if not begin or not end:
        raise TableError(f"the document lacks the lines {BEGIN} and {END}")
    series = {_series(version) for version in results}
    kept = {version: ways for version, ways in parse(old).items() if _series(version) not in series}
    return f"{before}{BEGIN}\n\n{render(kept | dict(results))}\n{END}{after}"


def render(results: Mapping[str, Ways]) -> str:
    """Return the table, and the reasons of what was skipped as numbered lines below it."""
    versions = sorted(results, key=_numbers)
    rows = sorted({(op, way) for ways in results.values() for way, known in ways.items() for op in known})
    notes: dict[str, int] = {}
    lines = [_row("operation", "way", *versions), _row(*["---"] * (2 + len(versions)))]
    for operation, way in rows:
        outcomes = [results[version].get(way, {}).get(operation) for version in versions]
        lines.append(_row(operation, way, *(_cell(outcome, notes) for outcome in outcomes)))
    if notes:
        lines += ["", *(f"{number}. {reason}" for reason, number in notes.items())]
    return "\n".join(lines) + "\n"


def parse(table: str) -> dict[str, dict[str, dict[str, str]]]:
    """Return what `render` was given; empty for an empty table."""
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in table.splitlines() if line[:1] == "|"]
    notes = dict(re.findall(r"^(\d+)\. (.*)$", table, re.MULTILINE))
    versions = rows[0][2:] if rows else []
    found: dict[str, dict[str, dict[str, str]]] = {version: {} for version in versions}
    for operation, way, *cells in rows[2:]:
        for version, cell in zip(versions, cells, strict=True):
            if (outcome := _outcome(cell, notes)) is not None:
                found[version].setdefault(way, {})[operation] = outcome
    return found


def _cell(outcome: str | None, notes: dict[str, int]) -> str:
    if outcome is None:
        return NOT_RUN
    if not outcome.startswith(SKIPPED):
        return WORDS[outcome]
    reason = " ".join(outcome.removeprefix(SKIPPED).split())
    return f"skipped ({notes.setdefault(reason, len(notes) + 1)})"


def _outcome(cell: str, notes: Mapping[str, str]) -> str | None:
    if number := re.fullmatch(r"skipped \((\d+)\)", cell):
        return SKIPPED + notes[number[1]]
    return {word: outcome for outcome, word in WORDS.items()}.get(cell)


def _row(*cells: str) -> str:
    return f"| {' | '.join(cells)} |"


def _series(version: str) -> tuple[int, ...]:
    return _numbers(version)[:2]


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(map(int, re.findall(r"\d+", version)))
