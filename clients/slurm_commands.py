"""Slurm by its own commands: `squeue`, `sinfo`, `sacct`, `scontrol`, `scancel`, `sstat`. No shell, no parsing by eye.

What is read from where, and why (all seen on 22.05.8, 24.11.5 and 26.05.5):

- Jobs from `squeue --json`: the one source on all in which a comment with newlines or a name such as
  `x JobState=FAILED` cannot be mistaken for a field. Ended jobs within MinJobAge need `-t all`. 22.05 ignores `-j` and
  prints all jobs, so a single job costs as much as all.
- Nodes from `sinfo --json` on 22.05 and `scontrol show node --json` on newer ones, whose sinfo prints groups of nodes.
- Newer ones write each number as an object of three fields, unless told `+complex`: then it is a number or null, which
  halves the text and the time that squeue takes (1,000 jobs: 0.40 s and 0.21 s on 24.11).
- Before each write the job's address is read, as text of three fields none of which holds what a user wrote, one record
  on every version: `scontrol requeue 2` and `scancel 2` act on *every* task of array 2, although the last task's own
  record has JobId=2 as well. A task is addressed as `2_3`.
"""

import asyncio
import re
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import TypeVar

from relight.clients.slurm import (
    AmbiguousWriteError,
    JobNotFoundError,
    NodeNotFoundError,
    RefusedError,
    SlurmUnavailableError,
    start_seconds,
)
from relight.clients.slurm_parse import GarbledError, ReportedError
from relight.clients.slurm_parse_errors import Said, read_error, understand, write_error
from relight.clients.slurm_parse_jobs import parse_jobs
from relight.clients.slurm_parse_nodes import parse_nodes
from relight.clients.slurm_parse_text import (
    ADDRESS_FORMAT,
    SACCT_FIELDS,
    SSTAT_FIELDS,
    STEP_FORMAT,
    Address,
    parse_accounting,
    parse_address,
    parse_cpu_time,
    parse_facts,
    parse_steps,
    parse_version,
)
from relight.clients.slurm_parse_topology import NO_TOPOLOGY, parse_topology
from relight.clients.slurm_process import Done, LocalRunner, NotFinishedError, NotStartedError, Runner
from relight.domain.slurm import AccountingRow, JobRecord, NodeRecord, SlurmFacts, StepRecord
from relight.domain.topology import Topology

T = TypeVar("T")

NODE_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,254}")
_TERM = r"[a-z]{1,32}(?::[1-9][0-9]{0,9}(?:_(?:[0-9]{1,10}|\*))?(?:\+[0-9]{1,6})?)*"
DEPENDENCY = re.compile(f"{_TERM}(?:[,?]{_TERM})*")
"""As sbatch(1), `--dependency`, has it: `afterok:7:8_2,afterany:9_*+10`."""
SCONTROL_HAS_JSON = (23, 2)
PLAIN_NUMBERS = (24, 11)
"""From here on `latest+complex` is used; 23.02 to 24.05 were not tried."""
BIG_OUTPUT = 1024 * 1024
"""Parsed in a thread: 10,000 jobs would hold up the event loop."""
DEFAULT_TIMEOUT = timedelta(seconds=20)
"""Twice Slurm's default MessageTimeout, after which its commands give up by themselves."""


