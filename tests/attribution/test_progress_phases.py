"""Lines that are not training: other phases, other bars, and prose that only looks like progress."""

import pytest

from relight.attribution.progress import parse_step, reader
from relight.attribution.progress_marks import Edge, Phase, StepMark

READER = reader()
BAR = "|#####     | 5/10 [00:10<00:10,  1.00it/s]"

PHASES = [
    ("[2026-03-01 10:00:00.1] saving checkpoint at iteration    1000 to /c in torch_dist format", "checkpoint begins"),
    ("  successfully saved checkpoint from iteration    1000 to /ckpt [ t 1/1, p 1/1 ]", "checkpoint ends"),
    (" validation loss at iteration 1000 | lm loss value: 2.5E+00 | lm loss PPL: 1.2E+01 | ", "evaluation ends"),
    ("Evaluating on 1024 samples", "evaluation begins"),
    ("Evaluating iter 3/10", "evaluation begins"),
    ("> building train, validation, and test datasets for GPT ...", "data begins"),
    ("> finished creating GPT datasets ...", "data ends"),
    ("> compiling and loading fused kernels ...", "compile begins"),
    (">>> done with compiling and loading fused kernels. Compilation time: 9.8 seconds", "compile ends"),
    (" loading distributed checkpoint from /ckpt at iteration 1000", "startup begins"),
    ("  successfully loaded checkpoint from /ckpt [ t 1/1, p 1/1 ] at iteration 1000", "startup ends"),
    ("[before the start of training step] datetime: 2026-03-01 10:00:00 ", "startup ends"),
    ("[exiting program at iteration 500] datetime: 2026-03-01 10:00:00", "end begins"),
    ("Validation: iteration 3/10", "evaluation begins"),
    ("Validation DataLoader 0:  50%" + BAR, "evaluation begins"),
    ("Validating:  50%" + BAR, "evaluation begins"),
    ("Sanity Checking DataLoader 0: 100%|##########| 2/2 [00:00<00:00,  4.00it/s]", "evaluation ends"),
    ("Validation ━━━━━━━━━━━━━━━━━━━━ 5/10 0:00:01 • 0:00:01 9.43it/s", "evaluation begins"),
    ("Sanity Checking: |          | 0/? [00:00<?, ?it/s]", "evaluation begins"),
    ("Restoring states from the checkpoint path at /ckpt/last.ckpt", "startup begins"),
    ("`Trainer.fit` stopped: `max_epochs=10` reached.", "end begins"),
    ("***** Running Evaluation *****", "evaluation begins"),
    ("{'eval_loss': 1.25, 'eval_runtime': 10.1, 'eval_samples_per_second': 99.1, 'epoch': 1.0}", "evaluation ends"),
    ("{'train_runtime': 123.4, 'train_samples_per_second': 1.0, 'train_loss': 1.2, 'epoch': 3.0}", "end begins"),
    ("Saving model checkpoint to out/checkpoint-500", "checkpoint begins"),
    ("tokenizer config file saved in out/checkpoint-500/tokenizer_config.json", "checkpoint ends"),
    ("[Rank 0] [Torch] Checkpoint global_step10 is about to be saved!", "checkpoint begins"),
    ("[Torch] Checkpoint global_step10 is ready now!", "checkpoint ends"),
    ("[titan] - root - INFO - Saving the checkpoint (or staging if async is enabled).", "checkpoint begins"),
    (
        "[titan] - root - INFO - Finished saving the checkpoint (or staging if async is enabled)in 5.5 s",
        "checkpoint ends",
    ),
    (
        "[titan] - root - INFO - \x1b[33mvalidate step: 10  \x1b[32mloss:  7.5  memory: 1GiB(1%)  tps: 100",
        "evaluation ends",
    ),
    ("[titan] - root - INFO - Compiling each TransformerBlock with torch.compile", "compile begins"),
    ("[titan] - root - INFO - Loading the checkpoint at step 10.", "startup begins"),
    ("[titan] - root - INFO - Training starts at step 11.", "startup ends"),
    ("step 250: train loss 2.1000, val loss 2.2000", "evaluation ends"),
    ("step:0/5100 val_loss:10.8258 train_time:0ms step_avg:nanms", "evaluation ends"),
    ("saving checkpoint to out", "checkpoint begins"),
    ("compiling the model... (takes a ~minute)", "compile begins"),
    ("Capturing CUDA graph shapes:  50%" + BAR, "compile begins"),
    ("Warming up the model...", "compile begins"),
    ("Starting evaluation", "evaluation begins"),
    ("evaluation took 12.5 s", "evaluation ends"),
    ('| INFO | fairseq.tasks | begin validation on "valid" subset', "evaluation begins"),
    ("| epoch 001 | valid on 'valid' subset | loss 4.5", "evaluation ends"),
    ("Compiling jit(train_step) with global shapes and types", "compile begins"),
    ("Finished XLA compilation of jit(train_step) in 12.5 sec", "compile ends"),
    ("Capturing cudagraphs for decode", "compile begins"),
    ("Graph capturing finished in 12 secs", "compile ends"),
    ("AUTOTUNE mm(4096x4096, 4096x4096)", "compile begins"),
    ("SingleProcess AUTOTUNE benchmarking takes 1.5 seconds", "compile ends"),
    ("  scheduled an async checkpoint save at iteration    1000 to /ckpt", "checkpoint ends"),
    ("[after dataloaders are built] datetime: 2026-03-01 10:00:00 ", "data ends"),
    ("[after training is done] datetime: 2026-03-01 10:00:00 ", "end begins"),
    ("Test: [  0/196]\tTime  0.5 ( 0.6)\tLoss 6.9e+00", "evaluation begins"),
    ("Epoch(val) [3][ 50/100]    eta: 0:00:10  time: 0.5", "evaluation begins"),
    ("saved checkpoint step 100 (/ckpt/100)", "checkpoint ends"),
    ("resumed from checkpoint step 100 (/ckpt/100)", "startup ends"),
    ("Loading dataset", "data begins"),
    ("training finished after step 500", "end begins"),
    ("[2026] [ALWAYS] [RankMonServer.Restarter] [NestedRestarter] name=[InJob] state=initialize", "startup begins"),
    ("[NestedRestarter] name=[InProcess] state=handling stage=starting", "startup begins"),
    ("Training cycle #2 made NO progress: 200 → 200 (0 iterations, need 1).", "startup begins"),
    ("Map:  45%|####5     | 450/1000 [00:01<00:01, 400.00 examples/s]", "data begins"),
    ("Map (num_proc=8): 100%|##########| 1000/1000 [00:01<00:00, 400.00 examples/s]", "data ends"),
    ("Tokenizing train dataset:  50%" + BAR, "data begins"),
    ("Train dataloader:  50%" + BAR, "data begins"),
    ("Generating train split:  50%" + BAR, "data begins"),
    ("Loading checkpoint shards:  50%" + BAR, "startup begins"),
    ("Fetching 10 files:  50%" + BAR, "startup begins"),
    ("Saving the dataset (1/2 shards):  50%" + BAR, "checkpoint begins"),
]


