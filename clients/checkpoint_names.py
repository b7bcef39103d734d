"""The names that trainers give their checkpoints, and which format a checkpoint is of.

It imports the standard library only: it runs in the process that reads a file system.
"""

import re
from collections.abc import Callable
from typing import NamedTuple

from relight.clients import checkpoint_dcp as dcp
from relight.clients import checkpoint_deepspeed as deepspeed
from relight.clients import checkpoint_huggingface as huggingface
from relight.clients import checkpoint_lab as lab
from relight.clients import checkpoint_lightning as lightning
from relight.clients import checkpoint_megatron as megatron
from relight.clients.checkpoint_folders import judge_folder
from relight.clients.checkpoint_tensors import TENSORS, Findings
from relight.clients.checkpoint_tree import Content, Steps, Tree
from relight.domain.checkpoint_formats import Format

Judge = Callable[[Tree, Content, Findings], Steps[None]]
JUDGES: dict[Format, Judge] = {
    Format.DCP: judge_folder,
    Format.TORCHTITAN: judge_folder,
    Format.MEGATRON: megatron.judge,
    Format.MEGATRON_BRIDGE: megatron.judge,
    Format.NEMO: lightning.judge,
    Format.LIGHTNING: lightning.judge,
    Format.HUGGING_FACE: huggingface.judge,
    Format.DEEPSPEED: deepspeed.judge,
    Format.LAB: lab.judge_lab,
    Format.FILE: lab.judge_file,
    Format.FOLDER: judge_folder,
}
TRACKED: dict[Format, Callable[[Tree, str, set[str]], megatron.Tracked | None]] = {
    Format.MEGATRON: megatron.tracked,
    Format.MEGATRON_BRIDGE: megatron.tracked,
    Format.DEEPSPEED: deepspeed.tracked,
}

_FOLDERS = tuple(
    map(
        re.compile,
        (
            r"checkpoint[-_](\d{1,12})(?:-[a-z]{1,12})?",
            r"iter_(\d{1,12})",
            r"global_step(\d{1,12})",
            r"(?:.*[-_])?step=(\d{1,12})(?:[-_.].*)?",
            r"(?:.*[-_])?(?:global_?)?(?:steps?|iter|iteration)[-_]?(\d{1,12})(?:\.ckpt)?",
            r"(?:ckpt|checkpoint|epoch)[-_=]?(\d{1,12})(?:\.ckpt)?",
            r"(?:.*[-_])?(?:last|latest)(?:\.ckpt)?()",
            r"release()",
        ),
    )
)
"""The first that fits the whole name counts; its group is the step."""
_TENSORS = r"\.(?:npz|pt|pth|bin|safetensors|ckpt|tar|pth\.tar|pkl)"
_FILES = tuple(
    map(
        re.compile,
        (
            r"(?:.*[-_])?step=(\d{1,12})(?:[-_.].*)?\.ckpt",
            rf"(?:.*[-_])?(?:step|iter|iteration)[-_=]?(\d{{1,12}}){_TENSORS}",
            rf"(?:ckpt|checkpoint|model|epoch|snapshot)[-_=]?(\d{{1,12}}){_TENSORS}",
            rf"(?:.*[-_])?(?:last|latest)(?:-v\d+)?{_TENSORS}()",
            rf"(?:ckpt|checkpoint|snapshot|training_state|train_state|state){_TENSORS}()",
            r".+\.nemo()",
        ),
    )
)
_TRACKERS = frozenset({megatron.TRACKER, megatron.BRIDGE_TRACKER, deepspeed.TRACKER})

_MARKS = r"te?mp|part|partial|incomplete|unfinished|staging|writing|inprogress|saving"
_BEFORE = re.compile(rf"(?i)^(?:[.~]?(?:{_MARKS})[-_.]|[.~])")
_AFTER = re.compile(rf"(?i)(?:[-_.](?:{_MARKS})(?:[-_.]?[0-9a-z]{{1,12}})?|~)$")
_MAY_BE = (*TENSORS, "~", "tmp", "temp", "part", "partial", "incomplete", "unfinished", "staging", "writing", "saving")
_RANDOM = re.compile(r"\.[0-9A-Za-z]{4,12}$")
"""What mkstemp, rsync and the lab's trainer put behind the name of a hidden file that they write aside."""


