"""Flight-recorder dumps: read without running anything, and the rank that everybody waits for is found."""

import json
import os
import pickle
import subprocess
import sys
import tracemalloc
from contextlib import suppress
from importlib.util import find_spec

import pytest
from hypothesis import given
from hypothesis import strategies as st

from relight.attribution.flight import LARGEST, FlightError, read_dump, read_folder
from relight.attribution.flight_search import recorded

WORLD = range(4)


def entry(seq, op="all_reduce", group=("0", "default_pg"), sizes=((4,),), **more):
    """One entry as version 2.10 writes it."""
    done = more.pop("done", True)
    return {
        "process_group": group,
        "collective_seq_id": seq,
        "profiling_name": f"nccl:{op}",
        "input_sizes": [list(size) for size in sizes],
        "input_dtypes": ["Float"],
        "state": "completed" if done else "started",
        "retired": done,
        "is_p2p": False,
        "frames": [
            {"name": "all_reduce", "filename": "/env/torch/distributed/distributed_c10d.py", "line": 1},
            {"name": "main", "filename": "/home/me/train.py", "line": 40},
        ],
        **more,
    }


def dump(rank, entries, **more):
    """A rank's dump, through the bytes of its file."""
    return read_dump(pickle.dumps({"version": "2.10", "entries": entries, **more}, protocol=2), rank)


def waiting(rank, seq=3, **more):
    """A rank that waits in the collective of that number, having finished those before it."""
    return dump(rank, [*(entry(n) for n in range(1, seq)), entry(seq, done=False, **more)])


def test_the_rank_that_never_began_is_named():
    """With the call it is missing from."""
    told = recorded([waiting(0), waiting(1), dump(2, [entry(1), entry(2)]), waiting(3)])
    assert (told.ranks, told.mismatch) == ((2,), False)
    assert told.sentence == (
        "Rank 2 never began all_reduce number 3 of group default_pg (train.py:40); ranks 0, 1, 3 wait in it."
    )


def test_a_rank_without_a_dump_is_named():
    """Where the job's ranks are known: it may have died before it could write one."""
    told = recorded([waiting(0), waiting(1), waiting(3)], WORLD)
    assert told.ranks == (2,)
    assert "left no flight-recorder dump" in told.sentence


def test_a_dump_that_is_missing_for_no_reason_blames_nobody():
    """Where all that was begun has ended, nothing stands still."""
    assert recorded([dump(0, [entry(1)]), dump(1, [entry(1)])], WORLD) is None


@pytest.mark.parametrize(
    "odd",
    [{"op": "broadcast"}, {"sizes": ((8,),)}],
    ids=["another collective", "another size"],
)
def test_different_calls_at_one_number_are_the_programs_fault(odd):
    """The rank that is alone is named."""
    told = recorded([waiting(0), waiting(1), waiting(2, **odd), waiting(3)])
    assert (told.ranks, told.mismatch) == ((2,), True)


def test_of_two_that_differ_neither_is_named():
    """One against one says that something is wrong, not who."""
    told = recorded([waiting(0), waiting(1, op="broadcast")])
    assert (told.ranks, told.mismatch) == ((), True)


def test_sizes_may_differ_where_the_collective_allows_it():
    """An all-to-all or a gather of unequal parts is no mismatch."""
    told = recorded([waiting(0, op="all_gather"), waiting(1, op="all_gather", sizes=((9,),))])
    assert not told.mismatch


def group(name, seq, **more):
    """A call in another group."""
    return entry(seq, group=(name, name), **more)


def test_the_origin_is_the_group_that_waits_for_nobody_else():
    """Ranks 0 and 1 are missing from the data-parallel group because they wait for rank 2 in their pipeline."""
    ranks = {"pg_config": {"pp": {"name": "pp", "ranks": "[0, 1, 2]"}, "dp": {"name": "dp", "ranks": "[0, 1, 3]"}}}
    told = recorded(
        [
            dump(0, [group("pp", 1, done=False)], **ranks),
            dump(1, [group("pp", 1, done=False)], **ranks),
            dump(2, [], **ranks),
            dump(3, [group("dp", 1, done=False)], **ranks),
        ]
    )
    assert told.ranks == (2,)
    assert "group pp" in told.sentence


def test_groups_in_different_orders_are_the_programs_fault():
    """Each waits for the other: nobody is behind."""
    ranks = {"pg_config": {"a": {"name": "a", "ranks": "[0, 1]"}, "b": {"name": "b", "ranks": "[0, 1]"}}}
    told = recorded([dump(0, [group("a", 1, done=False)], **ranks), dump(1, [group("b", 1, done=False)], **ranks)])
    assert (told.ranks, told.mismatch) == ((), True)


def test_a_receive_points_at_the_sender():
    """By its place in the group, which is not its global rank."""
    ranks = {"pg_config": {"pp": {"name": "pp", "ranks": "[1, 3]"}}}
    receives = {"is_p2p": True, "profiling_name": "nccl:recv 0<-1", "process_group": ("pp", "pp"), "state": "started"}
    told = recorded([dump(1, [receives], **ranks), dump(3, [], **ranks)])
    assert told.ranks == (3,)


def test_all_members_in_one_call_name_nobody():
    """Then it is what is between them."""
    told = recorded([waiting(rank) for rank in WORLD])
    assert (told.ranks, told.mismatch) == ((), False)
    assert "the fabric, or a GPU" in told.sentence


