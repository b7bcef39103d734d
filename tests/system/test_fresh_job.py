"""A job that Slurm cannot queue again goes on as a fresh one: submitted as its owner, in the lineage of the first."""

from collections.abc import Iterator

import pytest

from relight.domain.incidents import Incident, Outcome
from relight.domain.ledger import RowKind
from relight.domain.plan import Restart
from relight.lab.stack import Stack

from .conftest import Lab, NewStack
from .small_jobs import Small, small

pytestmark = pytest.mark.system


@pytest.fixture(scope="module")
def stack(new_stack: NewStack) -> Iterator[Stack]:
    """Three nodes in auto, where the service may submit as the jobs' owner."""
    with new_stack(nodes=3, fresh_jobs=True, resubmit="auto") as stack:
        yield stack


def fresh_of(lab: Lab, job: int, number: int = 1) -> tuple[Incident, Small]:
    """The job's incident, and the job that was submitted in its place."""
    incident = lab.outcome(job, number=number)
    story = lab.story(job)
    assert incident.outcome is Outcome.RECOVERED, story
    assert incident.plan
    assert incident.plan.restart is Restart.SUBMIT
    effect = next(r for r in lab.view.rows(incident=incident.id) if r.body.get("step") == "submit")
    fresh = int(effect.body["done"]["fresh"]["job_id"])
    lab._jobs.append(fresh)
    return incident, Small(lab, fresh, lab.run_folder("unused"))


def test_a_job_that_must_not_be_requeued_goes_on_as_a_fresh_one(lab: Lab) -> None:
    """Same owner, options and environment; its child waits for it; and once more, when the fresh one fails, too."""
    before = 'echo "of mine: $OF_MINE" >> environment'
    parent = small(lab, "--no-requeue", "--export=ALL,OF_MINE=kept", "--time=30", name="once", before=before)
    child = small(lab, f"--dependency=afterok:{parent.job}", name="eval")
    parent.train()
    parent.fail()
    incident, fresh = fresh_of(lab, parent.job)

    assert lab.step_names(incident)[-7:] == [
        "outputs kept",
        "submitted",
        "dependants",
        "released",
        "running",
        "progress",
        "recovered",
    ]
    assert lab.intents(parent.job) == ["submit", "depend", "release"]
    for name in ("UserId", "JobName", "Account", "TimeLimit", "NumNodes", "Partition", "WorkDir", "Requeue", "TRES"):
        assert fresh.field(name) == parent.field(name), name
    assert (parent.run / "environment").read_text() == "of mine: kept\n" * 2
    assert child.field("Dependency") == f"afterok:{fresh.job}(unfulfilled)"

    first, second = lab.view.attempts(parent.job)[0].attempt, lab.view.attempts(fresh.job)[0].attempt
    assert first.lineage == second.lineage
    assert (lab.view.step(fresh.job) or 0) > (lab.view.step(parent.job) or 0)

    (parent.run / "fail").touch()
    again, third = fresh_of(lab, fresh.job)
    assert again.lineage == incident.lineage
    assert child.field("Dependency") == f"afterok:{third.job}(unfulfilled)"
    assert third.field("Comment").count("relight-fresh:") == 1
    (parent.run / "finish").touch()
    child.train()
    assert lab.ask(lab.view._ledger.verify()).ok


def test_where_its_environment_is_not_on_record_nothing_is_submitted(lab: Lab) -> None:
    """The program that submits asks accounting itself: what it cannot be told it does not make up."""
    job = small(lab, "--no-requeue", name="bare")
    job.train()
    # As a site without job_env has it, but for what slurm.conf says.
    cluster = lab.cluster
    database = cluster.folder / "etc/relight-submit.conf"
    kept = database.read_text()
    hidden = cluster.folder / "hidden"
    hidden.mkdir(exist_ok=True)
    for name in ("sbatch", "sacct"):
        script = f'case $1 in --env-vars) echo NONE;; *) exec /usr/bin/{name} "$@";; esac'
        (hidden / name).write_text(f"#!/bin/sh\n{script}\n")
        (hidden / name).chmod(0o755)
    hidden.chmod(0o755)
    try:
        database.write_text(f"{kept}bin = {hidden}\n")
        job.fail()
        incident = lab.outcome(job.job)
    finally:
        database.write_text(kept)
    assert incident.outcome is Outcome.FAILED
    assert "has not the environment of just this job" in incident.outcome_reason
    assert [row.body["what"] for row in lab.rows(job.job, RowKind.INTENT)] == ["submit"]
    listed = cluster.run("squeue", "-h", "-a", "-t", "all", "-n", "bare", "-o", "%i").stdout.split()
    assert listed == [str(job.job)]
