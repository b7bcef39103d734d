"""Training progress: what a line of a job's output says about it. The formats are data (`progress.yaml`).

`Reader.read` tells all that a line says; `parse_step` the finished step. Both look at one line only: what bars without
a name count, and epochs of unknown length, become clear from the lines before (`progress_count.py`).
"""

import re
from collections.abc import Iterable
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

from relight.attribution.progress_formats import Formats, load
from relight.attribution.progress_marks import Mark, PhaseMark, Scope, StepMark
from relight.attribution.progress_reading import HEAD, BarForm, Form, Hit, PhaseForm, StepForm, ValueForm

__all__ = ["LONGEST_LINE", "Format", "Reader", "StepMark", "formats", "parse_step", "reader"]

LONGEST_LINE = 4096
"""Characters of a line that are looked at, the last ones: no line costs much."""
SHAPES = 4096
"""Shapes of lines that are remembered."""
SHAPED = 1024
"""Characters of the longest line whose shape is."""
_DIGITS = bytes.maketrans(b"123456789", b"000000000")
_ESCAPES = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|[@-Z\\^_])")


class Reader:
    """Reads lines in all formats known. What it remembers of them makes it fast, no more; threads may share it."""

    def __init__(self, known: Formats) -> None:
        sure = [step for step in known.steps if step.sure]
        unsure = [step for step in known.steps if not step.sure]
        # Bars before what may be prose: `steps:  12%|` is no step 12.
        rows: list[tuple[tuple[str, ...], Form]] = [
            *((form.needs, StepForm(form)) for form in sure),
            (known.bars.needs, BarForm(known.bars)),
            *((form.needs, StepForm(form)) for form in unsure),
            *((form.needs, ValueForm(form)) for form in known.values),
            *((form.needs, PhaseForm(form)) for form in known.phases),
        ]
        self._forms = [form for _, form in rows]
        self._roots = _by_root([(text, place) for place, (needs, _) in enumerate(rows) for text in needs])

        self._plans: dict[bytes, tuple[tuple[Form, Any], ...]] = {}
        """By shape, the forms that find something in its lines."""

    def read(self, line: str) -> tuple[Mark, ...]:
        """What the line says, in the order in which it stands there: at most one each of step, numbers, phase.

        Of several steps the last counts. Any text is answered; of a long line the last 4096 characters are looked at.
        """
        if len(line) > SHAPED:
            return self._hits(*self._searched(line[-LONGEST_LINE:]))
        # A job prints lines of the same few shapes all the time: where their numbers stand is looked up.
        shape = line.encode(errors="surrogatepass").translate(_DIGITS)
        plan = self._plans.get(shape)
        if plan is None:
            line, plan = self._searched(line)
            if len(self._plans) >= SHAPES:
                self._plans.clear()
            self._plans[shape] = plan
        elif plan and ("\x1b" in line or "\r" in line):
            line = _cleaned(line)
        return self._hits(line, plan)

    def _searched(self, line: str) -> tuple[str, tuple[tuple[Form, Any], ...]]:
        """The forms that find something in the line, in the order in which they are tried, and where; and the line."""
        low = line.lower()
        near = [texts for root, texts in self._roots if root in low]
        places = sorted({place for texts in near for needs, place in texts if needs in low})
        if places and ("\x1b" in line or "\r" in line):
            line = _cleaned(line)
            low = line.lower()
        plan = []
        for form in (self._forms[place] for place in places):
            found = form.find(line, low)
            if not form.shaped:
                plan.append((form, None))
            elif found is not None:
                plan.append((form, found))
        return line, tuple(plan)

    def _hits(self, line: str, plan: tuple[tuple[Form, Any], ...]) -> tuple[Mark, ...]:
        if not plan:
            return ()
        hits: dict[str, Hit] = {}
        for form, known in plan:
            if form.slot in hits:
                continue
            found = form.find(line, line.lower()) if known is None else known
            if found is not None and (hit := form.hit(line, found)):
                hits[form.slot] = hit
        if len(hits) > 1:
            if _same_phase(hits.get("step"), hits.get("phase")):
                del hits["phase"]
            return tuple(hit.mark for hit in sorted(hits.values(), key=lambda hit: hit.at))
        return tuple([hit.mark for hit in hits.values()])


def _cleaned(line: str) -> str:
    return _ESCAPES.sub("", line).rstrip().replace("\r", "\t")


def _same_phase(bar: Hit | None, prose: Hit | None) -> bool:
    """Whether a bar and its name say the same phase; the bar knows whether it has ended."""
    marks = [hit.mark for hit in (bar, prose) if hit and isinstance(hit.mark, PhaseMark)]
    return len(marks) > 1 and len({mark.phase for mark in marks}) == 1


def _by_root(texts: Iterable[tuple[str, int]]) -> list[tuple[str, list[tuple[str, int]]]]:
    """The texts by the shortest of them that each contains: one search answers for many."""
    groups: dict[str, list[tuple[str, int]]] = {}
    for needs, place in sorted(texts, key=lambda text: len(text[0])):
        root = next((root for root in groups if root in needs), needs)
        groups.setdefault(root, []).append((needs, place))
    return list(groups.items())


@cache
def _shipped() -> Reader:
    return Reader(load())


def reader(extra: Iterable[Path] = ()) -> Reader:
    """A reader of the shipped formats and of a site's own.

    Raises:
        ProgressDataError: when a file cannot be read or an entry is not valid.
    """
    return Reader(load(extra))


def parse_step(line: str) -> StepMark | None:
    """The step that the line reports in a shipped format, or None when it reports none.

    Of several in one line the last counts. Lines that tell of whole epochs only are left out.
    """
    for mark in _shipped().read(line):
        if isinstance(mark, StepMark) and mark.scope is not Scope.EPOCHS:
            return mark
    return None


class Format(NamedTuple):
    """How one trainer prints a step: what the scanner looks for."""

    name: str
    pattern: re.Pattern[str]


@cache
def formats() -> tuple[Format, ...]:
    """The shipped formats of lines with a step."""
    known = load()
    steps = ((form.name, form.pattern if form.sure else HEAD + form.pattern) for form in known.steps)
    return tuple(Format(name, re.compile(pattern)) for name, pattern in (*steps, ("bars", known.bars.pattern)))
