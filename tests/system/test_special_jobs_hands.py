"""Others act in the middle of what Relight does: tools inside the job, its owner, and Slurm, which reuses ids."""

import os
import re
import shlex
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from relight.domain.incidents import Outcome
from relight.domain.ledger import RowKind
from relight.lab.packages import find_program
from relight.lab.runtime import as_user
from relight.lab.stack import Stack

from .conftest import Lab, NewStack
from .small_jobs import ASKS, Small, small, standing_still, start_now

pytestmark = pytest.mark.system

GATE = """\
#!/bin/sh
if [ -e {folder}/closed-$1 ]; then
  touch {folder}/reached-$1
  while [ -e {folder}/closed-$1 ]; do sleep 0.05; done
fi
exec {scontrol} "$@"
"""
"""The worker's scontrol: a command stands still where its gate is closed."""


@pytest.fixture(scope="module")
def gate() -> Iterator[Path]:
    """Folder of the worker's own scontrol. Not pytest's: the worker is another user."""
    with tempfile.TemporaryDirectory(prefix="relight-gate-", dir="/tmp") as name:
        folder = Path(name)
        folder.chmod(0o777)
        script = folder / "scontrol"
        script.write_text(GATE.format(folder=folder, scontrol=find_program("scontrol")))
        script.chmod(0o755)
        yield folder


@pytest.fixture(scope="module")
def stack(new_stack: NewStack, gate: Path) -> Iterator[Stack]:
    """Four nodes in auto; Slurm itself requeues what ends with 142, and holds what ends with 143."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PATH", f"{gate}{os.pathsep}{os.environ['PATH']}")
        with new_stack() as stack:
            patch.undo()
            with stack.cluster.slurm_conf.open("a") as conf:
                conf.write("RequeueExit=142\nRequeueExitHold=143\n")
            stack.cluster.run("scontrol", "reconfigure")
            yield stack


# --- tools


SUBMITIT = """
import sys, time, pathlib, submitit
run, python, path = sys.argv[1:]
class Train:
    def __call__(self):
        pathlib.Path(run, "trains").touch()
        time.sleep(600)
    def checkpoint(self):
        return submitit.helpers.DelayedSubmission(self)
executor = submitit.SlurmExecutor(folder=run, python=python)
executor.update_parameters(time=60, nodes=1, ntasks_per_node=1, setup=[f"export PYTHONPATH={path}"])
print(executor.submit(Train()).job_id)
"""


def by_submitit(lab: Lab) -> Small:
    """A function submitted with submitit itself."""
    run, runtime = lab.run_folder("submitit"), lab.cluster.runtime
    arguments = ["-c", SUBMITIT, str(run), shlex.quote(str(runtime.python)), ":".join(map(str, runtime.python_path))]
    done = lab.cluster.run(*as_user(str(lab.user), lab.stack.folder / "submitit", arguments))
    job = Small(lab, int(done.stdout.split()[-1]), run)
    lab.until((run / "trains").exists, "submitit's function to run", about=job.job)
    return job


def test_a_job_that_a_tool_inside_it_queues_again_is_the_tools(lab: Lab) -> None:
    """No incident, nothing written: submitit itself, and what Lightning and a script of the user's do."""
    pytest.importorskip("submitit")
    with_submitit = by_submitit(lab)
    # What Lightning's SLURMEnvironment does at the signal that `--signal=USR1@90` sends before the time limit.
    as_lightning = small(lab, before="trap 'scontrol requeue \"$SLURM_JOB_ID\"' USR1", name="lightning")
    by_script = small(lab, after='scontrol requeue "$SLURM_JOB_ID"; sleep 600', name="script")
    for job in (as_lightning, by_script):
        job.train()
    lab.by_owner("scancel", "--signal=USR2", str(with_submitit.job))
    lab.by_owner("scancel", "--batch", "--signal=USR1", str(as_lightning.job))
    by_script.fail()
    for job in (with_submitit, as_lightning, by_script):
        lab.check_no_incident(job.job, "queued again by unknown")
        lab.until_state(job.job, "PENDING")
        assert lab.restarts(job.job) == 1
        lab.untouched(job.job)
    log = next(with_submitit.run.glob("*_log.out")).read_text()
    assert "Exiting gracefully after preemption/timeout" in log
    lab.cluster.run("scancel", str(with_submitit.job))


