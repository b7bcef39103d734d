"""Recovery end to end, in auto, as in production: what befell the job, what Relight did, what it left alone."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from relight.domain.incidents import Outcome
from relight.domain.ledger import RowKind
from relight.domain.slurm import JobState
from relight.lab import faults
from relight.lab.fault_rules import Deed
from relight.lab.job import render
from relight.lab.stack import Stack
from relight.lab.xids import XIDS

from .conftest import Lab, NewStack, check_recovered

pytestmark = pytest.mark.system


@pytest.fixture(scope="module")
def stack(new_stack: NewStack) -> Iterator[Stack]:
    """Eight nodes in auto; more drains an hour than a site would allow, because each test may need one."""
    with new_stack(nodes=8, drains_per_hour=20, backoff=["0s"]) as stack:
        yield stack


@pytest.fixture(scope="module", autouse=True)
def out_of_time(stack: Stack) -> int:
    """A job that runs into its time limit a minute from now, beside all other tests."""
    run = stack.cluster.make_run_folder("limited", stack.cluster.users.owner)
    script = f"#!/bin/bash\n#SBATCH --requeue --time=1 --nodelist=n8 --chdir={run}\nsrun sleep 600\n"
    return stack.cluster.submit(script, user=stack.cluster.users.owner)


def test_a_crashed_job_trains_on_under_its_own_id_and_a_second_crash_is_a_new_incident(lab: Lab) -> None:
    """Crash, requeue, progress; then again: two incidents and three attempts of one lineage, outputs kept."""
    job = lab.train(nodes=3, tasks_per_node=2)
    lab.until_step(job, 20)
    output = Path(lab.field(job, "StdOut") or "")
    lab.inject(job, faults.crash(rank=3))
    first = lab.outcome(job)
    check_recovered(lab, job, first)
    assert lab.restarts(job) == 1
    assert lab.effects(job) == ["requeue", "start"]
    # Slurm has truncated the output; what the failed attempt wrote is in the copy.
    assert "attempt 0" not in output.read_text()
    [row] = lab.view.rows(kind=RowKind.OUTPUTS_KEPT, incident=first.id)
    [kept] = (Path(path) for path in row.body["kept"])
    assert "attempt 0" in kept.read_text()
    assert kept.stat().st_mode & 0o077 == 0

    lab.inject(job, faults.crash(rank=1))
    second = lab.outcome(job, number=2)
    check_recovered(lab, job, second)
    assert lab.restarts(job) == 2
    assert second.id != first.id
    attempts = [state.attempt for state in lab.view.attempts(job)]
    assert len(attempts) == 3
    assert len({attempt.key for attempt in attempts}) == 3
    assert len({attempt.lineage for attempt in attempts}) == 1
    assert all("relight.lab.trainer" in (attempt.script or "") for attempt in attempts)
    assert lab.view.step(job) == lab.view.progress(lab.view.attempts(job)[0]).last_step


def test_a_broken_gpu_is_drained_and_avoided_but_text_in_a_log_drains_nothing(lab: Lab) -> None:
    """With the kernel's word the node is drained for all; on the job's word alone only its own retry avoids it."""
    real = lab.train("--exclude=n8", nodes=2, tasks_per_node=2)
    told = lab.train(nodes=2)
    lab.until_step(real)
    lab.until_step(told)
    broken = lab.inject(real, faults.gpu(rank=3)).node
    blamed = lab.node_of(told, 1)
    lab.rule(told, rank=1, do=Deed.ECC, attempts=(0,), text=XIDS[48].cuda_text)
    assert broken

    incident = lab.outcome(real)
    check_recovered(lab, real, incident)
    assert incident.plan
    assert incident.plan.drain == (broken,)
    assert lab.excluded(real) == {"n8", broken}
    assert broken not in lab.view.attempts(real)[0].attempt.record.nodes
    assert lab.drained(broken)
    assert lab.node_reason(broken).startswith(f"relight:{incident.id}:")
    rows = lab.view.rows(incident=incident.id)
    kinds = [row.kind for row in rows if row.node == broken]
    assert kinds == [RowKind.LEAVE, RowKind.INTENT, RowKind.EFFECT]

    incident = lab.outcome(told)
    check_recovered(lab, told, incident)
    assert incident.plan
    assert incident.plan.drain == ()
    assert lab.excluded(told) == {blamed}
    assert not lab.drained(blamed)
    assert not lab.view.rows(kind=RowKind.LEAVE, incident=incident.id)


def test_a_job_that_slurm_requeues_after_a_lost_node_is_adopted(lab: Lab) -> None:
    """Relight does not requeue what Slurm has requeued: it spares the job the wait, and nothing more."""
    job = lab.train(nodes=3)
    lab.until_step(job)
    lost = lab.inject(job, faults.node()).node
    incident = lab.outcome(job)
    assert incident.outcome is Outcome.ADOPTED, (incident.outcome_reason, lab.tail())
    assert set(lab.intents(job)) <= {"exclude", "start"}
    assert "start" in lab.intents(job)
    assert lab.restarts(job) == 1
    assert lab.excluded(job) <= {lost}
    assert lost not in lab.view.attempts(job)[0].attempt.record.nodes


def test_what_would_fail_again_or_must_not_be_requeued_is_left_as_it_ended(lab: Lab) -> None:
    """A bug in the user's code, `--no-requeue`, and exit code 93: stopped, the job still FAILED, nothing written."""
    bug = lab.train()
    fixed = lab.train(requeue=False)
    spec = lab.spec()
    own_word = lab.submit(render(spec) + "exit 93\n")
    for job in (bug, fixed, own_word):
        lab.until_step(job)
    lab.inject(bug, faults.bug())
    lab.inject(fixed, faults.crash(rank=1))
    lab.inject(own_word, faults.crash(rank=1))
    reasons = {}
    for job in (bug, fixed, own_word):
        incident = lab.outcome(job)
        reasons[job] = incident.outcome_reason
        assert incident.outcome is Outcome.STOPPED, (job, incident.outcome_reason)
        lab.until_state(job, "FAILED")
        assert lab.restarts(job) == 0
        lab.untouched(job)
    assert "--no-requeue" in reasons[fixed]
    assert "93" in reasons[own_word]


