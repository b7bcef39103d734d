"""PySlurm against small processes that speak its protocol, or fail to. The real one: tests/system/test_pyslurm.py."""

import asyncio
import json
import os
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from relight.clients import pyslurm_server, slurm_pyslurm_process
from relight.clients.slurm import (
    AmbiguousWriteError,
    JobNotFoundError,
    NodeNotFoundError,
    NotPermittedError,
    RefusedError,
    SlurmBusyError,
    SlurmUnavailableError,
    SlurmVersionError,
)
from relight.clients.slurm_commands import SlurmCommands
from relight.clients.slurm_pyslurm import PySlurm
from relight.domain.slurm import AccountingRow, JobState

PREAMBLE = f"""#!{sys.executable} -I
import json, os, struct, sys, time
HEADER = struct.Struct("!II")
def send(*lines, resident=10):
    body = "\\n".join(json.dumps(line, separators=(",", ":")) for line in lines).encode()
    sys.stdout.buffer.write(HEADER.pack(len(body), resident) + body)
    sys.stdout.buffer.flush()
def greet():
    send({{"pyslurm": "25.11.2", "slurmctld": "26.05.5"}})
def receive():
    header = sys.stdin.buffer.read(8)
    if not header:
        sys.exit()
    with open({{said!r}}, "a") as said:
        said.write(text := sys.stdin.buffer.read(HEADER.unpack(header)[0]).decode())
        said.write("\\n")
    return json.loads(text)
def failure(errno, text, type="RPCError"):
    return {{"error": {{"errno": errno, "type": type, "text": text}}}}
JOB = {json.dumps(pyslurm_server.JOB)}
JOB = dict.fromkeys(JOB) | {{
    "job_id": 7, "name": "train", "user_id": 0, "user_name": "ada", "job_state": "RUNNING", "submit_time": 1796028685,
    "exit_code": {{"return_code": 0, "signal": {{"id": 0}}}}, "restart_cnt": 1, "node_count": 2, "nodes": "n[1-2]",
    "tres_per_node": "gres/gpu:8", "requeue": True, "batch_flag": True, "dependency": "singleton(unfulfilled)",
    "standard_output": "/w/x.out", "current_working_directory": "/w", "time_limit": 10, "het_job_offset": 0,
}}
"""
SERVE = """
greet()
while True:
    operation, *arguments = receive()
    {body}
"""
CALLS: list[tuple[str, Callable[[PySlurm], Awaitable[object]]]] = [
    ("jobs", lambda slurm: slurm.jobs()),
    ("job", lambda slurm: slurm.job(7)),
    ("nodes", lambda slurm: slurm.nodes()),
    ("node", lambda slurm: slurm.node("n1")),
    ("steps", lambda slurm: slurm.steps(7)),
    ("batch_script", lambda slurm: slurm.batch_script(7)),
    ("facts", lambda slurm: slurm.facts()),
]
WRITES: list[tuple[str, Callable[[PySlurm], Awaitable[object]]]] = [
    ("requeue", lambda slurm: slurm.requeue(7)),
    ("exclude", lambda slurm: slurm.exclude(7, ("n1", "n2"))),
    ("start_now", lambda slurm: slurm.start_now(7)),
    ("start_after", lambda slurm: slurm.start_after(7, timedelta(minutes=5))),
    ("hold", lambda slurm: slurm.hold(7)),
    ("release", lambda slurm: slurm.release(7)),
    ("cancel", lambda slurm: slurm.cancel(7)),
    ("submit", lambda slurm: slurm.submit_batch("#!/bin/sh\nexit\n", "/w")),
]
reads = pytest.mark.parametrize("call", [call for _, call in CALLS], ids=[name for name, _ in CALLS])
writes = pytest.mark.parametrize("call", [call for _, call in WRITES], ids=[name for name, _ in WRITES])
Call = Callable[[PySlurm], Awaitable[object]]


