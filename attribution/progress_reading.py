"""One format each, ready to be tried on a line. What they know comes from `progress.yaml`."""

import re
from collections.abc import Mapping
from functools import lru_cache
from math import isfinite
from typing import Any, NamedTuple, Protocol

from relight.attribution.automaton import literal
from relight.attribution.origin import speaker
from relight.attribution.progress_formats import AMOUNT, FIELDS, Bars, PhaseFormat, StepFormat, ValueFormat
from relight.attribution.progress_marks import Edge, Mark, Measured, Phase, PhaseMark, Scope, StepMark

_MOST_DIGITS = 15
_BEFORE = 60
"""Characters before a step in which words that speak against it are looked for."""
_AHEAD = 40
"""Characters of a number and the words between it and the text that its pattern needs."""
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
_AS_PRINTED = frozenset({"loss", "grad_norm", "epoch"})
_THROUGHPUT = frozenset({"samples_per_second", "tokens_per_second", "tflops"})
_TIMES = frozenset({"seconds", "milliseconds", "steps_per_second"})
_EVIDENCE = FIELDS - {"epoch"}


class Hit(NamedTuple):
    """A mark, and where in the line it stands."""

    at: int
    mark: Mark


class Form(Protocol):
    """One format, ready to be tried."""

    slot: str
    """Of each slot a line has one mark at most, the first form's that finds one."""

    def read(self, line: str, low: str) -> Hit | None:
        """What the line says in this format; `low` is the line in lower case."""


class _Fields:
    """The patterns for the numbers of a line, each behind a text that it cannot do without."""

    def __init__(self, fields: Mapping[str, tuple[str, ...]]) -> None:
        self._rows = [
            (name, literal(pattern).decode(), re.compile(pattern).search, pattern.startswith("(" + AMOUNT))
            for name, patterns in fields.items()
            for pattern in patterns
        ]

    def add_to(self, found: dict[str, str], line: str, low: str, start: int = 0) -> dict[str, str]:
        """Add what the line says from `start` on; what was found already stays."""
        for name, needed, search, ahead in self._rows:
            if needed not in low or name in found:
                continue
            # A number ahead of its unit: only what stands shortly before the unit is looked at.
            begin = max(start, low.find(needed, start) - _AHEAD) if ahead else start
            if match := search(line, begin):
                found[name] = match[match.lastindex or 0]
        return found


class StepForm:
    """A line with a step."""

    slot = "step"

    def __init__(self, form: StepFormat) -> None:
        """Compile a format."""
        self._form = form
        self._pattern = re.compile(form.pattern)
        self._unless = re.compile(form.unless) if form.unless else None
        self._unless_behind = re.compile(form.unless_behind) if form.unless_behind else None
        self._fields = _Fields(form.fields)

    def read(self, line: str, low: str) -> Hit | None:
        """The last step of the line."""
        last = None
        for last in self._pattern.finditer(line):  # noqa: B007 - the last one counts
            pass
        if last is None:
            return None
        at, sure = last.start(), self._form.sure
        if self._refused(line, last) or (not sure and (not _heads(line, at) or _FRACTION.match(line, last.end()))):
            return None
        found = self._fields.add_to(_named(last), line, low, at)
        if not sure and _EVIDENCE.isdisjoint(found) and not _ALONE.match(line, last.end()):
            return None
        mark = self._mark(found, line[: last.start("step")])
        return Hit(at, mark) if mark else None

    def _refused(self, line: str, match: re.Match[str]) -> bool:
        at = match.start()
        if at and self._unless and self._unless.search(line, max(0, at - _BEFORE), at):
            return True
        return bool(self._unless_behind and self._unless_behind.match(line, match.end()))

    def _mark(self, found: Mapping[str, str], prefix: str) -> StepMark | None:
        step, total = _counted(found), _whole(found.get("total"))
        if step is None:
            return None
        if self._form.first_epoch is not None and "epoch" in found:
            step, total = _of_epochs(step, total, found, self._form.first_epoch)
        if total is not None and total < step:
            total = None
        return StepMark(step=step, total=total, scope=self._form.scope, **_measured(found, prefix))


class ValueForm:
    """A line with numbers of training and no step."""

    slot = "value"

    def __init__(self, form: ValueFormat) -> None:
        """Compile a format."""
        self._pattern = re.compile(form.pattern)
        self._fields = _Fields(form.fields)

    def read(self, line: str, low: str) -> Hit | None:
        """The numbers of the line."""
        match = self._pattern.search(line)
        if not match:
            return None
        found = self._fields.add_to(_named(match), line, low, match.start())
        return Hit(match.start(), Measured(**_measured(found, line[: match.start()])))


class PhaseForm:
    """A line at the beginning or the end of a phase."""

    slot = "phase"

    def __init__(self, form: PhaseFormat) -> None:
        """Compile a format."""
        self._phase = form.phase
        edges = ((Edge.ENDS, form.ends), (Edge.BEGINS, form.begins))
        self._edges = tuple((edge, re.compile(pattern)) for edge, pattern in edges if pattern)

    def read(self, line: str, low: str) -> Hit | None:
        """The phase, and which end of it."""
        del low
        for edge, pattern in self._edges:
            if match := pattern.search(line):
                at = match.start()
                return Hit(at, PhaseMark(phase=self._phase, edge=edge, **_origin(line[:at])))
        return None