@pytest.mark.parametrize(
    "content",
    [
        [{"pg_id": 0, "seq_id": 1, "profiling_name": "nccl:all_reduce", "state": "scheduled"}],
        {"version": "1.1", "entries": [{"pg_id": 0, "seq_id": 1, "state": "scheduled"}]},
        {"version": "2.1", "entries": [entry(1, done=False)], "pg_status": {}},
        {"version": "2.10", "entries": [], "pg_status": {"0": {"last_enqueued_collective": 1}}},
    ],
    ids=["a bare list", "1.1", "2.1", "status only"],
)
@pytest.mark.parametrize("write", [pickle.dumps, lambda content: json.dumps(content).encode()], ids=["pickle", "JSON"])
def test_all_versions_are_read(content, write):
    """As pickle of any protocol from 2 on, and as JSON."""
    assert read_dump(write(content), 0).enqueued == {"0": 1}


class Evil:
    """Runs a command when it is unpickled by an ordinary reader."""

    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return os.system, (f"touch {self.path}",)


@pytest.mark.parametrize("protocol", [2, 3, 4, 5])
def test_no_code_is_run(tmp_path, protocol):
    """Whatever a dump asks for."""
    with pytest.raises(FlightError):
        read_dump(pickle.dumps({"entries": [Evil(tmp_path / "ran")]}, protocol=protocol), 0)
    assert not (tmp_path / "ran").exists()


def nested(depth):
    """A tuple of two times a tuple of two times ...: short to write, for ever to hash or to print."""
    value = ()
    for _ in range(depth):
        value = (value, value)
    return value


@pytest.mark.timeout(30)
@pytest.mark.parametrize(
    "data",
    [
        b"\x80\x02]r\xff\xff\xff\x7f.",
        b"\x80\x02}" + pickle.dumps(nested(60), protocol=2)[2:-1] + b"Ns.",
        pickle.dumps(
            {"entries": [{**entry(1), "input_sizes": [nested(60)], "profiling_name": nested(60)}]}, protocol=2
        ),
        b"[" * 100_000,
        b'{"entries": ' + b"[" * 100_000,
        b"\x80\x02" + b"(" * 1000 + b".",
        b"x" * (LARGEST + 1),
        b"",
    ],
    ids=["huge memo", "key without end", "value without end", "deep", "deep entries", "marks", "large", "empty"],
)
def test_bombs_do_not_go_off(data):
    """Neither memory nor time nor the stack."""
    tracemalloc.start()
    with suppress(FlightError):
        read_dump(data, 0)
    assert tracemalloc.get_traced_memory()[1] < 64 << 20
    tracemalloc.stop()


@given(st.binary(max_size=200), st.randoms(use_true_random=False))
def test_any_bytes_are_read_or_refused(noise, chance):
    """Also whole dumps in which bytes are changed."""
    whole = bytearray(pickle.dumps({"entries": [entry(1), entry(2, done=False)]}, protocol=2))
    for byte in noise:
        whole[chance.randrange(len(whole))] = byte
    for data in (noise, b"\x80\x02" + noise, bytes(whole)):
        with suppress(FlightError):
            recorded([read_dump(data, 0)], WORLD)


def test_a_folder_says_what_it_could_not_read(tmp_path):
    """Other files are none of its business."""
    (tmp_path / "nccl_trace_rank_0").write_bytes(pickle.dumps({"entries": [entry(1)]}))
    (tmp_path / "nccl_trace_rank_1").write_bytes(b"no")
    (tmp_path / "notes.txt").write_text("hello")
    found = read_folder(tmp_path)
    assert [each.rank for each in found.dumps] == [0]
    assert found.refused == (
        "nccl_trace_rank_1: not a flight-recorder dump: neither pickle nor JSON, or cut off (JSONDecodeError)",
    )


REAL = """
import os, sys, torch, torch.distributed as dist
from torch._C import _distributed_c10d as c10d
rank, folder = int(os.environ["RANK"]), sys.argv[1]
store = dist.FileStore(f"{folder}/store", 3)
dist.init_process_group("gloo", store=store, rank=rank, world_size=3)
for _ in range(2):
    dist.all_reduce(torch.ones(4))
call = dist.broadcast if rank == 1 else dist.all_reduce
work = call(torch.ones(4), **({"src": 0} if rank == 1 else {}), async_op=True)
open(f"{folder}/trace_{rank}", "wb").write(c10d._dump_fr_trace())
open(f"{folder}/json/trace_{rank}.json", "wb").write(c10d._dump_fr_trace_json())
store.set(f"dumped by {rank}", "")
store.wait([f"dumped by {each}" for each in range(3)])
os._exit(0)  # nobody waits for what can never end
"""


@pytest.mark.slow
@pytest.mark.skipif(find_spec("torch") is None, reason="needs PyTorch (`make test TORCH=cheap`)")
def test_dumps_of_real_ranks(tmp_path):
    """Three ranks of gloo, one of which calls something else than the others: from PyTorch's own pickle and JSON."""
    (tmp_path / "json").mkdir()
    (tmp_path / "train.py").write_text(REAL)
    ranks = [
        subprocess.Popen(
            [sys.executable, str(tmp_path / "train.py"), str(tmp_path)],
            env={**os.environ, "RANK": str(rank), "TORCH_FR_BUFFER_SIZE": "100", "OMP_NUM_THREADS": "1"},
        )
        for rank in range(3)
    ]
    assert [each.wait() for each in ranks] == [0, 0, 0]
    for folder in (tmp_path, tmp_path / "json"):
        told = recorded(read_folder(folder).dumps, range(3))
        assert (told.ranks, told.mismatch) == ((1,), True)
        assert "broadcast" in told.sentence
