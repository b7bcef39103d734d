"""Checkpoints of the Hugging Face Trainer (transformers) and of accelerate: `checkpoint-500`.

    model.safetensors, or model-00001-of-00004.safetensors and model.safetensors.index.json
    optimizer.pt, scheduler.pt, rng_state.pth or rng_state_0.pth ...: left out with save_only_model
    optimizer.bin, random_states_0.pkl      accelerate, in `checkpoint_0`
    trainer_state.json: written after those by rank 0
    global_step500/, latest                 with DeepSpeed
    pytorch_model_fsdp_0/, optimizer_0/     with FSDP: torch.distributed.checkpoint

`trainer_utils.get_last_checkpoint` takes the highest number, whatever is in it. Where `optimizer.pt` or `scheduler.pt`
is missing, neither is loaded, and training goes on with fresh ones without a word.

Source: transformers `trainer.py`, `_save_checkpoint`; accelerate `checkpointing.py`.
It imports the standard library only: it runs in the process that reads a file system.
"""

import json
import re

from relight.clients import checkpoint_dcp as dcp
from relight.clients import checkpoint_deepspeed as deepspeed
from relight.clients.checkpoint_folders import judge_files, judge_indices, judge_numbers
from relight.clients.checkpoint_tensors import Findings
from relight.clients.checkpoint_tree import Content, Steps, Tree

STATE = "trainer_state.json"
_RNG = re.compile(r"(?:rng_state|random_states)_(\d+)\.(?:pth|pkl)")
_RNG_FIRST = "random_states_0.pkl"
"""Of accelerate's `save_state`, which keeps no list of what should be there."""
_SIGNS = {"training_args.bin", "scheduler.pt", "rng_state.pth", "rng_state_0.pth"}
"""Files that only the Trainer writes so."""
_OPTIMIZER = re.compile(r"optimizer(?:_\d+)?\.(?:pt|bin)")


def judge(tree: Tree, content: Content, found: Findings) -> Steps[None]:
    """Judge one `checkpoint-N`."""
    if not content.parts:
        found.bad.append("it is empty")
        return
    yield from dcp.judge(tree, content, found)
    yield from judge_files(tree, content, found)
    judge_indices(tree, content, found)
    for folder in deepspeed.folders(content):
        deepspeed.judge_ranks(tree, content, folder, found)
    top = content.inside("")
    sharded = bool(dcp.folders(content) or deepspeed.folders(content))
    if not sharded and not any(_is_weights(part.base) for part in content.parts.values()):
        found.bad.append("its weights are missing")
    ranks = [int(match[1]) for name in top if (match := _RNG.fullmatch(name))]
    if ranks:
        judge_numbers(found, "random states of ranks", ranks, None)
    _judge_end(tree, content, found, sharded=sharded)


def _judge_end(tree: Tree, content: Content, found: Findings, *, sharded: bool) -> None:
    """Whether what is written last is there, and what belongs to it."""
    top = content.inside("")
    optimizer = any(map(_OPTIMIZER.fullmatch, top))
    if STATE in top:
        _judge_state(tree, content, found)
        if not sharded and optimizer is not ("scheduler.pt" in top):
            gone, there = ("scheduler.pt", "optimizer.pt") if optimizer else ("optimizer.pt", "scheduler.pt")
            found.bad.append(f"{gone} is missing, though {there} is there: both would begin anew, without a word")
    elif _RNG_FIRST in top:
        if optimizer or sharded:
            found.good.append(f"{_RNG_FIRST}, which is written last, is there")
        else:
            found.open.append("all files in it are sound; whether it should hold an optimizer, nothing in it says")
    elif optimizer and content.name.startswith("checkpoint_"):
        found.bad.append(f"{_RNG_FIRST} is missing: it was never finished, or is being written")
    elif top.keys() & _SIGNS:
        found.bad.append(f"{STATE} is missing: it was never finished, or is being written")
    else:
        found.open.append("all files in it are sound; it is of a trainer that is not known")


def _is_weights(name: str) -> bool:
    """Weights have many names; what else there is, has few."""
    if name.endswith(".safetensors"):
        return True
    return name.endswith((".bin", ".pt", ".pth")) and not re.match(
        r"optimizer|scheduler|scaler|rng_|training_args", name
    )


def _judge_state(tree: Tree, content: Content, found: Findings) -> None:
    try:
        state = json.loads(tree.text(content.parts[STATE].path, 32 << 20))
        step = state["global_step"]
    except OSError as error:
        found.open.append(f"{STATE}: {error.strerror or error}")
        return
    except (ValueError, TypeError, LookupError, RecursionError):
        found.bad.append(f"{STATE} is cut short or damaged")
        return
    if content.name != f"checkpoint-{step}" and re.fullmatch(r"checkpoint-\d+", content.name):
        found.bad.append(f"{STATE} is of step {str(step)[:20]}, not of {content.name}")
        return
    found.good.append(f"{STATE}, which is written last, is there")
