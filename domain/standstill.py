"""Whether an attempt stands still in all that the agents of its nodes can see. Pure.

A first checkpoint or evaluation that no line announces prints no steps either, so silence after a step where one may
be due gets ten minutes (`recurrence.may_begin`). But it does something: it writes, computes, waits for a file system,
or stands in a function that saves. An attempt of which no rank does anything of that kind hangs.

Two equal stacks are not enough: a loop that waits for its GPU shows the same line again and again, and a function may
have any name. CPU time that stands still is not enough either: so it does while all wait for rank 0, and rank 0 for its
storage, in one long write that moves no counter (seen). So all must agree, and what cannot be seen is no standstill.
Where there are no agents the patience stays: that CPU time by Slurm, or power, fell is seen of slow storage as well.

Sources: the names are of stacks that the real py-spy showed of torch 2.13, transformers 5.24, Lightning 2.6,
safetensors 0.8, h5py 3.16 and numpy 2 while they saved, evaluated, compiled and loaded, and of the libraries that send
checkpoints elsewhere; what is counted is of proc(5); that a collective spins at little power, of `power`.
"""

import re
from collections.abc import Sequence
from datetime import datetime
from typing import NamedTuple

from relight.domain.evidence import Evidence, Source
from relight.domain.reports import ProcessStack, Usage
from relight.domain.stacks import LEAST_APART, Pair, place

STANDS_STILL = "STANDS_STILL"
"""Signature of the evidence that no rank does anything."""

RANK_CPU = 0.05
"""CPU seconds a second that a rank may use and still stand still: watchdogs of NCCL and of loggers wake up often."""
OTHERS_CPU = 0.1
"""That the job's other processes on a node may use, all together: launchers do, data loaders at work use more."""
STILL_BYTES = 256 << 10
"""Bytes a second that may be moved on a node: loggers send some. No checkpoint is written as slowly."""

_TRAINS = (
    "torch/utils/checkpoint.py",
    "_checkpoint/checkpoint_wrapper.py",
    "activation_checkpointing/checkpointing.py",
    "tensor_parallel/random.py",
    "transformers/modeling_layers.py",
    "torch/_dynamo/eval_frame.py",
)
"""Of checkpoints of activations (PyTorch, FSDP, DeepSpeed, Megatron-LM, transformers) and compiled code that runs."""
_NAMES = re.compile(
    r"sav(e|ing)|checkpoint|ckpt|snapshot|dump|writ|flush|fsync|persist|serializ|pickl|state_dict|consolidat|upload"
    r"|download|push|export|archiv|backup|copy|eval|valid|val(_|\b)|predict|infer|generat|sampl|metric|plot|render|test"
    r"|load_(checkpoint|model|weight)|restor|resum|compil|cuda_?graph|tokeniz|retry|backoff",
    re.IGNORECASE,
)
"""In names of functions and classes: of what may take long without a step."""
_FILES = re.compile(
    r"checkpoint|ckpt|serialization|safetensors|h5py|hdf5|zarr|tensorstore|orbax|numpy/lib/|pandas/|pyarrow|datasets/"
    r"|(^|/)(shutil|zipfile|tarfile|gzip|bz2|lzma|pickle|tempfile|pathlib|subprocess|threading|queue|socket|ssl)\.py"
    r"|multiprocessing/(connection|queues|pool|popen_\w+|synchronize|managers)\.py|concurrent/futures|asyncio/|http/"
    r"|urllib|requests/|httpx|aiohttp|grpc|fsspec|s3fs|gcsfs|boto|google/cloud|azure/|huggingface_hub|wandb|mlflow"
    r"|tensorboard|comet_ml|neptune|clearml|cuda/graphs|_dynamo/|_inductor|_functorch/_aot|triton/|sympy/|importlib|eval|valid",
    re.IGNORECASE,
)
"""In names of files: of libraries that write, send, compile, or wait for their own threads and processes."""
_LOADS = re.compile(r".*DataLoaderIter\.\w*(get|next)_data \(torch/utils/data/dataloader\.py:\d+\)")
"""Where a rank waits for its data loaders: whether these work shows in what the job's other processes use."""
_FRAME = re.compile(r"(.*) \((.*):\d+\)")


