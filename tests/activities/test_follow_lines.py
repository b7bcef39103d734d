"""Lines that say that an attempt is lost are found, and no others; the reading is by the site's own data too."""

from datetime import UTC, datetime

import pytest

from relight.activities.follow_lines import Lines, is_fatal, read_progress_file
from relight.attribution.catalogue import load
from relight.attribution.progress_marks import Phase, PhaseMark, StepMark

NOW = datetime(2026, 11, 30, 9, 0, tzinfo=UTC)
ECC = "[rank3]: RuntimeError: CUDA error: uncorrectable ECC error encountered"


@pytest.fixture(scope="module")
def lines():
    return Lines()


def step(number):
    return f"step {number}/1000 | loss 0.5 | step_time 1.0 s"


@pytest.mark.parametrize(
    ("line", "signature"),
    [
        (ECC, "CUDA_ECC"),
        ("srun: error: n2: task 3: Exited with exit code 1", "SLURM_TASK_FAIL"),
        ("slurmstepd: error: Detected 1 oom_kill event in StepId=7.0", "SLURM_OOM"),
    ],
)
def test_a_fatal_line_is_found(lines, line, signature):
    """With its excerpt, its signature and where it stood."""
    said = lines.read([step(1), "hello", line, "bye"], "train.out", NOW)
    assert said.fatal
    assert (said.fatal.signature, said.fatal.file, said.fatal.at) == (signature, "train.out", NOW)
    assert said.fatal.text in line


@pytest.mark.parametrize(
    "line",
    [
        "hello",
        "ValueError: this was caught and the batch is skipped",
        "torch.cuda.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB",
        "ModuleNotFoundError: No module named 'flash_attn'",
        "OSError: [Errno 28] No space left on device",
        "found nan in grad norm: the step is skipped",
        "NCCL INFO comm 0x1 rank 3 ncclRemoteError",
        "slurmstepd: error: *** STEP 7.0 ON n1 CANCELLED AT 2026-11-30T09:00:00 ***",
        "codec can't decode byte 0xff: sample left out",
    ],
)
def test_what_programs_live_with_is_not_fatal(lines, line):
    """Caught exceptions, skipped batches, echoes of others, ends that Slurm itself makes."""
    assert lines.read([line], "train.out", NOW).fatal is None


def test_steps_behind_a_fatal_line_take_it_back(lines):
    """Three that become visible with it are training that goes on; fewer may have been on their way."""
    assert lines.read([ECC, step(1), step(2)], "train.out", NOW).fatal
    assert lines.read([ECC, step(1), step(2), step(3)], "train.out", NOW).fatal is None


def test_no_echo_context_or_number_is_fatal():
    """Whatever the catalogue will hold: only causes and launchers' reports."""
    fatal = [one for one in load().signatures.values() if is_fatal(one)]
    assert {one.role for one in fatal} == {"root", "wrapper"}
    causes = {one.category for one in fatal if one.role == "root"}
    assert causes == {"GPU", "NODE", "NETWORK", "HOST_MEMORY", "FRAMEWORK"}


def test_a_site_brings_its_own_formats(tmp_path):
    """A step that no shipped format knows."""
    file = tmp_path / "formats.yaml"
    file.write_text("steps:\n  - name: ours\n    needs: 'schritt'\n    pattern: 'Schritt <step>'\n")
    (mark,) = Lines([file]).read(["Schritt 12"], "train.out", NOW).marks
    assert isinstance(mark, StepMark)
    assert mark.step == 12
    assert Lines().read(["Schritt 12"], "train.out", NOW).marks == ()


def test_a_progress_file_is_json(lines):
    """Each line an object; what is none is skipped."""
    said = read_progress_file(['{"step": 3, "loss": 0.5}', "step 4/10", '{"step": 4, "phase": "checkpoint"}'])
    kinds = [(type(mark), getattr(mark, "step", None), getattr(mark, "phase", None)) for mark in said.marks]
    assert kinds == [(StepMark, 3, None), (StepMark, 4, None), (PhaseMark, None, Phase.CHECKPOINT)]