def test_a_job_that_slurm_queues_again_for_its_exit_code_is_slurms(lab: Lab) -> None:
    """It shows FAILED until its epilog has ended: a requeue of ours meanwhile would undo the hold that a site wants."""
    again, held = small(lab, after="exit 142"), small(lab, after="exit 143")
    for job in (again, held):
        job.train()
        job.fail()
    for job in (again, held):
        lab.until(lambda each=job: lab.restarts(each.job) == 1, "Slurm to queue it again", about=job.job)
        lab.until_ended(job.job)
        for incident in lab.view.incidents(job.job):
            assert lab.outcome(job.job).outcome is Outcome.OVERRIDDEN, (incident, lab.story(job.job))
        lab.nothing_written(job.job)
    assert again.field("Reason") == "BeginTime"
    lab.until_state(held.job, "SPECIAL_EXIT")


def test_a_restart_inside_the_job_is_the_launchers(lab: Lab) -> None:
    """What NVRx's `ft_launcher` and torchrun do: the program is started again in the same job, which goes on."""
    launcher = 'echo "RuntimeError: CUDA error: an illegal memory access was encountered"; sleep 2; exec "$0"'
    job = small(lab, after=launcher)
    job.train()
    before = lab.view.step(job.job) or 0
    job.fail()
    job.train(before + 20)
    for incident in lab.view.incidents(job.job):
        assert lab.outcome(job.job).outcome is Outcome.NOT_CONFIRMED, incident
    lab.untouched(job.job)
    assert (job.field("JobState"), lab.restarts(job.job)) == ("RUNNING", 0)


# --- the owner


def test_a_requeue_right_before_ours_is_the_owners(lab: Lab, gate: Path) -> None:
    """Between our last look and our write: Slurm refuses ours, and his begin time stays."""
    job = small(lab)
    job.train()
    (gate / "closed-requeue").touch()
    job.fail()
    lab.until((gate / "reached-requeue").exists, "our requeue to be on its way", about=job.job)
    lab.by_owner("scontrol", "requeue", str(job.job))
    (gate / "closed-requeue").unlink()
    incident = lab.outcome(job.job)
    assert incident.outcome is Outcome.OVERRIDDEN
    assert incident.outcome_reason == "somebody else queued the job again first"
    lab.until_state(job.job, "PENDING")
    assert lab.intents(job.job) == ["requeue"]
    assert (lab.restarts(job.job), lab.excluded(job.job)) == (1, set())


def test_what_the_owner_does_between_our_requeue_and_our_start_stays(lab: Lab) -> None:
    """He puts the job off, or holds it; a requeue of his is refused by Slurm. His begin time is waited for."""
    late, holds = small(lab, name="late"), small(lab, name="holds")
    for job in (late, holds):
        job.train()
    for job, change in ((late, ("update", f"JobId={late.job}", "StartTime=now+2hours")), (holds, ("hold",))):
        job.fail()
        lab.until_row(job.job, RowKind.EFFECT, step="requeue")
        with standing_still(lab):
            lab.until_state(job.job, "PENDING")
            assert lab.cluster.run("scontrol", "requeue", str(job.job), user=lab.user, check=False).returncode
            lab.by_owner("scontrol", *change, *([str(job.job)] if change == ("hold",) else []))
    incident = lab.outcome(holds.job)
    assert incident.outcome is Outcome.OVERRIDDEN
    assert "JobHeldUser" in incident.outcome_reason
    effect = lab.until_row(late.job, RowKind.EFFECT, step="start")
    assert "somebody has put the job off" in effect.body["done"]["text"]
    for job in (late, holds):
        assert lab.intents(job.job) == ["requeue"]
        assert job.field("JobState") == "PENDING"
    lab.by_owner("scontrol", "update", f"JobId={late.job}", "StartTime=now")
    late.recovered()


def test_a_requeue_or_cancellation_by_the_owner_while_the_restart_is_verified_wins(lab: Lab) -> None:
    """His requeue is no failure of the attempt: it uses up nothing of the job's budget."""
    loads = "while [ -e loads ]; do sleep 0.3; done"
    again, cancelled = (small(lab, before=loads, name=name) for name in ("again", "cancelled"))
    for job in (again, cancelled):
        job.train()
        (job.run / "loads").touch()
        job.fail()
    for job, command in ((again, ("scontrol", "requeue")), (cancelled, ("scancel",))):
        lab.until_row(job.job, RowKind.VERIFIED, what="running")
        lab.by_owner(*command, str(job.job))
        incident = lab.outcome(job.job)
        assert incident.outcome is Outcome.OVERRIDDEN, (incident.outcome_reason, lab.story(job.job))
        assert lab.intents(job.job) == ["requeue", "start"]
        assert len(lab.view.incidents(job.job)) == 1
    lab.until_state(again.job, "PENDING")
    lab.until_state(cancelled.job, "CANCELLED")
    assert (lab.restarts(again.job), lab.restarts(cancelled.job)) == (2, 1)


