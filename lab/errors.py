"""What can go wrong with a lab cluster.

ClusterError            the cluster cannot do what was asked
├── NodeNotFoundError
└── SlurmCommandError   a Slurm command failed
state.ClusterNotFoundError, packages.SlurmNotInstallableError, ports.NoFreePortsError,
processes.WaitTimeoutError, processes.DaemonStartError
"""


class ClusterError(Exception):
    """The cluster cannot do what was asked; the message says why."""


class NodeNotFoundError(ClusterError):
    """The cluster has no node of that name."""


class SlurmCommandError(ClusterError):
    """A Slurm command ended with an error."""

    def __init__(self, command: tuple[str, ...], returncode: int, stderr: str) -> None:
        """Keep what was run and what it said."""
        super().__init__(f"`{' '.join(command)}` failed with exit code {returncode}: {stderr.strip()}")
        self.returncode = returncode
        self.stderr = stderr
