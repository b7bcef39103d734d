"""Slurm by pyslurm: native RPCs, in a process of its own (`pyslurm_server.py` says why).

- Jobs and nodes come in the shape of `squeue --json` and go through the commands' own parsers, so both ways give equal
  records, but for three fields: as with 22.05's squeue, a flag such as COMPLETING hides the base state, since pyslurm
  tells only one word; `gpu` without a count is `gpu:1`; and a job that ended while it waited has one task, not none.
- Before each write the job is read, as the commands do it: they name a task of an array `2_3`, here there are numbers
  only. The number of a record names it alone, also where it is the array's own, in every RPC but one (seen on 26.05):
  cancelling it cancels every task of the array. The leader of a heterogeneous job is sometimes taken for all of it.
- What pyslurm cannot do, or not as Slurm's commands do it, is left to them: `DELEGATED`.
"""

import asyncio
import re
import subprocess
import sys
from collections.abc import Awaitable, Callable
from datetime import timedelta
from pathlib import Path
from typing import TypeVar

from relight.clients.slurm import (
    AmbiguousWriteError,
    JobNotFoundError,
    NodeNotFoundError,
    RefusedError,
    SlurmUnavailableError,
    start_seconds,
)
from relight.clients.slurm_commands import BIG_OUTPUT, DEFAULT_TIMEOUT, NODE_NAME, SlurmCommands, job_argument
from relight.clients.slurm_parse import GarbledError, ReportedError
from relight.clients.slurm_parse_jobs import parse_jobs
from relight.clients.slurm_parse_nodes import parse_nodes
from relight.clients.slurm_process import NotFinishedError, NotStartedError, command_environment
from relight.clients.slurm_pyslurm_errors import error_of_read, error_of_write
from relight.clients.slurm_pyslurm_parse import Records, parse_facts, parse_job_id, parse_script, parse_steps
from relight.clients.slurm_pyslurm_process import AnsweredError, PySlurmProcess
from relight.domain.slurm import AccountingRow, JobRecord, NodeRecord, SlurmFacts, StepRecord
from relight.domain.topology import Topology

T = TypeVar("T")

SERVER = Path(__file__).with_name("pyslurm_server.py")
DELEGATED = {
    "executions": "its database records are kept by job id: of the executions of a requeued job only the last is left",
    "cpu_time": "slurmd answers it to the owner, root and SlurmUser only; for the commands a prefix can be set",
    "topology": "it has no such call",
    "exclude with no nodes": "it sends no empty value: the list would stay as it is",
    "submit_batch with #SBATCH lines": "it reads these lines otherwise than sbatch, and leaves some out",
    "cancel of the task with the array's own id": "that number cancels every task of the array",
    "depend": "it is told by the id alone which pending tasks of an array are meant",
    "each write to a heterogeneous job": "exclude, hold, release and start times would reach the leader alone",
}
"""Operation to why Slurm's commands do it."""

_OPTIONS = re.compile(r"^#(SBATCH|PBS|BSUB)\b", re.MULTILINE)

_FIND = "import importlib.util, sys; sys.exit(importlib.util.find_spec('pyslurm') is None)"


def why_missing(python: str) -> str:
    """Why that Python has no pyslurm; empty where it has. It is looked for, not imported. Blocks: for a thread."""
    try:
        found = subprocess.run([python, "-I", "-c", _FIND], check=False, capture_output=True)
    except OSError as error:
        return f"{python} cannot be run: {error.strerror}"
    if found.returncode == 0:
        return ""
    return f"{python} has no pyslurm (deploy/build-pyslurm.sh builds it, against Slurm 25.11 and 26.05)"


