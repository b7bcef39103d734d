"""The Python that runs the training job, made reachable for the users of a lab cluster.

A job's owner must be able to run our interpreter and import our packages. An interpreter below a closed home folder
(pyenv and uv put it there) is out of reach, so each node mounts what is closed at an open place. A node has a
mount namespace of its own: nothing of it is seen outside, and nothing is left when the node ends.
"""

import sys
import sysconfig
from dataclasses import dataclass
from pathlib import Path

from relight.lab.machine import closed_parents


@dataclass(frozen=True)
class Runtime:
    """How a job starts our Python."""

    python: Path
    """Absolute path, valid inside the nodes."""
    python_path: tuple[Path, ...] = ()
    """For PYTHONPATH; empty where `python` finds everything itself."""
    mounts: tuple[tuple[Path, Path], ...] = ()
    """What each node mounts, and where."""


OURS = Runtime(Path(sys.executable))
"""For jobs of the user that runs this process."""


def runtime_for_others(folder: Path) -> Runtime:
    """Return a runtime that every user can use in a cluster's nodes; mount points are below `folder`."""
    base, packages, lab = Path(sys.base_prefix), Path(sysconfig.get_path("purelib")), Path(__file__).parent
    executable = Path(sys.executable).resolve()
    if not any(closed_parents(path) for path in (base, packages, lab, executable.parent)):
        return OURS
    targets = {
        base: folder / "runtime/python",
        packages: folder / "runtime/packages",
        # Imports follow the folder's name: the code must be found as relight/lab.
        lab: folder / "runtime/code/relight/lab",
    }
    return Runtime(
        python=targets[base] / executable.relative_to(base.resolve()),
        python_path=(targets[packages], folder / "runtime/code"),
        mounts=tuple(targets.items()),
    )


def make_mount_points(runtime: Runtime) -> None:
    """Create the empty folders that the nodes mount on."""
    for _, target in runtime.mounts:
        target.mkdir(parents=True, exist_ok=True)
        for part in (target, *target.parents):
            if part.name == "runtime":
                break
            part.chmod(0o755)
        target.parent.chmod(0o755)


AS_USER = """
user=$1 home=$2 python=$3 path=$4 lib=$5; shift 5
while [ "$1" != -- ]; do mount --bind "$1" "$2" || exit; shift 2; done; shift
exec setpriv --reuid "$user" --regid "$user" --init-groups \
    env HOME="$home" PYTHONPATH="$path" LD_LIBRARY_PATH="$lib" "$python" "$@"
"""


def as_user(user: str, folder: Path, arguments: list[str]) -> list[str]:
    """Return the command that runs our Python with `arguments` as another user. Needs root.

    What that user cannot reach (see the module) is mounted below `folder`, in a mount namespace of the command's own.
    The interpreter finds its own libraries first there: with the system's libpython, psycopg finds no `_ssl` (seen).
    """
    base, packages, code = Path(sys.base_prefix), Path(sysconfig.get_path("purelib")), Path(__file__).parents[1]
    targets = {base: folder / "python", packages: folder / "packages", code: folder / "code/relight"}
    for target in targets.values():
        target.mkdir(parents=True, exist_ok=True)
    python = targets[base] / Path(sys.executable).resolve().relative_to(base.resolve())
    path = f"{targets[packages]}:{targets[code].parent}"
    mounts = [str(part) for pair in targets.items() for part in pair]
    lib = str(targets[base] / "lib")
    inner = [AS_USER, "sh", user, str(folder), str(python), path, lib, *mounts, "--", *arguments]
    return ["unshare", "--mount", "--propagation", "private", "sh", "-c", *inner]
