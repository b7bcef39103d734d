"""Debian roots: what they take from the machine, when they cannot be made, and what runs in them."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner

from relight.lab import roots, roots_machine, roots_project
from relight.lab.cli_roots import root as commands
from relight.lab.processes import Process, wait_until
from relight.lab.roots import PACKAGES, STAMP, Root, RootError
from relight.lab.roots_project import Project, source_files

needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="mount and chroot need root")


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of roots, empty."""
    monkeypatch.setenv("RELIGHT_LAB_ROOTS", str(tmp_path / "roots"))
    return tmp_path / "roots"


def stamp(root: Root, packages: tuple[str, ...] = PACKAGES) -> None:
    """Make a root look whole."""
    root.path.mkdir(parents=True, exist_ok=True)
    (root.path / STAMP).write_text(json.dumps({"slurm": "26.05.5", "packages": packages}))


def test_an_unknown_suite_is_told() -> None:
    """The error lists those there are."""
    with pytest.raises(RootError, match="bookworm, trixie, forky"):
        Root.named("sid")


def test_only_a_stamped_root_with_all_packages_is_whole() -> None:
    """An interrupted one, and one of an older Relight that took fewer packages, say what they lack."""
    root = Root.named("forky")
    assert (root.lacking, root.slurm_version) == ("not made", None)
    root.path.mkdir(parents=True)
    assert root.lacking == "not whole"
    stamp(root, PACKAGES[1:])
    assert root.lacking == f"made without {PACKAGES[0]}"
    stamp(root)
    assert (root.lacking, root.slurm_version) == (None, "26.05.5")


def test_a_whole_root_is_kept() -> None:
    """Making it again does nothing."""
    root = Root.named("forky")
    stamp(root)
    said: list[str] = []
    root.make(said.append)
    assert said == []


def test_an_ordinary_user_is_told_that_root_is_needed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Before anything is done."""
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    with pytest.raises(RootError, match=r"root forky cannot be made: .* need root"):
        Root.named("forky").make(print)


@needs_root
def test_too_little_space_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    """With what there is and what is needed."""
    monkeypatch.setattr(roots, "SPACE", 10**18)
    with pytest.raises(RootError, match=r"cannot be made: .* GB free; 1000000000.0 GB are needed"):
        Root.named("forky").make(print)


@needs_root
def test_a_machine_that_is_not_debian_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    """There is no mirror to take a root from."""
    monkeypatch.setattr(roots_machine, "mirror", lambda: None)
    with pytest.raises(RootError, match="name no Debian archive"):
        Root.named("forky").make(print)


@needs_root
def test_a_failed_making_leaves_nothing_and_tells_why(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither what it had made so far, nor what an interrupted one had left, looks like a root later."""
    programs = tmp_path / "bin"
    programs.mkdir()
    script = programs / "mmdebstrap"
    script.write_text('#!/bin/sh\nfor word; do last=$folder folder=$word; done\nmkdir -p "$last/etc"\n')
    script.write_text(script.read_text() + 'echo "E: cannot reach the mirror" >&2\nexit 1\n')
    script.chmod(0o755)
    monkeypatch.setenv("PATH", f"{programs}:{os.environ['PATH']}")
    monkeypatch.setattr(roots_machine, "mirror", lambda: "http://mirror.example/debian/")
    stale = folder / "forky.4194305"  # above the kernel's highest PID
    stale.mkdir(parents=True)
    with pytest.raises(RootError, match="cannot be made: mmdebstrap failed:\nE: cannot reach the mirror"):
        Root.named("forky").make(lambda _: None)
    assert list(folder.iterdir()) == []


