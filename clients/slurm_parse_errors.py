"""From the words of an error to the contract's errors: one ordered table, tried from the top.

The words are those of `slurm_strerror` (src/common/slurm_errno.c), equal from 22.05 to 26.05 where seen.
"""

import re
from enum import Enum

from relight.clients.slurm import (
    AmbiguousWriteError,
    JobNotFoundError,
    NodeNotFoundError,
    NotPermittedError,
    RefusedError,
    SlurmBusyError,
    SlurmError,
    SlurmUnavailableError,
    SlurmVersionError,
)


class Said(Enum):
    """What an error text says."""

    VERSION = "releases that cannot talk to each other"
    BUSY = "busy"
    NOT_SENT = "no connection was made"
    LOST = "no answer"
    NO_JOB = "no such job"
    NO_NODE = "no such node"
    NOT_PERMITTED = "not permitted"
    OTHER = "something else"


_TABLE: tuple[tuple[Said, re.Pattern[str]], ...] = tuple(
    (said, re.compile(words, re.IGNORECASE))
    for said, words in (
        # Commands of 22.05 towards 24.11, and towards 26.05, whose messages begin with another header (seen). Commands
        # newer than slurmctld get "Zero Bytes" or "Protocol authentication error", as from a dying one (seen): no row.
        (Said.VERSION, r"incompatible versions?|invalid protocol version|insane message length"),
        (
            Said.BUSY,
            r"try again|rate.?limit|temporarily un|too many (pending|connections|rpcs)",
        ),
        # Nothing was sent: slurmctld's port is closed, or the request could not be signed.
        (
            Said.NOT_SENT,
            (
                r"connect failure|munge|unable to process configuration|cannot stat file|connection refused"
                r"|(authentication|credential) (plugin|error|failure)|not find slurm\.conf|resolve"
            ),
        ),
        # "Unexpected message received" is all that 22.05 and 24.11 say of a requeue without an answer (seen).
        (
            Said.LOST,
            (
                r"timed out|unable to contact|unexpected message|zero bytes|communication|standby|shut(ting)? ?down"
                r"|(receive|send) (failure|error)|connection (reset|closed|aborted)|broken pipe"
                r"|header length|no route|unspecified error|problem talking to the database|persist"
            ),
        ),
        (Said.NO_JOB, r"invalid job id|no job|couldn't get steps"),
        (Said.NO_NODE, r"invalid node name|node \S+ not found"),
        (
            Said.NOT_PERMITTED,
            r"permission denied|invalid user id|not permitted|not authorized|\bsudo:|setpriv:|a password is required",
        ),
    )
)


def understand(text: str) -> Said:
    """What the text says, by the first row of the table that fits."""
    return next((said for said, words in _TABLE if words.search(text)), Said.OTHER)


def read_error(text: str) -> SlurmError:
    """The error of a read that failed: what is not understood leaves the state unknown."""
    kinds: dict[Said, type[SlurmError]] = {
        Said.VERSION: SlurmVersionError,
        Said.BUSY: SlurmBusyError,
        Said.NO_JOB: JobNotFoundError,
        Said.NO_NODE: NodeNotFoundError,
        Said.NOT_PERMITTED: NotPermittedError,
    }
    return kinds.get(understand(text), SlurmUnavailableError)(_line(text))


def write_error(text: str) -> SlurmError:
    """The error of a write that failed: what is not understood is Slurm's own refusal, silence is ambiguous."""
    if not text.strip():
        return AmbiguousWriteError("the command failed and said nothing")
    kinds: dict[Said, type[SlurmError]] = {
        Said.VERSION: SlurmVersionError,
        Said.BUSY: SlurmBusyError,
        Said.NOT_SENT: SlurmUnavailableError,
        Said.LOST: AmbiguousWriteError,
        Said.NO_JOB: JobNotFoundError,
        Said.NO_NODE: NodeNotFoundError,
        Said.NOT_PERMITTED: NotPermittedError,
    }
    return kinds.get(understand(text), RefusedError)(_line(text))


def _line(text: str) -> str:
    """One line for a person, without control characters (a job's name may be part of it)."""
    flat = " ".join(text.split())
    return "".join(sign for sign in flat if sign.isprintable())[:500] or "no error text"
