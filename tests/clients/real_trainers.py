"""Writes checkpoints with the real libraries: `python real_trainers.py LIBRARY FOLDER`, in a process of its own.

So that what the libraries warn of, patch and start stays out of the tests. Exits with 77 where one is missing.
"""

import os
import shutil
import sys
import warnings
from pathlib import Path

warnings.simplefilter("ignore")
os.environ["CUDA_VISIBLE_DEVICES"] = ""
os.environ["HF_HUB_OFFLINE"] = "1"
STEPS = (10, 20, 30)


def dcp(folder: Path) -> None:
    """torch.distributed.checkpoint, as torchtitan lays it out."""
    import torch
    import torch.distributed.checkpoint as saving

    for step in STEPS:
        state = {
            "model": {"w": torch.randn(100, 10), "b": torch.ones(3)},
            "optimizer": {"m": torch.zeros(100, 10), "step": torch.tensor(step)},
            "train_state": {"step": step},
        }
        saving.save(state, checkpoint_id=folder / f"step-{step}")


def fsdp(folder: Path) -> None:
    """The same from two ranks over gloo, each with shards of its own."""
    import torch.multiprocessing as processes

    processes.spawn(_rank, (folder,), 2)


def _rank(rank: int, folder: Path) -> None:
    import torch
    import torch.distributed as dist
    import torch.distributed.checkpoint as saving
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": os.environ["PORT"]}
    dist.init_process_group("gloo", rank=rank, world_size=2)
    model = torch.nn.Linear(64, 64)
    fully_shard(model, mesh=init_device_mesh("cpu", (2,)))
    for step in STEPS:
        saving.save({"model": model.state_dict()}, checkpoint_id=folder / f"step-{step}")
    dist.destroy_process_group()


def trainer(folder: Path) -> None:
    """The Trainer of transformers."""
    import torch
    from torch.utils.data import Dataset
    from transformers import LlamaConfig, LlamaForCausalLM, Trainer, TrainingArguments

    class Data(Dataset):
        def __len__(self) -> int:
            return 64

        def __getitem__(self, at: int) -> dict[str, torch.Tensor]:
            return {"input_ids": torch.arange(8), "labels": torch.arange(8)}

    config = LlamaConfig(
        vocab_size=32,
        hidden_size=16,
        intermediate_size=16,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=2,
    )
    arguments = TrainingArguments(
        output_dir=str(folder),
        max_steps=STEPS[-1],
        save_steps=STEPS[0],
        per_device_train_batch_size=1,
        report_to=[],
        use_cpu=True,
        disable_tqdm=True,
    )
    Trainer(model=LlamaForCausalLM(config), args=arguments, train_dataset=Data()).train()


def sharded(folder: Path) -> None:
    """The same with its weights in several files of safetensors and the list of them."""
    trainer(folder)
    from transformers import LlamaForCausalLM

    for step in STEPS:
        here = folder / f"checkpoint-{step}"
        model = LlamaForCausalLM.from_pretrained(here)
        (here / "model.safetensors").unlink()
        model.save_pretrained(here, max_shard_size="5KB")


def accelerate(folder: Path) -> None:
    """accelerate's `save_state`."""
    import torch
    from accelerate import Accelerator
    from accelerate.utils import ProjectConfiguration

    running = Accelerator(
        cpu=True,
        project_config=ProjectConfiguration(project_dir=str(folder), automatic_checkpoint_naming=True),
    )
    model = torch.nn.Linear(8, 8)
    optimizer = torch.optim.AdamW(model.parameters())
    model, optimizer = running.prepare(model, optimizer)
    for _ in STEPS:
        model(torch.ones(1, 8)).sum().backward()
        optimizer.step()
        running.save_state()


