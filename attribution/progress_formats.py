"""How trainers print progress, as data: `progress.yaml`, and a site's own files over it."""

import re
from collections.abc import Iterable, Mapping
from functools import cache
from importlib import resources
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar

import yaml
from pydantic import AfterValidator, BeforeValidator, Field, ValidationError

from relight.attribution.progress_marks import Phase, Scope
from relight.domain.base import Value

NUMBER = r"(?:[-+]?(?:\d+(?:,\d\d\d)*(?:\.\d*)?|\.\d+)(?:[eE][-+]?\d+)?|[-+]?(?:[nN][aA][nN]|[iI]nf(?:inity)?)\b)"
"""A number as Python, C and NumPy print one, with thousands separated by commas."""
AMOUNT = r"\d[\d.,]{0,20}(?:[eE][-+]?\d{1,3})?"
"""A number without a sign, as one finds it quickly when it stands ahead of its unit."""
MACROS = {
    "<number>": NUMBER,
    "<amount>": AMOUNT,
    "<step>": r"(?P<step>\d+)(?P<thousands>(?:,\d\d\d\b)*)",
    "<total>": r"(?P<total>\d+(?:,\d\d\d\b)*)",
    "<epoch>": r"(?P<epoch>\d+)",
}
FIELDS = frozenset(
    {
        "loss",
        "seconds",
        "milliseconds",
        "steps_per_second",
        "samples_per_second",
        "tokens_per_second",
        "tflops",
        "grad_norm",
        "epoch",
    }
)
"""What a format's `fields` and the named groups of its pattern may be, besides step, total, epochs."""
GROUPS = FIELDS | {"step", "thousands", "total", "epochs", "inside"}
_LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
"""LibYAML's where PyYAML was built with it: several times as fast, and a diagnosis of a small log waits for it."""


class ProgressDataError(ValueError):
    """A file of formats cannot be used; the message names file, entry, field, what was found and what is accepted."""


def _expanded(pattern: str) -> str:
    for macro, meaning in MACROS.items():
        pattern = pattern.replace(macro, meaning)
    if re.search(r"\(\?<?[=!]|\(\?P=|\\[1-9]", pattern):
        raise ValueError("uses look-around or a back reference, which hyperscan cannot do")
    try:
        compiled = re.compile(pattern)
    except re.error as error:
        raise ValueError(f"is not a regular expression: {error}") from error
    if compiled.search(""):
        raise ValueError("matches the empty line")
    if unknown := compiled.groupindex.keys() - GROUPS:
        raise ValueError(f"has the group {min(unknown)!r}; accepted are {', '.join(sorted(GROUPS))}")
    return pattern


def _step_expanded(pattern: str) -> str:
    pattern = _expanded(pattern)
    if r"(?P<step>\d+)" not in pattern:
        raise ValueError("has no <step>; write it where the number of the step stands")
    return pattern


def _listed(text: object) -> object:
    return [text] if isinstance(text, str) else text


def _fields_expanded(fields: Mapping[str, tuple[str, ...]]) -> Mapping[str, tuple[str, ...]]:
    if unknown := fields.keys() - FIELDS:
        raise ValueError(f"has {min(unknown)!r}; accepted are {', '.join(sorted(FIELDS))}")
    expanded = {name: tuple(map(_expanded, patterns)) for name, patterns in fields.items()}
    for name, patterns in expanded.items():
        if any(not re.compile(pattern).groups for pattern in patterns):
            raise ValueError(f"{name}: has no group; put the number into parentheses: (<number>)")
    return expanded


Needs = Annotated[
    tuple[Annotated[str, Field(min_length=2), AfterValidator(str.lower)], ...],
    Field(min_length=1),
    BeforeValidator(_listed),
]
"""Texts, in any case, of which the line must hold one: else the pattern is not tried, which keeps the search fast."""
Pattern = Annotated[str, AfterValidator(_expanded)]
StepPattern = Annotated[str, AfterValidator(_step_expanded)]
Patterns = Annotated[tuple[str, ...], Field(min_length=1), BeforeValidator(_listed)]
Fields = Annotated[Mapping[str, Patterns], AfterValidator(_fields_expanded)]


class Named(Value, extra="forbid"):
    """An entry of a list."""

    name: str
    needs: Needs


class StepFormat(Named):
    """How one trainer prints a step."""

    pattern: StepPattern
    fields: Fields = {}
    """Patterns for the numbers beside the step, searched from where the step was found on; their group counts."""
    unless: Pattern | None = None
    """Not when this stands before the step in the line: the step is an evaluation's, say."""
    unless_behind: Pattern | None = None
    """Not when this follows the step at once."""
    scope: Scope = Scope.RUN
    first_epoch: Literal[0, 1] | None = None
    """Set when the step is counted anew in each epoch: the number of the first epoch."""
    sure: bool = True
    """False when the pattern alone may be prose: then no word may stand before it (as in "saved at step 5"), and a
    field must be found, or the line must end with the step."""


