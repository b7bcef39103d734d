"""A site's file of settings: its values, and on which line each stands."""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import yaml

MOST_BYTES = 1 << 20
_DEEPEST = 20

Place = tuple[str | int, ...]
"""Where a value stands, for example `("policy", "rules", 0, "set", "mode")`."""


class ConfigError(Exception):
    """The configuration cannot be used; the text says which file and key, what was found, what is accepted."""


class Document(NamedTuple):
    """What a file says."""

    values: dict[str, Any] = {}
    lines: Mapping[Place, int] = {}
    """The line of each key and list item, from 1."""

    def line(self, place: Place) -> int | None:
        """The line of that value, or of the section in which it should stand; None where the file has neither."""
        known = (self.lines.get(place[:end]) for end in range(len(place), 0, -1))
        return next((line for line in known if line), None)


def field_name(place: Place) -> str:
    """As people write it: `policy.rules[0].set.mode`."""
    text = "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in place)
    return text.removeprefix(".")


def read(path: Path) -> Document:
    """Read a file of settings.

    Raises:
        ConfigError: it cannot be read, is not YAML, holds no keys, or one key twice.
    """
    return parse(path, _text(path))


def _text(path: Path) -> str:
    try:
        with path.expanduser().open("rb") as file:
            found = file.read(MOST_BYTES + 1)
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read: {error.strerror or error}") from error
    if len(found) > MOST_BYTES:
        raise ConfigError(f"{path}: is larger than 1 MiB")
    try:
        return found.decode("utf-8")
    except UnicodeDecodeError as error:
        raise ConfigError(f"{path}: is not UTF-8 text") from error


def parse(path: Path, text: str) -> Document:
    """Read the text of a file of that name.

    Raises:
        ConfigError: as `read`.
    """
    try:
        loader = yaml.SafeLoader(text)
        node = loader.get_single_node()
        lines = dict(_lines(path, node))
        values = loader.construct_document(node) if node else None
    except yaml.MarkedYAMLError as error:
        line = f":{error.problem_mark.line + 1}" if error.problem_mark else ""
        raise ConfigError(f"{path}{line}: is not YAML: {' '.join(str(error.problem or error).split())}") from error
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        raise ConfigError(f"{path}: is not YAML: {' '.join(str(error).split())[:200]}") from error
    if values is None:
        return Document()
    if not isinstance(values, dict):
        raise ConfigError(f"{path}: must hold keys and values, found {type(values).__name__}")
    for key in _keys(values):
        if not isinstance(key, str):
            found = f"{key}: a key must be text, found {type(key).__name__}"
            raise ConfigError(f"{path}: {found}")
    return Document(values, lines)


def _lines(path: Path, node: yaml.Node | None, place: Place = ()) -> Iterator[tuple[Place, int]]:
    if len(place) > _DEEPEST:
        return
    if isinstance(node, yaml.SequenceNode):
        for number, item in enumerate(node.value):
            yield (*place, number), item.start_mark.line + 1
            yield from _lines(path, item, (*place, number))
    if isinstance(node, yaml.MappingNode):
        seen: dict[str, int] = {}
        for key, value in node.value:
            name, line = str(key.value), key.start_mark.line + 1
            here = (*place, name)
            if name in seen and name != "<<":
                raise ConfigError(f"{path}:{line}: {field_name(here)}: stands twice, first on line {seen[name]}")
            seen[name] = line
            yield here, line
            yield from _lines(path, value, here)


def _keys(values: Any) -> Iterator[object]:
    if isinstance(values, dict):
        for key, value in values.items():
            yield key
            yield from _keys(value)
    elif isinstance(values, list):
        for value in values:
            yield from _keys(value)
