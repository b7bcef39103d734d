"""Checkpoints of DeepSpeed, on their own or within one of another trainer.

    save/latest                                                  "global_step100": written last, by one rank
    save/global_step100/mp_rank_00_model_states.pt               a model-parallel rank each
    save/global_step100/zero_pp_rank_0_mp_rank_00_optim_states.pt    a data-parallel rank each (with `bf16_` before)
    save/global_step100/zero_pp_rank_0_mp_rank_00_model_states.pt    ZeRO 3
    save/global_step100/layer_00-model_00-model_states.pt        pipelines

Source: DeepSpeed `runtime/engine.py`, `_get_ckpt_name` and `_get_zero_ckpt_name`; `runtime/pipe/module.py`.
It imports the standard library only: it runs in the process that reads a file system.
"""

import re
from collections import defaultdict
from collections.abc import Iterable

from relight.clients import checkpoint_pickle as pickles
from relight.clients import checkpoint_tensors as tensors
from relight.clients.checkpoint_folders import judge_files, judge_numbers
from relight.clients.checkpoint_megatron import Tracked
from relight.clients.checkpoint_tensors import Findings
from relight.clients.checkpoint_tree import Content, Steps, Tree

TRACKER = "latest"
_MODEL = re.compile(r"mp_rank_(\d+)_model_states\.pt")
_ZERO = re.compile(r"(?:bf16_)?zero_pp_rank_(\d+)_mp_rank_(\d+)_(optim|model)_states\.pt")
_LAYER = re.compile(r"layer_(\d+)-model_(\d+)-model_states\.pt")


def folders(content: Content) -> list[str]:
    """The folders of a checkpoint that hold files of DeepSpeed."""
    return sorted({p.folder for p in content.parts.values() if _MODEL.fullmatch(p.base) or _ZERO.fullmatch(p.base)})


def judge(tree: Tree, content: Content, found: Findings) -> Steps[None]:
    """Judge one `global_stepN`."""
    yield from judge_files(tree, content, found)
    there = folders(content)
    if not there:
        found.bad.append("it holds no states" if content.parts else "it is empty")
    for folder in there:
        judge_ranks(tree, content, folder, found)
    if "latest" in content.parts:  # of Lightning and of transformers: the tracker is within the checkpoint
        try:
            named = tree.text(content.parts["latest"].path, 256).strip()
        except OSError as error:
            found.open.append(f"latest: {error.strerror or error}")
        else:
            if named not in content.folders:
                found.bad.append(f"latest names {named[:40]!r}, which is not there")


def judge_ranks(tree: Tree, content: Content, folder: str, found: Findings) -> None:
    """Whether the files of all ranks are there. How many there should be, each model's states say."""
    names = content.inside(folder)
    where = f"{folder}/" if folder else ""
    model = _numbers(names, _MODEL)[()]
    zero, layers = _numbers(names, _ZERO), _numbers(names, _LAYER)
    states = sorted(name for name in names if name.endswith("_model_states.pt") and not name.startswith("layer_"))
    path = names[states[0]].path if states else ""
    saved = tensors.values(tree, path) if path else None
    model_ranks, data_ranks = (
        tensors.number_of(tree, path, saved, (key,)) for key in ("mp_world_size", "dp_world_size")
    )
    well = not found.bad
    if model:
        # A pipeline counts its stages among these ranks, and does not say how many there are.
        expected = model_ranks if not layers and model_ranks and model_ranks >= len(model) else None
        well &= judge_numbers(found, f"{where}mp_rank_*_model_states.pt", model, expected)
    for (rank, kind), ranks in sorted(zero.items()):
        well &= judge_numbers(found, f"{where}zero_pp_rank_*_mp_rank_{rank}_{kind}_states.pt", ranks, data_ranks)
    for (rank,), numbers in layers.items():
        # A pipeline leaves out the numbers of layers that have no weights: those are missing everywhere.
        if lacking := set.union(*layers.values()) - numbers:
            found.bad.append(f"{len(lacking)} of {where}layer_*-model_{rank}-model_states.pt are missing")
            well = False
    if not states:
        found.bad.append(f"{where or 'it'} holds no states of the model")
    elif saved is None or data_ranks is None:
        found.open.append(f"{where}how many ranks there should be could not be read")
    elif pickles.get(saved, "optimizer") is None and not any(kind == "optim" for _, kind in zero):
        found.bad.append(f"{where}*_optim_states.pt, the optimizer's states, are missing")
    elif well:
        found.good.append(f"the states of all {data_ranks} data-parallel ranks are there")


def _numbers(names: Iterable[str], pattern: re.Pattern[str]) -> defaultdict[tuple[str, ...], set[int]]:
    """The first number in the names that fit, by what else tells them apart."""
    found: defaultdict[tuple[str, ...], set[int]] = defaultdict(set)
    for name in names:
        if match := pattern.fullmatch(name):
            found[match.groups()[1:]].add(int(match[1]))
    return found


def tracked(tree: Tree, folder: str, names: set[str]) -> Tracked | None:
    """What `latest` says; None where there is none."""
    if TRACKER not in names:
        return None
    try:
        text = tree.text(f"{folder}/{TRACKER}", 256).strip().strip("\0")
    except OSError as error:
        return Tracked(TRACKER, "", None, None, f"cannot be read: {error.strerror or error}")
    if not text:
        return Tracked(TRACKER, "", None, None, "is empty: half written")
    match = re.search(r"(\d{1,12})$", text)
    step = int(match[1]) if match else None
    if text not in names:
        return Tracked(TRACKER, text[:60], None, step, f"names {text[:60]!r}, which is not there")
    return Tracked(TRACKER, text[:60], text, step)
