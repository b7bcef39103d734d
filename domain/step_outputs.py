"""Files that the steps of a batch job write beside the job's own output, as with `srun --output=%x-%j-%t.out`.

Slurm shows them nowhere, so they are read off the batch script, and not guessed.

Source: srun's manual page, its options that take no value; the names that steps on 22.05 made.
"""

from collections.abc import Iterator, Sequence

from relight.domain.attempts import Attempt
from relight.domain.base import below
from relight.domain.batch_script import commands
from relight.domain.filename_pattern import NO_TASK, filled, placeholders
from relight.domain.slurm import JobRecord

MOST = 64
"""Files of one attempt; of more ranks the first ones."""
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
    for command in commands(script, record):
        for at, word in enumerate(command.words):
            if word.rpartition("/")[2] == "srun":
                filled = (command.filled(value) for value in _redirections(command.words[at + 1 :]))
                yield from (pattern for pattern in filled if pattern and not (command.moved and pattern[0] != "/"))
                break


def _redirections(words: Sequence[str]) -> Iterator[str]:
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