def test_restarts_that_bring_no_progress_come_to_an_end(lab: Lab) -> None:
    """A job that dies without a word at the same early step, and one that never prints: both are stopped in the end."""
    # Each attempt lives longer than Relight's look at all jobs takes.
    job = lab.train(checkpoint_every=1000)
    lab.rule(job, rank=1, do=Deed.EXIT, step=30, code=7)
    mute = lab.submit_raw("sleep 5; exit 5", "--nodes=1", "--output=/dev/null")
    for each in (job, mute):
        limit = lab.view.settings.policy.attempts_without_progress

        def stopped(each: int = each) -> bool:
            known = lab.view.incidents(each)
            return bool(known) and known[0].outcome is Outcome.STOPPED

        lab.until(stopped, f"job {each} to be left stopped", 90, about=each)
        assert 1 <= lab.restarts(each) <= limit
        lab.until_state(each, "FAILED")
        assert lab.intents(each).count("requeue") == lab.restarts(each)


def test_nothing_is_taken_from_a_job_that_needs_every_node(lab: Lab) -> None:
    """A job on all of them, a broken GPU: no exclusion (BadConstraints) and no drain shuts its retry out for ever."""
    job = lab.train(nodes=8)
    lab.until_step(job)
    broken = lab.inject(job, faults.gpu(rank=5)).node
    assert broken
    incident = lab.outcome(job)
    check_recovered(lab, job, incident)
    assert lab.excluded(job) == set()
    assert not lab.drained(broken)
    assert incident.plan
    assert "too few nodes" in incident.plan.reason
    [leave] = [row.body["leave"] for row in lab.rows(job, RowKind.LEAVE)]
    assert not leave["granted"]
    assert leave["reason"].startswith("the job needs 8 nodes and only ")


def test_of_an_array_only_the_failed_task_is_requeued(lab: Lab) -> None:
    """Also the task that bears the array's own job id; the others run on undisturbed."""
    run = lab.run_folder()
    script = render(lab.spec(run=run, options=("--array=0-2",), output="slurm-%a.out"))
    # Each task trains in a folder of its own.
    folders = 'mkdir -p "$SLURM_ARRAY_TASK_ID"\nsrun'
    script = script.replace("srun", folders, 1).replace(f"--run={run}", f"--run={run}/$SLURM_ARRAY_TASK_ID")
    array = lab.submit(script)

    def tasks() -> dict[str, int]:
        listed = lab.cluster.run("squeue", "-h", "-t", "RUNNING", "-j", str(array), "-O", "ArrayTaskID,JobID").stdout
        return {line.split()[0]: int(line.split()[1]) for line in listed.splitlines()}

    lab.until(lambda: len(tasks()) == 3, "all tasks to run")
    by_task = tasks()
    victim = next(task for task, job in by_task.items() if job == array)
    for job in by_task.values():
        lab.until_step(job)
    rank = next(r for r in faults.ranks(lab.cluster, array) if r.rank == 1)
    rank.process.kill()
    incident = lab.outcome(array)
    assert incident.outcome is Outcome.RECOVERED, (incident.outcome_reason, lab.tail())
    for task, job in by_task.items():
        shown = lab.cluster.run("scontrol", "-o", "show", "job", f"{array}_{task}").stdout
        assert f"Restarts={int(task == victim)} " in shown
        if task != victim:
            assert lab.view.incidents(job) == ()
            lab.untouched(job)


HETEROGENEOUS = """#!/bin/bash
#SBATCH --job-name=het --nodes=1 --requeue --chdir={run} --output={run}/out
#SBATCH hetjob
#SBATCH --nodes=1
srun --het-group=0,1 --kill-on-bad-exit=1 bash -c '
  for n in {{1..9999}}; do
    [ "$SLURM_PROCID" = 0 ] && echo "step $n/9999 | loss 1.0"
    [ "$SLURM_PROCID" = 1 ] && [ -e die ] && rm die && exit 9
    sleep 0.2
  done'
"""


def test_a_heterogeneous_job_is_requeued_once_and_as_a_whole(lab: Lab) -> None:
    """Slurm ends and requeues all components by the leader: the other component's end is no interruption of its own."""
    run = lab.run_folder("het")
    leader = lab.submit(HETEROGENEOUS.format(run=run))
    component = leader + 1
    lab.until_step(leader)
    (run / "die").touch()
    check_recovered(lab, leader, lab.outcome(leader))
    lab.until_ended(component)
    if lab.view.incidents(component):  # it ended one look before its leader
        assert lab.outcome(component).outcome in {Outcome.OVERRIDDEN, Outcome.FAILED}
    assert [lab.restarts(job) for job in (leader, component)] == [1, 1]
    assert lab.effects(leader) == ["requeue", "start"]
    assert "start" not in lab.intents(component)


def test_a_job_out_of_time_is_no_incident(lab: Lab, out_of_time: int) -> None:
    """The limit was the user's: TIMEOUT is left alone."""
    lab.check_no_incident(out_of_time, JobState.TIMEOUT)
    lab.until_state(out_of_time, "TIMEOUT")
    assert lab.restarts(out_of_time) == 0
