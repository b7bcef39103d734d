"""Relight dies at any moment of a recovery and never comes back: Slurm alone brings each job to where it would have.

A job that had not been queued again stays as it ended; one that had runs again after Slurm's own begin delay, which is
6 s here and 121 s by default. None is held, none waits for anything of Relight's.
"""

import asyncio
import os
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import chdir
from functools import partial
from pathlib import Path

import pytest
from temporalio.client import Client

from relight.activities.contracts import watch_id
from relight.domain.ledger import Row, RowKind
from relight.lab import faults, packages
from relight.lab.chaos_seen import mark
from relight.lab.cluster import Cluster, ClusterSpec
from relight.lab.processes import WaitTimeoutError, wait_until
from relight.lab.stack import Stack, StackSpec

from .conftest import Lab

pytestmark = [pytest.mark.system, pytest.mark.slow]

NODES, JOBS, STEP = 9, 3, 4
ALONE_S = 60.0
"""Begin delay, epilog, a scheduling pass, and the job's start on a busy machine."""
POLICY = {
    "drains_per_hour": 20,
    "drain_share": "100%",
    "most_unavailable": "100%",
    "drains_per_domain": 20,
    "cool_down": "1s",
    "breaker": {"nodes": 1000, "jobs": 1000, "failed_restarts": 100, "reversals": 100},
}
STEPS = (
    "planned",
    "intent/requeue",
    "effect/requeue",
    "intent/exclude",
    "effect/exclude",
    "effect/drain",
    "verified/ended",
    "intent/start",
    "effect/start",
)
HELD_STEPS = ("effect/exclude", "intent/release", "effect/release", "effect/start")
HELD = "launch_failed_requeued_held"
OF_A_NODE = {"intent/exclude", "effect/exclude", "effect/drain"}
"""Steps that need a GPU's fault."""


