"""`relight diagnose` as people and programs use it."""

import json
import os

import pytest
from click.testing import CliRunner

from relight.attribution.command import diagnose

ECC = "[rank5]: RuntimeError: CUDA error: uncorrectable ECC error encountered\n"


@pytest.fixture
def run():
    """Runs the command."""
    return lambda *arguments, stdin=None: CliRunner().invoke(diagnose, [str(one) for one in arguments], input=stdin)


@pytest.fixture
def log(tmp_path):
    """A job's log with one memory error."""
    file = tmp_path / "slurm-7.out"
    file.write_text("rank 5 -> node n3 local_rank 1 gpu 1\nstep 7/9 | loss 1.5\n" + ECC)
    return file


def test_for_people(run, log):
    """The verdict, the line with its number, and what to do next."""
    result = run(log)
    assert result.exit_code == 0
    for part in ("GPU failure", "rank 5 on node n3", "slurm-7.out:3", "restart without n3", "last training step 7"):
        assert part in result.output


def test_for_programs(run, log):
    """`--json` prints one object with the promised fields."""
    result = run("--json", log)
    said = json.loads(result.stdout)
    assert (said["category"], said["action"]) == ("GPU", "RESTART_EXCLUDING_NODE")
    assert said["implicated"] == {"ranks": [5], "nodes": ["n3"], "gpus": ["1"]}
    assert said["evidence"][0]["line"] == 3
    assert {"confidence", "summary", "hypotheses"} <= set(said)
    assert set(said["evidence"][0]) >= {"file", "line", "time", "text"}


def test_standard_input(run):
    """`-` reads standard input."""
    assert "CUDA_ECC" in run("-", stdin=ECC).output


def test_kernel_log(run, log, tmp_path):
    """A node's kernel log names the node; without the time of the interruption it drains nothing."""
    dmesg = tmp_path / "dmesg"
    dmesg.write_text("[Mon Nov 30 09:30:00 2026] NVRM: Xid (PCI:0000:1b:00): 79, pid=1, GPU has fallen off the bus.\n")
    said = json.loads(run("--json", "--kernel-log", f"n2={dmesg}", log).stdout)
    assert said["implicated"]["nodes"] == ["n2"]
    assert said["drain_nodes"] == []


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        (["nowhere.out"], 4, "nowhere.out: no such file"),
        (["."], 1, "is a directory"),
        ([], 2, "Missing argument"),
        (["--kernel-log", "n2", "x"], 2, "not NODE=FILE"),
        (["--catalogue", "nowhere.yaml", "x"], 4, "no such file"),
        (["a\x1b[31mb"], 4, "no such file"),
        (["a\x00b"], 1, "cannot be read"),
    ],
)
def test_bad_arguments(run, arguments, code, said):
    """What cannot be done is said in a line, with its own exit code and no traceback."""
    result = run(*arguments)
    assert (result.exit_code, said in result.output) == (code, True)
    assert "\x1b" not in result.output
    assert "Traceback" not in result.output


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
def test_no_permission(run, log):
    """A file that may not be read is said so."""
    log.chmod(0)
    assert run(log).exit_code == 1


def test_bad_catalogue(run, log, tmp_path):
    """A wrong catalogue is refused with its reason."""
    file = tmp_path / "site.yaml"
    file.write_text("signatures: [{id: X}]")
    result = run("--catalogue", file, log)
    assert (result.exit_code, "entry X: role: Field required" in result.output) == (1, True)


@pytest.mark.parametrize("data", [b"", b"\n\n", bytes(range(256)) * 2000, b"\x1f\x8b\x08" + bytes(50)])
def test_any_bytes(run, tmp_path, data):
    """Empty files and garbage are UNKNOWN, never a traceback; an empty one is called empty."""
    file = tmp_path / "odd"
    file.write_bytes(data)
    result = run(file)
    assert "Cause unknown" in result.output
    assert ("empty" in result.output) == (not data.strip())
    assert result.exit_code == (1 if data.startswith(b"\x1f\x8b\x08") else 0)


def test_escapes_do_not_reach_the_terminal(run):
    """Terminal commands and markup in a log are shown as nothing or as text."""
    result = run("-", stdin="[rank1]: ValueError: \x1b]0;title\x07\x1b[2Jx \x9b31m [bold]y[/bold] [/] \u202etxt\n")
    assert "ValueError" in result.output
    assert "[bold]y[/bold]" in result.output
    assert not any(sign in result.output for sign in "\x1b\x07\x9b\u202e")
