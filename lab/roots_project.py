"""The project inside a Debian root: a copy of its files, with a Python environment of that Debian."""

import hashlib
import json
import os
import re
import shutil
import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from relight.lab import roots_machine
from relight.lab.roots import SYSTEM_PATH, Root, RootError, Say

PROJECT = Path(__file__).resolve().parents[1]
INSIDE = "/opt/relight/src"
"""Where the project is inside a root."""
PATH = f"{INSIDE}/.venv/bin:{SYSTEM_PATH}"

LISTING = ("git", "ls-files", "--cached", "--others", "--exclude-standard", "-z")
MADE_HERE = re.compile(r"[.](?:venv|git|relight|lab|hypothesis)|__pycache__|build|dist|.*_cache|.*[.]egg-info")

BUILD_PYSLURM = "deploy/build-pyslurm.sh"
NO_SUCH_PYSLURM = 3
"""Its exit status where this Slurm is none that pyslurm builds against."""


@dataclass(frozen=True)
class Project:
    """This repository in a root."""

    root: Root

    def prepare(self, say: Say) -> str | None:
        """Bring files, Python environment and pyslurm up to date; quick when nothing has changed.

        Returns why there is no pyslurm where there should be one, else None. Raises `RootError`.
        """
        self.root.check()
        self.synchronise()
        self._make_environment(say)
        return self._build_pyslurm(say) if self.root.suite.pyslurm else None

    def command(self, command: Sequence[str], binds: Sequence[Path] = (), folder: str = INSIDE) -> list[str]:
        """Return the command that runs another in the project's folder, with its Python first on PATH."""
        return self.root.command(command, binds, folder, PATH)

    def run(
        self, command: Sequence[str], *, binds: Sequence[Path] = (), environment: Mapping[str, str] | None = None
    ) -> int:
        """Run a command in the project's folder and return its exit status."""
        done = self.root.run(command, binds=binds, folder=INSIDE, path=PATH, environment=environment)
        return done.returncode

    def synchronise(self) -> int:
        """Copy what changed, remove what is gone, and return how many files that was."""
        if not (PROJECT / "pyproject.toml").exists():
            raise RootError("roots hold a copy of the repository, and this Relight was not started from one")
        folder = self.root.path / INSIDE[1:]
        folder.mkdir(parents=True, exist_ok=True)
        known_file = folder.with_name("files.json")
        known: dict[str, list[int]] = json.loads(known_file.read_text()) if known_file.exists() else {}
        current = {name: _fingerprint(PROJECT / name) for name in sorted(source_files(PROJECT))}
        gone = [name for name in known if name not in current]
        changed = [name for name, mark in current.items() if known.get(name) != mark]
        for name in gone:
            (folder / name).unlink(missing_ok=True)
        for name in changed:
            _copy(PROJECT / name, folder / name)
        fresh = known_file.with_suffix(".new")
        fresh.write_text(json.dumps(current))
        fresh.rename(known_file)
        return len(gone) + len(changed)

    def _make_environment(self, say: Say) -> None:
        # The Makefile knows when the environment is out of date.
        stamp = ".venv/.relight-stamp"
        if self.run(["make", "--question", "--silent", stamp]) == 0:
            return
        self._run_told(["make", "setup"], f"Python environment of {self.root.suite.name}", say)

    def _build_pyslurm(self, say: Say) -> str | None:
        script = PROJECT / BUILD_PYSLURM
        if not script.exists():
            return f"there is no {BUILD_PYSLURM}"
        environment = self.root.path / INSIDE[1:] / ".venv"
        stamp, wanted = environment / ".pyslurm-stamp", hashlib.sha256(script.read_bytes()).hexdigest()
        if stamp.exists() and stamp.read_text() == wanted and any(environment.glob("lib/*/site-packages/pyslurm")):
            return None
        try:
            status = self._run_told([BUILD_PYSLURM, f"{INSIDE}/.venv/bin/python"], "pyslurm", say, NO_SUCH_PYSLURM)
        except RootError as error:
            return str(error)
        if status == NO_SUCH_PYSLURM:
            return f"pyslurm does not build against Slurm {self.root.slurm_version}"
        stamp.write_text(wanted)
        return None

    def _run_told(self, command: Sequence[str], what: str, say: Say, *accepted: int) -> int:
        """Run a command with pip's settings of this machine; raise `RootError` with its last words when it fails."""
        begin = time.monotonic()
        say(f"making: {what}")
        settings, places = roots_machine.pip_settings()
        done = self.root.run(command, binds=places, folder=INSIDE, path=SYSTEM_PATH, environment=settings, capture=True)
        if done.returncode not in (0, *accepted):
            told = "\n".join((done.stdout + done.stderr).splitlines()[-15:])
            raise RootError(f"{what}: `{' '.join(command)}` failed with exit status {done.returncode}:\n{told}")
        say(f"made: {what} in {time.monotonic() - begin:.0f} s")
        return done.returncode


def source_files(folder: Path) -> Iterator[str]:
    """Yield the repository's files, those not yet added included, as paths below `folder`."""
    try:
        done = subprocess.run(LISTING, cwd=folder, capture_output=True, check=False)
        names = done.stdout.decode().split("\0") if done.returncode == 0 else []
    except FileNotFoundError:
        names = []
    # Without git, as in an unpacked archive: all but what is made here.
    names = names or list(_walk(folder))
    yield from (name for name in names if name and ((folder / name).is_file() or (folder / name).is_symlink()))


def _walk(folder: Path) -> Iterator[str]:
    for parent, folders, files in os.walk(folder):
        here = Path(parent).relative_to(folder)
        folders[:] = [name for name in folders if not MADE_HERE.fullmatch(name)]
        # os.walk lists a link to a folder as a folder.
        links = [name for name in folders if Path(parent, name).is_symlink()]
        yield from (str(here / name) for name in (*files, *links))


def _fingerprint(file: Path) -> list[int]:
    known = file.lstat()
    return [known.st_size, known.st_mtime_ns, known.st_mode]


def _copy(source: Path, target: Path) -> None:
    """Replace a file whole, so that nothing that runs it sees half of it; its time is now, for make(1)."""
    target.parent.mkdir(parents=True, exist_ok=True)
    fresh = target.with_name(f".{target.name}.fresh")
    fresh.unlink(missing_ok=True)
    shutil.copy(source, fresh, follow_symlinks=False)
    fresh.rename(target)