@pytest.fixture
def apt(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of apt's sources; apt is set up with it and nothing else."""
    if not Path("/usr/bin/apt-get").exists():
        pytest.skip("no apt on this machine")
    (tmp_path / "sources").mkdir()
    config = tmp_path / "apt.conf"
    places = f'Dir::Etc::sourcelist "/dev/null";\nDir::Etc::sourceparts "{tmp_path}/sources";\n'
    config.write_text(f'{places}Dir::Etc::parts "/dev/null";\nAcquire::http::Proxy "http://proxy.example:3142";\n')
    monkeypatch.setenv("APT_CONFIG", str(config))
    return tmp_path / "sources"


def test_the_mirror_is_that_of_the_apt_sources(apt: Path) -> None:
    """In both formats; the security archive and third parties are passed over."""
    assert roots_machine.mirror() is None
    (apt / "a.list").write_text(
        "deb http://mirror.example/debian-security bookworm-security main\n"
        "deb [arch=amd64] https://vendor.example/apt stable main\n"
    )
    assert roots_machine.mirror() is None
    (apt / "b.sources").write_text(
        "Types: deb\nURIs: http://mirror.example/debian\nSuites: bookworm\nComponents: main\n"
    )
    assert roots_machine.mirror() == "http://mirror.example/debian/"


def test_the_proxy_of_apt_is_taken_over(apt: Path) -> None:
    """As an option that mmdebstrap takes."""
    assert 'Acquire::http::Proxy "http://proxy.example:3142"' in roots_machine.apt_settings()


def test_settings_of_pip_are_taken_over_with_the_files_they_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The environment wins over a file; of a local index, what lies beside it is needed too."""
    (tmp_path / "index/simple").mkdir(parents=True)
    (tmp_path / "limits.txt").touch()
    config = tmp_path / "pip.conf"
    config.write_text(
        f"[global]\ntimeout = 10\nconstraint = {tmp_path}/limits.txt\ntrusted-host =\n  a.example\n  b.example\n"
        f"extra-index-{'url'} = file://{tmp_path}/index/simple\n"
    )
    for name in [name for name in os.environ if name.startswith("PIP_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("PIP_CONFIG_FILE", str(config))
    monkeypatch.setenv("PIP_TIMEOUT", "20")
    settings, places = roots_machine.pip_settings()
    assert settings["PIP_TIMEOUT"] == "20"
    assert settings["PIP_TRUSTED_HOST"] == "a.example b.example"
    assert {tmp_path / "index", tmp_path / "limits.txt"} <= set(places)


def test_variables_that_name_files_of_this_machine_stay_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """Proxies pass."""
    monkeypatch.setenv("PYTHONPATH", "/somewhere")
    monkeypatch.setenv("SLURM_CONF", "/somewhere/slurm.conf")
    monkeypatch.setenv("https_proxy", "http://proxy.example")
    inside = Root.named("forky").environment({"MORE": "1"})
    assert {"PYTHONPATH", "SLURM_CONF"}.isdisjoint(inside)
    assert (inside["https_proxy"], inside["MORE"]) == ("http://proxy.example", "1")


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A small repository, unpacked from an archive: without git."""
    source = tmp_path / "source"
    for name in ("lab/cluster.py", ".ci/run", ".venv/bin/python", "lab/__pycache__/x.pyc", "relight.egg-info/PKG-INFO"):
        (source / name).parent.mkdir(parents=True, exist_ok=True)
        (source / name).write_text(name)
    (source / "pyproject.toml").touch()
    (source / ".ci/run").chmod(0o755)
    (source / "relight").symlink_to("lab")
    monkeypatch.setattr(roots_project, "PROJECT", source)
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(tmp_path))
    return source


def test_without_git_what_was_made_here_is_no_source(project: Path) -> None:
    """Environments, caches and build outputs."""
    assert set(source_files(project)) == {"lab/cluster.py", ".ci/run", "pyproject.toml", "relight"}


def test_with_git_new_files_count_and_ignored_and_deleted_ones_do_not(project: Path) -> None:
    """As `git add --all` would have it."""
    (project / ".gitignore").write_text(".venv/\n__pycache__/\n*.egg-info/\n")
    git = ("git", "-c", "safe.directory=*", "-C", str(project))
    subprocess.run([*git, "init", "--quiet"], check=True)
    (project / "gone.py").touch()
    subprocess.run([*git, "add", "gone.py"], check=True)
    (project / "gone.py").unlink()
    assert set(source_files(project)) == {"lab/cluster.py", ".ci/run", ".gitignore", "pyproject.toml", "relight"}


def test_the_copy_follows_the_repository(project: Path) -> None:
    """Only what changed is copied; what is gone is removed, and nothing else."""
    copy = Project(Root.named("forky"))
    inside = copy.root.path / roots_project.INSIDE[1:]
    assert copy.synchronise() == 4
    assert copy.synchronise() == 0
    assert os.access(inside / ".ci/run", os.X_OK)
    assert (inside / "relight").readlink() == Path("lab")
    (inside / ".venv").mkdir()
    (project / "lab/cluster.py").write_text("changed")
    (project / ".ci/run").unlink()
    assert copy.synchronise() == 2
    assert (inside / "lab/cluster.py").read_text() == "changed"
    assert not (inside / ".ci/run").exists()
    assert (inside / ".venv").exists()


