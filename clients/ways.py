"""The way that a site's settings take to Slurm, and all that goes along it: reads, writes, node changes, files."""

import asyncio
import sys
from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING

from relight.clients.files import Files, LocalFiles
from relight.clients.node_wrapper import NodeWrapper
from relight.clients.slurm import NodeControl, Slurm, SlurmError, SlurmVersionError, Submitter
from relight.clients.slurm_commands import SlurmCommands
from relight.clients.slurm_process import LocalRunner, Runner
from relight.clients.slurm_pyslurm import DELEGATED, PySlurm, why_missing
from relight.clients.submit_wrapper import SubmitWrapper
from relight.config.settings import Settings, SshSettings, Way

if TYPE_CHECKING:
    from relight.clients.ssh import SshConnection

FORCED = ("relight-node",)
"""The command on a connection of its own whose account's forced command is relight-node."""


class WayError(Exception):
    """The way that the settings ask for cannot be had on this machine; the text says what is missing."""


@dataclass(frozen=True)
class Access:
    """A cluster's Slurm, reached."""

    way: Way
    why: str
    """Why this way, for a person."""
    slurm: Slurm
    runner: Runner
    """Where Slurm's commands run."""
    nodes: NodeControl
    node_command: tuple[str, ...]
    node_runner: Runner
    """Where and how relight-node is called."""
    submitter: Submitter | None
    """Submits as a job's user; None where the site has not set that up."""
    files: Files
    """Where job logs, kernel logs and checkpoints are read."""

    @property
    def delegated(self) -> Mapping[str, str]:
        """What Slurm's commands do although the way is another, and why."""
        return DELEGATED if self.way is Way.PYSLURM else {}


@asynccontextmanager
async def open_access(settings: Settings) -> AsyncIterator[Access]:
    """Everything that reaches the cluster, by the way that the settings name or, with `auto`, the best there is.

    Nothing is asked of slurmctld that must succeed: a cluster that is down is reached by the same way once it is up.

    Raises:
        WayError: the way that is asked for cannot be had here.
    """
    slurm = settings.slurm
    async with AsyncExitStack() as stack:
        connection = _connection(slurm.ssh, slurm.timeout, stack) if slurm.ssh.host else None
        by_ssh = slurm.way is Way.SSH or (slurm.way is Way.AUTO and connection is not None)
        runner = _over(connection, settings) if by_ssh and connection else _here(settings)
        commands = SlurmCommands(
            runner, run_as=slurm.run_as, cpu_time_as=slurm.cpu_time_as or None, timeout=slurm.timeout
        )
        library = PySlurm(
            commands,
            python=slurm.pyslurm_python or sys.executable,
            slurm_conf=slurm.conf or None,
            run_as=slurm.run_as,
            timeout=slurm.timeout,
        )
        stack.push_async_callback(library.close)
        way, why = await _choose(settings, library)
        node_runner, node_command = runner, slurm.node_wrapper
        if slurm.node_ssh.host:
            # No environment: the forced command there is no shell.
            node_runner, node_command = _runner(_connection(slurm.node_ssh, slurm.timeout, stack), {}), FORCED
        yield Access(
            way=way,
            why=why,
            slurm=library if way is Way.PYSLURM else commands,
            runner=runner,
            nodes=NodeWrapper(node_command, runner=node_runner),
            node_command=node_command,
            node_runner=node_runner,
            submitter=SubmitWrapper(slurm.submit_wrapper, runner=runner) if slurm.submit_wrapper else None,
            files=_files(connection) if settings.logs.over_ssh and connection else LocalFiles(),
        )


async def _choose(settings: Settings, library: PySlurm) -> tuple[Way, str]:
    asked, python = settings.slurm.way, settings.slurm.pyslurm_python or sys.executable
    if asked is Way.PYSLURM and (missing := await asyncio.to_thread(why_missing, python)):
        raise WayError(f"slurm.way is pyslurm, and {missing}")
    if asked is not Way.AUTO:
        return asked, f"slurm.way is {asked}"
    if settings.slurm.ssh.host:
        return Way.SSH, "slurm.ssh.host is set"
    if missing := await asyncio.to_thread(why_missing, python):
        return Way.COMMANDS, missing
    try:
        await library.facts()
    except SlurmVersionError as error:
        return Way.COMMANDS, f"pyslurm does not fit this Slurm: {error}"
    except SlurmError:
        return Way.PYSLURM, "pyslurm is installed; Slurm gives no answer now"
    return Way.PYSLURM, "pyslurm is installed and works"


def _here(settings: Settings) -> LocalRunner:
    return LocalRunner(slurm_conf=settings.slurm.conf or None, bin_dir=settings.slurm.bin or None)


def _over(connection: "SshConnection", settings: Settings) -> Runner:
    from relight.clients.ssh import slurm_environment  # noqa: PLC0415 - see `_connection`

    return _runner(connection, slurm_environment(settings.slurm.conf or None, settings.slurm.bin or None))


def _runner(connection: "SshConnection", environment: Mapping[str, str]) -> Runner:
    from relight.clients.ssh import SshRunner  # noqa: PLC0415 - see `_connection`

    return SshRunner(connection, environment)


def _connection(ssh: SshSettings, timeout: timedelta, stack: AsyncExitStack) -> "SshConnection":
    try:
        # Only a site that uses SSH needs asyncssh installed.
        from relight.clients.ssh import SshConnection  # noqa: PLC0415
    except ModuleNotFoundError as error:
        raise WayError(f"SSH needs {error.name}: pip install 'relight[ssh]'") from error
    try:
        connection = SshConnection(**ssh.model_dump(), connect_timeout=timeout)
    except ValueError as error:
        raise WayError(f"slurm.ssh: {error}") from error
    stack.push_async_callback(connection.close)
    return connection


def _files(connection: "SshConnection") -> Files:
    from relight.clients.ssh_files import SftpFiles  # noqa: PLC0415 - see `_connection`

    return SftpFiles(connection)
