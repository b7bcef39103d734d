"""What node agents tell the controller, and what it asks of them: one POST carries a report, its answer the questions.

A report is platform evidence: only the node's own agent can sign for it (`agent_token`), and users' code on the node
cannot read its key.
"""

import hmac
from datetime import datetime
from enum import StrEnum
from typing import NamedTuple

from pydantic import Field

from relight.domain.base import Value

MAX_FAULTS = 64
"""A report carries no more; the rest follows with the next one."""
MAX_GPUS = 32
MAX_PROBES = 8
MAX_RELAYED = 256
"""Reports in one batch of a relay, which has one `RelayedReport` in each line."""


class FaultKind(StrEnum):
    """What can be wrong with a node, as its agent sees it."""

    XID = "xid"
    SXID = "sxid"
    GPU_LOST = "gpu_lost"
    RECOVERY_ACTION = "recovery_action"
    """The driver asks for a reset, a reboot or a drain of the GPU."""
    ECC = "ecc"
    ROW_REMAP = "row_remap"
    NVLINK = "nvlink"
    PCIE = "pcie"
    FABRIC = "fabric"
    """InfiniBand or RoCE: a port went down, an mlx5 fatal error."""
    OOM_KILL = "oom_kill"
    DISK_FULL = "disk_full"
    STALE_MOUNT = "stale_mount"
    THROTTLED = "throttled"
    """Clocks are held down by heat, power or hardware. Explains a straggler; is none by itself."""


class NodeFault(Value):
    """One fault, at once when it is seen."""

    id: str = Field(max_length=200)
    """Deterministic: the same fault seen twice, or by NVML and in the kernel log, has the same id."""
    kind: FaultKind
    at: datetime
    text: str = Field(max_length=600)
    """As the driver or the kernel told it, or what was measured."""
    source: str = Field(pattern="^(nvml|kernel_log|host|dcgm|exporter)$")
    gpu: str = ""
    """PCI address `0000:43:00`, empty where it concerns no GPU."""
    xid: int | None = None
    pid: int | None = None
    """The process that the fault names."""
    after: datetime | None = None
    """It happened between then and `at`, where the source looks from time to time only."""
    cleared: bool = False
    """True when a state that was told before (a full disk, a stale mount, throttling) is over."""


class GpuState(Value):
    """One GPU, now. None: the driver does not say."""

    gpu: str
    """PCI address."""
    index: int
    power_w: float | None = None
    utilisation: float | None = None
    """Share of the last second in which a kernel ran, 0 to 1: 1 also while a collective spins."""
    temperature_c: float | None = None
    sm_clock_mhz: float | None = None
    throttle: tuple[str, ...] = ()
    pids: tuple[int, ...] = ()


class GpuNow(NamedTuple):
    """What is kept of a `GpuState`: there are a hundred thousand, and a model takes ten times as much memory."""

    gpu: str
    power_w: float | None = None
    utilisation: float | None = None
    sm_clock_mhz: float | None = None


class Beat(Value):
    """Every few seconds: the agent lives, and what its GPUs do."""

    at: datetime
    gpus: tuple[GpuState, ...] = Field(default=(), max_length=MAX_GPUS)
    blind: tuple[str, ...] = Field(default=(), max_length=16)
    """What the agent cannot see, and why: `nvml: driver not loaded`."""


class ProbeKind(StrEnum):
    """What an agent can be asked."""

    STACKS = "stacks"
    """Python stacks of a job's processes on the node (`py-spy dump --nonblocking`)."""
    CHECK = "check"
    """Whether the node is fit for work: it must be empty. Takes minutes."""


class ProbeRequest(Value):
    """A question to one node's agent, fetched with the answer to its next report."""

    id: str = Field(max_length=200)
    kind: ProbeKind
    job_id: int = 0
    """Whose stacks; 0 where it is about the node."""
    gpus: int = 0
    """Of a check: how many GPUs Slurm says the node has; 0: not known."""
    reach: tuple[str, ...] = Field(default=(), max_length=4)
    """Of a check: `host:port` of other nodes' slurmd."""


class Result(StrEnum):
    """How a check of a node went. Unknown is neither pass nor fail."""

    PASSED = "passed"
    FAILED = "failed"
    UNKNOWN = "unknown"
    """It could not be made, or did not end in time."""
    NOT_POSSIBLE = "not possible"
    """There is nothing to make it with or on: no GPU, no library, no script of the site's."""


