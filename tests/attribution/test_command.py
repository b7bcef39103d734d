"""`relight diagnose` as people and programs use it."""

import json
import os
import re

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
    for part in ("GPU failure", "rank 5 on node n3", "> 3  [rank5]", "restart without n3", "last training step 7"):
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
        (["--context", "nowhere.yaml", "."], 4, "nowhere.yaml: no such file"),
        (["--flight-recorder", "nowhere", "-"], 4, "nowhere: no such folder"),
        (["--html", "nowhere/x.html", "-"], 1, "nowhere/x.html: cannot be written: No such file"),
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


def test_a_folder_stands_for_its_files(run, tmp_path):
    """One log of each rank; an empty folder is said to be one."""
    (tmp_path / "rank-0.out").write_text("step 1/9 | loss 1.5\n")
    (tmp_path / "rank-1.out").write_text(ECC.replace("[rank5]: ", ""))
    said = json.loads(run("--json", tmp_path).stdout)
    assert (said["signature"], said["implicated"]["ranks"]) == ("CUDA_ECC", [1])
    (tmp_path / "empty").mkdir()
    assert (run(tmp_path / "empty").exit_code, "a folder without files" in run(tmp_path / "empty").output) == (1, True)


def test_context_names_the_node(run, tmp_path):
    """The allocation and the ranks' places, from a file."""
    file = tmp_path / "context.yaml"
    file.write_text("nodes: [n1, n2]\nrank_map: {5: {node: n2}}\n")
    said = json.loads(run("--json", "--context", file, "-", stdin=ECC).stdout)
    assert said["implicated"]["nodes"] == ["n2"]
    file.write_text("nods: [n1]\n")
    assert "unknown field 'nods'" in run("--context", file, "-", stdin=ECC).output


def test_flight_recorder_dumps_name_the_rank(run, tmp_path):
    """The one that the others wait for; what is no dump is said."""
    for rank in (0, 2):
        call = {"process_group": ["0", "default_pg"], "collective_seq_id": 1, "state": "started", "retired": False}
        entries = [{**call, "profiling_name": "nccl:all_reduce"}] if rank == 0 else []
        (tmp_path / f"trace_{rank}").write_text(json.dumps({"entries": entries}))
    hang = "[rank0]: Watchdog caught collective operation timeout: WorkNCCL(SeqNum=1, OpType=ALLREDUCE) ran for 6 ms"
    told = json.loads(run("--json", "--flight-recorder", tmp_path, "-", stdin=hang).stdout)
    assert told["implicated"]["ranks"] == [2]
    (tmp_path / "trace_1").write_bytes(b"cos\nsystem\n(S'true'\ntR.")
    assert "trace_1: not a flight-recorder dump" in run("--flight-recorder", tmp_path, "-", stdin=hang).output
    (tmp_path / "none").mkdir()
    assert "no file in it has a name that ends with a rank" in run("--flight-recorder", tmp_path / "none", "-").output


def test_a_page_for_a_ticket(run, tmp_path):
    """One file that loads nothing and runs nothing, whatever the log holds."""
    page = tmp_path / "why.html"
    evil = "[rank1]: ValueError: <script>alert(1)</script><img src=x onerror=y> & \"'\n"
    assert run("--html", page, "-", stdin=evil).exit_code == 0
    text = page.read_text()
    assert "&lt;script&gt;alert(1)" in text
    tags = set(re.findall(r"<([a-z0-9]+)", text))
    assert not tags & {"script", "img", "link", "iframe", "a", "form"}
    assert "url(" not in text


def test_bad_catalogue(run, log, tmp_path):
    """A wrong catalogue is refused with its reason."""
    file = tmp_path / "site.yaml"
    file.write_text("signatures: [{id: X}]")
    result = run("--catalogue", file, log)
    assert (result.exit_code, "entry X: role: Field required" in result.output) == (1, True)


def test_a_pattern_that_cannot_be_searched_for(run, log, tmp_path):
    """In a log that is large enough for the fast engine; `relight catalogue test` says more."""
    log.write_text("all is well\n" * 1_000_000)
    file = tmp_path / "site.yaml"
    rest = "role: root, category: NODE, entity: fan, action: STOP, action_if_it_repeats: STOP, weight: 0.9, tell: user"
    file.write_text(f"signatures: [{{id: X, {rest}, patterns: ['(b|c){{70000}}'], summary: a fan, source: ours}}]")
    result = run("--catalogue", file, log)
    assert (result.exit_code, "(b|c){70000}" in result.output, "Traceback" in result.output) == (1, True, False)


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