class SlurmCommands:
    """The contract `Slurm`, by commands. One instance serves any number of concurrent callers.

    Args:
        runner: where the commands run; None: on this machine.
        run_as: a command prefix that keeps the environment, such as `("setpriv", "--reuid", "relight", ...)`.
        cpu_time_as: the prefix for `sstat` alone. slurmd answers it to the job's owner, SlurmUser and root only, and
            refuses an Operator ("Invalid user id": seen on 22.05 and 24.11), so a site that wants `cpu_time` allows
            `("sudo", "-n", "-u", "slurm")` for this one command (and lets SLURM_CONF through where slurm.conf is not
            in /etc/slurm). None: as everything else.
        timeout: for each command. A write that is late is ambiguous.
    """

    def __init__(
        self,
        runner: Runner | None = None,
        *,
        run_as: tuple[str, ...] = (),
        cpu_time_as: tuple[str, ...] | None = None,
        timeout: timedelta = DEFAULT_TIMEOUT,
    ) -> None:
        self._runner = runner or LocalRunner()
        self._run_as = run_as
        self._cpu_time_as = run_as if cpu_time_as is None else cpu_time_as
        self._timeout = timeout
        self._version: tuple[int, int] | None = None

    # Reads

    async def jobs(self) -> tuple[JobRecord, ...]:
        """All jobs that slurmctld holds, ended ones within MinJobAge included, in one process."""
        return await self._parsed(parse_jobs, "squeue", "--all", "--states=all", await self._json())

    async def job(self, job_id: int) -> JobRecord:
        """One job, freshly read."""
        wanted = job_argument(job_id)
        command = ("squeue", "--all", "--states=all", f"--jobs={wanted}", await self._json())
        records = await self._parsed(parse_jobs, *command)
        for record in records:
            if record.job_id == job_id:
                return record
        raise JobNotFoundError(f"slurmctld knows no job {wanted}")

    async def nodes(self) -> tuple[NodeRecord, ...]:
        """All nodes, in one process."""
        nodes = await self._parsed(parse_nodes, *await self._nodes_command())
        if not nodes:
            raise SlurmUnavailableError("Slurm listed no nodes: no cluster is without any")
        return nodes

    async def node(self, name: str) -> NodeRecord:
        """One node, freshly read."""
        if not NODE_NAME.fullmatch(name):
            raise NodeNotFoundError(f"not a node name: {name!r}")
        command = await self._nodes_command()
        one = [f"--nodes={name}"] if command[0] == "sinfo" else [name]
        for record in await self._parsed(parse_nodes, *command, *one):
            if record.name == name:
                return record
        raise NodeNotFoundError(f"slurmctld knows no node {name}")

    async def steps(self, job_id: int) -> tuple[StepRecord, ...]:
        """The steps of a job that run now, its batch script included.

        squeue says nothing and exits 0 for an unknown job (seen): the address tells whether there is one.
        """
        address = await self._found(job_id)
        command = ("squeue", "--all", "--steps", "--noheader", f"--jobs={address.job_id}", f"--format={STEP_FORMAT}")
        return await self._parsed(lambda text: parse_steps(text, address.name or str(job_id)), *command)

    async def executions(self, job_id: int) -> tuple[AccountingRow, ...]:
        """Every execution in the accounting database, oldest first; empty when it has none of that job.

        While a job is COMPLETING this has its final state already, which 22.05's squeue still hides (seen).
        """
        wanted = job_argument(job_id)
        fields = ",".join(SACCT_FIELDS)
        command = ("sacct", "--duplicates", "--allocations", "--noheader", "--parsable2", f"--jobs={wanted}")
        return await self._parsed(
            lambda text: parse_accounting(text, job_id), *command, "--starttime=1970-01-01", f"--format={fields}"
        )

    async def batch_script(self, job_id: int) -> str:
        """The batch script as submitted. An Operator may read anyone's (seen on 22.05 and 24.11)."""
        done = await self._read("scontrol", "write", "batch_script", job_argument(job_id), "-")
        # A refusal exits 0 as well and prints nothing but the error (seen).
        if not done.out.strip():
            raise read_error(done.err or "an empty script")
        return done.out

    async def cpu_time(self, job_id: int) -> timedelta | None:
        """CPU time used so far by all tasks of the steps that run now, or None where Slurm does not say.

        A fresh sample at each call (it grows faster than JobAcctGatherFrequency: seen), in whole seconds; about 40 ms,
        and it asks every node of the job. It falls when a step ends. See `cpu_time_as` for who may ask.
        """
        fields = ",".join(SSTAT_FIELDS)
        command = (
            "sstat",
            "--allsteps",
            "--noheader",
            "--parsable2",
            f"--jobs={job_argument(job_id)}",
            f"--format={fields}",
        )
        try:
            done = await self._runner.run((*self._cpu_time_as, *command), self._timeout)
        except (NotStartedError, NotFinishedError):
            return None
        # One node that refused or is lost makes the sum too small: no number at all then.
        if done.code != 0 or done.err.strip():
            return None
        return parse_cpu_time(done.out)

    async def topology(self) -> Topology:
        """The failure domains. The error's text alone tells "none" from "no answer": both exit with 0 (seen)."""
        try:
            done = await self._run(("scontrol", "show", "topology"))
        except (NotStartedError, NotFinishedError) as error:
            raise SlurmUnavailableError(str(error)) from error
        if not done.out.strip() and NO_TOPOLOGY in done.err:
            return Topology()
        if done.code != 0 or done.err.strip():
            raise read_error(done.err or done.out)
        try:
            return parse_topology(done.out)
        except GarbledError as error:
            raise SlurmUnavailableError(f"`scontrol show topology` gave no usable answer: {error}") from error

    async def facts(self) -> SlurmFacts:
        """Version and the settings that decide how to act."""
        return await self._parsed(parse_facts, "scontrol", "show", "config")

    # Writes

    async def requeue(self, job_id: int) -> None:
        """End the attempt where it still runs and queue the job again (`scontrol requeue`).

        A heterogeneous job is requeued as a whole by its leader's id; another component's is refused (seen on 22.05).
        """
        await self._write("scontrol", "requeue", await self._address(job_id))

    async def exclude(self, job_id: int, nodes: tuple[str, ...]) -> None:
        """Make this the job's whole ExcNodeList; an empty tuple clears it. Not possible while RUNNING.

        On the leader of a heterogeneous job this sets it for every component (seen on 22.05).
        """
        for name in nodes:
            if not NODE_NAME.fullmatch(name):
                raise NodeNotFoundError(f"not a node name: {name!r}")
        await self._update(job_id, f"ExcNodeList={','.join(nodes)}")

    async def start_now(self, job_id: int) -> None:
        """Set StartTime=now on a pending job."""
        await self._update(job_id, "StartTime=now")

    async def start_after(self, job_id: int, wait: timedelta) -> None:
        """Set StartTime so long from now on a pending job; by slurmctld's own clock, and in no time zone."""
        await self._update(job_id, f"StartTime=now+{start_seconds(wait)}")

    async def depend(self, job_id: int, dependency: str) -> None:
        """Make this the whole Dependency of a pending job. An Operator may do it to anyone's (seen on 22.05)."""
        if not DEPENDENCY.fullmatch(dependency):
            raise RefusedError(f"not a dependency: {dependency[:200]!r}")
        address = await self._found(job_id)
        if not (name := address.name or address.pending):
            raise RefusedError(f"job {job_id} stands for more pending tasks of an array than Slurm names")
        await self._write("scontrol", "update", f"JobId={name}", f"Dependency={dependency}")

    async def cancel(self, job_id: int) -> None:
        """Cancel the job (`scancel`); one that has ended already stays as it is, without an error.

        Of a heterogeneous job's other components only that one is cancelled (seen on 22.05).
        """
        await self._write("scancel", await self._address(job_id))

    async def hold(self, job_id: int) -> None:
        """Keep a job from starting until it is released (`scontrol hold`)."""
        await self._write("scontrol", "hold", await self._address(job_id))

    async def release(self, job_id: int) -> None:
        """Undo a hold (`scontrol release`)."""
        await self._write("scontrol", "release", await self._address(job_id))

    async def submit_batch(self, script: str, work_dir: str, *, held: bool = False) -> int:
        """Submit a batch script as the principal itself; its `#SBATCH` lines count. Returns the job id."""
        options = ["--hold"] if held else []
        done = await self._write("sbatch", "--parsable", f"--chdir={work_dir}", *options, stdin=script)
        job_id = done.out.strip().split(";")[0]
        if not job_id.isdecimal():
            raise AmbiguousWriteError(f"`sbatch` did not print a job id: {job_id[:200]!r}")
        return int(job_id)

    async def _update(self, job_id: int, change: str) -> None:
        await self._write("scontrol", "update", f"JobId={await self._address(job_id)}", change)

    async def _address(self, job_id: int) -> str:
        """What names exactly this record in a write; see the module.

        scancel says nothing and exits 0 for an unknown job (seen): this read is also what finds that out.
        """
        address = await self._found(job_id)
        if address.name is None:
            raise RefusedError(f"job {job_id} stands for several pending tasks of an array, not for one job")
        return address.name

    async def _found(self, job_id: int) -> Address:
        command = ("squeue", "--all", "--states=all", "--noheader", f"--jobs={job_argument(job_id)}")
        found = await self._parsed(lambda text: parse_address(text, job_id), *command, f"--format={ADDRESS_FORMAT}")
        if found is None:
            raise JobNotFoundError(f"slurmctld knows no job {job_id}")
        return found

    # Inside

    async def _nodes_command(self) -> tuple[str, ...]:
        json = await self._json()
        if await self._release() >= SCONTROL_HAS_JSON:
            return ("scontrol", "--all", "show", json, "node")
        return ("sinfo", "--all", json)

    async def _json(self) -> str:
        return "--json=latest+complex" if await self._release() >= PLAIN_NUMBERS else "--json"

    async def _release(self) -> tuple[int, int]:
        """The commands' own release; it is asked once."""
        if self._version is None:
            self._version = await self._parsed(parse_version, "scontrol", "--version")
        return self._version

    async def _parsed(self, parse: Callable[[str], T], *command: str) -> T:
        done = await self._read(*command)
        try:
            if len(done.out) > BIG_OUTPUT:
                return await asyncio.to_thread(parse, done.out)
            return parse(done.out)
        except ReportedError as error:
            raise read_error(str(error)) from error
        except GarbledError as error:
            raise SlurmUnavailableError(f"`{command[0]}` gave no usable answer: {error}") from error

    async def _read(self, *command: str) -> Done:
        try:
            done = await self._run(command)
        except (NotStartedError, NotFinishedError) as error:
            raise SlurmUnavailableError(str(error)) from error
        if done.code != 0 or (done.err.strip() and understand(done.err) is not Said.OTHER):
            raise read_error(done.err or done.out)
        return done

    async def _write(self, *command: str, stdin: str = "") -> Done:
        try:
            done = await self._run(command, stdin)
        except NotStartedError as error:
            raise SlurmUnavailableError(str(error)) from error
        except NotFinishedError as error:
            raise AmbiguousWriteError(str(error)) from error
        if done.code < 0:
            raise AmbiguousWriteError(f"`{command[0]}` was ended by signal {-done.code}")
        said = done.err or done.out
        if done.code != 0 or (said.strip() and understand(said) is not Said.OTHER):
            raise write_error(said)
        return done

    async def _run(self, command: Sequence[str], stdin: str = "") -> Done:
        return await self._runner.run((*self._run_as, *command), self._timeout, stdin=stdin)


def job_argument(job_id: int) -> str:
    """The id as an argument; nothing but a positive number ever becomes one."""
    if isinstance(job_id, bool) or not isinstance(job_id, int) or job_id <= 0:
        raise JobNotFoundError(f"not a job id: {job_id!r}")
    return str(job_id)
