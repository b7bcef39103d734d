"""Running the contract on several Slurm versions: the table, what is skipped, and clusters of two versions at once."""

import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from relight.lab import machine, packages, versions
from relight.lab.cluster import Cluster, ClusterSpec
from relight.lab.processes import wait_until
from relight.lab.roots import SUITES, Root, RootError
from relight.lab.roots_project import Project
from relight.lab.versions_table import BEGIN, END, SKIPPED, TableError, merge, parse, render

DOCUMENT = f"# Ways\n\n{BEGIN}\n\n{END}\n\nMore.\n"
OLD = {"commands": {"requeue": "passed", "cancel": "failed"}, "ssh": {"requeue": "skipped: no sshd"}}

words = st.text("abc ,:", min_size=1).map(lambda text: " ".join(text.split())).filter(bool)
outcomes = st.sampled_from(["passed", "failed"]) | words.map(lambda reason: SKIPPED + reason)
ways = st.dictionaries(
    st.sampled_from(["commands", "ssh", "pyslurm"]),
    st.dictionaries(st.sampled_from(["requeue", "cancel", "hold"]), outcomes, min_size=1),
    min_size=1,
)
tables = st.dictionaries(st.sampled_from(["22.05.8", "24.11.5", "26.05.5"]), ways)


@given(tables)
def test_a_table_is_read_back_as_it_was_written(table: dict[str, dict[str, dict[str, str]]]) -> None:
    """So that what was not run this time stays."""
    assert parse(render(table)) == table


def test_the_table_reads_well() -> None:
    """Versions in order, a row for each operation and way, reasons as notes."""
    table = render({"24.11.5": {"ssh": {"requeue": "skipped: no\n  sshd"}}, "22.05.8": OLD})
    assert table == (
        "| operation | way | 22.05.8 | 24.11.5 |\n"
        "| --- | --- | --- | --- |\n"
        "| cancel | commands | FAILED | - |\n"
        "| requeue | commands | yes | - |\n"
        "| requeue | ssh | skipped (1) | skipped (2) |\n"
        "\n"
        "1. no sshd\n"
        "2. no sshd\n"
    ).replace("skipped (2)", "skipped (1)").replace("2. no sshd\n", "")


def test_a_version_takes_the_place_of_its_series_and_others_stay() -> None:
    """The text around the table is kept."""
    first = merge(DOCUMENT, {"22.05.8": OLD, "26.05.5": OLD})
    second = merge(first, {"26.05.6": {"commands": {"requeue": "passed"}}})
    assert second.startswith("# Ways\n")
    assert second.endswith("\n\nMore.\n")
    assert parse(second) == {"22.05.8": OLD, "26.05.6": {"commands": {"requeue": "passed"}}}
    assert merge(second, {}) == second


def test_a_document_without_a_place_for_the_table_is_told() -> None:
    """Nothing is guessed."""
    with pytest.raises(TableError, match="begin"):
        merge("# Ways\n", {})


