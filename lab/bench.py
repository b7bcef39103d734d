"""Benchmarks: numbers with their conditions, printed and never asserted."""

import os
import platform
import shutil
import tempfile
from collections.abc import Callable, Sequence
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path
from statistics import median
from typing import Any

import psutil
from pydantic import BaseModel, ConfigDict

from relight.domain.incidents import Incident
from relight.domain.ledger import Row, RowKind
from relight.domain.progress import percentile
from relight.lab import faults
from relight.lab.job import Engine, JobSpec, render
from relight.lab.machine import slurm_version
from relight.lab.processes import WaitTimeoutError, wait_until
from relight.lab.scenario import NODES_OF_JOB, SCENARIOS, TASKS_PER_NODE, Scenario
from relight.lab.spec import Profile
from relight.lab.stack import Stack, StackSpec
from relight.lab.watching import LedgerView, ledger_of

NODES = 4
STEP_TIME = timedelta(seconds=0.1)
P95_FROM = 60
"""Fewer trials than this say nothing about a 95th percentile."""
ENDS_WITHIN_S = 300
MEASURES = ("detect_s", "act_s", "completing_s", "running_s", "progress_s")


class Trial(BaseModel):
    """One fault, inflicted and measured."""

    model_config = ConfigDict(frozen=True)

    right: bool
    seconds: dict[str, float] = {}
    """By name of the measure; a measure that does not apply to the fault is missing."""


def recovery(trials: int, profile: Profile, names: Sequence[str], say: Callable[[str], None]) -> dict[str, Any]:
    """Inflict each fault `trials` times, one after the other, and return the numbers with their conditions."""
    folder = Path(tempfile.mkdtemp(prefix="relight-bench-"))
    folder.chmod(0o755)
    policy = {"drains_per_hour": 100}
    stack = Stack(StackSpec(folder=folder, nodes=NODES, profile=profile, policy=policy, second_witness=True))
    try:
        stack.start(say)
        with ledger_of(stack.config) as view:
            measured = {name: _fault(stack, view, SCENARIOS[name], trials, say) for name in names}
            memory = _worker_memory(stack)
    finally:
        stack.stop()
        shutil.rmtree(folder, ignore_errors=True)
    return {"faults": measured, "conditions": _conditions(profile, memory)}


def _fault(
    stack: Stack, view: LedgerView, scenario: Scenario, trials: int, say: Callable[[str], None]
) -> dict[str, Any]:
    done = []
    for number in range(1, trials + 1):
        trial = _trial(stack, view, scenario)
        told = ", ".join(f"{name} {value:.2f}" for name, value in trial.seconds.items())
        say(f"{scenario.name} {number}/{trials}: {'right' if trial.right else 'WRONG'} {told}")
        done.append(trial)
    result: dict[str, Any] = {"n": trials, "wrong": sum(not trial.right for trial in done)}
    for name in MEASURES:
        values = [trial.seconds[name] for trial in done if name in trial.seconds]
        result[name] = summary(values) if values else None
    return result


def summary(values: Sequence[float]) -> dict[str, float | None]:
    """Median, 95th percentile (from 60 values on) and maximum."""
    p95 = percentile(values, 95) if len(values) >= P95_FROM else None
    return {
        "p50": round(median(values), 3),
        "p95": None if p95 is None else round(p95, 3),
        "max": round(max(values), 3),
    }


def _trial(stack: Stack, view: LedgerView, scenario: Scenario) -> Trial:
    """Run a job, break it, wait for the end, and put the cluster right again."""
    production = stack.spec.profile is Profile.PRODUCTION
    user = stack.cluster.users.owner if production else None
    run = stack.cluster.make_run_folder("bench", user)
    spec = JobSpec(
        run=run,
        # Each its own name: the same name in the same folder would be a successor.
        name=run.name,
        nodes=NODES_OF_JOB,
        tasks_per_node=TASKS_PER_NODE,
        engine=Engine.NUMPY,
        step_time=STEP_TIME,
        busy=scenario.busy,
        checkpoint_every=10,
        runtime=stack.cluster.runtime,
    )
    job = stack.cluster.submit(render(spec), user=user)
    try:
        view.wait_for_step(job, 10 + int(scenario.healthy_for / STEP_TIME))
        injection = faults.inject(stack.cluster, job, scenario.fault(view.step(job) or 0))
        incident = _closed(view, job, injection)
        if incident is None:
            return Trial(right=False)
        at = _fault_time(scenario, incident, injection)
        rows = view.rows(incident=incident.id)
        return Trial(right=incident.outcome is scenario.outcome, seconds=measure(incident, rows, at))
    finally:
        _put_right(stack, job)


