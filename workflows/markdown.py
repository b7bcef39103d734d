"""Pieces of what the Temporal web UI shows, shared by its stories: text made safe, and steps as a table. Pure."""

from collections.abc import Sequence

from relight.domain.base import clip
from relight.domain.incidents import StepTime

_MARKUP = str.maketrans("`<>|[]*", "'()¦()·")
_SENTENCE = 400
"""Characters of any one text: a plan names up to 4,096 nodes, and what a person waits for stands below it."""


def plain(text: str, limit: int = _SENTENCE) -> str:
    """Text from logs, safe inside Markdown: one line, no markup, nothing that a terminal obeys."""
    return clip("".join(c if c.isprintable() else " " for c in text).translate(_MARKUP), limit)


def steps_table(steps: Sequence[StepTime]) -> list[str]:
    """What was done, each with how long after the first."""
    if not steps:
        return []
    first = steps[0].at
    rows = [f"| {(s.at - first).total_seconds():.1f} s | {s.name} | {plain(s.text, 160)} |" for s in steps]
    return ["", "| after | what | |", "| --- | --- | --- |", *rows]