class BarForm:
    """Progress bars: of several in one line the last that is training counts, else the last of another phase."""

    slot = "step"

    def __init__(self, bars: Bars) -> None:
        """Compile what is known of bars."""
        self._pattern = re.compile(bars.pattern)
        self._fields = _Fields(bars.fields)
        self._epoch, self._epochs = re.compile(bars.epoch), re.compile(bars.epochs)
        self._training = re.compile(bars.training)
        self._phases = tuple((phase, re.compile(pattern)) for phase, pattern in bars.phases.items())
        # A job draws the same few bars all the time.
        self._phase = lru_cache(maxsize=256)(self._phase_of)

    def read(self, line: str, low: str) -> Hit | None:
        """The bar that counts."""
        del low
        best: Hit | None = None
        end = 0
        for match in self._pattern.finditer(line):
            name = line[max(end, match.start() - _NAME) : match.start()]
            mark = self._mark(match, name, line[: match.start()])
            end = match.end()
            if mark and (best is None or isinstance(mark, StepMark) or isinstance(best.mark, PhaseMark)):
                best = Hit(match.start(), mark)
        return best

    def _mark(self, match: re.Match[str], text: str, prefix: str) -> StepMark | PhaseMark | None:
        step, total = _counted(_named(match)), _whole(match["total"])
        if step is None or total is None:
            return None
        labels = _PREFIX.match(text)
        name = text[labels.end() if labels else 0 :].rstrip("0123456789").strip(" :")
        if phase := self._phase(name):
            edge = Edge.ENDS if step >= total else Edge.BEGINS
            return PhaseMark(phase=phase, edge=edge, **_origin(prefix))
        inside = match["inside"]
        found = self._fields.add_to({}, inside, inside.lower())
        # Without a rate in steps it counts something else. It is drawn at 0 before the first step, which may take long.
        if step == 0 or (_TIMES.isdisjoint(found) and "?it/s" not in inside):
            return None
        if any(map(str.isalpha, name)) and "loss" not in found and not self._training.search(name):
            return None
        return self._step(step, total, name, found, prefix)

    def _phase_of(self, name: str) -> Phase | None:
        return next((phase for phase, pattern in self._phases if pattern.search(name)), None)

    def _step(self, step: int, total: int, name: str, found: dict[str, str], prefix: str) -> StepMark:
        scope, whole = Scope.BAR, total if total >= step else None
        if epoch := self._epoch.search(name):
            found["epoch"] = epoch["epoch"]
            scope = Scope.RUN
            step, whole = _of_epochs(step, total, found, 0)
        elif self._epochs.search(name):
            scope = Scope.EPOCHS
        return StepMark(step=step, total=whole, scope=scope, **_measured(found, prefix))


def _named(match: re.Match[str]) -> dict[str, str]:
    return {name: text for name, text in match.groupdict().items() if text}


def _whole(text: str | None) -> int | None:
    digits = text.replace(",", "") if text else ""
    return int(digits) if 0 < len(digits) <= _MOST_DIGITS else None


def _counted(found: Mapping[str, str]) -> int | None:
    return _whole(found["step"] + found.get("thousands", ""))


def _of_epochs(step: int, total: int | None, found: Mapping[str, str], first: int) -> tuple[int, int | None]:
    """Step and total of the run, from those of an epoch."""
    epoch, epochs = _whole(found["epoch"]), _whole(found.get("epochs"))
    if total is None or epoch is None:
        return step, None
    return max(epoch - first, 0) * total + step, epochs * total if epochs else None


def _float(text: str | None) -> float | None:
    try:
        return float(text.replace(",", "")) if text else None
    except ValueError:  # 1.2.3
        return None


def _rate(text: str | None) -> float | None:
    """A number that is one; nan, infinite and 0 say that the trainer knew none."""
    value = _float(text)
    return value if value is not None and value > 0 and isfinite(value) else None


def _seconds(found: Mapping[str, str]) -> float | None:
    if (seconds := _rate(found.get("seconds"))) is not None:
        return seconds
    if (milliseconds := _rate(found.get("milliseconds"))) is not None:
        return milliseconds / 1000
    rate = _rate(found.get("steps_per_second"))
    return 1 / rate if rate else None


def _measured(found: Mapping[str, str], prefix: str) -> dict[str, Any]:
    """The numbers found and who printed them, as fields of a mark."""
    values = _origin(prefix)
    for name, text in found.items():
        if name in _AS_PRINTED:
            values[name] = _float(text)
        elif name in _THROUGHPUT:
            values[name] = _rate(text)
    if not _TIMES.isdisjoint(found):
        values["seconds"] = _seconds(found)
    return values


def _origin(prefix: str) -> dict[str, Any]:
    low = prefix.lower()
    if not ("rank" in low or "[default" in low or low.lstrip()[:1].isdigit()):
        return {}
    who = speaker(prefix)
    return {"rank": who.rank, "local_rank": who.local_rank, "node": who.node}


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
