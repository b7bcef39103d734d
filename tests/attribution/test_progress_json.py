"""The progress file: lenient about keys, strict about types."""

import json
from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from relight.attribution.progress_json import read_line, read_lines
from relight.attribution.progress_marks import Edge, Phase, PhaseMark, StepMark

AT = datetime(2026, 11, 30, 9, 31, tzinfo=UTC)


def test_all_keys():
    """Every documented key arrives, and unknown ones are ignored."""
    entry = {
        "step": 12,
        "time": "2026-11-30T09:31:00Z",
        "total_steps": 100,
        "step_seconds": 0.5,
        "samples_per_second": 64,
        "tokens_per_second": 1e6,
        "tflops": 400.5,
        "loss": 2.5,
        "grad_norm": 1.5,
        "epoch": 0.25,
        "rank": 3,
        "colour": "red",
    }
    expected = StepMark(
        step=12,
        at=AT,
        total=100,
        seconds=0.5,
        samples_per_second=64,
        tokens_per_second=1e6,
        tflops=400.5,
        loss=2.5,
        grad_norm=1.5,
        epoch=0.25,
        rank=3,
    )
    assert read_line(json.dumps(entry)) == (expected,)


@pytest.mark.parametrize(
    "time", ["1796031060", "1796031060.0", '"2026-11-30T09:31:00+00:00"', '"2026-11-30T10:31:00+01:00"']
)
def test_times(time):
    """Seconds since 1970 and ISO 8601 with a zone are the same moment."""
    (mark,) = read_line(f'{{"step": 1, "time": {time}}}')
    assert mark.at == AT


def test_phases():
    """A phase begins with its line and is over with the next line without one."""
    lines = [
        '{"step": 5, "phase": "checkpoint", "rank": 1}',
        '{"phase": "evaluation"}',
        '{"step": 6, "phase": "training"}',
    ]
    marks, skipped = read_lines(lines)
    assert marks == (
        StepMark(step=5, rank=1),
        PhaseMark(phase=Phase.CHECKPOINT, edge=Edge.BEGINS, rank=1),
        PhaseMark(phase=Phase.EVALUATION, edge=Edge.BEGINS),
        StepMark(step=6),
    )
    assert skipped == 0


def test_a_rank_says_how_long_it_computes():
    """Without its collectives, and on which node: so ranks can be compared."""
    (mark,) = read_line('{"step": 7, "rank": 3, "node": "n2", "step_seconds": 0.5, "compute_seconds": 0.4}')
    assert mark == StepMark(step=7, rank=3, node="n2", seconds=0.5, compute_seconds=0.4)


@pytest.mark.parametrize("loss", ["NaN", "Infinity", "-Infinity"])
def test_loss_that_is_no_number(loss):
    """What Python writes for nan and infinity is a loss all the same: numerics wants to know."""
    (mark,) = read_line(f'{{"step": 1, "loss": {loss}}}')
    assert mark.loss is not None


@pytest.mark.parametrize(
    "line",
    [
        "step 12",
        "[12]",
        "12",
        "{}",
        '{"loss": 1.0}',
        '{"step": "12"}',
        '{"step": 12.0}',
        '{"step": true}',
        '{"step": -1}',
        '{"step": null}',
        '{"step": 1e400}',
        '{"step": 1, "loss": "2.5"}',
        '{"step": 1, "loss": false}',
        '{"step": 1, "step_seconds": -1}',
        '{"step": 1, "step_seconds": NaN}',
        '{"step": 1, "rank": 1.5}',
        '{"step": 1, "node": 7}',
        '{"step": 1, "compute_seconds": "0.5"}',
        '{"step": 1, "time": "yesterday"}',
        '{"step": 1, "time": "2026-11-30T09:31:00"}',
        '{"step": 1, "time": true}',
        '{"step": 1, "time": 1e300}',
        '{"step": 1, "phase": "lunch"}',
        '{"step": 1, "phase": ["checkpoint"]}',
        '{"step": 1, "lo',
        '{"a":' * 2000,
        "[" * 5000,
    ],
)
def test_not_understood(line):
    """A line that is not understood as a whole says nothing, and is counted."""
    assert read_line(line) == ()
    assert read_lines([line, "", '{"step": 1}', "  "]) == ((StepMark(step=1),), 1)


@given(st.text())
def test_never_fails(text):
    """Any text is answered."""
    read_line(text)
    read_line(f'{{"step": 1, "time": {text}}}')


@given(st.recursive(st.none() | st.booleans() | st.integers() | st.floats() | st.text(), st.lists, max_leaves=4))
def test_any_value_of_any_key(value):
    """A known key has its type, or the line says nothing: no value is turned into another."""
    for key in ("step", "total_steps", "rank", "loss", "step_seconds"):
        for mark in read_line(json.dumps({"step": 1, key: value})):
            field = {"total_steps": "total", "step_seconds": "seconds"}.get(key, key)
            assert value is None or getattr(mark, field) == value or value != value  # noqa: PLR0124 - nan
