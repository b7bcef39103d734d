"""What real 22.05.8, 24.11.5 and 26.05.5 clusters printed (`recorded/`), read into the domain's values."""

from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from relight.clients.slurm import SlurmError
from relight.clients.slurm_parse import GarbledError, expand_hosts, number
from relight.clients.slurm_parse_errors import read_error, write_error
from relight.clients.slurm_parse_jobs import parse_jobs, read_exit_code
from relight.clients.slurm_parse_nodes import parse_nodes
from relight.clients.slurm_parse_paths import OutputOf, resolve_output
from relight.clients.slurm_parse_text import (
    exit_codes,
    parse_accounting,
    parse_clock,
    parse_cpu_time,
    parse_facts,
    parse_version,
)
from relight.domain.hands import held_by_another, held_by_slurm, launch_failed
from relight.domain.slurm import JobFlag, JobRecord, JobState, NodeFlag, NodeRecord, NodeState

RECORDED = Path(__file__).parent / "recorded"
each = pytest.mark.parametrize("version", ["22.05", "24.11", "26.05"])
each_json = pytest.mark.parametrize("version", ["22.05", "24.11", "24.11-complex", "26.05"])
"""`complex`: with plain numbers, as they are asked for from 24.11 on."""


def text(version: str, name: str) -> str:
    """A recording."""
    return (RECORDED / version / name).read_text()


def jobs(version: str, name: str) -> tuple[JobRecord, ...]:
    """The jobs of a recording."""
    return parse_jobs(text(version, f"jobs-{name}.json"))


def job(version: str, name: str) -> JobRecord:
    """The one job of a recording."""
    (only,) = jobs(version, name)
    return only


def nodes(version: str) -> dict[str, NodeRecord]:
    """The nodes of the recording in which one is lost, one drained and one draining."""
    return {node.name: node for node in parse_nodes(text(version, "nodes-lost-drained-draining.json"))}


@each_json
def test_a_running_job(version: str) -> None:
    """Allocation, exclusions, comment, limits and resolved output paths of a two-node job."""
    record = job(version, "running-on-two-nodes-with-json-comment")
    assert record.running
    assert record.nodes == ("n1", "n2")
    assert (record.batch_host, record.node_count, record.task_count) == ("n1", 2, 4)
    assert record.gres_per_node == "gpu:8"
    assert record.excluded_nodes == ("n4",)
    assert record.comment == '{"relight": {"mode": "auto"}}'
    assert record.time_limit == timedelta(minutes=30)
    assert record.end_time is None
    assert record.start_time is not None
    assert record.start_time >= record.submit_time > datetime(2026, 1, 1, tzinfo=UTC)
    assert record.stdout == f"{record.work_dir}/train-{record.job_id}-n1.out"
    assert record.stderr == f"{record.work_dir}/train.{record.job_id:05}.err"
    assert record.user == "relight-lab-owner"


@each_json
def test_a_hostile_name_and_comment_are_text(version: str) -> None:
    """Quotes, newlines and `UserId=root(0) JobState=FAILED` in a name change no field; `--no-requeue` shows."""
    record = job(version, "pending-begin-hostile-name-and-comment")
    assert record.name == 'we ird "q" JobId=7 UserId=root(0) JobState=FAILED'
    assert record.comment == "line1\nline2 JobId=3 \"q\" 's' \\ tab\there ü €\u2028end"
    assert (record.state, record.reason, record.user) == (JobState.PENDING, "BeginTime", "relight-lab-owner")
    assert not record.requeue
    assert record.nodes == ()
    assert record.stdout == f"{record.work_dir}/a b {record.job_id}.out"
    assert record.start_time is not None
    assert record.start_time - record.submit_time == timedelta(hours=1)


def test_percent_signs_on_22_05() -> None:
    """`%%` is a percent sign and `%5j` is padded."""
    record = job("22.05", "pending-begin-hostile-name-and-comment")
    assert record.stderr == f"{record.work_dir}/e%{record.job_id:05}.err"


