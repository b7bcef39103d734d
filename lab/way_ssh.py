"""A lab cluster's Slurm by its commands over SSH, through the gate, as the service would on a site."""

import asyncio
import secrets
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager

from relight.clients.slurm import Slurm
from relight.clients.slurm_commands import SlurmCommands
from relight.clients.ssh import SshConnection, SshRunner, slurm_environment
from relight.lab.cluster import Cluster
from relight.lab.sshd import Sshd, install_gate
from relight.lab.ways import TIMEOUT


@asynccontextmanager
async def open_ssh(cluster: Cluster) -> AsyncIterator[Slurm]:
    """Yield a client that logs in to a running cluster by SSH, and end connection and sshd afterwards.

    It logs in as the service's user in the production profile, as the current user otherwise.

    Raises:
        WayMissingError: when sshd cannot be run here; the message says why.
    """
    sshd = await asyncio.to_thread(start_gated, cluster, f"sshd-{secrets.token_hex(4)}", {"submit": "yes"})
    connection = SshConnection(**sshd.login)
    try:
        yield SlurmCommands(SshRunner(connection, slurm_environment(str(cluster.slurm_conf))), timeout=TIMEOUT)
    finally:
        await connection.close()
        await asyncio.to_thread(sshd.stop)


def start_gated(cluster: Cluster, name: str = "sshd", settings: Mapping[str, str] | None = None) -> Sshd:
    """Start an sshd whose account can do nothing but what the gate lets through."""
    sshd = Sshd.of(cluster, name)
    sshd.start()
    sshd.authorize(None, install_gate(cluster, f"relight-gate-{name}", settings))
    return sshd
