"""The search for the cause: root before cascade, placement, Slurm's facts, history."""

import io
from datetime import UTC, datetime

import pytest

from relight.attribution.catalogue import load
from relight.attribution.engine import diagnose
from relight.attribution.reading import read_log
from relight.attribution.scanner import Scanner
from relight.attribution.sources import Context, LogSource, PriorFailure, Seat
from relight.attribution.unpacking import READ
from relight.domain.diagnosis import Action, Category
from relight.domain.evidence import Evidence, Interruption, Source
from relight.domain.slurm import JobState
from relight.domain.stacks import ODD_RANK

SEATS = {rank: Seat(node=f"n{rank // 2 + 1}", gpu=str(rank % 2)) for rank in range(8)}
START = [f"rank {rank} -> node {seat.node} local_rank {seat.gpu} gpu {seat.gpu}" for rank, seat in SEATS.items()]
AT = datetime(2026, 11, 30, 9, 31, tzinfo=UTC)
ALLOCATION = Context(nodes=("n1", "n2", "n3", "n4"))


def watchdog(rank, completed=6):
    """What PyTorch prints on a rank that waited in vain for ten minutes."""
    head = f"[rank{rank}]:[E1130 09:41:00.4 ProcessGroupNCCL.cpp:607]"
    group = f"[PG ID 0 PG GUID 0(default_pg) Rank {rank}]"
    work = "WorkNCCL(SeqNum=7, OpType=ALLREDUCE, NumelIn=4, NumelOut=4, Timeout(ms)=600000)"
    return (
        f"{head} [Rank {rank}] Watchdog caught collective operation timeout: {work} ran for 600000 milliseconds",
        f"{head} {group} failure detected by watchdog: last enqueued work: 9, last completed work: {completed}",
    )


def steps(first, last, loss="2.5"):
    """Progress lines."""
    return [f"step {step}/1000 | loss {loss} | step_time 0.2 s" for step in range(first, last + 1)]


def test_ecc_before_the_kills_it_caused(verdict_of):
    """One memory error explains the aborts, the terminated and the killed ranks."""
    verdict = verdict_of(
        *START,
        *steps(1, 20),
        "[rank5]: RuntimeError: CUDA error: uncorrectable ECC error encountered",
        "n1:9:9 [0] NCCL WARN Net : Connection closed by remote peer n3<4000>",
        "srun: error: n3: task 5: Exited with exit code 1",
        "srun: error: n1: tasks 0-1: Killed",
        "slurmstepd: error: *** STEP 7.0 ON n1 CANCELLED AT 2026-11-30T09:31:00 ***",
    )
    assert (verdict.signature, verdict.action) == ("CUDA_ECC", Action.RESTART_EXCLUDING_NODE)
    assert verdict.implicated.ranks == (5,)
    assert verdict.implicated.nodes == ("n3",)
    assert verdict.implicated.gpus == ("1",)


def test_line_order_is_not_time_order(verdict_of):
    """A buffered 'closed by peer' above the cause does not become the cause."""
    verdict = verdict_of(
        "n1:1:1 [0] NCCL WARN socketProgress: Connection closed by remote peer n1<51159>",
        "n1:4:4 [3] include/alloc.h:178 NCCL WARN Cuda failure 'out of memory'",
    )
    assert verdict.signature == "NCCL_CUDA_OOM"
    assert (verdict.implicated.nodes, verdict.implicated.gpus) == (("n1",), ("3",))


def test_silent_rank_is_the_suspect(verdict_of):
    """Of all ranks that should have printed a watchdog line, the one that did not is implicated."""
    verdict = verdict_of(*START, *(line for rank in SEATS if rank != 6 for line in watchdog(rank)))
    assert verdict.signature == "NCCL_WATCHDOG_TIMEOUT"
    assert verdict.action is Action.RESTART
    assert verdict.implicated.ranks == (6,)
    assert "Rank 6 said nothing" in verdict.summary


