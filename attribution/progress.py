"""Training progress: what a line says about a finished step. The formats are data (`progress.yaml`)."""

import re
from functools import cache
from importlib import resources
from typing import NamedTuple

import yaml

from relight.domain.base import Value

LONGEST_STEP_LINE = 2000
"""A step line is short; longer ones are cut before the search, so that no line costs much."""


class StepMark(Value):
    """One finished training step, as printed."""

    step: int
    total: int | None = None
    """How many steps the run shall have."""
    loss: float | None = None
    seconds: float | None = None
    """Seconds this step took."""


class Format(NamedTuple):
    """How one trainer prints a step."""

    name: str
    needs: str
    pattern: re.Pattern[str]


@cache
def formats() -> tuple[Format, ...]:
    """The known formats, in the order in which they are tried."""
    text = resources.files("relight.attribution").joinpath("progress.yaml").read_text("utf-8")
    return tuple(Format(row["name"], row["needs"], re.compile(row["pattern"])) for row in yaml.safe_load(text))


def parse_step(line: str) -> StepMark | None:
    """The step that the line reports, or None when it reports none.

    Understands what `progress.yaml` lists: Megatron-LM, plain `step 12/100 | loss 0.5 | step_time 0.2 s`,
    torchtitan, nanoGPT, DeepSpeed and tqdm. Of several tqdm bars in one line the last counts.
    """
    line = line[-LONGEST_STEP_LINE:]
    for form in formats():
        if form.needs not in line:
            continue
        found = None
        for found in form.pattern.finditer(line):  # noqa: B007 - the last one counts
            pass
        if found:
            return _mark(found.groupdict())
    return None


def _mark(fields: dict[str, str | None]) -> StepMark | None:
    step, total = fields["step"], fields.get("total")
    if step is None:
        return None
    milliseconds = _number(fields.get("ms"))
    return StepMark(
        step=int(step),
        total=int(total) if total else None,
        loss=_number(fields.get("loss")),
        seconds=milliseconds / 1000 if milliseconds is not None else _number(fields.get("seconds")),
    )


def _number(text: str | None) -> float | None:
    try:
        return float(text) if text else None
    except ValueError:
        return None
