"""The progress file: one JSON object a line, the precise way for a job to say how far it is.

    {"step": 12, "time": "2026-11-30T09:31:00Z", "loss": 2.31, "step_seconds": 0.52}
    {"step": 12, "phase": "checkpoint"}

| key | value |
| --- | --- |
| `step` | finished steps of the run, a whole number from 0; needed unless `phase` is given |
| `time` | seconds since 1970, or ISO 8601 text with a zone |
| `total_steps` | how many steps the run shall have |
| `step_seconds` | seconds this step took |
| `compute_seconds` | seconds of it without collectives, with `rank`, on every rank: tells who holds up the others |
| `samples_per_second`, `tokens_per_second`, `tflops` | throughput, of the job or of one device, always the same |
| `loss`, `grad_norm` | numbers; NaN and Infinity as Python's `json` writes them |
| `epoch`, `rank`, `node` | a number; a whole number; the name of the rank's node in Slurm |
| `phase` | what the writer does from now on: one of `Phase`, or `training` again |

Other keys are ignored, and null is as good as no key. A line that is not such an object, or has a known key with
another type of value, is skipped as a whole: nothing is guessed.
"""

import json
from collections.abc import Iterable
from datetime import UTC, datetime
from math import isfinite
from typing import Any, NamedTuple

from relight.attribution.progress_marks import Edge, Mark, Phase, PhaseMark, StepMark

TRAINING = "training"
_LARGEST = 10**15
_LONGEST = 255
_ANY_NUMBER = {"loss": "loss", "grad_norm": "grad_norm"}
_RATES = {
    "step_seconds": "seconds",
    "compute_seconds": "compute_seconds",
    "samples_per_second": "samples_per_second",
    "tokens_per_second": "tokens_per_second",
    "tflops": "tflops",
    "epoch": "epoch",
}
_COUNTS = {"step": "step", "total_steps": "total", "rank": "rank"}


class Lines(NamedTuple):
    """What lines of a progress file say."""

    marks: tuple[Mark, ...]
    skipped: int
    """Lines that could not be understood; empty ones are not counted."""


def read_lines(lines: Iterable[str]) -> Lines:
    """The marks of all lines, in order."""
    marks: list[Mark] = []
    skipped = 0
    for line in lines:
        if not line.strip():
            continue
        if found := read_line(line):
            marks += found
        else:
            skipped += 1
    return Lines(tuple(marks), skipped)


def read_line(line: str) -> tuple[Mark, ...]:
    """What one line says: a step, a phase, or both (the step is finished when the phase begins); nothing when unclear.

    A line without `phase`, or with the phase `training`, gives its step alone: a step ends whatever phase was on.
    """
    try:
        entry = json.loads(line)
        return _marks({key: value for key, value in entry.items() if value is not None})
    # A deeply nested line exhausts the parser's stack; the others are no JSON, no object, a wrong type, no date.
    except (ValueError, TypeError, AttributeError, OverflowError, OSError, RecursionError):
        return ()


def _marks(entry: dict[str, Any]) -> tuple[Mark, ...]:
    values: dict[str, Any] = {field: _whole(entry[key]) for key, field in _COUNTS.items() if key in entry}
    values |= {field: _number(entry[key]) for key, field in _ANY_NUMBER.items() if key in entry}
    values |= {field: _rate(entry[key]) for key, field in _RATES.items() if key in entry}
    who = {
        "rank": values.get("rank"),
        "node": _word(entry["node"]) if "node" in entry else None,
        "at": _time(entry["time"]) if "time" in entry else None,
    }
    steps = (StepMark(**values | who),) if "step" in values else ()
    phase = entry.get("phase", TRAINING)
    if phase == TRAINING:
        return steps
    return (*steps, PhaseMark(phase=Phase(phase), edge=Edge.BEGINS, **who))


def _number(value: object) -> float:
    # JSON's true is no number, though Python's is.
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise TypeError(value)
    return float(value)


def _rate(value: object) -> float:
    number = _number(value)
    if number < 0 or not isfinite(number):
        raise ValueError(value)
    return number


def _whole(value: object) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value < _LARGEST:
        raise TypeError(value)
    return value


def _word(value: object) -> str:
    if not isinstance(value, str) or len(value) > _LONGEST:
        raise TypeError(value)
    return value


def _time(value: object) -> datetime:
    if isinstance(value, str):
        at = datetime.fromisoformat(value)
        if at.tzinfo is None:
            raise ValueError(value)
        return at
    return datetime.fromtimestamp(_number(value), UTC)
