"""What can go wrong with a lab cluster.

ClusterError            the cluster cannot do what was asked
├── NodeNotFoundError
├── WayMissingError     this machine or this Slurm does not have that way to Slurm
└── SlurmCommandError   a Slurm command failed
state.ClusterNotFoundError, packages.SlurmNotInstallableError, ports.NoFreePortsError,
processes.WaitTimeoutError, processes.DaemonStartError
"""


class ClusterError(Exception):
    """The cluster cannot do what was asked; the message says why."""


class NodeNotFoundError(ClusterError):
    """The cluster has no node of that name."""


class WayMissingError(ClusterError):
    """A way to reach Slurm cannot be had here; the message is the reason."""


class SlurmCommandError(ClusterError):
    """A Slurm command ended with an error."""

    def __init__(self, command: tuple[str, ...], returncode: int, stderr: str) -> None:
        """Keep what was run and what it said."""
        super().__init__(f"`{' '.join(command)}` failed with exit code {returncode}: {stderr.strip()}")
        self.returncode = returncode
        self.stderr = stderr
