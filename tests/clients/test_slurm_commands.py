"""Slurm's commands that hang, lie, stop half-way or refuse: each becomes the contract's error, never an empty list."""

import asyncio
import json
import os
import stat
import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from relight.clients import slurm_process
from relight.clients.slurm import (
    AmbiguousWriteError,
    JobNotFoundError,
    NodeNotFoundError,
    NotPermittedError,
    RefusedError,
    Slurm,
    SlurmBusyError,
    SlurmUnavailableError,
    SlurmVersionError,
)
from relight.clients.slurm_commands import NODE_NAME, SlurmCommands
from relight.clients.slurm_process import LocalRunner

RECORDED = Path(__file__).parent / "recorded"
ARRAY = RECORDED / "22.05" / "jobs-array-tasks-running-and-last-pending.json"
SEVERAL = RECORDED / "22.05" / "jobs-array-several-pending.json"
RUNNING = RECORDED / "22.05" / "jobs-running-on-two-nodes-with-json-comment.json"
JOB = json.loads(RUNNING.read_text())["jobs"][0]["job_id"]

VERSION = '[ "$1" = --version ] && exec echo slurm 22.05.8'

Fake = Callable[[str, str], None]


@pytest.fixture
def fake(tmp_path: Path) -> Fake:
    """Puts a shell script in place of one of Slurm's commands."""

    def write(name: str, body: str) -> None:
        script = tmp_path / name
        script.write_text(f"#!/bin/sh\n{body}\n")
        script.chmod(script.stat().st_mode | stat.S_IXUSR)

    return write


@pytest.fixture
def slurm(tmp_path: Path, fake: Fake) -> SlurmCommands:
    """A client of 22.05 whose squeue knows one running job and whose writes are noted in `said`."""
    knows(fake, RUNNING, f"{JOB}|{JOB}|N/A")
    for name in ("scontrol", "scancel"):
        fake(name, f'{VERSION}\necho "{name} $*" >> {tmp_path}/said')
    return SlurmCommands(LocalRunner(bin_dir=str(tmp_path)), timeout=timedelta(seconds=5))


def knows(fake: Fake, file: Path, *addresses: str) -> None:
    """Makes squeue print a recording, and these lines where it is asked for addresses."""
    lines = "".join(f"{line}\n" for line in addresses)
    fake("squeue", f"case \"$*\" in *%F*) cat <<'END'\n{lines}END\n;; *) cat {file};; esac")


def hasty(tmp_path: Path) -> SlurmCommands:
    """The same with a short patience."""
    return SlurmCommands(LocalRunner(bin_dir=str(tmp_path)), timeout=timedelta(seconds=0.3))


def test_it_keeps_the_contract(slurm: SlurmCommands) -> None:
    """The class is a `Slurm` for the type checker."""
    contract: Slurm = slurm
    assert contract


async def test_a_hanging_read_is_unavailable_and_leaves_no_process(tmp_path: Path, fake: Fake) -> None:
    """A command that ignores SIGTERM, and its child, are gone when the error is raised."""
    fake("scontrol", VERSION)
    fake("squeue", f"trap '' TERM; sleep 60 & echo $! > {tmp_path}/pid; wait")
    began = time.monotonic()
    with pytest.raises(SlurmUnavailableError, match=r"no answer within 0\.3 s"):
        await hasty(tmp_path).jobs()
    assert time.monotonic() - began < 2
    await gone(int((tmp_path / "pid").read_text()))


async def test_a_cancelled_read_leaves_no_process(tmp_path: Path, fake: Fake) -> None:
    """Cancelling the caller kills and reaps the command."""
    fake("scontrol", VERSION)
    fake("squeue", f"echo $$ > {tmp_path}/pid; exec sleep 60")
    task = asyncio.create_task(SlurmCommands(LocalRunner(bin_dir=str(tmp_path))).jobs())
    for _ in range(500):
        if read(tmp_path / "pid"):
            break
        await asyncio.sleep(0.01)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    await gone(int((tmp_path / "pid").read_text()))


def read(file: Path) -> str:
    """A file's text, empty where there is none."""
    try:
        return file.read_text()
    except (FileNotFoundError, ProcessLookupError):
        return ""


