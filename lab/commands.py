"""Running a command as a user of this machine."""

import os
import pwd
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TypedDict

from relight.lab.errors import ClusterError
from relight.lab.packages import SYSTEM_FOLDERS


def command_environment(user: str | None, home: Path) -> dict[str, str]:
    """Return an environment for Slurm's commands, without another cluster's variables.

    For ourselves (None) it is this process's own otherwise, for another user a fresh one.
    """
    path = os.pathsep.join(dict.fromkeys([*os.environ.get("PATH", "").split(os.pathsep), *SYSTEM_FOLDERS]))
    if user is None:
        own = {name: value for name, value in os.environ.items() if not name.startswith(("SLURM_", "SBATCH_"))}
        return own | {"PATH": path}
    fresh = {"HOME": str(home), "USER": user, "LOGNAME": user, "SHELL": "/bin/sh", "LANG": "C.UTF-8"}
    return fresh | {"PATH": path}


def run_as(
    user: str | None,
    command: Sequence[str],
    *,
    environment: Mapping[str, str],
    folder: Path,
    stdin: str,
    timeout_s: float,
) -> subprocess.CompletedProcess[str]:
    """Run a command in a folder as that user (None: as ourselves) and return what it printed."""
    return subprocess.run(
        command,
        input=stdin,
        capture_output=True,
        text=True,
        check=False,
        timeout=timeout_s,
        env=dict(environment),
        cwd=folder,
        **_identity(user),
    )


class _Identity(TypedDict, total=False):
    user: int
    group: int
    extra_groups: list[int]


def _identity(user: str | None) -> _Identity:
    if user is None:
        return {}
    try:
        entry = pwd.getpwnam(user)
    except KeyError:
        raise ClusterError(f"this machine has no user {user!r}") from None
    if entry.pw_uid == os.geteuid():
        return {}
    return {"user": entry.pw_uid, "group": entry.pw_gid, "extra_groups": os.getgrouplist(user, entry.pw_gid)}
