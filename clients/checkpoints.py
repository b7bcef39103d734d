"""The contract with checkpoint storage."""

from datetime import datetime
from typing import Protocol

from relight.domain.base import Value
from relight.domain.evidence import Answer


class Checkpoint(Value):
    """A checkpoint that was found."""

    path: str
    step: int | None
    modified_at: datetime
    size: int
    """Bytes, of all its files."""
    whole: Answer
    """Whether it is complete, as far as can be told without loading it."""


class Checkpoints(Protocol):
    """Finds a job's checkpoints."""

    async def find(self, root: str) -> tuple[Checkpoint, ...]:
        """Checkpoints under `root`, newest step first, at most 100; an unreadable root raises LogUnreadableError."""
