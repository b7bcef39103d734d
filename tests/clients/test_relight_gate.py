"""The forced command `relight-gate`: what Relight sends passes, word by word, and nothing else does."""

import contextlib
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Awaitable, Callable, Mapping, Sequence
from datetime import timedelta
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from relight.clients import relight_gate
from relight.clients.node_wrapper import NodeWrapper
from relight.clients.relight_gate import DEFAULTS, READS, SUBMITS, WRITES, Refusal, command, read_settings
from relight.clients.slurm import MOST_START_WAIT, SlurmError
from relight.clients.slurm_commands import SlurmCommands
from relight.clients.slurm_process import Done
from relight.clients.ssh import slurm_environment
from relight.domain.incidents import node_reason

RECORDED = Path(__file__).parent / "recorded"
ALL = DEFAULTS | {"submit": "yes"}
MARK = node_reason("recover/lab/7/20261130T092712Z", "gpu_fault", 'Xid 79; it\'s "off the bus"')
CPU_TIME_AS = ("sudo", "-n", "-u", "slurm", "--preserve-env=SLURM_CONF")


class Recorder:
    """A runner that notes what it is given, and answers squeue with recorded jobs."""

    def __init__(self, version: str, jobs: str, task: str) -> None:
        self.lines: list[list[str]] = []
        self._version, self._jobs, self._task = version, jobs, task

    async def run(self, command: Sequence[str], timeout: timedelta, *, stdin: str = "") -> Done:  # noqa: ASYNC109
        self.lines.append([*command])
        if command[0] == "squeue" and command[-1].startswith("--json"):
            return Done(0, self._jobs, "")
        if command[0] == "squeue":
            job = next(word for word in command if word.startswith("--jobs=")).partition("=")[2]
            return Done(0, f"{job}|{job}|{self._task}\n" if "--steps" not in command else "", "")
        if "--version" in command:
            return Done(0, f"slurm-wlm {self._version}\n", "")
        return Done(0, "7\n", "")


async def everything_sent(version: str, task: str) -> list[list[str]]:
    """Every line that the clients send to a release, for a job that is that task of an array, or for one outside."""
    jobs = (RECORDED / "22.05/jobs-running-on-two-nodes-with-json-comment.json").read_text()
    job = int(re.findall(r'"job_id": (\d+)', jobs)[0])
    runner = Recorder(version, jobs, task)
    slurm = SlurmCommands(runner)
    calls: list[Awaitable[object]] = [slurm.jobs(), slurm.nodes(), slurm.node("gpu-a100.rack_1"), slurm.facts()]
    calls += [slurm.job(job), slurm.steps(job), slurm.executions(job), slurm.batch_script(job), slurm.cpu_time(job)]
    calls += [SlurmCommands(runner, cpu_time_as=prefix).cpu_time(job) for prefix in (CPU_TIME_AS, CPU_TIME_AS[:-1])]
    calls += [slurm.requeue(job), slurm.exclude(job, ("n1", "n2")), slurm.exclude(job, ()), slurm.start_now(job)]
    calls += [slurm.start_after(job, wait) for wait in (timedelta(seconds=1), MOST_START_WAIT)]
    calls += [slurm.depend(job, "afterok:7:8_2?afterany:9_*,after:4+10,singleton")]
    calls += [slurm.hold(job), slurm.release(job), slurm.cancel(job)]
    calls += [slurm.submit_batch("#!/bin/sh\n", "/home/a b/it's"), slurm.submit_batch("#!/bin/sh\n", "/x", held=True)]
    for nodes in (NodeWrapper(runner=runner), NodeWrapper((DEFAULTS["relight_node"],), runner=runner)):
        calls += [nodes.drain("n1", MARK), nodes.undrain("n1"), nodes.down("n1", MARK)]
    for call in calls:
        with contextlib.suppress(SlurmError):  # most of the answers here are none
            await call
    return runner.lines


@pytest.mark.parametrize("version", ["22.05.8", "24.11.5", "26.05.5"])
@pytest.mark.parametrize("task", ["N/A", "3"])
async def test_everything_that_relight_sends_passes(version: str, task: str) -> None:
    """Each line of the clients, as the SSH runner sends it, is let through and means the same words."""
    lines = await everything_sent(version, task)
    lines += [["id", "-un"], ["sacctmgr", "-nP", "show", "user", "name=relight", "format=adminlevel"]]
    lines += [["sudo", "-n", DEFAULTS["relight_node"]]]
    lines += [["scontrol", "update", "JobId=7_[0,3-9:2]", "Dependency=afterok:6"]]
    assert {line[0] for line in lines} >= {"squeue", "scontrol", "sacct", "sstat", "scancel", "sbatch", "sudo"}
    for environment in (slurm_environment(), slurm_environment("/a b/slurm.conf", "/opt/slurm/bin"), {}):
        for words in lines:
            assert passed(environment, words) == words


