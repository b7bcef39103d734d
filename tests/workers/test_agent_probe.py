"""Stacks of a job's processes, by the real py-spy: whose, and within which bounds."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from queue import SimpleQueue

import pytest

from relight.clients.host_state import JobProcess
from relight.domain.reports import ProbeAnswer
from relight.lab.processes import wait_until
from relight.workers.agent_probe import ALL, MAX_FRAMES, MAX_STACKS, Answer, Probe, choose, dump, frames, stacks, state

JOB = 987_654_322
PY_SPY = str(Path(sys.executable).with_name("py-spy"))
STUCK = """
import threading

def wait_for_peers():
    threading.Event().wait()

def {name}():
    print(flush=True)
    wait_for_peers()

{name}()
"""


@pytest.fixture
def stuck(tmp_path: Path) -> Iterator[subprocess.Popen[bytes]]:
    """A Python process that hangs in a collective, as seen from its main thread."""
    script = tmp_path / "train.py"
    script.write_text(STUCK.format(name="all_reduce"))
    with subprocess.Popen([sys.executable, str(script)], stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.readline()
        yield process
        process.kill()


def test_a_stuck_process_tells_where_it_is(stuck: subprocess.Popen[bytes]) -> None:
    """Innermost first, with function, file and line; and the same when it is asked again."""
    found, problem = dump(stuck.pid, PY_SPY, 20)
    if "ermission" in problem:
        pytest.skip(f"processes cannot be looked at here: {problem}")
    assert problem == ""
    assert found[-3:] == ["wait_for_peers (train.py:5)", "all_reduce (train.py:9)", "<module> (train.py:11)"]
    assert dump(stuck.pid, PY_SPY, 20) == (found, "")


def test_a_stopped_process_is_told_as_such(stuck: subprocess.Popen[bytes]) -> None:
    """Its frames alone may look like those of one that waits; and it is not woken by the look."""
    assert state(stuck.pid) == ""
    stuck.send_signal(signal.SIGSTOP)
    wait_until(lambda: state(stuck.pid) == "stopped", 10, "it to be stopped")
    found, problem = dump(stuck.pid, PY_SPY, 20)
    if "ermission" in problem:
        pytest.skip(f"processes cannot be looked at here: {problem}")
    assert found[-1] == "<module> (train.py:11)"
    assert state(stuck.pid) == "stopped"
    assert state(1 << 30) == ""


def test_a_process_that_is_gone_or_no_python_is_a_problem_and_no_stack(stuck: subprocess.Popen[bytes]) -> None:
    """In py-spy's words."""
    stuck.kill()
    stuck.wait()
    for pid in (stuck.pid, 1 << 30):
        found, problem = dump(pid, PY_SPY, 20)
        assert found == []
        assert problem


def test_a_missing_program_is_said() -> None:
    """The agent lives without py-spy."""
    assert dump(os.getpid(), "/nonexistent/py-spy", 5) == ([], "/nonexistent/py-spy: No such file or directory")


@pytest.fixture
def program(tmp_path: Path) -> Path:
    """A stand-in for py-spy, to be written."""
    path = tmp_path / "py-spy"
    path.write_text("#!/bin/sh\n")
    path.chmod(0o755)
    return path


def test_one_that_hangs_is_ended(program: Path) -> None:
    """As on a process in uninterruptible sleep."""
    program.write_text("#!/bin/sh\nexec sleep 600\n")
    assert dump(7, str(program), 0.2) == ([], "py-spy took longer than 0 s")


@pytest.mark.parametrize(
    "script", ["echo '['", "echo '{\"a\": 1}'", 'echo \'[{"thread_name": "x"}]\'', "true", "echo 7"]
)
def test_an_answer_that_cannot_be_read_is_a_problem(program: Path, script: str) -> None:
    """Whatever another version prints."""
    program.write_text(f"#!/bin/sh\n{script}\n")
    found, problem = dump(7, str(program), 20)
    assert found == []
    assert "cannot be read" in problem


def test_output_without_end_is_bounded(program: Path) -> None:
    """It is ended by the kernel at a size."""
    program.write_text("#!/bin/sh\nexec cat /dev/zero\n")
    found, problem = dump(7, str(program), 60)
    assert found == []
    assert problem


def test_frames_are_short_printable_and_few() -> None:
    """A program can call its functions anything."""
    one = {"name": "\x1b[31m" + "x" * 1000, "short_filename": None, "filename": "/a\nb.py", "line": 1}
    found = frames([{"thread_name": "other", "frames": []}, {"thread_name": "MainThread", "frames": [one] * 500}])
    assert len(found) == MAX_FRAMES
    assert all(len(frame) <= 200 and frame.isprintable() for frame in found)


