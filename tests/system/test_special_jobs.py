"""Jobs that are more than one script on a few nodes: docs/special-jobs.md says what Relight does with each kind."""

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import NamedTuple

import pytest

from relight.domain.evidence import Interruption
from relight.domain.incidents import Outcome
from relight.lab.stack import Stack
from relight.lab.watching import ledger_of

from .conftest import Lab, NewStack
from .small_jobs import ASKS, Small, small

pytestmark = pytest.mark.system

SILENT = timedelta(seconds=45)
"""More than the silence after which a job of such steps hangs."""


@pytest.fixture(scope="module")
def stack(new_stack: NewStack) -> Iterator[Stack]:
    """Eight nodes in auto, with limits of a QOS in force."""
    with new_stack(nodes=8) as stack:
        cluster = stack.cluster
        with cluster.slurm_conf.open("a") as conf:
            conf.write("AccountingStorageEnforce=associations,limits,qos\n")
        cluster.run("sacctmgr", "-i", "add", "qos", "one", "set", "MaxJobsPerUser=1", "MaxSubmitJobsPerUser=2")
        cluster.run("sacctmgr", "-i", "modify", "user", cluster.users.owner, "set", "qos+=one")
        cluster.kill_controller()  # what is enforced is read at its start
        cluster.start_controller()
        yield stack


class Suspended(NamedTuple):
    """A training that was suspended before the other tests of this file."""

    job: int
    since: datetime


@pytest.fixture(scope="module", autouse=True)
def suspended(stack: Stack) -> Iterator[Suspended]:
    """It stays so beside all other tests."""
    with ledger_of(stack.config) as view:
        lab = Lab(stack, view)
        job = small(lab, "--nodelist=n1", name="suspended")
        job.train()
        stack.cluster.run("scontrol", "suspend", str(job.job))
        yield Suspended(job.job, datetime.now(UTC))
        stack.cluster.run("scancel", str(job.job), check=False)


def test_what_waits_for_its_success_waits_for_the_next_attempt_and_starts(lab: Lab) -> None:
    """Slurm has marked each as failed for good; the success of the next attempt starts it."""
    parent = small(lab, f"--comment={ASKS}", name="stage")
    parent.train()
    waits = f"--dependency=afterok:{parent.job}"
    other = lab.submit_raw("exit 3", "--no-requeue")
    plain, many = small(lab, waits, name="eval"), small(lab, waits, "--array=0-1", name="sweep")
    pair = small(lab, waits, ":", "--nodes=1", name="pair")
    # The same script in the same folder: until the parent has succeeded it goes on with nothing.
    chained = small(lab, waits, name="stage", run=parent.run)
    last = small(lab, f"--dependency=afterany:{chained.job}", name="stage", run=parent.run)
    killed = small(lab, waits, "--kill-on-invalid-dep=yes", name="killed")
    both = small(lab, f"{waits},afterok:{other}", name="both")
    parent.fail()
    for child in (plain, many, pair, chained, both):
        lab.until(lambda each=child: each.field("Reason") == "DependencyNeverSatisfied", f"{child} to be given up")
    parent.approve()
    incident = parent.recovered()

    told = next(step.text for step in incident.steps if step.name == "dependants")
    assert "that waited for its success wait again" in told
    assert f"job {killed.job} was cancelled by Slurm" in told
    assert lab.intents(parent.job) == ["requeue", "depend", "start"]
    for child in (plain, many, pair, chained):
        assert child.field("Dependency") == f"afterok:{parent.job}(unfulfilled)"
    lab.until(lambda: f"afterok:{other}(failed)" in both.field("Dependency"), "the other failure to count")
    assert killed.field("JobState") == "CANCELLED"

    parent.finish()
    plain.train()
    for job in (f"{many.job}_1", pair.job, pair.job + 1):
        lab.until_state(job, "RUNNING")
    for job in (parent, chained, last):
        lab.until_state(job.job, "COMPLETED")
    assert both.field("Reason") == "DependencyNeverSatisfied"


def test_of_an_array_with_a_throttle_each_failed_task_is_requeued_by_its_own_id(lab: Lab) -> None:
    """Two fail at once, and wait for their turn behind those that have begun meanwhile."""
    folders = 'mkdir -p "$SLURM_ARRAY_TASK_ID"; cd "$SLURM_ARRAY_TASK_ID"'
    array = small(lab, "--array=0-3%2", name="array", before=folders)
    listed = ("squeue", "-h", "-t", "RUNNING", "-j", str(array.job), "-O", "ArrayTaskID,JobID")

    def running() -> dict[int, Small]:
        lines = [line.split() for line in lab.cluster.run(*listed).stdout.splitlines()]
        return {int(task): Small(lab, int(job), array.run / task) for task, job in lines}

    lab.until(lambda: len(running()) == 2, "two tasks to run")
    first = running()
    for task in first.values():
        task.train()
    for task in first.values():
        task.fail()
    lab.until(lambda: running().keys() == {2, 3}, "the other tasks to run")
    second = running()
    for task in first.values():
        lab.until(lambda job=task.job: bool(lab.view.incidents(job)), "an incident of each")
        task.until_told("as many tasks of its array run as it allows at once")
    for task in second.values():
        task.train()
        task.finish()
    for task in first.values():
        task.recovered()
        assert lab.intents(task.job) == ["requeue", "start"]
    for task in second.values():
        lab.until_state(task.job, "COMPLETED")
        assert lab.restarts(task.job) == 0
        lab.untouched(task.job)