class Gpus(NamedTuple):
    """What an attempt's GPUs do since it fell under suspicion, as far as that is known (`power`)."""

    work: bool = False
    """One still does what it did."""
    fell: bool = False
    """The power of nearly all fell away."""


def stands_still(pairs: Sequence[Pair], asked: int, gpus: Gpus, now: datetime) -> Evidence | None:
    """The evidence that no rank of an attempt does anything; None where one does, or where that cannot be seen.

    Args:
        pairs: of the nodes that have answered twice.
        asked: how many nodes the attempt has.
        gpus: what its GPUs do.
        now: when this is judged.
    """
    if gpus.work or len(pairs) < asked:
        return None
    ranks: list[int] = []
    for pair in pairs:
        still = _still_ranks(pair, may_spin=gpus.fell)
        if still is None:
            return None
        ranks += still
    # None is missing, and none is claimed by two processes.
    if not ranks or sorted(ranks) != list(range(len(ranks))):
        return None
    seconds = min(pair.second.at - pair.first.at for pair in pairs).total_seconds()
    who = f"all {len(ranks)} ranks" if len(ranks) > 1 else "the only rank"
    cpu = "spins in a collective at little power or uses no CPU" if gpus.fell else "uses CPU"
    text = f"{who} did nothing for {seconds:.0f} s: none of the job's processes {cpu}, moves data or waits for a file"
    return Evidence(source=Source.ACTIVITY, text=text, signature=STANDS_STILL, at=now)


def _still_ranks(pair: Pair, *, may_spin: bool) -> list[int] | None:
    """The ranks on a node where the job does nothing; None where it does, or where that is not known."""
    first, second = pair.first, pair.second
    seconds = (second.at - first.at).total_seconds()
    before = {stack.pid: stack for stack in first.stacks}
    same = before.keys() == {stack.pid for stack in second.stacks} and not first.problem and not second.problem
    if seconds < LEAST_APART.total_seconds() or not same:
        return None
    ranks, others_cpu = [], 0.0
    for stack in second.stacks:
        cpu = _cpu(before[stack.pid], stack)
        if cpu is None:
            return None
        if stack.rank is None:
            others_cpu += cpu
        elif _is_still(before[stack.pid], stack, cpu / seconds, may_spin=may_spin):
            ranks.append(stack.rank)
        else:
            return None
    return ranks if _moves_nothing(first.usage, second.usage, others_cpu, seconds) else None


def _moves_nothing(before: Usage | None, after: Usage | None, others_cpu: float, seconds: float) -> bool:
    """Whether the job's processes move no data and wait for none, and those that are no ranks do not compute."""
    if before is None or after is None or before.processes != after.processes or before.in_files or after.in_files:
        return False
    used, moved = after.others_cpu_s - before.others_cpu_s, after.moved_bytes - before.moved_bytes
    return 0 <= used < OTHERS_CPU * seconds - others_cpu and 0 <= moved < STILL_BYTES * seconds


def _cpu(before: ProcessStack, after: ProcessStack) -> float | None:
    """CPU seconds that a process has used between two looks; None where that is not known."""
    if before.cpu_s is None or after.cpu_s is None or after.cpu_s < before.cpu_s:
        return None
    return after.cpu_s - before.cpu_s


def _is_still(before: ProcessStack, after: ProcessStack, cpu: float, *, may_spin: bool) -> bool:
    if before.problem or after.problem or not after.frames or before.frames != after.frames or at_work(after.frames):
        return False
    return cpu < RANK_CPU or (may_spin and place(after.frames).waits > 0)


def at_work(frames: Sequence[str]) -> bool:
    """Whether a stack is within what may take long without a step. Below a collective its inside tells nothing."""
    outermost = max((n for n, frame in enumerate(frames) if _LOADS.fullmatch(frame)), default=0)
    where = place(frames)
    inside = max(outermost, frames.index(where.frames[0]) if where.waits else 0)
    return any(_may_take_long(frame) for frame in frames[inside:])


def _may_take_long(frame: str) -> bool:
    parts = _FRAME.fullmatch(frame)
    name, file = (parts[1], parts[2]) if parts else (frame, "")
    return not file.endswith(_TRAINS) and bool(_NAMES.search(name) or _FILES.search(file))
