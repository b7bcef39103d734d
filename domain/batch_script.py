"""A batch script, read without running it: its commands, with the variables whose values are plain.

What cannot be told without running it (a command's answer, a variable of the environment) is left out: a guess would
be somebody else's file.
"""

import re
import shlex
from collections.abc import Iterator, Mapping
from typing import NamedTuple

from relight.domain.slurm import JobRecord

_ASSIGNMENT = re.compile(r"([A-Za-z_]\w*)=(.*)")
_VARIABLE = re.compile(r"\$(?:\{(\w+)\}|(\w+))")


class Command(NamedTuple):
    """One line of the script."""

    words: tuple[str, ...]
    known: Mapping[str, str]
    """Variables that have plain values at this line, those that it sets included."""
    moved: bool
    """True when a `cd` came before: relative paths lead nobody knows where."""

    def filled(self, text: str) -> str | None:
        """The text with the values of its variables; None where one is not known."""
        return _filled(text, self.known)


def commands(script: str, record: JobRecord) -> Iterator[Command]:
    """The script's lines in order. Branches and loops are not understood: each line counts as run once."""
    known = {
        "SLURM_JOB_ID": str(record.job_id),
        "SLURM_JOBID": str(record.job_id),
        "SLURM_JOB_NAME": record.name,
        "SLURM_ARRAY_JOB_ID": str(record.array_job_id or ""),
        "SLURM_ARRAY_TASK_ID": "" if record.array_task_id is None else str(record.array_task_id),
        "SLURM_RESTART_COUNT": str(record.restarts) if record.restarts else "",
        "USER": record.user,
    }
    moved = False
    for line in script.replace("\\\n", " ").splitlines():
        words = _words(line)
        if words[:1] in (["cd"], ["pushd"]):
            moved = True
        for assignment in map(_ASSIGNMENT.fullmatch, words[1:] if words[:1] == ["export"] else words[:1]):
            if assignment:
                value = _filled(assignment[2], known)
                known = {name: each for name, each in known.items() if name != assignment[1]}
                known |= {} if value is None else {assignment[1]: value}
        yield Command(tuple(words), known, moved)


def _words(line: str) -> list[str]:
    """The words of a line; of one in which a text over several lines begins or ends, those before its quote."""
    for text in (line, line[: max(line.rfind("'"), line.rfind('"'), 0)]):
        try:
            return shlex.split(text, comments=True)
        except ValueError:
            continue
    return []


def _filled(text: str, known: Mapping[str, str]) -> str | None:
    """The text with the values of its variables; None where one is not known."""
    filled = _VARIABLE.sub(lambda found: known.get(found[1] or found[2]) or "\0", text)
    return None if any(sign in filled for sign in "\0$`") else filled
