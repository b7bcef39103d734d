"""What the catalogue says about one kind of failure: the fields of an entry, their words, and what makes it valid."""

import re
import string
from collections.abc import Mapping
from enum import StrEnum
from typing import Annotated, Self

from pydantic import Field, ValidationInfo, field_validator, model_validator

from relight.domain.base import Value
from relight.domain.diagnosis import Action, Category

SUMMARY_FIELDS = frozenset({"where", "peer", "exc", "msg", "exit", "missing", "when"})
CHECKED = {"checked": True}
"""Validation context for entries whose patterns our own tests have compiled: a diagnosis need not do it again."""


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


class Witness(StrEnum):
    """What has to come to the line itself before it isolates a node. One of those named is enough."""

    PLATFORM = "platform"
    """The node's kernel log, NVML, DCGM or its agent tells this, or another fault of that node, in the same window."""
    ONE_NODE = "one_node"
    """Only this node of the job shows it: what all have is nobody's own fault."""
    PEERS = "peers"
    """Several other nodes name it."""
    AGAIN = "again"
    """The same node or GPU once more, in another attempt or under another program."""
    CHECK = "check"
    """A check of the node after the failure fails."""
    STACKS = "stacks"
    """Stacks or flight-recorder dumps single it out."""
    SLURM = "slurm"
    """Slurm itself has taken the node out."""


class Retry(StrEnum):
    """What running the job again does."""

    ANYWHERE = "anywhere"
    """It may well run."""
    ELSEWHERE = "elsewhere"
    """Only without the node."""
    AFTER_RESET = "after_reset"
    """There only after the GPU was reset or the node restarted; elsewhere at once."""
    ONCE = "once"
    """One try is worth it; the same end again means that it will always be so."""
    NEVER = "never"
    """It fails the same way."""
    NOT_APPLICABLE = "not_applicable"
    """To be asked of the cause, or nothing has failed."""


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
    SOME_NODES = "some_nodes"
    """The lines' nodes are known, and are fewer than half of an allocation of two or more."""
    TOO_MANY_WORKERS = "too_many_workers"
    """More workers joined than the world has."""


class Variant(Value, extra="forbid"):
    """What changes under a circumstance; fields left out stay as they are."""

    when: When
    category: Category | None = None
    action: Action | None = None
    action_if_it_repeats: Action | None = None


class Examples(Value, extra="forbid"):
    """Lines that show what the patterns are for; `relight catalogue test` runs them."""

    match: tuple[str, ...] = ()
    """Lines that the entry must recognise."""
    no_match: tuple[str, ...] = ()
    """Lines that it must leave alone."""


class Signature(Value, extra="forbid", use_attribute_docstrings=True):
    """One kind of failure, or of its echoes."""

    id: str = Field(pattern=r"^[A-Z][A-Z0-9_]*$")
    group: str = ""
    """Under which it is listed; left out, it is the name of its file."""
    role: Role
    category: Category
    entity: str
    """What is broken, in words."""
    patterns: tuple[str, ...] = ()
    """Regular expressions for one line, in the dialect that hyperscan and `re` share."""
    xids: tuple[Annotated[int, Field(ge=1, le=999)], ...] = ()
    """Xid numbers that mean this whatever else the driver's line says; they add a pattern for that line."""
    action: Action
    action_if_it_repeats: Action
    retry: Retry = Retry.NOT_APPLICABLE
    """What a retry does; left out, it follows from role and actions."""
    weight: float = Field(gt=0, le=1)
    """Confidence that this is the cause when its line is there; also the order among roots."""
    blame: Blame = Blame.ALL
    isolates_node: Isolates = Isolates.NEVER
    witness: tuple[Witness, ...] = ()
    """Any one of these must join the line before a node is isolated; left out, it follows from `isolates_node`."""
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
    examples: Examples = Examples()

    @model_validator(mode="before")
    @classmethod
    def _fill_in(cls, entry: object) -> object:
        """What follows from the other fields where the entry does not say it."""
        if not isinstance(entry, dict):
            return entry
        return {"retry": _retry(entry), "witness": _witness(entry)} | entry

    @field_validator("patterns")
    @classmethod
    def _compile(cls, patterns: tuple[str, ...], info: ValidationInfo) -> tuple[str, ...]:
        for pattern in () if info.context == CHECKED else patterns:
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
    def _sound(self) -> Self:
        if not self.patterns and not self.xids:
            raise ValueError("neither patterns nor xids: nothing would ever match")
        if self.isolates_node is Isolates.PLATFORM and self.role is not Role.ROOT:
            raise ValueError(f"isolates_node 'platform' is for a root; a {self.role} drains no node")
        return self

    @property
    def expressions(self) -> tuple[str, ...]:
        """All patterns, with those that the Xid numbers stand for."""
        return (*self.patterns, *_xid_patterns(self.xids)) if self.xids else self.patterns


def _xid_patterns(numbers: tuple[int, ...]) -> tuple[str, str, str]:
    """The driver's line with one of these numbers, the Kubernetes device plugin's, and gpud's.

    `NVRM: Xid (PCI:0000:1b:00): 79, ...`; old drivers leave `PCI:` out, MIG adds the instance: `GPU-I:05`.
    """
    codes = "|".join(str(number) for number in numbers)
    return (
        rf"Xid \((?:PCI:)?(?P<gpu>[0-9A-Fa-f:.]{{5,20}})(?: GPU-I:\w+)?\): (?P<code>{codes})\b",
        rf"XidCriticalError: Xid=(?P<code>{codes}) on ",
        rf"\b(?:Xid|XID|xid) (?P<code>{codes}) ?\(.{{1,80}}\) detected on ",
    )


def _retry(entry: Mapping[str, object]) -> Retry:
    if str(entry.get("role")) in {Role.CASCADE, Role.WRAPPER}:
        return Retry.NOT_APPLICABLE
    by_action: dict[str, Retry] = {
        Action.RESTART: Retry.ONCE if entry.get("action_if_it_repeats") == Action.STOP else Retry.ANYWHERE,
        Action.RESTART_EXCLUDING_NODE: Retry.ELSEWHERE,
        Action.STOP: Retry.NEVER,
    }
    return by_action.get(str(entry.get("action")), Retry.NOT_APPLICABLE)


def _witness(entry: Mapping[str, object]) -> tuple[Witness, ...]:
    by_isolation: dict[str, Witness] = {
        Isolates.PLATFORM: Witness.PLATFORM,
        Isolates.JOB_EXCLUSION: Witness.ONE_NODE,
    }
    witness = by_isolation.get(str(entry.get("isolates_node")))
    return (witness,) if witness else ()


def _check_pattern(pattern: str) -> None:
    if re.search(r"\(\?<?[=!]|\(\?P=|\\[1-9]", pattern):
        raise ValueError(f"{pattern!r} uses look-around or a back reference, which hyperscan cannot do")
    try:
        compiled = re.compile(pattern.encode())
    except re.error as error:
        raise ValueError(f"{pattern!r} is not a regular expression: {error}") from error
    if compiled.search(b""):
        raise ValueError(f"{pattern!r} matches the empty line")
