"""Kernel logs of nodes, where each node's log can be read from here (central syslog, a shared file system)."""

import asyncio
from pathlib import Path
from typing import Protocol

from relight.clients.logs import LogNotFoundError, LogUnreadableError

TAIL = 4 << 20
"""Bytes of a node's kernel log that are looked at: days of an ordinary node."""
TIMEOUT_S = 5.0


class KernelLogs(Protocol):
    """Reads what a node's kernel has said lately."""

    async def tail(self, node: str) -> bytes | None:
        """The newest lines, at most `TAIL` bytes; None where no kernel log is configured.

        Raises:
            LogNotFoundError: there is none of that node.
            LogUnreadableError: there is one, and it cannot be read.
        """


class KernelLogFiles:
    """Kernel logs as files whose path names the node."""

    def __init__(self, template: str) -> None:
        """Take a path with `{node}` in it; empty: there are none here."""
        self._template = template

    async def tail(self, node: str) -> bytes | None:
        """The newest lines, at most `TAIL` bytes; None where no kernel log is configured."""
        if not self._template:
            return None
        if not node.replace("-", "").replace(".", "").replace("_", "").isalnum():
            raise LogNotFoundError(f"{node!r} is not a plain node name")
        path = Path(self._template.replace("{node}", node))
        try:
            return await asyncio.wait_for(asyncio.to_thread(_tail, path), TIMEOUT_S)
        except FileNotFoundError as error:
            raise LogNotFoundError(f"{path}: no such file") from error
        except TimeoutError as error:
            raise LogUnreadableError(f"{path}: the file system did not answer within {TIMEOUT_S:g} s") from error
        except OSError as error:
            raise LogUnreadableError(f"{path}: {error.strerror or error}") from error


def _tail(path: Path) -> bytes:
    with path.open("rb") as file:
        size = file.seek(0, 2)
        start = max(0, size - TAIL)
        file.seek(start)
        data = file.read(TAIL)
    return data if start == 0 else data.partition(b"\n")[2]
