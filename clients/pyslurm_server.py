"""pyslurm in a process of its own: requests on stdin, answers on stdout, one at a time, until stdin ends.

This program is self-contained: it imports the standard library and pyslurm, and nothing of Relight. pyslurm is
GPL-2.0, and this is the only file that imports it; it is started as `python -I pyslurm_server.py`, perhaps by another
Python than Relight's. `relight.clients.slurm_pyslurm` talks to it. Why a process (all seen with 25.11.2 on 26.05.5):
libslurm *ends the process* when it cannot read slurm.conf, every call holds the GIL (6 s with slurmctld frozen), and
`Job.get_resource_layout_per_node()` crashes.

A message is a header, two big-endian 32-bit numbers (the length of what follows in bytes, and how many MiB of memory
this process has), and JSON in ASCII. A request is `[operation, argument, ...]`. An answer is any number of lines, each
an object; `{"error": {"errno", "type", "text"}}` alone where it failed. The first answer is the greeting: versions, or
why slurmctld does not answer. Jobs and nodes are shaped as in `squeue --json` and `scontrol show node --json`.
"""

import json
import os
import pwd
import struct
import sys
import time
from collections.abc import Callable, Iterator
from functools import lru_cache
from importlib import import_module
from operator import attrgetter
from typing import Any, BinaryIO

HEADER = struct.Struct("!II")
MAX_REQUEST = 64 * 1024 * 1024
PAGE = os.sysconf("SC_PAGE_SIZE")

JOB = {
    "job_id": "id",
    "array_job_id": "array_id",
    "array_task_id": "array_task_id",
    "array_task_string": "array_tasks_waiting",
    "het_job_id": "heterogeneous_id",
    "het_job_offset": "heterogeneous_offset",
    "name": "name",
    "user_id": "user_id",
    "account": "account",
    "partition": "partition",
    "job_state": "state",
    "state_reason": "state_reason",
    "return_code": "exit_code",
    "signal": "exit_code_signal",
    "restart_cnt": "requeue_count",
    "submit_time": "submit_time",
    "eligible_time": "eligible_time",
    "start_time": "start_time",
    "end_time": "end_time",
    "nodes": "allocated_nodes",
    "batch_host": "batch_host",
    "node_count": "num_nodes",
    "tasks": "ntasks",
    "tres_per_node": "gres_per_node",
    "requeue": "is_requeueable",
    "batch_flag": "is_batch_job",
    "excluded_nodes": "excluded_nodes",
    "required_nodes": "required_nodes",
    "dependency": "dependencies",
    "comment": "comment",
    "current_working_directory": "working_directory",
    "standard_output": "standard_output",
    "standard_error": "standard_error",
    "command": "command",
    "time_limit": "time_limit",
}
"""Name in `squeue --json` to pyslurm's attribute."""

NODE = {
    "name": "name",
    "state": "state",
    "reason": "reason",
    "reason_set_by_user": "reason_user",
    "reason_changed_at": "reason_time",
    "partitions": "partitions",
    "features": "available_features",
    "gres": "configured_gres",
    "boot_time": "boot_time",
    "slurmd_start_time": "slurmd_start_time",
    "address": "address",  # pyslurm 25.11 has no port: a slurmd is not asked then
}
"""Name in `scontrol show node --json` to pyslurm's attribute."""

STEP = {"id": "id", "nodes": "allocated_nodes", "tasks": "ntasks", "start_time": "start_time"}

CONFIG = (
    "version", "cluster_name", "min_job_age", "kill_wait_time", "unkillable_step_timeout", "slurmd_timeout",
    "accounting_storage_type", "accounting_store_flags", "job_requeue", "slurm_user_name",
    "requeue_exit", "requeue_exit_hold",
)  # fmt: skip

LONGEST_PATH = 1000
"""pyslurm cuts a path of an output after 1,023 bytes: such a one is told as unknown."""
NOBODY = (0xFFFFFFFE, 0xFFFFFFFF)
"""Slurm's NO_VAL and INFINITE."""

Entry = dict[str, Any]


def reader(fields: dict[str, str]) -> Callable[[Any], Entry]:
    """Return a function that reads those attributes of one record."""
    every = attrgetter(*fields.values())

    def read(record: Any) -> Entry:
        try:
            values = every(record)
        except UnicodeDecodeError:  # what a user wrote need not be UTF-8; one such job must not hide all the others
            values = tuple(_forgiving(record, attribute) for attribute in fields.values())
        return dict(zip(fields, values, strict=True))

    return read


def _forgiving(record: Any, attribute: str) -> Any:
    try:
        return getattr(record, attribute)
    except UnicodeDecodeError as error:
        return error.object.decode(errors="replace")


read_job, read_node, read_step = reader(JOB), reader(NODE), reader(STEP)


