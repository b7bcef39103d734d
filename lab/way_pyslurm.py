"""pyslurm as a way to a lab cluster's Slurm."""

import asyncio
import os
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from relight.clients.slurm import Slurm
from relight.clients.slurm_commands import SlurmCommands
from relight.clients.slurm_process import LocalRunner
from relight.clients.slurm_pyslurm import PySlurm, why_missing
from relight.lab.cluster import Cluster
from relight.lab.errors import WayMissingError
from relight.lab.ways import TIMEOUT, service_prefix

PYTHON = "RELIGHT_LAB_PYSLURM_PYTHON"
"""Names the Python that has pyslurm, where that is not this one."""


def pyslurm_python() -> str:
    """Return the Python that is to have pyslurm."""
    return os.environ.get(PYTHON, sys.executable)


@asynccontextmanager
async def open_pyslurm(cluster: Cluster) -> AsyncIterator[Slurm]:
    """Yield a client of a running cluster by pyslurm, and close it afterwards.

    Raises:
        WayMissingError: when there is no pyslurm here.
    """
    if why := await asyncio.to_thread(why_missing, pyslurm_python()):
        raise WayMissingError(why)
    conf, prefix = str(cluster.slurm_conf), service_prefix(cluster)
    commands = SlurmCommands(LocalRunner(slurm_conf=conf), run_as=prefix, timeout=TIMEOUT)
    slurm = PySlurm(commands, python=pyslurm_python(), slurm_conf=conf, run_as=prefix, timeout=TIMEOUT)
    try:
        yield slurm
    finally:
        await slurm.close()
