"""Node changes through the root-owned program `relight-node` (see `relight_node.py`), by sudo or SSH."""

import re
from datetime import timedelta

from relight.clients.slurm import (
    AmbiguousWriteError,
    NodeNotFoundError,
    NotPermittedError,
    RefusedError,
    SlurmError,
    SlurmUnavailableError,
)
from relight.clients.slurm_process import Done, LocalRunner, NotFinishedError, NotStartedError, Runner

BY_SUDO = ("sudo", "-n", "/usr/local/sbin/relight-node")
DEFAULT_TIMEOUT = timedelta(seconds=75)
"""More than the program's own limit (three times its 20 s): what runs under sudo cannot be ended by us."""

SSH_FAILED = 255
_STATUS: dict[int, type[SlurmError]] = {
    1: SlurmUnavailableError,
    2: RefusedError,
    3: RefusedError,
    4: NodeNotFoundError,
    5: AmbiguousWriteError,
    126: NotPermittedError,
    127: NotPermittedError,
    SSH_FAILED: AmbiguousWriteError,
}


class NodeWrapper:
    """The contract `NodeControl`.

    Args:
        command: what precedes `drain NODE REASON`: sudo and the program, or, over an SSH connection of its own to an
            account whose forced command it is, `("relight-node",)`.
        runner: where it runs; None: on this machine.
        timeout: for each call; a call that is late is ambiguous.
    """

    def __init__(
        self,
        command: tuple[str, ...] = BY_SUDO,
        *,
        runner: Runner | None = None,
        timeout: timedelta = DEFAULT_TIMEOUT,
    ) -> None:
        self._command = command
        self._runner = runner or LocalRunner()
        self._timeout = timeout

    async def drain(self, node: str, reason: str) -> None:
        """Drain one node with a reason that begins with `relight:`; fine where it has that mark already."""
        await self._call("drain", node, reason)

    async def undrain(self, node: str) -> None:
        """Return a node to service whose reason begins with `relight:`; fine where it is in service already."""
        await self._call("undrain", node)

    async def down(self, node: str, reason: str) -> None:
        """Set a node that cannot end its jobs to DOWN, with a reason that begins with `relight:`."""
        await self._call("down", node, reason)

    async def action(self, node: str, word: str) -> None:
        """Hand a node that we drained, and that is empty, to the platform's own repair: `Reboot` or `Replace`."""
        await self._call("action", node, word)

    async def _call(self, *words: str) -> None:
        try:
            done = await self._runner.run((*self._command, *words), self._timeout)
        except NotStartedError as error:
            raise SlurmUnavailableError(str(error)) from error
        except NotFinishedError as error:
            raise AmbiguousWriteError(str(error)) from error
        if done.code != 0:
            raise _error(done)


def _error(done: Done) -> SlurmError:
    text = " ".join((done.err or done.out).split())[:500] or f"relight-node ended with {done.code}"
    # sudo's own refusals end with 1, as the program's failures do.
    if re.match(r"sudo: |Sorry, user ", text):
        return NotPermittedError(text)
    return _STATUS.get(done.code, AmbiguousWriteError)(text)
