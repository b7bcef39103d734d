"""Order between sources is by clocks that their own lines relate; order within a source is its own."""

from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from relight.attribution.engine import diagnose
from relight.attribution.sources import Context, Seat
from relight.domain.evidence import Interruption

AT = datetime(2026, 11, 30, 9, 0, tzinfo=UTC)
MINUTE = timedelta(minutes=1)
EARLY, LATE = "ValueError: bad batch", "CUDA error: an illegal memory access was encountered"
"""Two causes: were their order not known, the heavier second one would be the verdict."""


def rank_log(rank, said=(), *, ahead=timedelta(0), zone="", start=True, steps=3):
    """What one rank printed: its start, its steps, what it said (minutes after), by a clock that is ahead."""

    def at(minutes):
        return f"{AT + ahead + minutes * MINUTE:%Y-%m-%d %H:%M:%S}{zone}"

    node = f"n{rank + 1}"
    seat = f"rank {rank} -> node {node} local_rank 0 gpu 0"
    return [
        *([f"{at(0)} {seat}"] if start else [seat]),
        *(f"{at(step)} step {step}/1000 | loss 2.5" for step in range(1, steps + 1) if start),
        *(f"{at(minutes)} {text}" for minutes, text in said),
    ]


def sources(job_log, logs):
    """One log a rank, named as srun names them."""
    return [job_log(*lines, name=f"job-7-{rank}.out") for rank, lines in enumerate(logs)]


shifts = st.lists(st.integers(-720, 720).map(lambda minutes: minutes * MINUTE), min_size=4, max_size=4)


@given(shifts, st.permutations(range(4)))
def test_a_clock_that_is_wrong_from_the_start_changes_nothing(job_log, ahead, order):
    """Shifting all stamps of a log, its start among them, and shuffling the logs leaves the verdict as it is."""
    said = [[(20, EARLY)], [(25, LATE)], [], []]
    logs = sources(job_log, [rank_log(rank, said[rank], ahead=ahead[rank]) for rank in range(4)])
    verdict = diagnose([logs[place] for place in order]).verdict
    assert (verdict.signature, verdict.implicated.ranks, verdict.implicated.nodes) == ("PY_EXCEPTION", (0,), ("n1",))


@given(st.data())
def test_logs_written_into_one_file(job_log, data):
    """However lines of ranks are mixed in one file, each rank's own order and clock count."""
    said = [[(20, EARLY)], [(25, LATE)], []]
    left = [[f"[rank{rank}]: {line}" for line in rank_log(rank, said[rank], steps=2)] for rank in range(3)]
    mixed = []
    while any(left):
        rank = data.draw(st.sampled_from([rank for rank in range(3) if left[rank]]))
        mixed.append(left[rank].pop(0))
    verdict = diagnose([job_log(*mixed)]).verdict
    assert (verdict.signature, verdict.implicated.ranks) == ("PY_EXCEPTION", (0,))


@pytest.mark.parametrize(
    ("first", "second", "known"),
    [
        ({"start": False}, {"start": False, "minutes": 25}, True),
        ({"start": False}, {"start": False, "minutes": 10}, False),
        ({"start": False, "zone": "+00:00"}, {"start": False, "minutes": 25}, False),
        ({"start": True}, {"start": True, "minutes": 2}, True),
        ({"start": True}, {"start": True, "minutes": 2, "ahead": -9 * 60 * MINUTE}, True),
    ],
)
def test_unknown_order_is_not_guessed(job_log, first, second, known):
    """Of clocks that nothing relates, stamps within ten minutes have no order, nor one with a zone and one without."""
    minutes = 5 + second.pop("minutes")
    logs = [rank_log(0, [(5, EARLY)], **first), rank_log(1, [(minutes, LATE)], **second)]
    verdict = diagnose(sources(job_log, logs)).verdict
    assert verdict.signature == ("PY_EXCEPTION" if known else "CUDA_ILLEGAL_ACCESS")