class Recorder(SlurmCommands):
    """The commands, of which it is only noted what was left to them."""

    def __init__(self) -> None:
        super().__init__()
        self.left: list[tuple[object, ...]] = []

    async def requeue(self, job_id: int) -> None:
        """Note it."""
        self.left.append(("requeue", job_id))

    async def exclude(self, job_id: int, nodes: tuple[str, ...]) -> None:
        """Note it."""
        self.left.append(("exclude", job_id, nodes))

    async def start_now(self, job_id: int) -> None:
        """Note it."""
        self.left.append(("start_now", job_id))

    async def start_after(self, job_id: int, wait: timedelta) -> None:
        """Note it."""
        self.left.append(("start_after", job_id, wait))

    async def depend(self, job_id: int, dependency: str) -> None:
        """Note it."""
        self.left.append(("depend", job_id, dependency))

    async def hold(self, job_id: int) -> None:
        """Note it."""
        self.left.append(("hold", job_id))

    async def release(self, job_id: int) -> None:
        """Note it."""
        self.left.append(("release", job_id))

    async def cancel(self, job_id: int) -> None:
        """Note it."""
        self.left.append(("cancel", job_id))

    async def submit_batch(self, script: str, work_dir: str, *, held: bool = False) -> int:
        """Note it."""
        self.left.append(("submit_batch", script, work_dir, held))
        return 12

    async def executions(self, job_id: int) -> tuple[AccountingRow, ...]:
        """Note it."""
        self.left.append(("executions", job_id))
        return ()

    async def cpu_time(self, job_id: int) -> timedelta | None:
        """Note it."""
        self.left.append(("cpu_time", job_id))
        return None


@pytest.fixture
def recorder() -> Recorder:
    """The commands."""
    return Recorder()


Scripted = Callable[..., PySlurm]


@pytest.fixture
async def scripted(tmp_path: Path, recorder: Recorder) -> AsyncIterator[Scripted]:
    """Makes clients whose process runs a script."""
    made: list[PySlurm] = []

    def make(script: str, seconds: float = 20) -> PySlurm:
        program = tmp_path / f"server{len(made)}"
        program.write_text(PREAMBLE.replace("{said!r}", repr(str(tmp_path / "said"))) + script)
        program.chmod(0o755)
        slurm = PySlurm(recorder, python=str(program), timeout=timedelta(seconds=seconds))
        made.append(slurm)
        return slurm

    yield make
    for slurm in made:
        await slurm.close()


def serve(body: str) -> str:
    """A script that greets and does the same for each request."""
    return SERVE.format(body=body.replace("\n", "\n    "))


WRITING = "send(JOB) if operation == 'job' else "
"""The look before a write succeeds; then."""


def process_id(slurm: PySlurm) -> int:
    """Of the process that would hold pyslurm."""
    process = slurm._process._process
    assert process is not None
    return process.pid


def requests(tmp_path: Path) -> list[list[object]]:
    """All that was asked for."""
    return [json.loads(line) for line in (tmp_path / "said").read_text().splitlines()]


async def test_a_record_has_all_that_was_told(scripted: Scripted) -> None:
    """Lines become records by the parsers of the commands."""
    slurm = scripted(serve("send(JOB)"))
    (job,) = await slurm.jobs()
    assert job == await slurm.job(7)
    assert (job.state, job.nodes, job.gres_per_node, job.dependency) == (
        JobState.RUNNING, ("n1", "n2"), "gpu:8", "singleton(unfulfilled)",
    )  # fmt: skip
    assert (job.submit_time, job.stderr) == (datetime.fromtimestamp(1796028685, UTC), "/w/x.out")
    assert job.time_limit == timedelta(minutes=10)


async def test_a_line_that_changed_is_read_anew_and_one_that_is_gone_is_gone(scripted: Scripted) -> None:
    """What is kept from the last read stands for equal lines only."""
    slurm = scripted(
        "greet()\n"
        "for lines in [[JOB, JOB | {'job_id': 8}], [JOB | {'job_state': 'PENDING'}, JOB | {'job_id': 9}], []]:\n"
        "    receive(); send(*lines)\nreceive()"
    )
    seen = [[(job.job_id, job.state) for job in await slurm.jobs()] for _ in range(3)]
    assert seen == [[(7, "RUNNING"), (8, "RUNNING")], [(7, "PENDING"), (9, "RUNNING")], []]


@reads
async def test_a_process_that_dies_in_a_read_leaves_it_unknown(scripted: Scripted, call: Call) -> None:
    """No answer is no empty answer."""
    with pytest.raises(SlurmUnavailableError, match="slurm_receive"):
        await call(scripted(serve("print('slurm_receive: oops', file=sys.stderr, flush=True)\nos._exit(1)")))


