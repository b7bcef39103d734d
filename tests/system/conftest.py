"""Relight at work on a real Slurm cluster and a real Temporal server, with separate people: one such stack per file."""

import asyncio
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Awaitable, Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from temporalio.client import Client, WorkflowHandle
from temporalio.contrib.pydantic import pydantic_data_converter

from relight.config.settings import Way
from relight.domain.attempts import AttemptState
from relight.domain.evidence import Detection
from relight.domain.incidents import Incident, Outcome, Phase
from relight.domain.ledger import Row, RowKind
from relight.lab import fault_rules, faults, packages
from relight.lab.fault_rules import FaultRule
from relight.lab.job import Engine, JobSpec, render
from relight.lab.processes import WaitTimeoutError, wait_until
from relight.lab.spec import Profile
from relight.lab.stack import Stack, StackSpec
from relight.lab.users import USERS
from relight.lab.watching import LedgerView, ledger_of

PATIENCE_S = 120.0
NewStack = Callable[..., AbstractContextManager[Stack]]


@contextmanager
def _new_stack(
    nodes: int = 4,
    profile: Profile = Profile.PRODUCTION,
    way: Way = Way.COMMANDS,
    *,
    agents: bool = False,
    switches: int = 0,
    fresh_jobs: bool = False,
    **policy: Any,
) -> Iterator[Stack]:
    production, ssh = profile is Profile.PRODUCTION, way is Way.SSH
    if os.geteuid() != 0 or packages.missing(accounting=production, production=production, ssh=ssh):
        pytest.skip("needs root and the Slurm packages (relight.lab.packages.ensure)")
    # Not pytest's own folder: other users must reach it, and its path must be short.
    folder = Path(tempfile.mkdtemp(prefix="relight-sys-", dir="/tmp"))
    folder.chmod(0o755)
    given = {"nodes": nodes, "profile": profile, "way": way, "agents": agents, "switches": switches}
    given |= {"fresh_jobs": fresh_jobs}
    stack = Stack(StackSpec(folder=folder, policy=policy, **given))
    try:
        stack.start()
        yield stack
    finally:
        stack.stop()
        shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture(scope="session")
def new_stack() -> NewStack:
    """Starts a stack: number of nodes, profile, way, agents, leaf switches, and keys of the policy.

    `fresh_jobs` lets the service submit as the jobs' owner.
    """
    return _new_stack