def test_rank_that_is_behind(verdict_of):
    """When all print, the one with the lowest completed work is implicated."""
    verdict = verdict_of(*(line for rank in range(8) for line in watchdog(rank, 5 if rank == 2 else 6)))
    assert verdict.implicated.ranks == (2,)


def test_all_alike_blames_nobody(verdict_of):
    """When all wait at the same place nobody is blamed."""
    verdict = verdict_of(*(line for rank in range(8) for line in watchdog(rank)))
    assert not verdict.implicated


def test_hang_start_is_dated_back(verdict_of):
    """The stall began a timeout before it was printed."""
    verdict = verdict_of(*watchdog(0), context=Context(interrupted_at=AT))
    assert "09:31:00" in verdict.summary


def test_timeout_explains_garbage_read_after_it(verdict_of):
    """A decode error after a collective timed out read a buffer that was never filled."""
    verdict = verdict_of(*watchdog(0), "UnicodeDecodeError: 'utf-8' codec can't decode byte 0x93 in position 0: bad")
    assert verdict.signature == "NCCL_WATCHDOG_TIMEOUT"


def test_decode_error_alone_is_data(verdict_of):
    """The same decode error with no timeout before it is the data."""
    verdict = verdict_of("UnicodeDecodeError: 'utf-8' codec can't decode byte 0x93 in position 0: bad", *watchdog(0))
    assert verdict.category is Category.DATA


