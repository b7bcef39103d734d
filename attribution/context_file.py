"""What is known of an attempt besides its logs, from a file: allocation, end, history. JSON or YAML.

    nodes: [n1, n2]
    rank_map: {0: {node: n1, gpu: "0"}, 1: {node: n2, gpu: "0"}}
    state: FAILED
    interrupted_at: 2026-11-30T09:31:00Z

The fields are those of `sources.Context`, all of them optional.
"""

import json
from collections.abc import Iterator, Mapping
from datetime import datetime
from pathlib import Path
from typing import Any

import yaml
from pydantic import ValidationError
from pydantic_core import ErrorDetails

from relight.attribution.sources import Context, Neighbour, NodeFailure, PriorFailure, Seat
from relight.domain.base import Value, clip
from relight.domain.evidence import Evidence

MOST_BYTES = 16 << 20
"""A larger file is something else; 100,000 ranks with their seats take 5 MB."""
_PARTS: Mapping[str, type[Value]] = {
    "rank_map": Seat,
    "history": PriorFailure,
    "seen": Evidence,
    "node_history": NodeFailure,
    "spread": Neighbour,
}
_NAMES_SHOWN = 200
_WORDS = {
    "missing": "a value: it must be there",
    "tuple_type": "a list",
    "timezone_aware": "a time with its zone, such as 2026-11-30T09:31:00Z",
}
"""By pydantic's kind of error, where its own words are a programmer's."""


class ContextFileError(ValueError):
    """A context file cannot be used; the message names file, field, what was found and what is accepted."""


def read_context(path: Path) -> Context:
    """The context in a file; its name's ending tells JSON (`.json`) from YAML.

    Raises:
        ContextFileError: when it cannot be read, is too large, or a field is unknown or not valid.
    """
    content = _content(path)
    if not isinstance(content, dict):
        found = "nothing" if content is None else f"a {type(content).__name__}"
        raise ContextFileError(f"{path}: found {found}, accepted is an object with {_names(Context)}")
    for place, name, accepted in _unknown(content):
        raise ContextFileError(f"{path}: {place}: found the unknown field {name!r}, accepted are {accepted}")
    try:
        return Context.model_validate(content)
    except ValidationError as error:
        raise ContextFileError(f"{path}: {_told(error.errors()[0])}") from error


def _content(path: Path) -> Any:
    try:
        with path.open("rb") as stream:
            data = stream.read(MOST_BYTES + 1)
        if len(data) > MOST_BYTES:
            raise ContextFileError(f"{path}: found more than {MOST_BYTES >> 20} MiB, accepted are no larger files")
        text = data.decode("utf-8")
    except UnicodeDecodeError as error:
        raise ContextFileError(f"{path}: found bytes that are not UTF-8 (at {error.start})") from error
    except OSError as error:
        raise ContextFileError(f"{path}: cannot be read: {error.strerror or error}") from error
    try:
        return json.loads(text) if path.suffix == ".json" else yaml.safe_load(text)
    except (ValueError, yaml.YAMLError, RecursionError) as error:
        kind = "JSON" if path.suffix == ".json" else "YAML"
        raise ContextFileError(f"{path}: not {kind}: {' '.join(str(error).split())}") from error


def _unknown(content: Mapping[Any, Any]) -> Iterator[tuple[str, str, str]]:
    """Fields that nobody would read: where they stand, their names, and those there are."""
    yield from (("(top)", str(name), _names(Context)) for name in content if name not in Context.model_fields)
    for field, kind in _PARTS.items():
        part = content.get(field)
        entries = part.items() if isinstance(part, dict) else enumerate(part) if isinstance(part, list) else ()
        for key, entry in entries:
            for name in entry if isinstance(entry, dict) else ():
                if name not in kind.model_fields:
                    yield f"{field}.{key}", str(name), _names(kind)


def _names(kind: type[Value]) -> str:
    return ", ".join(kind.model_fields)


def _told(error: ErrorDetails) -> str:
    """Pydantic's finding in our words: `state: found 'BROKEN', accepted: 'PENDING', 'RUNNING' or …`."""
    field = ".".join(str(part) for part in error["loc"])
    accepted = error["msg"].removeprefix("Input should ").removeprefix("be ")
    accepted = _WORDS.get(error["type"], accepted)
    found = "nothing" if error["type"] == "missing" else clip(_shown(error["input"]), 80)
    return f"{field}: found {found}, accepted: {clip(accepted, _NAMES_SHOWN)}"


def _shown(found: object) -> str:
    return found.isoformat() if isinstance(found, datetime) else repr(found)
