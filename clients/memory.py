"""Stateful stand-ins that live in memory. They ship: our tests and yours use the same ones."""

import re
from collections import defaultdict
from collections.abc import Callable, Iterable
from datetime import datetime, timedelta
from secrets import token_bytes
from typing import Any, NamedTuple, TypeVar

from relight.clients.ledger_schema import connect
from relight.clients.ledger_sql import SqlLedger
from relight.clients.ledger_versions import prepare
from relight.clients.slurm import (
    JobNotFoundError,
    NodeNotFoundError,
    RefusedError,
    SlurmUnavailableError,
    start_seconds,
)
from relight.domain.incidents import NODE_REASON_PREFIX
from relight.domain.resubmission import Submission
from relight.domain.slurm import (
    ENDED,
    AccountingRow,
    JobFlag,
    JobRecord,
    JobState,
    NodeFlag,
    NodeRecord,
    NodeState,
    SlurmFacts,
    StepRecord,
)
from relight.domain.topology import Topology

BEGIN_DELAY = timedelta(seconds=121)
"""How long a requeued job waits by default: `cred_expire` + 1 s (seen on 22.05, 24.11 and 26.05)."""
HELD = "JobHeldAdmin"
HELD_BY_USER = "JobHeldUser"
_HELD = frozenset({HELD, HELD_BY_USER})
LAUNCH_FAILED = "launch failed requeued held"
_T = TypeVar("_T")
_UNSAFE_START = timedelta(seconds=2)


def memory_ledger() -> SqlLedger:
    """A ledger like any other, in an SQLite database in memory, with a key of its own."""
    engine = connect("sqlite://")
    prepare(engine)
    return SqlLedger(engine, token_bytes(32))


class Call(NamedTuple):
    """A call that was to change something, whether or not it did."""

    method: str
    target: int | str
    args: tuple[Any, ...] = ()


class _Failure(NamedTuple):
    error: Exception
    after: bool