class PySlurm:
    """The contract `Slurm`, by pyslurm. Serves any number of concurrent callers, one after the other.

    Args:
        commands: for what is `DELEGATED`.
        python: the Python that has pyslurm.
        slurm_conf: path of slurm.conf; None for the site's own.
        run_as: a command prefix that keeps the environment, for the process that holds pyslurm.
        timeout: for each request. A write that is late is ambiguous.
    """

    def __init__(
        self,
        commands: SlurmCommands,
        *,
        python: str = sys.executable,
        slurm_conf: str | None = None,
        run_as: tuple[str, ...] = (),
        timeout: timedelta = DEFAULT_TIMEOUT,
    ) -> None:
        self._commands = commands
        command = (*run_as, python, "-I", str(SERVER))
        self._process = PySlurmProcess(command, command_environment(slurm_conf, None), timeout)
        self._jobs = Records("jobs", parse_jobs)
        self._nodes = Records("nodes", parse_nodes)

    async def close(self) -> None:
        """End the process that holds pyslurm."""
        await self._process.close()

    # Reads

    async def jobs(self) -> tuple[JobRecord, ...]:
        """All jobs that slurmctld holds, ended ones within MinJobAge included, in one RPC."""
        return await self._read(self._jobs, "jobs")

    async def job(self, job_id: int) -> JobRecord:
        """One job, freshly read, in one RPC and a second for its steps where it has begun."""
        for record in await self._read(Records("jobs", parse_jobs), "job", int(job_argument(job_id))):
            if record.job_id == job_id:
                return record
        raise JobNotFoundError(f"slurmctld knows no job {job_id}")

    async def nodes(self) -> tuple[NodeRecord, ...]:
        """All nodes, in one RPC and a second for their partitions."""
        nodes = await self._read(self._nodes, "nodes")
        if not nodes:
            raise SlurmUnavailableError("Slurm listed no nodes: no cluster is without any")
        return nodes

    async def node(self, name: str) -> NodeRecord:
        """One node, freshly read."""
        if not NODE_NAME.fullmatch(name):
            raise NodeNotFoundError(f"not a node name: {name!r}")
        for record in await self._read(Records("nodes", parse_nodes), "node", name):
            if record.name == name:
                return record
        raise NodeNotFoundError(f"slurmctld knows no node {name}")

    async def steps(self, job_id: int) -> tuple[StepRecord, ...]:
        """The steps of a job that run now, its batch script included."""
        found = await self._read(parse_steps, "steps", int(job_argument(job_id)))
        if found is None:
            raise JobNotFoundError(f"slurmctld knows no job {job_id}")
        return found[1]

    async def executions(self, job_id: int) -> tuple[AccountingRow, ...]:
        """Every execution in the accounting database: by `sacct`."""
        return await self._commands.executions(job_id)

    async def batch_script(self, job_id: int) -> str:
        """The batch script as submitted."""
        return await self._read(parse_script, "batch_script", int(job_argument(job_id)))

    async def cpu_time(self, job_id: int) -> timedelta | None:
        """CPU time used so far: by `sstat`."""
        return await self._commands.cpu_time(job_id)

    async def topology(self) -> Topology:
        """The failure domains: by `scontrol`."""
        return await self._commands.topology()

    async def facts(self) -> SlurmFacts:
        """Version and the settings that decide how to act."""
        return await self._read(parse_facts, "facts")

    # Writes

    async def requeue(self, job_id: int) -> None:
        """End the attempt where it still runs and queue the job again."""
        await self._change(job_id, "requeue", self._commands.requeue)

    async def exclude(self, job_id: int, nodes: tuple[str, ...]) -> None:
        """Make this the job's whole ExcNodeList; an empty tuple clears it, by `scontrol`."""
        for name in nodes:
            if not NODE_NAME.fullmatch(name):
                raise NodeNotFoundError(f"not a node name: {name!r}")
        if not nodes or (await self._target(job_id)).het_job_id is not None:
            await self._commands.exclude(job_id, nodes)
        else:
            await self._write("exclude", job_id, ",".join(nodes))

    async def start_now(self, job_id: int) -> None:
        """Set the begin time of a pending job to now."""
        await self._change(job_id, "start_now", self._commands.start_now)

    async def start_after(self, job_id: int, wait: timedelta) -> None:
        """Set the begin time of a pending job so long from now, by this machine's clock."""
        seconds = start_seconds(wait)
        if (await self._target(job_id)).het_job_id is not None:
            await self._commands.start_after(job_id, wait)
        else:
            await self._write("start_after", job_id, seconds)

    async def hold(self, job_id: int) -> None:
        """Keep a pending job from starting until it is released; its owner cannot release it."""
        await self._change(job_id, "hold", self._commands.hold)

    async def release(self, job_id: int) -> None:
        """Undo a hold; the job may start again once its begin time has passed."""
        await self._change(job_id, "release", self._commands.release)

    async def depend(self, job_id: int, dependency: str) -> None:
        """Make this the whole Dependency of a pending job: by `scontrol`."""
        await self._commands.depend(job_id, dependency)

    async def cancel(self, job_id: int) -> None:
        """Cancel the job; one that has ended already stays as it is, without an error."""
        job = await self._target(job_id)
        if job.het_job_id is not None or job.array_job_id == job_id:
            await self._commands.cancel(job_id)
        else:
            await self._write("cancel", job_id)

    async def submit_batch(self, script: str, work_dir: str, *, held: bool = False) -> int:
        """Submit a batch script as the principal itself: by `sbatch` where it has lines with options."""
        if _OPTIONS.search(script):
            return await self._commands.submit_batch(script, work_dir, held=held)
        try:
            return parse_job_id(await self._write("submit", script, work_dir, held))
        except (LookupError, TypeError, ValueError) as error:
            raise AmbiguousWriteError(f"pyslurm told no job id: {error}") from error

    # Inside

    async def _target(self, job_id: int) -> JobRecord:
        """Look at the job before a write to it; see the module.

        Raises:
            RefusedError: when its record stands for several jobs.
        """
        record = await self.job(job_id)
        if record.array_job_id is not None and record.array_task_id is None:
            raise RefusedError(f"job {job_id} stands for several pending tasks of an array, not for one job")
        return record

    async def _change(self, job_id: int, operation: str, by_commands: Callable[[int], Awaitable[None]]) -> None:
        """Write to one job; to a heterogeneous one by the commands."""
        if (await self._target(job_id)).het_job_id is not None:
            await by_commands(job_id)
        else:
            await self._write(operation, job_id)

    async def _read(self, parse: Callable[[str], T], operation: str, *arguments: object) -> T:
        try:
            text = await self._process.ask(operation, *arguments)
            if len(text) > BIG_OUTPUT:
                return await asyncio.to_thread(parse, text)
            return parse(text)
        except AnsweredError as error:
            raise error_of_read(error) from error
        except (NotStartedError, NotFinishedError) as error:
            raise SlurmUnavailableError(str(error)) from error
        except (GarbledError, ReportedError, LookupError, TypeError, ValueError) as error:
            raise SlurmUnavailableError(f"pyslurm gave no usable answer to `{operation}`: {error}") from error

    async def _write(self, operation: str, *arguments: object) -> str:
        try:
            return await self._process.ask(operation, *arguments)
        except AnsweredError as error:
            raise error_of_write(error) from error
        except NotStartedError as error:
            raise SlurmUnavailableError(str(error)) from error
        except NotFinishedError as error:
            raise AmbiguousWriteError(str(error)) from error