def job_entry(record: Any) -> Entry:
    """One job as `squeue --json` has it."""
    entry = read_job(record)
    entry["array_task_id"] = task_id(entry)
    entry["het_job_offset"] = entry["het_job_offset"] or 0  # pyslurm reads 0 as None; only a component's is looked at
    entry["user_name"] = user_name(entry["user_id"])
    entry["exit_code"] = {"return_code": entry["return_code"], "signal": {"id": entry["signal"]}}
    entry["tres_per_node"] = gres_text(entry["tres_per_node"])
    for key in ("standard_output", "standard_error"):
        if entry[key] and len(entry[key]) > LONGEST_PATH:
            entry[key] = "\\"  # a pattern with a backslash has no known path
    return entry


def task_id(entry: Entry) -> int | None:
    """The array task. pyslurm reads task 0 as None, as it does "no task": which it is must be told from the rest.

    A record without a task stands for tasks that wait, which it lists; cancelled, it lists them no longer (seen), but
    still has the array's own id and has never run.
    """
    task: int | None = entry["array_task_id"]
    if task is not None or not entry["array_job_id"]:
        return task
    ran = entry["job_state"] == "PENDING" or entry["batch_host"] or entry["nodes"] or entry["restart_cnt"]
    several = entry["array_task_string"] or (entry["job_id"] == entry["array_job_id"] and not ran)
    return None if several else 0


@lru_cache(maxsize=10_000)
def user_name(user_id: int) -> str:
    """The name, or the number where this machine knows none. Forgotten with each request."""
    try:
        return pwd.getpwuid(user_id).pw_name
    except KeyError:
        return str(user_id)


def gres_text(gres: Entry) -> str:
    """`gpu:a100:8` from pyslurm's `{"gpu:a100": 8}`."""
    return ",".join(f"{name}:{count}" for name, count in gres.items())


def node_entry(record: Any) -> Entry:
    """One node as `scontrol show node --json` has it."""
    entry = read_node(record)
    entry["state"] = (entry["state"] or "").split("+")
    entry["gres"] = gres_text(entry["gres"])
    return entry


def step_entry(record: Any) -> Entry:
    """One step. pyslurm splits the host list at each comma, those within brackets too."""
    entry = read_step(record)
    entry["nodes"] = ",".join(entry["nodes"] or ())
    return entry


class Operations:
    """What can be asked for: each public method, by its name. Each returns the answer's lines.

    Args:
        pyslurm: the module, initialised.
    """

    def __init__(self, pyslurm: Any) -> None:
        self._slurm = pyslurm

    # Reads

    def jobs(self) -> list[Entry]:
        """All jobs."""
        return [job_entry(job) for job in self._slurm.Jobs.load().values()]

    def job(self, job_id: int) -> list[Entry]:
        """The job, or nothing."""
        return [job_entry(job) for job in self._load(job_id)]

    def steps(self, job_id: int) -> list[Entry]:
        """The job and then its steps that run, or nothing where there is no such job."""
        jobs = self._load(job_id)
        steps = jobs[0].steps if jobs else {}
        if jobs and not steps and jobs[0].state != "PENDING":
            # A failure to read them was swallowed, or the job has ended: this tells one from the other.
            steps = self._slurm.JobSteps.load_all().get(job_id, {})
        return [*map(job_entry, jobs), *map(step_entry, steps.values())]

    def nodes(self) -> list[Entry]:
        """All nodes."""
        return [node_entry(node) for node in self._slurm.Nodes.load().values()]

    def node(self, name: str) -> list[Entry]:
        """The node, or nothing."""
        try:
            return [node_entry(self._slurm.Node.load(name))]
        except self._slurm.RPCError as error:
            if error.errno == -1:  # not one of Slurm's: pyslurm got an answer without a node in it
                return []
            raise

    def batch_script(self, job_id: int) -> list[Entry]:
        """The batch script."""
        try:
            return [{"script": self._slurm.Job(job_id).get_batch_script()}]
        except UnicodeDecodeError as error:
            return [{"script": error.object.decode(errors="replace")}]

    def facts(self) -> list[Entry]:
        """Settings of slurmctld."""
        config = self._slurm.slurmctld.Config.load()
        return [{name: getattr(config, name) for name in CONFIG}]

    def _load(self, job_id: int) -> list[Any]:
        """The record of exactly that id, or none: of an array pyslurm returns the first record, whichever it is."""
        try:
            job = self._slurm.Job.load(job_id)
        except KeyError:  # it trips over the steps of other tasks of the same array
            job = self._slurm.Jobs.load().get(job_id)
        return [job] if job is not None and job.id == job_id else []

    # Writes; each answer is empty but for the new job's

    def requeue(self, job_id: int) -> list[Entry]:
        """Requeue."""
        self._slurm.Job(job_id).requeue()
        return []

    def exclude(self, job_id: int, nodes: str) -> list[Entry]:
        """Set ExcNodeList."""
        return self._modify(job_id, excluded_nodes=nodes)

    def start_now(self, job_id: int) -> list[Entry]:
        """Set the begin time."""
        return self._modify(job_id, begin_time=int(time.time()))

    def start_after(self, job_id: int, seconds: int) -> list[Entry]:
        """Set the begin time, so long from now."""
        return self._modify(job_id, begin_time=int(time.time()) + seconds)

    def hold(self, job_id: int) -> list[Entry]:
        """Hold, as an administrator does."""
        self._slurm.Job(job_id).hold()
        return []

    def release(self, job_id: int) -> list[Entry]:
        """Release."""
        self._slurm.Job(job_id).release()
        return []

    def cancel(self, job_id: int) -> list[Entry]:
        """Cancel."""
        self._slurm.Job(job_id).cancel()
        return []

    def submit(self, script: str, work_dir: str, held: bool) -> list[Entry]:
        """Submit a script without options in it."""
        # The environment must be given: under Debian's python3 "all of it" is nothing (seen).
        environment = {name: value for name, value in os.environ.items() if not name.startswith("PYSLURM_")}
        environment["SLURM_SUBMIT_DIR"] = work_dir
        job = self._slurm.JobSubmitDescription(
            name="sbatch", script=script, working_directory=work_dir, environment=environment
        )
        job.profile_types = "none"  # with no word on profiling it would ask for all of it (seen)
        if held:
            job.priority = 0
        return [{"job_id": job.submit()}]

    def _modify(self, job_id: int, **changes: object) -> list[Entry]:
        self._slurm.Job(job_id).modify(self._slurm.JobSubmitDescription(**changes))
        return []