@pytest.fixture(scope="module")
def stack(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    """In auto, with accounting and a short begin delay; several incidents at once are no common cause here."""
    if os.geteuid() != 0 or packages.missing(accounting=True, production=False):
        pytest.skip("needs root and the Slurm packages (relight.lab.packages.ensure)")
    folder = Path(tempfile.mkdtemp(prefix="relight-sys-", dir="/tmp"))
    stack = Stack(StackSpec(folder=folder, nodes=NODES, policy=POLICY))
    stack.cluster = Cluster(ClusterSpec(folder=folder / "slurm", nodes=NODES, accounting=True))
    try:
        # 22.05's slurmstepd dumps its core where it was started from when it finds no room for its job (seen).
        with chdir(tmp_path_factory.mktemp("core")):
            stack.start()
        yield stack
    finally:
        stack.stop()
        shutil.rmtree(folder, ignore_errors=True)


def with_fresh_node(lab: Lab, jobs: Sequence[int]) -> int:
    """The job on whose second node nobody has had leave to do anything within the hour: there is one leave a node."""
    asked = {row.node for row in lab.view.rows(kind=RowKind.LEAVE)}
    return next(job for job in jobs if lab.node_of(job, 1) not in asked)


def end_for_good(lab: Lab, jobs: Sequence[int], step: str, each: Callable[[], None] = lambda: None) -> None:
    """Kill the worker as soon as the ledger holds that step of any of the jobs; `each` is done at every look."""

    def there(row: Row) -> bool:
        return mark(row) == step and any(f"/{job}/" in row.attempt for job in jobs)

    until, seen, rows = time.monotonic() + 60, 0, lab.view.rows()
    while not any(map(there, rows)):
        assert time.monotonic() < until, f"no row {step}\n" + "\n".join(lab.story(job) for job in jobs)
        each()
        seen = max((row.seq for row in rows), default=seen)
        rows = lab.view.rows(after=seen)
    lab.stack.kill_worker()
    # For the worker of the next test: Temporal gives up a dead one's watchers after half a minute only.
    asyncio.run(end_watching(lab))


async def end_watching(lab: Lab) -> None:
    """End the workflow that keeps the watchers; the next worker starts it anew."""
    client = await Client.connect(lab.view.settings.temporal.address)
    await client.get_workflow_handle(watch_id(lab.view.settings.cluster)).terminate("the worker is gone for good")


def forget(lab: Lab, jobs: Sequence[int]) -> None:
    """Cancel also what has failed: the next test's worker would go on with it, and take its nodes."""
    for job in jobs:
        if lab.field(job, "JobState") == "FAILED":
            lab.cluster.run("scontrol", "requeuehold", str(job))
    lab.cluster.run("scancel", *map(str, jobs), check=False)


def trains_alone(lab: Lab, job: int) -> bool:
    """Whether the job runs a second time, by its own output."""
    output = Path(lab.field(job, "WorkDir") or "") / f"slurm-{job}.out"
    text = output.read_text() if output.exists() else ""
    return lab.field(job, "JobState") == "RUNNING" and "| attempt 1" in text and "step " in text


def stands(lab: Lab, job: int, condition: Callable[[], bool]) -> None:
    """Wait until the job stands like that; else tell how it does."""
    try:
        wait_until(condition, ALONE_S, f"job {job} to stand as Slurm alone would have it", 0.2)
    except WaitTimeoutError as error:
        shown = lab.cluster.run("scontrol", "show", "job", str(job), check=False).stdout
        pytest.fail(f"{error}\n{shown}\n{lab.cluster.node_states()}\n{lab.story(job)}")


def as_slurm_alone(lab: Lab, job: int) -> bool:
    """Whether the job stands where Slurm alone would have it for good."""
    if lab.restarts(job) == 0:
        return lab.field(job, "JobState") == "FAILED"
    return trains_alone(lab, job)


@pytest.mark.parametrize("step", STEPS)
def test_every_job_stands_where_slurm_alone_would_have_it(lab: Lab, step: str) -> None:
    """Three jobs are interrupted at once; the worker dies for good at a step of one, and so anywhere in the others."""
    jobs = [lab.train() for _ in range(JOBS)]
    for job in jobs:
        lab.until(lambda job=job: (lab.view.step(job) or 0) >= STEP, f"job {job} to train", about=job)
    victim = with_fresh_node(lab, jobs) if step in OF_A_NODE else None
    for job in jobs:
        lab.inject(job, faults.gpu(rank=1) if job == victim else faults.crash(rank=0))
    end_for_good(lab, jobs, step)
    for job in jobs:
        stands(lab, job, partial(as_slurm_alone, lab, job))
        assert lab.field(job, "Priority") != "0", "nobody holds it"
        assert lab.restarts(job) <= 1
    if step not in {"planned", "intent/requeue"}:
        assert any(lab.restarts(job) == 1 for job in jobs), "the test reached what it is about"
    forget(lab, jobs)


@pytest.mark.parametrize("step", HELD_STEPS)
def test_a_job_that_slurm_holds_is_held_by_slurm_or_runs(lab: Lab, step: str) -> None:
    """Slurm itself holds a job that it could not launch; once Relight has released it, it runs, whoever is there."""
    job = lab.train("--hold")
    # Whichever node is its first one.
    rooms = [lab.cluster.folder / f"nodes/n{number}/spool/job{job:05}" for number in range(1, NODES + 1)]

    def make_room() -> None:
        if lab.field(job, "Reason") == HELD:
            for room in rooms:
                room.unlink(missing_ok=True)

    for room in rooms:
        room.touch()
    lab.cluster.run("scontrol", "release", str(job))
    end_for_good(lab, [job], step, make_room)
    make_room()
    if step == "effect/exclude":
        assert lab.field(job, "Reason") == HELD
    elif step == "intent/release":
        stands(lab, job, lambda: lab.field(job, "Reason") == HELD or trains_alone(lab, job))
    else:
        stands(lab, job, lambda: trains_alone(lab, job))
    forget(lab, [job])
