"""What stands beside the verdict: the lines around it, echoes by kind, ranks, and what would change it."""

import gzip
import io
from functools import partial

import pytest

from relight.attribution.engine import diagnose
from relight.attribution.excerpt import AFTER, BEFORE
from relight.attribution.explain import MOST_RANKS
from relight.attribution.sources import Context, LogSource, Recorded, Seat
from relight.domain.diagnosis import Diagnosis
from relight.domain.evidence import Interruption, Source

ECC = "[rank5]: RuntimeError: CUDA error: uncorrectable ECC error encountered"
WATCHDOG = (
    "[rank{rank}]:[E1130 09:31:00.000 ProcessGroupNCCL.cpp:616] [PG ID 0 PG GUID 0(default_pg) Rank {rank}] Watchdog "
    "caught collective operation timeout: WorkNCCL(SeqNum=40, OpType=ALLREDUCE, NumelIn=1, NumelOut=1, "
    "Timeout(ms)=600000) ran for 600001 milliseconds before timing out."
)


def source(data, name="slurm-7.out"):
    """A job's output made of bytes."""
    return LogSource(name, Source.JOB_LOG, None, partial(io.BytesIO, data))


@pytest.mark.parametrize("pack", [bytes, gzip.compress], ids=["plain", "gzip"])
@pytest.mark.parametrize("before", [0, 2, 300_000], ids=["at the beginning", "near it", "megabytes into it"])
def test_the_lines_around_the_cause_are_shown(pack, before):
    """With their numbers, also where the log is read in many blocks."""
    lines = [f"line {number}" for number in range(1, before + 1)] + [ECC] + ["after"] * 20
    found = diagnose([source(pack("\n".join(lines).encode()))])
    first = max(1, before + 1 - BEFORE)
    assert [near.line for near in found.around] == list(range(first, before + 2 + AFTER))
    assert [near.text for near in found.around] == lines[first - 1 : before + 1 + AFTER]


def test_the_lines_around_are_those_of_the_right_log():
    """Of several, and none where the evidence is in no log."""
    assert [near.text for near in diagnose([source(b"all is well\n", "a"), source(ECC.encode(), "b")]).around] == [ECC]
    assert diagnose([source(b"nothing\n")]).around == ()


def test_what_a_bar_overwrote_is_not_shown():
    """Of a line that was written over and over its end."""
    bar = b"".join(b"%d%%|###\r" % n for n in range(100)) + b"100%|done\n"
    assert [near.text for near in diagnose([source(bar + ECC.encode())]).around] == ["100%|done", ECC]


def test_echoes_are_counted_by_kind():
    """The most frequent first, with how many ranks printed them."""
    echoes = [WATCHDOG.format(rank=rank) for rank in range(4) for _ in range(3)]
    found = diagnose([source("\n".join([ECC, *echoes, "srun: error: n2: task 5: Exited with exit code 1"]).encode())])
    (first, *_) = found.folded
    assert (first.signature, first.lines, first.ranks) == ("NCCL_WATCHDOG_TIMEOUT", 12, 4)
    assert sum(one.lines for one in found.folded) == found.echoes


def test_the_ranks_worth_a_look_come_first():
    """Who is behind it, then who else failed; of thousands not all."""
    seats = {rank: Seat(node=f"n{rank // 8}") for rank in range(512)}
    context = Context(rank_map=seats, nodes=tuple(f"n{n}" for n in range(64)))
    log = "\n".join(WATCHDOG.format(rank=rank) for rank in range(512) if rank != 300)
    found = diagnose([source(log.encode())], context)
    assert (found.ranks[0].rank, found.ranks[0].node, found.ranks[0].said) == (300, "n37", "")
    assert len(found.ranks) == MOST_RANKS


def test_a_job_of_one_has_no_table():
    """There is nothing to compare."""
    assert diagnose([source(b"ValueError: no\n")]).ranks == ()


def changes(log, context=None, **more):
    """What would change the diagnosis, in one text."""
    return " ".join(diagnose([source(log.encode())], context, **more).would_change)


def test_what_would_change_it_is_what_is_not_known():
    """Each only as long as it is missing."""
    log = "\n".join(WATCHDOG.format(rank=rank) for rank in range(8))
    nodes = ("n1", "n2")
    assert "dmesg -T) of n1, n2" in changes(log, Context(nodes=nodes))
    assert "TORCH_FR_BUFFER_SIZE" in changes(log, Context(nodes=nodes))
    assert "TORCH_FR_BUFFER_SIZE" not in changes(log, recorded=[Recorded((3,), "Rank 3 left no dump.")])
    assert "sacct -j JOB -o NodeList" in changes(ECC)
    assert "in the same way: do not restart" in changes(log)
    gone = LogSource("rank-3.out", Source.JOB_LOG, None, lambda: (_ for _ in ()).throw(OSError("no such mount")))
    assert "could not be read: rank-3.out" in " ".join(diagnose([gone]).would_change)


def test_of_a_program_s_error_no_kernel_log_is_asked_for():
    """It would change nothing."""
    assert "dmesg" not in changes("[rank1]: ValueError: no\n", Context(nodes=("n1",)))


@pytest.mark.parametrize("interruption", list(Interruption))
def test_every_diagnosis_is_bounded(interruption):
    """However much a log holds, the explanation is small enough to travel."""
    log = "\n".join(f"[rank{n}]: {'x' * 5000} CUDA error: uncorrectable ECC error" for n in range(3000))
    context = Context(nodes=tuple(f"n{n}" for n in range(500)), interruption=interruption)
    found = diagnose([source(log.encode())], context)
    assert Diagnosis.model_validate(found.model_dump()) == found
    assert len(found.model_dump_json()) < 100_000
