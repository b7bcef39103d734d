"""Step lines of the known trainers."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from relight.attribution.progress import StepMark, parse_step


@pytest.mark.parametrize(
    ("line", "mark"),
    [
        ("step 121/1000 | loss 0.25 | step_time 0.201 s", StepMark(step=121, total=1000, loss=0.25, seconds=0.201)),
        ("[rank0]: step 7/9 | loss nan", StepMark(step=7, total=9, loss=float("nan"))),
        (
            " iteration      120/  500000 | elapsed time per iteration (ms): 1500.0 | lm loss: 6.5E+00 |",
            StepMark(step=120, total=500000, loss=6.5, seconds=1.5),
        ),
        ("iter 30: loss 2.5, time 250.00ms, mfu 30%", StepMark(step=30, loss=2.5, seconds=0.25)),
        ("[titan] INFO - step: 40  loss:  7.5  memory: 10GiB", StepMark(step=40, loss=7.5)),
        ("[INFO] [logging.py:96:log_dist] [Rank 0] step=50, skipped=0, lr=[0.1]", StepMark(step=50)),
        ("Epoch 1:  12%|#2  | 12/100 [00:10<01:00,  1.20it/s, loss=3.5]", StepMark(step=12, total=100, loss=3.5)),
        ("12%|#2  | 12/100 [00:10<01:00,  4.5s/it]", StepMark(step=12, total=100, seconds=4.5)),
    ],
)
def test_known_formats(line, mark):
    """Each trainer's line gives its step, total, loss and seconds as far as it prints them."""
    found = parse_step(line)
    assert found is not None
    assert repr(found) == repr(mark)


@pytest.mark.parametrize("line", ["", "first step of the ladder", "iteration of the design", "50% done"])
def test_other_lines(line):
    """Prose about steps is no progress."""
    assert parse_step(line) is None


@given(st.text())
def test_never_fails(line):
    """Any text is answered."""
    parse_step(line)
    parse_step(f"step {line}/{line} | loss {line}")