def test_another_bar_far_behind_the_steps_does_not_hide_them(job_log):
    """A dataset that is mapped anew after the last step: the newest steps are those of training."""
    far = ["nothing to see here " * 4] * (2 * READ // 80)
    bar = "Map:  45%|####5     | 450/1000 [00:01<00:02, 300.00 examples/s]"
    scan = read_log(job_log(*steps(1, 20), *far, bar), Scanner(load()))
    assert [line.mark.step for line in scan.steps] == list(range(1, 21))


def test_survived_error_is_not_the_cause(verdict_of):
    """What training went on after did not end it."""
    verdict = verdict_of(
        *steps(1, 5),
        "ValueError: could not log to the dashboard",
        *steps(6, 40),
        "slurmstepd: error: *** STEP 7.0 ON n1 CANCELLED AT 2026-11-30T09:31:00 DUE TO TIME LIMIT ***",
        "KeyboardInterrupt",
    )
    assert verdict.signature == "SLURM_TIME_LIMIT"


def test_python_exception_is_named(verdict_of):
    """The exception's class and message stand in the summary; the same exception of all ranks implicates all."""
    verdict = verdict_of("[rank1]: my.lib.ShapeError: got 3 columns", "[rank0]: my.lib.ShapeError: got 3 columns")
    assert (verdict.signature, verdict.category, verdict.action) == ("PY_EXCEPTION", Category.USER_CODE, Action.STOP)
    assert "my.lib.ShapeError" in verdict.summary
    assert "got 3 columns" in verdict.summary
    assert verdict.implicated.ranks == (0, 1)


@pytest.mark.parametrize(
    ("line", "identity"),
    [
        ("[rank0]: OSError: [Errno 28] No space left on device", "DISK_FULL"),
        ("[rank0]: ConnectionResetError: [Errno 104] Connection reset by peer", "PEER_CLOSED"),
        ("[rank0]: torch.distributed.DistBackendError: NCCL error: ncclRemoteError", "NCCL_REMOTE_ERROR"),
        ("[rank0]: BrokenPipeError: [Errno 32] Broken pipe", "PEER_CLOSED"),
    ],
)
def test_exceptions_that_are_not_the_programs(verdict_of, line, identity):
    """An exception that reports something else is not taken for an error of the program."""
    assert verdict_of(line).signature == identity


def test_elastic_block_names_the_rank(verdict_of):
    """A message without a rank gets it from torchelastic's report, past those that were torn down."""
    verdict = verdict_of(
        "ValueError: bad batch",
        "torch.distributed.elastic.multiprocessing.errors.ChildFailedError:",
        "[0]:",
        "  host      : n2",
        "  rank      : 2 (local_rank: 0)",
        "  exitcode  : -15 (pid: 10)",
        "[1]:",
        "  host      : n2",
        "  rank      : 3 (local_rank: 1)",
        "  exitcode  : 1 (pid: 11)",
    )
    assert verdict.signature == "PY_EXCEPTION"
    assert (verdict.implicated.ranks, verdict.implicated.nodes) == ((3,), ("n2",))


def test_first_kill_counts(verdict_of):
    """A kill with nothing before it implicates the first task only, and is tried again once."""
    verdict = verdict_of(*START, *steps(1, 9), "srun: error: n2: task 3: Killed", "srun: error: n1: task 0: Killed")
    assert (verdict.signature, verdict.category, verdict.action) == (
        "EXIT_SIGKILL",
        Category.HOST_MEMORY,
        Action.RESTART,
    )
    assert (verdict.implicated.ranks, verdict.implicated.nodes) == ((3,), ("n2",))


def test_kills_after_an_exit_are_teardown(verdict_of):
    """Kills that follow another task's exit are the launcher's."""
    verdict = verdict_of("srun: error: n1: task 1: Segmentation fault", "srun: error: n2: tasks 2-3: Killed")
    assert (verdict.signature, verdict.implicated.ranks) == ("EXIT_SIGSEGV", (1,))


def test_task_that_is_an_agent_is_no_rank(verdict_of):
    """With one task a node (torchrun) the task's number is not taken for a rank."""
    verdict = verdict_of(*START, "srun: error: n4: task 3: Killed")
    assert (verdict.implicated.ranks, verdict.implicated.nodes) == ((), ("n4",))


def test_slurmstepd_node_is_not_blamed(verdict_of):
    """`ON n4` names the first node of the step, not the culprit."""
    verdict = verdict_of(
        "srun: error: n2: task 3: Bus error",
        "slurmstepd: error: *** STEP 7.0 ON n4 CANCELLED AT 2026-11-30T09:31:00 ***",
    )
    assert verdict.implicated.nodes == ("n2",)


def test_barrier_names_a_whole_node(verdict_of):
    """Ranks that fill a node implicate it; the rank that reports is healthy."""
    verdict = verdict_of(*START, "RuntimeError: [Rank 0]: Ranks 4, 5 failed to pass monitoredBarrier in 9000 ms")
    assert (verdict.implicated.ranks, verdict.implicated.nodes) == ((4, 5), ("n3",))


def test_address_becomes_a_node(verdict_of):
    """A peer's address is read back to its node from the start-up lines."""
    verdict = verdict_of(
        "n4:1:1 [0] NCCL INFO NET/IB : Using [0]mlx5_0:1/IB ; OOB eth0:10.0.0.4<0>",
        *steps(1, 3),
        "n1:1:1 [0] NCCL WARN NET/IB : Got completion from peer 10.0.0.4<99> with status=12 opcode=0",
    )
    assert (verdict.implicated.nodes, verdict.action) == (("n4",), Action.RESTART)


def test_ranks_of_the_largest_group(verdict_of):
    """NCCL numbers ranks anew in every group: the map is that of the whole job."""
    init = "{}:1:1 [{}] NCCL INFO ncclCommInitRank comm 0x1 rank {} nranks {} cudaDev {} busId 1b000 - Init COMPLETE"
    small = [init.format("n2", gpu, gpu, 2, gpu) for gpu in (0, 1)]
    world = [init.format(seat.node, seat.gpu, rank, 8, seat.gpu) for rank, seat in SEATS.items()]
    verdict = verdict_of(*small, *world, *small, "[rank1]: RuntimeError: CUDA error: uncorrectable ECC error")
    assert (verdict.implicated.nodes, verdict.implicated.gpus) == (("n1",), ("1",))


def test_every_node_is_no_single_nodes_fault(verdict_of):
    """The same I/O error on most nodes is the server: nobody is excluded."""
    lines = [f"[rank{rank}]: OSError: [Errno 5] Input/output error" for rank in (0, 2, 4, 6)]
    verdict = verdict_of(*START, *lines)
    assert (verdict.action, verdict.implicated.nodes) == (Action.RESTART, ())
    assert verdict_of(*START, lines[1]).implicated.nodes == ("n2",)


def test_a_program_error_before_the_network_errors_it_causes(verdict_of):
    """A rank that raised ended first: peers that then fail to reach it exclude no node."""
    verdict = verdict_of(
        "[rank3]: IndexError: list index out of range",
        "n1:1:1 [0] NCCL WARN NET/IB : Got completion from peer 10.0.0.4<99> with status=12 opcode=0",
        "n1:1:1 [0] NCCL WARN Connect to 10.0.0.4<56821> failed : Connection refused",
    )
    assert (verdict.signature, verdict.action) == ("PY_EXCEPTION", Action.STOP)


def test_job_text_on_all_nodes_excludes_none(verdict_of):
    """What every node prints is no node's fault, by job evidence alone."""
    verdict = verdict_of(*START, *(f"[rank{rank}]: CUDA error: unspecified launch failure" for rank in SEATS))
    assert (verdict.action, verdict.implicated.nodes) == (Action.RESTART, ())


def test_nodes_outside_the_allocation_are_not_named(verdict_of):
    """A log may print any name: only nodes of the allocation are implicated."""
    verdict = verdict_of("Nov 30 09:30:00 n9 kernel: NVRM: Xid (PCI:0000:1b:00): 79, gone", context=ALLOCATION)
    assert (verdict.category, verdict.implicated.nodes) == (Category.GPU, ())


@pytest.mark.parametrize(
    ("state", "identity", "action"),
    [
        (JobState.OUT_OF_MEMORY, "SLURM_OOM", Action.STOP),
        (JobState.TIMEOUT, "SLURM_TIME_LIMIT", Action.RESTART),
        (JobState.PREEMPTED, "SLURM_PREEMPT", Action.RESTART),
        (JobState.CANCELLED, "SLURM_CANCELLED", Action.STOP),
        (JobState.COMPLETED, "SLURM_COMPLETED", Action.NONE),
        (JobState.NODE_FAIL, "SLURM_NODE_FAIL", Action.RESTART_EXCLUDING_NODE),
    ],
)
def test_slurms_word(verdict_of, state, identity, action):
    """Slurm's own word on the end counts where the log shows only the teardown."""
    verdict = verdict_of("srun: error: n1: task 0: Exited with exit code 1", context=Context(state=state))
    assert (verdict.signature, verdict.action) == (identity, action)


def test_exit_code_93(verdict_of):
    """Exit code 93 is the job's own word that a retry is useless."""
    assert verdict_of("bye", context=Context(state=JobState.FAILED, exit_code=93)).action is Action.STOP


def test_unknown_restarts_once(verdict_of):
    """Nothing recognised: restart once, stop when it happens again."""
    verdict = verdict_of("all quiet")
    assert (verdict.category, verdict.action, verdict.action_if_it_repeats) == (
        Category.UNKNOWN,
        Action.RESTART,
        Action.STOP,
    )
    again = verdict_of("all quiet", context=Context(history=(PriorFailure(signature="UNKNOWN"),)))
    assert again.action is Action.STOP


def test_hang_without_a_word(verdict_of):
    """A hang that no log explains has its own name."""
    verdict = verdict_of(*steps(1, 9), context=Context(interruption=Interruption.HANG))
    assert (verdict.signature, verdict.action) == ("HANG_NO_LOG", Action.RESTART)


ODD = Evidence(source=Source.ACTIVITY, text="rank 5 is elsewhere", signature=ODD_RANK, rank=5, node="n3")


def test_hang_with_an_odd_rank(verdict_of):
    """The rank that stands elsewhere than the others is implicated, with its node, and restarted there at first."""
    context = Context(interruption=Interruption.HANG, nodes=("n2", "n3"), seen=(ODD,))
    verdict = verdict_of(*steps(1, 9), context=context)
    assert verdict.signature == "HANG_NO_LOG"
    assert (verdict.implicated.ranks, verdict.implicated.nodes) == ((5,), ("n3",))
    assert verdict.summary.endswith("no log says why; rank 5 on node n3 stands out from the others.")
    assert (verdict.action, verdict.drain_nodes) == (Action.RESTART, ())


@pytest.mark.parametrize(("then", "action"), [("n3", Action.RESTART_EXCLUDING_NODE), ("n2", Action.STOP)])
def test_a_second_hang_with_an_odd_rank(verdict_of, then, action):
    """On the same node it is left out of the retry; at the same step on another one, it is the program."""
    prior = PriorFailure(signature="HANG_NO_LOG", failed_step=9, nodes=(then,))
    context = Context(interruption=Interruption.HANG, nodes=("n2", "n3"), seen=(ODD,), history=(prior,))
    verdict = verdict_of(*steps(1, 9), context=context)
    assert (verdict.action, verdict.drain_nodes) == (action, ())


def test_a_node_that_is_none_of_the_jobs_is_not_implicated(verdict_of):
    """Stacks may say anything."""
    context = Context(interruption=Interruption.HANG, nodes=("n1", "n2"), seen=(ODD,))
    assert not verdict_of(*steps(1, 9), context=context).implicated


def test_a_slow_down_with_a_cause(verdict_of):
    """What its node suffers from is the summary, and it is implicated; nothing is done to the job."""
    told = Evidence(source=Source.NVML, text="clocks held down at 900 MHz", signature="THROTTLED", node="n2", gpu="0")
    slow = Evidence(source=Source.PROGRESS, text="steps take 50% longer", signature="SLOWER_STEPS")
    context = Context(interruption=Interruption.STRAGGLER, nodes=("n1", "n2"), seen=(slow, told))
    verdict = verdict_of(*steps(1, 9), context=context)
    assert (verdict.signature, verdict.action) == ("SLOW_NO_LOG", Action.NONE)
    assert verdict.summary == "Training has become slower than it was: clocks held down at 900 MHz"
    assert (verdict.implicated.nodes, verdict.implicated.gpus, verdict.drain_nodes) == (("n2",), ("0",), ())


def test_same_failure_at_the_same_step(verdict_of):
    """What failed the same way at the same step gets the other answer; elsewhere it does not."""
    nan = "AssertionError: found NaN in local grad norm"
    same = Context(history=(PriorFailure(signature="NUM_NAN", failed_step=205),))
    assert verdict_of(*steps(190, 205), nan).action is Action.RESTART
    assert verdict_of(*steps(190, 205), nan, context=same).action is Action.STOP
    assert verdict_of(*steps(290, 305), nan, context=same).action is Action.RESTART


def test_no_memory_right_after_ecc(verdict_of):
    """No GPU memory at the start on the node whose GPU had just failed: the node, not the model."""
    history = (PriorFailure(signature="CUDA_ECC", failed_step=43_000, nodes=("n2",)),)
    verdict = verdict_of("CUDA out of memory. Tried to allocate 2.00 GiB", context=Context(history=history))
    assert (verdict.category, verdict.action) == (Category.GPU, Action.RESTART_EXCLUDING_NODE)
    assert verdict.implicated.nodes == ("n2",)


def test_nan_before_the_first_step_is_configuration(verdict_of):
    """Numbers that are NaN from the start are the settings'; later they may be the data's."""
    nan = "RuntimeError: Rank 2, node n2, device 0, iteration {}: Unexpected result nan"
    assert verdict_of(nan.format(-1)).category is Category.CONFIG
    later = verdict_of(nan.format(4000))
    assert (later.category, later.implicated.ranks) == (Category.NUMERICS, (2,))


def test_loss_that_jumps(verdict_of):
    """A loss that jumps and stays is a reason to stop; one that comes back is none."""
    stays = verdict_of(*steps(1, 5, "2.0"), *steps(6, 9, "7.5"))
    assert (stays.signature, stays.action) == ("NUM_SPIKE", Action.STOP)
    back = verdict_of(*steps(1, 5, "2.0"), *steps(6, 9, "7.5"), *steps(10, 12, "1.9"))
    assert (back.category, back.action) == (Category.CONTROL, Action.NONE)


def test_time_out_at_the_very_end(verdict_of):
    """A collective that fails after the last step would only repeat the last epoch for nothing."""
    verdict = verdict_of("100%|####| 500/500 [1:00:00<00:00, 7.2s/it]", *watchdog(0))
    assert (verdict.category, verdict.action) == (Category.FRAMEWORK, Action.STOP)


def test_training_that_was_done(verdict_of):
    """All steps done and no failure line: nothing failed, unless somebody saw it fail."""
    assert verdict_of(*steps(990, 1000)).category is Category.CONTROL
    assert verdict_of(*steps(990, 1000), context=Context(state=JobState.FAILED)).category is Category.UNKNOWN


def test_harmless_notices_are_no_failure(verdict_of):
    """Corrected errors and non-fatal notices alone need no action."""
    verdict = verdict_of("nvidia-nvswitch0: SXid (PCI:0000:05:00.0): 12028, Non-fatal, Link 3 (First)")
    assert (verdict.category, verdict.action) == (Category.CONTROL, Action.NONE)


def test_xid_45_is_an_echo(verdict_of):
    """Xid 45 alone blames nobody; with a cause beside it, it is folded."""
    echo = "NVRM: Xid (PCI:0000:ba:00): 45, pid=9, name=python, Ch 00000002"
    assert not verdict_of(echo).implicated
    verdict = verdict_of(echo, "NVRM: Xid (PCI:0000:1b:00): 74, pid=9, NVLink error")
    assert verdict.implicated.gpus == ("0000:1b:00",)


def test_unreadable_and_empty_sources(job_log):
    """What cannot be read is told and hides nothing else."""

    def broken():
        raise PermissionError(13, "Permission denied")

    sources = [
        LogSource("locked", Source.JOB_LOG, None, broken),
        LogSource("void", Source.JOB_LOG, None, lambda: io.BytesIO(b"\n \n")),
        job_log("[rank0]: ValueError: x"),
    ]
    diagnosis = diagnose(sources)
    assert diagnosis.unreadable == ("locked: Permission denied", "void: empty")
    assert diagnosis.verdict.signature == "PY_EXCEPTION"
    assert diagnose([]).verdict.category is Category.UNKNOWN


def test_failed_step_and_echoes(job_log):
    """The diagnosis tells how far training came and how many lines were folded."""
    log = job_log(*steps(1, 121), "[rank1]: ValueError: x", *["W1130 Sending process 1 closing signal SIGTERM"] * 500)
    diagnosis = diagnose([log])
    assert (diagnosis.failed_step, diagnosis.echoes) == (121, 500)


def test_late_root_is_a_consequence(job_log):
    """An exception minutes after another process's is more likely its consequence."""
    early = job_log("2026-11-30 09:00:00 [rank3]: ValueError: first", name="a")
    late = job_log("2026-11-30 09:30:00 [rank0]: CUDA error: an illegal memory access was encountered", name="b")
    assert diagnose([late, early]).verdict.signature == "PY_EXCEPTION"