@pytest.fixture
def document(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A document for the results, a Slurm version for this machine, no roots."""
    file = tmp_path / "ways.md"
    file.write_text(DOCUMENT)
    monkeypatch.setattr(versions, "DOCUMENT", file)
    monkeypatch.setattr(machine, "slurm_version", lambda: (22, 5))
    monkeypatch.setenv("RELIGHT_LAB_ROOTS", str(tmp_path / "roots"))
    return file


TESTS = """
import json, os
from pathlib import Path
def test_requeue():
    found = {{"requeue": "passed", "hold": f"skipped: {{os.getcwd()}}/x"}}
    told = {{"slurm": "22.05.8", "ways": {{"commands": found}}}}
    Path(os.environ["RELIGHT_CONTRACT_RESULTS"]).write_text(json.dumps(told))
    assert {passes}
"""


def some_tests(tmp_path: Path, *, passes: bool) -> str:
    """Tests that leave results as the contract's do."""
    file = tmp_path / "test_some.py"
    file.write_text(TESTS.format(passes=passes))
    return f"--tests=-q {file}"


def test_what_was_found_is_written_down(document: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """And all is well; no place on this machine is named. Other tests than the contract write nothing."""
    chosen = some_tests(tmp_path, passes=True)
    assert versions.main(["own", chosen]) == 0
    assert document.read_text() == DOCUMENT
    monkeypatch.setattr(versions, "CONTRACT", chosen.removeprefix("--tests="))
    assert versions.main(["own"]) == 0
    assert parse(document.read_text()) == {"22.05.8": {"commands": {"requeue": "passed", "hold": "skipped: x"}}}


def test_a_failing_test_fails_the_whole(document: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """The last line says where."""
    assert versions.main(["own", some_tests(tmp_path, passes=False)]) == 1
    assert "FAILED: Slurm 22.05" in capfd.readouterr().out.splitlines()[-1]


def test_a_root_that_cannot_be_made_is_skipped_with_the_reason(
    document: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """For all suites but this machine's own; told at the end, and no failure."""
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    assert versions.main([some_tests(tmp_path, passes=True)]) == 0
    told = [line.partition(": ")[2] for line in capfd.readouterr().out.splitlines()[-2:]]
    reason = "cannot be made: chroot and mount need root"
    assert told == [f"SKIPPED: {suite}: the root {suite} {reason}" for suite in ("trixie", "forky")]


def test_an_interrupted_run_waits_for_its_tests(tmp_path: Path) -> None:
    """SIGTERM reaches the tests as an interrupt, and they take down what they have up before the run ends."""
    file = tmp_path / "test_long.py"
    file.write_text(
        "import time, pytest\nfrom pathlib import Path\n@pytest.fixture\ndef up():\n    yield\n"
        "    Path(__file__).with_name('down').touch()\n"
        "def test_long(up):\n    Path(__file__).with_name('up').touch()\n    time.sleep(600)\n"
    )
    code = "import sys; from relight.lab import versions, machine; machine.slurm_version = lambda: (22, 5)\n"
    code += "try:\n    versions.main(sys.argv[1:])\nexcept KeyboardInterrupt:\n    sys.exit(130)\n"
    with subprocess.Popen([sys.executable, "-c", code, "own", f"--tests=-q {file}"], stdout=subprocess.PIPE) as run:
        wait_until((tmp_path / "up").exists, 60, "the test to begin")
        run.send_signal(signal.SIGTERM)
        assert run.wait(60) == 130
    assert (tmp_path / "down").exists()


@contextmanager
def lab_folder() -> Iterator[Path]:
    """A folder that all users reach and whose path is short."""
    folder = Path(tempfile.mkdtemp(prefix="lab-test-", dir="/tmp"))
    folder.chmod(0o755)
    try:
        yield folder
    finally:
        shutil.rmtree(folder)


IN_ROOT = """
import sys
from pathlib import Path
from relight.lab.cluster import Cluster, ClusterSpec
act, folder = sys.argv[1], Path(sys.argv[2])
if act == "start":
    Cluster(ClusterSpec(folder=folder, nodes=2)).start()
elif act == "stop":
    Cluster(ClusterSpec(folder=folder)).stop()
else:
    print(Cluster.load(folder).node_states())
"""
IDLE = "{'n1': 'idle', 'n2': 'idle'}\n"


@pytest.fixture
def other() -> Project:
    """The project in a root with another Slurm than this machine's: one that is made already."""
    if os.geteuid() != 0 or packages.missing(accounting=False, production=False):
        pytest.skip("needs root and the Slurm packages (relight.lab.packages.ensure)")
    own = machine.slurm_version()
    for suite in SUITES.values():
        root = Root.named(suite.name)
        if suite.slurm != own and root.lacking is None:
            project = Project(root)
            project.prepare(print)
            return project
    pytest.skip("no root is made (relight lab root make SUITE; `make test-slurm-versions` makes them)")


def in_root(project: Project, *arguments: str, binds: tuple[Path, ...] = ()) -> str:
    """Do something to a cluster inside the root."""
    line = project.command(["python", "-c", IN_ROOT, *arguments], binds)
    done = subprocess.run(line, env=project.root.environment(), capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.system
def test_clusters_of_two_versions_run_side_by_side(other: Project) -> None:
    """In folders of the same path, this machine's and the root's: each runs its jobs, and stops alone."""
    with lab_folder() as folder:
        ours = Cluster(ClusterSpec(folder=folder, nodes=2))
        try:
            ours.start()
            in_root(other, "start", str(folder))
            inside = other.root.path / str(folder)[1:]
            conf = {"SLURM_CONF": str(folder / "etc/slurm.conf")}
            version = other.root.run(["scontrol", "--version"], environment=conf, capture=True).stdout
            assert version.startswith("slurm")
            assert version != ours.run("scontrol", "--version").stdout
            script = ["sbatch", "--wait", "-N2", f"--output={folder}/out", "--wrap", "srun -N2 hostname; scontrol -V"]
            assert other.root.run(script, environment=conf, capture=True).returncode == 0
            ours.run(*script)
            assert (inside / "out").read_text().splitlines()[-1] == version.strip()
            assert (folder / "out").read_text().splitlines()[-1] != version.strip()
            ours.stop()
            assert in_root(other, "status", str(folder)) == IDLE
        finally:
            ours.stop()
            in_root(other, "stop", str(folder))
            shutil.rmtree(other.root.path / str(folder)[1:], ignore_errors=True)


@pytest.mark.system
def test_a_client_of_another_version_fails_or_sees_the_job(other: Project) -> None:
    """Never an empty list without an error, also as JSON: 22.05 then ends with exit status 0, and tells in `errors`."""
    with lab_folder() as folder:
        ours = Cluster(ClusterSpec(folder=folder, nodes=2))  # for its way of running commands
        try:
            in_root(other, "start", str(folder), binds=(folder,))
            conf = {"SLURM_CONF": str(folder / "etc/slurm.conf")}
            held = ["sbatch", "--hold", "--parsable", "--wrap", "true"]
            job = other.root.run(held, binds=[folder], environment=conf, capture=True).stdout.strip()
            assert job.isdigit()
            text = ours.run("squeue", "-h", "-o", "%i", check=False)
            assert text.returncode != 0 or text.stdout.split() == [job]
            told = ours.run("squeue", "--json", check=False)
            assert told.returncode != 0 or f'"job_id": {job}' in told.stdout or '"error_number"' in told.stdout
        finally:
            in_root(other, "stop", str(folder), binds=(folder,))
            (other.root.path / str(folder)[1:]).rmdir()  # the mount point


def test_an_unknown_name_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    """With exit status 2, before anything is run."""
    with pytest.raises(SystemExit, match="2"):
        versions.main(["sid"])
    assert "unknown: sid" in capsys.readouterr().err
    with pytest.raises(RootError):
        Root.named("sid")
