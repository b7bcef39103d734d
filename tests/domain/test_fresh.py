"""What remains when Slurm has forgotten the job: a command that a person can copy."""

import shlex
from datetime import timedelta

import pytest

from relight.domain.fresh import by_hand, fresh_submission
from relight.domain.plan import Plan, Restart

SNAPSHOT = {"name": "llama 70b", "work_dir": "/home/a b", "partition": "gpu", "account": "ml", "node_count": 4}


def test_the_script_that_was_kept_is_submitted_with_what_the_record_shows(attempt):
    """In the job's own folder, off the nodes that were bad, with the script's own arguments."""
    kept = attempt(
        **SNAPSHOT, task_count=32, gres_per_node="gpu:8", excluded_nodes=("n9",), command="/home/a b/train.sh"
    )
    kept = kept.model_copy(
        update={"script": "#!/bin/sh\n", "record": kept.record.model_copy(update={"command": "/t.sh --lr '1 2'"})}
    )
    command = fresh_submission("i1", kept, ("n2", "n9"))
    first, second = command.split(" && ")
    assert first == "relight show i1 --script > job.sh"
    assert shlex.split(second) == [
        "sbatch",
        "--job-name=llama 70b",
        "--chdir=/home/a b",
        "--partition=gpu",
        "--account=ml",
        "--nodes=4",
        "--ntasks=32",
        "--gres=gpu:8",
        "--exclude=n9,n2",
        "job.sh",
        "--lr",
        "1 2",
    ]


@pytest.mark.parametrize(
    ("fields", "told"),
    [
        ({"command": "/home/alice/train.sh 7"}, "/home/alice/train.sh 7"),
        ({"command": ""}, "no batch script is on record"),
        ({"command": "it's"}, "no batch script is on record"),
        ({"command": "/t.sh", "array_job_id": 6, "array_task_id": 2}, "--array=2"),
        ({"het_job_id": 12, "het_offset": 1}, "submit the whole heterogeneous job 12 anew"),
        ({"command": "/t.sh " + "x " * 9000}, "sbatch job.sh, with what `relight show i1 --script` prints"),
    ],
)
def test_without_a_kept_script(attempt, fields, told):
    """The file it was submitted from, if that is known; else what a person has to do, in words."""
    command = fresh_submission("i1", attempt(**fields).model_copy(update={"script": None}))
    assert told in command
    assert len(command) <= 1100


def test_hostile_names_stay_words(attempt):
    """What a user wrote is copied into a shell by somebody else."""
    evil = attempt(name="$(rm -rf /)", work_dir="/x;reboot", command="/t.sh `id`").model_copy(update={"script": "#"})
    words = shlex.split(fresh_submission("i1", evil))
    assert {"--job-name=$(rm -rf /)", "--chdir=/x;reboot", "`id`"} <= set(words)


@pytest.fixture
def plan(attempt, now):
    given = {"attempt": attempt().key, "restart": Restart.REQUEUE, "reason": "x", "fresh": "sbatch /t.sh"}
    return lambda **fields: Plan(**(given | fields))


def test_what_a_person_does_next(plan, now):
    """While Slurm knows the job, afterwards, and where it still runs."""
    soon, past = now + timedelta(minutes=4), now - timedelta(minutes=4)
    assert by_hand(plan(requeue_until=soon), "ada", now) == (
        f"Until {soon:%H:%M:%S} UTC: scontrol requeue 7. After that submit it anew, as ada: sbatch /t.sh",
    )
    assert by_hand(plan(requeue_until=past), "ada", now) == (
        "Slurm forgets job 7; submit it anew, as ada: sbatch /t.sh",
    )
    assert by_hand(plan(requeue_until=past, fresh=""), "", now) == (
        "Slurm forgets job 7; its user has to submit it anew",
    )
    assert "scontrol requeue 7 restarts it, scancel 7 ends it" in by_hand(plan(), "ada", now)[0]
    stop = plan(restart=Restart.NONE, cancel=True, drain=("n2", "n3"))
    assert [line.partition(":")[0] for line in by_hand(stop, "ada", now)] == [
        "Job 7 may still hold its nodes although a retry is useless",
        "Still in service",
    ]
    held = plan(restart=Restart.ADOPT, release=True)
    assert by_hand(held, "", now) == (
        "Slurm has queued job 7 again and starts it once somebody has run: scontrol release 7.",
    )
