"""Installs `relight-node` for a lab cluster, inside the cluster's own folder."""

from pathlib import Path

from relight.clients import relight_node
from relight.lab.cluster import Cluster

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
    return (str(program),)
