"""What step lines tell by themselves: losses that are lost or come back, and a speed that falls."""

import io
from functools import partial

import pytest

from relight.attribution.engine import diagnose
from relight.attribution.sources import Context, LogSource
from relight.domain.diagnosis import Action, Category
from relight.domain.evidence import Interruption, Source

TOLD = ("category", "action", "signature")


def step(number, loss="2.3", grad="0.7", tflops="150.2", seconds="10.1"):
    """A step line as Megatron-LM prints it; it leaves the loss out where that is None."""
    told = "" if loss is None else f" lm loss: {loss} |"
    return (
        f" iteration {number:8}/    9000 | consumed samples: 64 | elapsed time per iteration (s): {seconds} |"
        f"{told} loss scale: 1.0 | grad norm: {grad} | TFLOPs: {tflops} |"
    )


CASES = {
    "a NaN gradient, and the loss no longer printed": (
        [step(3383), step(3384), step(3385, loss=None, grad="nan")],
        (Category.NUMERICS, Action.RESTART, "NUM_NAN"),
    ),
    "one NaN gradient, the loss is well": (
        [step(3383), step(3384), step(3385, grad="nan")],
        (Category.UNKNOWN, Action.RESTART, "UNKNOWN"),
    ),
    "NaN gradients that stay": (
        [step(number, grad="nan") for number in range(5426, 5430)],
        (Category.NUMERICS, Action.RESTART, "NUM_NAN"),
    ),
    "a loss that jumps and comes back": (
        [step(101), step(102, loss="8.9"), step(103, loss="5.1"), step(104)],
        (Category.CONTROL, Action.NONE, "NUM_SPIKE"),
    ),
    "all steps slower from one on": (
        [step(101), step(102), step(103, tflops="103.5"), step(104, tflops="102.9")],
        (Category.STRAGGLER, Action.RESTART_EXCLUDING_NODE, "PERF_THROUGHPUT_DROP"),
    ),
    "one slow step at the end": (
        [step(101), step(102), step(103), step(104, tflops="60.1")],
        (Category.UNKNOWN, Action.RESTART, "UNKNOWN"),
    ),
    "longer steps at the same throughput": (
        [step(101), step(102), step(103, seconds="20.2"), step(104, seconds="20.3")],
        (Category.UNKNOWN, Action.RESTART, "UNKNOWN"),
    ),
    "slow, and a line says why it ended": (
        [step(101), step(102), step(103, tflops="90.5"), step(104, tflops="90.9"), "OSError: [Errno 28] No space left"],
        (Category.STORAGE, Action.STOP, "DISK_FULL"),
    ),
}


@pytest.mark.parametrize(("lines", "told"), CASES.values(), ids=CASES)
def test_step_lines(verdict_of, lines, told):
    """The newest steps decide, and only where no line says more."""
    verdict = verdict_of(*lines)
    assert tuple(getattr(verdict, name) for name in TOLD) == told


def test_last_line_without_line_end():
    """A log that was cut in the middle of a line shows the steps before it as well."""
    data = "\n".join([step(101), step(102, loss="8.9"), step(103, loss="5.1"), step(104)]).encode()
    verdict = diagnose([LogSource("cut", Source.JOB_LOG, None, partial(io.BytesIO, data))]).verdict
    assert verdict.signature == "NUM_SPIKE"


def test_speed_explains_no_end_that_was_seen(verdict_of):
    """Where a watcher saw the job die, that it had become slower is no answer."""
    slow = [step(101), step(102), step(103, tflops="90.5"), step(104, tflops="90.9")]
    assert verdict_of(*slow, context=Context(interruption=Interruption.CRASH)).signature == "UNKNOWN"