class ValueFormat(Named):
    """How one trainer prints numbers of training without a step."""

    pattern: Pattern
    fields: Fields


class PhaseFormat(Named):
    """What one trainer prints at the beginning or the end of a phase."""

    phase: Phase
    begins: Pattern | None = None
    ends: Pattern | None = None
    saved: bool = False
    """Whether `ends` says that all of a checkpoint is written: not where it is scheduled, or one file of several."""


class Bars(Value, extra="forbid"):
    """How progress bars (tqdm) are told apart."""

    needs: Needs
    pattern: StepPattern
    """With a group `inside`: what stands in the brackets behind the counts."""
    fields: Fields
    epoch: Pattern
    """Finds the epoch in a bar's name."""
    epochs: Pattern
    """The name of a bar that counts epochs."""
    training: Pattern
    """The name, or what stands inside, says training."""
    phases: Mapping[Phase, Pattern]
    """The name says something other than training. Tried before `training`."""


class Formats(Value, extra="forbid"):
    """All that is known, in the order in which it is tried."""

    steps: tuple[StepFormat, ...] = ()
    values: tuple[ValueFormat, ...] = ()
    phases: tuple[PhaseFormat, ...] = ()
    bars: Bars


_Entry = TypeVar("_Entry", bound=Named)


def _entries(content: Mapping[str, Any], key: str, kind: type[_Entry], file: str) -> tuple[_Entry, ...]:
    rows = content.get(key) or []
    if not isinstance(rows, list):
        raise ProgressDataError(f"{file}: {key}: found {rows!r:.120}; accepted is a list of entries")
    result: dict[str, _Entry] = {}
    for number, row in enumerate(rows, 1):
        name = row.get("name", f"number {number}") if isinstance(row, dict) else f"number {number}"
        try:
            entry = kind.model_validate(row)
        except ValidationError as error:
            raise _told(error, f"{file}: {key}: entry {name}", kind) from error
        if entry.name in result:
            raise ProgressDataError(f"{file}: {key}: entry {name}: name: found twice; each name stands once in a file")
        result[entry.name] = entry
    return tuple(result.values())


def _told(error: ValidationError, where: str, kind: type[Value]) -> ProgressDataError:
    first = error.errors()[0]
    field = ".".join(str(part) for part in first["loc"]) or "(entry)"
    accepted = f"; accepted are {', '.join(kind.model_fields)}" if first["type"] == "extra_forbidden" else ""
    found = "" if first["type"] == "missing" else f", found {first['input']!r:.120}"
    return ProgressDataError(f"{where}: {field}: {first['msg']}{found}{accepted}")


def _read(text: str, file: str) -> Mapping[str, Any]:
    try:
        content = yaml.load(text, Loader=_LOADER)  # noqa: S506 - a safe loader, whichever of the two
    except yaml.YAMLError as error:
        raise ProgressDataError(f"{file}: not YAML: {error}") from error
    accepted = set(Formats.model_fields) | {"shared"}
    if not isinstance(content, dict):
        raise ProgressDataError(f"{file}: found no mapping; accepted are {', '.join(sorted(accepted))}")
    if unknown := content.keys() - accepted:
        raise ProgressDataError(f"{file}: found {min(map(str, unknown))!r}; accepted are {', '.join(sorted(accepted))}")
    return content


def _over(site: Iterable[_Entry], shipped: Iterable[_Entry]) -> tuple[_Entry, ...]:
    """The site's new ones are tried first; one with a known name takes the place of the shipped one."""
    return tuple({entry.name: entry for entry in (*site, *shipped)[::-1]}.values())[::-1]


@cache
def shipped() -> Formats:
    """What comes with Relight."""
    file = "progress.yaml"
    content = _read(resources.files("relight.attribution").joinpath(file).read_text("utf-8"), file)
    return _overlaid(content, file, None)


def _overlaid(content: Mapping[str, Any], file: str, under: Formats | None) -> Formats:
    bars = content.get("bars")
    try:
        merged = Bars.model_validate(bars) if bars is not None or under is None else under.bars
    except ValidationError as error:
        raise _told(error, f"{file}: bars", Bars) from error
    return Formats(
        steps=_over(_entries(content, "steps", StepFormat, file), under.steps if under else ()),
        values=_over(_entries(content, "values", ValueFormat, file), under.values if under else ()),
        phases=_over(_entries(content, "phases", PhaseFormat, file), under.phases if under else ()),
        bars=merged,
    )


def load(extra: Iterable[Path] = ()) -> Formats:
    """The shipped formats with a site's own files over them, the last file on top.

    A file has any of `steps`, `values`, `phases` (lists of entries) and `bars`, as `progress.yaml` does. An entry
    with a known name replaces it; `bars` is replaced as a whole.

    Raises:
        ProgressDataError: when a file cannot be read or an entry is not valid.
    """
    formats = shipped()
    for path in extra:
        try:
            text = path.read_text("utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise ProgressDataError(f"{path}: cannot be read: {error}") from error
        formats = _overlaid(_read(text, str(path)), str(path), formats)
    return formats