@reads
async def test_a_read_cut_off_in_the_middle_is_unknown(scripted: Scripted, call: Call) -> None:
    """Half an answer is none."""
    script = serve("sys.stdout.buffer.write(HEADER.pack(500, 1) + b'{')\nsys.stdout.buffer.flush()\nos._exit(0)")
    with pytest.raises(SlurmUnavailableError):
        await call(scripted(script))


@reads
@pytest.mark.parametrize("body", ["send([])", "send({})", "send({'job_id': 7})", "send('x', 'y')", "send(None)"])
async def test_an_answer_of_another_shape_is_unknown(scripted: Scripted, call: Call, body: str) -> None:
    """What is not understood is not guessed at."""
    with pytest.raises(SlurmUnavailableError):
        await call(scripted(serve(body)))


@writes
async def test_a_process_that_dies_in_a_write_is_ambiguous(scripted: Scripted, call: Call) -> None:
    """It was sent: it may have taken effect."""
    with pytest.raises(AmbiguousWriteError):
        await call(scripted(serve(WRITING + "os._exit(1)")))


async def test_a_process_killed_from_outside_is_started_again(scripted: Scripted) -> None:
    """Between two calls it is not even noticed."""
    slurm = scripted(serve("send(JOB)"))
    first, process = await slurm.job(7), slurm._process._process
    assert process is not None
    process.kill()
    await process.wait()
    assert await slurm.job(7) == first
    assert process_id(slurm) != process.pid


async def test_a_late_answer_is_never_taken_for_the_next(scripted: Scripted, tmp_path: Path) -> None:
    """Late: the read is unknown, the write ambiguous, the process ended; other tasks go on meanwhile."""
    slurm = scripted(serve("time.sleep(60) if operation in ('nodes', 'hold') else send(JOB)"), 1)
    await slurm.job(7)
    before = process_id(slurm)
    ticks = 0

    async def tick() -> None:
        nonlocal ticks
        while True:
            await asyncio.sleep(0.01)
            ticks += 1

    ticking = asyncio.create_task(tick())
    with pytest.raises(SlurmUnavailableError, match="nothing within 1 s"):
        await slurm.nodes()
    ticking.cancel()
    assert ticks > 10
    with pytest.raises(ProcessLookupError):
        os.kill(before, 0)
    assert (await slurm.job(7)).job_id == 7
    with pytest.raises(AmbiguousWriteError):
        await slurm.hold(7)
    assert [operation for operation, *_ in requests(tmp_path)].count("hold") == 1


async def test_who_waits_behind_a_late_answer_is_told_at_once(scripted: Scripted, tmp_path: Path) -> None:
    """One time-out for all of them: none is sent, a write least of all. Whoever asks afterwards is served."""
    slurm = scripted(serve("time.sleep(60) if operation == 'nodes' else send(JOB)"), 1)
    await slurm.job(7)
    late, *others = await asyncio.gather(
        slurm.nodes(), slurm.job(7), slurm.nodes(), slurm.hold(7), return_exceptions=True
    )
    assert "nothing within 1 s" in str(late)
    assert [type(error) for error in others] == 3 * [SlurmUnavailableError]
    assert all("was not sent" in str(error) for error in others)
    assert [operation for operation, *_ in requests(tmp_path)] == ["job", "nodes"]
    assert (await slurm.job(7)).job_id == 7


async def test_a_call_that_is_given_up_ends_the_process(scripted: Scripted) -> None:
    """A cancelled caller's answer would come to the next one."""
    slurm = scripted(serve("time.sleep(60) if operation == 'nodes' else send(JOB)"))
    await slurm.job(7)
    before = process_id(slurm)
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.2):
            await slurm.nodes()
    assert (await slurm.job(7)).job_id == 7
    assert process_id(slurm) != before


async def test_callers_take_turns(scripted: Scripted, tmp_path: Path) -> None:
    """One process and one request at a time, in order; each caller has its own answer."""
    slurm = scripted(serve("send(JOB | {'job_id': arguments[0]})"))
    jobs = await asyncio.gather(*(slurm.job(number) for number in range(1, 30)))
    assert [job.job_id for job in jobs] == list(range(1, 30))
    assert requests(tmp_path) == [["job", number] for number in range(1, 30)]


async def test_an_answer_that_is_too_large_is_not_read(scripted: Scripted, monkeypatch: pytest.MonkeyPatch) -> None:
    """Memory stays bounded, whatever is announced."""
    monkeypatch.setattr(slurm_pyslurm_process, "MAX_OUTPUT", 100_000)
    with pytest.raises(SlurmUnavailableError, match="an answer of 200000 bytes"):
        await scripted(serve("sys.stdout.buffer.write(HEADER.pack(200000, 1))\nsys.stdout.buffer.flush()")).jobs()


