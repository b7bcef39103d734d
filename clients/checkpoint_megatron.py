"""Checkpoints of Megatron-LM and of Megatron-Bridge.

    save/latest_checkpointed_iteration.txt        "1000": written last, by one rank, once all have saved
    save/latest_train_state.pt                    Megatron-Bridge: a copy of the newest train_state.pt
    save/iter_0001000/mp_rank_00[_000][_000]/     format `torch`: tensor, pipeline and expert rank
        model_optim_rng.pt, distrib_optim.pt
    save/iter_0001000/.metadata, __0_0.distcp     format `torch_dist`, with common.pt and metadata.json
    save/iter_0001000/train_state.pt, run_config.yaml   Megatron-Bridge

Source: Megatron-LM `megatron/training/checkpointing.py`; Megatron-Bridge `docs/training/checkpointing.md`.
It imports the standard library only: it runs in the process that reads a file system.
"""

import re
from typing import NamedTuple

from relight.clients import checkpoint_dcp as dcp
from relight.clients import checkpoint_pickle as pickles
from relight.clients import checkpoint_tensors as tensors
from relight.clients.checkpoint_folders import few, judge_files
from relight.clients.checkpoint_tensors import Findings
from relight.clients.checkpoint_tree import Content, Steps, Tree

TRACKER, BRIDGE_TRACKER = "latest_checkpointed_iteration.txt", "latest_train_state.pt"
TRAIN_STATE = "train_state.pt"
_RANK = re.compile(r"mp_rank_(\d{2})(?:_(\d{3}))?(?:_(\d{3}))?")
_WEIGHTS = ("model_optim_rng.pt", "model_rng.pt")
_SIZES = ("tensor_model_parallel_size", "pipeline_model_parallel_size", "expert_model_parallel_size")


class Tracked(NamedTuple):
    """What a tracker file says."""

    file: str
    says: str
    target: str | None
    """Name of the checkpoint beside it."""
    step: int | None
    problem: str = ""


def is_bridge(content: Content) -> bool:
    """Whether it is of Megatron-Bridge."""
    return TRAIN_STATE in content.parts or "run_config.yaml" in content.parts


def judge(tree: Tree, content: Content, found: Findings) -> Steps[None]:
    """Judge one `iter_NNNNNNN`."""
    if not content.parts:
        found.bad.append("it is empty")
        return
    yield from dcp.judge(tree, content, found)
    sound = yield from judge_files(tree, content, found)
    if "common.pt" not in content.parts and needs_common(tree, content, "metadata.json"):
        found.bad.append("common.pt is missing")
    if is_bridge(content) and TRAIN_STATE not in content.parts:
        found.bad.append(f"{TRAIN_STATE} is missing")
    ranks = {name: match for name in content.folders if (match := _RANK.fullmatch(name))}
    if ranks:
        _judge_ranks(tree, content, ranks, found)
    elif not found.good and not found.bad:
        known = ".zarray" in {part.base for part in content.parts.values()}
        text = "it is in zarr, which cannot be judged" if known else "whether all files are there, nothing in it says"
        (found.open if sound or known else found.bad).append(text if sound or known else "it holds no weights")


def needs_common(tree: Tree, content: Content, name: str) -> bool:
    """Whether Megatron-Core's `metadata.json` says that what all ranks share is in a `common.pt`."""
    try:
        text = tree.text(content.parts[name].path) if name in content.parts else ""
    except OSError:
        return False
    return bool(re.search(r'"common_backend": *"torch"', text))


def _judge_ranks(tree: Tree, content: Content, ranks: dict[str, re.Match[str]], found: Findings) -> None:
    first = min(ranks)
    insides = {name: set(content.inside(name)) for name in ranks}
    without = sorted(name for name, files in insides.items() if not files & {*_WEIGHTS})
    if without:
        found.bad.append(f"no weights in {few(without)}")
    common = set.union(*insides.values()) & {"distrib_optim.pt", "optim.pt"}
    for file in sorted(common):
        if lacking := sorted(name for name, files in insides.items() if file not in files):
            found.bad.append(f"{file} is missing in {few(lacking)}")
    grid = [max(int(match[n] or 0) for match in ranks.values()) + 1 for n in (1, 2, 3)]
    told = _sizes(tree, content, first)
    if told:
        # Without pipeline or expert parallelism the names leave those ranks out.
        grid = [told[n] if n == 0 or any(match[n + 1] for match in ranks.values()) else 1 for n in range(3)]
    wanted = grid[0] * grid[1] * grid[2]
    if len(ranks) < wanted:
        found.bad.append(f"{wanted - len(ranks)} of {wanted} mp_rank folders are missing")
    elif told and not found.bad:
        found.good.append(f"all {wanted} mp_rank folders are there")
    elif not found.bad:
        found.open.append("how many mp_rank folders there should be could not be read")


def _sizes(tree: Tree, content: Content, folder: str) -> list[int] | None:
    """Tensor, pipeline and expert ranks, from the arguments that each rank's file holds."""
    for name in _WEIGHTS:
        part = content.parts.get(f"{folder}/{name}")
        saved = tensors.values(tree, part.path) if part else None
        args = pickles.get(saved, "args")
        sizes = [pickles.get(args, name) or 1 for name in _SIZES]
        if isinstance(pickles.get(args, _SIZES[0]), int) and all(isinstance(size, int) for size in sizes):
            return sizes
    return None


def tracked(tree: Tree, folder: str, names: set[str]) -> Tracked | None:
    """What the tracker file beside the checkpoints says; None where there is none."""
    if BRIDGE_TRACKER in names:
        step = tensors.number(tree, f"{folder}/{BRIDGE_TRACKER}", "step")
        if step is None:
            return Tracked(BRIDGE_TRACKER, "", None, None, "cannot be read: half written, or damaged")
        return _named(BRIDGE_TRACKER, str(step), names)
    if TRACKER not in names:
        return None
    try:
        text = tree.text(f"{folder}/{TRACKER}", 64).strip()
    except OSError as error:
        return Tracked(TRACKER, "", None, None, f"cannot be read: {error.strerror or error}")
    return _named(TRACKER, text, names)


def _named(file: str, text: str, names: set[str]) -> Tracked:
    if not text.strip("\0"):
        return Tracked(file, "", None, None, "is empty: half written")
    if text == "release":
        target, step = "release", None
    elif re.fullmatch(r"[0-9]{1,12}", text):
        target, step = f"iter_{int(text):07d}", int(text)
    else:
        return Tracked(file, text[:40], None, None, f"holds {text[:40]!r}, which is no iteration")
    if target not in names:
        return Tracked(file, text, None, step, f"names {target}, which is not there")
    return Tracked(file, text, target, step)
