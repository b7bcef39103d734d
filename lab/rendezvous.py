"""Who a rank is, and where the ranks of one attempt of a job meet."""

import json
import os
import re
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from relight.lab.slurm_conf import node_address

PATIENCE_S = 120.0


@dataclass(frozen=True)
class Place:
    """One rank of one attempt of a job, as srun tells it."""

    rank: int = 0
    world: int = 1
    local_rank: int = 0
    node: str = "localhost"
    gpu: str = "0"
    job_id: str = "local"
    attempt: int = 0
    """SLURM_RESTART_COUNT, which Slurm leaves out the first time."""
    launch: str = "0"
    """The port of this attempt's srun. A new cluster counts job ids from 1 again; this keeps its runs apart."""

    @classmethod
    def from_environment(cls, environment: Mapping[str, str]) -> "Place":
        """Read srun's variables; without them it is the only rank of a job called `local`."""
        local_rank = int(environment.get("SLURM_LOCALID", "0"))
        gpus = environment.get("CUDA_VISIBLE_DEVICES", "").split(",")
        return cls(
            rank=int(environment.get("SLURM_PROCID", "0")),
            world=int(environment.get("SLURM_NTASKS", "1")),
            local_rank=local_rank,
            node=environment.get("SLURMD_NODENAME", "localhost"),
            gpu=gpus[local_rank] if local_rank < len(gpus) and gpus[0] else str(local_rank),
            job_id=environment.get("SLURM_JOB_ID", "local"),
            attempt=int(environment.get("SLURM_RESTART_COUNT", "0")),
            launch=environment.get("SLURM_STEP_LAUNCHER_PORT", "0"),
        )

    @property
    def address(self) -> str:
        """The address of this rank's node: in the lab, nI is 127.0.1.I."""
        number = re.fullmatch(r"n(\d+)", self.node)
        return node_address(int(number[1])) if number else "127.0.0.1"

    def __str__(self) -> str:
        """Return the line by which rank 0 tells where each rank runs."""
        return f"rank {self.rank} -> node {self.node} local_rank {self.local_rank} gpu {self.gpu}"


def publish(run: Path, place: Place, port: int) -> None:
    """Tell the other ranks where rank 0 listens: atomically, and under a name that no other attempt has."""
    file = _file(run, place)
    file.parent.mkdir(exist_ok=True)
    fresh = file.with_name(f".{file.name}.{os.getpid()}")
    fresh.write_text(json.dumps({"address": place.address, "port": port}))
    fresh.rename(file)


def look_up(run: Path, place: Place) -> tuple[str, int]:
    """Return where rank 0 of this attempt listens, once it has told; RuntimeError after two minutes."""
    file, deadline = _file(run, place), time.monotonic() + PATIENCE_S
    while not file.exists():
        if time.monotonic() > deadline:
            raise RuntimeError(f"[rank {place.rank}] rendezvous timed out after {PATIENCE_S:g} s: rank 0 is not there")
        time.sleep(0.02)
    found = json.loads(file.read_text())
    return found["address"], found["port"]


def _file(run: Path, place: Place) -> Path:
    return run / "rendezvous" / f"{place.job_id}.{place.attempt}.{place.launch}"