class MemorySlurm:
    """A small *simulated* slurmctld: implements `Slurm`, `NodeControl` and `Submitter`.

    It keeps to what was seen on real clusters (shared/slurm/README.md) where Relight depends on it, and knows
    nothing of priorities, partitions, shared nodes or arrays. A job that was submitted runs when `start` says so;
    a requeued one also by itself once its begin time has passed. The clock is yours: nothing here waits.

    Args:
        clock: tells the time.
        nodes: names of the nodes, each of which holds one job at a time.
        epilog: how long an ended attempt is COMPLETING; None: until `finish_completing`.
        start_race: fail a job that is told to start within 2 s of its requeue, as Slurm may.
        accounting: False: `executions` is unavailable, as without slurmdbd.
        node_cap: how many node changes are carried out before the wrapper refuses; None: any number.
    """

    def __init__(
        self,
        clock: Callable[[], datetime],
        *,
        nodes: Iterable[str] = ("n1", "n2", "n3", "n4"),
        cluster: str = "test",
        epilog: timedelta | None = timedelta(0),
        start_race: bool = False,
        accounting: bool = True,
        node_cap: int | None = None,
    ) -> None:
        self.clock = clock
        self.job_records: dict[int, JobRecord] = {}
        self.node_records = {name: NodeRecord(name=name, state=NodeState.IDLE) for name in nodes}
        self.scripts: dict[int, str] = {}
        self.cpu: dict[int, timedelta] = {}
        self.slurm_facts = SlurmFacts(version="24.11.5", cluster=cluster, accounting_storage="simulated")
        self.slurm_topology = Topology()
        self.writes: list[Call] = []
        """Every call that was to change something, oldest first, refused ones included."""
        self.epilog = epilog
        self._start_race = start_race
        self._accounting = accounting
        self._node_cap = node_cap
        self._failures: defaultdict[str, list[_Failure]] = defaultdict(list)
        self._executions: defaultdict[int, list[AccountingRow]] = defaultdict(list)
        self._completing_since: dict[int, datetime] = {}
        self._purged: dict[int, JobRecord] = {}
        self._next_id = 1

    # What a test does to the cluster.

    def submit(self, *, nodes: int = 2, script: str = "#!/bin/sh\n", **fields: Any) -> int:
        """Queue a job on so many nodes; further fields are those of `JobRecord`. Returns its id."""
        job_id, self._next_id = self._next_id, self._next_id + 1
        given = {"name": "train", "user": "alice", "partition": "gpu", "work_dir": "/home/alice"}
        now = self.clock()
        self.job_records[job_id] = JobRecord(
            **{**given, "stdout": f"/home/alice/slurm-{job_id}.out", "command": "/home/alice/train.sh", **fields},
            job_id=job_id,
            state=JobState.PENDING,
            reason="Priority",
            node_count=nodes,
            submit_time=now,
            eligible_time=now,
        )
        self.scripts[job_id] = script
        return job_id

    def start(self, job_id: int) -> JobRecord:
        """Start a pending job, as the scheduler would; it stays pending where too few nodes are left."""
        return self._schedule(self._job(job_id))

    def fail(self, job_id: int, *, state: JobState = JobState.FAILED, exit_code: int = 1, exit_signal: int = 0) -> None:
        """End a running attempt in this state; it is COMPLETING for the epilog's time."""
        self._end(self._running(job_id), state, exit_code=exit_code, exit_signal=exit_signal)

    def fail_launch(self, job_id: int, *, prolog_on: str = "", held: bool = True) -> None:
        """End a running attempt that could not be launched: queued again, and held unless the site says otherwise.

        Where a prolog failed, its node is drained (seen).
        """
        if prolog_on:
            self._node_put(prolog_on, add={NodeFlag.DRAIN}, reason="Prolog error")
        if held:
            self._put(self._running(job_id), reason=HELD_BY_USER, reason_text=LAUNCH_FAILED)
        # `sacct` calls this end REQUEUED, which is read as PENDING.
        self._end(self._running(job_id), JobState.PENDING, exit_code=0, requeue=True)

    def finish_completing(self, job_id: int) -> JobRecord:
        """End the epilog now: nodes are free, and a requeued job gets its new SubmitTime."""
        self._completing_since.pop(job_id, None)
        job = self._job(job_id)
        if not job.completing:
            return job
        flags = job.flags - {JobFlag.COMPLETING}
        for name in job.nodes:
            self._free(name)
        if job.state is JobState.PENDING:
            return self._queue_again(job, flags)
        return self._put(job, flags=flags)

    def lose_node(self, name: str) -> None:
        """Take a node away: its job ends NODE_FAIL, or is requeued by Slurm itself where it may be."""
        # Slurm leaves a reason that is there already.
        reason = "" if self._node(name).reason else "Not responding"
        self._node_put(name, state=NodeState.DOWN, add={NodeFlag.NOT_RESPONDING}, reason=reason)
        self._fail_jobs_on(name)

    def return_node(self, name: str) -> None:
        """Bring a lost node back; a drain stays."""
        self._node_put(name, state=NodeState.IDLE, drop={NodeFlag.NOT_RESPONDING}, reason=None)

    def purge(self, job_id: int) -> None:
        """Forget an ended job, as slurmctld does after MinJobAge; accounting keeps it."""
        self._purged[job_id] = self.job_records.pop(job_id)

    def fail_next(self, method: str, error: Exception, *, after: bool = False) -> None:
        """Let the next call of a method raise this; with `after`, once it has had its effect."""
        self._failures[method].append(_Failure(error, after))

    # `Slurm`, reads.

    async def jobs(self) -> tuple[JobRecord, ...]:
        """All jobs, in the order of their ids."""
        return self._read("jobs", lambda: tuple(self.job_records[i] for i in sorted(self.job_records)))

    async def job(self, job_id: int) -> JobRecord:
        """One job."""
        return self._read("job", lambda: self._job(job_id))

    async def nodes(self) -> tuple[NodeRecord, ...]:
        """All nodes."""
        return self._read("nodes", lambda: tuple(self.node_records.values()))

    async def node(self, name: str) -> NodeRecord:
        """One node."""
        return self._read("node", lambda: self._node(name))

    async def steps(self, job_id: int) -> tuple[StepRecord, ...]:
        """The batch script's step while the job runs, and one more on all of its nodes."""

        def look() -> tuple[StepRecord, ...]:
            job = self._job(job_id)
            if job.state is not JobState.RUNNING:
                return ()
            batch = StepRecord(step_id=f"{job_id}.batch", nodes=job.nodes[:1], task_count=1, start_time=job.start_time)
            tasks = job.task_count or len(job.nodes)
            step = StepRecord(step_id=f"{job_id}.0", nodes=job.nodes, task_count=tasks, start_time=job.start_time)
            return step, batch

        return self._read("steps", look)

    async def executions(self, job_id: int) -> tuple[AccountingRow, ...]:
        """Every execution of a job, oldest first, purged jobs included."""
        if not self._accounting:
            raise SlurmUnavailableError("accounting is off")
        return self._read("executions", lambda: tuple(self._executions[job_id]))

    async def batch_script(self, job_id: int) -> str:
        """The script as submitted."""
        return self._read("batch_script", lambda: self.scripts[self._job(job_id).job_id])

    async def cpu_time(self, job_id: int) -> timedelta | None:
        """What a test has put into `cpu`."""
        return self._read("cpu_time", lambda: self.cpu.get(self._job(job_id).job_id))

    async def topology(self) -> Topology:
        """What a test has put into `slurm_topology`."""
        return self._read("topology", lambda: self.slurm_topology)

    async def facts(self) -> SlurmFacts:
        """What a test has put into `slurm_facts`."""
        return self._read("facts", lambda: self.slurm_facts)

    # `Slurm`, writes.

    async def requeue(self, job_id: int) -> None:
        """Queue a job again, running or ended; also a cancelled one, which Slurm resurrects too (seen)."""
        self._write(Call("requeue", job_id), lambda: self._requeue(self._job(job_id)))

    async def exclude(self, job_id: int, nodes: tuple[str, ...]) -> None:
        """Replace the job's ExcNodeList; also while COMPLETING after a requeue, never while running."""

        def act() -> None:
            job = self._pending(job_id)
            unknown = [name for name in nodes if name not in self.node_records]
            if unknown:
                raise RefusedError(f"Invalid node name specified: {','.join(unknown)}")
            self._put(job, excluded_nodes=nodes)

        self._write(Call("exclude", job_id, (nodes,)), act)

    async def start_now(self, job_id: int) -> None:
        """StartTime=now: runs a pending job where nodes are free; lost on one still COMPLETING (seen)."""

        def act() -> None:
            job = self._pending(job_id)
            if job.completing:
                return
            if self._start_race and job.restarts and self.clock() - job.submit_time < _UNSAFE_START:
                started = self._schedule(job)
                if started.running:
                    self._end(started, JobState.FAILED)
                return
            self._schedule(self._put(job, eligible_time=self.clock()))

        self._write(Call("start_now", job_id), act)

    async def start_after(self, job_id: int, wait: timedelta) -> None:
        """StartTime=now+wait: a pending job runs by itself then; lost on one still COMPLETING."""
        seconds = start_seconds(wait)

        def act() -> None:
            job = self._pending(job_id)
            if not job.completing:
                at = self.clock() + timedelta(seconds=seconds)
                self._put(job, eligible_time=at, reason=job.reason if job.reason in _HELD else "BeginTime")

        self._write(Call("start_after", job_id, (seconds,)), act)

    async def depend(self, job_id: int, dependency: str) -> None:
        """Replace the Dependency of a pending job, and judge it no further: it waits."""
        shown = re.sub(r"(?=[,?]|$)", "(unfulfilled)", dependency)

        def act() -> None:
            self._put(self._pending(job_id), dependency=shown, reason="Dependency", reason_text="")

        self._write(Call("depend", job_id, (dependency,)), act)

    async def hold(self, job_id: int) -> None:
        """Keep a job from starting; a running one runs on, and is held once it is queued again (seen)."""
        self._write(Call("hold", job_id), lambda: self._put(self._not_ended(job_id), reason=HELD, reason_text=""))

    async def release(self, job_id: int) -> None:
        """Undo a hold; on a job that is not held it does nothing (seen)."""

        def act() -> None:
            job = self._not_ended(job_id)
            if job.reason in _HELD:
                waits = job.eligible_time is not None and job.eligible_time > self.clock()
                self._put(job, reason="BeginTime" if waits else "Priority", reason_text="")

        self._write(Call("release", job_id), act)

    async def submit_batch(self, script: str, work_dir: str, *, held: bool = False) -> int:
        """Queue a script on one node; its `#SBATCH` lines are not read."""
        submitted: list[int] = []

        def act() -> None:
            job_id = self.submit(
                nodes=1, script=script, work_dir=work_dir, stdout=f"{work_dir}/slurm-{self._next_id}.out"
            )
            if held:
                self._put(self._job(job_id), reason=HELD_BY_USER)
            submitted.append(job_id)

        self._write(Call("submit_batch", work_dir, (script, held)), act)
        return submitted[0]

    async def submit_anew(self, sent: Submission) -> int:
        """`Submitter`: queue it, held, as its user; of its options those are read that a `JobRecord` has."""
        submitted: list[int] = []

        def act() -> None:
            given = dict(option.removeprefix("--").partition("=")[::2] for option in sent.options)
            old = self._purged.get(sent.environment_of) or self._job(sent.environment_of)
            like = {name: getattr(old, name) for name in ("task_count", "gres_per_node", "time_limit", "tres", "qos")}
            job_id = self.submit(
                nodes=int(given["nodes"]),
                script=sent.script,
                name=given["job-name"],
                user=sent.user,
                partition=given["partition"],
                work_dir=given["chdir"],
                stdout=given.get("output", "").replace("%j", str(self._next_id)),
                comment=given["comment"],
                requeue="no-requeue" not in given,
                excluded_nodes=tuple(filter(None, given.get("exclude", "").split(","))),
                command=f"/spool/{sent.name}",
                **like,
            )
            self._put(self._job(job_id), reason=HELD_BY_USER)
            submitted.append(job_id)

        self._write(Call("submit_anew", sent.user, (sent,)), act)
        return submitted[0]

    async def cancel(self, job_id: int) -> None:
        """Cancel a job; one that has ended stays as it is."""

        def act() -> None:
            job = self._job(job_id)
            if job.state is JobState.RUNNING:
                self._end(job, JobState.CANCELLED, exit_signal=15)
            elif job.state not in ENDED:
                self._put(job, state=JobState.CANCELLED, reason="", end_time=self.clock())

        self._write(Call("cancel", job_id), act)

    # `NodeControl`.

    async def drain(self, node: str, reason: str) -> None:
        """Drain a node, unless somebody else has drained it."""

        def act() -> None:
            self._check_mark(node, reason)
            self._node_put(node, add={NodeFlag.DRAIN}, reason=reason, by="root")

        self._write(Call("drain", node, (reason,)), act)

    async def undrain(self, node: str) -> None:
        """Undo a drain or a down of ours."""

        def act() -> None:
            found = self._node(node)
            if not found.reason.startswith(NODE_REASON_PREFIX):
                raise RefusedError(f"the reason of {node} is not ours: {found.reason!r}")
            state = NodeState.IDLE if found.state is NodeState.DOWN else found.state
            self._node_put(node, state=state, drop={NodeFlag.DRAIN}, reason=None)

        self._write(Call("undrain", node), act)

    async def down(self, node: str, reason: str) -> None:
        """Set a node DOWN: what runs or completes there ends at once."""

        def act() -> None:
            self._check_mark(node, reason)
            self._node_put(node, state=NodeState.DOWN, reason=reason, by="root")
            self._fail_jobs_on(node)

        self._write(Call("down", node, (reason,)), act)

    async def action(self, node: str, word: str) -> None:
        """Hand a drained node of ours to the platform's own repair."""

        def act() -> None:
            found = self._node(node)
            if not (found.draining and found.reason.startswith(NODE_REASON_PREFIX) and found.state is NodeState.IDLE):
                raise RefusedError(f"{node} is not drained by Relight and empty")
            self._node_put(node, add={NodeFlag.FAIL}, reason=f"Action:{word}", by="root")

        self._write(Call("action", node, (word,)), act)

    # How it works inside.

    def _read(self, method: str, look: Callable[[], _T]) -> _T:
        self._settle()
        failure = self._failure(method)
        if failure:
            raise failure.error
        return look()

    def _write(self, call: Call, act: Callable[[], object]) -> None:
        self.writes.append(call)
        self._settle()
        failure = self._failure(call.method)
        if failure is None or failure.after:
            act()
        if failure:
            raise failure.error

    def _failure(self, method: str) -> _Failure | None:
        waiting = self._failures[method]
        return waiting.pop(0) if waiting else None

    def _settle(self) -> None:
        """Let happen what the clock says has happened: epilogs end, begin times pass."""
        now = self.clock()
        for job_id, since in list(self._completing_since.items()):
            if self.epilog is not None and now >= since + self.epilog:
                self.finish_completing(job_id)
        for job in list(self.job_records.values()):
            due = job.eligible_time is not None and job.eligible_time <= now
            if job.state is JobState.PENDING and job.restarts and due and not job.completing:
                self._schedule(job)

    def _schedule(self, job: JobRecord) -> JobRecord:
        if job.state is not JobState.PENDING or job.completing or job.reason in _HELD:
            return job
        allowed = [n for n in self.node_records.values() if n.eligible and n.name not in job.excluded_nodes]
        if len(allowed) < job.node_count or not set(job.required_nodes) <= {n.name for n in allowed}:
            return self._put(job, reason="BadConstraints")
        free = [n.name for n in allowed if n.state is NodeState.IDLE and NodeFlag.COMPLETING not in n.flags]
        # Those asked for by name come first.
        chosen = sorted(free, key=lambda name: name not in job.required_nodes)[: job.node_count]
        if len(chosen) < job.node_count or not set(job.required_nodes) <= set(chosen):
            return self._put(job, reason="Resources")
        return self._run(job, tuple(sorted(chosen, key=list(self.node_records).index)))

    def _run(self, job: JobRecord, nodes: tuple[str, ...]) -> JobRecord:
        now = self.clock()
        for name in nodes:
            self._node_put(name, state=NodeState.ALLOCATED)
        row = AccountingRow(
            job_id=job.job_id,
            state=JobState.RUNNING,
            submit_time=job.submit_time,
            start_time=now,
            nodes=nodes,
        )
        self._executions[job.job_id].append(row)
        running = {"state": JobState.RUNNING, "flags": frozenset(), "reason": "", "exit_code": 0, "exit_signal": 0}
        return self._put(job, **running, nodes=nodes, batch_host=nodes[0], start_time=now, end_time=None)

    def _end(
        self, job: JobRecord, state: JobState, *, exit_code: int = 1, exit_signal: int = 0, requeue: bool = False
    ) -> JobRecord:
        """End a running attempt; the record shows `state`, or PENDING where Slurm queues the job again."""
        now = self.clock()
        last = {"state": state, "exit_code": exit_code, "exit_signal": exit_signal, "end_time": now}
        rows = self._executions[job.job_id]
        rows[-1] = rows[-1].model_copy(update=last)
        for name in job.nodes:
            self._node_put(name, add={NodeFlag.COMPLETING})
        self._completing_since[job.job_id] = now
        changes = {**last, "flags": job.flags | {JobFlag.COMPLETING}}
        if requeue:
            # The restart count moves at once, SubmitTime only when COMPLETING ends (seen).
            changes |= {"state": JobState.PENDING, "restarts": job.restarts + 1}
        ended = self._put(job, **changes)
        return self.finish_completing(job.job_id) if self.epilog == timedelta(0) else ended

    def _requeue(self, job: JobRecord) -> None:
        if job.state is JobState.PENDING:
            raise RefusedError(f"Job is pending execution for job {job.job_id}")
        if not job.requeue:
            raise RefusedError(f"Requested operation is presently disabled for job {job.job_id}")
        if job.state is JobState.RUNNING:
            # `sacct` calls this end REQUEUED, which is read as PENDING.
            self._end(job, JobState.PENDING, exit_code=0, exit_signal=15, requeue=True)
            return
        queued = self._put(job, state=JobState.PENDING, restarts=job.restarts + 1)
        if not queued.completing:
            self._queue_again(queued, queued.flags)

    def _queue_again(self, job: JobRecord, flags: frozenset[JobFlag]) -> JobRecord:
        now = self.clock()
        return self._put(
            job,
            flags=flags,
            reason=job.reason if job.reason in _HELD else "BeginTime",
            nodes=(),
            batch_host="",
            submit_time=now,
            eligible_time=now + BEGIN_DELAY,
            start_time=None,
            end_time=None,
        )

    def _fail_jobs_on(self, name: str) -> None:
        for job in list(self.job_records.values()):
            if name not in job.nodes:
                continue
            if job.state is JobState.RUNNING:
                self._end(job, JobState.NODE_FAIL, exit_code=0, requeue=job.requeue)
            elif job.completing:
                self.finish_completing(job.job_id)

    def _free(self, name: str) -> None:
        node = self.node_records.get(name)
        if node is not None:
            state = NodeState.IDLE if node.state is NodeState.ALLOCATED else node.state
            self._node_put(name, state=state, drop={NodeFlag.COMPLETING})

    def _check_mark(self, node: str, reason: str) -> None:
        """The refusals of the wrapper `relight-node`."""
        found = self._node(node)
        if not reason.startswith(NODE_REASON_PREFIX):
            raise RefusedError(f"the reason must begin with {NODE_REASON_PREFIX}")
        if found.draining and not found.reason.startswith(NODE_REASON_PREFIX):
            raise RefusedError(f"{node} was drained by somebody else: {found.reason!r}")
        if self._node_cap is not None:
            if self._node_cap == 0:
                raise RefusedError("the hourly cap of node changes is reached")
            self._node_cap -= 1

    def _job(self, job_id: int) -> JobRecord:
        try:
            return self.job_records[job_id]
        except KeyError:
            raise JobNotFoundError(f"Invalid job id specified: {job_id}") from None

    def _pending(self, job_id: int) -> JobRecord:
        job = self._job(job_id)
        if job.state is not JobState.PENDING:
            raise RefusedError(f"Job is no longer pending execution for job {job_id}")
        return job

    def _not_ended(self, job_id: int) -> JobRecord:
        job = self._job(job_id)
        if job.state in ENDED:
            raise RefusedError(f"Job has already finished for job {job_id}")
        return job

    def _running(self, job_id: int) -> JobRecord:
        job = self._job(job_id)
        if not job.running:
            raise ValueError(f"job {job_id} is {job.state}, not RUNNING")
        return job

    def _put(self, job: JobRecord, **changes: Any) -> JobRecord:
        self.job_records[job.job_id] = job.model_copy(update=changes)
        return self.job_records[job.job_id]

    def _node(self, name: str) -> NodeRecord:
        try:
            return self.node_records[name]
        except KeyError:
            raise NodeNotFoundError(f"Invalid node name specified: {name}") from None

    def _node_put(
        self,
        name: str,
        *,
        state: NodeState | None = None,
        add: Iterable[NodeFlag] = (),
        drop: Iterable[NodeFlag] = (),
        reason: str | None = "",
        by: str = "slurm",
    ) -> None:
        """Change a node; an empty reason leaves what is there, None takes it away."""
        node = self._node(name)
        changes: dict[str, Any] = {"state": state or node.state, "flags": (node.flags | {*add}) - {*drop}}
        if reason:
            changes |= {"reason": reason, "reason_user": by, "reason_time": self.clock()}
        elif reason is None and NodeFlag.DRAIN not in changes["flags"]:
            changes |= {"reason": "", "reason_user": "", "reason_time": None}
        self.node_records[name] = node.model_copy(update=changes)
