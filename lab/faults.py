"""Faults, inflicted on a running job of a lab cluster.

It reads as a script:

inject(cluster, job, crash(rank=5))          # one process dies
inject(cluster, job, hang(rank=2))           # one process stands still, the others wait for it
inject(cluster, job, gpu(rank=3, xid=48))    # a GPU fails: in the kernel's log and in the rank's
inject(cluster, job, node())                 # the job's first node loses its power
inject(cluster, job, bug(step=120))          # the user's code fails, at the same step in each attempt
inject(cluster, job, slow(rank=3))           # one process takes half as long again for a step, the others wait for it
inject(cluster, job, nan(rank=0))            # the loss becomes NaN, and the job runs on
inject(cluster, job, badckpt(rank=3))        # the newest checkpoint is cut short, and one process dies
"""

import os
import signal
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Protocol

from pydantic import AwareDatetime, BaseModel, ConfigDict

from relight.lab import fault_rules, sharded
from relight.lab.cluster import Cluster
from relight.lab.fault_rules import Deed, FaultRule
from relight.lab.processes import Process, environ, pids
from relight.lab.xids import PCI_ADDRESSES, XIDS


class RankNotFoundError(Exception):
    """The job has no running process of that rank."""


class JobNotFoundError(Exception):
    """The cluster knows no such job, or it is not running."""


class NoCheckpointError(Exception):
    """The job has no checkpoint yet that could be damaged."""


class UnknownFaultError(ValueError):
    """No fault is called that; the message lists those there are."""


class Injection(BaseModel):
    """A fault as it was inflicted."""

    model_config = ConfigDict(frozen=True)

    job_id: int
    fault: str
    """As `parse` reads it, such as `crash:rank=5`."""
    node: str | None
    """Where; None when the fault waits in faults.json and rank and node are not yet known."""
    rank: int | None
    pid: int | None
    """Of the process that was hit, as seen outside the node."""
    at: AwareDatetime
    """UTC, taken right before the deed."""


@dataclass(frozen=True)
class Rank:
    """One running process of a job."""

    rank: int
    node: str
    local_rank: int
    gpu: int
    process: Process


@dataclass(frozen=True)
class Scene:
    """A running job on its cluster: what a fault may touch."""

    cluster: Cluster
    job_id: int
    run: Path
    batch_host: str
    attempt: int

    def rank(self, number: int) -> Rank:
        """Return a rank's process; RankNotFoundError when it does not run."""
        running = {rank.rank: rank for rank in ranks(self.cluster, self.job_id)}
        if number not in running:
            there = ", ".join(map(str, sorted(running))) or "none"
            raise RankNotFoundError(f"job {self.job_id} has no running rank {number}; running: {there}")
        return running[number]


class Fault(Protocol):
    """Something that can befall a job."""

    def inflict(self, scene: Scene) -> tuple[str | None, Rank | None]:
        """Do it; return the node and the rank that were hit, where known."""

    def __str__(self) -> str:
        """Return it as `parse` reads it."""


@dataclass(frozen=True)
class crash:  # noqa: N801 -- these read as verbs in a script
    """One rank's process dies at once (SIGKILL)."""

    rank: int

    def inflict(self, scene: Scene) -> tuple[str | None, Rank | None]:
        """Kill it."""
        victim = scene.rank(self.rank)
        victim.process.signal(signal.SIGKILL)
        return victim.node, victim

    def __str__(self) -> str:
        return f"crash:rank={self.rank}"


@dataclass(frozen=True)
class hang:  # noqa: N801
    """One rank's process stands still (SIGSTOP); the others wait for it in their next collective."""

    rank: int

    def inflict(self, scene: Scene) -> tuple[str | None, Rank | None]:
        """Stop it."""
        victim = scene.rank(self.rank)
        victim.process.signal(signal.SIGSTOP)
        return victim.node, victim

    def __str__(self) -> str:
        return f"hang:rank={self.rank}"


