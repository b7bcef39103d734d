"""An ordinary training script, which one rank breaks: what `broken_runs` runs to get real logs of real failures.

It is written as users write them (a DataLoader, gradients averaged over gloo, torch.save): what it prints is what
PyTorch prints. `--deed` says what goes wrong, `--guilty` on which rank, `--at` at which step. Started by srun,
one process per rank; by torchrun; or with `--spawn N` as one process per node that forks its ranks.
"""

import argparse
import ctypes
import gzip
import importlib
import json
import math
import os
import resource
import signal
import sys
import time
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

LABELS = {"cat": 0, "dog": 1, "horse": 2}
FEATURES, HIDDEN, BATCH, SAMPLES = 32, 64, 16, 4096
LEARNING_RATE = 0.02
JOIN_WITHIN = timedelta(minutes=5)
"""Ranks start within a minute of one another on a loaded machine; what is measured in seconds begins after that."""
OUT_OF_REACH = 1 << 31
"""Bytes that an allocation may add before the limit of `--deed memory`."""
PAGE = 1 << 20


def main() -> None:
    """Read the command line, then train."""
    options = parser().parse_args()
    if options.tokenizer:
        importlib.import_module(options.tokenizer)
    if not options.spawn:
        train(0, options)
        return
    # By name, as all of PyTorch late: it takes seconds, and some deeds come before. It exports this function untyped.
    importlib.import_module("torch.multiprocessing").start_processes(
        train, args=(options,), nprocs=options.spawn, start_method="fork"
    )


def parser() -> argparse.ArgumentParser:
    """The script's command line."""
    made = argparse.ArgumentParser(prog="train.py", description="Train a small network.")
    made.add_argument("--folder", type=Path, required=True, help="folder of checkpoints and data")
    made.add_argument("--steps", type=int, default=400)
    made.add_argument("--workers", type=int, default=0, help="processes of the data loader")
    made.add_argument("--timeout", type=float, default=120, help="seconds that a collective may take")
    made.add_argument("--width", type=int, default=HIDDEN, help="of the hidden layer")
    made.add_argument("--ddp", action="store_true", help="let DistributedDataParallel average the gradients")
    made.add_argument("--picture", type=int, default=FEATURES, help="numbers in a sample; the network looks at 32")
    made.add_argument("--save-every", type=int, default=10)
    made.add_argument("--tokenizer", default="", help="module of the tokenizer")
    made.add_argument("--spawn", type=int, default=0, help="fork this many ranks on each node")
    made.add_argument("--deed", default="", help="what goes wrong")
    made.add_argument("--guilty", type=int, default=-1, help="on which rank")
    made.add_argument("--at", type=int, default=12, help="at which step")
    return made


def train(local: int, options: argparse.Namespace) -> None:
    """One rank's whole life."""
    rank, world = seat(local, options)
    deed = options.deed if options.guilty in {rank, -1} else ""
    import torch  # noqa: PLC0415 -- takes seconds, and some deeds come before
    import torch.distributed as dist  # noqa: PLC0415
    from torch import nn  # noqa: PLC0415

    torch.set_num_threads(1)
    limit = timedelta(seconds=options.timeout)
    if options.deed == "late":
        come_together(rank, world, options.folder, late=bool(deed))
    dist.init_process_group("gloo", timeout=limit if options.deed == "late" else JOIN_WITHIN)
    torch.manual_seed(20_260)
    network = nn.Sequential(nn.Linear(FEATURES, options.width), nn.Tanh(), nn.Linear(options.width, 1))
    # It takes another second of each rank's start, and ends with a segmentation fault over gloo where
    # TORCH_DISTRIBUTED_DEBUG is DETAIL (PyTorch 2.13: seen).
    model = nn.parallel.DistributedDataParallel(network) if options.ddp else network
    say = print if rank == 0 else _silent
    say(f"world size {world}, {sum(each.numel() for each in model.parameters())} parameters", flush=True)
    first = resume(network, options, say)
    batches = loader(options, deed)
    for step in range(first, options.steps + 1):
        inputs, wanted = next(batches)
        inputs = inputs[:, :FEATURES]
        if step == options.at - 1 and options.deed == "stop":
            # Not before: on a loaded machine a rank may come late to what comes first.
            dist.distributed_c10d._set_pg_timeout(limit)  # noqa: SLF001
        if step == options.at:
            inputs = befall(deed, inputs)
            if options.deed == "barrier":
                dist.monitored_barrier(timeout=limit, wait_all_ranks=True)
        loss = nn.functional.mse_loss(model(inputs), wanted)
        if not math.isfinite(loss.item()):
            raise FloatingPointError(f"Loss is {loss.item()} at step {step}, stopping training")
        model.zero_grad()
        torch.autograd.backward(loss)
        with torch.no_grad():
            for weights in network.parameters():
                gradient: Any = weights.grad
                if not options.ddp:
                    dist.all_reduce(gradient)
                    gradient /= world
                weights.sub_(LEARNING_RATE * gradient)
        mean = loss.detach().clone()
        dist.all_reduce(mean)
        say(f"step {step}/{options.steps} | loss {float(mean) / world:.4f} | lr 2.0e-02", flush=True)
        if step % options.save_every == 0 and rank == 0:
            save(network, step, options.folder)
        time.sleep(0.02)
    dist.destroy_process_group()


