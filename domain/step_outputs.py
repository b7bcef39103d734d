"""Files that the steps of a batch job write beside the job's own output, as with `srun --output=%x-%j-%t.out`.

Slurm shows them nowhere, so they are read off the batch script. What cannot be told without running it (a command's
answer, a variable of the environment, where a `cd` has led) is left out: a guess would be somebody else's file.

Source: srun's manual page, its options that take no value; the names that steps on 22.05 made.
"""

import re
import shlex
from collections.abc import Iterator, Mapping

from relight.domain.attempts import Attempt
from relight.domain.base import below
from relight.domain.filename_pattern import NO_TASK, filled, placeholders
from relight.domain.slurm import JobRecord

MOST = 64
"""Files of one attempt; of more ranks the first ones."""
_ASSIGNMENT = re.compile(r"([A-Za-z_]\w*)=(.*)")
_VARIABLE = re.compile(r"\$(?:\{(\w+)\}|(\w+))")
_FLAGS = frozenset("EHIkKlOQsuvXZ")
"""Short options without a value of their own in the next word."""
_LONG_FLAGS = frozenset(
    {
        "contiguous",
        "disable-status",
        "exact",
        "exclusive",
        "hold",
        "kill-on-bad-exit",
        "label",
        "multi-prog",
        "no-kill",
        "overcommit",
        "overlap",
        "preserve-env",
        "pty",
        "quiet",
        "quit-on-interrupt",
        "spread-job",
        "unbuffered",
        "use-min-nodes",
        "verbose",
        "whole",
    }
)


def step_outputs(attempt: Attempt) -> tuple[str, ...]:
    """The files that its steps should be writing, below its working directory; empty where that cannot be told."""
    record = attempt.record
    if "srun" not in (attempt.script or "") or not record.work_dir:
        return ()
    patterns = list(dict.fromkeys(_patterns(attempt.script or "", record)))
    paths = (below(record.work_dir, path) for pattern in patterns for path in _files(pattern, record))
    found = dict.fromkeys(path for path in paths if path and path not in attempt.outputs)
    return tuple(found)[:MOST]


def _patterns(script: str, record: JobRecord) -> Iterator[str]:
    """The patterns after `--output` and `--error`, variables put in."""
    known = {
        "SLURM_JOB_ID": str(record.job_id),
        "SLURM_JOBID": str(record.job_id),
        "SLURM_JOB_NAME": record.name,
        "SLURM_ARRAY_JOB_ID": str(record.array_job_id or ""),
        "SLURM_ARRAY_TASK_ID": "" if record.array_task_id is None else str(record.array_task_id),
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
        for at, word in enumerate(words):
            if word.rpartition("/")[2] == "srun":
                filled = (_filled(value, known) for value in _redirections(words[at + 1 :]))
                yield from (pattern for pattern in filled if pattern and not (moved and pattern[0] != "/"))
                break


def _words(line: str) -> list[str]:
    """The words of a line; of one in which a text over several lines begins or ends, those before its quote."""
    for text in (line, line[: max(line.rfind("'"), line.rfind('"'), 0)]):
        try:
            return shlex.split(text, comments=True)
        except ValueError:
            continue
    return []


def _redirections(words: list[str]) -> Iterator[str]:
    """The values of srun's `--output` and `--error`, up to the program's name."""
    rest = iter(words)
    for word in rest:
        name, equals, value = word.lstrip("-").partition("=")
        if not word.startswith("-") or word == "--":
            return
        if word.startswith("--"):
            value = value if equals or name in _LONG_FLAGS else next(rest, "")
            wanted = name in {"output", "error"}
        else:
            value = word[2:] or ("" if word[1:] in _FLAGS else next(rest, ""))
            wanted = word[1:2] in {"o", "e"}
        if wanted and value:
            yield value


def _filled(text: str, known: Mapping[str, str]) -> str | None:
    """The text with the values of its variables; None where one is not known."""
    filled = _VARIABLE.sub(lambda found: known.get(found[1] or found[2]) or "\0", text)
    return None if any(sign in filled for sign in "\0$`") else filled


def _files(pattern: str, record: JobRecord) -> Iterator[str]:
    """One path for each task or node that the pattern tells apart; none where it needs what is not known."""
    keys = placeholders(pattern)
    tasks, nodes = record.task_count, record.nodes
    even = bool(nodes) and tasks % len(nodes) == 0
    if "\\" in pattern or keys & {"J", "s"} or ("t" in keys and keys & {"N", "n"} and not even):
        return
    spread = range(min(tasks, MOST)) if "t" in keys else range(min(len(nodes), MOST) if keys & {"N", "n"} else 1)
    for number in spread:
        # Slurm fills one node after the other unless the job says otherwise.
        node = number // (tasks // len(nodes)) if "t" in keys and even else number
        values = {
            "A": str(record.array_job_id or record.job_id),
            "a": str(NO_TASK if record.array_task_id is None else record.array_task_id),
            "j": str(record.job_id),
            "N": nodes[node] if node < len(nodes) else "",
            "n": str(node),
            "t": str(number),
            "u": record.user,
            "x": record.name,
            "%": "%",
        }
        yield filled(pattern, values)
