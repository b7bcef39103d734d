"""One format each, ready to be tried on a line. What they know comes from `progress.yaml`."""

import re
from typing import Any, NamedTuple, Protocol

from relight.attribution.progress_formats import FIELDS, Bars, PhaseFormat, StepFormat, ValueFormat
from relight.attribution.progress_marks import Edge, Mark, Measured, Phase, PhaseMark, Scope, StepMark
from relight.attribution.progress_numbers import (
    TIMES,
    Fields,
    Line,
    counted,
    line_of,
    measured,
    of_epochs,
    origin,
    shaped,
    spans_of,
    texts,
    whole,
)

_BEFORE = 60
"""Characters before a step in which words that speak against it are looked for."""
_NAME = 120
"""Characters of a bar's name."""
_ALONE = re.compile(r"[\s\])|,.:;%\d()-]*(?:(?i:done|completed?|finished)[\s.!]*)?$")
"""What may follow a step that nothing else is told of."""
_FRACTION = re.compile(r"\.\d")
"""What follows a number that is no step but a time, as in `bwd: 20.11 | step: 3.21`."""
_PREFIX = re.compile(r"(?:\s*(?:\[[^\]]{0,60}\]:?|\d{1,6}:(?= )))+")
_NO_WORD = re.compile(r"\W+")
_LEVEL = 4
"""Letters of the shortest log level (INFO)."""
_TRAINING_WORDS = frozenset({"global", "train", "training", "optim", "optimizer", "num"})
HEAD = r"(?:^|[^\w/. ] *|\d *|[A-Z]{4,8} +|(?:[Gg]lobal|[Tt]rain(?:ing)?)[ _])"
"""What `_heads` asks for, as a pattern for the scanner."""
_EVIDENCE = FIELDS - {"epoch"}


class Hit(NamedTuple):
    """A mark, and where in the line it stands."""

    at: int
    mark: Mark


class Form(Protocol):
    """One format, ready to be tried.

    What `find` answers is the same for all lines of one shape: lines that differ in digits only, each by another digit.
    """

    slot: str
    """Of each slot a line has one mark at most, the first form's that finds one."""
    shaped: bool
    """Whether that is so: a pattern may name a digit."""

    def find(self, line: str, low: str) -> Any:
        """Where in the line what this format tells stands, or None; `low` is the line in lower case."""

    def hit(self, line: str, found: Any) -> Hit | None:
        """What stands there, `found` being the answer of `find` to this line or another of its shape."""


class StepForm:
    """A line with a step."""

    slot = "step"

    def __init__(self, form: StepFormat) -> None:
        """Compile a format."""
        self._form = form
        self._pattern = re.compile(form.pattern)
        self._unless = re.compile(form.unless) if form.unless else None
        self._unless_behind = re.compile(form.unless_behind) if form.unless_behind else None
        self._fields = Fields(form.fields)
        self.shaped = self._fields.shaped and shaped(form.pattern, form.unless, form.unless_behind)

    def find(self, line: str, low: str) -> Line | None:
        """Where the last step of the line stands, and its numbers."""
        last = None
        for last in self._pattern.finditer(line):  # noqa: B007 - the last one counts
            pass
        if last is None:
            return None
        at, sure = last.start(), self._form.sure
        if self._refused(line, last) or (not sure and (not _heads(line, at) or _FRACTION.match(line, last.end()))):
            return None
        found = self._fields.add_to(spans_of(last), line, low, at)
        if not sure and _EVIDENCE.isdisjoint(found) and not _ALONE.match(line, last.end()):
            return None
        return line_of(line, at, found, last.start("step"))

    def hit(self, line: str, found: Line) -> Hit | None:
        """The step."""
        counts = texts(line, found.counts)
        step, total = counted(counts), whole(counts.get("total"))
        if step is None:
            return None
        if self._form.first_epoch is not None and "epoch" in counts:
            step, total = of_epochs(step, total, counts, self._form.first_epoch)
        if total is not None and total < step:
            total = None
        return Hit(found.at, StepMark(step=step, total=total, scope=self._form.scope, **measured(line, found)))

    def _refused(self, line: str, match: re.Match[str]) -> bool:
        at = match.start()
        if at and self._unless and self._unless.search(line, max(0, at - _BEFORE), at):
            return True
        return bool(self._unless_behind and self._unless_behind.match(line, match.end()))


class ValueForm:
    """A line with numbers of training and no step."""

    slot = "value"

    def __init__(self, form: ValueFormat) -> None:
        """Compile a format."""
        self._pattern = re.compile(form.pattern)
        self._fields = Fields(form.fields)
        self.shaped = self._fields.shaped and shaped(form.pattern)

    def find(self, line: str, low: str) -> Line | None:
        """Where the numbers of the line stand."""
        match = self._pattern.search(line)
        if not match:
            return None
        found = self._fields.add_to(spans_of(match), line, low, match.start())
        return line_of(line, match.start(), found, match.start())

    def hit(self, line: str, found: Line) -> Hit | None:
        """The numbers."""
        return Hit(found.at, Measured(**measured(line, found)))


