"""Where a job's checkpoints lie: by its comment, by what its output says, by its script's arguments, by its work dir.

All of these are the user's own words: they say where to look, and only files of that user are looked at.
"""

import re
from collections.abc import Iterable, Iterator
from posixpath import dirname, isabs, join, normpath

from relight.domain.batch_script import commands
from relight.domain.checkpoints import HowNamed, Root
from relight.domain.slurm import JobRecord
from relight.domain.wishes import checkpoint_folder

MOST_ROOTS = 8
MOST_PATH = 4096
"""Characters of the longest path that a file system knows."""

_OPTIONS = frozenset(
    {
        "save",  # Megatron-LM
        "save_dir",  # fairseq, metaseq
        "save_path",
        "output_dir",  # transformers, accelerate's examples
        "out_dir",  # nanoGPT
        "checkpoint_dir",
        "checkpoint_path",
        "checkpoint_folder",
        "checkpoints_dir",
        "ckpt_dir",
        "ckpt_path",
        "default_root_dir",  # Lightning
        "trainer.default_root_dir",
        "dirpath",
        "exp_manager.exp_dir",  # NeMo
        "exp_manager.explicit_log_dir",
        "log_dir",
        "checkpoint.save",  # Megatron-Bridge
        "checkpoint.save_dir",
        "checkpoint.dir",
        "checkpoint.checkpoint_dir",  # NeMo Automodel
        "checkpointing.checkpoint_dir",  # NeMo RL
        "job.dump_folder",  # torchtitan
        "dump_folder",
        "trainer.default_local_dir",  # verl
        "hydra.run.dir",
        "run",  # the lab's trainer
    }
)
"""Names of arguments whose value is where checkpoints go: `--save-dir x`, `--save_dir=x`, `save_dir=x`, `+save=x`."""
_VARIABLES = frozenset(
    {
        "CHECKPOINT_DIR",
        "CHECKPOINT_PATH",
        "CHECKPOINTS_DIR",
        "CKPT_DIR",
        "CKPT_PATH",
        "SAVE_DIR",
        "SAVE_PATH",
        "OUTPUT_DIR",
    }
)
"""Variables that a script sets for the same."""
_ARGUMENT = re.compile(r"(?P<dashes>--?|\+{0,2})(?P<name>[A-Za-z][\w.\-]{0,60})(?:=(?P<value>.*))?", re.DOTALL)

_END = r"\s'\"\x00:;,()\[\]"
_PATH = (
    r"(?P<path>(?!(?:step|epoch|iter|iteration|disk|the|a)(?:\s|$))"
    rf"(?:(?:[~./]|[\w@+-]+/)[^{_END}]{{0,400}}|[\w@+=.-]{{1,200}})(?![^{_END}]))"
)
_QUOTED = r"['\"](?P<quoted>[^'\"\x00]{1,400})['\"]"
_WHERE = rf"(?:{_QUOTED}|{_PATH})"
_KINDS = r"(?:(?:the|a|model|training|full|final|last|best|async|distributed) )*"
_SAVED = tuple(
    map(
        re.compile,
        (
            rf"successfully saved (?:local )?checkpoint from iteration +\d+ to {_WHERE}",  # Megatron-LM, NeMo
            rf"saving checkpoint at iteration +\d+ to {_WHERE}",
            rf"(?i)\bsav(?:ed|ing) {_KINDS}checkpoints?(?: step \d+)?(?: to| at| in| as|:) *:? *{_WHERE}",
            rf"saved checkpoint step \d+ \({_PATH}\)",  # the lab's trainer
            rf"(?i)\bcheckpoint (?:was |is |has been |successfully )*(?:saved|written) (?:to|at|in|as):? *{_WHERE}",
            rf"Saving current state to {_WHERE}",  # accelerate
            rf"saving model to {_QUOTED}",  # Lightning
            r"\[Torch\] Sav(?:ing|ed) (?P<path>/[^\s'\"\x00]{1,400}?\.pt)\b",  # DeepSpeed
            rf"async checkpoint save for {_WHERE}",  # NeMo
            rf"global step \d+: .{{0,200}}saving model to {_QUOTED}",
        ),
    )
)
"""Lines that say where a checkpoint was saved; taken from what these trainers print."""


