"""What lies in a cluster's folder before its daemons start."""

import os
import shutil
from pathlib import Path

from relight.lab import slurm_conf
from relight.lab.daemons import CONTROLLERS
from relight.lab.errors import ClusterError
from relight.lab.machine import closed_parents
from relight.lab.slurm_conf import Plan
from relight.lab.spec import ClusterSpec, Profile
from relight.lab.users import current_user

OPEN = ("etc", "log", "run", "work", "nodes")
"""Every user may look into these."""

OTHERS = ("state", "run/db", "gpu")


def make(spec: ClusterSpec) -> None:
    """Create the folders, and each node's empty kernel log."""
    for name in (*OPEN, *OTHERS):
        (spec.folder / name).mkdir(parents=True, exist_ok=True)
    if spec.profile is Profile.PRODUCTION:
        # Not left to mkdir, whose mode the umask cuts.
        for folder in (spec.folder, *(spec.folder / name for name in OPEN)):
            folder.chmod(0o755)
        if closed := closed_parents(spec.folder):
            raise ClusterError(f"the lab's users cannot reach {spec.folder}: no x for others on {closed[0]}")
    for node in spec.node_names:
        folder = spec.folder / "nodes" / node
        folder.mkdir(exist_ok=True)
        folder.chmod(0o755)
        (folder / "kern.log").write_text("")


def write_configuration(plan: Plan) -> None:
    """Write the configuration of every daemon, and munge's key unless there is one."""
    etc = plan.folder / "etc"
    (etc / "slurm.conf").write_text(slurm_conf.slurm_conf(plan))
    if plan.spec.backup:
        (etc / "hosts").write_text(slurm_conf.hosts(plan))
        for name in CONTROLLERS:
            (etc / f"slurm-{name}.conf").write_text(slurm_conf.controller_conf(plan, name))
    (etc / "gres.conf").write_text(slurm_conf.gres_conf(plan))
    if (text := slurm_conf.topology_conf(plan)) is not None:
        (etc / "topology.conf").write_text(text)
    if (text := slurm_conf.cgroup_conf(plan)) is not None:
        (etc / "cgroup.conf").write_text(text)
    (etc / "epilog.sh").write_text(slurm_conf.epilog(plan))
    (etc / "epilog.sh").chmod(0o755)
    _write_private(etc / "slurmdbd.conf", slurm_conf.slurmdbd_conf(plan).encode())
    if not (etc / "munge.key").exists():
        _write_private(etc / "munge.key", os.urandom(128))
    if plan.slurm_user != current_user():
        for path in (etc / "slurmdbd.conf", plan.folder / "state", plan.folder / "log", plan.folder / "run/db"):
            shutil.chown(path, plan.slurm_user)
    (plan.folder / "run/db").chmod(0o700)


def _write_private(file: Path, content: bytes) -> None:
    file.touch(mode=0o600)
    file.chmod(0o600)
    file.write_bytes(content)
