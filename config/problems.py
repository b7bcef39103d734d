"""What is wrong with settings, in lines that say file, line, field, what was found and what is accepted."""

from collections.abc import Iterator, Mapping
from difflib import get_close_matches
from pathlib import Path
from typing import Any, NamedTuple, get_args

from pydantic import BaseModel, ValidationError

from relight.config.reading import Document, Place, field_name

PREFIX, BETWEEN = "RELIGHT_", "__"
_SAID = {"Value error, ": "", "Input should be ": "must be ", "Field required": "is missing"}
_SHOWN = 100


class Source(NamedTuple):
    """What the settings were made from."""

    file: Path | None
    document: Document
    variables: Mapping[str, str]

    def where(self, place: Place) -> str:
        """The variable, or the file and line, that says this."""
        named = self.variable(place)
        if named:
            return named
        if self.file is None:
            return "settings"
        line = self.document.line(place)
        return f"{self.file}:{line}" if line else str(self.file)

    def variable(self, place: Place) -> str:
        """The variable that sets this or the section it stands in; empty: none."""
        upper = {name.upper(): name for name in self.variables}
        for end in range(len(place), 0, -1):
            name = PREFIX + BETWEEN.join(str(part) for part in place[:end]).upper()
            if name in upper:
                return upper[name]
        return ""


def explain(model: type[BaseModel], source: Source, error: ValidationError) -> str:
    """One line for each thing that is wrong."""
    return "\n".join(_lines(model, source, error))


def _lines(model: type[BaseModel], source: Source, error: ValidationError) -> Iterator[str]:
    for problem in error.errors():
        place = tuple(part for part in problem["loc"] if part != "[key]")
        head = f"{source.where(place)}: {field_name(place)}" if place else source.where(place)
        if problem["type"] == "extra_forbidden":
            yield f"{head}: no such key; {_accepted(model, place)}"
        elif problem["type"] == "missing":
            yield f"{head}: is missing"
        elif isinstance(problem.get("input"), dict) and "error" in problem.get("ctx", {}):
            yield f"{head}: {problem['ctx']['error']}"  # a rule over several keys: the section as found would hide it
        elif "[key]" in problem["loc"]:
            yield f"{head}: {_plain(problem['msg'])}"
        else:
            yield f"{head}: {_plain(problem['msg'])} (found {_shown(problem.get('input'))})"


def _plain(message: str) -> str:
    for theirs, ours in _SAID.items():
        if message.startswith(theirs):
            return ours + message.removeprefix(theirs)
    return message


def _shown(value: Any) -> str:
    found = f"{value!r:.{_SHOWN}}"
    return f"{found}: YAML reads a bare on, off, yes or no so" if isinstance(value, bool) else found


def _accepted(model: type[BaseModel], place: Place) -> str:
    keys = _keys_at(model, place[:-1])
    near = get_close_matches(str(place[-1]), keys, 1, 0.7)
    return f"accepted here: {', '.join(keys)}" + (f" (did you mean {near[0]}?)" if near else "")


def _keys_at(model: type[BaseModel], place: Place) -> list[str]:
    for part in place:
        if isinstance(part, str) and part in model.model_fields:
            model = _model_in(model.model_fields[part].annotation) or model
    return sorted(model.model_fields)


def _model_in(annotation: Any) -> type[BaseModel] | None:
    """The model of a section, of an optional one, or of the items of a list."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation
    return next((found for part in get_args(annotation) if (found := _model_in(part))), None)
