"""The scenes of a bad night, for `lab.console_seed`: one incident in each state that people meet. Made up."""

from collections.abc import Callable, Mapping
from datetime import timedelta
from typing import Any, NamedTuple

from relight.domain.diagnosis import Action, Category, Diagnosis, Echo, Hypothesis, Implicated, Nearby, RankRow, Suspect
from relight.domain.evidence import Evidence, Interruption, Source
from relight.domain.incidents import Outcome, Phase
from relight.domain.plan import Mode, Restart
from relight.domain.rights import Right

PEOPLE = ("alice", "bob", "carol", "dmitri", "erin")
NAMES = ("llama3-70b-pretrain", "mixtral-sft", "vit-large", "whisper-finetune", "dpo-sweep")
HOSTILE = (
    "rank 3: \x1b[2J\x1b]0;owned\x07</pre><script>window.owned=1</script><img src=x onerror=window.owned=1> "
    "\u202eECC\x9b31m `${window.owned=1}`"
)
"""A log line by somebody who hopes that it is shown as it is."""


class Scene(NamedTuple):
    """One incident."""

    id: str
    job: int
    name: str
    user: str
    ago: timedelta
    """When it was detected."""
    kind: Interruption
    nodes: tuple[str, ...]
    phase: Phase
    mode: Mode = Mode.APPROVE
    partition: str = "train"
    account: str = "nlp"
    late: float = 1.8
    """Seconds from the failure to its detection."""
    step: int = 48211
    confirmed: str = "the attempt is no longer running: Slurm shows FAILED"
    diagnosis: Callable[[str], Diagnosis] | None = None
    """Given the path of the job's log."""
    restart: Restart = Restart.REQUEUE
    exclude: tuple[str, ...] = ()
    drain: tuple[str, ...] = ()
    cancel: bool = False
    expires: timedelta = timedelta(minutes=30)
    approvers: Mapping[Right, int] = {}
    said: tuple[tuple[float, str, bool, str], ...] = ()
    """Seconds after the detection, by whom, whether approved, why."""
    drained: tuple[tuple[float, str], ...] = ()
    again: float = 0.0
    """Seconds after the detection when it ran again; 0: it does not."""
    outcome: Outcome | None = None
    reason: str = ""
    steps: tuple[tuple[float, str, str], ...] = ()
    """Of one that ended: seconds after the detection, name and text."""
    todo: str = ""


def _xid(log: str) -> Diagnosis:
    root = Evidence(
        source=Source.KERNEL_LOG,
        node="gpu-012",
        gpu="0000:5d:00",
        file="kernel log of gpu-012",
        text="NVRM: Xid (PCI:0000:5d:00): 79, pid=214406, name=python3, GPU has fallen off the bus.",
    )
    said = Evidence(
        source=Source.JOB_LOG,
        text="RuntimeError: CUDA error: unspecified launch failure",
        node="gpu-012",
        rank=93,
        file=log,
        line=81422,
    )
    verdict = Hypothesis(
        signature="XID_79_OFF_THE_BUS",
        category=Category.GPU,
        action=Action.RESTART_EXCLUDING_NODE,
        action_if_it_repeats=Action.STOP,
        confidence=0.97,
        implicated=Implicated(ranks=(93,), nodes=("gpu-012",), gpus=("0000:5d:00",)),
        summary="GPU 0000:5d:00 on gpu-012 has fallen off the bus (Xid 79)",
        drain_nodes=("gpu-012",),
        evidence=(root, said),
    )
    other = Hypothesis(
        signature="NCCL_TIMEOUT",
        category=Category.NETWORK,
        action=Action.RESTART,
        action_if_it_repeats=Action.STOP,
        confidence=0.02,
    )
    ranks = [RankRow(rank=93, node="gpu-012", gpu="0000:5d:00", last_step=48211, said="CUDA_LAUNCH_FAILURE")]
    ranks += [
        RankRow(rank=r, node=f"gpu-{1 + r // 8:03}", last_step=48211, said="NCCL_TIMEOUT" if r % 3 else "")
        for r in (*range(88, 93), 94, 95)
    ]
    ranks += [
        RankRow(rank=r, node=f"gpu-{1 + r // 8:03}", last_step=48211, said="NCCL_TIMEOUT") for r in range(96, 112)
    ]
    lines = (
        "step 48209/250000 | loss 2.0131 | 412.7k tok/s",
        "step 48210/250000 | loss 2.0127 | 413.0k tok/s",
        "step 48211/250000 | loss 2.0119 | 412.9k tok/s",
        "[rank93]: RuntimeError: CUDA error: unspecified launch failure",
        HOSTILE,
        "[rank92]: Watchdog caught collective operation timeout: WorkNCCL(SeqNum=911204, OpType=ALLREDUCE)",
    )
    return Diagnosis(
        hypotheses=(verdict, other),
        suspects=(Suspect(node="gpu-012", score=4.5, why=("Xid 79", "first to fail")),),
        echoes=1534,
        folded=(
            Echo(
                signature="NCCL_TIMEOUT", lines=1530, ranks=127, example="Watchdog caught collective operation timeout"
            ),
            Echo(signature="TORCHRUN_CHILD_FAILED", lines=4, example="Root Cause (first observed failure)"),
        ),
        around=tuple(Nearby(line=81419 + n, text=text) for n, text in enumerate(lines)),
        ranks=tuple(ranks),
        would_change=("the kernel log of gpu-012 after a reboot: a card that comes back is reset, not replaced",),
        failed_step=48211,
    )


