"""The trust rule: only the platform's own witness makes a node a candidate for draining."""

from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from relight.attribution.engine import diagnose
from relight.attribution.sources import Context, Seat
from relight.domain.diagnosis import Action
from relight.domain.evidence import PLATFORM_WINDOW
from relight.domain.slurm import JobState

AT = datetime(2026, 11, 30, 9, 31, tzinfo=UTC)
CONTEXT = Context(
    nodes=("n1", "n2"),
    interrupted_at=AT,
    rank_map={0: Seat(node="n1", gpu="0"), 1: Seat(node="n2", gpu="0")},
    state=JobState.FAILED,
)
XID = "NVRM: Xid (PCI:0000:1b:00): 79, pid=7, GPU has fallen off the bus."
FORGED = [
    XID,
    f"Nov 30 09:30:59 n2 kernel: {XID}",
    f"2026-11-30T09:30:59+00:00 n2 kernel: {XID}",
    f"[Mon Nov 30 09:30:59 2026] {XID}",
    "n2: Kernel panic - not syncing: Fatal exception",
    "mlx5_core 0000:9a:00.0: device's health compromised - reached miss count",
    "nvidia-nvswitch1: SXid (PCI:0000:c4:00.0): 20034, Fatal, Link 17",
    "slurmstepd: error: *** JOB 7 ON n2 CANCELLED AT 2026-11-30T09:30:59 DUE TO NODE FAILURE ***",
    "srun: error: Node failure on n2",
    "[rank1]: RuntimeError: CUDA error: uncorrectable ECC error encountered",
    "rank 1 -> node n2 local_rank 0 gpu 0",
    "[rank0]:[E1130 09:30:59.1 P.cpp:6] Watchdog caught collective operation timeout: Timeout(ms)=999999999)",
]


@given(st.lists(st.sampled_from(FORGED) | st.text(max_size=80), max_size=12), st.sampled_from([CONTEXT, Context()]))
@settings(max_examples=300)
def test_no_job_text_drains(job_log, lines, context):
    """Nothing that a user's program can print fills `drain_nodes`, also what imitates the kernel's lines."""
    diagnosis = diagnose([job_log(*lines)], context)
    assert not any(one.drain_nodes for one in diagnosis.hypotheses)


@given(st.lists(st.sampled_from(FORGED), max_size=6))
@settings(max_examples=60)
def test_job_text_does_not_widen_the_window(job_log, kernel_log, lines):
    """A forged time-out of days does not make an old kernel line a reason to drain."""
    old = kernel_log("n1", f"2026-11-30T06:00:00+00:00 n1 kernel: {XID}")
    diagnosis = diagnose([job_log(*lines), old], CONTEXT)
    assert not any(one.drain_nodes for one in diagnosis.hypotheses)


@given(
    st.lists(st.tuples(st.sampled_from(FORGED), st.integers(0, 3)), max_size=12),
    st.lists(st.integers(-600, 600), min_size=4, max_size=4),
)
@settings(max_examples=60)
def test_no_number_of_ranks_moves_a_clock_to_drain(job_log, kernel_log, lines, ahead):
    """Start-up lines and steps that claim that clocks are wrong do not bring an old kernel line into the window."""

    def start(rank):
        at = AT - timedelta(hours=1) + timedelta(minutes=ahead[rank])
        place = f"rank {rank} -> node n{1 + rank // 2} local_rank 0 gpu 0"
        return [f"{at:%Y-%m-%d %H:%M:%S} {place}", f"{at:%Y-%m-%d %H:%M:%S} step 1/9 | loss 2.0"]

    logs = [
        job_log(*start(rank), *(line for line, by in lines if by == rank), name=f"r-{rank}.out") for rank in range(4)
    ]
    old = [kernel_log(node, f"{(AT - timedelta(hours=1)).isoformat()} {node} kernel: {XID}") for node in ("n1", "n2")]
    assert not any(one.drain_nodes for one in diagnose([*logs, *old], CONTEXT).hypotheses)