def passed(environment: Mapping[str, str], words: list[str]) -> list[str]:
    """What is run for the words, with its programs by their names."""
    prefix = ["env", *(f"{name}={value}" for name, value in environment.items())] if environment else []
    ran, _ = command(shlex.join([*prefix, *words]), ALL)
    assert ran[0].startswith("/")
    short = [Path(ran[0]).name if ran[0].startswith("/usr/bin/") else ran[0], *ran[1:]]
    return ["sstat" if word == "/usr/bin/sstat" else word for word in short]


HOSTILE = [
    "",
    " ",
    "sh",
    "bash -c 'scancel 1'",
    "env",
    "env LC_ALL=C",
    "env LC_ALL=C sh",
    "env LD_PRELOAD=/tmp/x.so squeue --all --states=all --json",
    "env LC_ALL=de_DE squeue --all --states=all --json",
    "env env squeue --all --states=all --json",
    "env -S squeue --all --states=all --json",
    "LC_ALL=C squeue --all --states=all --json",
    "squeue",
    "squeue --all --states=all --json; id",
    "squeue --all --states=all --json\nid",
    "squeue --all --states=all --json && id",
    "squeue --all --states=all --json --start",
    "/tmp/squeue --all --states=all --json",
    "../squeue --all --states=all --json",
    "squeue --all --states=all --jobs=1,2 --json",
    "squeue --all --states=all --jobs=0 --json",
    "squeue --all --states=all '--jobs=1\n' --json",
    "scontrol show node",
    "scontrol shutdown",
    "scontrol reconfigure",
    "scontrol requeue 1,2",
    "scontrol requeue '1 2'",
    "scontrol requeue -1",
    "scontrol requeue \u0661",
    "scontrol requeuehold 1",
    "scontrol hold name=x",
    "scontrol update JobId=1 ExcNodeList=n1 Priority=1",
    "scontrol update JobId=1 'ExcNodeList=n1 Priority=1'",
    "scontrol update JobId=1 ExcNodeList=n[1-9]",
    "scontrol update JobId=1 StartTime=now+0",
    "scontrol update JobId=1 StartTime=now-1",
    "scontrol update JobId=1 StartTime=now+1hour",
    "scontrol update JobId=1 StartTime=now+1000000",
    "scontrol update JobId=1 StartTime=2030-01-01",
    "scontrol update JobId=1 UserId=0",
    "scontrol update JobId=1 'Dependency=afterok:7 Priority=1'",
    "scontrol update JobId=1 Dependency=",
    "scontrol update JobId=1 Dependency=afterok:7;id",
    "scontrol update JobId=1_[0-3 Dependency=afterok:7",
    "scontrol update NodeName=n1 State=DRAIN Reason=x",
    "scontrol write batch_script 1 /etc/passwd",
    "scontrol write batch_script 1",
    "sacct --duplicates --allocations --noheader --parsable2 --jobs=1 --starttime=1970-01-01 --format=a,--file=/x",
    "sstat --allsteps --noheader --parsable2 --jobs=1 --format=%x",
    "scancel",
    "scancel --user=root",
    "scancel -u root",
    "scancel 1 2",
    "sbatch --parsable --chdir=/x --uid=root",
    "sbatch --parsable --chdir=x",
    "sbatch --parsable --chdir=/x /tmp/script",
    "sudo -n -u root sstat --allsteps --noheader --parsable2 --jobs=1 --format=a",
    "sudo -n -u slurm scontrol show config",
    "sudo -n -u slurm --preserve-env sstat --allsteps --noheader --parsable2 --jobs=1 --format=a",
    "sudo -n sh",
    "sudo -n /usr/local/sbin/relight-node drain n1",
    "sudo -n /usr/local/sbin/relight-node drain n1 'admin: x'",
    "sudo -n /usr/local/sbin/relight-node drain n1,n2 'relight:x:y: z'",
    "sudo -n /usr/local/sbin/relight-node drain n1 'relight:x:y: z\n'",
    "sudo -n /usr/local/sbin/relight-node resume n1",
    "sudo -n /tmp/relight-node undrain n1",
    "relight-node undrain n1",
    "sacctmgr -nP show user name=x format=adminlevel -i",
    "sacctmgr modify user name=x set adminlevel=Admin",
    "id",
    "id -un root",
    "cat /etc/passwd",
    "rsync --server -logDtpre.iLsfxC . /",
    "scp -t /tmp",
    "internal-sftp\nid",
    "sftp-server",
    "sh /usr/lib/openssh/sftp-server",
    "'unbalanced",
]


