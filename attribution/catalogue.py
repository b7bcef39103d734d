"""The failure knowledge: signatures as data, read from `signatures/` and from a site's own files."""

import re
import string
from collections.abc import Iterable, Mapping
from enum import StrEnum
from functools import cache
from importlib import resources
from pathlib import Path
from typing import Any, Self

import yaml
from pydantic import Field, ValidationError, field_validator, model_validator

from relight.domain.base import Value
from relight.domain.diagnosis import Action, Category

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
    )
)
"""The shipped files, in this order: of equal candidates the earlier signature comes first."""
SUMMARY_FIELDS = frozenset({"where", "peer", "exc", "msg", "exit", "missing", "when"})


class CatalogueError(ValueError):
    """A catalogue file cannot be used; the message names file, entry, field, what was found and what is accepted."""


class Role(StrEnum):
    """What a line tells about the cause."""

    ROOT = "root"
    CASCADE = "cascade"
    """The shadow of another's failure: the verdict only when nothing explains it."""
    WRAPPER = "wrapper"
    """A launcher's report that something ended."""
    CONTEXT = "context"
    """Worth knowing, breaks nothing by itself."""


class Blame(StrEnum):
    """Whom a signature's lines implicate."""

    ALL = "all"
    """Everyone who printed it."""
    FIRST = "first"
    """Who printed it first: later ones were torn down."""
    SAME_CODE = "same code"
    """Those that name the same `code` or `exc` as the first line."""
    NAMED = "named"
    """Those that the text names, not the one that prints."""
    PEER = "peer"
    """The other end that the text names."""
    SILENT = "silent"
    """Those that did *not* print it, or are behind."""
    NOBODY = "nobody"


class Isolates(StrEnum):
    """How far the signature may keep a node away from work."""

    NEVER = "never"
    JOB_EXCLUSION = "job_exclusion"
    """Out of this job's own retry."""
    PLATFORM = "platform"
    """Also a reason to drain the node, when a platform source (its kernel log) says it."""


class Tell(StrEnum):
    """Who should hear of it."""

    USER = "user"
    HARDWARE_OPS = "hardware ops"
    NETWORK_OPS = "network ops"
    STORAGE_OPS = "storage ops"
    NOBODY = "nobody"


class When(StrEnum):
    """Circumstances that change what a signature means."""

    AT_START = "at_start"
    """The log shows the start of a job that has never trained a step."""
    AFTER_PROGRESS = "after_progress"
    FIRST_STEPS = "first_steps"
    """At or before the first few steps of training."""
    AT_END = "at_end"
    """All steps were done."""
    FIRST_COLLECTIVE = "first_collective"
    """No collective of the group ever completed."""
    TOO_MANY_WORKERS = "too_many_workers"
    """More workers joined than the world has."""


class Variant(Value, extra="forbid"):
    """What changes under a circumstance; fields left out stay as they are."""

    when: When
    category: Category | None = None
    action: Action | None = None
    action_if_it_repeats: Action | None = None


class Signature(Value, extra="forbid"):
    """One kind of failure, or of its echoes."""

    id: str = Field(pattern=r"^[A-Z][A-Z0-9_]*$")
    role: Role
    category: Category
    entity: str
    """What is broken, in words."""
    patterns: tuple[str, ...] = ()
    """Regular expressions for one line, in the dialect that hyperscan and `re` share."""
    xids: tuple[int, ...] = ()
    """Xid numbers; each adds a pattern for the driver's line."""
    action: Action
    action_if_it_repeats: Action
    weight: float = Field(gt=0, le=1)
    """Confidence that this is the cause when its line is there; also the order among roots."""
    blame: Blame = Blame.ALL
    isolates_node: Isolates = Isolates.NEVER
    if_every_node: Action | None = None
    """The action when it is not one node but most of them."""
    explains: tuple[str, ...] = ()
    """Ids whose lines are echoes of this one when they come after it; `*` for all."""
    generic: bool = False
    """Yields a line to any other signature that recognises it."""
    tell: Tell
    summary: str
    source: str = Field(min_length=3)
    """Where the rule is from."""
    variants: tuple[Variant, ...] = ()

    @field_validator("patterns")
    @classmethod
    def _compile(cls, patterns: tuple[str, ...]) -> tuple[str, ...]:
        for pattern in patterns:
            _check_pattern(pattern)
        return patterns

    @field_validator("summary")
    @classmethod
    def _known_fields(cls, summary: str) -> str:
        names = {name for _, name, _, _ in string.Formatter().parse(summary) if name is not None}
        if unknown := names - SUMMARY_FIELDS:
            accepted = ", ".join(sorted(SUMMARY_FIELDS))
            raise ValueError(f"unknown {{{min(unknown)}}}; accepted are {accepted}")
        return summary

    @model_validator(mode="after")
    def _recognisable(self) -> Self:
        if not self.patterns and not self.xids:
            raise ValueError("neither patterns nor xids: nothing would ever match")
        return self

    @property
    def expressions(self) -> tuple[str, ...]:
        """All patterns, with the ones that the Xid numbers stand for."""
        if not self.xids:
            return self.patterns
        numbers = "|".join(str(number) for number in self.xids)
        return (*self.patterns, rf"Xid \(PCI:(?P<gpu>[0-9A-Fa-f:.]+)\): (?P<code>{numbers})[, ]")


