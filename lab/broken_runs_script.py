"""The batch script of a broken run. Pure.

Every node gets a host name and an address of its own (UTS and mount namespaces, which need root): the nodes of a lab
cluster are one machine, and what PyTorch prints would name that machine for all of them.
"""

import shlex
import sys
from pathlib import Path

from relight.lab.broken_runs import NODES, RANKS, RANKS_PER_NODE, Kind, Launch
from relight.lab.slurm_conf import node_address

OUTPUT, RANK_OUTPUT = "job.out", "rank-%t.out"
MODULE = "relight.lab.broken_runs_train"
BY_NODE = frozenset({Launch.TORCHRUN, Launch.SPAWN})
"""Launches with one of srun's tasks on each node."""
MINUTES = 6
"""Time limit: what no time-out ends in this time has failed to break."""

# exec keeps srun's task one process, which signals then reach.
_TASK = """\
hostname "$SLURMD_NODENAME"
mount --bind hosts /etc/hosts
{task}
exec nice -n 10 "$@"
"""


def render(kind: Kind, name: str, run: Path, port: int, cgroup: Path | None) -> str:
    """The batch script for `Cluster.submit`; `port` is free for the ranks to meet at."""
    options = [
        f"--job-name={name}",
        f"--nodes={NODES}",
        f"--ntasks-per-node={RANKS_PER_NODE}",
        # Runs side by side would share a node's host name and its time.
        "--exclusive",
        "--no-requeue",
        f"--time={MINUTES}",
        f"--chdir={run}",
        f"--output={run / OUTPUT}",
    ]
    environment = {"PYTHONUNBUFFERED": "1", "MASTER_PORT": str(port), **kind.environment}
    environment |= {"TRAIN": f"{sys.executable} -m {MODULE} --folder={run}"}
    environment |= {"CGROUP": str(cgroup)} if cgroup else {}
    lines = [
        "#!/bin/bash",
        *(f"#SBATCH {option}" for option in options),
        *(f"export {key}={shlex.quote(value)}" for key, value in environment.items()),
        'export MASTER_ADDR=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)',
        kind.before,
        f"srun {kind.srun} {_tasks(kind)} \\",
        "  unshare --mount --uts --propagation private sh task.sh \\",
        f"  {_command(kind)} {kind.arguments}",
    ]
    return "\n".join(line for line in lines if line) + "\n"


def task(kind: Kind) -> str:
    """What `task.sh` in the run folder holds: it makes the node of a task, then becomes the task."""
    return _TASK.format(task=kind.task)


def hosts(nodes: int) -> str:
    """/etc/hosts of every node."""
    return "127.0.0.1 localhost\n" + "".join(f"{node_address(number)} n{number}\n" for number in range(1, nodes + 1))


def _tasks(kind: Kind) -> str:
    tasks = f"--ntasks={NODES} --ntasks-per-node=1" if kind.launch in BY_NODE else f"--ntasks={RANKS}"
    if kind.launch is Launch.FILES:
        return f"{tasks} --output={RANK_OUTPUT}"
    return f"{tasks} --label" if kind.launch in {Launch.LABEL, Launch.SPAWN} else tasks


def _command(kind: Kind) -> str:
    if kind.launch is Launch.TORCHRUN:
        meet = "--rdzv-id=$SLURM_JOB_ID --rdzv-backend=c10d --rdzv-endpoint=$MASTER_ADDR:$MASTER_PORT"
        agent = f"--nnodes={NODES} --nproc-per-node={RANKS_PER_NODE} {meet} {kind.agent}".rstrip()
        return f"{sys.executable} -m torch.distributed.run {agent} -m {MODULE} --folder=$PWD"
    spawn = f" --spawn={RANKS_PER_NODE}" if kind.launch is Launch.SPAWN else ""
    return f"$TRAIN{spawn}"