def _closed(view: LedgerView, job: int, injection: faults.Injection) -> Incident | None:
    """The incident once it has closed, None when it does not."""
    with suppress(WaitTimeoutError):
        return view.wait_for_outcome(job, ENDS_WITHIN_S, since=injection.at)
    return None


def _fault_time(scenario: Scenario, incident: Incident, injection: faults.Injection) -> datetime:
    """When it happened: `bug` waits in a file for its step, so there Slurm's end of the job is taken."""
    if scenario.name == "bug" and incident.occurred_at:
        return incident.occurred_at
    return injection.at


def measure(incident: Incident, rows: Sequence[Row], fault_at: datetime) -> dict[str, float]:
    """The seconds of one incident.

    `act_s`: from detection to requeue and exclusion read back. `completing_s`: what Slurm itself spent ending the
    old attempt. `running_s`: from detection to RUNNING again without that. `progress_s`: to a step past the failed one.
    """
    found = incident.detected_at
    seconds = {"detect_s": (found - fault_at).total_seconds()}
    acts = [
        row.at for row in rows if row.kind is RowKind.EFFECT and row.body["step"].startswith(("requeue", "exclude"))
    ]
    if acts:
        seconds["act_s"] = (max(acts) - found).total_seconds()
    verified = {row.body["what"]: row for row in rows if row.kind is RowKind.VERIFIED}
    if "ended" in verified:
        seconds["completing_s"] = verified["ended"].body["completing_s"]
    if "running" in verified:
        running = (verified["running"].at - found).total_seconds()
        seconds["running_s"] = running - seconds.get("completing_s", 0.0)
    if "progress" in verified:
        seconds["progress_s"] = (verified["progress"].at - found).total_seconds()
    return seconds


def _put_right(stack: Stack, job: int) -> None:
    """End the job, bring dead nodes back and return drained ones, so that each trial begins alike."""
    cluster = stack.cluster
    cluster.run("scancel", str(job), check=False)
    states = cluster.node_states() or {}
    for node, state in states.items():
        if "DOWN" in state.upper():
            cluster.start_node(node)
    for node in cluster.spec.node_names:
        # A repaired node: its kernel log no longer accuses it.
        cluster.kernel_log(node).write_text("")
        cluster.run("scontrol", "update", f"NodeName={node}", "State=RESUME", check=False)

    def all_idle() -> bool:
        now = cluster.node_states() or {}
        return bool(now) and all(state.upper().startswith("IDLE") and "+" not in state for state in now.values())

    wait_until(all_idle, 120, "all nodes to be idle again", 0.2)


def _worker_memory(stack: Stack) -> float | None:
    """Resident memory of the controller worker, in MiB."""
    process = stack.worker()
    return round(psutil.Process(process.pid).memory_info().rss / 2**20, 1) if process else None


def _conditions(profile: Profile, memory: float | None) -> dict[str, Any]:
    return {
        "at": datetime.now(UTC).isoformat(timespec="seconds"),
        "profile": profile.value,
        "slurm": _slurm_version(),
        "nodes": NODES,
        "job": f"{NODES_OF_JOB} nodes x {TASKS_PER_NODE} ranks, numpy engine, step {STEP_TIME.total_seconds():g} s",
        "all_on_one_machine": True,
        "cores": os.cpu_count(),
        "load_1m": round(os.getloadavg()[0], 2),
        "python": platform.python_version(),
        "gpus": "none: the GPU fault is a log line and a kernel log stand-in",
        "controller_worker_mib": memory,
    }


def _slurm_version() -> str:
    return ".".join(f"{part:02}" for part in slurm_version())