class Marks(Value, extra="forbid"):
    """Lines that are no failures but tell where things are."""

    placement: tuple[str, ...] = ()
    address: tuple[str, ...] = ()
    startup: tuple[str, ...] = ()


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


def _check_pattern(pattern: str) -> None:
    if re.search(r"\(\?<?[=!]|\(\?P=|\\[1-9]", pattern):
        raise ValueError(f"{pattern!r} uses look-around or a back reference, which hyperscan cannot do")
    try:
        compiled = re.compile(pattern.encode(), re.MULTILINE)
    except re.error as error:
        raise ValueError(f"{pattern!r} is not a regular expression: {error}") from error
    if compiled.search(b""):
        raise ValueError(f"{pattern!r} matches the empty line")


def _read(text: str, file: str) -> Mapping[str, Any]:
    try:
        content = yaml.safe_load(text)
    except yaml.YAMLError as error:
        raise CatalogueError(f"{file}: not YAML: {error}") from error
    if not isinstance(content, dict) or not isinstance(content.get("signatures"), list):
        raise CatalogueError(f"{file}: found no list under 'signatures'; a catalogue begins with `signatures:`")
    return content


def _signature(entry: object, number: int, file: str) -> Signature:
    name = entry.get("id", f"number {number}") if isinstance(entry, dict) else f"number {number}"
    try:
        return Signature.model_validate(entry)
    except ValidationError as error:
        first = error.errors()[0]
        field = ".".join(str(part) for part in first["loc"]) or "(entry)"
        found = "" if first["type"] == "missing" else f", found {first['input']!r:.120}"
        raise CatalogueError(f"{file}: entry {name}: {field}: {first['msg']}{found}") from error


def _signatures(content: Mapping[str, Any], file: str) -> dict[str, Signature]:
    result: dict[str, Signature] = {}
    for number, entry in enumerate(content["signatures"], 1):
        signature = _signature(entry, number, file)
        if signature.id in result:
            raise CatalogueError(f"{file}: entry {signature.id}: id: found twice; each id stands once in a file")
        result[signature.id] = signature
    return result


@cache
def _shipped() -> Catalogue:
    folder = resources.files("relight.attribution").joinpath("signatures")
    signatures: dict[str, Signature] = {}
    for name in FILES:
        signatures |= _signatures(_read(folder.joinpath(name).read_text("utf-8"), name), name)
    marks = yaml.safe_load(folder.joinpath("marks.yaml").read_text("utf-8"))["marks"]
    return Catalogue(signatures=signatures, marks=Marks.model_validate(marks))


def load(extra: Iterable[Path] = ()) -> Catalogue:
    """The shipped catalogue with a site's own files over it; an entry with a known id replaces it.

    Raises:
        CatalogueError: when a file cannot be read or an entry is not valid.
    """
    shipped = _shipped()
    signatures = dict(shipped.signatures)
    for path in extra:
        try:
            text = path.read_text("utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise CatalogueError(f"{path}: cannot be read: {error}") from error
        signatures |= _signatures(_read(text, str(path)), str(path))
    _check_references(signatures)
    return Catalogue(signatures=signatures, marks=shipped.marks)


def _check_references(signatures: Mapping[str, Signature]) -> None:
    for signature in signatures.values():
        for other in signature.explains:
            if other != "*" and other not in signatures:
                raise CatalogueError(f"entry {signature.id}: explains: found {other!r}, which is no entry's id")
