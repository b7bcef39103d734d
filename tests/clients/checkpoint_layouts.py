"""Checkpoints by their documented layout, for trainers that cannot be run here; the tensors are torch's own."""

import argparse
import shutil
import tarfile
from pathlib import Path
from typing import Any

STEPS = (10, 20, 30)
_BACKENDS = '{"sharded_backend": "torch_dist", "sharded_backend_version": 1, "common_backend": "torch"}'


def _saved(path: Path, value: Any) -> None:
    import torch

    path.parent.mkdir(parents=True, exist_ok=True)
    torch.save(value, path)


def _dcp(folder: Path) -> None:
    import torch
    import torch.distributed.checkpoint as saving

    saving.save({"w": torch.ones(64)}, checkpoint_id=folder)


def megatron_legacy(folder: Path) -> None:
    """Megatron-LM's format `torch`: two tensor ranks and two pipeline ranks."""
    import torch

    arguments = argparse.Namespace(tensor_model_parallel_size=2, pipeline_model_parallel_size=2, lr=0.1)
    for step in STEPS:
        for rank in ("00_000", "00_001", "01_000", "01_001"):
            here = folder / f"iter_{step:07}" / f"mp_rank_{rank}"
            _saved(here / "model_optim_rng.pt", {"args": arguments, "iteration": step, "model": torch.ones(9)})
            _saved(here / "distrib_optim.pt", {"0": torch.ones(9)})
    (folder / "latest_checkpointed_iteration.txt").write_text(str(STEPS[-1]))


def megatron_dist(folder: Path) -> None:
    """Megatron-LM's format `torch_dist`."""
    for step in STEPS:
        here = folder / f"iter_{step:07}"
        _dcp(here)
        _saved(here / "common.pt", {"iteration": step})
        (here / "metadata.json").write_text(_BACKENDS)
    (folder / "latest_checkpointed_iteration.txt").write_text(str(STEPS[-1]))


def megatron_bridge(folder: Path) -> None:
    """Megatron-Bridge: the same, and its own state of training."""
    import torch

    megatron_dist(folder)
    for step in STEPS:
        here = folder / f"iter_{step:07}"
        _saved(here / "train_state.pt", {"step": torch.tensor(step, dtype=torch.int32), "do_train": torch.tensor(True)})
        (here / "run_config.yaml").write_text("train: {}\n")
        shutil.copy(here / "train_state.pt", folder / "latest_train_state.pt")


def nemo(folder: Path) -> None:
    """NeMo 2: folders, of which the last has a name that says so."""
    for step in STEPS:
        last = "-last" if step == STEPS[-1] else ""
        here = folder / f"llama--val_loss=2.31-step={step}-consumed_samples={step}.0{last}"
        (here / "context").mkdir(parents=True)
        (here / "context" / "model.yaml").write_text("{}")
        _dcp(here / "weights")
        _saved(here / "weights" / "common.pt", {"global_step": step})
        (here / "weights" / "metadata.json").write_text(_BACKENDS)


def nemo_tar(folder: Path) -> None:
    """A `.nemo`, as NeMo packs one at the end."""
    _saved(folder / "model_weights.ckpt", {"w": 1})
    (folder / "model_config.yaml").write_text("{}")
    with tarfile.open(folder / "llama.nemo", "w:") as tar:
        for name in ("model_config.yaml", "model_weights.ckpt"):
            tar.add(folder / name, name)
            (folder / name).unlink()


def deepspeed_zero(folder: Path) -> None:
    """DeepSpeed with two model-parallel and two data-parallel ranks."""
    for step in STEPS:
        here = folder / f"global_step{step}"
        for model in range(2):
            states = {"module": {}, "optimizer": None, "dp_world_size": 2, "mp_world_size": 2, "global_steps": step}
            _saved(here / f"mp_rank_{model:02}_model_states.pt", states)
            for data in range(2):
                _saved(here / f"zero_pp_rank_{data}_mp_rank_{model:02}_optim_states.pt", {"optimizer_state_dict": {}})
    (folder / "latest").write_text(f"global_step{STEPS[-1]}")


def lightning_fsdp(folder: Path) -> None:
    """Lightning's sharded checkpoints of FSDP."""
    for step in STEPS:
        here = folder / f"epoch=0-step={step}.ckpt"
        _dcp(here)
        _saved(here / "meta.pt", {"global_step": step})


def plain_folder(folder: Path) -> None:
    """torch.distributed.checkpoint in folders of any name."""
    for step in STEPS:
        _dcp(folder / f"{step}")