@dataclass(frozen=True)
class gpu:  # noqa: N801
    """The GPU of one rank fails: Xid lines in its node's kernel log, then the error that PyTorch raises of it."""

    rank: int
    xid: int = 48

    def __post_init__(self) -> None:
        """Refuse an Xid whose texts are not known."""
        if self.xid not in XIDS:
            raise UnknownFaultError(f"no text for Xid {self.xid}; known: {', '.join(map(str, XIDS))}")

    def inflict(self, scene: Scene) -> tuple[str | None, Rank | None]:
        """Write the kernel's lines and the rank's rule, in the order in which a real GPU would."""
        victim = scene.rank(self.rank)
        log = scene.cluster.kernel_log(victim.node)
        kind = XIDS[self.xid]
        with log.open("a") as stream:
            stream.writelines(kernel_lines(victim, self.xid, datetime.now(UTC)))
        rule = FaultRule(rank=self.rank, do=Deed.ECC, attempts=(scene.attempt,), text=kind.cuda_text)
        fault_rules.add(scene.run, rule)
        return victim.node, victim

    def __str__(self) -> str:
        return f"gpu:rank={self.rank},xid={self.xid}"


@dataclass(frozen=True)
class node:  # noqa: N801
    """A node loses its power.

    By default it is the job's first, where its batch script runs: then the job ends as NODE_FAIL or is requeued by
    Slurm. When another node dies, srun ends first and the job is FAILED.
    """

    name: str | None = None

    def inflict(self, scene: Scene) -> tuple[str | None, Rank | None]:
        """Kill it."""
        name = self.name or scene.batch_host
        scene.cluster.kill_node(name)
        return name, None

    def __str__(self) -> str:
        return f"node:name={self.name}" if self.name else "node"


@dataclass(frozen=True)
class bug:  # noqa: N801
    """The user's code raises the same exception in every attempt: at one step, or at once when none is given."""

    step: int | None = None
    rank: int = 0

    def inflict(self, scene: Scene) -> tuple[str | None, Rank | None]:
        """Leave the rule for the ranks to find."""
        fault_rules.add(scene.run, FaultRule(rank=self.rank, do=Deed.RAISE, step=self.step))
        return None, None

    def __str__(self) -> str:
        return "bug" if self.step is None else f"bug:step={self.step},rank={self.rank}"


@dataclass(frozen=True)
class slow:  # noqa: N801
    """One rank takes longer for each step of this attempt."""

    rank: int
    percent: int = 50
    """How much longer."""

    def inflict(self, scene: Scene) -> tuple[str | None, Rank | None]:
        """Leave the rule for the rank to find."""
        victim, times = scene.rank(self.rank), 1 + self.percent / 100
        rule = FaultRule(rank=self.rank, do=Deed.SLOW, attempts=(scene.attempt,), times=times)
        fault_rules.add(scene.run, rule)
        return victim.node, victim

    def __str__(self) -> str:
        return f"slow:rank={self.rank},percent={self.percent}"


@dataclass(frozen=True)
class nan:  # noqa: N801
    """The gradients of one rank become NaN, and with them the loss of all; the job runs on."""

    rank: int

    def inflict(self, scene: Scene) -> tuple[str | None, Rank | None]:
        """Leave the rule for the rank to find."""
        victim = scene.rank(self.rank)
        fault_rules.add(scene.run, FaultRule(rank=self.rank, do=Deed.NAN, attempts=(scene.attempt,)))
        return victim.node, victim

    def __str__(self) -> str:
        return f"nan:rank={self.rank}"


