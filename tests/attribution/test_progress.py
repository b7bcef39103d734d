"""Step lines of the known trainers: what each of them tells."""

import re
from math import isnan
from pathlib import Path

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from relight.attribution.progress import LONGEST_LINE, Reader, formats, parse_step, reader
from relight.attribution.progress_formats import load
from relight.attribution.progress_marks import Edge, Measured, Phase, PhaseMark, StepMark

READER = reader()
LINES = yaml.safe_load((Path(__file__).parent / "progress_lines.yaml").read_text())


@pytest.mark.parametrize("row", LINES, ids=[row["name"] for row in LINES])
def test_trainer(row):
    """Each trainer's line gives all that it prints and nothing else."""
    (mark,) = READER.read(row["line"])
    assert repr(mark) == repr(StepMark(**row["mark"]))


@pytest.mark.parametrize(
    ("line", "who"),
    [
        ("[rank3]: step 7/9 | loss 1", {"rank": 3}),
        ("[rank: 3] step 7/9 | loss 1", {"rank": 3}),
        ("12: step 7/9 | loss 1", {"rank": 12}),
        (" 3:  iteration 7/ 9 | lm loss: 1 |", {"rank": 3}),
        ("[default3]:step 7/9 | loss 1", {"local_rank": 3}),
        ("[default3]:[rank11]: step 7/9 | loss 1", {"rank": 11, "local_rank": 3}),
        ("[rank2]:  78%|#######8  | 7/9 [00:01<00:00,  1.00it/s]", {"rank": 2}),
        ("step 7/9 | loss 1 | slowest [rank5]", {}),
    ],
)
def test_who_printed_it(line, who):
    """The rank comes from the prefix, and from nowhere else."""
    mark = parse_step(line)
    assert {key: value for key in ("rank", "local_rank") if (value := getattr(mark, key)) is not None} == who


def test_values_without_a_step():
    """The Hugging Face Trainer's dict has no step: its numbers are told all the same, of either version."""
    old = "{'loss': 2.5, 'grad_norm': nan, 'learning_rate': 5e-05, 'epoch': 0.25}"
    new = "{'loss': '2.5', 'grad_norm': 'nan', 'learning_rate': '5e-05', 'epoch': '0.25'}"
    for line in (old, new):
        (values,) = READER.read(line)
        assert type(values) is Measured
        assert (values.loss, values.epoch) == (2.5, 0.25)
        assert isnan(values.grad_norm)
        assert parse_step(line) is None


def test_bar_and_values_on_one_line():
    """stdout and stderr in one file glue the bar and the dict together; both are read, in order."""
    bar, values = READER.read("  1%|          | 10/1000 [00:05<08:00,  2.00it/s]{'loss': 2.5, 'epoch': 0.25}")
    assert (bar.step, bar.total, bar.seconds, values.loss) == (10, 1000, 0.5, 2.5)


@pytest.mark.parametrize(
    "line",
    [
        "step 5/10 | loss 0.5step 6/10 | loss 0.25",
        "step 5/10 | loss 0.5\rstep 6/10 | loss 0.25\r",
        "step 5/10 | loss 0.5\r\x1b[Kstep 6/10 | loss 0.25",
        "step 6/10 | loss 0.25\r\n",
        "\x1b[1mstep\x1b[0m 6/10 | loss 0.25",
        "训练 step 6/10 | loss 0.25 ✓",
        "训练 step 6/10, loss 0.25 ✓",
        "x" * 9000 + " | step 6/10 | loss 0.25",
    ],
)
def test_everyday_input(line):
    """Redrawn, glued, coloured, foreign and giant lines give their last step, with its own numbers."""
    mark = parse_step(line)
    assert (mark.step, mark.total, mark.loss) == (6, 10, 0.25)


def test_total_that_is_passed_is_unknown():
    """A total below the step is no total."""
    assert parse_step("step 12/10 | loss 1").total is None


def test_epoch_lines_are_no_steps():
    """What counts whole epochs is left to those who know that nothing finer is printed."""
    assert parse_step("Epoch 5/100 - train loss: 0.5, val loss 0.6") is None


def test_scanner_sees_what_is_read():
    """The scanner finds a line by the beginning of a format: each line that is read is found by one."""
    heads = [one.pattern.pattern.split(r"(?P<step>\d+)")[0] + r"\d" for one in formats()]
    for row in LINES:
        plain = re.sub(r"\x1b\[[\d;]*m", "", row["line"])
        assert any(re.search(one, plain) for one in heads), row["name"]


@given(st.text(max_size=200))
def test_never_fails(text):
    """Any text is answered, also where a number should stand."""
    for line in (
        text,
        f"step {text}/{text} | loss {text}",
        f"{text}: 1%|{text}| 1/2 [{text}it/s]",
        f"iter {text} loss 1",
    ):
        for mark in READER.read(line):
            assert isinstance(mark, Measured | PhaseMark)


@given(
    st.integers(0, 10**12),
    st.floats(0, 1e6),
    st.sampled_from(["step {step} | loss {loss}", "[rank1]: iter {step}: loss {loss}", "step: {step}  loss:  {loss}"]),
)
def test_numbers_come_back(step, loss, form):
    """Whatever is printed as step and loss is what is read."""
    mark = parse_step(form.format(step=step, loss=loss))
    assert (mark.step, mark.loss) == (step, loss)
    assert parse_step(form.format(step=f"{step:,}", loss=loss)).step == step


PIECES = [
    "step ",
    "step 1/",
    "iteration 1/ ",
    "epoch ",
    "Epoch 1/9 ",
    "1%|",
    "12%|#| 1/1 [",
    "[",
    " ",
    "1",
    "1,234",
    "e",
    "-",
]
PIECES += [
    "{'loss': 1",
    "loss ",
    "Training epoch 1, iteration 1/1 | ",
    "saving ",
    "the ",
    "checkpoint ",
    "global_step=",
]
PIECES += [
    "samples/sec: 1 | iteration ",
    "\x1b[",
    "\t",
    "━",
    "data ",
    "torch.compile ",
    "warm",
    "it/s",
    "0:00:01 • ",
    "|",
]


@pytest.mark.timeout(120)
@given(st.lists(st.sampled_from(PIECES), max_size=4), st.lists(st.sampled_from(PIECES), min_size=1, max_size=4))
@settings(max_examples=300)
def test_hostile_lines_are_answered(begin, repeated):
    """Lines made of the formats' own beginnings, over and over, are answered: a pattern that takes more than linear
    time for them would not come to an end here."""
    line = "".join(begin) + "".join(repeated) * LONGEST_LINE
    assert len(READER.read(line)) <= 3


def test_threads_may_share_one():
    """A reader keeps nothing of the lines read: the same line says the same whatever came before."""
    one = Reader(load())
    line = " 12%|█▏        | 120/1000 [02:10<12:00,  1.20s/it]"
    before = one.read(line)
    one.read("saving checkpoint at iteration 5")
    assert one.read(line) == before


def test_phase_beside_a_step():
    """A step and a phase that are glued together are both told, in order."""
    step, phase = READER.read("step 6/10 | loss 0.25saving checkpoint at iteration 6 to /x")
    assert (step.step, phase.phase, phase.edge) == (6, Phase.CHECKPOINT, Edge.BEGINS)