# A root without packages: its programs are this machine's, mounted.
PROGRAMS = (Path("/usr"),)


@pytest.fixture
def bare() -> Iterator[Root]:
    """A root in which commands run, for which nothing is downloaded."""
    root = Root.named("forky")
    stamp(root)
    for name in ("proc", "dev", "sys", "etc", "tmp", "opt/here", roots_project.INSIDE[1:]):
        (root.path / name).mkdir(parents=True)
    for name in ("bin", "sbin", "lib", "lib64"):
        (root.path / name).symlink_to(f"usr/{name}")
    yield root
    assert str(root.path) not in Path("/proc/mounts").read_text()


@needs_root
def test_a_command_sees_the_root_and_nothing_stays_mounted(bare: Root, tmp_path: Path) -> None:
    """Its folder, a bound file of ours, this machine's processes; output and exit status come back."""
    (tmp_path / "mine").write_text("hello\n")
    script = "pwd; cat $1; ls /opt/here/..; ls -d /proc/$2 /dev/null; unshare --mount true; exit 7"
    command = ["sh", "-c", script, "sh", f"{tmp_path}/mine", str(os.getpid())]
    done = bare.run(command, binds=[*PROGRAMS, tmp_path], folder="/opt/here", capture=True)
    assert done.returncode == 7, done.stderr
    assert done.stdout.split() == ["/opt/here", "hello", "here", "relight", "/dev/null", f"/proc/{os.getpid()}"]


@needs_root
def test_a_root_in_use_is_not_removed(bare: Root) -> None:
    """The error names the processes; once they have ended it can be removed."""
    line = bare.command(["sh", "-c", "echo ready; exec sleep 600"], PROGRAMS)
    with subprocess.Popen(line, env=bare.environment(), stdout=subprocess.PIPE) as sleeper:
        try:
            assert sleeper.stdout is not None
            assert sleeper.stdout.readline() == b"ready\n"
            with pytest.raises(RootError, match=f"in use by processes.* {sleeper.pid}"):
                bare.remove()
        finally:
            sleeper.kill()
    bare.remove()
    assert not bare.path.exists()


RUN = "from relight.lab import roots_project as p; from relight.lab.cli_roots import root\n"
RUN += "p.Project.prepare = lambda *_: None; root()"


@needs_root
def test_signals_and_exit_status_pass_through_the_command(bare: Root) -> None:
    """`relight lab root run` becomes the command: a SIGTERM reaches it, and its exit status is seen outside."""
    script = "trap 'exit 9' TERM; echo ready; while :; do sleep 0.1; done"
    # A click command of ours without the project's preparation, which a bare root has no use for.
    line = [sys.executable, "-c", RUN, "run", "forky", "--bind", "/usr", "--", "sh", "-c", script]
    with subprocess.Popen(line, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"ready\n"
        process.send_signal(signal.SIGTERM)
        assert process.wait(30) == 9


@needs_root
def test_what_is_started_may_outlive_the_command(bare: Root) -> None:
    """A cluster's daemons stay, with their root."""
    done = bare.run(["sh", "-c", "setsid sleep 600 >/dev/null 2>&1 & echo $!"], binds=PROGRAMS, capture=True)
    daemon = Process.of(int(done.stdout))
    assert daemon is not None
    try:
        wait_until(lambda: Path(f"/proc/{daemon.pid}/comm").read_text() == "sleep\n", 10, "the daemon")
        assert Path(f"/proc/{daemon.pid}/root").samefile(bare.path)
    finally:
        daemon.kill()


def test_the_list_tells_what_is_whole_and_what_is_lacking(folder: Path) -> None:
    """One JSON object a suite, or a line."""
    stamp(Root.named("forky"))
    (folder / "trixie").mkdir()
    done = CliRunner().invoke(commands, ["list", "-o", "json"])
    listed = {told["suite"]: (told["slurm"], told["lacking"]) for told in map(json.loads, done.output.splitlines())}
    assert listed == {
        "bookworm": (None, "not made"),
        "trixie": (None, "not whole"),
        "forky": ("26.05.5", None),
    }
    assert "forky     26.05.5" in CliRunner().invoke(commands, ["list"]).output


def test_a_root_that_is_not_made_is_told_with_what_to_do() -> None:
    """One line, exit status 1."""
    done = CliRunner().invoke(commands, ["run", "forky", "--", "true"])
    assert done.exit_code == 1
    assert "Error: the root forky is not made: `relight lab root make forky`" in done.output
