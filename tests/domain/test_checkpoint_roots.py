"""Where a job's checkpoints lie, by its own words."""

import pytest

from relight.domain.checkpoint_roots import MOST_ROOTS, roots, saved_to
from relight.domain.checkpoints import HowNamed
from relight.domain.slurm import JobRecord
from relight.domain.wishes import wishes


@pytest.mark.parametrize(
    ("line", "path"),
    [
        ("  successfully saved checkpoint from iteration     100 to /scratch/u/ck [ t 1/2, p 1/1 ]", "/scratch/u/ck"),
        ("saving checkpoint at iteration     100 to /scratch/u/ck in torch_dist format", "/scratch/u/ck"),
        ("Saving model checkpoint to out/checkpoint-500", "out/checkpoint-500"),
        ("10/30/2026 10:00:00 - INFO - accelerate.accelerator - Saving current state to out/step_5", "out/step_5"),
        ("saving checkpoint to out-shakespeare-char", "out-shakespeare-char"),
        (
            "Epoch 0, global step 9: 'val_loss' reached 1.0 (best 1.0), saving model to '/x y/a.ckpt' as top 1",
            "/x y/a.ckpt",
        ),
        ("[INFO] [engine.py:21:save] [Torch] Saving /d/global_step9/mp_rank_00_model_states.pt...", "/d/global_step9"),
        ("saved checkpoint step 20 (/r/checkpoints/step_000020.npz)", "/r/checkpoints/step_000020.npz"),
        ("Checkpoint saved to ./out/ckpt_5.pt.", "./out/ckpt_5.pt"),
        ("Scheduled async checkpoint save for /a/b--step=9.ckpt", "/a/b--step=9.ckpt"),
        ("Saving the checkpoint (or staging if async is enabled).", None),
        ("Saving checkpoint at step 5", None),
        ("saved 5 images to /data", None),
        ("loaded checkpoint from /old/run", None),
        ("saving checkpoint to " + "a/" * 5000, None),
    ],
)
def test_lines_that_name_a_checkpoint(line: str, path: str | None):
    """As trainers print them; a line that names none names none."""
    assert saved_to([line]) == ((path,) if path else ())


def test_one_of_each_folder_the_newest_first():
    """A run prints a line for each checkpoint."""
    lines = [f"Saving model checkpoint to {run}/checkpoint-{step}" for run in ("a", "b") for step in (1, 2)]
    assert saved_to(lines) == ("b/checkpoint-2", "a/checkpoint-2")
    assert len(saved_to(f"saving checkpoint to /run{n}/x" for n in range(100))) == 4


@pytest.mark.parametrize(
    ("script", "path"),
    [
        ("srun python pretrain_gpt.py --save /scratch/u/gpt --load /old", "/scratch/u/gpt"),
        ("torchrun train.py --output_dir=out \\\n  --lr 1", "/home/u/run/out"),
        ("torchrun train.py --output-dir out", "/home/u/run/out"),
        ("python train.py trainer.default_root_dir=/scratch/l exp_manager.exp_dir=/scratch/n", "/scratch/l"),
        ("python train.py +checkpoint.save=/scratch/b", "/scratch/b"),
        ("OUT=/scratch/$SLURM_JOB_ID\nsrun python train.py --save-dir $OUT/ck", "/scratch/7/ck"),
        ("export CHECKPOINT_DIR=/scratch/e\nsrun python train.py", "/scratch/e"),
        ("python train.py --save $UNKNOWN/x", None),
        ("cd /elsewhere\npython train.py --save ck", None),
        ("python train.py --save", None),
        ("python train.py --save --other", None),
        ("python train.py --save s3://bucket/x", None),
        ("python train.py --save /", None),
        ("python train.py --save /scratch", None),  # a whole file system
        ("python train.py --save ~/x", None),
    ],
)
def test_arguments_of_the_script(script: str, path: str | None):
    """Read, never run; what cannot be told is left out."""
    found = roots(RECORD, "#!/bin/bash\n" + script)
    assert [r.path for r in found if r.how is HowNamed.SCRIPT][:1] == ([path] if path else [])
    assert found[-1].path == "/home/u/run"


RECORD = JobRecord.model_validate(
    {"job_id": 7, "state": "RUNNING", "user": "u", "name": "train", "work_dir": "/home/u/run"}
    | {"submit_time": "2026-12-01T00:00:00Z"}
)


def test_the_order_and_the_bound():
    """The comment first, then the output, then the script, then the work dir; each once, at most eight."""
    record = RECORD.model_copy(update={"comment": '{"relight": {"checkpoints": "ck"}}'})
    script = "\n".join(f"python train.py --save /s/{n}" for n in range(20))
    found = roots(record, script, ["saving checkpoint to /s/3/step-1"])
    assert len(found) == MOST_ROOTS
    assert [r.path for r in found[:3]] == ["/home/u/run/ck", "/s/3/step-1", "/s/0"]
    assert found[-1].how is HowNamed.WORK_DIR
    assert roots(RECORD.model_copy(update={"work_dir": ""}), None) == ()


@pytest.mark.parametrize("comment", ['{"relight": {"checkpoints": 5}}', '{"relight": {"checkpoints": ""}}', "ck"])
def test_a_comment_that_names_none(comment: str):
    """It is ignored."""
    assert [r.how for r in roots(RECORD.model_copy(update={"comment": comment}), None)] == [HowNamed.WORK_DIR]


def test_the_comments_key_is_known():
    """Nobody is told that it is ignored."""
    assert wishes('{"relight": {"checkpoints": "/x/y"}}').remarks == ()
