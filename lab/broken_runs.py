"""Kinds of failure that real PyTorch runs are broken by, and the right answer to each, known from the injector.

Each kind is one job of eight ranks on two nodes: how it is launched, what breaks it, and what a diagnosis of its logs
must say. The kinds are data (`broken_runs.yaml`). What PyTorch, gloo, torchelastic, Slurm and the kernel print of it is
real.
"""

from collections.abc import Mapping
from enum import StrEnum
from functools import cache
from importlib import resources

import yaml
from pydantic import BaseModel, ConfigDict, Field

from relight.domain.diagnosis import Action, Category

NODES, RANKS_PER_NODE = 2, 4
RANKS = NODES * RANKS_PER_NODE


class Launch(StrEnum):
    """How the ranks are started, and so what stands before their lines."""

    LABEL = "label"
    """`srun --label`: one file, each line with its task before it."""
    PLAIN = "plain"
    """`srun`: one file, lines as printed."""
    FILES = "files"
    """`srun --output`: a file for each rank beside the job's own."""
    TORCHRUN = "torchrun"
    """An agent on each node; one file, lines as printed."""
    SPAWN = "spawn"
    """`torch.multiprocessing`: a process on each node that forks its ranks; one file, with srun's labels, which number
    nodes here and not ranks."""


class Ends(StrEnum):
    """What ends the job."""

    ITSELF = "itself"
    POWER = "power"
    """The guilty node's power is cut once training runs."""
    CANCEL = "cancel"
    """Its user cancels it once training runs."""


class Kind(BaseModel):
    """One way to break a run, and the truth about it."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    told: str
    """What is done, for a person."""
    launch: Launch
    category: Category
    action: Action
    repeats: Action
    """The right answer when the next attempt ends the same way."""
    rank: int | None = Field(default=None, ge=0, lt=RANKS)
    """The guilty one."""
    node: int | None = Field(default=None, ge=0, lt=NODES)
    """The guilty one, by its place in the allocation, where no single rank is."""
    arguments: str = ""
    """Of the training script."""
    before: str = ""
    """Shell of the batch script, in the run folder, before the ranks start. `$TRAIN` runs the training script alone."""
    task: str = ""
    """Shell before each of srun's tasks, in a mount namespace of its own, in the run folder."""
    srun: str = "--kill-on-bad-exit=1"
    """Options of srun that say what becomes of the others when a task fails."""
    agent: str = ""
    """Further options of torchrun."""
    environment: Mapping[str, str] = {}
    ends: Ends = Ends.ITSELF
    cgroup: bool = False
    """Whether it needs a memory cgroup: `task` finds it as `$CGROUP`."""

    @property
    def guilty_node(self) -> int | None:
        """Place of the guilty node in the allocation; None where nobody is guilty."""
        return self.node if self.rank is None else self.rank // RANKS_PER_NODE

    def who(self, nodes: tuple[str, ...]) -> str:
        """The guilty ones, in the words of a label; `nodes` are the job's."""
        place = self.guilty_node
        where = "" if place is None else f"node {nodes[place]}"
        return f"rank {self.rank} on {where}" if self.rank is not None else where or "none"


@cache
def kinds() -> Mapping[str, Kind]:
    """All kinds, by name."""
    text = resources.files("relight.lab").joinpath("broken_runs.yaml").read_text("utf-8")
    return {name: Kind.model_validate(entry) for name, entry in yaml.safe_load(text).items()}