def failure(error: Exception) -> Entry:
    """An error as a line."""
    return {"error": {"errno": getattr(error, "errno", None), "type": type(error).__name__, "text": str(error)}}


def load_pyslurm() -> Any:
    """Import and initialise pyslurm; libslurm ends the process where it cannot read slurm.conf."""
    os.environ["PYSLURM_DISABLE_AUTO_INIT"] = "1"  # an import without slurm.conf would end the process in its midst
    pyslurm = import_module("pyslurm")
    # `Job.dependencies` passes Slurm's own text through this function, which loses `singleton(unfulfilled)` and the
    # order (seen): the text itself is wanted. And a user's name is looked up once, not for each of 1,000 nodes.
    vars(import_module("pyslurm.core.job.job"))["dependency_str_to_dict"] = lambda text: text
    vars(import_module("pyslurm.core.node"))["uid_to_name"] = lambda uid, **_: None if uid in NOBODY else user_name(uid)
    pyslurm.slurm_init()
    return pyslurm


def greeting(pyslurm: Any) -> Entry:
    """The versions, and why slurmctld does not answer where it does not."""
    try:
        return {"pyslurm": pyslurm.__version__, "slurmctld": pyslurm.slurmctld.Config.load().version}
    except pyslurm.RPCError as error:
        return {"pyslurm": pyslurm.__version__, "slurmctld": None} | failure(error)


encode = json.JSONEncoder(separators=(",", ":"), check_circular=False).encode


def requests(stream: BinaryIO) -> Iterator[list[Any]]:
    """The requests, until the stream ends."""
    while len(header := stream.read(HEADER.size)) == HEADER.size:
        length, _ = HEADER.unpack(header)
        if length > MAX_REQUEST:
            sys.exit(f"a request of {length} bytes")
        body = stream.read(length)
        if len(body) < length:
            return
        yield json.loads(body)


def send(stream: BinaryIO, lines: list[Entry]) -> None:
    """Write one message."""
    body = "\n".join(map(encode, lines)).encode("ascii")
    with open("/proc/self/statm", encoding="ascii") as statm:  # noqa: PTH123
        resident = int(statm.read().split()[1]) * PAGE >> 20
    stream.write(HEADER.pack(len(body), resident))
    stream.write(body)
    stream.flush()


def answer(operations: Operations, request: list[Any]) -> list[Entry]:
    """Do what is asked."""
    user_name.cache_clear()
    name, *arguments = request
    try:
        lines: list[Entry] = getattr(operations, name)(*arguments)
    except Exception as error:  # noqa: BLE001 - whatever it is, the other side is told
        return [failure(error)]
    return lines


def main() -> None:
    """Serve until stdin ends."""
    # What libslurm prints must not come between the answers.
    source, sink = os.fdopen(os.dup(0), "rb"), os.fdopen(os.dup(1), "wb")
    null = os.open(os.devnull, os.O_RDONLY)
    os.dup2(null, 0)
    os.dup2(2, 1)
    pyslurm = load_pyslurm()
    operations = Operations(pyslurm)
    send(sink, [greeting(pyslurm)])
    for request in requests(source):
        send(sink, answer(operations, request))


if __name__ == "__main__":
    main()
