"""What the number means that srun prints before a line or in its reports: a rank, or a node's one agent.

With one process a rank (srun) a task is a rank. torchrun and torch.multiprocessing are one task a node and start ranks
themselves: there a task is a node. Source: srun(1), --label.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import islice
from typing import NamedTuple

from relight.attribution.origin import Speaker
from relight.attribution.reading import LogScan
from relight.attribution.sources import Seat

MOST_TASKS = 1 << 15
"""A log may claim any number."""


class Tasks(NamedTuple):
    """What tasks are."""

    are_ranks: bool
    node_of: Mapping[int, str] = {}
    """As srun reports it; of agents also by their place in the allocation."""

    def place(self, who: Speaker) -> Speaker:
        """The speaker with rank or node, where only the task's number stood before the line."""
        if who.task is None:
            return who
        if self.are_ranks:
            return who if who.rank is not None else who._replace(rank=who.task)
        return who if who.node else who._replace(node=self.node_of.get(who.task))


def read_tasks(scans: Sequence[LogScan], seats: Mapping[int, Seat], nodes: Sequence[str], world: int) -> Tasks:
    """Tell what tasks are in these logs; ranks, where nothing tells otherwise."""
    pairs = ((task, node) for scan in scans for text, node in _reports(scan) for task in expand([text]))
    reported = dict(islice(pairs, MOST_TASKS))
    labels = {task for scan in scans for found in scan.found.values() for task in found.tasks}
    most = max([*reported, *labels], default=-1) + 1
    seated = [task for task in reported if task in seats]
    elsewhere = any(seats[task].node != reported[task] for task in seated)
    parents = any(found.parents for scan in scans for found in scan.found.values())
    if not (elsewhere or parents):
        # Fewer tasks than ranks, as many as nodes: it may be either, and is called neither.
        unsure = bool(labels) and not seated and most == len(nodes) < world
        return Tasks(not unsure, reported)
    if most <= len(nodes):
        reported = dict(enumerate(nodes)) | reported
    return Tasks(are_ranks=False, node_of=reported)


def expand(texts: Iterable[str]) -> Iterator[int]:
    """Slurm's `0-2,5` as numbers; of several such texts all, no more than there can be."""
    return islice((task for text in texts for task in _expand(text)), MOST_TASKS)


def _expand(text: str) -> Iterator[int]:
    for part in text.split(","):
        low, _, high = part.partition("-")
        if low.isdigit():
            yield from range(int(low), (int(high) if high.isdigit() else int(low)) + 1)


def _reports(scan: LogScan) -> Iterable[tuple[str, str]]:
    return (pair for found in scan.found.values() for pair in found.reports.items())
