"""Where ranks are and what they leave: read off the batch script, and never guessed."""

from datetime import UTC, datetime

import pytest

from relight.domain.attempts import Attempt, AttemptKey
from relight.domain.ranks import dump_files, rank_nodes
from relight.domain.slurm import JobRecord, JobState

AT = datetime(2026, 11, 30, 9, 0, tzinfo=UTC)
EXPORT = "export TORCH_FR_DUMP_TEMP_FILE="


def attempt(script, **fields):
    given = {"name": "train", "user": "ada", "work_dir": "/w", "nodes": ("n1", "n2"), "task_count": 4, **fields}
    record = JobRecord(job_id=7, state=JobState.RUNNING, submit_time=AT, **given)
    key = AttemptKey(cluster="test", job_id=7, submit_time=AT)
    return Attempt(key=key, lineage="l", record=record, seen_at=AT, script=f"#!/bin/bash\n{script}\n")


def test_ranks_fill_one_node_after_the_other():
    """As Slurm spreads tasks by default."""
    assert rank_nodes(attempt("srun --label python train.py")) == {0: "n1", 1: "n1", 2: "n2", 3: "n2"}


@pytest.mark.parametrize(
    ("script", "fields"),
    [
        ("srun -m cyclic python train.py", {}),
        ("srun --distribution=cyclic python train.py", {}),
        ("SLURM_DISTRIBUTION=cyclic srun python train.py", {}),
        ("srun -n 2 python train.py", {}),
        ("srun --nodelist=n2 python train.py", {}),
        ("srun --multi-prog list", {}),
        ("srun hostname\nsrun python train.py", {}),
        ("mpirun python train.py", {}),
        ("srun torchrun train.py", {"task_count": 2}),
        ("srun python train.py", {"task_count": 5}),
        ("srun python train.py", {"nodes": ()}),
    ],
)
def test_where_it_is_not_plain_nothing_is_said(script, fields):
    """A wrong map would accuse a healthy node."""
    assert rank_nodes(attempt(script, **fields)) == {}


@pytest.mark.parametrize(
    ("script", "expected"),
    [
        (EXPORT + "/w/fr/rank_", {0: "/w/fr/rank_0", 1: "/w/fr/rank_1"}),
        (EXPORT + "fr/$SLURM_JOB_ID/r", {0: "/w/fr/7/r0", 1: "/w/fr/7/r1"}),
        (
            "TORCH_NCCL_DEBUG_INFO_TEMP_FILE=fr/r\nexport TORCH_NCCL_DEBUG_INFO_TEMP_FILE",
            {0: "/w/fr/r0", 1: "/w/fr/r1"},
        ),
        (EXPORT + "/tmp/r", {}),
        (EXPORT + "../r", {}),
        (EXPORT + "$(mktemp)", {}),
        ("cd elsewhere\n" + EXPORT + "fr/r", {}),
        ("srun python train.py", {}),
    ],
)
def test_where_dumps_are(script, expected):
    """Below the job's folder only: what a user's text names is read with our rights."""
    assert dump_files(attempt(script, task_count=2)) == expected


@pytest.mark.parametrize(("gres", "ranks"), [("gpu:4", 8), ("gpu:h100:4", 8), ("gpu:a", 2), ("gpu", 2), ("", 2)])
def test_a_launcher_s_task_stands_for_the_ranks_of_its_node(gres, ranks):
    """As many as it has GPUs."""
    assert len(dump_files(attempt(EXPORT + "r", task_count=2, gres_per_node=gres))) == ranks
