"""`relight-submit` and who calls it: a script of that user's, with the environment it had, or nothing."""

import json
import os
import stat
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from relight.clients import relight_gate, relight_submit
from relight.clients.relight_submit import (
    AMBIGUOUS,
    DEFAULTS,
    REFUSED,
    SAID_NO,
    USAGE,
    Slurm,
    Stop,
    check_user,
    parse_environment,
    parse_request,
    read_settings,
)
from relight.clients.slurm import (
    AmbiguousWriteError,
    NotPermittedError,
    RefusedError,
    SlurmError,
    SlurmUnavailableError,
)
from relight.clients.slurm_process import Done, NotFinishedError, NotStartedError
from relight.clients.submit_wrapper import SubmitWrapper
from relight.domain.resubmission import Submission

STARTED = datetime(2026, 11, 30, 9, 0, tzinfo=UTC)
SENT = Submission(
    user="alice",
    script="#!/bin/sh\ntrain\n",
    name="train.sh",
    arguments=("--seed", "3"),
    options=("--job-name=train", "--no-requeue"),
    environment_of=7,
    started=STARTED,
)
GOOD = {
    "script": SENT.script,
    "name": "train.sh",
    "arguments": ["--seed", "3"],
    "options": ["--job-name=train", "--no-requeue"],
    "environment_of": 7,
    "started": int(STARTED.timestamp()),
}
ENVIRONMENT = """\
Environment used for 7 (must be batch to display)
--------------------------------------------------------------------------------
HOME=/home/alice
TOKEN=se=cret
LINES=one
two
SLURM_SUBMIT_DIR=/home/alice
BASH_FUNC_f%%=() {  echo a
}
"""


# --- the program ---


def test_a_request_is_checked_word_by_word() -> None:
    """What the caller sends as it should be passes."""
    assert parse_request(json.dumps(GOOD)) == GOOD


@pytest.mark.parametrize(
    ("changes", "status"),
    [
        ({"options": ["--uid=0"]}, REFUSED),
        ({"options": ["--wrap=rm"]}, REFUSED),
        ({"options": ["-J", "x"]}, REFUSED),
        ({"options": ["--export=ALL"]}, REFUSED),
        ({"options": [3]}, USAGE),
        ({"arguments": ["a\0b"]}, USAGE),
        ({"name": "../x"}, USAGE),
        ({"name": "-x"}, USAGE),
        ({"script": "echo"}, USAGE),
        ({"started": "now"}, USAGE),
        ({"environment_of": True}, USAGE),
    ],
)
def test_anything_else_is_refused(changes: dict[str, object], status: int) -> None:
    """Options that are no ones of a job's record, names that are no plain ones, other types."""
    with pytest.raises(Stop) as stop:
        parse_request(json.dumps(GOOD | changes))
    assert stop.value.status == status


@pytest.mark.parametrize("text", ["", "[]", "{", json.dumps({k: v for k, v in GOOD.items() if k != "script"})])
def test_what_is_no_request_is_said(text: str) -> None:
    """One line, no traceback."""
    with pytest.raises(Stop) as stop:
        parse_request(text)
    assert stop.value.status == USAGE


@pytest.mark.parametrize("uid", [0, 1, 999])
def test_nothing_is_submitted_as_root_or_the_system(uid: int) -> None:
    """Whatever sudo allows."""
    with pytest.raises(Stop, match="nothing is submitted as uid"):
        check_user(uid, DEFAULTS)
    check_user(1000, DEFAULTS)


def test_the_environment_is_read_as_accounting_prints_it() -> None:
    """Values of several lines too; Slurm's own variables are of the old job."""
    assert parse_environment(ENVIRONMENT) == {
        "HOME": "/home/alice",
        "TOKEN": "se=cret",
        "LINES": "one\ntwo",
        "BASH_FUNC_f%%": "() {  echo a\n}",
    }