def test_a_job_for_which_another_steps_in_after_its_failure_is_not_requeued(lab: Lab) -> None:
    """`afternotok`, and a script that submits itself anew: nothing runs twice in one folder."""
    parent = small(lab, name="stage")
    again = small(lab, name="again", after='sbatch --parsable --export=ALL "$0" > anew; exit 9')
    for job in (parent, again):
        job.train()
    child = small(lab, f"--dependency=afternotok:{parent.job}", name="rescue")
    parent.fail()
    again.fail()
    for job in (parent, again):
        incident = lab.outcome(job.job)
        assert incident.outcome is Outcome.SUCCEEDED_BY, (incident.outcome_reason, lab.story(job.job))
        lab.untouched(job.job)
        assert lab.restarts(job.job) == 0
    anew = Small(lab, int((again.run / "anew").read_text()), again.run)
    for successor in (child, anew):
        successor.train()
    lab.by_owner("scancel", str(anew.job))


def reserve(lab: Lab, name: str, node: str) -> str:
    """A reservation of one node for the owner, as an option of sbatch."""
    fields = (f"Users={lab.user}", f"Nodes={node}", "StartTime=now", "Duration=60")
    lab.cluster.run("scontrol", "create", "reservation", f"ReservationName={name}", *fields)
    return f"--reservation={name}"


def test_a_job_in_a_reservation_goes_on_there_and_waits_when_it_has_ended(lab: Lab) -> None:
    """Out of one that has ended only its owner takes it; of one that went while it lay there failed, Slurm has."""
    inside = small(lab, reserve(lab, "goes-on", "n6"), name="inside")
    late, gone = (
        small(lab, reserve(lab, name, node), f"--comment={ASKS}", name=name)
        for name, node in (("ends", "n7"), ("gone", "n8"))
    )
    for job in (inside, late, gone):
        job.train()
        job.fail()
    inside.recovered()
    assert (inside.field("Reservation"), inside.field("NodeList")) == ("goes-on", "n6")

    lab.waiting(gone.job)
    lab.cluster.run("scontrol", "delete", "reservation", "gone")
    gone.approve()
    gone.recovered()
    assert gone.field("Reservation") == ""

    lab.waiting(late.job)
    small(lab, "--reservation=ends", "--exclusive", name="in-its-place").train(1)
    late.approve()
    late.until_told("too few nodes are free")
    lab.cluster.run("scontrol", "update", "ReservationName=ends", "EndTime=now+1seconds")
    late.until_told("its reservation has ended")
    assert late.field("Reservation") in {"", "ends"}
    lab.by_owner("scontrol", "update", f"JobId={late.job}", "ReservationName=")
    lab.by_owner("scontrol", "release", str(late.job))
    late.recovered()


def test_a_limit_of_its_qos_is_waited_out(lab: Lab) -> None:
    """Another job of the owner's has taken the one place, and no more may be submitted."""
    first = small(lab, "--qos=one", f"--comment={ASKS}", name="first")
    first.train()
    second = small(lab, "--qos=one", name="second")
    first.fail()
    second.train()
    first.approve()
    first.until_told("a limit of its account or QOS is reached (QOSMaxJobsPerUserLimit)")
    assert lab.restarts(first.job) == 1
    second.finish()
    first.recovered()
    lab.untouched(second.job)


def test_a_suspended_job_does_not_hang_and_may_crash_afterwards(lab: Lab, suspended: Suspended) -> None:
    """Nothing is detected however long it is silent, nor when it goes on; its crash is one like any other."""
    job = Small(lab, suspended.job, Path(lab.field(suspended.job, "WorkDir") or ""))
    lab.until(lambda: datetime.now(UTC) - suspended.since > SILENT, "the job to be suspended for long enough")
    assert lab.field(job.job, "JobState") == "SUSPENDED"
    assert lab.detections(job.job) == ()
    before = lab.view.step(job.job) or 0
    lab.cluster.run("scontrol", "resume", str(job.job))
    job.train(before + 3)
    assert lab.detections(job.job) == ()
    lab.cluster.run("scontrol", "suspend", str(job.job))
    job.fail()
    lab.cluster.run("scontrol", "resume", str(job.job))
    job.recovered()
    assert [d.kind for d in lab.detections(job.job)] == [Interruption.CRASH]
