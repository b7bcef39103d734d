"""What a job's processes have used, of real processes under the real kernel: by it a hang is told from a checkpoint."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from relight.clients import job_usage
from relight.clients.job_usage import Usage, process_cpu_s, usage
from relight.domain.standstill import OTHERS_CPU
from relight.lab.processes import wait_until

JOB = 987_654_321


@contextmanager
def job(*programs: str, job_id: int = JOB) -> Iterator[list[subprocess.Popen[bytes]]]:
    """Processes of a job, each of which has said that it is there."""
    environment = {**os.environ, "SLURM_JOB_ID": str(job_id)}
    running: list[subprocess.Popen[bytes]] = []
    try:
        for program in programs:
            code = f"import os, sys, threading, time\nprint(flush=True)\n{program}"
            command = [sys.executable, "-c", code]
            running.append(subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, start_new_session=True))
        for process in running:
            assert process.stdout
            process.stdout.readline()
        yield running
    finally:
        for process in running:
            os.killpg(process.pid, signal.SIGKILL)
            process.communicate()


def used() -> Usage:
    """What is known, or the test cannot be run here."""
    found = usage(JOB)
    if found is None:
        pytest.skip("the kernel does not tell of other processes' calls here")
    return found


def waits_for_a_file() -> bool:
    """Whether a thread of the job does."""
    return used().in_files > 0


IDLE = "time.sleep(600)"


@pytest.mark.parametrize(
    "idle",
    [
        IDLE,
        "while True: time.sleep(0.1)",
        "threading.Thread(target=os.read, args=(os.pipe()[0], 1)).start()",
        "import socket; pair = socket.socketpair(); pair[0].recv(1)",
        "import select; select.poll().poll()",
    ],
    ids=["sleep", "sleeps", "pipe", "socket", "poll"],
)
def test_a_job_that_waits_for_others_uses_nothing_and_waits_for_no_file(idle: str) -> None:
    """Nor do its bytes grow, in whatever call it waits."""
    with job(idle, IDLE):
        # Its imports are done when nothing has been read any more for a while.
        wait_until(lambda: _quiet(0.3), 20, "it to be idle")
        before = used()
        assert (before.processes, before.in_files) == (2, 0)
        assert _quiet(0.5)
        assert used().others_cpu_s - before.others_cpu_s < 0.5 * OTHERS_CPU


def test_one_long_write_is_seen_though_no_counter_grows(tmp_path: Path) -> None:
    """As into storage that does not take it: here a named pipe that nobody empties, by a thread beside the main one."""
    pipe = tmp_path / "checkpoint"
    os.mkfifo(pipe)
    write = f"threading.Thread(target=lambda: open({str(pipe)!r}, 'wb', 0).write(bytes(1 << 20))).start()"
    reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    try:
        with job(write):
            wait_until(waits_for_a_file, 10, "it to write")
            before = used()
            assert before.in_files == 1
            assert used().moved_bytes == before.moved_bytes
    finally:
        os.close(reader)


def test_who_waits_for_a_file_to_be_opened_is_seen(tmp_path: Path) -> None:
    """A named pipe without a reader cannot be opened for writing."""
    os.mkfifo(tmp_path / "pipe")
    with job(f"open({str(tmp_path / 'pipe')!r}, 'wb')"):
        wait_until(waits_for_a_file, 10, "it to open")


def test_bytes_and_cpu_time_grow_with_work(tmp_path: Path) -> None:
    """Of all processes; CPU time only of those that are not told apart."""
    writes = f"f = open({str(tmp_path / 'x')!r}, 'wb', 0)\nwhile True: f.seek(0), f.write(bytes(1 << 20))"
    with job(writes, IDLE) as (writer, idle):
        before = used()
        wait_until(lambda: used().moved_bytes > before.moved_bytes + (8 << 20), 20, "it to write")
        wait_until(lambda: used().others_cpu_s > before.others_cpu_s, 20, "it to use the CPU")
        assert (process_cpu_s(writer.pid) or 0) > 0
        apart = usage(JOB, {writer.pid})
        assert apart
        assert apart.others_cpu_s == pytest.approx(process_cpu_s(idle.pid), abs=0.02)


def test_other_programs_of_the_job_count_and_other_jobs_do_not() -> None:
    """What a rank has started, say to send its checkpoint elsewhere; another job of the same user."""
    with job("import subprocess; subprocess.run(['sleep', '600'])"), job(IDLE, job_id=JOB + 1):
        wait_until(lambda: used().processes == 2, 10, "both to run")


def test_what_cannot_be_read_is_unknown(monkeypatch: pytest.MonkeyPatch) -> None:
    """No process, another machine's calls, a kernel that does not tell, more threads than are looked at."""
    assert usage(JOB) is None
    assert process_cpu_s(1 << 30) is None
    with job(IDLE):
        used()
        assert usage(JOB, machine="vax") is None
        assert usage(JOB, proc="/nonexistent") is None
        monkeypatch.setattr(job_usage, "MAX_THREADS", 0)
        assert usage(JOB) is None


def _quiet(seconds: float) -> bool:
    """Whether nothing is read or written for so long."""
    before = used().moved_bytes
    time.sleep(seconds)
    return used().moved_bytes == before