def roots(record: JobRecord, script: str | None, lines: Iterable[str] = ()) -> tuple[Root, ...]:
    """Where to look for a job's checkpoints, the most trusted first, each once, at most eight.

    Args:
        record: the job as Slurm shows it.
        script: its batch script, if it is known.
        lines: of its output.
    """
    named: list[tuple[str | None, HowNamed]] = [(checkpoint_folder(record), HowNamed.COMMENT)]
    named += [(path, HowNamed.LOG) for path in saved_to(lines)]
    named += [(path, HowNamed.SCRIPT) for path in _by_script(record, script or "")]
    named.append((record.work_dir, HowNamed.WORK_DIR))
    found: dict[str, Root] = {}
    for path, how in named:
        full = _full(path, record.work_dir)
        if full is not None and full not in found:
            found[full] = Root(path=full, how=how)
    work = [root for root in found.values() if root.how is HowNamed.WORK_DIR]
    others = [root for root in found.values() if root.how is not HowNamed.WORK_DIR]
    return (*others[: MOST_ROOTS - len(work)], *work)


def saved_to(lines: Iterable[str]) -> tuple[str, ...]:
    """The paths that lines of a job's output name as saved checkpoints, the newest first, each once, at most four.

    What lies within a folder counts as that folder: of `.../global_step100/mp_rank_00_model_states.pt`, the folder of
    the checkpoint.
    """
    found: dict[str, None] = {}
    for line in lines:
        path = _saved(line)
        if path is not None:
            if path.endswith("_states.pt"):
                path = dirname(path)
            found.pop(path, None)
            found[path] = None
    # Each checkpoint of a run is a path of its own: one of each folder is enough.
    newest: dict[str, str] = {}
    for path in reversed(found):
        newest.setdefault(dirname(path.rstrip("/")), path)
    return tuple(newest.values())[:4]


def _saved(line: str) -> str | None:
    if "av" not in line and "heckpoint" not in line:
        return None
    for pattern in _SAVED:
        if match := pattern.search(line):
            groups = match.groupdict()
            path = groups.get("quoted") or groups.get("path") or ""
            return path.rstrip(".") or None
    return None


def _by_script(record: JobRecord, script: str) -> Iterator[str]:
    """The values of arguments and variables that name a folder of checkpoints."""
    for command in commands(script, record):
        for text in _values(command.words):
            filled = command.filled(text)
            if filled and not (command.moved and not isabs(filled)):
                yield filled
        for name in sorted(_VARIABLES & command.known.keys()):
            if isabs(command.known[name]) or not command.moved:
                yield command.known[name]


def _values(words: tuple[str, ...]) -> Iterator[str]:
    for number, word in enumerate(words):
        match = _ARGUMENT.fullmatch(word)
        if match is None:
            continue
        name = match["name"].replace("-", "_").lower()
        if name not in _OPTIONS:
            continue
        if match["value"] is not None:
            yield match["value"]
        elif match["dashes"].startswith("-") and number + 1 < len(words) and not words[number + 1].startswith("-"):
            yield words[number + 1]


def _full(path: str | None, work_dir: str) -> str | None:
    """An absolute path; None for what is none, and for the whole file system."""
    if not path or "\0" in path or "\n" in path or len(path) > MOST_PATH or "://" in path or path.startswith("~"):
        return None
    if not isabs(path) and not isabs(work_dir):
        return None
    full = normpath(join(work_dir, path))
    return full if full.strip("/").count("/") >= 1 or full == normpath(work_dir) else None