async def test_a_process_that_has_grown_is_replaced(scripted: Scripted) -> None:
    """pyslurm leaks; its answer still counts."""
    slurm = scripted(serve("send(JOB, resident=5000)"))
    assert (await slurm.job(7)).job_id == 7
    assert slurm._process._process is None
    assert (await slurm.job(7)).job_id == 7


@pytest.mark.parametrize(
    ("script", "said"),
    [
        ("print('slurm: fatal: Unable to process configuration file', file=sys.stderr); sys.exit(1)", "fatal: Unable"),
        ("print('Welcome! You have 3 new messages and a quota of some kind.', flush=True); time.sleep(60)", "bytes"),
        ("send([1])\nreceive()", "did not come up"),
        ("time.sleep(60)", "nothing within 1 s"),
        ("os.kill(os.getpid(), 9)", "did not come up"),
    ],
    ids=["no-slurm-conf", "junk", "no-greeting", "hangs", "dies"],
)
async def test_a_process_that_does_not_come_up_says_why(scripted: Scripted, script: str, said: str) -> None:
    """Nothing was sent then: a write is not ambiguous."""
    for call in (CALLS[0][1], WRITES[0][1], WRITES[-1][1]):
        with pytest.raises(SlurmUnavailableError, match=said) as caught:
            await call(scripted(script, 1 if "time.sleep" in script else 20))
        assert caught.type is SlurmUnavailableError


async def test_a_python_that_is_not_there_is_unavailable(recorder: Recorder, tmp_path: Path) -> None:
    """As is one that has no pyslurm, or finds no settings in slurm.conf."""
    conf = tmp_path / "slurm.conf"
    conf.touch()
    for python, said in (
        ("/nonexistent/python", "could not be started"),
        (sys.executable, "did not come up.*(pyslurm|fatal)"),
    ):
        slurm = PySlurm(recorder, python=python, slurm_conf=str(conf))
        with pytest.raises(SlurmUnavailableError, match=f"(?s){said}"):
            await slurm.requeue(7)
        await slurm.close()


@pytest.mark.parametrize(
    ("errno", "text", "error"),
    [
        (1005, "Incompatible versions of client and server code", SlurmVersionError),
        (1800, "Unable to contact slurm controller (connect failure)", SlurmUnavailableError),
        (5004, "Socket timed out on send/recv operation", SlurmUnavailableError),
        (5005, "Zero Bytes were transmitted or received", SlurmVersionError),
        (1007, "Protocol authentication error", SlurmUnavailableError),
    ],
)
async def test_a_wrong_version_is_told_from_a_dead_controller(
    scripted: Scripted, errno: int, text: str, error: type[Exception], tmp_path: Path
) -> None:
    """The greeting has it, at each call; no request is sent."""
    slurm = scripted(f"send({{'pyslurm': '25.11.2', 'slurmctld': None}} | failure({errno}, {text!r}))\nreceive()")
    for _ in range(2):
        for call in (CALLS[0][1], WRITES[0][1], WRITES[-1][1]):
            with pytest.raises(error, match=text[:10]) as caught:
                await call(slurm)
            assert caught.type is error
    assert not (tmp_path / "said").exists()


ERRORS = [
    (1804, "Backoff", SlurmBusyError, SlurmBusyError),
    (2020, "Job can not be altered now, try again later", SlurmBusyError, SlurmBusyError),
    (2002, "Access/permission denied", NotPermittedError, NotPermittedError),
    (2010, "Invalid user id", NotPermittedError, NotPermittedError),
    (2017, "Invalid job id specified", JobNotFoundError, JobNotFoundError),
    (2018, "Invalid node name specified", NodeNotFoundError, NodeNotFoundError),
    (2073, "Job is no longer pending execution", SlurmUnavailableError, RefusedError),
    (1005, "Incompatible versions of client and server code", SlurmVersionError, SlurmVersionError),
    (1800, "Unable to contact slurm controller (connect failure)", SlurmUnavailableError, SlurmUnavailableError),
    (5004, "Socket timed out on send/recv operation", SlurmUnavailableError, AmbiguousWriteError),
    (5005, "Zero Bytes were transmitted or received", SlurmUnavailableError, AmbiguousWriteError),
    (104, "Connection reset by peer", SlurmUnavailableError, AmbiguousWriteError),
    (11, "Resource temporarily unavailable", SlurmBusyError, AmbiguousWriteError),
    (0, "Success", SlurmUnavailableError, AmbiguousWriteError),
]


