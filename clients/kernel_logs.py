"""Kernel logs of nodes, where each node's log can be read from here (central syslog, a shared file system)."""

import io
from datetime import timedelta
from typing import Protocol

from relight.clients.files import Files, LocalFiles, Stream
from relight.clients.log_files import Bounded
from relight.clients.logs import LogNotFoundError

TAIL = 4 << 20
"""Bytes of a node's kernel log that are looked at: days of an ordinary node."""
TIMEOUT = timedelta(seconds=5)
_AT_ONCE = 1 << 20


class KernelLogs(Protocol):
    """Reads what a node's kernel has said lately."""

    async def tail(self, node: str) -> bytes | None:
        """The newest lines, at most `TAIL` bytes; None where no kernel log is configured.

        Raises:
            LogNotFoundError: there is none of that node.
            LogUnreadableError: there is one, and it cannot be read.
        """


class KernelLogFiles:
    """Kernel logs as files whose path names the node.

    Args:
        template: a path with `{node}` in it; empty: there are none here.
        files: where they are; None: on this machine.
    """

    def __init__(self, template: str, files: Files | None = None) -> None:
        self._template = template
        self._files = files or LocalFiles()
        self._bounded = Bounded(TIMEOUT)

    async def tail(self, node: str) -> bytes | None:
        """The newest lines, at most `TAIL` bytes; None where no kernel log is configured."""
        if not self._template:
            return None
        if not node.replace("-", "").replace(".", "").replace("_", "").isalnum():
            raise LogNotFoundError(f"{node!r} is not a plain node name")
        path = self._template.replace("{node}", node)
        return await self._bounded.run(path, lambda: _tail(self._files, path))


def _tail(files: Files, path: str) -> bytes:
    with io.BufferedReader(Stream(files.open(path)), _AT_ONCE) as file:
        start = max(0, file.seek(0, 2) - TAIL)
        file.seek(start)
        data = file.read(TAIL)
    return data if start == 0 else data.partition(b"\n")[2]