def lightning(folder: Path) -> None:
    """PyTorch Lightning with `save_last`."""
    import pytorch_lightning
    import torch
    from pytorch_lightning.callbacks import ModelCheckpoint
    from torch.utils.data import DataLoader, TensorDataset

    class Module(pytorch_lightning.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.layer = torch.nn.Linear(8, 1)

        def training_step(self, batch: list[torch.Tensor], _: int) -> torch.Tensor:
            return self.layer(batch[0]).sum()

        def configure_optimizers(self) -> torch.optim.Optimizer:
            return torch.optim.AdamW(self.parameters())

    pytorch_lightning.Trainer(
        max_steps=STEPS[-1],
        default_root_dir=str(folder),
        accelerator="cpu",
        logger=False,
        enable_progress_bar=False,
        callbacks=[ModelCheckpoint(dirpath=folder, every_n_train_steps=STEPS[0], save_top_k=-1, save_last=True)],
    ).fit(Module(), DataLoader(TensorDataset(torch.ones(200, 8)), batch_size=1))


def files(folder: Path) -> None:
    """One file each, by `torch.save`."""
    import torch

    folder.mkdir()
    for step in STEPS:
        torch.save({"model": {"w": torch.randn(100)}, "step": step}, folder / f"ckpt_{step}.pt")


def nanogpt(folder: Path) -> None:
    """The one file that nanoGPT writes over and over."""
    import torch

    folder.mkdir()
    torch.save({"model": {"w": torch.randn(100)}, "iter_num": STEPS[-1], "config": {}}, folder / "ckpt.pt")


def safetensors(folder: Path) -> None:
    """One file each, by safetensors."""
    import numpy as np
    from safetensors.numpy import save_file

    folder.mkdir()
    for step in STEPS:
        save_file({"w": np.ones(100), "b": np.zeros(3)}, folder / f"model_step_{step}.safetensors")


def lab(folder: Path) -> None:
    """The lab's own trainer."""
    import io

    import numpy as np

    from relight.lab import checkpoints

    for step in STEPS:
        content = io.BytesIO()
        np.savez(content, w=np.ones(1000))
        checkpoints.save(folder, step, content.getvalue(), ".npz")


def deepspeed(folder: Path, stage: int = 1) -> None:
    """DeepSpeed's ZeRO on two ranks of the CPU; not a dependency of ours, so mostly left out."""
    import deepspeed  # noqa: F401 - missing here, not in the ranks
    import torch.multiprocessing as processes

    processes.spawn(_zero, (folder, stage), 2)


def zero3(folder: Path) -> None:
    """The same with the model's states sharded, too."""
    deepspeed(folder, 3)


def _zero(rank: int, folder: Path, stage: int) -> None:
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": os.environ["PORT"], "DS_ACCELERATOR": "cpu"}
    os.environ |= {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": "2", "LOCAL_SIZE": "2"}
    import deepspeed
    import torch

    model = torch.nn.Linear(16, 16)
    config = {
        "train_micro_batch_size_per_gpu": 1,
        "bf16": {"enabled": True},
        "zero_optimization": {"stage": stage},
        "optimizer": {"type": "AdamW", "params": {"torch_adam": True}},
    }
    engine, *_ = deepspeed.initialize(model=model, model_parameters=model.parameters(), config=config)
    for step in STEPS:
        engine.global_steps = step
        engine.save_checkpoint(str(folder))


def megatron(folder: Path) -> None:
    """Megatron-Core's own writer of `torch_dist`; not a dependency of ours, so mostly left out.

    It asks CUDA for a device and to synchronise, which is answered here. The tracker is Megatron-LM's, written by us.
    """
    import torch
    import torch.distributed as dist

    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": os.environ["PORT"]}
    from megatron.core import dist_checkpointing
    from megatron.core.dist_checkpointing.mapping import ShardedTensor

    dist.init_process_group("gloo", rank=0, world_size=1)
    torch.cuda.current_device = lambda: "cpu"
    torch.cuda.synchronize = lambda *_: None
    for step in STEPS:
        here = folder / f"iter_{step:07}"
        here.mkdir(parents=True)
        state = {"w": ShardedTensor.from_rank_offsets("w", torch.randn(8, 8)), "iteration": step, "args": {"a": 1}}
        dist_checkpointing.save(state, str(here))
    (folder / "latest_checkpointed_iteration.txt").write_text(str(STEPS[-1]))


if __name__ == "__main__":
    made = Path(sys.argv[2])
    try:
        globals()[sys.argv[1]](made)
    except ModuleNotFoundError as missing:
        sys.stdout.write(f"{missing}\n")
        shutil.rmtree(made, ignore_errors=True)
        sys.exit(77)
