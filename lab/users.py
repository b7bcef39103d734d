"""The people of a production-like lab: real Unix users, made when missing and kept until removed.

The accounts are system users without password, shell or home, as a package's users are.
"""

import os
import pwd
import subprocess

from pydantic import BaseModel, ConfigDict

from relight.lab.packages import find_program


class Users(BaseModel):
    """The Unix users of a production-like lab."""

    model_config = ConfigDict(frozen=True)

    owner: str = "relight-lab-owner"
    """Owns the training jobs."""
    other: str = "relight-lab-other"
    """A second researcher, with no right to the owner's jobs."""
    service: str = "relight-lab-svc"
    """Relight's own user; Slurm admin level Operator."""
    admin: str = "relight-lab-admin"
    """A person who runs the cluster; Slurm admin level Administrator."""

    @property
    def all(self) -> tuple[str, ...]:
        """Every name."""
        return (self.owner, self.other, self.service, self.admin)


USERS = Users()


def exists(name: str) -> bool:
    """Return whether this machine has that Unix user."""
    try:
        pwd.getpwnam(name)
    except KeyError:
        return False
    return True


def create_users() -> None:
    """Create those of the lab's users that are missing. Needs root."""
    for name in USERS.all:
        if not exists(name):
            _as_admin("useradd", "--system", "--user-group", "--no-create-home", "--shell", "/usr/sbin/nologin", name)


def remove_users() -> None:
    """Remove the lab's users. Needs root; no lab cluster may be running."""
    for name in USERS.all:
        if exists(name):
            _as_admin("userdel", name)


def current_user() -> str:
    """Return the name of the user that runs this process."""
    return pwd.getpwuid(os.geteuid()).pw_name


def _as_admin(program: str, *arguments: str) -> None:
    # Two clusters that start at once both find the user missing; the second useradd (exit 9) is no failure.
    line = [find_program(program) or program, *arguments]
    done = subprocess.run(line, capture_output=True, text=True, check=False)
    if done.returncode not in (0, 9):
        raise OSError(f"`{' '.join(line)}` failed: {done.stderr.strip()}")
