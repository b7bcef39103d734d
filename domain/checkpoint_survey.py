"""Checkpoints as they were found."""

from datetime import datetime
from enum import StrEnum

from relight.domain.base import Value
from relight.domain.checkpoint_formats import Format
from relight.domain.evidence import Answer


class HowNamed(StrEnum):
    """Who says that checkpoints lie there; in the order in which they are believed."""

    COMMENT = "comment"
    LOG = "log"
    SCRIPT = "script"
    WORK_DIR = "work_dir"
    PERSON = "person"


class Root(Value):
    """A place to look for checkpoints."""

    path: str
    how: HowNamed


class Checkpoint(Value):
    """A checkpoint that was found."""

    path: str
    step: int | None
    format: Format
    modified_at: datetime
    """When the newest of its files was written, by the file server's clock."""
    size: int
    """Bytes, of all its files."""
    files: int = 1
    whole: Answer
    """Whether it is complete, as far as can be told without loading it."""
    reasons: tuple[str, ...] = ()
    """Why not, or why nobody knows, or by what it is known; for people."""
    published: bool = True
    """Whether its trainer would take it for a checkpoint at all: not where its name or a marker says that it is not
    finished."""
    last: bool = False
    """Its name says that it is the one to go on from (`last.ckpt`, `...-last`)."""
    deep: bool = False
    """All its bytes were read and held against the checksums and lengths that are there."""

    @property
    def name(self) -> str:
        """The last part of its path."""
        return self.path.rstrip("/").rpartition("/")[2]

    @property
    def label(self) -> str:
        """How a sentence calls it."""
        return self.name if self.step is None else f"step {self.step}"


class Tracker(Value):
    """The file in which a trainer keeps which checkpoint is its newest published one."""

    path: str
    says: str = ""
    """What stands in it, clipped."""
    target: str | None = None
    """Path of the checkpoint that it names; None where that cannot be read."""
    step: int | None = None
    problem: str = ""
    """Why it cannot be read, or that what it names is not there."""


class Series(Value):
    """The checkpoints of one format in one folder: mostly those of one run."""

    folder: str
    format: Format
    how: HowNamed
    """Who named the root under which it lies."""
    checkpoints: tuple[Checkpoint, ...] = ()
    """Highest step first, at most 100; one without a step comes last."""
    left_out: int = 0
    """Older ones that are there as well."""
    tracker: Tracker | None = None


class Space(Value):
    """Room where the next checkpoint will be written."""

    free: int
    """Bytes that a user who is not root may still write, as statvfs tells; a quota may allow less."""
    total: int
    free_files: int | None = None
    """None where the file system does not count them."""


class Survey(Value):
    """What one look at the file systems found."""

    roots: tuple[Root, ...] = ()
    series: tuple[Series, ...] = ()
    """The most trusted root first, and of one root the one written last."""
    space: dict[str, Space] = {}
    """By folder of a series; missing where it was not told."""
    problems: tuple[str, ...] = ()
    """What could not be looked at, and why: with one of these, what was not found may be there all the same."""
    read_at: datetime

    @property
    def complete(self) -> bool:
        """Whether everything was looked at."""
        return not self.problems
