"""From an error that pyslurm's process answered to the contract's errors. The numbers are those of slurm_errno.h."""

from relight.clients.slurm import (
    AmbiguousWriteError,
    JobNotFoundError,
    NodeNotFoundError,
    NotPermittedError,
    RefusedError,
    SlurmBusyError,
    SlurmError,
    SlurmVersionError,
)
from relight.clients.slurm_parse_errors import read_error, write_error
from relight.clients.slurm_pyslurm_process import AnsweredError

ERRORS: dict[int, type[SlurmError]] = {
    1005: SlurmVersionError,  # SLURM_PROTOCOL_VERSION_ERROR
    1006: SlurmVersionError,  # SLURM_PROTOCOL_IO_STREAM_VERSION_ERROR
    1804: SlurmBusyError,  # SLURMCTLD_COMMUNICATIONS_BACKOFF
    2002: NotPermittedError,  # ESLURM_ACCESS_DENIED
    2010: NotPermittedError,  # ESLURM_USER_ID_MISSING, "Invalid user id"
    2017: JobNotFoundError,  # ESLURM_INVALID_JOB_ID
    2018: NodeNotFoundError,  # ESLURM_INVALID_NODE_NAME
}
"""What a number says by itself. For the others the words are looked at, which are those that the commands print."""
SLURMS_OWN = 1000
"""Slurm's numbers begin here. Those below are the C library's, and say nothing of what slurmctld did."""


HUNG_UP = 5005
"""SLURM_PROTOCOL_SOCKET_ZERO_BYTES_SENT: all that a slurmctld older than libslurm answers (seen: 26.05 to 22.05). From
one that has answered this process before it means that it is ending."""


def error_of_read(error: AnsweredError) -> SlurmError:
    """What a read, or the greeting, failed with."""
    if error.errno == HUNG_UP and not error.sent:
        return SlurmVersionError(f"{error}: slurmctld is older than the libslurm of pyslurm, or is just ending")
    kind = ERRORS.get(error.errno or 0)
    return kind(str(error)) if kind else read_error(str(error))


def error_of_write(error: AnsweredError) -> SlurmError:
    """What a write failed with."""
    if not error.sent:
        return error_of_read(error)
    if error.type == "ValueError":  # pyslurm's own refusal, before it sends anything
        return RefusedError(str(error))
    if error.errno is None or error.errno < SLURMS_OWN:
        return AmbiguousWriteError(f"{error.type}: {error}")
    kind = ERRORS.get(error.errno)
    return kind(str(error)) if kind else write_error(str(error))