@pytest.mark.parametrize(("errno", "text", "of_read", "of_write"), ERRORS)
async def test_each_error_has_its_class(
    scripted: Scripted, errno: int, text: str, of_read: type[Exception], of_write: type[Exception]
) -> None:
    """Numbers and words as pyslurm gives them."""
    failing = f"send(failure({errno}, {text!r}))"
    with pytest.raises(of_read) as caught:
        await scripted(serve(failing)).facts()
    assert caught.type is of_read
    for _, call in WRITES:
        with pytest.raises(of_write) as caught:
            await call(scripted(serve(WRITING + failing)))
        assert caught.type is of_write


async def test_an_error_of_python_in_a_write(scripted: Scripted) -> None:
    """A ValueError is raised before anything is sent; of another it is not known."""
    for kind, error in (("ValueError", RefusedError), ("KeyError", AmbiguousWriteError)):
        with pytest.raises(error):
            await scripted(serve(WRITING + f"send(failure(None, 'x', {kind!r}))")).hold(7)


async def test_writes_say_what_they_should(scripted: Scripted, tmp_path: Path) -> None:
    """Each looks at the job and then names it by its number."""
    slurm = scripted(serve("send(JOB) if operation == 'job' else send(*[{'job_id': 9}] * (operation == 'submit'))"))
    for _, call in WRITES:
        await call(slurm)
    assert [request for request in requests(tmp_path) if request != ["job", 7]] == [
        ["requeue", 7], ["exclude", 7, "n1,n2"], ["start_now", 7], ["start_after", 7, 300], ["hold", 7], ["release", 7],
        ["cancel", 7], ["submit", "#!/bin/sh\nexit\n", "/w", False],
    ]  # fmt: skip
    assert requests(tmp_path).count(["job", 7]) == 7


async def test_a_submission_without_an_id_is_ambiguous(scripted: Scripted) -> None:
    """The job may be queued."""
    with pytest.raises(AmbiguousWriteError):
        await scripted(serve("send()")).submit_batch("#!/bin/sh\n", "/w")


@pytest.mark.parametrize("job", ["{'array_job_id': 7, 'array_task_id': None}", "{'array_job_id': 5}"])
async def test_several_tasks_in_one_record_are_left_alone(scripted: Scripted, tmp_path: Path, job: str) -> None:
    """One record that stands for many tasks is no job to act on."""
    slurm = scripted(serve(f"send(JOB | {job})"))
    for name, call in WRITES[:-1]:
        with pytest.raises(RefusedError):
            await call(slurm)
        assert name not in [operation for operation, *_ in requests(tmp_path)]


async def test_an_unknown_job_is_not_written_to(scripted: Scripted, tmp_path: Path) -> None:
    """Cancelling one succeeds in pyslurm; the look before tells. Another job's record does not count."""
    for body in ("send()", "send(JOB | {'job_id': 8})"):
        slurm = scripted(serve(body))
        for _, call in WRITES[:-1]:
            with pytest.raises(JobNotFoundError):
                await call(slurm)
    assert {operation for operation, *_ in requests(tmp_path)} == {"job"}


@pytest.mark.parametrize("job_id", [0, -1, True, "7"])
async def test_only_a_positive_number_is_a_job_id(scripted: Scripted, job_id: int) -> None:
    """Nothing else is sent."""
    slurm = scripted("sys.exit(1)")
    for call in (slurm.job(job_id), slurm.steps(job_id), slurm.hold(job_id), slurm.batch_script(job_id)):
        with pytest.raises(JobNotFoundError):
            await call


async def test_a_hostile_node_name_is_not_sent(scripted: Scripted) -> None:
    """What is not one plain name never leaves."""
    slurm = scripted("sys.exit(1)")
    for name in ("n[1-9]", "n1,n2", "-a", "", "n1 State=DOWN"):
        for call in (slurm.node(name), slurm.exclude(7, (name,))):
            with pytest.raises(NodeNotFoundError):
                await call