@pytest.mark.parametrize("line", HOSTILE)
def test_what_relight_does_not_send_is_refused(line: str) -> None:
    """One word more, less or different is a refusal, whatever the settings allow."""
    with pytest.raises(Refusal):
        command(line, ALL)


WORDS = [word for line in (READS + WRITES + SUBMITS).splitlines() for word in line.split()]
SEEDS = [
    "n1",
    "1",
    "1_2",
    "relight:a:b: c",
    "/tmp",
    "JobId=1",
    "--jobs=7",
    "--format=a",
    "sudo",
    "-u",
    "root",
    "\n",
    "",
]


@given(st.lists(st.one_of(st.sampled_from([*WORDS, *SEEDS]), st.text(max_size=12)), max_size=9))
def test_any_words_are_a_whole_line_of_the_table_or_none(words: list[str]) -> None:
    """Whatever is put together, only words that fit one line of the table become a program, by its whole path."""
    try:
        ran, _ = command(shlex.join(words), ALL)
    except Refusal:
        return
    if ran[0].endswith("sftp-server"):
        assert ran[1:3] == ["-R", "-p"]
        return
    assert str(Path(ran[0]).parent) in ("/usr/bin", "/usr/local/sbin")
    assert len(ran) == len([word for word in words if word != "env"]) or words[0] == "env"
    assert not [word for word in ran if re.search(r"[\x00-\x1f\x7f]", word)]
    bare = [Path(ran[0]).name, *ran[1:]] if ran[0].startswith("/usr/bin/") else ran
    assert any(len(line.split()) == len(bare) for line in (READS + WRITES + SUBMITS).splitlines())


@given(st.text(max_size=200))
def test_no_line_is_an_error_of_ours(line: str) -> None:
    """Any text is a command or a refusal."""
    with contextlib.suppress(Refusal):
        command(line, ALL)


@given(st.text(max_size=60).filter(lambda words: any(sign.isprintable() and sign != " " for sign in words)))
def test_relights_own_marks_pass(words: str) -> None:
    """Whatever an incident says, its mark goes to relight-node unchanged."""
    printable = "".join(sign for sign in words if sign.isprintable())
    mark = node_reason("recover/lab/7/20261130T092712Z", "gpu_fault", printable)
    sent = ["sudo", "-n", DEFAULTS["relight_node"], "drain", "n1", mark]
    assert command(shlex.join(sent), ALL) == (["/usr/bin/sudo", *sent[1:]], True)


@pytest.mark.parametrize(
    ("line", "allowed", "by"),
    [
        ("sbatch --parsable --chdir=/x", "submit", "no by itself"),
        ("scancel 1", "write", "yes by itself"),
        ("scontrol requeue 1", "write", "yes by itself"),
        ("sudo -n /usr/local/sbin/relight-node undrain n1", "write", "yes by itself"),
        ("internal-sftp", "sftp", "yes by itself"),
        ("/usr/lib/openssh/sftp-server -f AUTH", "sftp", "yes by itself"),
    ],
)
def test_each_right_can_be_taken_away(line: str, allowed: str, by: str) -> None:
    """`write`, `submit` and `sftp` each decide for their own; reading Slurm always works."""
    assert by.startswith(DEFAULTS[allowed])
    command(line, DEFAULTS | {allowed: "yes"})
    with pytest.raises(Refusal):
        command(line, DEFAULTS | {allowed: "no"})
    command("squeue --all --states=all --json", DEFAULTS | {"write": "no", "submit": "no", "sftp": "no"})
    with pytest.raises(Refusal):
        command("sbatch --parsable --chdir=/x", ALL | {"write": "no"})


def test_sftp_only_reads() -> None:
    """Of SFTP the server itself refuses what is not reading, in two ways."""
    ran, changes = command("internal-sftp", ALL)
    assert ran[:3] == ["/usr/lib/openssh/sftp-server", "-R", "-p"]
    assert not changes
    assert not set(ran[3].split(",")) & {
        "write",
        "setstat",
        "fsetstat",
        "remove",
        "mkdir",
        "rmdir",
        "rename",
        "symlink",
    }


Run = Callable[..., "subprocess.CompletedProcess[str]"]


@pytest.fixture
def gate(tmp_path: Path) -> Run:
    """The program as sshd starts it, with its settings beside it."""
    program = tmp_path / "bin/relight-gate"
    for folder in ("bin", "etc", "slurm"):
        (tmp_path / folder).mkdir()
    program.write_text(Path(relight_gate.__file__).read_text())
    squeue = tmp_path / "slurm/squeue"
    squeue.write_text('#!/bin/sh\necho "$@"\nenv\ncat\n')
    squeue.chmod(0o755)
    (tmp_path / "etc/relight-gate.conf").write_text(f"bin = {tmp_path}/slurm\nslurm_conf = /x/slurm.conf\n")

    def run(line: str | None, *arguments: str, **environment: str) -> "subprocess.CompletedProcess[str]":
        original = {} if line is None else {"SSH_ORIGINAL_COMMAND": line}
        words = [sys.executable, "-I", str(program), *arguments]
        return subprocess.run(
            words, env={**original, **environment}, capture_output=True, text=True, check=False, input="in", timeout=20
        )

    return run