@each_json
def test_array_tasks(version: str) -> None:
    """Each task has a numeric id of its own; the last one has the array's."""
    records = jobs(version, "array-tasks-running-and-last-pending")
    assert {record.array_task_id for record in records} == {1, 2, 3}
    last = next(record for record in records if record.array_task_id == 3)
    assert last.job_id == last.array_job_id
    assert last.display_id == f"{last.array_job_id}_3"
    first = next(record for record in records if record.array_task_id == 1)
    assert first.job_id != first.array_job_id
    assert first.stdout == f"{first.work_dir}/arr_{first.array_job_id}_1.out"
    assert first.running


@each_json
def test_pending_tasks_in_one_record_have_no_output(version: str) -> None:
    """Several tasks share a record until they start: none of their paths is known (24.11 prints 4294967294)."""
    record = job(version, "array-several-pending")
    assert (record.array_job_id, record.array_task_id) == (record.job_id, None)
    assert (record.stdout, record.stderr) == ("", "")


@each_json
def test_components_of_a_heterogeneous_job(version: str) -> None:
    """Both components name their leader."""
    leader, other = sorted(jobs(version, "het"), key=lambda record: record.job_id)
    assert (leader.het_job_id, leader.het_offset) == (leader.job_id, 0)
    assert (other.het_job_id, other.het_offset) == (leader.job_id, 1)


@each_json
@pytest.mark.parametrize("name", ["completing-requeued", "completing-requeued-after-failure"])
def test_a_requeued_job_that_still_completes(version: str, name: str) -> None:
    """New restart count, old submit time, no end. 22.05 hides that the job is pending: unknown, not failed."""
    record = job(version, name)
    assert record.completing
    assert record.restarts == 1
    assert record.end_time is None
    assert record.state is (JobState.UNKNOWN if version == "22.05" else JobState.PENDING)
    assert not record.running


@each_json
def test_a_cancelled_job_that_still_completes(version: str) -> None:
    """It has an end; 22.05 hides which."""
    record = job(version, "completing-cancelled")
    assert record.completing
    assert record.restarts == 0
    assert record.end_time is not None
    assert record.state is (JobState.UNKNOWN if version == "22.05" else JobState.CANCELLED)


@each_json
def test_a_requeued_job_keeps_the_exit_code_of_its_last_attempt(version: str) -> None:
    """An exit code is no sign of an end by itself."""
    record = job(version, "pending-requeued-after-failure")
    assert (record.state, record.reason, record.exit_code) == (JobState.PENDING, "BeginTime", 4)
    assert record.end_time is None


@each_json
@pytest.mark.parametrize(
    ("name", "state", "code", "signal"),
    [
        ("failed-exit-3", JobState.FAILED, 3, 0),
        ("failed-signal-9", JobState.FAILED, 0, 9),
        ("completed", JobState.COMPLETED, 0, 0),
        ("timeout", JobState.TIMEOUT, 0, None),
        ("node-fail-no-requeue", JobState.NODE_FAIL, None, None),
        ("cancelled", JobState.CANCELLED, 0, None),
        ("suspended", JobState.SUSPENDED, 0, 0),
        ("held-with-dependency", JobState.PENDING, 0, 0),
    ],
)
def test_states_and_exit_codes(version: str, name: str, state: JobState, code: int | None, signal: int | None) -> None:
    """The base state and how the script ended; None where the versions differ."""
    record = job(version, name)
    assert record.state is state
    assert code is None or record.exit_code == code
    assert signal is None or record.exit_signal == signal
    assert (record.end_time is None) == (state in {JobState.SUSPENDED, JobState.PENDING})


@each_json
def test_held_and_dependent(version: str) -> None:
    """The dependency is shown in full, with what is unfulfilled."""
    record = job(version, "held-with-dependency")
    assert record.reason == "JobHeldUser"
    assert record.dependency.startswith("afterok:")
    assert "singleton" in record.dependency


@each_json
def test_an_exclusion_that_leaves_too_few_nodes(version: str) -> None:
    """It pends as BadConstraints, with the exclusion in the record."""
    record = job(version, "pending-bad-constraints")
    assert (record.reason, record.excluded_nodes) == ("BadConstraints", ("n1", "n2", "n3"))