class CheckName(StrEnum):
    """What a node's agent checks."""

    NVML = "nvml"
    """What the driver says of each GPU, twice: recovery action, ECC, row remapping, lost devices, NVLink counters."""
    EXERCISE = "exercise"
    """Memory of each GPU written and read back, and a product of matrices that is known exactly."""
    DISK = "disk"
    """Space left, and a file written and read back."""
    NETWORK = "network"
    """Connections to the controller and to other nodes' slurmd; fabric ports."""
    SCRIPT = "script"
    """The site's own, for example LBNL NHC."""


class NodeCheck(Value):
    """One check, made on the node by its agent."""

    name: CheckName
    result: Result
    text: str = Field(default="", max_length=600)
    """What was found, in one line."""
    seconds: float = 0.0
    output: str = Field(default="", max_length=16_000)
    """What a person may want to read besides: the script's output, all that the driver said."""


class GpuCard(Value):
    """What names one GPU for who repairs it. Empty: the driver does not say."""

    gpu: str
    """PCI address."""
    index: int
    uuid: str = ""
    serial: str = ""
    model: str = ""


class ProcessStack(Value):
    """The stack of one process, innermost frame first."""

    pid: int
    rank: int | None = None
    frames: tuple[str, ...] = Field(default=(), max_length=64)
    """`function (file:line)` each; empty where it could not be taken."""
    state: str = Field(default="", max_length=20)
    """`stopped` or `uninterruptible`, where the kernel shows it so; else empty."""
    cpu_s: float | None = None
    """CPU seconds that it has used, all its threads; None: not known."""
    problem: str = Field(default="", max_length=300)


class Usage(Value):
    """What all of a job's processes on a node have done since they began, Python or not."""

    processes: int
    others_cpu_s: float
    """CPU seconds of those of which there is no stack."""
    moved_bytes: int
    """Bytes that they read and wrote, as their calls and as the storage count them."""
    in_files: int
    """Threads that wait for a file system or a device now: uninterruptibly, or within a call on a file."""


class ProbeAnswer(Value):
    """What a probe found."""

    id: str = Field(max_length=200)
    at: datetime
    stacks: tuple[ProcessStack, ...] = Field(default=(), max_length=64)
    usage: Usage | None = None
    """None: not all of it can be read."""
    checks: tuple[NodeCheck, ...] = Field(default=(), max_length=8)
    cards: tuple[GpuCard, ...] = Field(default=(), max_length=MAX_GPUS)
    problem: str = Field(default="", max_length=300)


class Report(Value):
    """What one agent sends."""

    node: str = Field(min_length=1, max_length=255)
    boot: str = Field(max_length=64)
    """The kernel's boot id: a node that was rebooted is told from one that was silent."""
    version: str = ""
    sequence: int = 0
    """Grows by one with each report of this agent's life."""
    every: float = Field(default=5.0, gt=0, le=60)
    """Seconds from one beat to the next: after how long its silence means something."""
    beat: Beat | None = None
    faults: tuple[NodeFault, ...] = Field(default=(), max_length=MAX_FAULTS)
    answers: tuple[ProbeAnswer, ...] = Field(default=(), max_length=MAX_PROBES)


class Receipt(Value):
    """The controller's answer: what it has kept, and what it asks."""

    faults: int = 0
    """Faults of the report that are in the ledger now: the agent may forget them."""
    probes: tuple[ProbeRequest, ...] = Field(default=(), max_length=MAX_PROBES)


class RelayedReport(Value):
    """A report as it came to a relay, with the token that it came with."""

    token: str = Field(pattern="^[0-9a-f]{64}$")
    report: Report


class RelayedAnswer(Value):
    """What the controller would have answered to one of them."""

    status: int
    """HTTP's."""
    receipt: Receipt | None = None
    text: str = ""
    """Of a refusal."""
    retry_after: int = 0
    """Seconds."""


class RelayedAnswers(Value):
    """One for each report, in their order."""

    answers: tuple[RelayedAnswer, ...]


def agent_token(key: bytes, node: str) -> str:
    """The bearer token with which a node's agent speaks for that node and for no other.

    Also of slurmctld's hook and of relays, under names that no node may have.
    """
    return hmac.digest(key, f"relight-agent/{node}".encode(), "sha256").hex()