async def gone(pid: int) -> None:
    """Wait for a process that is nobody's child of ours to be reaped by init."""
    for _ in range(200):
        status = read(Path("/proc", str(pid), "status"))
        if not status or "State:\tZ" in status:
            return
        await asyncio.sleep(0.01)
    raise AssertionError(f"process {pid} still runs")


@pytest.mark.parametrize(
    "body",
    [
        f"head -c 1500 {RUNNING}",
        "echo 'no JSON at all'",
        "echo '[]'",
        """echo '{"errors": []}'""",
        """echo '{"errors": [], "jobs": [{}]}'""",
        """echo '{"errors": [], "jobs": ["x"]}'""",
        "exit 0",
        "exit 1",
        "kill -9 $$",
        "echo 'slurm_load_jobs error: Unable to contact slurm controller (connect failure)' >&2; exit 1",
        "echo 'slurm_load_jobs error: Socket timed out on send/recv operation' >&2; exit 1",
        "echo 'squeue: error: Munge encode failed: Failed to access munge.socket' >&2; exit 1",
        f"cat {RUNNING}; echo 'slurm_load_jobs error: Socket timed out on send/recv operation' >&2",
        "echo 'something never seen before' >&2; exit 7",
    ],
)
async def test_a_failed_read_is_never_an_empty_queue(slurm: SlurmCommands, fake: Fake, body: str) -> None:
    """Partial, garbled, silent or refused: all of them are `SlurmUnavailableError`."""
    fake("squeue", body)
    with pytest.raises(SlurmUnavailableError):
        await slurm.jobs()


async def test_an_empty_list_beside_an_error_is_not_believed(slurm: SlurmCommands, fake: Fake) -> None:
    """22.05 prints `"jobs": []` and exits 0 while slurmctld does not answer: its `errors` count."""
    fake("squeue", f"cat {RECORDED}/22.05/jobs-slurmctld-frozen-exit-0.json")
    with pytest.raises(SlurmUnavailableError, match="slurm_load_jobs"):
        await slurm.jobs()


async def test_an_empty_queue_is_empty(slurm: SlurmCommands, fake: Fake) -> None:
    """No jobs and no error is an answer."""
    fake("squeue", """echo '{"errors": [], "jobs": []}'""")
    assert await slurm.jobs() == ()


async def test_nodes_need_a_cluster(slurm: SlurmCommands, fake: Fake) -> None:
    """No cluster is without nodes: an empty list is no answer."""
    fake("scontrol", "[ $1 = --version ] && echo slurm 22.05.8")
    fake("sinfo", """echo '{"errors": [], "nodes": []}'""")
    with pytest.raises(SlurmUnavailableError):
        await slurm.nodes()


@pytest.mark.parametrize(
    ("version", "said"),
    [
        ("22.05", "sinfo --all --json"),
        ("24.05", "scontrol --all show --json node"),
        ("24.11", "scontrol --all show --json=latest+complex node"),
        ("26.05", "scontrol --all show --json=latest+complex node"),
    ],
)
async def test_the_source_of_nodes_follows_the_version(
    slurm: SlurmCommands, fake: Fake, tmp_path: Path, version: str, said: str
) -> None:
    """22.05 has them in sinfo, newer ones in scontrol; plain numbers are asked for where they were tried."""
    file = RECORDED / version.replace("24.05", "24.11") / "nodes-lost-drained-draining.json"
    fake("sinfo", f'echo "sinfo $*" >> {tmp_path}/said; cat {file}')
    fake(
        "scontrol",
        f'[ $1 = --version ] && exec echo slurm {version}.1; echo "scontrol $*" >> {tmp_path}/said; cat {file}',
    )
    assert [node.name for node in await slurm.nodes()] == ["n1", "n2", "n3", "n4"]
    assert (tmp_path / "said").read_text() == f"{said}\n"
    assert (await slurm.node("n4")).lost
    with pytest.raises(NodeNotFoundError):
        await slurm.node("n5")


async def test_a_purged_job_is_not_found(slurm: SlurmCommands, fake: Fake) -> None:
    """Absent from the list (22.05) or "Invalid job id specified" (newer): the job is gone."""
    with pytest.raises(JobNotFoundError):
        await slurm.job(4444)
    fake("squeue", "echo 'slurm_load_jobs error: Invalid job id specified' >&2; exit 1")
    with pytest.raises(JobNotFoundError):
        await slurm.job(JOB)


