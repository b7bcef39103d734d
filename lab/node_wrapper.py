"""Installs `relight-node` and `relight-submit` inside a lab cluster's own folder, and sudo's leave to run them."""

import hashlib
from pathlib import Path

from relight.clients import relight_node, relight_submit
from relight.lab.cluster import Cluster
from relight.lab.packages import find_program
from relight.lab.spec import Profile

CPU_TIME_AS = ("sudo", "-n", "-u", "slurm", "--preserve-env=SLURM_CONF")
"""What precedes sstat in production: slurmd answers it to SlurmUser, not to an Operator (seen)."""
DRAINS_PER_HOUR = 20
"""The wrapper's own cap; the guard's is lower. Tests drain more often than a site would."""


def install_wrapper(cluster: Cluster) -> tuple[str, ...]:
    """Put the wrapper and its settings below the cluster's folder; return the command that runs it."""
    program = cluster.folder / "sbin/relight-node"
    program.parent.mkdir(exist_ok=True)
    program.write_text(Path(relight_node.__file__).read_text(encoding="utf-8"), encoding="utf-8")
    program.chmod(0o755)
    settings = cluster.folder / "etc/relight-node.conf"
    settings.write_text(
        f"slurm_conf = {cluster.slurm_conf}\n"
        f"drains_per_hour = {DRAINS_PER_HOUR}\n"
        f"state = {cluster.folder / 'state-relight-node.json'}\n",
        encoding="utf-8",
    )
    if cluster.spec.profile is not Profile.PRODUCTION:
        return (str(program),)
    file = _sudoers(cluster)
    service = cluster.users.service
    file.write_text(
        f"{service} ALL=(root) NOPASSWD: {program}\n{service} ALL=(slurm) NOPASSWD:SETENV: {find_program('sstat')}\n",
        encoding="utf-8",
    )
    file.chmod(0o440)
    return ("sudo", "-n", str(program))


def install_submitter(cluster: Cluster) -> tuple[str, ...]:
    """Let the service submit jobs as their owner, as a site may; return the command. Only in production."""
    program = cluster.folder / "bin/relight-submit"
    program.parent.mkdir(exist_ok=True)
    program.write_text(Path(relight_submit.__file__).read_text(encoding="utf-8"), encoding="utf-8")
    program.chmod(0o755)
    settings = cluster.folder / "etc/relight-submit.conf"
    # The lab's users are system users.
    settings.write_text(f"slurm_conf = {cluster.slurm_conf}\nleast_uid = 1\n", encoding="utf-8")
    file, users = _sudoers(cluster, "-submit"), cluster.users
    file.write_text(f"{users.service} ALL=({users.owner}) NOPASSWD: {program}\n", encoding="utf-8")
    file.chmod(0o440)
    return ("sudo", "-n", "-u", "{user}", str(program))


def remove_wrapper(cluster: Cluster) -> None:
    """Take sudo's leave back; the programs go with the cluster's folder."""
    if cluster.spec.profile is Profile.PRODUCTION:
        for name in ("", "-submit"):
            _sudoers(cluster, name).unlink(missing_ok=True)


def _sudoers(cluster: Cluster, name: str = "") -> Path:
    """Two files a cluster: several clusters may run side by side."""
    digest = hashlib.sha256(str(cluster.folder).encode()).hexdigest()[:12]
    return Path("/etc/sudoers.d") / f"relight-lab-{digest}{name}"
