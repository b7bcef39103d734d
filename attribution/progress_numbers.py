"""Where a line has its numbers, and which they are.

Lines that differ in digits only, each by another digit, are of one shape. A job prints lines of few shapes all the
time; where their numbers stand is the same in all of a shape, for patterns that take all digits alike (`shaped`).
"""

import re
from collections.abc import Callable, Mapping
from math import isfinite
from typing import Any, NamedTuple

from relight.attribution.keywords import literal
from relight.attribution.origin import speaker
from relight.attribution.progress_formats import AMOUNT

_MOST_DIGITS = 15
_AHEAD = 40
"""Characters of a number and the words between it and the text that its pattern needs."""
_COUNTS = frozenset({"step", "thousands", "total", "epoch", "epochs"})


def shaped(*patterns: str | None) -> bool:
    """Whether these patterns take all digits alike."""
    return not any(_A_DIGIT.search(_NO_DIGIT.sub("", pattern)) for pattern in patterns if pattern)


_NO_DIGIT = re.compile(r"\{\d*,?\d*\}|\\d|\(\?P<\w+>")
"""What may hold a digit in a pattern, and stands for no particular one in a line."""
_A_DIGIT = re.compile(r"\d")

Spans = dict[str, tuple[int, int]]
"""Where in a line each number stands, by its name."""


class Fields:
    """The patterns for the numbers of a line, each behind a text that it cannot do without."""

    def __init__(self, fields: Mapping[str, tuple[str, ...]]) -> None:
        self._rows = [
            (name, literal(pattern).decode(), re.compile(pattern).search, pattern.startswith("(" + AMOUNT))
            for name, patterns in fields.items()
            for pattern in patterns
        ]
        self.shaped = shaped(*(pattern for patterns in fields.values() for pattern in patterns))

    def add_to(self, found: Spans, line: str, low: str, start: int = 0) -> Spans:
        """Add where the numbers of the line stand from `start` on; what was found already stays."""
        for name, needed, search, ahead in self._rows:
            if needed not in low or name in found:
                continue
            # A number ahead of its unit: only what stands shortly before the unit is looked at.
            begin = max(start, low.find(needed, start) - _AHEAD) if ahead else start
            if match := search(line, begin):
                found[name] = match.span(match.lastindex or 0)
        return found


class Line(NamedTuple):
    """Where a line with numbers has them, and how each is read."""

    at: int
    counts: tuple[tuple[str, int, int], ...]
    """Steps and epochs."""
    numbers: tuple[tuple[str, Callable[[str], float | None], int, int], ...]
    times: tuple[tuple[Callable[[str], float | None], int, int], ...]
    """Of these the first that can be read is the step time."""
    head: int
    """Where what stands before them ends."""
    speaks: bool
    """Whether that may say who printed the line."""


def line_of(line: str, at: int, spans: Spans, head: int) -> Line:
    """How to read a line's numbers, which stand at `spans`."""
    prefix = line[:head].lower()
    marked = "rank" in prefix or "[default" in prefix or prefix.lstrip()[:1].isdigit()
    return Line(
        at=at,
        counts=tuple((name, *span) for name, span in spans.items() if name in _COUNTS),
        numbers=tuple((name, _NUMBERS[name], *span) for name, span in spans.items() if name in _NUMBERS),
        times=tuple((read, *spans[name]) for name, read in TIMES.items() if name in spans),
        head=head,
        # Without a colon or a bracket no prefix does.
        speaks=marked and (":" in prefix or "]" in prefix),
    )


def spans_of(match: re.Match[str]) -> Spans:
    """Where the named groups stand that are not empty."""
    return {name: match.span(name) for name, text in match.groupdict().items() if text}


def texts(line: str, spans: tuple[tuple[str, int, int], ...]) -> dict[str, str]:
    """What stands there, by name."""
    return {name: line[first:last] for name, first, last in spans}


def whole(text: str | None) -> int | None:
    """A whole number that may have commas; None for one too long to be a count."""
    digits = text.replace(",", "") if text else ""
    return int(digits) if 0 < len(digits) <= _MOST_DIGITS else None


def counted(found: Mapping[str, str]) -> int | None:
    """The step."""
    return whole(found["step"] + found.get("thousands", ""))


def of_epochs(step: int, total: int | None, found: Mapping[str, str], first: int) -> tuple[int, int | None]:
    """Step and total of the run, from those of an epoch."""
    epoch, epochs = whole(found["epoch"]), whole(found.get("epochs"))
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


def _milliseconds(text: str) -> float | None:
    value = _rate(text)
    return value / 1000 if value is not None else None


def _per_second(text: str) -> float | None:
    value = _rate(text)
    return 1 / value if value else None


_NUMBERS: dict[str, Callable[[str], float | None]] = {
    "loss": _float,
    "grad_norm": _float,
    "epoch": _float,
    "samples_per_second": _rate,
    "tokens_per_second": _rate,
    "tflops": _rate,
}
TIMES: dict[str, Callable[[str], float | None]] = {
    "seconds": _rate,
    "milliseconds": _milliseconds,
    "steps_per_second": _per_second,
}


def measured(line: str, found: Line) -> dict[str, Any]:
    """The numbers of a line and who printed it, as fields of a mark."""
    values = origin(line[: found.head]) if found.speaks else {}
    for name, read, first, last in found.numbers:
        values[name] = read(line[first:last])
    for read, first, last in found.times:
        if (seconds := read(line[first:last])) is not None:
            values["seconds"] = seconds
            break
    return values


def origin(prefix: str) -> dict[str, Any]:
    """Who printed a line, as fields of a mark."""
    low = prefix.lower()
    if not ("rank" in low or "[default" in low or low.lstrip()[:1].isdigit()):
        return {}
    who = speaker(prefix)
    return {"rank": who.task if who.rank is None else who.rank, "local_rank": who.local_rank, "node": who.node}