class Claim(NamedTuple):
    """What a name says."""

    step: int | None
    mark: str = ""
    """By what the name says that it is not finished; empty for a plain name."""


def claim(name: str, *, is_folder: bool) -> Claim | None:
    """What the name says, if it is one that a trainer gives its checkpoints."""
    if name in _TRACKERS:
        return None
    bare = _AFTER.sub("", _BEFORE.sub("", name, count=1), count=1)
    candidates = [bare]
    if name.startswith(".") and not is_folder:
        candidates.append(_RANDOM.sub("", bare))
    for each in candidates:
        for pattern in _FOLDERS if is_folder else _FILES:
            if match := pattern.fullmatch(each):
                mark = "" if each == name else name.replace(each, "…", 1)
                return Claim(int(match[1]) if match[1] else None, mark)
    return None


def may_be_file(name: str) -> bool:
    """Whether a file of this name may be a checkpoint: asked of every file of a tree, so it is quick."""
    return name[:1] == "." or name.endswith(_MAY_BE)


def is_checkpoint_itself(names: set[str]) -> bool:
    """Whether a folder with these names in it is a checkpoint of torch.distributed.checkpoint, whatever its name."""
    return dcp.METADATA in names or any(name.endswith(dcp.SHARD) for name in names)


def is_published(content: Content) -> bool:
    """Whether torchtitan would take it for a checkpoint: whatever its name ends with, it has one of these files."""
    return dcp.METADATA in content.parts or "model.safetensors.index.json" in content.parts


def format_of(content: Content, siblings: set[str]) -> Format | None:
    """Who wrote it; None when it is no checkpoint after all."""
    for kind, fits in _FITS:
        if fits(content, siblings):
            return kind
    return None


def _is_iteration(content: Content, siblings: set[str]) -> bool:
    release = content.name == "release" and megatron.TRACKER in siblings
    return content.is_folder and (release or bool(re.search(r"iter_\d+", content.name)))


def _is_bridge(content: Content, siblings: set[str]) -> bool:
    return _is_iteration(content, siblings) and (megatron.is_bridge(content) or megatron.BRIDGE_TRACKER in siblings)


def _is_lab(content: Content, siblings: set[str]) -> bool:
    named = not content.is_folder and re.search(r"step_\d{6,}\.(?:npz|pt)", content.name)
    return bool(named) and any(name.endswith(lab.DIGEST) for name in siblings)


def _is_torchtitan(content: Content, _: set[str]) -> bool:
    named = content.is_folder and re.search(r"step-\d+", content.name)
    # An empty folder of that name is one that never came to be.
    return bool(named) and (bool(dcp.folders(content)) or not content.parts)


def _has_tensors(content: Content, _: set[str]) -> bool:
    return any(part.base.endswith(TENSORS) for part in content.parts.values())


_FITS: tuple[tuple[Format, Callable[[Content, set[str]], bool]], ...] = (
    (Format.MEGATRON_BRIDGE, _is_bridge),
    (Format.MEGATRON, _is_iteration),
    (Format.DEEPSPEED, lambda content, _: bool(re.search(r"global_step\d+", content.name))),
    (Format.NEMO, lambda content, _: lightning.is_nemo(content)),
    (Format.LIGHTNING, lambda content, _: "step=" in content.name or ".ckpt" in content.name),
    (Format.LAB, _is_lab),
    (Format.FILE, lambda content, _: not content.is_folder),
    (Format.HUGGING_FACE, lambda content, _: bool(re.search(r"checkpoint[-_]\d+", content.name))),
    (Format.TORCHTITAN, _is_torchtitan),
    (Format.DCP, lambda content, _: bool(dcp.folders(content))),
    (Format.DEEPSPEED, lambda content, _: bool(deepspeed.folders(content))),
    (Format.FOLDER, _has_tensors),
)
"""The first that fits."""
