"""Which files a batch script's steps write: read off the script, and never guessed."""

from datetime import UTC, datetime

import pytest

from relight.domain.attempts import Attempt, AttemptKey
from relight.domain.slurm import JobRecord, JobState
from relight.domain.step_outputs import MOST, step_outputs

AT = datetime(2026, 11, 30, 9, 0, tzinfo=UTC)
SEVEN = ("/w/7-0.out", "/w/7-1.out")


def outputs(script, **fields):
    given = {"name": "train", "user": "ada", "work_dir": "/w", "nodes": ("n1", "n2"), "task_count": 2, **fields}
    record = JobRecord(job_id=7, state=JobState.RUNNING, submit_time=AT, stdout="/w/slurm-7.out", **given)
    key = AttemptKey(cluster="test", job_id=7, submit_time=AT)
    return step_outputs(Attempt(key=key, lineage="l", record=record, seen_at=AT, script=script))


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("srun --output=%j-%t.out python train.py", SEVEN),
        ("srun -o %j-%t.out python train.py", SEVEN),
        ("srun -o%j-%t.out python train.py", SEVEN),
        ("srun -u -l --output %j-%t.out python train.py", SEVEN),
        ("srun -n 2 --label \\\n  --kill-on-bad-exit=1 --output %j-%t.out \\\n  python train.py", SEVEN),
        ("exec /usr/bin/srun --output=/w/%j-%t.out python train.py", SEVEN),
        ("srun --output=out/%x-%2j.%u python train.py", ("/w/out/train-07.ada",)),
        ("srun --output=a-%N.out --error=a-%n.err x", ("/w/a-n1.out", "/w/a-n2.out", "/w/a-0.err", "/w/a-1.err")),
        ("srun --output=%N-%t.out x", ("/w/n1-0.out", "/w/n2-1.out")),
        ("srun --output=$SLURM_JOB_ID-%t.out x", SEVEN),
        ("LOGS=run_${SLURM_JOB_NAME}\nsrun --output=$LOGS/%t.out x", ("/w/run_train/0.out", "/w/run_train/1.out")),
        ("export LOGS=/w/logs\nsrun --output=${LOGS}/all.out x", ("/w/logs/all.out",)),
        ("srun -o %j-%t.out bash -c '\necho a\nsleep 1'", SEVEN),
        ('echo "not the end\nof it"\nsrun --output=%j-%t.out x', SEVEN),
    ],
)
def test_the_files_that_srun_is_told_to_write(line, expected):
    """As srun resolves them: one for each task, or each node."""
    assert outputs(f"#!/bin/bash\n#SBATCH --output=other.out\n{line}\n") == expected


@pytest.mark.parametrize(
    "line",
    [
        "python train.py --output=mine",
        "srun python train.py --output=mine -o mine",
        "srun --label -- python train.py --output=mine",
        "# srun --output=mine x",
        "srun --output=$(date)-%t.out x",
        "srun --output=`date`.out x",
        "srun --output=$RUN/%t.out x",
        "RUN=$(mktemp)\nsrun --output=$RUN.out x",
        "RUN=a\nRUN=$B\nsrun --output=$RUN.out x",
        "cd elsewhere\nsrun --output=%t.out x",
        "srun --output=%J.out x",
        "srun --output=step-%s.out x",
        "srun --output=/etc/shadow x",
        "srun --output=../../etc/shadow x",
        "srun --output=/w/../etc/shadow x",
        "srun --output=slurm-%j.out x",
        "srun --output= x",
        "srun --output",
        "srun",
        "",
    ],
)
def test_what_cannot_be_told_is_left_out(line):
    """Nor anything outside of the job's working directory: our rights may be wider than its owner's."""
    assert outputs(f"#!/bin/bash\n{line}\n") == ()


def test_without_a_script_nothing_is_known():
    """It could not be read, or there is none."""
    assert outputs(None) == ()
    assert outputs("srun --output=%t.out x", work_dir="") == ()
    assert outputs("srun --output=%t.out x", task_count=0) == ()
    assert outputs("srun --output=%N-%t.out x", task_count=3) == ()


def test_of_many_ranks_the_first_ones():
    """Bounded."""
    assert len(outputs("srun --output=%t.out x", task_count=4096)) == MOST