async def test_output_is_bounded(slurm: SlurmCommands, fake: Fake, monkeypatch: pytest.MonkeyPatch) -> None:
    """A command that never stops printing is ended, not stored."""
    monkeypatch.setattr(slurm_process, "MAX_OUTPUT", 100_000)
    fake("squeue", "yes")
    with pytest.raises(SlurmUnavailableError, match="bytes of output"):
        await slurm.jobs()


async def test_the_callers_environment_does_not_change_answers(
    slurm: SlurmCommands, fake: Fake, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """SQUEUE_STATES and its like are not passed on; time zone and language are fixed."""
    monkeypatch.setenv("SQUEUE_STATES", "PENDING")
    monkeypatch.setenv("SLURM_CLUSTERS", "other")
    fake("squeue", f"env > {tmp_path}/env; cat {RUNNING}")
    await slurm.jobs()
    lines = (tmp_path / "env").read_text().splitlines()
    assert {"TZ=UTC", "LC_ALL=C", "SLURM_TIME_FORMAT=standard"} <= set(lines)
    assert not [line for line in lines if line.startswith(("SQUEUE_", "SLURM_CLUSTERS"))]


INCOMPATIBLE = (
    "scontrol: error: slurm_unpack_received_msg: [[localhost]:9] Invalid Protocol Version 10752 from uid=4294967295:"
    " Incompatible versions of client and server code"
)
"""22.05 towards 24.11; towards 26.05 it is "Insane message length" (both seen)."""

WRITES = [
    ("echo 'Unexpected message received for job 7' >&2; exit 1", AmbiguousWriteError),
    ("echo 'slurm_update error: Socket timed out on send/recv operation' >&2; exit 1", AmbiguousWriteError),
    ("echo 'Zero Bytes were transmitted or received for job 7' >&2; exit 1", AmbiguousWriteError),
    (f"echo '{INCOMPATIBLE}' >&2; echo 'Unexpected message received for job 7' >&2; exit 1", SlurmVersionError),
    ("echo 'Insane message length for job 7' >&2; exit 1", SlurmVersionError),
    ("exit 1", AmbiguousWriteError),
    ("kill -9 $$", AmbiguousWriteError),
    ("echo 'Unable to contact slurm controller (connect failure)' >&2; exit 1", SlurmUnavailableError),
    ("echo 'Job can not be altered now, try again later for job 7' >&2; exit 1", SlurmBusyError),
    ("echo 'Invalid job id specified for job 7' >&2; exit 1", JobNotFoundError),
    ("echo 'Access/permission denied for job 7' >&2; exit 1", NotPermittedError),
    ("echo 'Invalid user id for job 7' >&2; exit 1", NotPermittedError),
    ("echo 'Invalid node name specified for job 7' >&2; exit 1", NodeNotFoundError),
    ("echo 'Job is no longer pending execution for job 7' >&2; exit 1", RefusedError),
    ("echo 'Requested operation is presently disabled for job 7' >&2; exit 1", RefusedError),
    ("echo 'Job not heterogeneous job leader for job 22' >&2; exit 1", RefusedError),
    ("echo 'Access/permission denied for job 7' >&2; exit 0", NotPermittedError),
]


@pytest.mark.parametrize(("body", "error"), WRITES)
async def test_each_refusal_of_a_write_has_its_error(
    slurm: SlurmCommands, fake: Fake, body: str, error: type[Exception]
) -> None:
    """The words of 22.05 and 24.11, an error text beside exit status 0 included."""
    fake("scontrol", f"{VERSION}\n{body}")
    calls = (slurm.requeue(JOB), slurm.exclude(JOB, ("n1",)), slurm.start_now(JOB), slurm.hold(JOB), slurm.release(JOB))
    for call in calls:
        with pytest.raises(error) as caught:
            await call
        assert caught.type is error


async def test_releases_that_cannot_talk_are_told_apart(slurm: SlurmCommands, fake: Fake) -> None:
    """Words of 22.05's commands towards newer ones, also where they exit 0 with an empty list (seen)."""
    bodies = (
        f"echo '{INCOMPATIBLE}' >&2; exit 1",
        f"""echo '{INCOMPATIBLE}' >&2; echo '{{"errors": [], "jobs": []}}'""",
        """echo '{"errors": [{"error": "Insane message length"}], "jobs": []}'""",
    )
    for body in bodies:
        fake("squeue", body)
        for call in (slurm.jobs(), slurm.job(JOB)):
            with pytest.raises(SlurmVersionError):
                await call


@pytest.mark.parametrize("line", ["", "7", "7|7", "x|7|N/A", "7|7|N/A|RUNNING", "7|7|1 2"])
async def test_an_address_that_is_garbled_is_no_address(slurm: SlurmCommands, fake: Fake, line: str) -> None:
    """Half a line addresses nothing; no line at all is no such job."""
    knows(fake, RUNNING, *([line] if line else []))
    with pytest.raises(SlurmUnavailableError if line else JobNotFoundError):
        await slurm.requeue(7)


STEPS = f"""\
{JOB}.0|n[1-2]|4|2026-11-30T10:01:15
{JOB}.batch|n1|1|2026-11-30T10:01:15
"""


async def test_steps(slurm: SlurmCommands, fake: Fake) -> None:
    """Those of this very job, of an array's own id those of its last task; none is an answer, half a line is not."""

    def steps(address: str, lines: str) -> None:
        fake("squeue", f"case \"$*\" in *--steps*) cat <<'END'\n{lines}END\n;; *) echo '{address}';; esac")

    steps(f"{JOB}|{JOB}|N/A", STEPS)
    first, batch = await slurm.steps(JOB)
    assert (first.step_id, first.nodes, first.task_count) == (f"{JOB}.0", ("n1", "n2"), 4)
    assert (batch.step_id, batch.nodes) == (f"{JOB}.batch", ("n1",))
    assert first.start_time == datetime(2026, 11, 30, 10, 1, 15, tzinfo=UTC)
    steps("6|6|2", "6_2.0|n1|1|Unknown\n6_1.0|n2|1|Unknown\n6_20.0|n3|1|Unknown\n")
    assert [step.step_id for step in await slurm.steps(6)] == ["6_2.0"]
    steps("6|6|1-3", "")
    assert await slurm.steps(6) == ()
    for garbled in ("6.0|n1|1\n", "6.0|n1|x|Unknown\n", "6.0|n1|1|yesterday\n", "6.0|n[1-|1|Unknown\n"):
        steps("6|6|N/A", garbled)
        with pytest.raises(SlurmUnavailableError):
            await slurm.steps(6)
    fake("squeue", "echo 'slurm_load_jobs error: Invalid job id specified' >&2; exit 1")
    with pytest.raises(JobNotFoundError):
        await slurm.steps(6)


async def test_submitting(slurm: SlurmCommands, fake: Fake, tmp_path: Path) -> None:
    """The script goes in by standard input; without an id in the answer the job may be queued all the same."""
    fake("sbatch", f'echo "$*" > {tmp_path}/said; cat > {tmp_path}/script; echo "77;cluster"')
    assert await slurm.submit_batch("#!/bin/sh\ntrue\n", "/home/a b", held=True) == 77
    assert (tmp_path / "said").read_text() == "--parsable --chdir=/home/a b --hold\n"
    assert (tmp_path / "script").read_text() == "#!/bin/sh\ntrue\n"
    for body, error in (
        ("exit 0", AmbiguousWriteError),
        (
            "echo 'sbatch: error: Batch job submission failed: Zero Bytes were transmitted' >&2; exit 1",
            AmbiguousWriteError,
        ),
        ("echo 'sbatch: error: Batch job submission failed: Invalid account' >&2; exit 1", RefusedError),
        ("echo 'Unable to contact slurm controller (connect failure)' >&2; exit 1", SlurmUnavailableError),
    ):
        fake("sbatch", body)
        with pytest.raises(error) as caught:
            await slurm.submit_batch("#!/bin/sh\n", "/tmp")
        assert caught.type is error


async def test_a_write_that_was_late_is_ambiguous(slurm: SlurmCommands, fake: Fake, tmp_path: Path) -> None:
    """It was sent: whether it took effect must be looked up, not assumed."""
    fake("scontrol", f"{VERSION}\nsleep 60")
    with pytest.raises(AmbiguousWriteError):
        await hasty(tmp_path).requeue(JOB)


async def test_a_missing_command_is_unavailable_also_for_a_write() -> None:
    """What was never started is not ambiguous."""
    with pytest.raises(SlurmUnavailableError):
        await SlurmCommands(run_as=("/nonexistent/prefix",))._write("scancel", "7")


async def test_writes_say_what_they_should(slurm: SlurmCommands, tmp_path: Path) -> None:
    """The whole command line of each write."""
    await slurm.requeue(JOB)
    await slurm.exclude(JOB, ("n1", "gpu-02.a"))
    await slurm.exclude(JOB, ())
    await slurm.start_now(JOB)
    await slurm.start_after(JOB, timedelta(minutes=5, milliseconds=1))
    await slurm.depend(JOB, "afterok:7:8_2?afterany:9_*,after:4+10,singleton")
    await slurm.hold(JOB)
    await slurm.release(JOB)
    await slurm.cancel(JOB)
    assert (tmp_path / "said").read_text().splitlines() == [
        f"scontrol requeue {JOB}",
        f"scontrol update JobId={JOB} ExcNodeList=n1,gpu-02.a",
        f"scontrol update JobId={JOB} ExcNodeList=",
        f"scontrol update JobId={JOB} StartTime=now",
        f"scontrol update JobId={JOB} StartTime=now+301",
        f"scontrol update JobId={JOB} Dependency=afterok:7:8_2?afterany:9_*,after:4+10,singleton",
        f"scontrol hold {JOB}",
        f"scontrol release {JOB}",
        f"scancel {JOB}",
    ]


@pytest.mark.parametrize(
    ("tasks", "named"),
    [("0-3", "7_[0-3]"), ("0-3%2", "7_[0-3]"), ("1,3-5:2", "7_[1,3-5:2]"), ("4", "7_4"), ("0,2,4,...", None)],
)
async def test_a_dependency_of_pending_tasks_is_changed_for_all_of_them(
    slurm: SlurmCommands, fake: Fake, tmp_path: Path, tasks: str, named: str | None
) -> None:
    """One record stands for them, and no task that runs is named; not where Slurm does not print them all."""
    knows(fake, RUNNING, f"7|7|{tasks}")
    if named is None:
        with pytest.raises(RefusedError):
            await slurm.depend(7, "afterok:6")
        return
    await slurm.depend(7, "afterok:6")
    assert f"scontrol update JobId={named} Dependency=afterok:6" in (tmp_path / "said").read_text()


@pytest.mark.parametrize(
    "text", ["", "afterok:7 Priority=1", "afterok:7(failed)", "afterok:-1", "AFTEROK:7", "afterok:7,"]
)
async def test_what_is_no_dependency_is_not_sent(slurm: SlurmCommands, text: str) -> None:
    """Nor is anything else smuggled into the command."""
    with pytest.raises(RefusedError):
        await slurm.depend(JOB, text)


async def test_the_last_task_of_an_array_is_not_the_whole_array(
    slurm: SlurmCommands, fake: Fake, tmp_path: Path
) -> None:
    """The last task's record has the array's own JobId: `scontrol requeue 2` would requeue every task."""
    tasks = json.loads(ARRAY.read_text())["jobs"]
    last = next(task for task in tasks if task["job_id"] == task["array_job_id"])
    lines = [f"{task['job_id']}|{task['array_job_id']}|{task['array_task_id']}" for task in tasks]
    knows(fake, ARRAY, *lines)
    await slurm.requeue(last["job_id"])
    assert (tmp_path / "said").read_text() == f"scontrol requeue {last['array_job_id']}_{last['array_task_id']}\n"


async def test_the_only_pending_task_is_addressed(slurm: SlurmCommands, fake: Fake, tmp_path: Path) -> None:
    """Its record shows the task as text, with the array's limit of running tasks where it has one (seen on 26.05)."""
    for task in ("3", "3%2"):
        knows(fake, RUNNING, f"6|6|{task}")
        await slurm.cancel(6)
    assert (tmp_path / "said").read_text() == "scancel 6_3\n" * 2


async def test_several_pending_tasks_in_one_record_are_left_alone(
    slurm: SlurmCommands, fake: Fake, tmp_path: Path
) -> None:
    """One record that stands for many tasks is no job to act on."""
    array_id = json.loads(SEVERAL.read_text())["jobs"][0]["job_id"]
    for tasks in ("1-3", "1,3", "1-3%2", "1,3,5,..."):
        knows(fake, SEVERAL, f"{array_id}|{array_id}|{tasks}")
        with pytest.raises(RefusedError):
            await slurm.cancel(array_id)
    assert not (tmp_path / "said").exists()


async def test_cancelling_an_unknown_job_is_not_a_success(slurm: SlurmCommands, tmp_path: Path) -> None:
    """scancel is silent about an unknown job and exits 0 (seen): the read before it tells."""
    with pytest.raises(JobNotFoundError):
        await slurm.cancel(4444)
    assert not (tmp_path / "said").exists()


@pytest.mark.parametrize("job_id", [0, -1, True, "7", "-a", "1 2"])
async def test_only_a_positive_number_is_a_job_id(slurm: SlurmCommands, job_id: int) -> None:
    """Nothing else becomes an argument."""
    with pytest.raises(JobNotFoundError):
        await slurm.job(job_id)


@settings(max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    name=st.one_of(
        st.text(max_size=40), st.sampled_from(["-a", "--help", "n1,n2", "n[1-9]", "ALL", "n1 State=DOWN", ""])
    )
)
def test_a_hostile_node_name_reaches_no_command(name: str) -> None:
    """What is not one plain name is refused before any process starts."""
    if NODE_NAME.fullmatch(name):
        assert not set(name) & set(" ,=[]\"'\n\t\0")
        assert not name.startswith("-")
        return
    client = SlurmCommands(LocalRunner(bin_dir="/nonexistent"), run_as=("/nonexistent/prefix",))
    for call in (client.node(name), client.exclude(7, (name,))):
        with pytest.raises(NodeNotFoundError):
            asyncio.run(call)


async def test_cpu_time_is_a_number_only_when_every_node_answered(slurm: SlurmCommands, fake: Fake) -> None:
    """A sum that lacks one node would look like a standstill."""
    fake("sstat", f"cat {RECORDED}/22.05/sstat-two-steps.txt")
    assert await slurm.cpu_time(JOB) is not None
    refused = "sstat: error: slurm_job_step_stat: there was an error with the request to n2 rc = Invalid user id"
    fake("sstat", f"cat {RECORDED}/22.05/sstat-two-steps.txt; echo '{refused}' >&2")
    assert await slurm.cpu_time(JOB) is None
    fake("sstat", "sleep 60")
    assert (
        await SlurmCommands(LocalRunner(bin_dir=os.environ["PATH"]), cpu_time_as=("/nonexistent",)).cpu_time(JOB)
        is None
    )


async def test_a_script_that_may_not_be_read(slurm: SlurmCommands, fake: Fake) -> None:
    """`scontrol write batch_script` exits 0 and says it on stderr (seen on 22.05 and 24.11)."""
    fake("scontrol", "echo 'job script retrieval failed: Invalid user id' >&2")
    with pytest.raises(NotPermittedError):
        await slurm.batch_script(JOB)
    fake("scontrol", "echo 'job script retrieval failed: Invalid job id specified' >&2")
    with pytest.raises(JobNotFoundError):
        await slurm.batch_script(JOB)
    fake("scontrol", r"printf '#!/bin/sh\nexit 3\n'")
    assert await slurm.batch_script(JOB) == "#!/bin/sh\nexit 3\n"


async def test_accounting_that_is_off_is_unavailable(slurm: SlurmCommands, fake: Fake) -> None:
    """No database is not a job without history."""
    fake("sacct", "echo 'Slurm accounting storage is disabled' >&2; exit 1")
    with pytest.raises(SlurmUnavailableError):
        await slurm.executions(JOB)
    fake("sacct", "echo 'sacct: error: Problem talking to the database: Connection refused' >&2; exit 0")
    with pytest.raises(SlurmUnavailableError):
        await slurm.executions(JOB)
    fake("sacct", "exit 0")
    assert await slurm.executions(JOB) == ()