def test_the_program_that_is_run_has_a_clean_environment(gate: Run) -> None:
    """Nothing of the caller's environment reaches it; settings and account decide; its input is the caller's."""
    line = shlex.join(["env", "SLURM_CONF=/evil", "PATH=/evil", "squeue", "--all", "--states=all", "--json"])
    done = gate(line, SLURM_CONF="/evil", SQUEUE_STATES="CD", LD_LIBRARY_PATH="/evil", PYTHONPATH="/evil")
    assert done.returncode == 0
    assert done.stdout.startswith("--all --states=all --json\n")
    assert "SLURM_CONF=/x/slurm.conf\n" in done.stdout
    assert "LC_ALL=C\n" in done.stdout
    assert "TZ=UTC\n" in done.stdout
    assert "evil" not in done.stdout
    assert not re.search("SQUEUE_|LD_|PYTHON|SSH_", done.stdout)
    assert done.stdout.endswith("in")


@pytest.mark.parametrize("line", [None, "", "id", "scancel -u root", "x\x1b[31m\n\udcff"])
def test_a_refusal_is_status_126_and_one_plain_line(gate: Run, line: str | None) -> None:
    """Nothing is run, and what was asked for is not echoed to a terminal."""
    done = gate(line)
    assert (done.returncode, done.stdout) == (126, "")
    assert re.fullmatch(r"relight-gate: permission denied: [ -~]+\n", done.stderr)


def test_arguments_are_not_commands(gate: Run) -> None:
    """It takes no command from its own arguments: `--help` prints what it is for."""
    assert "authorized_keys" in gate("id -un", "--help").stdout
    assert gate("id -un", "id", "-un").returncode == 126


def test_a_program_that_is_not_there(gate: Run) -> None:
    """Said as a failure."""
    done = gate("sinfo --all --json")
    assert done.returncode == 126
    assert "No such file" in done.stderr


def test_what_runs_too_long_is_ended(gate: Run, tmp_path: Path) -> None:
    """The alarm outlives exec: nothing is left for ever when the connection is lost."""
    (tmp_path / "slurm/squeue").write_text("#!/bin/sh\nexec sleep 60\n")
    with (tmp_path / "etc/relight-gate.conf").open("a") as file:
        file.write("timeout = 1\n")
    assert gate("squeue --all --states=all --json").returncode == -14


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("colour = red", "not a setting"),
        ("write", "not a setting"),
        ("write = nope", "`yes` or `no`"),
        ("sftp = No", "`yes` or `no`"),
        ("bin = slurm/bin", "absolute"),
        ("timeout = -1", "number"),
    ],
)
def test_settings_that_mean_nothing_are_refused(tmp_path: Path, text: str, why: str) -> None:
    """A mistyped `no` does not become a yes."""
    file = tmp_path / "relight-gate.conf"
    file.write_text(f"# a comment\n\n{text}\n")
    with pytest.raises(Refusal, match=why):
        read_settings(str(file), os.getuid())


def test_settings_that_others_may_write_are_refused(tmp_path: Path) -> None:
    """A file of the group's, or of another owner than root or the program's, is not believed."""
    file = tmp_path / "relight-gate.conf"
    file.write_text("write = yes\n")
    file.chmod(0o664)
    with pytest.raises(Refusal, match="alone"):
        read_settings(str(file), os.getuid())
    file.chmod(0o644)
    assert read_settings(str(file), os.getuid()) == DEFAULTS
    if os.geteuid() == 0:
        os.chown(file, 1, 1)
        with pytest.raises(Refusal, match="alone"):
            read_settings(str(file), 0)
    assert read_settings(str(tmp_path / "none"), 0) == DEFAULTS


async def test_a_refusal_is_told_apart_from_a_failure() -> None:
    """SlurmCommands calls the gate's refusal `NotPermittedError`, for reads and writes."""
    from relight.clients.slurm import NotPermittedError

    class Refuses:
        async def run(self, command: Sequence[str], timeout: timedelta, *, stdin: str = "") -> Done:  # noqa: ASYNC109
            return Done(126, "", "relight-gate: permission denied: not a command of Relight's\n")

    slurm = SlurmCommands(Refuses())
    for call in (slurm.jobs(), slurm.batch_script(1), slurm._write("scancel", "1")):
        with pytest.raises(NotPermittedError):
            await call
