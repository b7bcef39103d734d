"""A SIMULATED Slurm cluster and training job in place of the real ones, where Slurm cannot be installed.

Temporal, the controller worker and all that it does stay real. The simulation lives in the worker's process
(`simulated_worker.py`) and listens on a Unix socket; here is the demo's side of it.
"""

import json
import signal
import socket
import sys
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from relight.lab import faults, temporal
from relight.lab.cluster import Cluster
from relight.lab.faults import Fault, Injection, Rank, RankNotFoundError, Scene
from relight.lab.processes import Process
from relight.lab.scenario import TASKS_PER_NODE
from relight.lab.stack import Stack, StackSpec

LABEL = "[simulated] "
"""Stands before each line that the simulated demo prints."""
TITLE = "Relight demo (SIMULATED Slurm cluster and training job: nothing here is a real Slurm)"
FIRST_PID = 5_000_000
"""Linux goes up to 4194304: the PIDs of pretended ranks are nobody's."""
SOCKET = "simulated.sock"
ANSWERS_WITHIN_S = 10


def ask(folder: Path, method: str, *arguments: object) -> Any:
    """Call a method of the `World` that listens in this folder."""
    with socket.socket(socket.AF_UNIX) as line:
        line.settimeout(ANSWERS_WITHIN_S)
        line.connect(str(folder / SOCKET))
        line.sendall(json.dumps([method, arguments]).encode() + b"\n")
        with line.makefile() as answer:
            return json.loads(answer.readline())


class SimulatedCluster(Cluster):
    """What the demo needs of a cluster."""

    def start(self) -> None:
        """Make the folders; the cluster itself begins with the worker."""
        nodes = [self.folder / "nodes" / name for name in self.spec.node_names]
        for folder in (self.work_folder(), self.folder / "etc", *nodes):
            folder.mkdir(parents=True)
        for node in nodes:
            (node / "kern.log").touch()

    def submit(self, script: str, *sbatch_arguments: str, user: str | None = None) -> int:
        """Submit the text of a batch script and return the job's id."""
        del sbatch_arguments, user
        return int(ask(self.folder, "submit", script))

    def job_field(self, job_id: int | str, field: str) -> str | None:
        """Return one field of a job, called as in `scontrol show job`."""
        fields: dict[str, str] = ask(self.folder, "job", job_id)
        return fields.get(field)

    def node_states(self) -> dict[str, str] | None:
        """Return each node's state."""
        return dict(ask(self.folder, "nodes"))

    def kill_node(self, node: str) -> None:
        """End a node as a power cut does."""
        ask(self.folder, "kill_node", node)


class SimulatedProcess(Process):
    """A rank's pretended process."""

    folder: Path
    rank: int

    def signal(self, number: signal.Signals) -> bool:
        """Tell the simulation; no process is signalled."""
        ask(self.folder, "signal", self.rank, int(number))
        return True


class SimulatedScene(Scene):
    """A running job of a simulated cluster."""

    def rank(self, number: int) -> Rank:
        """Return a rank; RankNotFoundError when the job has none of that number."""
        nodes = (self.cluster.job_field(self.job_id, "NodeList") or "").split(",")
        spots = [(node, local) for node in nodes for local in range(TASKS_PER_NODE)]
        if number >= len(spots):
            raise RankNotFoundError(f"job {self.job_id} has no rank {number}")
        node, local = spots[number]
        process = SimulatedProcess(pid=FIRST_PID + number, started=0, folder=self.cluster.folder, rank=number)
        return Rank(rank=number, node=node, local_rank=local, gpu=local, process=process)


def inject(cluster: Cluster, job_id: int, fault: Fault) -> Injection:
    """Inflict a fault on a running job, by the fault's own code; see `faults.inject`."""
    scene = SimulatedScene(**vars(faults.look_at(cluster, job_id)))
    at = datetime.now(UTC)
    where, rank = fault.inflict(scene)
    return Injection(job_id=job_id, fault=str(fault), node=where, rank=rank.rank if rank else None, pid=None, at=at)


class SimulatedStack(Stack):
    """A simulated cluster under Relight's care: the same settings, files and end as the real one's."""

    def __init__(self, folder: Path) -> None:
        """Describe it; nothing happens until `start`."""
        super().__init__(StackSpec(folder=folder, cluster_name="simulated"))
        self.cluster = SimulatedCluster(self.cluster.spec)

    def start(self, say: Callable[[str], None] = lambda _text: None) -> None:
        """Start Temporal and the worker; on failure or interruption nothing is left running."""
        try:
            self.cluster.start()
            self.temporal = temporal.start(self.folder / "temporal")
            say(f"a real Temporal server, its web UI at {self.temporal.web_ui}")
            self.start_worker()
            say(f"Relight's controller worker, in it a SIMULATED Slurm: {self.spec.nodes} nodes, 8 GPUs each")
        except BaseException:
            self.stop()
            raise

    def _command(self) -> list[str]:
        """The worker that holds the simulation."""
        folder, nodes = self.cluster.folder, self.cluster.spec.node_names
        return [sys.executable, "-m", "relight.lab.simulated_worker", str(folder / SOCKET), *nodes]
