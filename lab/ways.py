"""The ways to reach a lab cluster's Slurm, each as a client of the contract `relight.clients.slurm.Slurm`."""

from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager

from relight.clients.slurm import Slurm
from relight.clients.slurm_commands import SlurmCommands
from relight.clients.slurm_process import LocalRunner
from relight.config.settings import SlurmSettings, Way
from relight.lab.cluster import Cluster
from relight.lab.errors import WayMissingError
from relight.lab.spec import Profile

WAYS = (Way.PYSLURM, Way.COMMANDS, Way.SSH)
"""`auto` is none of its own."""
TIMEOUT = SlurmSettings().timeout
"""As long as a worker is patient when nobody says otherwise."""


@asynccontextmanager
async def open_way(way: Way, cluster: Cluster) -> AsyncIterator[Slurm]:
    """Yield a client of a running cluster, and close it afterwards.

    It acts as the service's user in the production profile, as the current user otherwise.

    Raises:
        WayMissingError: when this machine or this Slurm does not have the way; the message says why.
    """
    async with _opener(way)(cluster) as slurm:
        yield slurm


def _opener(way: Way) -> Callable[[Cluster], AbstractAsyncContextManager[Slurm]]:
    if way is Way.COMMANDS:
        return _open_commands
    try:
        if way is Way.SSH:
            from relight.lab.way_ssh import open_ssh  # noqa: PLC0415 - needs an optional package

            return open_ssh
        from relight.lab.way_pyslurm import open_pyslurm  # noqa: PLC0415 - likewise
    except ModuleNotFoundError as error:
        raise WayMissingError(f"the Python package {error.name} is not installed") from error
    return open_pyslurm


@asynccontextmanager
async def _open_commands(cluster: Cluster) -> AsyncIterator[Slurm]:
    runner = LocalRunner(slurm_conf=str(cluster.slurm_conf))
    yield SlurmCommands(runner, run_as=service_prefix(cluster), timeout=TIMEOUT)


def service_prefix(cluster: Cluster) -> tuple[str, ...]:
    """Return the prefix that runs a command as the service's user in our environment; empty in the fast profile."""
    return as_user(cluster.users.service) if cluster.spec.profile is Profile.PRODUCTION else ()


def as_user(name: str) -> tuple[str, ...]:
    """Return the prefix that runs a command as that user (and the group of that name) in our environment."""
    return ("setpriv", f"--reuid={name}", f"--regid={name}", "--clear-groups")
