"""Where a job's ranks are, and what they leave, as its batch script tells it."""

import re
from collections.abc import Iterator

from relight.domain.attempts import Attempt
from relight.domain.base import below
from relight.domain.batch_script import Command, commands

DUMP_VARIABLES = ("TORCH_FR_DUMP_TEMP_FILE", "TORCH_NCCL_DEBUG_INFO_TEMP_FILE")
"""What a rank's flight recorder is dumped to, the rank's number following; the second is the older name. Source:
PyTorch's tutorial on the flight recorder."""
MOST_DUMPS = 4096
_GPUS = re.compile(r"gpu(?::[^:,]*[^:,\d][^:,]*)?(?::(\d+))?")
_SPREADS = ("-n", "--ntasks", "-N", "--nodes", "-m", "--distribution", "-w", "--nodelist", "-x", "--exclude")
_SPREADS_TOO = ("-r", "--relative", "--het-group", "--multi-prog", "--ntasks-per-node", "--arbitrary", "--hostfile")


def rank_nodes(attempt: Attempt) -> dict[int, str]:
    """The node of each rank where each task of the job's allocation is one rank; empty where that is not plain.

    Slurm fills one node after the other with an even share of the tasks. Source: srun's manual page, --distribution
    (block, the default). Anything in the script that may spread them otherwise makes it unknown.
    """
    record = attempt.record
    tasks, nodes = record.task_count, record.nodes
    each, over = divmod(tasks, len(nodes)) if nodes else (0, 0)
    launches = [command.words for command in _lines(attempt) if "srun" in _names(command)]
    if over or each < 2 or len(launches) != 1 or "SLURM_DISTRIBUTION" in (attempt.script or ""):  # noqa: PLR2004 - one task a node is a launcher
        return {}
    if any(word.startswith((*_SPREADS, *_SPREADS_TOO)) for word in launches[0]):
        return {}
    return {rank: nodes[rank // each] for rank in range(tasks)}


def dump_files(attempt: Attempt) -> dict[int, str]:
    """By rank, the file to which its flight recorder is dumped, below the working directory; empty where unknown."""
    record = attempt.record
    if not record.work_dir:
        return {}
    prefix = None
    for command in _lines(attempt):
        prefix = next((command.known[name] for name in DUMP_VARIABLES if name in command.known), prefix)
        if prefix and command.moved and not prefix.startswith("/"):
            return {}
    path = below(record.work_dir, prefix) if prefix else None
    gpus = sum(int(found[1] or 1) for found in _GPUS.finditer(record.gres_per_node))
    most = max(record.task_count, gpus * len(record.nodes))  # a launcher's task stands for all ranks of its node
    return {rank: f"{path}{rank}" for rank in range(min(most, MOST_DUMPS))} if path else {}


def _lines(attempt: Attempt) -> Iterator[Command]:
    return commands(attempt.script or "", attempt.record)


def _names(command: Command) -> set[str]:
    return {word.rpartition("/")[2] for word in command.words}
