"""The formats of checkpoints that are known, by the names under which they travel. Imports nothing: see `clients`."""

from enum import StrEnum

ASIDE = "relight-aside-"
"""How the name of a folder begins into which Relight has put checkpoints aside: nobody looks for checkpoints there."""


class Format(StrEnum):
    """Who wrote a checkpoint, as far as its names and files tell."""

    DCP = "dcp"
    """torch.distributed.checkpoint on its own."""
    TORCHTITAN = "torchtitan"
    """`step-N`, DCP inside."""
    MEGATRON = "megatron"
    """Megatron-LM: `iter_NNNNNNN` and `latest_checkpointed_iteration.txt`."""
    MEGATRON_BRIDGE = "megatron_bridge"
    """The same with `train_state.pt` and `latest_train_state.pt`."""
    NEMO = "nemo"
    LIGHTNING = "lightning"
    HUGGING_FACE = "hugging_face"
    """The Trainer of transformers, and accelerate: `checkpoint-N`."""
    DEEPSPEED = "deepspeed"
    """`global_stepN` and `latest`."""
    LAB = "lab"
    """The lab's own trainer: a file and its SHA-256."""
    FILE = "file"
    """One file of tensors by a trainer that is not known."""
    FOLDER = "folder"
    """A folder of files of tensors by a trainer that is not known."""
