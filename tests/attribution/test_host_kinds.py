"""Host, storage and scheduler: the verdict on each kind between the echoes that it usually comes with."""

from pathlib import Path

import pytest
import yaml

from relight.domain.diagnosis import Action

DATA = yaml.safe_load(Path(__file__).with_name("host_kinds.yaml").read_text())
KINDS = DATA["kinds"]
TEARDOWN = [
    "WARNING:torch.distributed.elastic.multiprocessing.api:Sending process 31 closing signal SIGTERM",
    "ERROR:torch.distributed.elastic.multiprocessing.api:failed (exitcode: 1) local_rank: 0 (pid: 30) of binary: py",
    "torch.distributed.elastic.multiprocessing.errors.ChildFailedError:",
    "srun: error: n1: task 0: Exited with exit code 1",
    "srun: Terminating StepId=7.0",
    "slurmstepd: error: *** STEP 7.0 ON n1 CANCELLED AT 2026-11-30T09:31:00 ***",
]


def steps(first, last):
    """Progress lines."""
    return [f"step {step}/900 | loss 2.5 | step_time 0.2 s" for step in range(first, last + 1)]


def died(code, name, number):
    """Torchelastic's report of a worker that a signal ended."""
    agent = "E1130 09:31:00.1 30 torch/distributed/elastic/multiprocessing/api.py:869]"
    return [
        f"{agent} failed (exitcode: {code}) local_rank: 0 (pid: 30) of binary: python",
        "Root Cause (first observed failure):",
        "  host      : n1",
        "  rank      : 0 (local_rank: 0)",
        f"  exitcode  : {code} (pid: 30)",
        f"  traceback : Signal {number} ({name}) received by PID 30",
    ]


def log(kind):
    """The lines of a kind, with the abbreviations written out."""
    for line in KINDS[kind]["lines"]:
        match line.split(" "):
            case ["@steps"]:
                yield from steps(1, 11)
            case ["@teardown"]:
                yield from TEARDOWN
            case ["@died", *words]:
                yield from died(*words)
            case _:
                yield line


@pytest.mark.parametrize("kind", KINDS)
def test_kind_among_its_echoes(verdict_of, kind):
    """The cause wins over what it makes others print."""
    verdict = verdict_of(*log(kind))
    assert f"{verdict.category} {verdict.action}" == KINDS[kind]["verdict"], verdict.signature


@pytest.mark.parametrize("line", DATA["ordinary"])
def test_frightening_words_are_not_the_cause(verdict_of, line):
    """What healthy jobs print never stands before the failure that ended this one."""
    verdict = verdict_of(line, "[rank0]: my.lib.ShapeError: got 3 columns", *TEARDOWN)
    assert verdict.signature == "PY_EXCEPTION"


@pytest.mark.parametrize("line", DATA["outlived"])
def test_what_training_outlived_is_not_the_cause(verdict_of, line):
    """A fault that training went on after does not explain a crash long afterwards."""
    verdict = verdict_of(*steps(1, 11), line, *steps(12, 30), *died(-11, "SIGSEGV", 11))
    assert verdict.signature == "EXIT_SIGSEGV"


def test_repeated_kill_stops(verdict_of):
    """A kill in training is tried again once: the same end twice is a program that does not fit."""
    assert verdict_of(*log("killed in training")).action_if_it_repeats is Action.STOP


def test_nodes_that_srun_names_are_implicated(verdict_of):
    """The node stands in srun's own line, never in slurmstepd's, whose `ON` is the step's first."""
    assert verdict_of(*log("clock"), TEARDOWN[-1]).implicated.nodes == ("n3",)
    assert verdict_of(*log("node lost")).implicated.nodes == ("n4",)