class PhaseForm:
    """A line at the beginning or the end of a phase."""

    slot = "phase"

    def __init__(self, form: PhaseFormat) -> None:
        """Compile a format."""
        self._phase, self._saved = form.phase, form.saved
        edges = ((Edge.ENDS, form.ends), (Edge.BEGINS, form.begins))
        self._edges = tuple((edge, re.compile(pattern)) for edge, pattern in edges if pattern)
        self.shaped = shaped(form.begins, form.ends)

    def find(self, line: str, low: str) -> tuple[int, Edge] | None:
        """Where the phase is named, and which end of it."""
        del low
        for edge, pattern in self._edges:
            if match := pattern.search(line):
                return match.start(), edge
        return None

    def hit(self, line: str, found: tuple[int, Edge]) -> Hit | None:
        """The phase."""
        at, edge = found
        saved = self._saved and edge is Edge.ENDS
        return Hit(at, PhaseMark(phase=self._phase, edge=edge, saved=saved, **origin(line[:at])))


class _Bar(NamedTuple):
    """One bar of a line."""

    line: Line
    phase: Phase | None
    trains: bool
    """Whether its name, or a rate in steps, lets it count them."""
    scope: Scope


class BarForm:
    """Progress bars: of several in one line the last that is training counts, else the last of another phase."""

    slot = "step"

    def __init__(self, bars: Bars) -> None:
        """Compile what is known of bars."""
        self._pattern = re.compile(bars.pattern)
        self._fields = Fields(bars.fields)
        self._epoch, self._epochs = re.compile(bars.epoch), re.compile(bars.epochs)
        self._training = re.compile(bars.training)
        self._phases = tuple((phase, re.compile(pattern)) for phase, pattern in bars.phases.items())
        patterns = (bars.pattern, bars.epoch, bars.epochs, bars.training, *bars.phases.values())
        self.shaped = self._fields.shaped and shaped(*patterns)

    def find(self, line: str, low: str) -> list[_Bar] | None:
        """All bars of the line."""
        del low
        bars = []
        end = 0
        for match in self._pattern.finditer(line):
            begin = max(end, match.start() - _NAME)
            bars.append(self._bar(match, line, begin))
            end = match.end()
        return bars or None

    def hit(self, line: str, found: list[_Bar]) -> Hit | None:
        """The bar that counts."""
        best: Hit | None = None
        for bar in found:
            mark = self._mark(bar, line)
            if mark and (best is None or isinstance(mark, StepMark) or isinstance(best.mark, PhaseMark)):
                best = Hit(bar.line.at, mark)
        return best

    def _bar(self, match: re.Match[str], line: str, begin: int) -> _Bar:
        text = line[begin : match.start()]
        labels = _PREFIX.match(text)
        name = text[labels.end() if labels else 0 :].rstrip("0123456789").strip(" :")
        phase = next((phase for phase, pattern in self._phases if pattern.search(name)), None)
        inside, at = match["inside"], match.start("inside")
        spans = {
            key: (at + first, at + last)
            for key, (first, last) in self._fields.add_to({}, inside, inside.lower()).items()
        }
        # Without a rate in steps it counts something else.
        trains = not TIMES.keys().isdisjoint(spans) or "?it/s" in inside
        if any(map(str.isalpha, name)) and "loss" not in spans and not self._training.search(name):
            trains = False
        scope = Scope.BAR
        if epoch := self._epoch.search(name):
            first = begin + text.index(name)
            spans["epoch"] = (first + epoch.start("epoch"), first + epoch.end("epoch"))
            scope = Scope.RUN
        elif self._epochs.search(name):
            scope = Scope.EPOCHS
        spans |= {key: span for key, span in spans_of(match).items() if key in ("step", "thousands", "total")}
        return _Bar(line_of(line, match.start(), spans, match.start()), phase, trains, scope)

    def _mark(self, bar: _Bar, line: str) -> StepMark | PhaseMark | None:
        counts = texts(line, bar.line.counts)
        step, total = counted(counts), whole(counts.get("total"))
        if step is None or total is None:
            return None
        if bar.phase:
            edge = Edge.ENDS if step >= total else Edge.BEGINS
            return PhaseMark(phase=bar.phase, edge=edge, **origin(line[: bar.line.head]))
        # It is drawn at 0 before the first step, which may take long.
        if step == 0 or not bar.trains:
            return None
        of = total if total >= step else None
        if bar.scope is Scope.RUN:
            step, of = of_epochs(step, total, counts, 0)
        return StepMark(step=step, total=of, scope=bar.scope, **measured(line, bar.line))


def _heads(line: str, at: int) -> bool:
    """Whether a word for a step may stand here, and not behind other words as in `saved at step 5`.

    It may at the beginning, behind punctuation, behind a number (a time of day, a glued line), behind a level in
    capitals or a word for training.
    """
    before = line[max(0, at - _BEFORE) : at].rstrip(" ")
    if not before or not (before[-1].isalpha() or before[-1] in "_/.") or not before[-1].isascii():
        return True
    word = _NO_WORD.split(before)[-1].strip("_")
    return word.lower() in _TRAINING_WORDS or (len(word) >= _LEVEL and word.isupper())