@dataclass(frozen=True)
class badckpt:  # noqa: N801
    """The newest checkpoint loses half of one of its files, and one rank's process dies (SIGKILL)."""

    rank: int

    def inflict(self, scene: Scene) -> tuple[str | None, Rank | None]:
        """Cut, then kill."""
        victim = scene.rank(self.rank)
        newest = sharded.newest(scene.run / "checkpoints")
        if newest is None or not (newest / sharded.STATE).exists():
            raise NoCheckpointError(f"no whole checkpoint in {scene.run}: submit the job with sharded checkpoints")
        file = newest / sharded.shard(sharded.SHARDS - 1)
        os.truncate(file, file.stat().st_size // 2)
        victim.process.signal(signal.SIGKILL)
        return victim.node, victim

    def __str__(self) -> str:
        return f"badckpt:rank={self.rank}"


def inject(cluster: Cluster, job_id: int, fault: Fault) -> Injection:
    """Inflict a fault on a running job and return what was done, where and when.

    Raises JobNotFoundError, RankNotFoundError or `cluster.NodeNotFoundError`.
    """
    scene = look_at(cluster, job_id)
    at = datetime.now(UTC)
    where, rank = fault.inflict(scene)
    return Injection(
        job_id=job_id,
        fault=str(fault),
        node=where,
        rank=rank.rank if rank else None,
        pid=rank.process.pid if rank else None,
        at=at,
    )


def look_at(cluster: Cluster, job_id: int) -> Scene:
    """Return the scene of a running job."""
    fields = {name: cluster.job_field(job_id, name) for name in ("JobState", "WorkDir", "BatchHost", "Restarts")}
    if fields["JobState"] is None:
        raise JobNotFoundError(f"no job {job_id} in the cluster of {cluster.folder}")
    if fields["JobState"] != "RUNNING":
        raise JobNotFoundError(f"job {job_id} is {fields['JobState']}, not RUNNING")
    return Scene(
        cluster=cluster,
        job_id=job_id,
        run=Path(fields["WorkDir"] or ""),
        batch_host=fields["BatchHost"] or "",
        attempt=int(fields["Restarts"] or 0),
    )


def ranks(cluster: Cluster, job_id: int) -> list[Rank]:
    """Return the running ranks of a job, by rank.

    Found by their environment. SLURM_CONF tells the cluster: another one beside it counts job ids from 1 as well.
    """
    found = {rank.rank: rank for rank in _candidates(cluster, job_id)}
    return [found[number] for number in sorted(found)]


def kernel_lines(victim: Rank, xid: int, at: datetime) -> Iterator[str]:
    """Yield the lines that the NVIDIA driver logs, as rsyslog writes them with ISO time stamps."""
    pci = PCI_ADDRESSES[victim.gpu % len(PCI_ADDRESSES)]
    for number, text in XIDS[xid].lines:
        head = f"{at.isoformat(timespec='microseconds')} {victim.node} kernel: NVRM: Xid (PCI:{pci})"
        yield f"{head}: {number}, {text.format(pid=victim.process.pid)}\n"


FAULTS: dict[
    str, type[crash] | type[hang] | type[gpu] | type[node] | type[bug] | type[slow] | type[nan] | type[badckpt]
] = {
    "crash": crash,
    "hang": hang,
    "gpu": gpu,
    "node": node,
    "bug": bug,
    "slow": slow,
    "nan": nan,
    "badckpt": badckpt,
}


def parse(text: str) -> Fault:
    """Return the fault that `NAME[:KEY=VALUE,...]` names, such as `gpu:rank=3,xid=79`; UnknownFaultError otherwise."""
    name, _, rest = text.partition(":")
    if name not in FAULTS:
        raise UnknownFaultError(f"no fault {name!r}; there are {', '.join(FAULTS)}")
    pairs = dict(pair.partition("=")[::2] for pair in rest.split(",") if pair)
    try:
        return FAULTS[name](**{key: value if key == "name" else int(value) for key, value in pairs.items()})  # type: ignore[arg-type]
    except (TypeError, ValueError) as error:
        raise UnknownFaultError(f"cannot read {text!r}: {error}") from None


def _candidates(cluster: Cluster, job_id: int) -> Iterator[Rank]:
    wanted = {f"SLURM_JOB_ID={job_id}".encode(), f"SLURM_CONF={cluster.slurm_conf}".encode()}
    # Newest first: of a rank and the processes it has started, the rank comes last and so stays.
    for pid in sorted(pids(), reverse=True):
        entries = environ(pid)
        # The batch script has a SLURM_PROCID too, but no step.
        if not wanted <= set(entries) or not (process := Process.of(pid)):
            continue
        variables = dict(entry.decode(errors="replace").partition("=")[::2] for entry in entries)
        if "SLURM_STEP_ID" in variables and "SLURM_PROCID" in variables:
            yield _rank(variables, process)


def _rank(variables: dict[str, str], process: Process) -> Rank:
    local_rank = int(variables["SLURM_LOCALID"])
    gpus = [int(number) for number in variables.get("CUDA_VISIBLE_DEVICES", "").split(",") if number.isdigit()]
    return Rank(
        rank=int(variables["SLURM_PROCID"]),
        node=variables["SLURMD_NODENAME"],
        local_rank=local_rank,
        gpu=gpus[local_rank] if local_rank < len(gpus) else local_rank,
        process=process,
    )