def seat(local: int, options: argparse.Namespace) -> tuple[int, int]:
    """Rank and size of the world; tells PyTorch, too, where srun or `--spawn` has started this."""
    environment = os.environ
    if "TORCHELASTIC_RUN_ID" not in environment:
        rank, world = int(environment["SLURM_PROCID"]), int(environment["SLURM_NTASKS"])
        if options.spawn:
            rank, world = rank * options.spawn + local, world * options.spawn
        environment |= {"RANK": str(rank), "WORLD_SIZE": str(world)}
    return int(environment["RANK"]), int(environment["WORLD_SIZE"])


def come_together(rank: int, world: int, folder: Path, *, late: bool) -> None:
    """Wait until all ranks are here, as for a file system; a rank that is late comes no further."""
    (folder / f"here-{rank}").touch()
    while late or not all((folder / f"here-{other}").exists() for other in range(world)):
        time.sleep(0.1)


def loader(options: argparse.Namespace, deed: str) -> Iterator[Any]:
    """Batches without end."""
    import torch  # noqa: PLC0415
    from torch.utils.data import DataLoader, Dataset  # noqa: PLC0415

    class Samples(Dataset[Any]):  # type: ignore[misc,unused-ignore]  # torch is optional
        """Random pictures, and their labels."""

        def __len__(self) -> int:
            return SAMPLES

        def __getitem__(self, index: int) -> Any:
            name = fetch(deed, options.folder) if index == options.at * BATCH else "cat"
            return torch.randn(options.picture), torch.full((1,), encode(name) / len(LABELS))

    while True:
        yield from DataLoader(Samples(), batch_size=BATCH, num_workers=options.workers)


def fetch(deed: str, run: Path) -> str:
    """Get a sample's label; where the deed is the data's, it happens here."""
    match deed:
        case "worker_killed":
            os.kill(os.getpid(), signal.SIGKILL)
        case "worker_raises":
            return "zebra"
        case "shard":
            with gzip.open(run / "shard-00017.jsonl.gz", "rt") as lines:
                return str(json.loads(lines.readlines()[0])["label"])
        case _:
            pass
    return "dog"


def encode(name: str) -> int:
    """Number of a label; one that nobody has foreseen is the user's bug."""
    return LABELS[name]


SIGNALS = {"kill": signal.SIGKILL, "stop": signal.SIGSTOP, "barrier": signal.SIGSTOP, "abort": signal.SIGABRT}


def befall(deed: str, inputs: Any) -> Any:
    """What goes wrong within a step; returns the step's inputs."""
    import torch  # noqa: PLC0415
    import torch.distributed as dist  # noqa: PLC0415

    if deed in SIGNALS:
        os.kill(os.getpid(), SIGNALS[deed])
    match deed:
        case "raise":
            encode("zebra")
        case "shape":
            dist.all_reduce(torch.zeros(3))
        case "operation":
            dist.broadcast(torch.zeros(FEATURES), src=0)
        case "nan":
            return inputs * math.nan
        case "exit":
            sys.exit(3)
        case "segv":
            ctypes.string_at(0)
        case "memory":
            used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
            resource.setrlimit(resource.RLIMIT_AS, (used + OUT_OF_REACH, resource.RLIM_INFINITY))
            return torch.zeros(OUT_OF_REACH)[:BATCH, None]
        case "host_memory":
            return inputs + len([os.urandom(PAGE) for _ in range(4096)])
        case _:
            pass
    return inputs


def save(network: Any, step: int, run: Path) -> None:
    """Write a checkpoint beside, then rename it."""
    import torch  # noqa: PLC0415

    folder = run / "checkpoints"
    folder.mkdir(exist_ok=True)
    fresh = folder / "last.pt.new"
    with fresh.open("wb") as stream:
        torch.save({"step": step, "model": network.state_dict()}, stream)
    fresh.rename(folder / "last.pt")


def resume(network: Any, options: argparse.Namespace, say: Any) -> int:
    """Load the last checkpoint where there is one; return the step that comes next."""
    import torch  # noqa: PLC0415

    file = options.folder / "checkpoints" / "last.pt"
    if not file.exists():
        return 1
    stored = torch.load(file, weights_only=True)
    network.load_state_dict(stored["model"])
    say(f"resumed from {file} at step {stored['step']}", flush=True)
    return int(stored["step"]) + 1


def _silent(*_words: object, **_options: object) -> None:
    """What ranks other than the first say."""


if __name__ == "__main__":
    main()
