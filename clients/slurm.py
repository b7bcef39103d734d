"""The contract with Slurm. Each implementation is a file beside this one.

    SlurmError
    ├── SlurmUnavailableError    no answer, late, partial or garbled: nothing is known. Trying again helps.
    │   ├── SlurmBusyError       slurmctld asks to be left alone for a moment. Trying again later helps.
    │   └── SlurmVersionError    it answers, in a release that ours cannot talk to: nothing was written. Only an upgrade
    │                            helps.
    ├── JobNotFoundError         slurmctld does not (or no longer) know the job. Trying again does not help.
    ├── NodeNotFoundError        no such node. Trying again does not help.
    ├── NotPermittedError        this principal may not do that. Trying again does not help.
    ├── RefusedError             Slurm says no for a reason of its own (state, syntax). Trying again does not help.
    └── AmbiguousWriteError      a write was sent and its answer was lost: look before doing anything else.

A read that fails raises; it never returns an empty collection.
"""

from datetime import timedelta
from math import ceil
from typing import Protocol

from relight.domain.resubmission import Submission
from relight.domain.slurm import AccountingRow, JobRecord, NodeRecord, SlurmFacts, StepRecord
from relight.domain.topology import Topology

MOST_START_WAIT = timedelta(days=10)
"""The longest that a job's start may be put off by `start_after`; relight-gate lets no more through."""


class SlurmError(Exception):
    """Root of everything that Slurm access can raise."""


class SlurmUnavailableError(SlurmError):
    """No usable answer: nothing is known of the state asked for."""


class SlurmBusyError(SlurmUnavailableError):
    """slurmctld answered that it is busy."""


class SlurmVersionError(SlurmUnavailableError):
    """Slurm runs, but its release and that of our commands or library cannot talk to each other."""


class JobNotFoundError(SlurmError):
    """slurmctld knows no such job: never existed, or purged after MinJobAge."""


class NodeNotFoundError(SlurmError):
    """slurmctld knows no such node."""


class NotPermittedError(SlurmError):
    """The principal lacks the right."""


class RefusedError(SlurmError):
    """Slurm understood and refused."""


class AmbiguousWriteError(SlurmError):
    """A write may or may not have taken effect."""


class Slurm(Protocol):
    """Reads and writes with the rights of Slurm's Operator level."""

    async def jobs(self) -> tuple[JobRecord, ...]:
        """All jobs that slurmctld holds, ended ones within MinJobAge included, in one read."""

    async def job(self, job_id: int) -> JobRecord:
        """One job, freshly read.

        Raises:
            JobNotFoundError: when slurmctld does not know it.
        """

    async def nodes(self) -> tuple[NodeRecord, ...]:
        """All nodes, in one read."""

    async def node(self, name: str) -> NodeRecord:
        """One node, freshly read.

        Raises:
            NodeNotFoundError: when there is none of that name.
        """

    async def steps(self, job_id: int) -> tuple[StepRecord, ...]:
        """The steps of a job that run now, its batch script included; empty where none does.

        Raises:
            JobNotFoundError: when slurmctld does not know the job.
        """

    async def executions(self, job_id: int) -> tuple[AccountingRow, ...]:
        """Every execution of a job in the accounting database (`sacct --duplicates`), oldest first.

        Raises:
            SlurmUnavailableError: also where accounting is off.
        """

    async def batch_script(self, job_id: int) -> str:
        """The batch script as submitted.

        Raises:
            JobNotFoundError: when slurmctld does not know the job.
            NotPermittedError: when the principal may not read it.
        """

    async def cpu_time(self, job_id: int) -> timedelta | None:
        """CPU time used so far by all tasks of the running job's steps, or None where Slurm does not say."""

    async def topology(self) -> Topology:
        """The cluster's failure domains as Slurm knows them; without any where it is told of no topology."""

    async def facts(self) -> SlurmFacts:
        """Version and the settings that decide how to act."""

    async def requeue(self, job_id: int) -> None:
        """End the attempt where it still runs and queue the job again (`scontrol requeue`)."""

    async def exclude(self, job_id: int, nodes: tuple[str, ...]) -> None:
        """Make this the job's whole ExcNodeList; an empty tuple clears it. Not possible while RUNNING."""

    async def start_now(self, job_id: int) -> None:
        """Set StartTime=now on a pending job."""

    async def start_after(self, job_id: int, wait: timedelta) -> None:
        """Set StartTime so long from now on a pending job: Slurm then starts it by itself. Parts of a second count up.

        Raises:
            RefusedError: also for a wait that is not positive, or longer than `MOST_START_WAIT`.
        """

    async def depend(self, job_id: int, dependency: str) -> None:
        """Make this the whole Dependency of a pending job; Slurm judges it anew, whatever it judged before.

        A record that stands for several pending tasks of an array is changed as a whole.

        Raises:
            RefusedError: also for a text that is no dependency, which is never sent.
        """

    async def hold(self, job_id: int) -> None:
        """Keep a job from starting until it is released (`scontrol hold`); its owner cannot release it.

        A running job runs on, and is held once it is queued again (seen on 22.05, 24.11 and 26.05).
        """

    async def release(self, job_id: int) -> None:
        """Undo a hold, if there is one; the job may start again once its begin time has passed."""

    async def cancel(self, job_id: int) -> None:
        """Cancel the job (`scancel`)."""

    async def submit_batch(self, script: str, work_dir: str, *, held: bool = False) -> int:
        """Submit a batch script as the principal itself; its `#SBATCH` lines count. Returns the job id.

        Held, it is a user's hold: the principal's own, which `release` undoes.

        Raises:
            AmbiguousWriteError: the answer was lost: the job may be queued, and its id is not known.
        """


def start_seconds(wait: timedelta) -> int:
    """Whole seconds of a wait, counted up.

    Raises:
        RefusedError: when it is not positive or too long.
    """
    if not timedelta(0) < wait <= MOST_START_WAIT:
        raise RefusedError(f"a start can be put off by up to {MOST_START_WAIT}, not by {wait}")
    return ceil(wait.total_seconds())


class Submitter(Protocol):
    """Submits as a job's own user, which an Operator cannot: through the program `relight-submit`."""

    async def submit_anew(self, sent: Submission) -> int:
        """Submit it as its user, held. Returns the job's id.

        Raises:
            RefusedError: by the program, where it may not or the environment is not on record, or by sbatch.
            AmbiguousWriteError: the answer was lost: the job may be queued, and its id is not known.
        """


class NodeControl(Protocol):
    """Node changes, which an Operator cannot make: through the root-owned wrapper `relight-node`."""

    async def drain(self, node: str, reason: str) -> None:
        """Drain one node with a reason that begins with `relight:`.

        Raises:
            RefusedError: when the wrapper refuses (its own hourly cap, a foreign mark, a strange name).
        """

    async def undrain(self, node: str) -> None:
        """Return a node to service whose reason begins with `relight:`.

        Raises:
            RefusedError: when the reason is not ours.
        """

    async def down(self, node: str, reason: str) -> None:
        """Set a node that cannot end its jobs to DOWN, with a reason that begins with `relight:`."""

    async def action(self, node: str, word: str) -> None:
        """Put `Action:Reboot` or `Action:Replace` (the word alone is given) in place of a mark of ours: State=FAIL.

        Raises:
            RefusedError: when the node is not drained with a mark of ours, or is not empty.
        """