@pytest.mark.parametrize(
    "between", [[], ["[rank0]: all quiet"], ["[rank0]: RuntimeError: NCCL communicator was aborted"]]
)
def test_order_in_a_source_is_trusted(job_log, between):
    """A decode error after a time-out of the same process is its echo, whatever stands between; else it is not."""
    timeout = "[rank1]: Watchdog caught collective operation timeout: WorkNCCL(SeqNum=7, OpType=ALLREDUCE, NumelIn=4)"
    decode = "[rank1]: UnicodeDecodeError: 'utf-8' codec can't decode byte 0x93 in position 0: bad"
    signatures = [
        diagnose([job_log(*lines)]).verdict.signature for lines in ([timeout, *between, decode], [decode, timeout])
    ]
    assert signatures == ["NCCL_WATCHDOG_TIMEOUT", "DATA_DECODE"]


def watchdog(minutes, *, waited=10, ahead=timedelta(0)):
    """A watchdog's line."""
    text = f"ran for {waited * 60_000} milliseconds before timing out"
    return f"{AT + minutes * MINUTE + ahead:%Y-%m-%d %H:%M:%S} Watchdog caught collective operation timeout: {text}"


def test_the_stall_is_dated_by_most_clocks(job_log):
    """One clock that runs behind does not date the stall."""
    logs = [[watchdog(20, ahead=-40 * MINUTE if rank == 3 else timedelta(0))] for rank in range(12)]
    verdict = diagnose(sources(job_log, logs)).verdict
    assert "the stall began 09:10:00" in verdict.summary


XID = "NVRM: Xid (PCI:0000:1b:00): 79, pid=7, GPU has fallen off the bus."


@pytest.mark.parametrize(
    ("minutes", "ahead", "counts"),
    [(10, 0, True), (9.5, 0, True), (3, 0, False), (30, 20, True), (13, 10, False), (19.9, 0, True)],
)
def test_kernel_lines_around_the_start_of_the_stall(job_log, kernel_log, minutes, ahead, counts):
    """From a minute before the stall began: what a node's kernel says is the cause, by that node's clock."""
    skew = ahead * MINUTE
    logs = sources(job_log, [rank_log(0, ahead=skew), rank_log(1), rank_log(2)])
    logs.append(job_log(watchdog(20), *rank_log(1)[:1], name="main.out"))
    logs.append(kernel_log("n1", f"{(AT + minutes * MINUTE).isoformat()} n1 kernel: {XID}"))
    context = Context(nodes=("n1", "n2", "n3"), interrupted_at=AT + 20 * MINUTE, interruption=Interruption.CRASH)
    diagnosis = diagnose(logs, context)
    assert (diagnosis.verdict.signature == "XID_79") is counts
    # Draining is by the platform's clock alone: what a job prints moves no clock there.
    assert bool(diagnosis.verdict.drain_nodes) is (minutes == 19.9)


def test_time_limit_after_a_long_gap_is_a_hang(job_log):
    """No step for long, then the time limit: it hung. Steps up to the limit: it trained until then."""

    def ended(minutes):
        end = f"{AT + minutes * MINUTE:%Y-%m-%dT%H:%M:%S}"
        return diagnose(
            [job_log(*rank_log(0), f"slurmstepd: error: *** STEP 7.0 ON n1 CANCELLED AT {end} DUE TO TIME LIMIT ***")],
        ).verdict.signature

    assert (ended(4), ended(300)) == ("SLURM_TIME_LIMIT", "HANG_NO_LOG")


def test_a_rank_map_places_unlabelled_logs(job_log):
    """The number in a log's name is its rank where nothing else says so."""
    context = Context(
        nodes=("n1", "n2"), rank_map={rank: Seat(node=f"n{rank // 2 + 1}", gpu=str(rank % 2)) for rank in range(4)}
    )
    logs = [
        job_log(
            "all quiet" if rank != 2 else "RuntimeError: CUDA error: uncorrectable ECC error encountered",
            name=f"j-{rank}.err",
        )
        for rank in range(4)
    ]
    who = diagnose(logs, context).verdict.implicated
    assert (who.ranks, who.nodes, who.gpus) == ((2,), ("n2",), ("0",))