@pytest.mark.parametrize("text", ["", "NONE\n", ENVIRONMENT + ENVIRONMENT, ENVIRONMENT.split("HOME", maxsplit=1)[0]])
def test_an_environment_that_is_not_certain_is_none(text: str) -> None:
    """Not kept, or of more jobs than one."""
    with pytest.raises(Stop) as stop:
        parse_environment(text)
    assert stop.value.status == REFUSED


@pytest.mark.parametrize(
    ("text", "mode", "said"),
    [
        ("least_uid = many\n", 0o644, "least_uid is a number"),
        ("bin = sbin\n", 0o644, "absolute path"),
        ("umask = 9\n", 0o644, "umask"),
        ("uid = 0\n", 0o644, "not a setting"),
        ("least_uid = 1\n", 0o666, "not root's alone"),
    ],
)
def test_settings_that_mean_nothing_are_refused(tmp_path: Path, text: str, mode: int, said: str) -> None:
    """And those that others could have written."""
    path = tmp_path / "relight-submit.conf"
    path.write_text(text)
    path.chmod(mode)
    with pytest.raises(Stop, match=said):
        read_settings(path, os.getuid())


@pytest.fixture
def slurm(tmp_path: Path) -> Slurm:
    """Simulated `sacct` and `sbatch`: files say what they print and with what status they end."""
    for name in ("sacct", "sbatch"):
        program = tmp_path / name
        program.write_text(
            "#!/bin/sh\n"
            f'case "$*" in *--env-vars*) cat {tmp_path}/environment; exit 0;; esac\n'
            f'for last; do :; done; echo "$0 $*" >> {tmp_path}/called; env > {tmp_path}/given\n'
            f"cat {tmp_path}/{name}.out; cat {tmp_path}/{name}.err >&2; exit $(cat {tmp_path}/{name}.status)\n"
        )
        program.chmod(program.stat().st_mode | stat.S_IXUSR)
        for suffix, text in {"out": "", "err": "", "status": "0"}.items():
            (tmp_path / f"{name}.{suffix}").write_text(text)
    (tmp_path / "environment").write_text(ENVIRONMENT)
    (tmp_path / "sacct.out").write_text("2026-11-29T09:00:00\n2026-11-30T09:00:00\n")
    return Slurm(DEFAULTS | {"bin": str(tmp_path), "timeout": "5"})


def test_it_is_submitted_held_with_the_environment_that_it_had(slurm: Slurm, tmp_path: Path) -> None:
    """The old job's, and nothing of the caller's."""
    (tmp_path / "sbatch.out").write_text("12;cluster\n")
    environment = slurm.environment(7, int(STARTED.timestamp()))
    assert slurm.submit(GOOD, environment) == "12"
    line = (tmp_path / "called").read_text().splitlines()[-1].split()
    assert line[1:5] == ["--parsable", "--hold", "--job-name=train", "--no-requeue"]
    assert Path(line[5]).name == "train.sh"
    assert not Path(line[5]).exists()
    assert line[6:] == ["--seed", "3"]
    given = (tmp_path / "given").read_text()
    assert "TOKEN=se=cret" in given
    assert "PYTEST" not in given


def test_another_job_of_that_number_has_another_environment(slurm: Slurm) -> None:
    """Accounting must show an execution that started when the attempt did."""
    with pytest.raises(Stop, match="another job 7, or none"):
        slurm.environment(7, int((STARTED + timedelta(hours=1)).timestamp()))


@pytest.mark.parametrize(
    ("says", "status"),
    [
        ({"err": "sbatch: error: Batch job submission failed: Invalid account", "status": "1"}, SAID_NO),
        ({"out": "queued"}, AMBIGUOUS),
    ],
)
def test_what_sbatch_says_is_passed_on(slurm: Slurm, tmp_path: Path, says: dict[str, str], status: int) -> None:
    """Its refusal in its words; what is no job id may have been a submission."""
    for suffix, text in says.items():
        (tmp_path / f"sbatch.{suffix}").write_text(text)
    with pytest.raises(Stop) as stop:
        slurm.submit(GOOD, {"HOME": "/"})
    assert stop.value.status == status