def _hang(log: str) -> Diagnosis:
    quiet = Evidence(source=Source.PROGRESS, text="no step for 214 s; a step takes 2.3 s", file=log, line=220114)
    idle = Evidence(
        source=Source.NVML, text="7 of 8 GPUs at 100 % with 118 W, GPU 0000:1b:00 at 0 %", node="gpu-044", rank=344
    )
    verdict = Hypothesis(
        signature="SILENT_RANK",
        category=Category.NODE,
        action=Action.RESTART_EXCLUDING_NODE,
        action_if_it_repeats=Action.STOP,
        confidence=0.71,
        implicated=Implicated(ranks=(344,), nodes=("gpu-044",)),
        summary="rank 344 on gpu-044 never joined the collective that all others wait in",
        evidence=(quiet, idle),
    )
    return Diagnosis(
        hypotheses=(verdict,), echoes=0, unreadable=("kernel log of gpu-044: permission denied",), failed_step=9120
    )


def _code(log: str) -> Diagnosis:
    line = Evidence(
        source=Source.JOB_LOG,
        text="AttributeError: 'Transformer' object has no attribute 'forwrad'",
        rank=0,
        file=log,
        line=212,
    )
    verdict = Hypothesis(
        signature="PYTHON_EXCEPTION",
        category=Category.USER_CODE,
        action=Action.STOP,
        action_if_it_repeats=Action.STOP,
        confidence=0.93,
        summary="the training script raised AttributeError: a retry would fail the same way",
        evidence=(line,),
    )
    return Diagnosis(hypotheses=(verdict,))


def _lost(log: str) -> Diagnosis:
    del log
    seen = Evidence(
        source=Source.SLURMCTLD, text="node gpu-057 not responding, setting DOWN", node="gpu-057", file="slurmctld"
    )
    verdict = Hypothesis(
        signature="NODE_LOST",
        category=Category.NODE,
        action=Action.RESTART_EXCLUDING_NODE,
        action_if_it_repeats=Action.RESTART_EXCLUDING_NODE,
        confidence=0.99,
        implicated=Implicated(nodes=("gpu-057",)),
        summary="gpu-057 stopped responding and Slurm set it down",
        drain_nodes=("gpu-057",),
        evidence=(seen,),
    )
    return Diagnosis(hypotheses=(verdict,), failed_step=1840)


def _nothing(log: str) -> Diagnosis:
    line = Evidence(
        source=Source.JOB_LOG, text="srun: error: gpu-071: task 9: Exited with exit code 1", file=log, line=9042
    )
    verdict = Hypothesis(
        signature="UNKNOWN",
        category=Category.UNKNOWN,
        action=Action.RESTART,
        action_if_it_repeats=Action.STOP,
        confidence=0.2,
        summary="nothing that was read names a cause",
        evidence=(line,),
    )
    return Diagnosis(hypotheses=(verdict,))


