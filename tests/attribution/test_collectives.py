"""Which ranks a stall or a broken connection points at."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from relight.attribution.engine import diagnose
from relight.attribution.sources import Context, LogSource, Seat
from relight.domain.diagnosis import Action, Category
from relight.domain.evidence import Interruption, Source

PEER = "RuntimeError: [/x/gloo/transport/tcp/pair.cc:553] Connection closed by peer [127.0.1.2]:34189."
SEATS = {rank: Seat(node=f"n{rank // 4 + 1}", gpu=str(rank % 4)) for rank in range(8)}
CONTEXT = Context(nodes=("n1", "n2"), rank_map=SEATS)


def waits(
    rank,
    *,
    enqueued=9,
    completed=6,
    seq=7,
    what="ALLREDUCE",
    size=4,
    group="[PG ID 0 PG GUID 0(default_pg) Rank {}]",
    inside=None,
):
    """What a rank's watchdog prints."""
    head = (
        f"[rank{rank}]:[E1130 09:41:00.4 ProcessGroupNCCL.cpp:607] {group.format(rank if inside is None else inside)}"
    )
    work = f"WorkNCCL(SeqNum={seq}, OpType={what}, NumelIn={size}, NumelOut={size}, Timeout(ms)=600000)"
    return [
        f"{head} Watchdog caught collective operation timeout: {work} ran for 600000 milliseconds before timing out.",
        f"{head} failure detected by watchdog: last enqueued work: {enqueued}, last completed work: {completed}",
    ]


def lines(**odd):
    """All eight ranks wait; rank 2 prints what is odd."""
    return [line for rank in range(8) for line in waits(rank, **(odd if rank == 2 else {}))]


TENSOR = "[PG ID 3 PG GUID 12(tensor) Rank {}]"


