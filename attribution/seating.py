"""Where ranks run: from start-up lines of all logs and from Slurm."""

from collections.abc import Sequence

from relight.attribution.reading import LogScan
from relight.attribution.sources import Context, Seat
from relight.attribution.tasks import MOST_TASKS


def seated(scans: Sequence[LogScan], context: Context) -> tuple[dict[int, Seat], int]:
    """The seat of each rank, and how many ranks there are (0 where nothing tells).

    NCCL numbers ranks anew in each group: only placements of the largest group count, and none where a launcher has
    placed more ranks than that.
    """
    world = max((scan.nranks for scan in scans), default=0)
    launched: dict[int, Seat] = {}
    grouped: dict[int, Seat] = {}
    for scan in scans:
        if scan.nranks == 0:
            launched |= scan.seats
        elif scan.nranks == world:
            grouped |= scan.seats
    told = launched if len(launched) > world else launched | grouped
    seats = {rank: seat for rank, seat in told.items() if rank < MOST_TASKS} | dict(context.rank_map)
    return seats, max(world if world <= MOST_TASKS else 0, max(seats, default=-1) + 1)
