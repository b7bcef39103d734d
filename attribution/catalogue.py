"""The failure knowledge: signatures as data, read from `signatures/` and from a site's own files."""

from collections.abc import Iterable, Mapping
from difflib import get_close_matches
from functools import cache
from importlib import resources
from pathlib import Path
from typing import Any

import yaml
from pydantic import ValidationError
from pydantic_core import ErrorDetails

from relight.attribution.signature import (
    CHECKED,
    Blame,
    Examples,
    Isolates,
    Retry,
    Role,
    Signature,
    Tell,
    Variant,
    When,
    Witness,
)
from relight.domain.base import Value

__all__ = [
    "FILES",
    "Blame",
    "Catalogue",
    "CatalogueError",
    "CatalogueFile",
    "Examples",
    "Isolates",
    "Marks",
    "Retry",
    "Role",
    "Signature",
    "Tell",
    "Variant",
    "When",
    "Witness",
    "load",
    "problems",
]

FILES = tuple(
    f"{group}.yaml"
    for group in (
        "gpu",
        "cuda",
        "network",
        "launch",
        "host",
        "storage",
        "data",
        "numerics",
        "user_code",
        "scheduler",
        "general",
    )
)
"""The shipped files, in this order: of equal candidates the earlier signature comes first."""
_LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
"""LibYAML's where PyYAML was built with it: nine times as fast, and the catalogue is read for each diagnosis."""


class CatalogueError(ValueError):
    """A catalogue file cannot be used; the message names file, entry, field, what was found and what is accepted."""


class Marks(Value, extra="forbid"):
    """Lines that are no failures but tell where things are."""

    placement: tuple[str, ...] = ()
    address: tuple[str, ...] = ()
    startup: tuple[str, ...] = ()


class CatalogueFile(Value, extra="forbid"):
    """What a file of signatures holds."""

    signatures: tuple[Signature, ...]


class Catalogue(Value):
    """All signatures, by id."""

    signatures: Mapping[str, Signature]
    marks: Marks = Marks()

    def __getitem__(self, identity: str) -> Signature:
        """The signature with this id."""
        return self.signatures[identity]

    def __contains__(self, identity: object) -> bool:
        """True when the id is known."""
        return identity in self.signatures


def load(extra: Iterable[Path] = ()) -> Catalogue:
    """The shipped catalogue with a site's own files over it; an entry with a known id replaces it.

    Raises:
        CatalogueError: when a file cannot be read or an entry is not valid.
    """
    shipped = _shipped()
    signatures = dict(shipped.signatures)
    for path in extra:
        found, wrong = _read(path, signatures)
        if wrong:
            more = f" (and {len(wrong) - 1} more: relight catalogue test {path})" if len(wrong) > 1 else ""
            raise CatalogueError(wrong[0] + more)
        signatures |= found
    return Catalogue(signatures=signatures, marks=shipped.marks)


def problems(path: Path, extra: Iterable[Path] = ()) -> tuple[str, ...]:
    """All that is wrong with a site's file, read after the `extra` ones: one line each. Empty: it can be used.

    Raises:
        CatalogueError: when one of the `extra` files is not valid.
    """
    return tuple(_read(path, load(extra).signatures)[1])


@cache
def _shipped() -> Catalogue:
    folder = resources.files("relight.attribution").joinpath("signatures")
    signatures: dict[str, Signature] = {}
    for name in FILES:
        found, wrong = _parse(folder.joinpath(name).read_text("utf-8"), name, {"context": CHECKED})
        if wrong:
            raise CatalogueError(wrong[0])
        signatures |= found
    if wrong := _unknown_references(signatures, signatures, "signatures"):
        raise CatalogueError(wrong[0])
    marks = _content(folder.joinpath("marks.yaml").read_text("utf-8"))["marks"]
    return Catalogue(signatures=signatures, marks=Marks.model_validate(marks))


def _read(path: Path, known: Mapping[str, Signature]) -> tuple[dict[str, Signature], list[str]]:
    """A site's file: its signatures, and all that is wrong with it."""
    try:
        text = path.read_text("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        why = getattr(error, "strerror", None) or "it is not UTF-8 text"
        return {}, [f"{path}: cannot be read: {why}"]
    found, wrong = _parse(text, str(path), {})
    return found, wrong or _unknown_references(found, {**known, **found}, str(path))


def _content(text: str) -> Any:
    return yaml.load(text, Loader=_LOADER)  # noqa: S506 - a safe loader, whichever of the two


def _parse(text: str, file: str, options: Mapping[str, Any]) -> tuple[dict[str, Signature], list[str]]:
    try:
        content = _content(text)
    except yaml.YAMLError as error:
        return {}, [f"{file}: not YAML: {' '.join(str(error).split())}"]
    if not isinstance(content, dict) or not isinstance(content.get("signatures"), list):
        return {}, [f"{file}: found no list under 'signatures'; a catalogue begins with `signatures:`"]
    result: dict[str, Signature] = {}
    wrong: list[str] = []
    if others := [str(key) for key in content if key != "signatures"]:
        wrong.append(f"{file}: {others[0]}: is no part of a catalogue, which has `signatures` only")
    for number, entry in enumerate(content["signatures"]):
        name = _name(entry, number)
        try:
            signature = Signature.model_validate(entry, **options)
        except ValidationError as error:
            wrong += [_said(file, text, number, name, each) for each in error.errors()]
            continue
        if signature.id in result:
            wrong.append(f"{file}: entry {name}: id: found twice; each id stands once in a file")
        group = signature.group or Path(file).stem
        result[signature.id] = signature.model_copy(update={"group": group})
    return result, wrong


def _name(entry: object, number: int) -> str:
    return str(entry["id"]) if isinstance(entry, dict) and entry.get("id") else f"number {number + 1}"


def _said(file: str, text: str, number: int, name: str, error: ErrorDetails) -> str:
    """One line: where it is, what was found, what is accepted."""
    where = f"{file}:{_line(text, ('signatures', number, *error['loc']))}: entry {name}"
    field = ".".join(str(part) for part in error["loc"])
    if error["type"] == "extra_forbidden":
        known = list(Signature.model_fields)
        near = get_close_matches(str(error["loc"][-1]), known, 1)
        meant = f" (do you mean {near[0]}?)" if near else ""
        return f"{where}: {field}: is no field{meant}; fields are {', '.join(known)}"
    found = "" if error["type"] == "missing" else f", found {error['input']!r:.120}"
    return f"{where}: {field + ': ' if field else ''}{error['msg']}{'' if not field else found}"


def _line(text: str, path: tuple[int | str, ...]) -> int:
    """The line, from 1, of what stands at that path, or of the nearest thing around it."""
    node: yaml.Node | None = yaml.compose(text, Loader=yaml.SafeLoader)
    for part in path:
        if isinstance(node, yaml.MappingNode):
            inside = [value for key, value in node.value if key.value == part]
        elif isinstance(node, yaml.SequenceNode):
            inside = node.value[part : part + 1] if isinstance(part, int) else []
        else:
            break
        if not inside:
            break
        node = inside[0]
    return int(node.start_mark.line) + 1 if node else 1


def _unknown_references(found: Mapping[str, Signature], known: Mapping[str, Signature], file: str) -> list[str]:
    return [
        f"{file}: entry {signature.id}: explains: found {other!r}, which is no entry's id"
        for signature in found.values()
        for other in signature.explains
        if other != "*" and other not in known
    ]