# --- who calls it ---


class Recorder:
    """A runner that notes what it is given, and answers so."""

    def __init__(self, answer: Done | Exception) -> None:
        self.answer = answer
        self.command: list[str] = []
        self.stdin = ""

    async def run(self, command: Sequence[str], timeout: timedelta, *, stdin: str = "") -> Done:  # noqa: ASYNC109
        self.command, self.stdin = [*command], stdin
        if isinstance(self.answer, Exception):
            raise self.answer
        return self.answer


async def test_the_user_is_named_and_nothing_stands_on_the_command_line() -> None:
    """Other users of the machine see command lines."""
    runner = Recorder(Done(0, "12\n", ""))
    wrapper = SubmitWrapper(("sudo", "-n", "-u", "{user}", "/usr/local/bin/relight-submit"), runner=runner)
    assert await wrapper.submit_anew(SENT) == 12
    assert runner.command == ["sudo", "-n", "-u", "alice", "/usr/local/bin/relight-submit"]
    assert parse_request(runner.stdin) == GOOD


@pytest.mark.parametrize(
    ("answer", "error"),
    [
        (Done(1, "", "sudo: a password is required"), NotPermittedError),
        (Done(1, "", "accounting does not answer"), SlurmUnavailableError),
        (Done(3, "", "the environment is not on record"), RefusedError),
        (Done(4, "", "sbatch: error: Invalid account or account/partition combination specified"), RefusedError),
        (Done(4, "", "sbatch: error: Socket timed out on send/recv operation"), AmbiguousWriteError),
        (Done(5, "", "sbatch gave no answer in time"), AmbiguousWriteError),
        (Done(255, "", ""), AmbiguousWriteError),
        (Done(0, "queued", ""), AmbiguousWriteError),
        (NotStartedError("no connection"), SlurmUnavailableError),
        (NotFinishedError("late"), AmbiguousWriteError),
    ],
)
async def test_what_a_failure_means(answer: Done | Exception, error: type[SlurmError]) -> None:
    """Whether something may have been submitted, and whether trying again helps."""
    with pytest.raises(SlurmError) as raised:
        await SubmitWrapper(("relight-submit", "{user}"), runner=Recorder(answer)).submit_anew(SENT)
    assert type(raised.value) is error


@pytest.mark.parametrize("changes", [{"user": "-g0"}, {"user": "a b"}, {"started": None}])
async def test_what_is_no_user_is_never_called(changes: dict[str, object]) -> None:
    """Nor where it is not known which job's environment it would be."""
    runner = Recorder(Done(0, "12", ""))
    with pytest.raises(RefusedError):
        await SubmitWrapper(("sudo", "-u", "{user}"), runner=runner).submit_anew(SENT.model_copy(update=changes))
    assert runner.command == []


def test_over_ssh_it_passes_the_gate_where_the_site_says_so() -> None:
    """As one line with a user's name; by default it does not."""
    line = "sudo -n -u alice /usr/local/bin/relight-submit"
    words, changes = relight_gate.command(line, relight_gate.DEFAULTS | {"submit": "yes"})
    assert (words[-1], changes) == ("/usr/local/bin/relight-submit", True)
    for bad, settings in ((line, {}), (f"{line} --help", {"submit": "yes"}), (f"{line[:10]} -g0", {"submit": "yes"})):
        with pytest.raises(relight_gate.Refusal):
            relight_gate.command(bad, relight_gate.DEFAULTS | settings)


def test_its_own_help_says_how_it_is_allowed() -> None:
    """The sudoers line stands there, as with relight-node."""
    assert relight_submit.__doc__
    assert "relight ALL=(%train) NOPASSWD: /usr/local/bin/relight-submit" in relight_submit.__doc__
