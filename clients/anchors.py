"""The contract with the places where the ledger's head is kept, and what is read back from them.

AnchorError: the place did not take it. Trying again, later, helps or tells a person.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Protocol

from relight.domain.audit import Anchor, read_anchor

LINES = "relight-anchors.jsonl"
"""The file's name in a git repository."""
_LONGEST = 10_000
"""Characters of a line that are looked at; an anchor has some 300."""


class AnchorError(Exception):
    """An anchor was not kept, or cannot be read."""


class AnchorPlace(Protocol):
    """One place outside the ledger's database."""

    @property
    def name(self) -> str:
        """As people know it: `file:/mnt/other/relight.jsonl`."""

    async def keep(self, line: str) -> None:
        """Keep one line.

        Raises:
            AnchorError: it was not kept, as far as that can be known.
        """


def read_anchors(path: Path) -> Iterator[Anchor]:
    """The anchors in a file, in a log with other lines between, or in a git repository of ours; blocks.

    Raises:
        AnchorError: it cannot be read.
    """
    file = path / LINES if path.is_dir() else path
    try:
        with file.open(encoding="utf-8", errors="replace") as lines:
            while line := lines.readline(_LONGEST):
                if anchor := read_anchor(line):
                    yield anchor
    except OSError as error:
        raise AnchorError(f"{file}: {error.strerror or error}") from error