class Lab:
    """A stack as a test uses it: jobs, faults, and what the ledger says of them. `clean` undoes all of it."""

    def __init__(self, stack: Stack, view: LedgerView) -> None:
        self.stack = stack
        self.view = view
        self.cluster = stack.cluster
        self.user = USERS.owner if stack.spec.profile is Profile.PRODUCTION else None
        self._jobs: list[int] = []

    # --- jobs

    def run_folder(self, name: str = "train") -> Path:
        """A new run folder of the owner's."""
        return self.cluster.make_run_folder(name, self.user)

    def spec(self, **fields: Any) -> JobSpec:
        """A small, fast training; `fields` are those of `JobSpec`."""
        given = {
            "run": fields.get("run") or self.run_folder(),
            "nodes": 2,
            "tasks_per_node": 1,
            "step_time": timedelta(seconds=0.1),
            "engine": Engine.NUMPY,
            "runtime": self.cluster.runtime,
        }
        return JobSpec(**(given | fields))

    def train(self, *options: str, **fields: Any) -> int:
        """Submit a training as the owner; `options` are sbatch's."""
        return self.submit(render(self.spec(**fields)), *options)

    def submit(self, script: str, *options: str) -> int:
        """Submit a batch script as the owner."""
        job = self.cluster.submit(script, *options, user=self.user)
        self._jobs.append(job)
        return job

    def submit_raw(self, body: str, *options: str) -> int:
        """Submit a script of a few lines in a run folder of its own."""
        return self.submit(f"#!/bin/bash\n{body}\n", f"--chdir={self.run_folder('raw')}", "--requeue", *options)

    def by_owner(self, *command: str) -> str:
        """Run a Slurm command as the jobs' owner."""
        return self.cluster.run(*command, user=self.user).stdout

    def field(self, job: int | str, name: str) -> str | None:
        """A field of `scontrol show job`."""
        return self.cluster.job_field(job, name)

    def restarts(self, job: int) -> int:
        """How often Slurm has started the job again."""
        return int(self.field(job, "Restarts") or 0)

    def excluded(self, job: int) -> set[str]:
        """The job's ExcNodeList, expanded."""
        listed = self.field(job, "ExcNodeList") or ""
        if listed in {"", "(null)"}:
            return set()
        return set(self.cluster.run("scontrol", "show", "hostnames", listed).stdout.split())

    def node_reason(self, node: str) -> str:
        """The reason that a node shows, with its author."""
        shown = self.cluster.run("scontrol", "-o", "show", "node", node).stdout
        found = re.search(r"Reason=(.*?)(?: \[|$)", shown)
        return found[1] if found else ""

    def drained(self, node: str) -> bool:
        """Whether the node has the drain flag."""
        return "drain" in (self.cluster.node_states() or {}).get(node, "")

    # --- waiting

    def until(
        self, condition: Callable[[], bool], what: str, timeout_s: float = PATIENCE_S, *, about: int | None = None
    ) -> None:
        """Wait with a test's patience; a failure tells the story of the job that it is about."""
        try:
            wait_until(condition, timeout_s, what, 0.1)
        except WaitTimeoutError as error:
            raise AssertionError(f"{error}\n{self.story(about) if about else self.tail()}") from None

    def until_state(self, job: int | str, *states: str, timeout_s: float = PATIENCE_S) -> None:
        """Wait until Slurm shows the job in one of these states."""
        self.until(lambda: self.field(job, "JobState") in states, f"job {job} to be {' or '.join(states)}", timeout_s)

    def until_step(self, job: int, step: int = 8) -> None:
        """Wait until training has passed `step`."""
        self.view.wait_for_step(job, step, PATIENCE_S)

    def outcome(self, job: int, timeout_s: float = PATIENCE_S, number: int = 1) -> Incident:
        """The job's incident of that number (from 1), once it has closed."""

        def closed() -> bool:
            known = self.view.incidents(job)
            return len(known) >= number and not known[-number].open

        self.until(closed, f"incident {number} of job {job} to close", timeout_s, about=job)
        return self.view.incidents(job)[-number]

    def waiting(self, job: int) -> Incident:
        """The job's incident, once it waits for a person."""

        def waits() -> bool:
            known = self.view.incidents(job)
            return bool(known) and self.status_phase(known[0]) is Phase.WAITING

        self.until(waits, f"the incident of job {job} to wait for approval")
        return self.view.incidents(job)[0]

    def until_ended(self, job: int, number: int = 1) -> AttemptState:
        """The job's attempt of that number (from 1), once Relight has written down that it has ended."""

        def ended() -> bool:
            known = self.view.attempts(job)
            return len(known) >= number and not known[-number].running

        self.until(ended, f"attempt {number} of job {job} to be seen ended")
        return self.view.attempts(job)[-number]

    def until_row(self, job: int, kind: RowKind, **body: Any) -> Row:
        """The first row of that kind on the job's newest attempts whose body holds `body`."""
        found: list[Row] = []

        def there() -> bool:
            found.extend(r for r in self.rows(job, kind) if body.items() <= r.body.items())
            return bool(found)

        self.until(there, f"a row {kind} {body} of job {job}")
        return found[0]

    # --- the ledger

    def rows(self, job: int, kind: RowKind | None = None) -> tuple[Row, ...]:
        """All rows on the job's attempts, in the order written."""
        rows = [
            row
            for state in reversed(self.view.attempts(job))
            for row in self.ask(self.view._ledger.rows(attempt=str(state.attempt.key), kind=kind))
        ]
        return tuple(sorted(rows, key=lambda row: row.seq))

    def detections(self, job: int) -> tuple[Detection, ...]:
        """What the watchers reported of the job."""
        return tuple(Detection.model_validate(r.body["detection"]) for r in self.rows(job, RowKind.DETECTED))

    def intents(self, job: int) -> list[str]:
        """What Relight set out to do to the job and its nodes, in order."""
        return [row.body["what"] for row in self.rows(job, RowKind.INTENT)]

    def effects(self, job: int) -> list[str]:
        """The steps of which Relight read back an effect, in order."""
        return [row.body["step"] for row in self.rows(job, RowKind.EFFECT)]

    def step_names(self, incident: Incident) -> list[str]:
        """What was done in the incident, in order."""
        return [step.name for step in incident.steps]

    def ask(self, question: Awaitable[Any]) -> Any:
        """Await something of the ledger."""
        return self.view._runner.run(question)

    def untouched(self, job: int) -> None:
        """Check that Relight neither changed the job nor set out to."""
        assert self.intents(job) == []
        assert self.effects(job) == []
        assert self.excluded(job) == set()

    def nothing_written(self, job: int) -> None:
        """Check that Relight wrote nothing: an effect without an intent tells why a change was not made."""
        assert self.intents(job) == []
        assert self.excluded(job) == set()

    def check_no_incident(self, job: int, *how: str) -> None:
        """Check that the attempt's end was seen for what it is, and that nothing was detected, opened or done."""
        self.until_ended(job)
        [ended] = self.rows(job, RowKind.ATTEMPT_ENDED)
        assert any(word in ended.body["how"] for word in how), ended.body["how"]
        # Written in one transaction with the end, so it would be there by now.
        assert self.detections(job) == ()
        assert self.view.incidents(job) == ()
        self.untouched(job)

    # --- faults

    def inject(self, job: int, fault: faults.Fault) -> faults.Injection:
        """Inflict a fault on the running job."""
        return faults.inject(self.cluster, job, fault)

    def rule(self, job: int, **fields: Any) -> None:
        """Leave a rule for the job's ranks to find."""
        fault_rules.add(Path(self.field(job, "WorkDir") or ""), FaultRule(**fields))

    def node_of(self, job: int, rank: int) -> str:
        """The node on which a rank runs now."""
        return next(r.node for r in faults.ranks(self.cluster, job) if r.rank == rank)

    # --- people

    def cli(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        """Run `relight` as root with this stack's settings."""
        return relight(*arguments, RELIGHT_CONFIG=str(self.stack.config))

    def workflow(self, incident: Incident, act: Callable[[WorkflowHandle[Any, Any]], Awaitable[Any]]) -> Any:
        """Do something with the incident's workflow, as a client of Temporal."""
        settings = self.view.settings

        async def work() -> Any:
            client = await Client.connect(settings.temporal.address, data_converter=pydantic_data_converter)
            return await act(client.get_workflow_handle(incident.workflow_id, run_id=incident.run_id))

        return asyncio.run(work())

    def signal(self, incident: Incident, name: str, **say: str) -> None:
        """Send a signal as the Temporal web UI does: a name and JSON."""
        self.workflow(incident, lambda handle: handle.signal(name, say))

    def status_phase(self, incident: Incident) -> Phase | None:
        """The phase that the workflow itself tells; None when it has ended."""
        if not incident.open or incident.plan is None:
            return None
        told = self.workflow(incident, lambda handle: handle.query("status"))
        return Phase(told["phase"])

    # --- the end

    def story(self, job: int) -> str:
        """What the ledger says of a job, for a failed assertion."""
        told = [f"{r.at:%H:%M:%S} {r.kind} {r.incident} {r.attempt} {str(r.body)[:200]}" for r in self.rows(job)]
        ends = [f"{i.id} {i.phase} {i.outcome} {i.outcome_reason}" for i in self.view.incidents(job)]
        return "\n".join(
            [*told, *ends, str(self.field(job, "JobState")), str(self.field(job, "Restarts")), self.tail()]
        )

    def tail(self) -> str:
        """The end of the worker's log, for a failed assertion."""
        return self.stack.worker_log.read_text()[-1500:]

    def clean(self) -> None:
        """Undo what a test has done: jobs, node marks, kernel logs, a worker that was stopped."""
        if self._jobs:
            self.cluster.run("scancel", *map(str, self._jobs), check=False)
        if self.stack.worker() is None:
            self.stack.start_worker()
        processes = self.cluster.status().processes
        for node in self.cluster.spec.node_names:
            if not processes[node]:
                self.cluster.start_node(node)
            if self.drained(node):
                self.resume(node)
            os.truncate(self.cluster.kernel_log(node), 0)

    def resume(self, node: str) -> None:
        """Put a drained node back, as an administrator does."""
        self.cluster.run("scontrol", "update", f"NodeName={node}", "State=RESUME", check=False)
        self.until(lambda: not self.drained(node), f"{node} to be back")


def relight(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run the `relight` command; a failure is the test's to judge."""
    own = {name: value for name, value in os.environ.items() if not name.startswith("RELIGHT_")}
    command = [sys.executable, "-m", "relight.workers.cli", *arguments]
    return subprocess.run(
        command, env=own | environment, capture_output=True, text=True, check=False, timeout=PATIENCE_S
    )


@pytest.fixture
def lab(stack: Stack) -> Iterator[Lab]:
    """The file's stack (its own fixture `stack`), cleaned up after each test."""
    with ledger_of(stack.config) as view:
        lab = Lab(stack, view)
        try:
            yield lab
        finally:
            lab.clean()


def check_recovered(lab: Lab, job: int, incident: Incident) -> None:
    """Training went past the failed step under the job's own id, and the ledger tells every change in order."""
    assert incident.outcome is Outcome.RECOVERED, (incident.outcome_reason, lab.tail())
    assert lab.field(job, "JobState") == "RUNNING"
    failed = incident.diagnosis.failed_step if incident.diagnosis else None
    assert (lab.view.step(job) or 0) > (failed or 0)
    rows = lab.view.rows(incident=incident.id)
    intents = {row.id.removesuffix("/intent"): row.seq for row in rows if row.kind is RowKind.INTENT}
    effects = {row.id.removesuffix("/effect"): row.seq for row in rows if row.kind is RowKind.EFFECT}
    assert intents
    for step, seq in intents.items():
        assert effects[step] > seq
    assert lab.ask(lab.view._ledger.verify()).ok