def _range(first: int, last: int) -> tuple[str, ...]:
    return tuple(f"gpu-{n:03}" for n in range(first, last + 1))


_SLURM = "job is FAILED (exit code 1:0, restarts 0)"
_FIRST = (
    (0.0, "detected", f"crash: {_SLURM}"),
    (0.6, "confirmed", "the attempt is no longer running: Slurm shows FAILED"),
)
ALL: tuple[Scene, ...] = (
    Scene(
        "i0000000a01",
        48611,
        "mixtral-sft",
        "carol",
        timedelta(days=3),
        Interruption.CRASH,
        _range(30, 33),
        Phase.CLOSED,
        diagnosis=_code,
        restart=Restart.NONE,
        outcome=Outcome.STOPPED,
        reason="the training script raised AttributeError: a retry would fail the same way",
        steps=(
            *_FIRST,
            (2.1, "diagnosed", "the training script raised AttributeError"),
            (2.3, "planned", "leave it as it is [approve]"),
            (2.4, "stopped", "a retry would fail the same way"),
        ),
    ),
    Scene(
        "i0000000b02",
        48630,
        "vit-large",
        "dmitri",
        timedelta(hours=30),
        Interruption.CRASH,
        _range(70, 71),
        Phase.CLOSED,
        diagnosis=_nothing,
        outcome=Outcome.EXPIRED,
        reason="nobody decided within 30 min",
        todo="job 48630 still stands failed: scontrol requeue 48630, or relight show i0000000b02",
        steps=(
            *_FIRST,
            (2.1, "diagnosed", "nothing that was read names a cause"),
            (2.3, "planned", "requeue job 48630 [approve]"),
            (1802.0, "expired", "nobody decided within 30 min"),
        ),
    ),
    Scene(
        "i0000000c03",
        48644,
        "dpo-sweep",
        "erin",
        timedelta(hours=21),
        Interruption.CRASH,
        _range(60, 63),
        Phase.CLOSED,
        diagnosis=_nothing,
        outcome=Outcome.OVERRIDDEN,
        reason="erin cancelled the job first",
        steps=(
            *_FIRST,
            (2.1, "diagnosed", "nothing that was read names a cause"),
            (2.3, "planned", "requeue job 48644 [approve]"),
            (61.0, "overridden", "erin cancelled the job first"),
        ),
    ),
    Scene(
        "i0000000d04",
        48652,
        "whisper-finetune",
        "bob",
        timedelta(hours=11),
        Interruption.CRASH,
        _range(50, 51),
        Phase.CLOSED,
        Mode.AUTO,
        diagnosis=_nothing,
        outcome=Outcome.RESTARTED_NO_PROGRESS,
        reason="the new attempt is FAILED without passing step 48211",
        steps=(
            *_FIRST,
            (2.1, "diagnosed", "nothing that was read names a cause"),
            (2.3, "planned", "requeue job 48652 [auto]"),
            (3.0, "requeued", "Slurm shows restart 1, PENDING"),
            (14.0, "running", "running again on gpu-[050-051] (restart 1)"),
            (96.0, "no progress", "it is FAILED at step 48211 again"),
            (96.2, "restarted_no_progress", "the new attempt is FAILED without passing step 48211"),
        ),
    ),
    Scene(
        "i0000000e05",
        48660,
        "vit-large",
        "dmitri",
        timedelta(hours=6),
        Interruption.STRAGGLER,
        _range(72, 75),
        Phase.CLOSED,
        Mode.MONITOR,
        partition="dev",
        diagnosis=_hang,
        outcome=Outcome.OBSERVED,
        reason="mode monitor: nothing was touched",
        steps=(
            (0.0, "detected", "straggler: 22 % slower than itself"),
            (2.1, "diagnosed", "rank 344 on gpu-044 lags"),
            (2.3, "planned", "would have: requeue [monitor]"),
            (2.4, "observed", "mode monitor"),
        ),
    ),
    Scene(
        "i07be11ab02",
        48671,
        "llama3-70b-pretrain",
        "alice",
        timedelta(minutes=93),
        Interruption.NODE_LOST,
        _range(52, 59),
        Phase.CLOSED,
        Mode.AUTO,
        step=1840,
        diagnosis=_lost,
        exclude=("gpu-057",),
        drain=("gpu-057",),
        drained=((2.6, "gpu-057"),),
        again=12.0,
        outcome=Outcome.RECOVERED,
        reason="step 1841, past step 1840",
        steps=(
            (0.0, "detected", "node_lost: gpu-057 does not respond"),
            (0.6, "confirmed", "Slurm shows NODE_FAIL"),
            (2.1, "diagnosed", "gpu-057 stopped responding and Slurm set it down"),
            (2.3, "planned", "requeue job 48671 excluding gpu-057; drain gpu-057 [auto]"),
            (3.2, "drained", "gpu-057 has the drain flag"),
            (4.0, "outputs kept", "2 files"),
            (6.0, "requeued", "Slurm shows restart 1, PENDING"),
            (6.4, "excluded", "gpu-057"),
            (12.0, "running", "running again on gpu-[052-056,058-060] (restart 1)"),
            (48.0, "progress", "step 1841, past step 1840"),
            (48.1, "recovered", "step 1841, past step 1840"),
        ),
    ),
    Scene(
        "i0000000f06",
        48690,
        "mixtral-sft",
        "carol",
        timedelta(minutes=2),
        Interruption.CRASH,
        _range(34, 37),
        Phase.VERIFYING,
        Mode.AUTO,
        diagnosis=_nothing,
        again=13.0,
    ),
    Scene(
        "i00000010a7",
        48702,
        "dpo-sweep",
        "erin",
        timedelta(minutes=9),
        Interruption.HANG,
        _range(41, 56),
        Phase.PLANNING,
        step=9120,
        late=214,
        confirmed="no step for 214 s, and its GPUs idle",
        diagnosis=_hang,
        exclude=("gpu-044",),
        cancel=False,
        expires=timedelta(minutes=20),
        approvers={Right.RESTART: 2},
        said=((212.0, "ada", True, "seen the same on gpu-044 last week"),),
    ),
    Scene(
        "i3fa9c1d2e4",
        48711,
        "llama3-70b-pretrain",
        "alice",
        timedelta(minutes=4),
        Interruption.CRASH,
        _range(1, 16),
        Phase.PLANNING,
        diagnosis=_xid,
        exclude=("gpu-012",),
        drain=("gpu-012",),
    ),
    Scene(
        "i00000011b8",
        48720,
        "whisper-finetune",
        "bob",
        timedelta(seconds=3),
        Interruption.CRASH,
        _range(24, 25),
        Phase.CONFIRMING,
    ),
)
"""Oldest first."""
_M, _H = timedelta(minutes=1), timedelta(hours=1)
CARE: tuple[tuple[str, str, str, tuple[tuple[timedelta, str, str, str, dict[str, Any]], ...]], ...] = (
    (
        "gpu-057",
        "i07be11ab02",
        "NODE_LOST",
        (
            (92 * _M, "1-begun", "draining", "drained for incident i07be11ab02", {}),
            (90 * _M, "2-drained", "checking", "drained: no job, no step, nothing completing", {}),
            (
                71 * _M,
                "3-checked",
                "checking",
                "8 of 8 GPUs answer; NVLink all up; 1 of 3 checks failed: fabric 40 % below its peers",
                {},
            ),
            (
                70 * _M,
                "judged-1",
                "kept",
                "stays out: fabric bandwidth 40 % below its peers",
                {"next": "keep", "remedy": "cable or HCA"},
            ),
        ),
    ),
    (
        "gpu-031",
        "i0000000a00",
        "XID_48",
        (
            (26 * _H, "1-begun", "draining", "drained for incident i0000000a00", {}),
            (25 * _H, "2-drained", "checking", "drained", {}),
            (
                24 * _H,
                "judged-1",
                "waiting",
                "checks passed; a lemon: a person is asked before it returns",
                {"next": "return"},
            ),
        ),
    ),
    (
        "gpu-007",
        "i0000000900",
        "ECC_UNCORRECTABLE",
        (
            (75 * _H, "1-begun", "draining", "drained for incident i0000000900", {}),
            (74 * _H, "judged-1", "returning", "checks passed", {"next": "return"}),
            (74 * _H, "5-ended", "closed", "back in service", {"outcome": "returned"}),
        ),
    ),
)
"""Node, incident, cause, and the steps of its quarantine."""