def test_an_attempt_that_starts_while_the_last_one_is_diagnosed_is_left_to_run(lab: Lab) -> None:
    """The owner's requeue runs before there is a plan: it is not stopped for the failure before it."""
    job = small(lab)
    job.train()
    job.fail()
    lab.until_row(job.job, RowKind.CONFIRMED)
    with standing_still(lab):
        lab.until_state(job.job, "FAILED")
        lab.by_owner("scontrol", "requeue", str(job.job))
        start_now(job)
        lab.until_state(job.job, "RUNNING")
    incident = lab.outcome(job.job)
    assert incident.outcome is Outcome.OVERRIDDEN, (incident.outcome_reason, lab.story(job.job))
    lab.until(lambda: len(lab.view.attempts(job.job)) == 2, "the owner's attempt to be seen")
    lab.nothing_written(job.job)
    assert (job.field("JobState"), lab.restarts(job.job)) == ("RUNNING", 1)


# --- ids


@pytest.fixture
def id_again(stack: Stack) -> Iterator[Callable[..., Small]]:
    """Lets Slurm forget an ended job and give its id to another of the same owner, name and script."""
    cluster = stack.cluster
    before = cluster.slurm_conf.read_text()

    def again(old: Small, *options: str) -> Small:
        few = f"FirstJobId={old.job}\nMaxJobId={old.job + 5}\n"
        cluster.slurm_conf.write_text(re.sub("(?m)^MinJobAge=.*", "MinJobAge=2", before) + few)
        cluster.run("scontrol", "reconfigure")
        old.lab.until(lambda: old.field("JobState") == "", "Slurm to forget the job")
        tries: list[Small] = []
        while not tries or tries[-1].job != old.job:
            assert len(tries) < 10
            tries.append(small(old.lab, *options))
        for other in tries[:-1]:
            cluster.run("scancel", str(other.job))
        restore()
        return tries[-1]

    def restore() -> None:
        cluster.slurm_conf.write_text(before)
        cluster.run("scontrol", "reconfigure")

    yield again
    restore()


def test_a_job_with_the_id_of_one_that_waits_for_a_person_is_another_job(
    lab: Lab, id_again: Callable[..., Small]
) -> None:
    """The approval does nothing to it; its own crash is its own incident, of a lineage of its own."""
    old = small(lab, f"--comment={ASKS}")
    old.train()
    old.fail()
    lab.waiting(old.job)
    new = id_again(old)
    lab.until(lambda: len(lab.view.attempts(new.job)) == 2, "the other job to be seen", about=new.job)
    new.train()
    old.approve()
    incident = lab.outcome(old.job)
    assert (incident.outcome, incident.outcome_reason) == (Outcome.EXPIRED, "Slurm no longer knows the job")
    assert lab.intents(old.job) == []
    assert (new.field("JobState"), lab.restarts(new.job)) == ("RUNNING", 0)
    new.fail()
    assert lab.outcome(new.job, number=2).outcome is Outcome.RECOVERED, lab.story(new.job)
    assert lab.restarts(new.job) == 1
    lineages = [state.attempt.lineage for state in lab.view.attempts(new.job)]
    assert lineages[0] == lineages[1] != lineages[2]


def test_a_job_with_the_id_of_one_that_we_requeued_is_not_started(lab: Lab, id_again: Callable[..., Small]) -> None:
    """Cancelled and forgotten while the worker stood still, between its requeue and its start."""
    old = small(lab)
    old.train()
    old.fail()
    lab.until_row(old.job, RowKind.EFFECT, step="requeue")
    with standing_still(lab):
        lab.by_owner("scancel", str(old.job))
        new = id_again(old, "--begin=now+1hour")
        begin = new.field("StartTime")
    incident = lab.outcome(old.job)
    assert (incident.outcome, incident.outcome_reason) == (Outcome.EXPIRED, "Slurm no longer knows the job")
    assert lab.intents(old.job) == ["requeue"]
    assert (new.field("JobState"), new.field("StartTime"), new.field("ExcNodeList")) == ("PENDING", begin, "(null)")
