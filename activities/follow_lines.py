"""What new lines of an attempt's files say: steps, phases, numbers, and that the attempt is lost."""

import io
from collections.abc import Iterable, Sequence
from datetime import datetime
from functools import cache
from pathlib import Path
from typing import NamedTuple

from relight.attribution.catalogue import Catalogue, Role, Signature, load
from relight.attribution.progress import reader
from relight.attribution.progress_json import read_line
from relight.attribution.progress_marks import Mark, Measured, StepMark
from relight.attribution.scanner import Scanner
from relight.domain.base import clip
from relight.domain.diagnosis import Action, Category
from relight.domain.evidence import Evidence, Source
from relight.domain.progress import FATAL_STEPS

FATAL = frozenset({Category.GPU, Category.NODE, Category.NETWORK, Category.HOST_MEMORY, Category.FRAMEWORK})
"""Causes of these kinds end an attempt. Of the others programs tell much that they live with, or try again.

An exception that was not caught shows in the launcher's report.
"""
WEIGHTY = 0.25
"""A launcher's line that weighs less may be of a banner."""


class Said(NamedTuple):
    """What lines say, in their order."""

    marks: tuple[Mark, ...]
    fatal: Evidence | None = None
    """The first line that says that the attempt is lost, unless steps follow it."""


class Lines:
    """Reads lines in the formats and with the signatures of a site. Holds no state; threads may share it."""

    def __init__(self, formats: Iterable[Path] = (), catalogue: Iterable[Path] = ()) -> None:
        self._reader = reader(formats)
        self._fatal = fatal_lines(tuple(catalogue))

    def read(self, lines: Sequence[str], file: str, now: datetime) -> Said:
        """What lines of an output say. Each is looked at once; those with numbers of training are no fatal ones."""
        marks: list[Mark] = []
        others: list[str] = []
        steps_before: list[int] = []
        steps = 0
        for line in lines:
            found = self._reader.read(line)
            marks += found
            measured = [mark for mark in found if isinstance(mark, Measured)]
            if measured:
                steps += isinstance(measured[0], StepMark) or isinstance(measured[-1], StepMark)
            else:
                others.append(line)
                steps_before.append(steps)
        return Said(tuple(marks), self._first_fatal(others, steps_before, steps, file, now))

    def _first_fatal(
        self, lines: Sequence[str], steps_before: Sequence[int], steps: int, file: str, now: datetime
    ) -> Evidence | None:
        text = "\n".join(line.replace("\n", " ").replace("\r", " ") for line in lines)
        if not text:
            return None
        for match in self._fatal.scan(io.BytesIO(text.encode(errors="replace"))):
            known = match.signature in self._fatal.catalogue
            if known and steps - steps_before[match.line_no - 1] < FATAL_STEPS:
                excerpt = clip(match.text, 600)
                return Evidence(source=Source.JOB_LOG, text=excerpt, signature=match.signature, file=file, at=now)
        return None


def read_progress_file(lines: Iterable[str]) -> Said:
    """What lines of a JSON-lines progress file say."""
    return Said(tuple(mark for line in lines for mark in read_line(line)))


@cache
def fatal_lines(catalogue: tuple[Path, ...]) -> Scanner:
    """Finds the lines after which an attempt is lost: the causes and launchers' reports among a site's signatures."""
    known = load(catalogue)
    return Scanner(Catalogue(signatures={name: one for name, one in known.signatures.items() if is_fatal(one)}))


def is_fatal(signature: Signature) -> bool:
    """Whether a line of this signature says that its attempt is lost. What any caught exception prints does not."""
    if signature.role is Role.ROOT:
        return signature.category in FATAL and signature.action is not Action.NONE and not signature.generic
    return signature.role is Role.WRAPPER and signature.weight >= WEIGHTY
