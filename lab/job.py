"""The training job: what is submitted, as a batch script."""

import shlex
from datetime import timedelta
from enum import StrEnum
from pathlib import Path

from pydantic import BaseModel, ConfigDict, Field, field_validator

from relight.lab.runtime import OURS, Runtime


class Engine(StrEnum):
    """What computes and what carries the gradients between ranks."""

    AUTO = "auto"
    """PyTorch where it is installed, else numpy."""
    TORCH = "torch"
    """PyTorch DDP over gloo."""
    NUMPY = "numpy"
    """numpy, and collectives of our own over TCP."""


class OpenMode(StrEnum):
    """What becomes of a job's output file at its next start."""

    APPEND = "append"
    TRUNCATE = "truncate"


class JobSpec(BaseModel):
    """A training job."""

    model_config = ConfigDict(frozen=True, arbitrary_types_allowed=True)

    run: Path
    """Run folder: checkpoints, faults.json, output. Absolute, and writable for the job's owner."""
    name: str = "train"
    nodes: int = Field(default=2, ge=1)
    tasks_per_node: int = Field(default=2, ge=1)
    gpus_per_node: int = Field(default=8, ge=0)
    engine: Engine = Engine.AUTO
    steps: int = Field(default=100_000, ge=1)
    step_time: timedelta = timedelta(seconds=0.2)
    busy: float = Field(default=0.0, ge=0, le=1)
    """Share of the step time in which each rank uses the CPU; the rest it sleeps."""
    checkpoint_every: int = Field(default=20, ge=1)
    """Steps between two checkpoints."""
    sharded: bool = False
    """Whether checkpoints are folders in the layout of transformers, of which the newest is loaded unchecked."""
    requeue: bool = True
    open_mode: OpenMode | None = None
    """None: as the cluster has it (truncate, Slurm's default)."""
    time_limit: timedelta | None = None
    partition: str | None = None
    comment: str | None = None
    output: str = "slurm-%j.out"
    """Output file, relative to the run folder."""
    progress_file: bool = False
    """Also write progress.jsonl in the run folder."""
    label: bool = False
    """Have srun put each line's rank before it (`3: ...`)."""
    options: tuple[str, ...] = ()
    """Further options of sbatch, such as `--array=0-3`."""
    runtime: Runtime = OURS
    """The Python to run; `Cluster.runtime` where the owner is another user."""

    @field_validator("name", "comment", "output", "partition")
    @classmethod
    def _one_line(cls, text: str | None) -> str | None:
        if text is not None and "\n" in text:
            raise ValueError("an #SBATCH option ends at the line's end")
        return text


def render(spec: JobSpec) -> str:
    """Return the batch script, for `Cluster.submit`."""
    options = "".join(f"#SBATCH {option}\n" for option in (*_options(spec), *spec.options))
    path = ":".join(str(folder) for folder in spec.runtime.python_path)
    exports = "export PYTHONUNBUFFERED=1\n" + (f"export PYTHONPATH={shlex.quote(path)}\n" if path else "")
    tasks = f"--nodes={spec.nodes} --ntasks={spec.nodes * spec.tasks_per_node} --ntasks-per-node={spec.tasks_per_node}"
    label = " --label" if spec.label else ""
    # All nodes share this machine's cores: the ranks give way to Slurm's daemons, or a ping that is answered late makes
    # a node DOWN.
    return f"#!/bin/bash\n{options}\n{exports}\nsrun --kill-on-bad-exit=1{label} {tasks} \\\n  {_command(spec)}\n"


def _options(spec: JobSpec) -> list[str]:
    options = [
        f"--job-name={_quoted(spec.name)}",
        f"--nodes={spec.nodes}",
        f"--ntasks-per-node={spec.tasks_per_node}",
        f"--chdir={_quoted(str(spec.run))}",
        f"--output={_quoted(str(spec.run / spec.output))}",
        "--requeue" if spec.requeue else "--no-requeue",
    ]
    if spec.gpus_per_node:
        options.append(f"--gres=gpu:{spec.gpus_per_node}")
    if spec.open_mode is not None:
        options.append(f"--open-mode={spec.open_mode}")
    if spec.time_limit is not None:
        # Slurm counts whole minutes and rounds up.
        options.append(f"--time={max(1, -(-int(spec.time_limit.total_seconds()) // 60))}")
    if spec.partition is not None:
        options.append(f"--partition={_quoted(spec.partition)}")
    if spec.comment is not None:
        options.append(f"--comment={_quoted(spec.comment)}")
    return options


def _command(spec: JobSpec) -> str:
    words = [
        "nice",
        "-n",
        "10",
        str(spec.runtime.python),
        "-m",
        "relight.lab.trainer",
        f"--run={spec.run}",
        f"--engine={spec.engine}",
    ]
    words += [f"--steps={spec.steps}", f"--step-time={spec.step_time.total_seconds():g}"]
    if spec.busy:
        words.append(f"--busy={spec.busy:g}")
    words.append(f"--checkpoint-every={spec.checkpoint_every}")
    if spec.sharded:
        words.append("--layout=sharded")
    if spec.progress_file:
        words.append(f"--progress-file={spec.run}/progress.jsonl")
    return " ".join(shlex.quote(word) for word in words)


def _quoted(text: str) -> str:
    """Quote for an #SBATCH line: sbatch knows double quotes and a backslash before one, and no shell."""
    if text and all(sign.isalnum() or sign in "-_./%+:@" for sign in text):
        return text
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'
