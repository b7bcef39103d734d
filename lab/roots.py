"""Debian roots: each is a folder that holds another Slurm beside this machine's own; nothing is upgraded here.

A root is made by mmdebstrap from this machine's own Debian mirror, once, and kept outside the repository. What runs in
it sees the root's files, and this machine's processes, network and host name. Its mounts are in a
mount namespace that ends with the last process in it, so nothing is left mounted.

    root = Root.named("forky")
    root.make(print)
    root.run(["slurmctld", "-V"])
"""

import json
import os
import re
import shutil
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from relight.lab import packages, roots_machine

Say = Callable[[str], None]

STAMP = ".relight-root"
"""Written last: a root without it is not whole."""

SPACE = 2_000_000_000
"""Bytes: a root takes 0.8 GB, packages on their way in, a Python environment and pyslurm the rest."""

PACKAGES = (
    *packages.CORE,
    *packages.ACCOUNTING,
    *packages.PRODUCTION,
    *("python3", "python3-venv", "python3-dev", "gcc", "libc6-dev", "libslurm-dev", "make"),
    *packages.SSH,
    *("ca-certificates", "iproute2", "mount", "passwd", "procps"),
)

# $1: the root, $2: the folder to run in; pairs of what to mount where; `--` and the command.
# "/" has to be a mount point inside, or unshare(1) in there cannot make its mounts private.
ENTER = """\
set -e
root=$1 folder=$2; shift 2
mount --bind "$root" "$root"
mount -t proc proc "$root/proc"
mount --rbind /dev "$root/dev"
mount --rbind /sys "$root/sys"
while [ "$1" != -- ]; do mount --rbind "$1" "$root$2"; shift 2; done; shift
exec chroot "$root" sh -c 'cd "$0" && exec "$@"' "$folder" "$@"
"""

SYSTEM_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
UNSHARE = ("unshare", "--mount", "--propagation", "private")


class RootError(Exception):
    """A root cannot be made or used; the message says why."""


@dataclass(frozen=True)
class Suite:
    """A Debian release."""

    name: str
    slurm: tuple[int, int]
    """Its Slurm when this was written, such as (24, 11)."""
    pyslurm: bool = False
    """Whether pyslurm builds against that Slurm."""


SUITES = {
    suite.name: suite
    for suite in (
        Suite("bookworm", (22, 5)),
        Suite("trixie", (24, 11)),
        Suite("forky", (26, 5), pyslurm=True),
    )
}


def folder_of_roots() -> Path:
    """Return where roots are kept: `RELIGHT_LAB_ROOTS`, or a folder of the system's cache."""
    return Path(os.environ.get("RELIGHT_LAB_ROOTS") or "/var/cache/relight/roots").absolute()