TASK = "{'array_job_id': 7, 'array_task_id': %d}"
COMPONENT = "{'het_job_id': 7}"
DELEGATED: list[tuple[str, Call, tuple[object, ...]]] = [
    ("{}", lambda slurm: slurm.exclude(7, ()), ("exclude", 7, ())),
    (TASK % 3, lambda slurm: slurm.cancel(7), ("cancel", 7)),
    (TASK % 0, lambda slurm: slurm.cancel(7), ("cancel", 7)),
    (COMPONENT, lambda slurm: slurm.requeue(7), ("requeue", 7)),
    (COMPONENT, lambda slurm: slurm.exclude(7, ("n1",)), ("exclude", 7, ("n1",))),
    (COMPONENT, lambda slurm: slurm.start_now(7), ("start_now", 7)),
    (COMPONENT, lambda slurm: slurm.hold(7), ("hold", 7)),
    (COMPONENT, lambda slurm: slurm.release(7), ("release", 7)),
    (COMPONENT, lambda slurm: slurm.cancel(7), ("cancel", 7)),
    ("{}", lambda slurm: slurm.depend(7, "afterok:6"), ("depend", 7, "afterok:6")),
    ("{}", lambda slurm: slurm.executions(7), ("executions", 7)),
    ("{}", lambda slurm: slurm.cpu_time(7), ("cpu_time", 7)),
    ("{}", lambda slurm: slurm.submit_batch("#!/bin/sh\n#SBATCH -J x\n", "/w", held=True),
     ("submit_batch", "#!/bin/sh\n#SBATCH -J x\n", "/w", True)),
    ("{}", lambda slurm: slurm.submit_batch("#!/bin/sh\n#PBS -N x\n", "/w"),
     ("submit_batch", "#!/bin/sh\n#PBS -N x\n", "/w", False)),
]  # fmt: skip


@pytest.mark.parametrize(("job", "call", "left"), DELEGATED)
async def test_what_is_left_to_the_commands(
    scripted: Scripted, recorder: Recorder, job: str, call: Call, left: tuple[object, ...]
) -> None:
    """pyslurm would do nothing, or too much: not one request that changes anything reaches it."""
    await call(scripted(serve(f"send(JOB | {job}) if operation == 'job' else sys.exit(1)")))
    assert recorder.left == [left]


async def test_other_tasks_of_an_array_are_cancelled_by_their_number(scripted: Scripted, recorder: Recorder) -> None:
    """Only the array's own number means more than one task."""
    await scripted(
        serve("send(JOB | {'array_job_id': 5, 'array_task_id': 1}) if operation == 'job' else send()")
    ).cancel(7)
    assert recorder.left == []


def entry(**changes: object) -> dict[str, object]:
    """What pyslurm tells of a task of array 5."""
    told = {"job_id": 5, "array_job_id": 5, "array_task_id": None, "array_task_string": None, "job_state": "RUNNING"}
    return told | {"batch_host": "n1", "nodes": "n1", "restart_cnt": 0} | changes


@pytest.mark.parametrize(
    ("told", "task"),
    [
        (entry(array_task_id=3), 3),
        (entry(job_id=9), 0),
        (entry(), 0),
        (entry(job_state="PENDING", batch_host=None, nodes=None), 0),
        (entry(job_state="PENDING", batch_host=None, nodes=None, array_task_string="0-5"), None),
        (entry(job_state="CANCELLED", batch_host=None, nodes=None), None),
        (entry(job_state="CANCELLED", batch_host=None, nodes=None, restart_cnt=1), 0),
        (entry(job_id=9, array_job_id=None), None),
    ],
)
def test_task_0_is_told_from_no_task(told: dict[str, object], task: int | None) -> None:
    """pyslurm says None for both (each seen on 26.05)."""
    assert pyslurm_server.task_id(told) == task


def test_a_name_that_is_no_utf8_hides_no_other_field() -> None:
    """A user may call a job what he likes."""

    class Record:
        comment = "kept"

        @property
        def name(self) -> str:
            return b"x\xff\xfey".decode()

    read = pyslurm_server.reader({"name": "name", "comment": "comment"})
    assert read(Record()) == {"name": "x\ufffd\ufffdy", "comment": "kept"}


def test_the_process_needs_nothing_but_the_standard_library_and_pyslurm() -> None:
    """pyslurm is GPL-2.0: what imports it is a program of its own."""
    source = Path(pyslurm_server.__file__).read_text()
    imported = {line.split()[1].split(".")[0] for line in source.splitlines() if line.startswith(("import ", "from "))}
    assert imported <= sys.stdlib_module_names