@pytest.mark.parametrize(("line", "expected"), PHASES)
def test_phase(line, expected):
    """Each of these begins or ends a phase, once, and is no step."""
    (mark,) = READER.read(line)
    assert f"{mark.phase} {mark.edge}" == expected


def test_every_phase_is_read():
    """No phase goes without a line that begins it."""
    assert {line.split()[0] for _, line in PHASES if line.endswith("begins")} == set(Phase)
    assert {line.split()[1] for _, line in PHASES} == set(Edge)


def test_phase_knows_its_rank():
    """A rank that saves alone is told apart."""
    (mark,) = READER.read("[rank7]: saving checkpoint at iteration 5 to /x")
    assert mark.rank == 7


@pytest.mark.parametrize(
    "line",
    [
        "",
        "step into the room",
        "first step of the ladder",
        "Iteration over dataset",
        "iteration of the design",
        "50% done",
        "Step 1: install packages",
        "Step 1/5 : FROM ubuntu",
        "step 3 of the plan",
        "Running step 5/10 of the tutorial",
        "restarting from step 5/10",
        "learning rate warmup step 5/100",
        "[Rank 0] time (ms) | fwd: 15.11 | bwd: 30.00 | bwd_inner: 20.0 | step: 3.21",
        "time (ms) | fwd_microstep: 15.11 | bwd_microstep: 30.00 | step_microstep: 2.00",
        "We train for an epoch of 12 batches, each epoch 5 minutes",
        "Epoch 00005: reducing learning rate of group 0 to 1.0000e-04.",
        "Adjusting learning rate of group 0 to 1.0000e-03.",
        "num_epochs = 3, steps_per_epoch = 100",
        "  Total optimization steps = 1,000",
        "  Num Epochs = 3",
        "max_steps: 1000",
        "warmup_steps=100",
        "gradient accumulation steps: 8",
        "srun: error: *** STEP 608.0 ON node01 CANCELLED AT 2022-08-12T02:06:12 DUE TO JOB REQUEUE ***",
        "srun: Terminating job step 1000001.0",
        "     ━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━ 906.4/906.4 MB 1.2 MB/s eta 0:00:00",
        "  5%|5         | 45.1M/900M [00:01<00:20, 30.0MB/s]",
        "model.safetensors:  50%|#####     | 450/900 [00:01<00:01, 30.0MB/s]",
        " 50%|#####     | 450/900 [00:01<00:01, 30.0 examples/s]",
        "Processing:  50%" + BAR,
        "Training:   0%|          | 0/1000 [00:00<?, ?it/s]",
        "step 99999999999999999999 | loss 1",
        "failed to load checkpoint",
        "torch.compile is not used",
        "the evaluation of the loss is expensive",
        "data parallel size 8",
    ],
)
def test_false_friend(line):
    """Prose, settings, schedulers, launchers, build steps and bars of other things say nothing about progress."""
    assert READER.read(line) == ()


@pytest.mark.parametrize(
    "line",
    [
        "Epoch 1:  12%|#2  | 12/100 [00:10<01:00,  1.00it/s]\x1b[AValidation DataLoader 0:  50%" + BAR,
        "Validation DataLoader 0:  50%" + BAR + "Epoch 1:  12%|#2  | 12/100 [00:10<01:00,  1.00it/s]",
        "Epoch 1:  11%|#1  | 11/100 [00:10<01:00,  1.00it/s]\rEpoch 1:  12%|#2  | 12/100 [00:10<01:00,  1.00it/s]",
        "Map:  50%" + BAR + "\r\x1b[KEpoch 1:  12%|#2  | 12/100 [00:10<01:00,  1.00it/s]",
    ],
)
def test_several_bars(line):
    """Of several bars in one line the last one that trains counts."""
    (mark,) = [mark for mark in READER.read(line) if isinstance(mark, StepMark)]
    assert (mark.step, mark.epoch) == (112, 1)


def test_bar_without_rate_yet():
    """A bar that has done steps and knows no rate yet has done steps."""
    assert parse_step("  1%|1         | 1/100 [00:00<?, ?it/s]").step == 1