@each_json
def test_a_job_without_a_script_cannot_be_requeued(version: str) -> None:
    """srun outside of a batch job: no output file, nothing to run again."""
    record = job(version, "without-batch-script")
    assert (record.requeue, record.stdout, record.stderr) == (False, "", "")


def test_a_batch_job_stays_one_when_slurmctld_counts_its_flag_up() -> None:
    """22.05: a job that went missing from its node, requeued, is printed as none of a batch script."""
    record = job("22.05", "missing-from-its-node-and-started-again")
    assert (record.state, record.restarts, record.requeue) == (JobState.RUNNING, 1, True)
    assert record.stdout == record.stderr == f"/home/lab/out-{record.job_id}.txt"


@each
def test_a_job_that_slurm_requeued_after_a_lost_node(version: str) -> None:
    """COMPLETING first, then pending; the state NODE_FAIL shows in accounting only."""
    assert job(version, "node-fail-requeued-completing").restarts == 1
    record = job(version, "node-fail-requeued-pending")
    assert (record.state, record.restarts, record.nodes) == (JobState.PENDING, 1, ())
    rows = parse_accounting(text(version, "sacct-node-fail-requeued.txt"), record.job_id)
    assert rows[0].state is JobState.NODE_FAIL
    assert rows[0].nodes == ("n4",)


@each_json
@pytest.mark.parametrize("name", ["launch-failed-held", "completing-launch-failed-held"])
def test_a_job_that_slurm_could_not_launch_and_holds(version: str, name: str) -> None:
    """The code for the reason is that of any hold; whose it is stands in the words beside it."""
    record = job(version, name)
    assert (record.reason, record.why, record.restarts) == ("JobHeldUser", "launch failed requeued held", 1)
    assert held_by_slurm(record)
    assert not held_by_another(record)


@each
def test_a_failed_launch_in_accounting(version: str) -> None:
    """REQUEUED, which is read as PENDING, with its end; 24.11 and 26.05 also give a signal."""
    first, *_ = parse_accounting(text(version, "sacct-launch-failed-requeued.txt"), 1)
    assert (first.state, first.nodes) == (JobState.PENDING, ("n1", "n2"))
    assert first.start_time is not None
    assert first.end_time is not None


@each_json
@pytest.mark.parametrize(
    ("name", "words"),
    [("requeued-and-held-by-its-owner", "job requeued in held state"), ("held-by-its-owner-after-a-release", "")],
)
def test_a_job_that_its_owner_holds(version: str, name: str, words: str) -> None:
    """Also after a `requeuehold`, and after a release took the words of that away."""
    record = job(version, name)
    assert (record.reason, record.reason_text) == ("JobHeldUser", words)
    assert held_by_another(record)
    assert not held_by_slurm(record)


@each_json
def test_what_slurm_adds_to_a_reason(version: str) -> None:
    """From 24.11 on it names the signal; by 22.05 it is a launch failure, which is none."""
    record = job(version, "failed-no-such-folder")
    known = {"22.05": ("JobLaunchFailure", "")}
    expected = known.get(version, ("RaisedSignal", "RaisedSignal:53(Real-time signal 19)"))
    assert (record.state, (record.reason, record.reason_text)) == (JobState.FAILED, expected)
    assert not launch_failed(record)


@each_json
def test_nodes(version: str) -> None:
    """Idle, drained by us, draining with work, and lost."""
    by_name = nodes(version)
    assert by_name["n1"].eligible
    ours = by_name["n2"]
    assert ours.draining
    assert ours.reason.startswith("relight:recover/lab/7/20261130T092712Z:gpu_fault: Xid 79 | ")
    assert ours.reason_user == "root"
    assert ours.reason_time is not None
    assert by_name["n3"].draining
    lost = by_name["n4"]
    assert lost.lost
    assert (lost.state, lost.reason) == (NodeState.DOWN, "Not responding")
    assert NodeFlag.NOT_RESPONDING in lost.flags
    assert lost.gres == "gpu:8"
    assert lost.boot_time is not None


