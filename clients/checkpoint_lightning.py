"""Checkpoints of PyTorch Lightning and of NeMo.

    epoch=0-step=100.ckpt, last.ckpt     Lightning: a file; a folder with FSDP (meta.pt, DCP) or DeepSpeed
    name--val_loss=2.3-step=900-consumed_samples=7200.0[-last]/      NeMo 2
        weights/.metadata, weights/*.distcp, weights/common.pt, weights/metadata.json, context/
    name--...-unfinished                      NeMo: an empty file beside it while it is being written
    name.nemo                                 NeMo: a tar file with weights and config; for use, not to go on from

Source: Lightning `callbacks/model_checkpoint.py` and `strategies/fsdp.py`; NeMo
`utils/callbacks/nemo_model_checkpoint.py` and `lightning/pytorch/callbacks/model_checkpoint.py`.
It imports the standard library only: it runs in the process that reads a file system.
"""

import re

from relight.clients import checkpoint_dcp as dcp
from relight.clients import checkpoint_deepspeed as deepspeed
from relight.clients import checkpoint_tensors as tensors
from relight.clients.checkpoint_folders import judge_files
from relight.clients.checkpoint_megatron import needs_common
from relight.clients.checkpoint_tensors import Findings
from relight.clients.checkpoint_tree import Content, Steps, Tree

UNFINISHED = "-unfinished"
_RANKED = re.compile(r"(?:tp|mp)_rank_\d+(?:_pp_rank_\d+)?")


def marker(name: str) -> str:
    """Name of the file that stands beside a checkpoint as long as it is not finished."""
    return name.removesuffix(".nemo").removesuffix(".ckpt").removesuffix("-EMA") + UNFINISHED


def is_last(name: str) -> bool:
    """Whether the name says that it is the one to go on from."""
    return bool(re.fullmatch(r"(?:.*[-_])?(?:last|latest)(?:-v\d+)?(?:\.ckpt)?", name))


def is_nemo(content: Content) -> bool:
    """Whether NeMo wrote it."""
    inside = "weights" in content.folders and "context" in content.folders
    return inside or content.name.endswith(".nemo") or "--" in content.name or "consumed_samples=" in content.name


def judge(tree: Tree, content: Content, found: Findings) -> Steps[None]:
    """Judge one checkpoint of Lightning or NeMo."""
    if content.is_folder:
        yield from _judge_folder(tree, content, found)
    else:
        sound = yield from judge_files(tree, content, found)
        if sound:
            found.good.append("its own directory is complete")
    above = content.path.rstrip("/").split("/")[-2:-1]
    if above and _RANKED.fullmatch(above[0]):
        found.open.append(f"it is of {above[0]} alone; those of the other ranks were not compared")


def _judge_folder(tree: Tree, content: Content, found: Findings) -> Steps[None]:
    if not content.parts:
        found.bad.append("it is empty")
        return
    if deepspeed.folders(content):
        yield from deepspeed.judge(tree, content, found)
        return
    yield from dcp.judge(tree, content, found)
    sound = yield from judge_files(tree, content, found)
    if "weights/common.pt" not in content.parts and needs_common(tree, content, "weights/metadata.json"):
        found.bad.append("weights/common.pt is missing")
    plain = content.name.endswith(".ckpt") and "" in dcp.folders(content)
    if plain and not content.has("meta.pt") and "common.pt" not in content.parts:
        found.bad.append("meta.pt is missing")
    if "weights" in content.folders and not any(folder.startswith("weights") for folder in dcp.folders(content)):
        (found.open if sound else found.bad).append("weights/ holds no .metadata and no shards")
    elif not found.good and not found.bad and not found.open:
        found.open.append("all files in it are sound; whether all are there, nothing in it says")


def step_inside(tree: Tree, content: Content) -> int | None:
    """The step that a file holds whose name tells none (`last.ckpt`), read as data."""
    path = content.path
    if content.is_folder:
        meta = content.parts.get("meta.pt")
        if meta is None:
            return None
        path = meta.path
    return tensors.number(tree, path, "global_step", "iter_num", "iteration", "step", "iter", "steps")