@dataclass(frozen=True)
class Root:
    """A Debian root, made or not; see the module."""

    suite: Suite
    path: Path

    @classmethod
    def named(cls, suite: str) -> Self:
        """Return the root of that suite; raise `RootError` for an unknown one."""
        if suite not in SUITES:
            raise RootError(f"no suite {suite!r}; there are {', '.join(SUITES)}")
        return cls(SUITES[suite], folder_of_roots() / suite)

    @property
    def lacking(self) -> str | None:
        """Why the root cannot be used as it is; None when it is whole."""
        try:
            made = json.loads((self.path / STAMP).read_text())
        except FileNotFoundError:
            return "not whole" if self.path.exists() else "not made"
        except PermissionError:
            return "only root may look into it"
        lacking = sorted(set(PACKAGES) - set(made["packages"]))
        return f"made without {' '.join(lacking)}" if lacking else None

    @property
    def slurm_version(self) -> str | None:
        """Its Slurm, such as 24.11.5; None when it is not whole."""
        return None if self.lacking else str(json.loads((self.path / STAMP).read_text())["slurm"])

    def check(self) -> None:
        """Raise `RootError` with what to do unless the root is whole."""
        if reason := self.lacking:
            raise RootError(f"the root {self.suite.name} is {reason}: `relight lab root make {self.suite.name}`")

    def make(self, say: Say) -> None:
        """Make the root unless it is whole; half a minute to a few, by the network.

        It is made beside its place and moved there when whole. Raises `RootError` with the reason.
        """
        if self.lacking is None:
            return
        try:
            self._make(say)
        except (packages.SlurmNotInstallableError, OSError, RootError) as error:
            raise RootError(f"the root {self.suite.name} cannot be made: {error}") from error

    def remove(self) -> None:
        """Remove it and whatever an interrupted making left."""
        for path in (self.path, *self._unfinished()):
            if path.exists():
                _remove(path)

    def command(
        self, command: Sequence[str], binds: Sequence[Path] = (), folder: str = "/", path: str = SYSTEM_PATH
    ) -> list[str]:
        """Return the command that runs another in the root, in that folder of the root.

        Each of `binds`, a file or folder of this machine, is at the same path inside. The environment is to be
        `environment(...)`'s. Raises `RootError` when the root is not whole, or for want of rights.
        """
        self.check()
        _check_rights()
        shared = [Path(file) for file in roots_machine.SHARED_FILES if Path(file).exists()]
        mounts = {place: place.resolve() for place in (*shared, *(bind.absolute() for bind in binds))}
        for place, source in mounts.items():
            self._make_mount_point(place, is_folder=source.is_dir())
        pairs = [str(part) for place, source in mounts.items() for part in (source, place)]
        inner = ["sh", "-c", ENTER, "sh", str(self.path.resolve()), folder, *pairs, "--", "env", f"PATH={path}"]
        return [*UNSHARE, *inner, *command]

    def environment(self, more: Mapping[str, str] | None = None) -> dict[str, str]:
        """Return the environment for `command`: this process's, without what names this machine's files."""
        return roots_machine.environment() | dict(more or {})

    def run(
        self,
        command: Sequence[str],
        *,
        binds: Sequence[Path] = (),
        folder: str = "/",
        path: str = SYSTEM_PATH,
        environment: Mapping[str, str] | None = None,
        capture: bool = False,
    ) -> subprocess.CompletedProcess[str]:
        """Run a command in the root (see `command`) and return how it ended, with its output where `capture`."""
        return subprocess.run(
            self.command(command, binds, folder, path),
            env=self.environment(environment),
            capture_output=capture,
            text=True,
            check=False,
        )

    # Inside

    def _make(self, say: Say) -> None:
        _check_rights()
        self.path.parent.mkdir(parents=True, exist_ok=True)
        for stale in self._unfinished():
            if not Path("/proc", stale.suffix[1:]).exists():
                _remove(stale)
        free = shutil.disk_usage(self.path.parent).free
        if free < SPACE:
            raise RootError(f"{self.path.parent} has {free / 1e9:.1f} GB free; {SPACE / 1e9:.1f} GB are needed")
        if (mirror := roots_machine.mirror()) is None:
            raise RootError("this machine's apt sources name no Debian archive")
        if packages.find_program("mmdebstrap") is None:
            packages.install(["mmdebstrap"], say)
        begin = time.monotonic()
        say(f"making a Debian root of {self.suite.name} in {self.path} (about 1 GB)")
        fresh = self.path.with_name(f"{self.suite.name}.{os.getpid()}")
        try:
            _bootstrap(self.suite.name, fresh, mirror)
            slurm = _slurm_version(fresh)
            (fresh / STAMP).write_text(json.dumps({"slurm": slurm, "packages": PACKAGES}) + "\n")
            if self.path.exists():
                _remove(self.path)
            fresh.rename(self.path)
        finally:
            if fresh.exists():
                _remove(fresh)
        say(f"made {self.suite.name} with Slurm {slurm} in {time.monotonic() - begin:.0f} s")

    def _unfinished(self) -> list[Path]:
        return [path for path in self.path.parent.glob(f"{self.suite.name}.*") if path.suffix[1:].isdigit()]

    def _make_mount_point(self, place: Path, *, is_folder: bool) -> None:
        inside = self.path / place.relative_to("/")
        if is_folder:
            inside.mkdir(parents=True, exist_ok=True)
        elif not inside.exists():
            inside.parent.mkdir(parents=True, exist_ok=True)
            inside.touch()


def _check_rights() -> None:
    if os.geteuid() != 0:
        raise RootError("chroot and mount need root")
    done = subprocess.run([*UNSHARE, "mount", "--bind", "/", "/"], capture_output=True, text=True, check=False)
    if done.returncode:
        raise RootError(f"this machine refuses mounts in a mount namespace: {done.stderr.strip()}")


def _bootstrap(suite: str, folder: Path, mirror: str) -> None:
    # Nothing of it outlives us, however we end: with us ends unshare(1), and with it the whole PID namespace.
    line = ["setpriv", "--pdeathsig", "KILL", *UNSHARE, "--pid", "--fork", "--kill-child", "--mount-proc"]
    line += ["mmdebstrap", "--quiet", "--variant=apt", "--mode=root", f"--include={','.join(PACKAGES)}"]
    line += [f"--aptopt={setting}" for setting in roots_machine.apt_settings()]
    line += ['--aptopt=APT::Install-Recommends "false"', '--aptopt=Acquire::Languages "none"']
    line += [f"--dpkgopt=path-exclude=/usr/share/{name}/*" for name in ("man", "locale", "doc")]
    line += [suite, str(folder), mirror]
    done = subprocess.run(line, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False)
    if done.returncode:
        told = [text for text in done.stderr.splitlines() if text.strip()][-8:]
        raise RootError("mmdebstrap failed:\n" + "\n".join(told))


def _slurm_version(folder: Path) -> str:
    done = subprocess.run(["chroot", str(folder), "slurmctld", "-V"], capture_output=True, text=True, check=True)
    found = re.search(r"\d+\.\d+\.\d+", done.stdout)
    if found is None:
        raise RootError(f"cannot tell Slurm's version from {done.stdout!r}")
    return found[0]


def _remove(folder: Path) -> None:
    """Remove a root; refuses one in which something still runs."""
    if users := _processes_in(folder):
        raise RootError(f"{folder} is in use by processes {' '.join(map(str, users))}")
    line = ["rm", "-rf", "--one-file-system", str(folder)]
    done = subprocess.run(line, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RootError(f"{folder} cannot be removed: {done.stderr.strip()}")


def _processes_in(folder: Path) -> list[int]:
    where = folder.stat()
    found = []
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            if os.path.samestat((entry / "root").stat(), where):
                found.append(int(entry.name))
        except OSError:
            continue
    return sorted(found)