@pytest.mark.parametrize(
    ("text", "codes"), [("142", {142}), ("1,3-5", {1, 3, 4, 5}), ("(null)", set()), ("", set()), ("x,7", {7})]
)
def test_exit_codes_that_slurm_itself_requeues(text: str, codes: set[int]) -> None:
    """As slurm.conf lists those for which Slurm itself queues a job again."""
    assert exit_codes(text) == codes
    config = f"SLURM_VERSION = 22.05.8\nRequeueExit = {text}\nRequeueExitHold = 99\n"
    assert parse_facts(config).requeue_exit == codes | {99}


@each_json
def test_where_slurmd_is_reached(version: str) -> None:
    """Address and port of each node, in every form; unknown where a document has none."""
    found = nodes(version)
    assert [found[name].address for name in sorted(found)] == ["127.0.1.1", "127.0.1.2", "127.0.1.3", "127.0.1.4"]
    ports = [found[name].port for name in sorted(found)]
    assert ports == list(range(ports[0], ports[0] + 4))
    (bare,) = parse_nodes('{"nodes": [{"name": "n1", "state": ["IDLE"], "address": null, "port": {"set": false}}]}')
    assert (bare.address, bare.port) == ("", 0)


@each_json
def test_a_completing_node(version: str) -> None:
    """A node that still ends a job has the flag."""
    found = parse_nodes(text(version, "nodes-completing.json"))
    assert any(NodeFlag.COMPLETING in node.flags for node in found)


@each
def test_facts(version: str) -> None:
    """What decides how to act, from `scontrol show config`."""
    facts = parse_facts(text(version, "config.txt"))
    assert facts.version.startswith(version)
    assert facts.accounting_storage == "accounting_storage/slurmdbd"
    assert "job_comment" in facts.accounting_store_flags
    assert facts.job_requeue
    assert facts.kill_wait in {timedelta(seconds=2), timedelta(seconds=30)}
    assert parse_version(text(version, "version.txt")) == tuple(map(int, version.split(".")))


def test_a_configuration_that_was_cut_off() -> None:
    """Half a configuration is no configuration with defaults."""
    with pytest.raises(GarbledError):
        parse_facts(text("22.05", "config.txt")[:3000])


@each
def test_accounting(version: str) -> None:
    """Who cancelled, and each execution of a requeued job."""
    (cancelled,) = parse_accounting(text(version, "sacct-cancelled.txt"), job(version, "cancelled").job_id)
    assert (cancelled.state, cancelled.cancelled_by) == (JobState.CANCELLED, "0")
    rows = parse_accounting(
        text(version, "sacct-requeued-after-failure.txt"),
        job(version, "pending-requeued-after-failure").job_id,
    )
    assert rows[0].end_time is not None
    assert [row.submit_time for row in rows] == sorted(row.submit_time for row in rows if row.submit_time)


@each
def test_accounting_of_one_array_task(version: str) -> None:
    """The array's own id also yields its other tasks: they are not this job's executions."""
    content = text(version, "sacct-array-with-other-tasks.txt")
    ids = {int(line.split("|")[0]) for line in content.splitlines() if line.split("|")[0].isdecimal()}
    assert len(ids) > 1
    for job_id in ids:
        assert {row.job_id for row in parse_accounting(content, job_id)} == {job_id}


@pytest.mark.parametrize("line", ["7|FAILED|1:0", "7|FAILED|1:0|2026|x|y|n1", "sacct: error: x"])
def test_a_garbled_accounting_row(line: str) -> None:
    """A cut line is not an execution."""
    with pytest.raises(GarbledError):
        parse_accounting(line, 7)


@each
def test_cpu_time(version: str) -> None:
    """All steps together; nothing is None and not zero."""
    assert parse_cpu_time(text(version, "sstat-two-steps.txt")) is not None
    assert parse_cpu_time("") is None
    assert parse_cpu_time("7.0|cpu=1-00:00:05,mem=1\n7.batch|cpu=00:01:00\n") == timedelta(days=1, seconds=65)


def test_clocks() -> None:
    """Slurm's durations."""
    assert parse_clock("02:09.500") == timedelta(minutes=2, seconds=9.5)
    assert parse_clock("x") is None


def test_exit_codes() -> None:
    """22.05 prints a wait status; a signal leaves no exit code."""
    assert read_exit_code(768) == (3, 0)
    assert read_exit_code(9) == (0, 9)
    assert read_exit_code(None) == (0, 0)
    assert read_exit_code({"status": ["SIGNALED"], "signal": {"id": {"set": True, "number": 9}}}) == (0, 9)


