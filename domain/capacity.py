"""Whether enough nodes are left for a job's next attempt, and how long it may wait for them. Pure.

It only tells: which nodes the job gets, and when, is Slurm's to decide.
"""

from collections.abc import Collection, Iterable, Sequence
from datetime import datetime

from relight.domain.slurm import JobRecord, JobState, NodeRecord, NodeState


def usable(record: JobRecord, nodes: Iterable[NodeRecord]) -> frozenset[str]:
    """The nodes of its partition that Slurm could start the job on, now or once running work ends.

    Where a node's partitions are not known it counts, too: nothing is said of a lack that may be none.
    """
    mine = {record.partition} - {""}
    return frozenset(n.name for n in nodes if n.eligible and (not mine or not n.partitions or mine & set(n.partitions)))


def fitting(wanted: Sequence[str], left: Collection[str], needed: int) -> tuple[str, ...]:
    """As many of the nodes, from the first on, as can be kept out while enough are left.

    Args:
        wanted: nodes to keep out, the best proven first.
        left: nodes that could run the job without that.
        needed: how many it needs. Where fewer are left anyway, it waits for others, and all of them may be kept out.
    """
    free = set(left)
    kept = list(wanted)
    while len(free) >= needed and len(free - set(kept)) < needed:
        kept.pop()
    return tuple(kept)


def told(
    record: JobRecord,
    nodes: Sequence[NodeRecord],
    jobs: Iterable[JobRecord],
    excluded: Collection[str],
    now: datetime,
) -> str:
    """What a person should know of the room for the job's next attempt; empty where enough nodes are free.

    Args:
        record: the job.
        nodes: all nodes, freshly read.
        jobs: all jobs: by their time limits nodes come free.
        excluded: nodes that it keeps away from.
        now: Slurm's time.
    """
    needed, could = record.node_count, usable(record, nodes) - set(excluded)
    if len(could) < needed:
        return f"it waits for nodes: {len(could)} of the {needed} that it needs are in service"
    taken = [n.name for n in nodes if n.name in could and n.state is NodeState.ALLOCATED]
    busy: dict[str, datetime | None] = dict.fromkeys(taken, now)
    free = len(could) - len(busy)
    for job in jobs:
        if job.state is JobState.RUNNING and job.job_id != record.job_id:
            end = job.start_time + job.time_limit if job.start_time and job.time_limit else None
            for node in job.nodes:
                known = busy.get(node)
                if node in busy:
                    busy[node] = max(end, known) if end and known else None
    # A node on which nothing but the job itself runs comes free with it.
    ends = [end for end in busy.values() if end is not None]
    free += sum(end <= now for end in ends)
    if free >= needed:
        return ""
    later = sorted(end for end in ends if end > now)
    missing = needed - free
    if len(later) < missing:
        return f"it may wait for running jobs: {missing} of its {needed} nodes are taken, some without a time limit"
    return f"it may wait for running jobs, by their time limits until {later[missing - 1]:%Y-%m-%d %H:%M} UTC"
