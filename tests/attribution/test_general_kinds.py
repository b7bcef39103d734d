"""What a message is called that no entry knows: its shape and its traceback's functions decide."""

from pathlib import Path

import pytest
import yaml

DATA = yaml.safe_load(Path(__file__).with_name("general_kinds.yaml").read_text())


def cases(part):
    """Each excerpt of a part with what it shall be."""
    return [(excerpt, expected) for expected, excerpts in DATA[part].items() for excerpt in excerpts]


@pytest.mark.parametrize(("excerpt", "expected"), cases("verdicts"))
def test_shape_decides(verdict_of, excerpt, expected):
    """Category and action by the convention of docs/attribution.md."""
    verdict = verdict_of(*excerpt.splitlines())
    assert f"{verdict.category} {verdict.action}" == expected, verdict.signature


@pytest.mark.parametrize(("excerpt", "expected"), cases("specific"))
def test_known_words_stand_before_the_shape(verdict_of, excerpt, expected):
    """A fall-back never hides the entry that knows the line."""
    assert verdict_of(*excerpt.splitlines()).signature == expected


@pytest.mark.parametrize("line", DATA["quiet"])
def test_frightening_shape_is_no_failure(verdict_of, line):
    """Warnings of the same words stand behind what ended the job."""
    assert verdict_of(line, "my.lib.WeaveError: got 3 columns").signature == "PY_EXCEPTION"


def test_wait_that_training_outlived(verdict_of):
    """A retried time-out does not explain an end long afterwards."""
    steps = [f"step {step}/900 | loss 2.5 | step_time 0.2 s" for step in range(1, 12)]
    verdict = verdict_of(
        "loom.TimeoutError: waiting for the loom timed out, retrying", *steps, "my.lib.WeaveError: got 3 columns"
    )
    assert verdict.signature == "PY_EXCEPTION"