def test_ranks_are_asked_and_not_their_helpers() -> None:
    """Those with a GPU first; the launcher, which has no rank, last; data loaders not at all."""
    launcher = JobProcess(10, 1, None)
    ranks = [JobProcess(20, 10, 9), JobProcess(21, 10, 8)]
    loaders = [JobProcess(30, 20, 9), JobProcess(31, 20, 9)]
    everyone = [launcher, *ranks, *loaders]
    assert [process.pid for process in choose(everyone, frozenset())] == [21, 20, 10]
    assert [process.pid for process in choose(everyone, frozenset({20, 31}))] == [20, 31, 21, 10]


def answer(found: dict[str, object]) -> ProbeAnswer:
    """As the controller reads it."""
    return ProbeAnswer.model_validate({"id": "p", "at": "2026-11-30T12:00:00+00:00"} | found)


def processes(count: int) -> list[JobProcess]:
    """So many ranks."""
    return [JobProcess(100 + rank, 1, rank) for rank in range(count)]


def test_no_more_processes_than_the_contract_has(program: Path) -> None:
    """And it is said how many were left out."""
    text = json.dumps([{"thread_name": "MainThread", "frames": []}])
    program.write_text(f"#!/bin/sh\necho '{text}'\n")
    found = answer(stacks(processes(MAX_STACKS + 6), frozenset(), str(program)))
    assert len(found.stacks) == MAX_STACKS
    assert found.problem == "6 processes more were not looked at"


def test_a_probe_ends_in_time(program: Path) -> None:
    """Those that were not reached say so."""
    now = [0.0]

    def clock() -> float:
        now[0] += ALL / 4
        return now[0]

    found = answer(stacks(processes(5), frozenset(), str(program), clock))
    assert "not taken" in found.stacks[-1].problem
    assert [stack.rank for stack in found.stacks] == list(range(5))


def test_an_answer_is_bounded_in_size(program: Path) -> None:
    """Deep stacks with long names, on many ranks."""
    frame = {"name": "f" * 150, "short_filename": "x.py", "filename": "x.py", "line": 1}
    (program.parent / "out").write_text(json.dumps([{"thread_name": "MainThread", "frames": [frame] * 64}]))
    program.write_text(f"#!/bin/sh\ncat {program.parent / 'out'}\n")
    found = answer(stacks(processes(40), frozenset(), str(program)))
    assert len(found.model_dump_json()) < 150_000
    assert "full" in found.stacks[-1].problem


def test_a_job_that_is_not_here_is_a_problem() -> None:
    """And not an empty success."""
    assert answer(stacks([], frozenset(), PY_SPY)).problem == "no Python process of the job on this node"


def test_the_answer_tells_what_the_job_has_used() -> None:
    """Of each rank its CPU time, of all processes what they move and wait for; as the controller reads it."""
    script = "import time\nprint(flush=True)\ntime.sleep(600)"
    environment = {**os.environ, "SLURM_JOB_ID": str(JOB), "RANK": "0"}
    answers: SimpleQueue[Answer] = SimpleQueue()
    probe = Probe(answers.put, PY_SPY)
    probe.start()
    command = [sys.executable, "-c", script]
    with subprocess.Popen(command, env=environment, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.readline()
        probe.ask("p", "stacks", JOB, frozenset())
        found = ProbeAnswer.model_validate(answers.get(timeout=30))
        process.kill()
    if found.usage is None:
        pytest.skip("the kernel does not tell of other processes' calls here")
    (rank,) = found.stacks
    assert (rank.pid, rank.rank, (rank.cpu_s or 0) > 0) == (process.pid, 0, True)
    assert (found.usage.processes, found.usage.others_cpu_s, found.usage.in_files) == (1, 0.0, 0)
    assert found.usage.moved_bytes > 0


def test_looking_costs_the_process_little(stuck: subprocess.Popen[bytes]) -> None:
    """It is not stopped: its state never becomes T (traced) while it is looked at."""
    with subprocess.Popen([PY_SPY, "dump", "--nonblocking", "--pid", str(stuck.pid)], stdout=subprocess.DEVNULL) as spy:
        states = set()
        while spy.poll() is None:
            states.add(Path(f"/proc/{stuck.pid}/stat").read_text().rpartition(")")[2].split()[0])
            time.sleep(0.001)
    assert not states & {"T", "t"}