@pytest.mark.parametrize(
    ("printed", "ranks", "words"),
    [
        (lines(enqueued=6), (2,), "never called what they wait for"),
        (lines(completed=5), (2,), "completed less"),
        (lines(), (), "No rank stands out"),
        ([line for rank in range(6) for line in waits(rank)], (6, 7), "said nothing"),
        ([line for rank in range(3) for line in waits(rank)], (), "No rank stands out"),
        # Two groups with one name, as old releases print them: one has got less far, nobody in it is behind.
        (
            [line for rank in range(8) for line in waits(rank, completed=5 + rank // 6, group=TENSOR, inside=rank % 2)],
            (),
            "No rank stands out",
        ),
        # Without a group the numbers are a hint.
        (
            [line for rank in range(8) for line in waits(rank, completed=6 - (rank == 2), group="[Rank {}]")],
            (),
            "only a hint",
        ),
    ],
)
def test_who_is_behind(job_log, printed, ranks, words):
    """The silent rank; the lowest numbers of one group; nobody where all are alike or groups are not told apart."""
    verdict = diagnose([job_log(*printed)], CONTEXT).verdict
    assert (verdict.signature, verdict.implicated.ranks) == ("NCCL_WATCHDOG_TIMEOUT", ranks)
    assert words in verdict.summary


@pytest.mark.parametrize("odd", [{"what": "BROADCAST"}, {"size": 8}])
def test_ranks_that_call_different_collectives(job_log, odd):
    """At one number of one group all must call the same, with the same size: else it is the program."""
    verdict = diagnose([job_log(*lines(**odd))], CONTEXT).verdict
    assert (verdict.signature, verdict.category, verdict.action) == (
        "COLLECTIVE_MISMATCH",
        Category.USER_CODE,
        Action.STOP,
    )
    assert verdict.implicated.ranks == (2,)
    assert "Rank 2 called" in verdict.summary


def test_old_formats_print_no_group(job_log):
    """There only one kind with two sizes at one number is a mismatch: other kinds may be of other groups."""
    old = "[Rank {}]"
    sizes = [line for rank in range(2) for line in waits(rank, size=4 + rank, group=old)]
    kinds = [line for rank in range(2) for line in waits(rank, what=("ALLREDUCE", "BROADCAST")[rank], group=old)]
    said = [diagnose([job_log(*printed)], CONTEXT).verdict for printed in (sizes, kinds)]
    assert [verdict.signature for verdict in said] == ["COLLECTIVE_MISMATCH", "NCCL_WATCHDOG_TIMEOUT"]
    assert not said[0].implicated.ranks


@pytest.mark.parametrize("odd", [{"what": "SEND"}, {"seq": 8, "what": "BROADCAST"}])
def test_what_may_differ(job_log, odd):
    """Ranks of a pipeline send to each other; other numbers are other collectives."""
    assert diagnose([job_log(*lines(**odd))], CONTEXT).verdict.signature == "NCCL_WATCHDOG_TIMEOUT"


def test_many_ranks_in_one_log(job_log):
    """Of 2,048 ranks in one log the silent node is named, though only some lines are kept."""
    seats = {rank: Seat(node=f"n{rank // 8}", gpu=str(rank % 8)) for rank in range(2048)}
    context = Context(nodes=tuple(f"n{number}" for number in range(256)), rank_map=seats)
    printed = [line for rank in range(2048) if rank // 8 != 97 for line in waits(rank)]
    who = diagnose([job_log(*printed)], context).verdict.implicated
    assert (who.ranks, who.nodes) == (tuple(range(776, 784)), ("n97",))


def test_a_log_that_could_not_be_read_is_not_silence(job_log):
    """Nothing is said of the rank whose log is missing."""

    def broken():
        raise OSError(5, "Input/output error")

    logs = [job_log(*waits(rank), name=f"r-{rank}.out") for rank in range(7)]
    logs.append(LogSource("r-7.out", Source.JOB_LOG, None, broken))
    assert diagnose(logs, CONTEXT).verdict.implicated.ranks == ()


@pytest.mark.parametrize(
    ("counts", "ranks", "words"),
    [({640: 6, 641: 2}, (), "Ranks 1, 5 ran ahead"), ({640: 2, 641: 6}, (1, 5), "Ranks 1, 5 launched less")],
)
def test_the_minority_that_ras_lists_may_be_ahead(job_log, counts, ranks, words):
    """The count that fits those listed tells; those behind a few that ran ahead are not named."""
    told = [f"  {count} ranks have launched up to operation {number}" for number, count in counts.items()]
    told += [f"  Rank {rank} -- GPU {rank} managed by process 4830 on node 10.0.0.{rank}" for rank in (1, 5)]
    verdict = diagnose([job_log(*told)], CONTEXT.model_copy(update={"interruption": Interruption.HANG})).verdict
    assert words in verdict.summary
    assert verdict.implicated.ranks == ranks


def test_what_still_runs_when_the_first_has_ended(job_log):
    """With --wait srun says whom the others waited for, and kills it then."""
    printed = [
        *(f"{rank}: [rank{rank}]: {PEER}" for rank in (0, 4)),
        "srun: First task exited 5s ago",
        "srun: StepId=4.0 task 6: running",
        "srun: StepId=4.0 tasks 0-5,7: exited abnormally",
        "srun: error: n2: task 6: Killed",
    ]
    verdict = diagnose([job_log(*printed)], CONTEXT).verdict
    assert (verdict.signature, verdict.implicated.ranks) == ("PEER_CLOSED", (6,))


def barrier(*arrived, world=2048, workers=1792):
    """What ranks print whose store barrier times out."""
    text = "Timed out initializing process group in store based barrier on rank: {}, for key: x "
    text += "(world_size={}, worker_count={}, timeout=1)"
    return [text.format(rank, world, workers) for rank in arrived]


def test_ranks_that_never_arrived(job_log):
    """World less workers, as nodes where it is whole nodes; named where all others have said that they are there."""
    seats = {rank: Seat(node=f"n{rank // 8}", gpu=str(rank % 8)) for rank in range(2048)}
    context = Context(rank_map=seats)
    some = diagnose([job_log(*barrier(0, 7))], context).verdict
    assert "256 of 2048 ranks never arrived (32 nodes of 8)" in some.summary
    assert not some.implicated
    absent = range(8, 24)
    there = [rank for rank in range(2048) if rank not in absent]
    named = diagnose([job_log(*barrier(*there, workers=2032))], context).verdict
    assert (named.implicated.ranks, named.implicated.nodes) == (tuple(absent), ("n1", "n2"))


WAITED = "torch.distributed.DistStoreError: wait timeout after 10000ms, keys: /default_pg/0//cpu//0/{}"
SHORT = "torch.distributed.DistStoreError: Timed out after 11 seconds waiting for clients. {}/8 clients joined."


@pytest.mark.parametrize(
    ("printed", "ranks"),
    [
        ([f"0: {SHORT.format(7)}", *(f"{rank}: {WAITED.format(0)}" for rank in range(1, 7))], (7,)),
        ([f"0: {SHORT.format(6)}", *(f"{rank}: {WAITED.format(0)}" for rank in range(1, 7))], ()),
        ([WAITED.format(4)] * 7, (4,)),
        ([WAITED.format(4), WAITED.format("rank_4")], (4,)),
        ([WAITED.format(4), WAITED.format(5)], ()),
        ([f"[rank4]: {WAITED.format(6)}", WAITED.format(4)], (6,)),
    ],
)
def test_the_rank_that_did_not_join(job_log, printed, ranks):
    """Who printed nothing, where the numbers agree; or whose address all wait for, unless it waits itself."""
    verdict = diagnose([job_log(*printed)], CONTEXT).verdict
    assert (verdict.signature, verdict.action, verdict.implicated.ranks) == ("STORE_BARRIER", Action.RESTART, ranks)


@pytest.mark.parametrize("rank", [2, 3, 4, 5, 6, 7])
def test_the_store_key_of_rank_0_names_nobody(job_log, rank):
    """Rank 0 gives its address only when all have joined."""
    verdict = diagnose([job_log(f"{rank}: {WAITED.format(0)}")], CONTEXT).verdict
    assert (verdict.signature, verdict.implicated.ranks) == ("STORE_GONE", ())


ENDED = [
    "srun: error: n2: task 6: Exited with exit code 3",
    "srun: error: n2: tasks 4-5,7: Terminated",
    "srun: error: n1: tasks 0-3: Terminated",
]


@pytest.mark.parametrize(
    ("printed", "rank"),
    [
        ([f"{rank}: [rank{rank}]: {PEER}" for rank in range(8) if rank != 6], 6),
        ([f"5: [rank5]: {PEER}", *ENDED], 6),
        ([f"5: [rank5]: {PEER}", ENDED[0].replace("3", "1"), *ENDED[1:]], 6),
        ([*(f"{rank}: [rank{rank}]: {PEER}" for rank in (0, 1, 4, 5, 7)), *ENDED], 6),
        ([f"6: [rank6]: {PEER}", *ENDED], None),
        ([f"5: [rank5]: {PEER}", "srun: error: n2: tasks 6-7: Exited with exit code 1", *ENDED[2:]], None),
    ],
)
@pytest.mark.parametrize("context", [CONTEXT, None])
def test_echoes_name_who_was_silent_or_ended_first(job_log, printed, rank, context):
    """A connection breaks by another's end: of who said nothing while all others did, or whose exit comes first."""
    verdict = diagnose([job_log(*printed)], context).verdict
    expected = () if rank is None or (context is None and len(printed) == 7) else (rank,)
    assert (verdict.signature, verdict.implicated.ranks) == ("PEER_CLOSED", expected)


SPAWNED = [
    "1: torch.multiprocessing.spawn.ProcessRaisedException: ",
    "1: -- Process 1 terminated with the following error:",
    "1: Traceback (most recent call last):",
    "1: KeyError: 'zebra'",
    "0: torch.multiprocessing.spawn.ProcessRaisedException: ",
    "0: -- Process 3 terminated with the following error:",
    f"0: {PEER}",
    "srun: error: n2: task 1: Exited with exit code 1",
    "srun: error: n1: task 0: Terminated",
]


@pytest.mark.parametrize(("context", "ranks"), [(CONTEXT, (5,)), (None, ())])
def test_a_task_that_starts_ranks_is_a_node(job_log, context, ranks):
    """Under torch.multiprocessing a label is a node; its child's local rank gives the rank where the map is known."""
    verdict = diagnose([job_log(*SPAWNED)], context).verdict
    assert (verdict.signature, verdict.implicated.ranks, verdict.implicated.nodes) == ("PY_EXCEPTION", ranks, ("n2",))
    assert "KeyError" in verdict.summary


@pytest.mark.parametrize(
    ("report", "ranks", "nodes"),
    [
        (["0: spawn.ProcessExitedException: process 1 terminated with exit code 3"], (1,), ("n1",)),
        (["0: process 1 terminated with exit code 3", "1: process 2 terminated with exit code 3"], (), ()),
        (["srun: First task exited 8s ago", "srun: StepId=5.0 task 0: running"], (), ("n1",)),
        (["srun: First task exited 8s ago", "srun: StepId=5.0 tasks 0-1: running"], (), ()),
    ],
)
def test_a_parent_names_its_child_and_srun_an_agent_that_waits(job_log, report, ranks, nodes):
    """The child that left with a code, else the node whose agent still ran; the other node's child is an echo."""
    printed = ["1: -- Process 0 terminated with the following error:", f"1: {PEER}", *report]
    printed += ["srun: error: n2: task 1: Exited with exit code 1", "srun: error: n1: task 0: Killed"]
    verdict = diagnose([job_log(*printed)], CONTEXT).verdict
    assert (verdict.signature, verdict.implicated.ranks, verdict.implicated.nodes) == ("PEER_CLOSED", ranks, nodes)


def test_all_that_end_alike_blame_nobody(job_log):
    """Where srun reports the same end of all tasks, the first in its list is none different."""
    printed = ["srun: error: n1: tasks 0-3: Segmentation fault", "srun: error: n2: tasks 4-7: Segmentation fault"]
    assert not diagnose([job_log(*printed)], CONTEXT).verdict.implicated


@pytest.mark.parametrize(
    ("ranks", "action"), [((4, 6), Action.RESTART_EXCLUDING_NODE), ((4,), Action.STOP), ((1, 4, 5), Action.STOP)]
)
def test_what_one_node_alone_lacks(job_log, ranks, action):
    """A module that several ranks of one node miss and no others: that node; one rank may only have been the first."""
    printed = [f"{rank}: ModuleNotFoundError: No module named 'tokenizer_tools'" for rank in ranks]
    verdict = diagnose([job_log(*printed)], CONTEXT).verdict
    assert (verdict.signature, verdict.action) == ("IMPORT_ERROR", action)
    assert action is Action.STOP or verdict.implicated.nodes == ("n2",)


def block(rank, code, time, *, error_file="<N/A>", node=None):
    """An entry of torchelastic's report."""
    return [
        f"  time      : 2026-11-30_{time}",
        f"  host      : {node or SEATS[rank].node}",
        f"  rank      : {rank} (local_rank: {rank % 4})",
        f"  exitcode  : {code} (pid: 11)",
        f"  error_file: {error_file}",
    ]


@pytest.mark.parametrize(
    ("entries", "ranks"),
    [
        ([(2, 1, "09:31:05"), (5, 1, "09:31:01")], (5,)),
        ([(2, 1, "09:31:05"), (5, 1, "09:31:05")], ()),
        ([(2, 1, "09:31:05"), (5, 1, "09:31:05", "/tmp/e/5/error.json")], (5,)),
        ([(2, -15, "09:31:00"), (5, 1, "09:31:05")], (5,)),
        ([(2, -9, "09:31:05"), (3, -15, "09:31:06")], (2,)),
        ([(2, -9, "09:31:00"), (5, 2, "09:31:05")], (5,)),
    ],
)
def test_reports_of_all_agents_are_one(job_log, entries, ranks):
    """The earliest over all hosts; an error file before what an agent saw; not who was torn down; nobody on a tie."""
    printed = [
        line
        for rank, code, time, *file in entries
        for line in block(rank, code, time, error_file=(file or ["<N/A>"])[0])
    ]
    verdict = diagnose([job_log("ValueError: bad batch", *printed)], CONTEXT).verdict
    assert (verdict.signature, verdict.implicated.ranks) == ("PY_EXCEPTION", ranks)


@pytest.mark.parametrize(
    ("exits", "ranks"),
    [
        ([(4, -15), (5, 3), (0, 1), (1, -15)], (5,)),
        ([(5, 1), (0, 1)], (5,)),
        ([(5, 1), (6, 1), (0, 1)], (1, 5, 6)),
        ([(5, 1), (6, -15)], (1, 5, 6)),
        ([(5, 3), (6, 1), (0, 1)], (5,)),
        ([(5, 3), (6, 4), (0, 1)], (1, 5, 6)),
        ([(0, 1), (1, -15), (2, -15)], (1, 5, 6)),
    ],
)
def test_an_exit_that_no_other_explains(job_log, exits, ranks):
    """It names the rank before silence does: not who was torn down, nor who printed a broken connection."""
    complained = (0, 2, 3, 4, 7)
    printed = [f"[rank{rank}]: {PEER}" for rank in complained]
    printed += [line for rank, code in exits for line in block(rank, code, "09:31:05")]
    verdict = diagnose([job_log(*printed)], CONTEXT).verdict
    assert (verdict.signature, verdict.implicated.ranks) == ("PEER_CLOSED", ranks)


FIRST_KILL = "api.py:1002] failed (exitcode: -9) local_rank: 2 (pid: 46) of binary: /usr/bin/python"


@pytest.mark.parametrize(
    ("first", "exits", "signature", "rank"),
    [
        ([FIRST_KILL], [(0, -15), (1, -15), (2, -9)], "EXIT_SIGKILL", 2),
        ([FIRST_KILL], [(0, 1), (1, -15), (2, -9)], "EXIT_SIGKILL", 2),
        ([], [(0, 1), (1, -15), (2, -9)], "PEER_CLOSED", 2),
        ([FIRST_KILL], [(0, 1), (5, 3), (2, -9)], "PEER_CLOSED", 5),
    ],
)
def test_a_kill_that_its_agent_saw_first(job_log, first, exits, signature, rank):
    """It is the cause, unless another worker ended by itself; of a kill after that only the rank may tell."""
    printed = [f"[rank{rank}]: {PEER}" for rank in (0, 4, 7)]
    printed += [*first, *(line for rank, code in exits for line in block(rank, code, "09:31:05"))]
    printed.append("srun: error: n1: task 0: Exited with exit code 1")
    verdict = diagnose([job_log(*printed)], CONTEXT).verdict
    assert (verdict.signature, verdict.implicated.ranks) == (signature, (rank,))


@pytest.mark.parametrize(
    ("chain", "said"),
    [
        (
            ["KeyError: 'a'", "During handling of the above exception, another exception occurred:", "ValueError: b"],
            "ValueError",
        ),
        (
            ["KeyError: 'a'", "The above exception was the direct cause of the following exception:", "ValueError: b"],
            "ValueError",
        ),
        (["KeyError: 'a'", "ValueError: b"], "KeyError"),
    ],
)
def test_the_last_of_a_chain_ended_it(job_log, chain, said):
    """Of exceptions that one rank chained the last is told; another rank's in between changes nothing."""
    printed = [f"[rank1]: {line}" for line in chain]
    printed.insert(1, "[rank2]: During handling of the above exception, another exception occurred:")
    assert said in diagnose([job_log(*printed)], CONTEXT).verdict.summary


HUGE = "9" * 300
NASTY = [
    f"rank {HUGE} -> node n1 local_rank 0 gpu 0",
    f"srun: error: n1: tasks 0-{HUGE}: Exited with exit code 3",
    f"srun: error: n1: tasks {','.join(['0-99999999'] * 200)}: Killed",
    f"srun: StepId=4.0 tasks 0-{HUGE}: running",
    f"n1:1:1 [0] NCCL INFO comm 0x1 rank 3 nranks {HUGE} cudaDev 0 busId 1 - Init COMPLETE",
    *barrier(0, world=HUGE, workers=1),
    *waits(int(HUGE)),
    f"RuntimeError: [Rank 0]: Ranks {HUGE}, 1 failed to pass monitoredBarrier in 9000 ms",
    f"  {HUGE} ranks have launched up to operation {HUGE}",
    f"{HUGE}: [rank{HUGE}]: {PEER}",
    f"  rank      : {HUGE} (local_rank: {HUGE})",
    "  time      : 2026-99-99_99:99:99",
    f"step {HUGE}/{HUGE} | loss {HUGE}",
    "0001-01-01 00:00:00 step 1/2 | loss 1",
]


@given(st.lists(st.sampled_from(NASTY) | st.text(max_size=60), max_size=12), st.sampled_from([CONTEXT, None]))
def test_numbers_that_cannot_be(job_log, printed, context):
    """A log may claim any number of ranks, tasks, steps: it is answered, at once and in bounded memory."""
    half = len(printed) // 2
    logs = [job_log(*printed[:half], name="r-0.out"), job_log(*printed[half:], name="r-1.out")]
    assert diagnose(logs, context).verdict.summary