def test_forged_line_still_classifies(job_log):
    """Job text may still name the kind, and the node for this job's own retry."""
    verdict = diagnose([job_log(FORGED[1])], CONTEXT).verdict
    assert (verdict.signature, verdict.action) == ("XID_79", Action.RESTART_EXCLUDING_NODE)
    assert verdict.implicated.nodes == ("n2",)


@pytest.mark.parametrize(
    ("at", "drained"),
    [
        (AT - timedelta(seconds=5), ("n2",)),
        (AT + timedelta(seconds=9), ("n2",)),
        (AT + timedelta(seconds=11), ()),
        (AT - PLATFORM_WINDOW + timedelta(seconds=1), ("n2",)),
        (AT - PLATFORM_WINDOW - timedelta(seconds=1), ()),
    ],
)
def test_kernel_line_within_the_window(kernel_log, at, drained):
    """A root line in a node's own kernel log drains that node, from ten minutes before to ten seconds after."""
    verdict = diagnose([kernel_log("n2", f"{at.isoformat()} n2 kernel: {XID}")], CONTEXT).verdict
    assert verdict.drain_nodes == drained


def test_node_is_the_sources_not_the_texts(kernel_log):
    """The node is the one whose kernel log it is, whatever the line says."""
    verdict = diagnose([kernel_log("n1", f"2026-11-30T09:30:59+00:00 n2 kernel: {XID}")], CONTEXT).verdict
    assert (verdict.drain_nodes, verdict.implicated.nodes) == (("n1",), ("n1",))


@pytest.mark.parametrize(
    "line",
    [
        "NVRM: Xid (PCI:0000:1b:00): 13, pid=7, Graphics Exception",
        "NVRM: Xid (PCI:0000:1b:00): 31, pid=7, MMU Fault",
        "NVRM: Xid (PCI:0000:1b:00): 43, pid=7, Ch 00000008",
        "NVRM: Xid (PCI:0000:1b:00): 45, pid=7, Ch 00000008",
        "NVRM: Xid (PCI:0000:1b:00): 63, pid=7, Row remapper",
        "nvidia-nvswitch1: SXid (PCI:0000:c4:00.0): 12028, Non-fatal, Link 3",
        "Out of memory: Killed process 991 (python)",
    ],
)
def test_kernel_lines_that_never_drain(kernel_log, line):
    """The program's own faults, echoes and notices drain nothing, not even from the kernel log."""
    diagnosis = diagnose([kernel_log("n2", f"2026-11-30T09:30:59+00:00 n2 kernel: {line}")], CONTEXT)
    assert not any(one.drain_nodes for one in diagnosis.hypotheses)


@pytest.mark.parametrize(
    ("line", "context"),
    [
        (f"[ 812.5] {XID}", CONTEXT),
        (f"2026-11-30T09:30:59+00:00 n2 kernel: {XID}", CONTEXT.model_copy(update={"interrupted_at": None})),
        (f"2026-11-30T09:30:59+00:00 n2 kernel: {XID}", CONTEXT.model_copy(update={"nodes": ("n1",)})),
    ],
)
def test_what_cannot_be_placed_does_not_drain(kernel_log, line, context):
    """No time, no interruption to compare it with, or a node of another job: classified, not drained."""
    verdict = diagnose([kernel_log("n2", line)], context).verdict
    assert (verdict.signature, verdict.drain_nodes) == ("XID_79", ())


def test_slurmctld_is_a_platform_witness(job_log):
    """Nodes that slurmctld calls lost are its word, whatever the log says."""
    context = CONTEXT.model_copy(update={"lost_nodes": ("n2",), "state": JobState.NODE_FAIL})
    verdict = diagnose([job_log("n1:1:1 [0] NCCL WARN Connection closed by remote peer n2<4>")], context).verdict
    assert (verdict.signature, verdict.action) == ("SLURM_NODE_FAIL", Action.RESTART_EXCLUDING_NODE)
    assert (verdict.drain_nodes, verdict.implicated.nodes) == (("n2",), ("n2",))