def test_numbers() -> None:
    """Not set and infinite are no numbers."""
    assert number({"set": True, "infinite": False, "number": 7}) == 7
    assert number({"set": False, "infinite": False, "number": 0}) is None
    assert number({"set": True, "infinite": True, "number": 0}) is None
    assert number(True) is None


def test_host_lists() -> None:
    """Slurm's order is kept: ranks are counted along it."""
    assert expand_hosts("n[1-3,7],gpu09") == ("n1", "n2", "n3", "n7", "gpu09")
    assert expand_hosts("z1,a[01-02]") == ("z1", "a01", "a02")
    assert expand_hosts("r[1-2]n[1-2]") == ("r1n1", "r1n2", "r2n1", "r2n2")
    assert expand_hosts("(null)") == expand_hosts("None assigned") == expand_hosts(None) == ()


@pytest.mark.parametrize(
    "hostile", ["@all", "n[1-1000000000]", "n[1-99999]m[1-99999]", "n1 n2", "$(id)", "n[1-", "*", "n[1-3", "n]1["]
)
def test_hostile_host_lists(hostile: str) -> None:
    """No group is looked up, nothing huge is built."""
    with pytest.raises(GarbledError):
        expand_hosts(hostile)


@given(st.text(alphabet="n0123456789[]-,@*!&^ ab_.", max_size=30))
def test_any_host_list_is_read_or_refused(line: str) -> None:
    """There is no third way out."""
    try:
        hosts = expand_hosts(line)
    except GarbledError:
        return
    assert len(hosts) <= 200_000


@given(st.text(max_size=200), st.booleans())
def test_any_pattern_has_a_path(pattern: str, expanded: bool) -> None:
    """A user's pattern never breaks the reading of the queue."""
    owner = OutputOf(7, None, None, "x/%j\n", "u", "n1", "/w")
    assert isinstance(resolve_output(pattern, owner, expanded=expanded), str)


def test_patterns_as_real_jobs_resolved_them() -> None:
    r"""The file that 22.05.8 and 24.11.5 wrote for `%n-%t-%s-%J-%A-%a-%5j-%3n-%q`, and for a backslash."""
    owner = OutputOf(17, None, None, "pat", "me", "n1", "/w")
    path = resolve_output("P_%x-%j-%N-%n-%t-%s-%u-%J-%A-%a-%5j-%3n-%q.o", owner, expanded=False)
    assert path == "/w/P_pat-17-n1-0-0-batch-me-17-17-4294967294-00017-000-%q.o"
    task = OutputOf(18, 18, 12, "pat", "me", "n1", "/w")
    assert resolve_output("%A-%a-%b-%5a-%5A", task, expanded=False) == "/w/18-12-2-00012-00018"
    assert resolve_output("/w/slurm-18_4294967294.out", task, expanded=True) == "/w/slurm-18_12.out"
    assert resolve_output("/w/slurm-18_4294967294.out", owner, expanded=True) == "/w/slurm-18_4294967294.out"
    assert resolve_output("R_\\%j.o", owner, expanded=False) == "/w/R_%j.o"
    assert resolve_output("/w/R_\\17.o", owner, expanded=True) == ""
    assert resolve_output("x-%N", owner._replace(batch_host=""), expanded=True) == ""


@given(st.text(max_size=300))
def test_any_error_text_is_one_of_ours(words: str) -> None:
    """Whatever Slurm says, the caller meets the contract's errors, in one printable line."""
    for error in (read_error(words), write_error(words)):
        assert isinstance(error, SlurmError)
        assert str(error).isprintable()


@given(st.text(max_size=300))
def test_any_document_is_read_or_refused(words: str) -> None:
    """Half a document is not a short one."""
    with pytest.raises(GarbledError):
        parse_jobs('{"jobs": [' + words)


def test_flags_of_a_failed_completing_job() -> None:
    """24.11 shows the base state beside COMPLETING."""
    record = job("24.11", "completing-after-failure")
    assert (record.state, JobFlag.COMPLETING in record.flags) == (JobState.FAILED, True)
