"""Installing Slurm: what is asked for, and when it is refused."""

import os
from pathlib import Path

import pytest

from relight.lab import packages


@pytest.fixture
def only(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A machine whose only programs are those put into this folder."""
    monkeypatch.setattr(packages, "SYSTEM_FOLDERS", ())
    monkeypatch.setenv("PATH", str(tmp_path))
    return tmp_path


def add_program(folder: Path, name: str, script: str = "exit 0") -> None:
    """Put a program into a folder."""
    (folder / name).write_text(f"#!/bin/sh\n{script}\n")
    (folder / name).chmod(0o755)


def test_only_what_is_not_there_is_missing(only: Path) -> None:
    """A package counts as there when its program is; accounting and people need more."""
    assert packages.missing(accounting=False, production=False) == ["slurmctld", "slurmd", "slurm-client", "munge"]
    for program in ("slurmctld", "slurmd", "sbatch", "mariadbd"):
        add_program(only, program)
    assert packages.missing(accounting=False, production=False) == ["munge"]
    assert packages.missing(accounting=True, production=True) == ["munge", "slurmdbd", "slurm-wlm-mysql-plugin", "sudo"]


def test_nothing_is_done_when_nothing_is_missing(only: Path) -> None:
    """Not even root is asked for."""
    said: list[str] = []
    packages.install([], said.append)
    assert said == []


def test_a_machine_without_apt_is_refused(only: Path) -> None:
    """The error names the packages."""
    with pytest.raises(packages.SlurmNotInstallableError, match=r"not Debian.*slurmd munge"):
        packages.install(["slurmd", "munge"], print)


def test_an_ordinary_user_without_sudo_is_refused(only: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The error says what an administrator would run."""
    add_program(only, "apt-get")
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    with pytest.raises(packages.SlurmNotInstallableError, match="apt-get install slurmd"):
        packages.install(["slurmd"], print)


def test_a_failing_apt_tells_its_last_words(
    only: Path, monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """Each command is said before it is run, and the policy-rc.d that we wrote is gone afterwards."""
    policy = tmp_path_factory.mktemp("sbin") / "policy-rc.d"
    monkeypatch.setattr(packages, "POLICY", policy)
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    for program in ("tee", "chmod", "rm", "env"):
        (only / program).symlink_to(f"/usr/bin/{program}")
    add_program(only, "apt-get", f'test -x {policy} && echo "E: Unable to locate package slurmd"; exit 100')
    said: list[str] = []
    with pytest.raises(packages.SlurmNotInstallableError, match="Unable to locate"):
        packages.install(["slurmd"], said.append)
    assert any("apt-get" in line for line in said)
    assert not policy.exists()
